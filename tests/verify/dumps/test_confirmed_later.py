"""Lines that later values refute, and lists of one statistic a token, on a real model."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from assay.models import Model
from assay.verify.dumps.load import load_dump
from assay.verify.dumps.observation import Dump
from assay.verify.judge.verdict import judge
from tests.verify.conftest import TOKENS


def shown(truth: Dump, name: str, k: int = 6) -> str:
    """The first values of the last row."""
    value = truth.values(name)
    assert value is not None
    return " ".join(f"{x:.5f}" for x in value[-1].reshape(-1)[:k])


def read(text: list[str], model: Model, folder: Path) -> Dump:
    (folder / "x.log").write_text("\n".join([f"tokens: {list(TOKENS)}", *text]) + "\n")
    return load_dump(folder / "x.log", model)


def test_a_line_with_the_values_of_another_node_is_read_as_that_node(model: Model, truth: Dump, tmp_path: Path) -> None:
    text = [f"layer 0 ffn_norm: {shown(truth, 'attn_norm-0')}", f"layer 0 ffn_out: {shown(truth, 'ffn_out-0')}"]
    dump = read(text, model, tmp_path)
    assert {o.name for o in dump.observations} == {"attn_norm-0", "ffn_out-0"}
    assert any("read as attn_norm" in note for note in dump.notes)
    assert judge(model, dump)


def test_a_line_with_the_values_of_no_node_is_left_out_with_a_note(model: Model, truth: Dump, tmp_path: Path) -> None:
    text = ["layer 0 ffn_norm: 9.5 -8.25 7.125 6.5 5.5", f"layer 0 ffn_out: {shown(truth, 'ffn_out-0')}"]
    dump = read(text, model, tmp_path)
    assert [o.name for o in dump.observations] == ["ffn_out-0"]
    assert any("ffn_norm" in note and "not used" in note for note in dump.notes)


def test_it_stays_where_nothing_later_is_right(model: Model, truth: Dump, tmp_path: Path) -> None:
    text = [
        f"layer 0 attn_norm: {shown(truth, 'attn_norm-0')}",
        "layer 0 ffn_norm: 9.5 -8.25 7.125 6.5 5.5",
        "layer 0 ffn_out: 3.5 -2.25 1.125 2.5 4.5",
    ]
    found = judge(model, read(text, model, tmp_path))
    assert found.first_wrong is not None
    assert found.first_wrong.name == "ffn_norm-0"


def test_a_later_print_of_another_row_refutes_nothing(model: Model, truth: Dump, tmp_path: Path) -> None:
    """A row of ffn_norm does not reach other rows of the same layer's ffn_out."""
    text = ["layer 0 ffn_norm pos 0: 9.5 -8.25 7.125 6.5 5.5", f"layer 0 ffn_out pos 4: {shown(truth, 'ffn_out-0')}"]
    found = judge(model, read(text, model, tmp_path))
    assert found.first_wrong is not None
    assert found.first_wrong.name == "ffn_norm-0"


@pytest.mark.parametrize("kind", ["norm", "rms", "absmax"])
def test_one_statistic_a_token(model: Model, truth: Dump, tmp_path: Path, kind: str) -> None:
    of = {
        "norm": lambda row: np.sqrt(np.sum(row**2)),
        "rms": lambda row: np.sqrt(np.mean(row**2)),
        "absmax": lambda row: np.max(np.abs(row)),
    }
    text = ["per token"]
    for name, said in (("embd", "tok_emb"), ("attn_out-0", "blk0.attn_proj"), ("l_out-0", "blk0.hidden_out")):
        value = truth.values(name)
        assert value is not None
        text.append(f"{said:<20}" + "  ".join(f"{of[kind](row.reshape(-1)):.4f}" for row in value))
    dump = read(text, model, tmp_path)
    assert {(o.name, o.kind, o.row) for o in dump.observations} == {
        (name, kind, t) for name in ("embd", "attn_out-0", "l_out-0") for t in range(len(TOKENS))
    }
    assert judge(model, dump)


def arrays_of(truth: Dump, path: Path, names: dict[str, str], **changes: float) -> Path:
    """An .npz with the nodes under these names; some multiplied."""
    found = {name: np.array(truth.values(node)) * changes.get(name, 1.0) for name, node in names.items()}
    np.savez(path, tokens=np.array(TOKENS), **found)
    return path


@pytest.mark.parametrize(("name", "kept"), [("blk0/scores", False), ("kq-0", True)])
def test_an_array_that_later_arrays_refute(model: Model, truth: Dump, tmp_path: Path, name: str, kept: bool) -> None:
    """Scores behind the scale, under a name of the engine's own. Under llama.cpp's name the dump is wrong."""
    names = {name: "kq-0", "kq_soft_max-0": "kq_soft_max-0", "l_out-0": "l_out-0"}
    dump = load_dump(arrays_of(truth, tmp_path / "a.npz", names, **{name: 0.25}), model)
    assert ("kq-0" in dump.by_name) == kept
    found = judge(model, dump).first_wrong
    assert (found.name if found is not None else None) == ("kq-0" if kept else None)
    assert any("0.25 times kq-0, while kq_soft_max-0" in note for note in dump.notes) != kept


def test_an_array_stays_where_later_ones_follow_it(model: Model, truth: Dump, tmp_path: Path) -> None:
    names = {"blk0/scores": "kq-0", "l_out-0": "l_out-0"}
    dump = load_dump(arrays_of(truth, tmp_path / "a.npz", names, **{"blk0/scores": 0.25, "l_out-0": 1.25}), model)
    assert {"kq-0", "l_out-0"} <= set(dump.by_name)


def test_a_statistic_a_token_beside_as_many_values_of_a_row(model: Model, truth: Dump, tmp_path: Path) -> None:
    """Both lists of a line have as many numbers as there are tokens."""
    lines = [json.dumps({"event": "start", "tokens": list(TOKENS)})]
    for layer, op, node in (
        (-1, "emb", "embd"),
        (0, "n1", "attn_norm-0"),
        (0, "out", "l_out-0"),
        (1, "out", "l_out-1"),
    ):
        rows = np.asarray(truth.values(node), np.float64).reshape(len(TOKENS), -1)
        rms = [round(float(np.sqrt(np.mean(row**2))), 5) for row in rows]
        shown = {
            "rms_by_tok": rms,
            "first_tok0": rows[0][:4].round(5).tolist(),
            "last_tok": rows[-1][:6].round(5).tolist(),
        }
        lines.append(json.dumps({"event": "act", "layer": layer, "op": op, **shown}))
    (tmp_path / "x.jsonl").write_text("\n".join(lines) + "\n")
    dump = load_dump(tmp_path / "x.jsonl", model)
    assert sum(o.kind == "rms" for o in dump.by_name["embd"]) == len(TOKENS)
    assert {o.rows for o in dump.by_name["embd"] if o.kind == "first"} == {(0, 1), (len(TOKENS) - 1, len(TOKENS))}
    assert judge(model, dump)
