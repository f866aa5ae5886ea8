"""Lines whose words name no node, on a real model: told by their values, in layers where a fault hides them too."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from assay.models import Model
from assay.verify.dumps.load import load_dump
from assay.verify.dumps.observation import Dump
from assay.verify.judge.verdict import judge
from tests.verify.conftest import TOKENS


def lines(truth: Dump, roles: dict[str, str], k: int, wrong: float = 0.0) -> str:
    """A line a layer and role under the name given, of the last token; all of layer 1 off by `wrong`."""
    text = [f"tokens: {list(TOKENS)}"]
    for layer in (0, 1):
        for role, name in roles.items():
            value = truth.values(f"{role}-{layer}")
            assert value is not None
            row = value[-1] + wrong * layer * np.sqrt(np.mean(value[-1] ** 2))
            text.append(f"{name}/{layer} " + " ".join(f"{x:.5f}" for x in row.reshape(-1)[:k]))
    return "\n".join(text) + "\n"


ROLES = {"attn_norm": "zork", "attn_out": "quux", "ffn_out": "grue", "l_out": "frob"}


def test_private_names_are_told_by_their_values(model: Model, truth: Dump, tmp_path: Path) -> None:
    (tmp_path / "x.log").write_text(lines(truth, ROLES, 5))
    dump = load_dump(tmp_path / "x.log", model)
    last = len(TOKENS) - 1
    assert {(o.name, o.row) for o in dump.observations} == {(f"{r}-{n}", last) for r in ROLES for n in (0, 1)}
    assert any("quux" in note and "attn_out-0" in note and "by their values" in note for note in dump.notes)
    assert judge(model, dump).verdict == "same"


def test_a_fault_in_a_later_layer_hides_nothing(model: Model, truth: Dump, tmp_path: Path) -> None:
    (tmp_path / "x.log").write_text(lines(truth, ROLES, 5, wrong=0.5))
    dump = load_dump(tmp_path / "x.log", model)
    assert {o.name for o in dump.observations} == {f"{r}-{n}" for r in ROLES for n in (0, 1)}
    assert not judge(model, dump)


def test_clear_words_are_not_overruled(model: Model, truth: Dump, tmp_path: Path) -> None:
    """An engine whose ffn_norm is another node's value is wrong there."""
    value = truth.values("attn_norm-0")
    assert value is not None
    first = " ".join(f"{x:.5f}" for x in value[-1, :5])
    (tmp_path / "x.log").write_text(f"tokens: {list(TOKENS)}\nlayer 0 ffn_norm: {first}\n")
    dump = load_dump(tmp_path / "x.log", model)
    assert [o.name for o in dump.observations] == ["ffn_norm-0"]


@pytest.mark.parametrize(
    ("said", "printed", "read"),
    [
        ("k_proj", "Vcur", "Kcur_proj"),  # a neighbour's: weights exchanged
        ("ffn_gate", "ffn_up", "ffn_gate"),
        ("l_out", "ffn_out", "l_out"),  # its input's: a sum left out
        ("attn_norm", "attn_out", "attn_out"),  # of what is made of it: no fault does that, the words were misread
    ],
)
def test_words_yield_only_to_what_is_made_of_their_node(
    model: Model, truth: Dump, tmp_path: Path, said: str, printed: str, read: str
) -> None:
    (tmp_path / "x.log").write_text(lines(truth, {printed: said}, 6).replace("/", " of the last token, layer "))
    dump = load_dump(tmp_path / "x.log", model)
    assert [o.name for o in dump.observations] == [f"{read}-0", f"{read}-1"]


@pytest.mark.parametrize("k", [1, 2])
def test_too_few_values_tell_nothing(model: Model, truth: Dump, tmp_path: Path, k: int) -> None:
    text = lines(truth, {"attn_out": "quux"}, k).replace("quux", "quux blah")
    (tmp_path / "x.log").write_text(text + "layer 0 out: 0.5 0.25 0.125\n")
    dump = load_dump(tmp_path / "x.log", model)
    assert {o.name for o in dump.observations} == {"l_out-0"}


def test_values_decide_between_two_readings_of_a_line(model: Model, truth: Dump, tmp_path: Path) -> None:
    """`ffn_out[1]` is layer 1, or the row of token 1: the same text, and the values choose."""
    first, second = truth.values("ffn_out-0"), truth.values("ffn_out-1")
    assert first is not None and second is not None
    last = len(TOKENS) - 1
    for rows, expected in (
        ((first[0], first[1], first[2]), {("ffn_out-0", 0), ("ffn_out-0", 1), ("ffn_out-0", 2)}),
        ((first[last], second[last]), {("ffn_out-0", last), ("ffn_out-1", last)}),
    ):
        text = [f"ffn_out[{i}] = [{', '.join(f'{x:.5f}' for x in row[:6])}]" for i, row in enumerate(rows)]
        (tmp_path / "x.log").write_text("\n".join([f"tokens: {list(TOKENS)}", *text, ""]))
        dump = load_dump(tmp_path / "x.log", model)
        assert {(o.name, o.row) for o in dump.observations} == expected


@pytest.mark.parametrize("part", ["start", "end"])
def test_last_is_the_end_of_a_row_or_the_start_of_the_last_tokens(
    model: Model, truth: Dump, tmp_path: Path, part: str
) -> None:
    """`L00 resid [64 x 6] last: -0.0578 0.0116 …` does not say which."""
    text = [f"tokens: {list(TOKENS)}"]
    for layer in (0, 1):
        value = truth.values(f"l_out-{layer}")
        assert value is not None
        row = value[-1, :5] if part == "start" else value[-1, -5:]
        text.append(f"L{layer:02d} l_out last: {' '.join(f'{x:.5f}' for x in row)} ...")
    (tmp_path / "x.log").write_text("\n".join(text) + "\n")
    dump = load_dump(tmp_path / "x.log", model)
    assert {o.kind for o in dump.observations} == {"first" if part == "start" else "last"}
    assert judge(model, dump).verdict == "same"
