"""`l2` before a list of norms, on lines and below headings that name the layer: it is not layer 2."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from assay.models import Model
from assay.verify.dumps.load import load_dump
from assay.verify.dumps.observation import Dump
from assay.verify.dumps.printed.log_reader import read_log
from assay.verify.judge.verdict import judge
from tests.verify.conftest import TOKENS

NAMES = {"attn_norm": "preAttnNorm", "Vcur": "vProj", "ffn_inp": "postAttn", "ffn_norm": "preMlpNorm"}


def rows_of(truth: Dump, node: str) -> tuple[list[list[float]], list[float]]:
    rows = np.asarray(truth.values(node), np.float64).reshape(len(TOKENS), -1)
    return rows[:, :4].round(6).tolist(), np.linalg.norm(rows, axis=1).round(5).tolist()


def record(layer: int, name: str, first: list[list[float]], l2: list[float]) -> str:
    return json.dumps({"event": "tensor", "layer": layer, "name": name, "first4": first, "l2": l2})


def fields(layer: int, name: str, first: list[list[float]], l2: list[float]) -> str:
    return f"layer={layer} node={name} first4={first} l2={l2}"


def block(layer: int, name: str, first: list[list[float]], l2: list[float]) -> str:
    return f"layer {layer} {name}:\n  l2: {l2}\n  first4: {first}"


@pytest.mark.parametrize("write", [record, fields, block])
def test_norms_of_every_token_beside_values(model: Model, truth: Dump, tmp_path: Path, write: object) -> None:
    lines = [
        write(layer, said, *rows_of(truth, f"{role}-{layer}"))  # type: ignore[operator]
        for layer in (0, 1)
        for role, said in NAMES.items()
    ]
    (tmp_path / "x.log").write_text(f"tokens: {list(TOKENS)}\n" + "\n".join(lines) + "\n")
    dump = load_dump(tmp_path / "x.log", model)
    assert set(dump.by_name) == {f"{role}-{layer}" for role in NAMES for layer in (0, 1)}
    for many in dump.by_name.values():
        assert {(o.kind, o.row) for o in many} == {(k, t) for k in ("first", "norm") for t in range(len(TOKENS))}
    assert judge(model, dump).verdict == "same"
    assert not any("not used" in note or "printed" in note for note in dump.notes)


@pytest.mark.parametrize(
    ("text", "nodes"),
    [
        ("attn_norm L0=[0.5, 1.5] L1=[0.5, 2.5] L2=[3.5, 4.5]\n", ["attn_norm-0", "attn_norm-1", "attn_norm-2"]),
        ("L2: [0.5, 1.5]\nL3: [0.5, 1.5]\n", ["l_out-2", "l_out-3"]),
        ("layer 1:\n  attn_norm: [2.5, 1.5]\nL2 out: [0.5, 1.5]\n", ["attn_norm-1", "l_out-2"]),
    ],
)
def test_the_third_layer_stays(text: str, nodes: list[str]) -> None:
    assert [o.name for o in read_log(Path("log"), (), text).observations] == nodes
