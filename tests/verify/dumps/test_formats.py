"""Sixty ways of printing a layer, each understood as it was meant."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from assay.verify.dumps.logs import read_log
from tests.verify.dumps.formats import FORMATS, Format, Run

_ROLES = (
    "l_out", "attn_norm", "ffn_norm", "ffn_out", "ffn_inp", "ffn_swiglu", "ffn_up", "ffn_gate", "attn_out", "kqv_out",
    "Qcur", "Kcur", "Vcur", "Qcur_proj", "Kcur_proj",
)  # fmt: skip


@pytest.fixture(scope="module")
def run() -> Run:
    rng = np.random.default_rng(1)
    names = ["embd", "result_norm", "result_output", *(f"{role}-{n}" for n in range(3) for role in _ROLES)]
    return Run((1, 300, 297, 5, 6, 7, 8, 9), {name: rng.normal(size=(8, 16)) for name in names}, 3)


@pytest.mark.parametrize("form", FORMATS, ids=lambda f: f.name)
def test_it_is_understood_as_meant(form: Format, run: Run) -> None:
    dump = read_log(Path("x.log"), text=form.write(run))
    found = {(o.name, o.kind, None if o.rows is None else o.rows[0]): o for o in dump.observations}
    meant = {(name, kind, row): values for name, kind, row, values in form.means(run)}
    assert found.keys() == meant.keys()
    for key, values in meant.items():
        target = found[key].target()
        assert len(target) == len(values)
        slack = np.array(found[key].printed) + 2e-7 * np.abs(values)
        assert (np.abs(target - np.array(values)) <= slack * 1.001).all(), key
    assert not dump.aside
