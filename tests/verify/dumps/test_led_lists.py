"""Lists that begin with statistics: of the row, or of all rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from assay.models import Model
from assay.verify.dumps.load import load_dump
from assay.verify.dumps.observation import Dump
from assay.verify.judge.verdict import judge
from tests.verify.conftest import TOKENS

NODES = (
    ("emb", "embd"),
    ("0 norm1", "attn_norm-0"),
    ("0 x", "l_out-0"),
    ("1 norm1", "attn_norm-1"),
    ("1 x", "l_out-1"),
)


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("head", [" layer node   sum   sum|x|   l2   last row: first 3 .. last 3", "last token:"])
def test_sums_of_rows_and_of_all_rows(model: Model, truth: Dump, tmp_path: Path, whole: bool, head: str) -> None:
    """The heads are of columns in one cell, so the values tell what the first numbers are. `l2` is no layer."""
    lines = [f"tokens: {list(TOKENS)}", head]
    for label, name in NODES:
        rows = np.asarray(truth.values(name), np.float64).reshape(len(TOKENS), -1)
        of, last = rows if whole else rows[-1], rows[-1]
        numbers = [f"{of.sum():.6f}", f"{np.abs(of).sum():.5f}", f"{np.linalg.norm(of):.6f}"]
        shown = " ".join(f"{x:.5f}" for x in last[:3]) + " .. " + " ".join(f"{x:.5f}" for x in last[-3:])
        lines.append(f"  {label}   {'  '.join(numbers)}   {shown}")
    (tmp_path / "x.log").write_text("\n".join(lines) + "\n")
    dump = load_dump(tmp_path / "x.log", model)
    for _, name in NODES:
        kinds = {o.kind: o.rows for o in dump.by_name[name]}
        assert {"sum", "abssum", "norm"} <= set(kinds), kinds
        assert (kinds["sum"] is None) == whole
    assert judge(model, dump).verdict == "same"
