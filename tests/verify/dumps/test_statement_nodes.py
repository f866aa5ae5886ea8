"""Print statements whose words say little or mislead: the values of all layers name the node."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from assay.models import Model
from assay.verify.dumps.load import load_dump, read_dump
from assay.verify.dumps.observation import Dump
from assay.verify.dumps.printed.counted_prefixes import with_layers_named
from assay.verify.judge.verdict import judge
from tests.verify.conftest import TOKENS

PROMPT, NEXT = TOKENS[:5], TOKENS[5]


def of(truth: Dump, name: str) -> NDArray[np.float64]:
    value = truth.values(name)
    assert value is not None
    return np.array(value, np.float64).reshape(len(value), -1)


def numbers(value: NDArray[np.float64]) -> str:
    """Sum and rms of all rows, two values of the first."""
    rms = np.sqrt(np.mean(value**2))
    return f"| {value.size} | {value.sum():.5f} | {rms:.6f} | {value[0, 0]:.5f} | {value[0, 1]:.5f} |"


def read(text: str, model: Model, folder: Path, ids: bool = True) -> Dump:
    (folder / "x.log").write_text((f"tokens: {TOKENS}\n" if ids else "") + text + "\n")
    return load_dump(folder / "x.log", model)


TABLE = {"q": "Qcur_proj", "att": "attn_out", "r1": "ffn_inp", "act": "ffn_swiglu", "mlp": "ffn_out", "r2": "l_out"}


@pytest.mark.parametrize("wrong", [False, True])
def test_names_of_the_writers_own(model: Model, truth: Dump, tmp_path: Path, wrong: bool) -> None:
    """With `wrong`, the last element of every value is off: all sums are, the first values are not."""
    lines = ["| node | n | sum | rms | [0] | [1] |", "|---|---:|---:|---:|---:|---:|"]
    for layer in range(2):
        for said, role in TABLE.items():
            value = of(truth, f"{role}-{layer}")
            if wrong:
                value[:, -1] += 8.0
            lines.append(f"| b{layer:02}/{said} {numbers(value)}")
    dump = read("\n".join(lines), model, tmp_path)
    assert {o.name for o in dump.observations} == {f"{role}-{i}" for role in TABLE.values() for i in range(2)}
    first = judge(model, dump).first_wrong
    assert (first is not None) == wrong and (first is None or first.name == "Qcur_proj-0")


def test_statistics_tell_a_rotated_query(model: Model, truth: Dump, tmp_path: Path) -> None:
    """The first token's query is the same before and behind the rotation."""
    lines = []
    for layer in range(2):
        value = of(truth, f"Qcur-{layer}")
        stats = f"mean={value.mean():.6f} std={value.std():.6f} min={value.min():.6f} max={value.max():.6f}"
        lines.append(f"layer {layer} query {stats} first=[{', '.join(f'{x:.6f}' for x in value[0, :4])}]")
    dump = read("\n".join(lines), model, tmp_path)
    assert {o.name for o in dump.observations} == {"Qcur-0", "Qcur-1"}
    assert judge(model, dump)


def test_one_name_printed_several_times_in_a_layer(model: Model, truth: Dump, tmp_path: Path) -> None:
    """Buffers that are used again: the place in the layer says which value it is, also behind a fault in layer 1."""
    roles = (
        ("xb", "attn_norm"),
        ("xb2", "attn_out"),
        ("x", "ffn_inp"),
        ("xb", "ffn_norm"),
        ("xb", "ffn_out"),
        ("x", "l_out"),
    )
    lines = ["run.c:70: pos = 5 only, first 8 of each"]
    for layer in range(2):
        for i, (said, role) in enumerate(roles):
            row = of(truth, f"{role}-{layer}")[-1, :8] * (1 + 0.25 * (layer == 1 and i > 2))
            lines.append(f"run.c:{80 + i}: l={layer} s->{said} = {{{', '.join(f'{x:.5f}' for x in row)}, ...}}")
    dump = read("\n".join(lines), model, tmp_path)
    assert {o.name for o in dump.observations} == {f"{role}-{i}" for _, role in roles for i in range(2)}
    first = judge(model, dump).first_wrong
    assert first is not None and first.name == "ffn_norm-1"


