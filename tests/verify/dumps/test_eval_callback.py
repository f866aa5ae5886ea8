"""What llama-eval-callback prints, old and new, whole and cut off."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from assay.engines.reference import interpret
from assay.engines.reference.weights import Weights
from assay.errors import AssayError
from assay.gguf import open_file
from assay.models import Model, load
from assay.verify.dumps.formats.eval_callback import read_eval_callback
from assay.verify.dumps.load import load_dump
from assay.verify.dumps.observation import Dump, Observation, inputs_of
from assay.verify.judge.verdict import judge
from tests.verify.conftest import TOKENS


def print_like_llamacpp(truth: Dump, model: Model, path: Path, old: bool = False) -> Path:
    """What the tool prints of every node: three values at either end of an axis, four decimals, the sum."""
    ops = {"linear": "MUL_MAT", "rope": "ROPE", "rms_norm": "MUL", "add": "ADD", "embed": "GET_ROWS", "kq": "MUL_MAT",
           "attn_softmax": "SOFT_MAX", "kqv": "MUL_MAT", "merge_heads": "CONT", "glu": "SWIGLU",
           "slice": "VIEW"}  # fmt: skip
    text = []
    for obs in truth.observations:
        value = obs.array()
        if obs.name.startswith(("kq-", "kq_")):
            value = np.pad(value, ((0, 0), (0, 0), (0, 250)))
        value = value.reshape((1,) * (4 - value.ndim) + value.shape)
        role = re.sub(r"_proj(?=-)", "", obs.name)
        ne = ", ".join(map(str, value.shape[::-1]))
        op = ops[model.graph[obs.name].op]
        prefix = "ggml_debug" if old else "common_debug_cb_eval"
        text.append(f"{prefix}: {role:>24} = (f32) {op:>10}(a{{64, 6, 1, 1}}, b{{6, 1, 1, 1}}}}) = {{{ne}}}")

        def ends(n: int) -> list[int]:
            return [*range(min(n, 3))] if old else [*range(n)] if n <= 6 else [0, 1, 2, n - 3, n - 2, n - 1]

        for i3 in ends(value.shape[0]):
            text.append(" " * 37 + "[")
            for i2 in ends(value.shape[1]):
                text.append(" " * 38 + "[")
                for i1 in ends(value.shape[2]):
                    row = [f"{value[i3, i2, i1, i0]:12.4f}" for i0 in ends(value.shape[3])]
                    if old:
                        row.append("...")
                    elif value.shape[3] > 6:
                        row.insert(3, "...")
                    text.append(" " * 39 + "[" + ", ".join(row) + "],")
                text.append(" " * 38 + "],")
            text.append(" " * 37 + "]")
        if not old:
            text.append(" " * 37 + f"sum = {value.sum():f}")
    path.write_text("\n".join(text) + "\n")
    return path


@pytest.mark.parametrize("old", [False, True])
def test_eval_callback_text(model: Model, truth: Dump, tmp_path: Path, old: bool) -> None:
    path = print_like_llamacpp(truth, model, tmp_path / "log.txt", old)
    dump = load_dump(path, model, tokens=TOKENS)
    assert len(dump.by_name) == len(truth.by_name) and not dump.unmatched
    assert judge(model, dump).verdict == "same"
    swapped = path.read_text().replace(" ffn_up-1 ", " x ").replace(" ffn_gate-1 ", " ffn_up-1 ")
    path.write_text(swapped.replace(" x ", " ffn_gate-1 "))
    diff = judge(model, load_dump(path, model, tokens=TOKENS))
    assert [n.name for n in diff.nodes if n.verdict == "wrong"] == ["ffn_up-1", "ffn_gate-1"]


@pytest.mark.parametrize("reverse", [False, True])
def test_a_view_and_the_rotation_of_it_have_one_name(shared_dir: Path, tmp_path: Path, reverse: bool) -> None:
    """llama.cpp prints k_pe as a view, then as the rotation of it: the values say which print is the node's."""
    model = load(open_file(shared_dir / "data" / "arch" / "deepseek2-lite.gguf"))
    ids = tuple(t % model.hparams.n_vocab for t in TOKENS)
    names = ["attn_norm-0", *["k_pe_proj-0", "k_pe-0"][:: -1 if reverse else 1]]
    values = interpret(model.graph, Weights(model.file), inputs_of(ids, range(len(ids))), names)
    seen = tuple(Observation(name, "values", values[name]) for name in names)
    path = print_like_llamacpp(Dump("llama.cpp", ids, observations=seen), model, tmp_path / "log.txt")
    dump = load_dump(path, model, tokens=ids)
    assert judge(model, dump).verdict == "same" and "k_pe-0" in dump.by_name, dump.notes


def test_eval_callback_truncated(model: Model, truth: Dump, tmp_path: Path) -> None:
    path = print_like_llamacpp(truth, model, tmp_path / "log.txt")
    text = path.read_text().splitlines()
    path.write_text("\n".join(text[:-4]))
    with pytest.raises(AssayError, match="result_output: the printed values do not fit"):
        read_eval_callback(path)
    path.write_text(text[0])
    with pytest.raises(AssayError, match="no values are printed"):
        read_eval_callback(path)


def test_llama_debug_text(model: Model, truth: Dump, tmp_path: Path) -> None:
    """`llama-debug` adds the sum of squares and the ids; the callback of 2025 on prints the ids one a line."""
    plain = print_like_llamacpp(truth, model, tmp_path / "log.txt").read_text()
    squares = iter(np.sum(np.square(obs.array(), dtype=np.float64)) for obs in truth.observations)
    text = re.sub(r"sum = (\S+)", lambda m: f"sum    = {m[1]}\n{' ' * 37}sum_sq = {next(squares):f}", plain)
    shown = "".join(f"w{t}({t}) " for t in TOKENS)
    (tmp_path / "debug.txt").write_text(f'{text}Input prompt: "a (1) b"\nToken ids ({len(TOKENS)}):\n{shown}\n\n')
    ids = "\n".join(f"  {t}" for t in TOKENS)
    (tmp_path / "callback.txt").write_text(f"run : number of input tokens = {len(TOKENS)}\n{ids}\n{plain}")
    for name in ("debug.txt", "callback.txt"):
        dump = load_dump(tmp_path / name, model)
        assert dump.tokens == tuple(TOKENS) and judge(model, dump).verdict == "same"
        assert ("norm" in {o.kind for o in dump.observations}) == (name == "debug.txt")


def test_a_sum_of_the_printed_values_is_not_the_nodes_sum(model: Model, truth: Dump, tmp_path: Path) -> None:
    """Versions of 2024 added up what they printed."""
    path = print_like_llamacpp(truth, model, tmp_path / "log.txt")
    out, seen = [], 0.0
    for line in path.read_text().splitlines():
        seen = 0.0 if "debug_cb_eval" in line else seen + sum(map(float, re.findall(r"-?\d+\.\d{4}(?=[,\]])", line)))
        out.append(re.sub(r"sum = \S+", f"sum = {seen:f}", line))
    path.write_text("\n".join(out))
    assert judge(model, load_dump(path, model, tokens=TOKENS)).verdict == "same"
