"""llama.cpp's own values of every architecture are no fault: the same, or noise that an arithmetic explains."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from assay.engines.reference import evaluate
from assay.engines.reference.weights import Weights
from assay.gguf import open_file
from assay.models import Model, load
from assay.verify.dumps.load import load_dump
from assay.verify.dumps.observation import Dump, Observation, inputs_of
from assay.verify.judge.arithmetic import round_to
from assay.verify.judge.text import text
from assay.verify.judge.verdict import judge

KEPT = Path(__file__).parents[2] / "data" / "arch"  # two of the golden models; the others lie in ../shared
NAMES = (
    "bert", "cohere2", "command-r", "command-r-plus", "deepseek2", "deepseek2-lite", "exaone4", "exaone4-32b", "falcon",
    "gemma-embedding", "gemma2", "gemma2-27b", "gemma3", "gemma4", "gemma4-moe", "glm4", "glm4moe", "gpt-oss", "gpt2",
    "granite", "granitemoe", "llama4", "mistral3", "mpt", "nomic-bert", "olmo2", "olmo3", "phi3", "phi3-long", "qwen2",
    "qwen2moe", "qwen3", "qwen3moe", "smollm3", "stablelm", "stablelm-12b", "starcoder2",
)  # fmt: skip
LONG = ("command-r-plus", "exaone4-32b", "gemma2-27b")  # 46 layers and more
GELU = ("bert", "falcon", "gemma-embedding", "gemma2", "gemma2-27b", "gemma3", "gemma4", "gemma4-moe", "gpt2", "mpt",
        "starcoder2")  # fmt: skip


def golden(shared_dir: Path, name: str) -> tuple[Model, Dump]:
    """A golden model, for the context that its values were computed with, and those values."""
    folder = KEPT if (KEPT / f"{name}.gguf").exists() else shared_dir / "data" / "arch"
    if not (folder / f"{name}.gguf").exists():
        pytest.skip("needs the golden models of ../shared/data/arch")
    with np.load(folder / f"{name}.npz") as values:
        model = load(open_file(folder / f"{name}.gguf"), int(values["n_ctx"]))
    return model, load_dump(folder / f"{name}.npz", model)


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n in LONG else n for n in NAMES])
def test_llamacpps_values_are_right(shared_dir: Path, name: str) -> None:
    model, dump = golden(shared_dir, name)
    diff = judge(model, dump)
    assert diff, text(diff, model)
    assert diff.arithmetic.name == ("f32, GELU table" if name in GELU else "f32")


@pytest.mark.parametrize("name", ["bert", "falcon", "qwen2moe", "deepseek2"])
def test_one_value_is_found(shared_dir: Path, name: str) -> None:
    """The noise that excuses healthy values does not excuse 0.1 % of one value of a norm, a product or a sum."""
    model, dump = golden(shared_dir, name)
    for role in (
        "attn_norm-1",
        "ffn_out-1",
        "ffn_moe_out-1",
        "kqv_mla-1",
        "ffn_shexp_gate-1",
        "result_embd",
        "l_out-0",
    ):
        value = dump.values(role)
        if value is None:
            continue
        value = value.copy()
        at = np.unravel_index(int(np.abs(value).argmax()), value.shape)
        value[at] *= 1.001
        changed = tuple(o if o.name != role else replace(o, data=value) for o in dump.observations)
        found = judge(model, replace(dump, observations=changed))
        assert found.first_wrong is not None and found.first_wrong.name == role and found.first_wrong.own, role


@pytest.mark.parametrize("kind", ["f16", "bf16"])
@pytest.mark.parametrize("name", ["falcon", "qwen2", "mpt", "gemma4", "granitemoe", "gpt-oss", "deepseek2", "llama4"])
def test_half_precision_is_no_fault(shared_dir: Path, name: str, kind: str) -> None:
    """Every result in 16 bits, routing included: from all nodes, and from the layers' outputs alone."""
    model, dump = golden(shared_dir, name)
    values, weights = dict(inputs_of(dump.tokens, dump.positions)), Weights(model.file, np.float32)
    for node in model.graph:
        value = evaluate(node, [values[i] for i in node.inputs], weights)
        values[node.name] = round_to(value.astype(np.float32), kind) if value.dtype.kind == "f" else value
    names = [node.name for node in model.graph if node.op != "cache"]
    for kept in (names, [n for n in names if n.startswith(("l_out", "result"))]):
        seen = tuple(Observation(n, "values", values[n], shape=values[n].shape, foreign=n) for n in kept)
        diff = judge(model, replace(dump, observations=seen))
        assert diff, text(diff, model)