def test_a_fault_that_gives_a_node_its_inputs_values_keeps_its_name(model: Model, truth: Dump, tmp_path: Path) -> None:
    """The sum was left out, and what is computed from it follows: the words are right."""
    x = of(truth, "attn_out-0")
    weight = model.file.decode("blk.0.ffn_norm.weight").astype(np.float64)
    normed = x / np.sqrt(np.mean(x**2, axis=1, keepdims=True) + 1e-5) * weight
    lines = [
        f"layer 0 {said}: {' '.join(f'{v:.6f}' for v in value[-1, :10])}"
        for said, value in (("attn_out", x), ("ffn_inp", x), ("ffn_norm", normed))
    ]
    found = judge(model, read("\n".join(lines), model, tmp_path))
    assert found.first_wrong is not None and found.first_wrong.name == "ffn_inp-0"


def test_the_statement_before_the_layers_is_the_embedding_where_nothing_is_right(
    model: Model, truth: Dump, tmp_path: Path
) -> None:
    said = {"norm1": "attn_norm", "value": "Vcur", "attnOut": "attn_out", "norm2": "ffn_norm", "mlpOut": "ffn_out"}
    rows = [("x0", -1, "embd"), *((name, i, f"{role}-{i}") for i in range(2) for name, role in said.items())]
    rng = np.random.default_rng(3)
    lines = []
    for name, layer, node in rows:
        value = rng.permutation(of(truth, node)[-1])
        record = {"event": "tensor", "name": name, **({"layer": layer} if layer >= 0 else {}), "token": 5}
        record |= {
            "mean": round(value.mean(), 6),
            "std": round(value.std(), 6),
            "head": [round(x, 5) for x in value[:4]],
        }
        lines.append(json.dumps(record))
    found = judge(model, read("\n".join(lines), model, tmp_path))
    assert found.first_wrong is not None and found.first_wrong.name == "embd"


def test_a_decode_step_is_read_as_the_prompt(model: Model, truth: Dump, tmp_path: Path) -> None:
    """Its values are wrong from the first layer on, and would match no node."""
    roles = {"u": "attn_norm", "y": "kqv_out", "mixer": "attn_out", "x": "l_out"}
    lines = [f"input ids: {PROMPT}", "", f"> prefill, showing the last token {PROMPT[-1]}"]
    for row in (4, 5):
        lines += [f"> decode step 1, feeding {NEXT}"] if row == 5 else []
        for layer in range(2):
            for said, role in roles.items():
                value = of(truth, f"{role}-{layer}")[row, :6] * (1.5 if row == 5 and (layer or said != "u") else 1)
                shown = ", ".join(f"{x:.7f}" for x in value)
                lines.append(f"[{layer}] {said} Float32Array(64) [ {shown}, ... 58 more items ]")
    dump = read("\n".join(lines), model, tmp_path, ids=False)
    assert dump.steps == (5, 1)
    seen = {(o.name, o.rows) for o in dump.observations}
    assert seen == {(f"{role}-{i}", (row, row + 1)) for role in roles.values() for i in range(2) for row in (4, 5)}
    first = judge(model, dump).first_wrong
    assert first is not None and first.name == "kqv_out-0"


def test_lengths_of_a_vector_between_bars(model: Model, truth: Dump, tmp_path: Path) -> None:
    lines = []
    for layer in range(2):
        att, mlp = (np.linalg.norm(of(truth, f"{role}-{layer}")[-1]) for role in ("ffn_inp", "l_out"))
        lines.append(f"|x| L{layer} att   {att:.6f}   mlp {mlp:.6f}")
    dump = read("== last token ==\n" + "\n".join(lines), model, tmp_path)
    assert {(o.name, o.kind) for o in dump.observations} == {
        (f"{r}-{i}", "norm") for r in ("ffn_inp", "l_out") for i in (0, 1)
    }
    assert judge(model, dump)


