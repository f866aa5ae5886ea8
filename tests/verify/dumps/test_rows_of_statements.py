"""Logs whose lines show different rows: all of one node, the last of another, both on one line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from assay.models import Model
from assay.verify.dumps.load import load_dump
from assay.verify.dumps.observation import Dump
from assay.verify.judge.verdict import judge
from tests.verify.conftest import TOKENS

LAST = len(TOKENS) - 1


def value(truth: Dump, node: str) -> np.ndarray:
    return np.asarray(truth.values(node), np.float64).reshape(len(TOKENS), -1)


def numbers(row: np.ndarray, k: int = 4) -> str:
    return "[" + ", ".join(f"{x:.5f}" for x in row[:k]) + "]"


def read(lines: list[str], model: Model, folder: Path) -> Dump:
    (folder / "x.log").write_text("\n".join([f"prompt {list(TOKENS)}", *lines]) + "\n")
    return load_dump(folder / "x.log", model)


@pytest.mark.parametrize("word", ["tok=", "token ", "step "])
def test_lines_that_number_their_token_beside_lines_of_the_last(
    model: Model, truth: Dump, tmp_path: Path, word: str
) -> None:
    """Of one node every token is shown, with its number; of the others the last token, which no word says."""
    lines = []
    for layer in (0, 1):
        for said, role in (("attn_norm", "attn_norm"), ("v", "Vcur"), ("attention out", "attn_out"), ("out", "l_out")):
            row = value(truth, f"{role}-{layer}")[LAST]
            lines.append(f"layer={layer} {said} l2={np.linalg.norm(row):.5f} {numbers(row)}")
        rows = value(truth, f"ffn_out-{layer}")
        lines += [f"layer={layer} {word}{t} ffn_out {numbers(row)}" for t, row in enumerate(rows)]
    dump = read(lines, model, tmp_path)
    for layer in (0, 1):
        assert {o.row for o in dump.by_name[f"Vcur-{layer}"]} == {LAST}
        assert {o.row for o in dump.by_name[f"ffn_out-{layer}"]} == set(range(len(TOKENS)))
    assert judge(model, dump).verdict == "same"


@pytest.mark.parametrize(
    "form",
    [
        "layer {i} {said} mean={mean:.6f} std={std:.6f} first5={first} last row={last}",
        "L{i}.{said}  mean {mean:+.6f} std {std:.6f} first [0] {first}  last row {last}",
        "layer={i} {said}: std={std:.6f}, head={first}, last token={last}",
    ],
)
def test_a_row_named_between_two_lists_is_the_second_ones(model: Model, truth: Dump, tmp_path: Path, form: str) -> None:
    lines = []
    for i in (0, 1):
        for said, role in (("attn_norm", "attn_norm"), ("v", "Vcur"), ("ctx", "kqv_out"), ("ffn_out", "ffn_out")):
            whole = value(truth, f"{role}-{i}")
            shown = {"first": numbers(whole[0], 5), "last": numbers(whole[LAST], 5)}
            lines.append(form.format(i=i, said=said, mean=whole.mean(), std=whole.std(), **shown))
    dump = read(lines, model, tmp_path)
    found = {(o.kind, o.rows) for o in dump.by_name["Vcur-0"]}
    assert {("std", None), ("first", (LAST, LAST + 1))} <= found
    assert any(kind == "first" and rows in (None, (0, 1)) for kind, rows in found)
    assert judge(model, dump).verdict == "same"


def test_a_statement_of_all_rows_beside_statements_of_the_last(model: Model, truth: Dump, tmp_path: Path) -> None:
    """Most statistics are of the last token; the mean and deviation of one node are of all."""
    lines = []
    for i in (0, 1):
        for said, role in (("attn_norm", "attn_norm"), ("v", "Vcur"), ("ffn_norm", "ffn_norm"), ("out", "l_out")):
            row = value(truth, f"{role}-{i}")[LAST]
            lines.append(f"layer={i} {said} rms={np.sqrt(np.mean(row**2)):.6f} absmax={np.abs(row).max():.6f}")
        whole = value(truth, f"ffn_out-{i}")
        lines.append(f"layer={i} ffn_out mean={whole.mean():.6f} std={whole.std():.6f}")
    dump = read(lines, model, tmp_path)
    assert {o.rows for o in dump.by_name["ffn_out-0"]} == {None}
    assert {o.row for o in dump.by_name["Vcur-1"]} == {LAST}
    assert judge(model, dump).verdict == "same"
