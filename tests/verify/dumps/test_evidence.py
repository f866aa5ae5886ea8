"""Texts that are no values of this model: what they are is said, and nothing is computed."""

from __future__ import annotations

from pathlib import Path

import pytest

from assay.errors import AssayError
from assay.models import Model
from assay.verify.dumps.definition_values import Truth
from assay.verify.dumps.load import load_dump, read_dump
from assay.verify.dumps.other_evidence import claims_of, different_sizes
from assay.verify.judge.verdict import judge
from tests.verify.conftest import TOKENS

LOADER = """\
llama_model_loader: - kv   4:                     llama.embedding_length u32              = 4096
llama_model_loader: - kv   3:                          llama.block_count u32              = 32
llm_load_print_meta: n_vocab          = 32000
llama_print_timings:        load time =    1234.56 ms
"""
COMPARED = """\
Comparing transformers and vLLM, hidden size 4096
prompt ids: [1, 5, 6]
layer 0: hf mean=-0.00012 std=0.0521 | vllm mean=-0.00012 std=0.0521 | max abs diff 0.00049
layer 1: hf mean=-0.00035 std=0.1133 | vllm mean=-0.00035 std=0.1132 | max abs diff 0.00195
"""
WIDE = """\
tokens: [1, 5, 6]
layer 0 attn_norm [3, 4096]: rms=0.1021 first=[0.0123, -0.0432, 0.0921]
layer 0 q [3, 32, 128]: rms=0.7021 first=[0.1123, -0.1432, 0.3921]
"""
DEEP = "tokens: [1, 5, 6]\n" + "".join(
    f"layer {i} out: rms=1.{i}21 first=[0.0123, -0.0432, 0.0921]\n" for i in range(32)
)
CASES = {
    "a loader's log": (LOADER, "a loader's log, not values of nodes, of another model (found 4096 wide, 32 layers"),
    "two engines": (COMPARED, "a comparison of two engines of another model (found 4096 wide, expected 64 wide"),
    "shapes": (WIDE, "values of another model (found shapes that end in 128 or 4096, expected 64 wide"),
    "layers": (DEEP, "values of another model (found layers up to 31, expected 2 layers"),
    "a benchmark": ("| pp512 | 123.4 t/s |\n| tg128 | 12.5 t/s |\n", "a benchmark, not values of nodes"),
    "a profile": ("event_block_name\tevent_name\tavg (ms)\nDefault\tinit\t0.03\n", "a profile of operators"),
    "words": ("The the capital of of France\nis is is Paris\n", "a text without numbers, not values"),
    "bytes": ("\x00\x01\x02\ufffd\ufffd abc\n" * 9, "binary data of no known format"),
}


@pytest.mark.parametrize("case", CASES)
def test_it_is_said_what_the_evidence_is(model: Model, tmp_path: Path, case: str) -> None:
    text, message = CASES[case]
    path = tmp_path / "run.log"
    path.write_text(text)
    with pytest.raises(AssayError) as error:
        load_dump(path, model, tokens=TOKENS if "ids" not in text and "tokens" not in text else ())
    assert message in str(error.value) and "\n" not in str(error.value)
    assert "print for each layer" in str(error.value) or "give that model's file" in str(error.value)


def test_without_a_model_the_kind_is_said(tmp_path: Path) -> None:
    (tmp_path / "run.log").write_text(LOADER)
    with pytest.raises(AssayError, match="a loader's log, not values of nodes; print"):
        read_dump(tmp_path / "run.log")


@pytest.mark.parametrize(
    "text",
    [
        "n_embd = 64\nclip hidden_size = 1024\nlayer 0 out: rms=1.5",  # one right number lets it pass
        "offloaded 3 of 3 layers\nlast 40 layers kept\nlayer 0 out: rms=1.5",
        "layer 1 of 2: rms=1.5\nshape (6, 64) norm 1.5\nshape (6, 96) norm 1.5",
        "layer 3: rms 1.5",  # counted from 1, or once too often: a fault, not another model
        "vocab_size: 128256\nlayer 0: rms 1.5",  # a padded vocabulary
    ],
)
def test_what_may_be_this_model_is_not_refused(model: Model, text: str) -> None:
    assert different_sizes(claims_of(text), model) == ""


def test_right_values_are_of_this_model_whatever_sizes_the_text_states(model: Model, tmp_path: Path) -> None:
    """A width may be the feed-forward's, a number of layers a percentage: the values decide."""
    rows = Truth(model, TOKENS, range(len(TOKENS)))(["l_out-0"])["l_out-0"]
    lines = ["n_embd = 4096", f"tokens: {list(TOKENS)}", f"layer 0 out: {[round(float(x), 5) for x in rows[-1, :6]]}"]
    path = tmp_path / "run.log"
    path.write_text("\n".join(lines) + "\n")
    assert judge(model, load_dump(path, model)).verdict == "same"