def test_a_table_whose_names_are_in_a_column_called_value(model: Model, truth: Dump, tmp_path: Path) -> None:
    roles = {"h": "attn_norm", "op": "attn_out", "x+op": "ffn_inp", "h2": "ffn_norm", "x": "l_out"}
    lines = [
        "| (index) | layer | value | size | mean | std | v[0] | v[1] | v[2] |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for layer in range(2):
        for said, role in roles.items():
            row = of(truth, f"{role}-{layer}")[-1]
            cells = [f"'{said}'", "64", *(f"{x:.5f}" for x in (row.mean(), row.std(), *row[:3]))]
            lines.append(f"| {len(lines) - 2} | {layer} | " + " | ".join(cells) + " |")
    dump = read("prompt (last token)\n" + "\n".join(lines), model, tmp_path)
    assert {o.name for o in dump.observations} >= {
        f"{r}-{i}" for r in ("attn_norm", "ffn_inp", "l_out") for i in (0, 1)
    }
    assert judge(model, dump)


@pytest.mark.parametrize("ids", [True, False])
def test_json_lines_of_whole_arrays(model: Model, truth: Dump, tmp_path: Path, ids: bool) -> None:
    """Without the ids of the later call, only the first one is read."""
    lines: list[dict[str, object]] = [{"model": "x", "prompt": PROMPT, **({"thenFed": [NEXT]} if ids else {})}]
    for call, rows in enumerate((slice(0, 5), slice(5, 6))):
        for said, role in (("normed", "attn_norm"), ("mixerOut", "attn_out"), ("hidden", "l_out")):
            for layer in range(2):
                value = of(truth, f"{role}-{layer}")[rows]
                data = [float(f"{x:.8g}") for x in value.reshape(-1)]
                lines.append({"call": call, "node": f"{said}.{layer}", "shape": list(value.shape), "data": data})
    (tmp_path / "x.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    dump = load_dump(tmp_path / "x.jsonl", model)
    assert dump.steps == ((5, 1) if ids else (5,))
    assert {o.name for o in dump.observations} == {
        f"{r}-{i}" for r in ("attn_norm", "attn_out", "l_out") for i in (0, 1)
    }
    assert judge(model, dump)


@pytest.mark.parametrize("wrong", [False, True])
def test_arrays_of_the_first_columns(model: Model, truth: Dump, tmp_path: Path, wrong: bool) -> None:
    """With `wrong`, only the first token's rows are right."""
    roles = {"mix": "kqv_out", "r1": "ffn_inp", "r2": "l_out"}
    arrays = {f"b{i:02}/{said}": of(truth, f"{role}-{i}")[:, :12] for i in range(2) for said, role in roles.items()}
    for value in arrays.values():
        value[1:] *= 1.1 if wrong else 1
    np.savez(tmp_path / "x.npz", tokens=TOKENS, **{name: value.astype(np.float32) for name, value in arrays.items()})
    dump = load_dump(tmp_path / "x.npz", model)
    assert {o.name for o in dump.observations} == {f"{role}-{i}" for role in roles.values() for i in range(2)}
    first = judge(model, dump).first_wrong
    assert (first is not None) == wrong and (first is None or first.name == "kqv_out-0")


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("b0/q 1.5\nb0/k 2.5\nb1/q 1.5\nb1/k 2.5", True),
        ("|x| L0 att 1.5\n|x| L1 att 1.5\n|x| L2 att 1.5", True),
        ("[0] u 1.5\n[0] y 2.5\n[1] u 1.5\n[1] y 2.5", True),
        ("pos0 u 1.5\npos0 y 2.5\npos1 u 1.5\npos1 y 2.5", False),  # a token's row
        ("r1 u 1.5\nr2 u 2.5\nr1 y 1.5\nr2 y 2.5", False),  # does not count up
        ("b0 q b1 k 1.5\nb0 k b1 q 1.5", False),  # two in a line
        ("b0/q 1.5\nb1/k 1.5\nb2/v 1.5", False),  # no word comes again
    ],
)
def test_a_prefix_that_counts_is_the_layer(text: str, named: bool) -> None:
    found = with_layers_named(text)
    assert ("layer 1: " in found) == named and (named or found == text)


def test_a_models_file_name_is_no_node(tmp_path: Path) -> None:
    (tmp_path / "x.log").write_text("tokens: [1, 2]\nmodel Tiny.Q4_1.gguf {\nlayer 0 attn_out rms=1.5\nx norm 2.5\n")
    assert not any(o.name.startswith("Qcur") for o in read_dump(tmp_path / "x.log").observations)
