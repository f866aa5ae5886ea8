"""Ways of printing a layer, each understood as it was meant: those the reader was built with, and others' since."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from assay.gguf import open_file
from assay.graph import join, split
from assay.models import Model, load
from assay.verify.dumps.logs import read_log
from assay.verify.dumps.observation import Observation
from assay.verify.dumps.resolve import candidates
from assay.verify.dumps.settle import counted_from_one
from tests import tiny
from tests.verify.dumps import formats, kept_apart, unseen_formats
from tests.verify.dumps.formats import Format, Run

_ROLES = (
    "l_out", "attn_norm", "ffn_norm", "ffn_out", "ffn_inp", "ffn_swiglu", "ffn_up", "ffn_gate", "attn_out", "kqv_out",
    "Qcur", "Kcur", "Vcur", "Qcur_proj", "Kcur_proj",
)  # fmt: skip
_N = 8


@pytest.fixture(scope="module")
def run() -> Run:
    rng = np.random.default_rng(1)
    names = ["embd", "result_norm", "result_output", *(f"{role}-{n}" for n in range(3) for role in _ROLES)]
    return Run((1, 300, 297, 5, 6, 7, 8, 9), {name: rng.normal(size=(_N, 16)) for name in names}, 3)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return load(open_file(tiny.make(tmp_path_factory.mktemp("formats") / "tiny.gguf", n_layer=3)))


def nodes_of(obs: Observation, model: Model) -> set[str]:
    """What the observation's words may mean."""
    return {obs.name, *obs.others, *candidates(obs, model)}


def row_of(row: int | None) -> int | None:
    return row + _N if row is not None and row < 0 else row


def understood_by_words(form: Format, run: Run, model: Model) -> None:
    dump = read_log(Path("x.log"), text=form.write(run))
    left = list(dump.observations)
    if counted_from_one(left, run.n_layer):
        left = [replace(o, name=join(role, None if n is None else n - 1)) for o in left for role, n in [split(o.name)]]
    check(form, run, model, left)


def check(form: Format, run: Run, model: Model, left: list[Observation]) -> None:
    for name, kind, row, values in form.means(run):
        kinds = ("at", "top") if kind in ("at", "top") else ("first", "at") if kind == "first" else (kind,)
        fits = [
            obs
            for obs in left
            if name in nodes_of(obs, model)
            and obs.kind in kinds
            and row_of(row) in (None if obs.rows is None else row_of(obs.rows[0]), row_of(obs.perhaps))
        ]
        assert fits, (name, kind, row)
        if kind in ("at", "top"):
            continue  # several lines may be one observation
        obs = fits[0]
        assert len(obs.target()) == len(values), name
        slack = np.array(obs.printed) + 2e-7 * np.abs(values)
        assert (np.abs(obs.target() - np.array(values)) <= slack * 1.001).all(), name
        left.remove(obs)
    assert {obs.kind for obs in left} <= {"at", "top"}


@pytest.mark.parametrize("form", [*formats.FORMATS, *unseen_formats.FORMATS, *kept_apart.FORMATS], ids=lambda f: f.name)
def test_it_is_understood_as_meant(form: Format, run: Run, model: Model) -> None:
    understood_by_words(form, run, model)
