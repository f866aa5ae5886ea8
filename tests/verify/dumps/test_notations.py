"""Habits that span lines: documents, hexadecimal numbers, comparisons by signs, aligned heads, heads of attention."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from assay.engines.reference import ReferenceEngine
from assay.errors import AssayError
from assay.models import Model
from assay.verify.dumps.load import load_dump, read_dump
from assay.verify.dumps.observation import Dump
from assay.verify.dumps.printed.log_reader import read_log
from assay.verify.dumps.printed.notebook_text import notebook_as_text
from assay.verify.dumps.printed.number_notations import in_decimal
from assay.verify.dumps.printed.numpy_asserts import with_asserted_arrays
from assay.verify.dumps.tracing import take_trace
from assay.verify.judge.verdict import judge
from tests.verify.conftest import TOKENS

A = np.array([0.5, -1.25, 3.0, 0.125], np.float32)
HEXDUMP = f"""$ hexdump -C dump/tokens.i32
00000000  01 00 00 00 2c 01 00 00                           |....,...|
00000008
$ hexdump -C dump/layer1_resid.pos1.f32
00000000  {A.tobytes()[:8].hex(" ")}  {A.tobytes()[8:].hex(" ")}  |....|
00000010
"""
WIDE = """(last token; lengths)
  L     |q_rot|     |k_rot|  |attn_ctx| |attn_proj|   sum h_out
  0     25.9772     16.0755      0.7536      2.7923    -46.9199
  1     38.1405     35.8176      4.9829     31.1587    -37.6244
"""
# A text, and the observations that it must give.
READ = {
    "nested JSON": (
        json.dumps({"ids": [1, 300], "layers": [{"idx": i, "attn": {"proj": [0.5 + i, 1.5]}} for i in (0, 1)]}),
        ["tokens 1 300", "layers.0.attn.proj first 0.5 1.5", "layers.1.attn.proj first 1.5 1.5"],
    ),
    "YAML": (
        "run:\n  token_ids:\n  - 1\n  - 300\nlayers:\n"
        + "".join(f"- index: {i}\n  after_ffn:\n    norm: {i}.5\n    first: [0.5, 1.5]\n" for i in (0, 1)),
        ["tokens 1 300", "norm 0.5", "first 0.5 1.5", "norm 1.5", "first 0.5 1.5"],
    ),
    "a heading in capitals": (
        " LOGITS LAST TOKEN\n 0.5D+00 1.5D+00\n 2.5D+00 3.5D+00\n",
        ["result_output first 0.5 1.5 2.5 3.5 row -1"],
    ),
    "ids over two lines": (
        " IDS  =     1   300     5\n           7     9\n layer 0 out: 0.5 1.5\n",
        ["tokens 1 300 5 7 9", "l_out-0 first 0.5 1.5"],
    ),
    "hexadecimal floats": ("layer 0 out: 0x1.8p+0 -0x1p-2\n", ["l_out-0 first 1.5 -0.25"]),
    "hexdump": (HEXDUMP, ["tokens 1 300", "l_out-1|ffn_inp-1 first 0.5 -1.25 3 0.125 row 1"]),
    "signs": (
        "expected = -, got = +\n" + "".join(f"layer {i} out\n- 0.5 1.5\n+ 2.5 3.5\n" for i in (0, 1, 2)),
        [f"l_out-{i} first 2.5 3.5" for i in (0, 1, 2)],
    ),
    "aligned heads": (
        WIDE,
        [said for i in (0, 1)
         for said in (f"Qcur-{i} norm", f"Kcur-{i} norm", f"kqv_out-{i} norm", f"attn_out-{i} norm", f"l_out-{i} sum")],
    ),
    "weights by their sum": ("layer 0 att head 2: [0.25, 0.5, 0.25]\n", ["kq_soft_max-0 first 0.25 0.5 0.25"]),
    "averages over heads": (
        "layer 0 attention, head averages: [0.25, 0.5, 0.25]\nlayer 0 out: [0.5, 1.5]\n",
        ["l_out-0 first 0.5 1.5"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", READ)
def test_read(case: str) -> None:
    text, wanted = READ[case]
    dump = read_log(Path("x.log"), text=text)
    found = [f"tokens {' '.join(map(str, dump.tokens))}"] * bool(dump.tokens) + [o.summary for o in dump.observations]
    assert len(found) == len(wanted), found
    for have, want in zip(found, wanted, strict=True):
        names, _, rest = want.partition(" ")
        assert want in have or (have.startswith(names) and rest.split()[0] in have), (have, want)


@pytest.fixture(scope="module")
def traced(model: Model) -> Dump:
    return take_trace(ReferenceEngine(model), TOKENS, nodes="^(Qcur-|Vcur|kq_soft_max|kqv_out|l_out|result_output)")


def _log(traced: Dump, model: Model, style: str) -> str:
    heads, kv, width = model.hparams.n_head, model.hparams.n_head_kv, model.hparams.n_embd_head
    last, lines = len(TOKENS) - 1, ["tokens: " + " ".join(map(str, TOKENS))]

    def shown(values: np.ndarray) -> str:
        return json.dumps([[float(f"{x:.6f}") for x in row] for row in values] if values.ndim == 2 else
                          [float(f"{x:.6f}") for x in values])  # fmt: skip

    n = len(TOKENS)
    for layer in range(model.hparams.n_layer):
        q, v = (np.asarray(traced.values(f"{name}-{layer}")).reshape(n, -1, width) for name in ("Qcur", "Vcur"))
        weights = np.asarray(traced.values(f"kq_soft_max-{layer}"))
        if style == "each head":
            lines += [f"L{layer} H{h} pos {last} q rot = {shown(q[last, h])}" for h in range(heads)]
            lines += [f"L{layer} KV{h} pos {last} v = {shown(v[last, h])}" for h in range(kv)]
            lines += [f"L{layer} H{h} pos {last} softmax = {shown(weights[h, last])}" for h in range(heads)]
        else:
            lines += [f"layer {layer} q_rot: [{', '.join(shown(q[:, h]) for h in range(heads))}]"]
            lines += [f"layer {layer} v (last token): {shown(v[last])}"]
            lines += [f"layer {layer} att: [{', '.join(shown(weights[h]) for h in range(heads))}]"]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("style", ["each head", "arrays"])
def test_heads_of_attention(model: Model, traced: Dump, tmp_path: Path, style: str) -> None:
    (tmp_path / "run.log").write_text(_log(traced, model, style))
    dump = load_dump(tmp_path / "run.log", model)
    assert {name.partition("-")[0] for name in dump.by_name} == {"Qcur", "Vcur", "kq_soft_max"}
    assert judge(model, dump).first_wrong is None
    wrong = _log(traced, model, style).replace("0.", "0.3", 400)
    (tmp_path / "run.log").write_text(wrong)
    assert judge(model, load_dump(tmp_path / "run.log", model)).first_wrong is not None


@pytest.mark.parametrize("given", ["beside", "sampled", "listed", "best"])
def test_rows_behind_the_prompt(model: Model, traced: Dump, tmp_path: Path, given: str) -> None:
    """Positions go on behind the prompt; the log gives the ids there in one of several ways."""
    prompt, rows = TOKENS[:4], np.asarray(traced.values("l_out-0"))
    logits = np.asarray(traced.values("result_output"))
    lines = [f"prompt ids: {' '.join(map(str, prompt))}"]
    lines += [f"generated ids: {TOKENS[4:]!s}"] * (given == "listed")
    for at in range(len(TOKENS)):
        fed = f" in={TOKENS[at]}" if given == "beside" else ""
        lines.append(f"pos={at}{fed} layer 0 out = [{', '.join(f'{x:.6f}' for x in rows[at, :8])}]")
        if given == "sampled" and 3 <= at < len(TOKENS) - 1:
            lines.append(json.dumps({"after_pos": at, "chosen": TOKENS[at + 1]}))
        if given == "best":
            best = {int(i): float(f"{logits[at, i]:.4f}") for i in np.argsort(-logits[at])[:3]}
            lines.append(f"pos={at} top logits: " + ", ".join(f"{i}={x}" for i, x in best.items()))
    (tmp_path / "run.log").write_text("\n".join(lines) + "\n")
    dump = load_dump(tmp_path / "run.log", model)
    assert dump.steps == (4, *(1 for _ in TOKENS[4:]))
    if given != "best":
        assert dump.tokens == tuple(TOKENS) and judge(model, dump).first_wrong is None
    assert {o.rows for o in dump.by_name["l_out-0"]} == {(i, i + 1) for i in range(len(TOKENS))}


def test_chosen_tokens_alone_are_no_values(tmp_path: Path) -> None:
    (tmp_path / "run.log").write_text('pos 0: in 1 -> argmax 403 " Once"\npos 1: in 403 -> argmax 407 " upon"\n')
    with pytest.raises(AssayError, match="chosen tokens without their logits"):
        read_dump(tmp_path / "run.log")


def test_files_that_a_hexdump_numbers_one_by_one_are_of_layers() -> None:
    values = A.tobytes().hex(" ")
    names = ("a_00_emb_1x4.f32", "a_01_x_1x4.f32", "a_02_x_1x4.f32", "a_03_logits_1x4.f32")
    text = "".join(f"== {name} ==\n00000000  {values[:23]}  {values[24:]}  |....|\n" for name in names)
    lines = [line.split(":")[0] for line in in_decimal(text).split("\n") if "[" in line]
    assert lines == ["a_00_emb", "layer 0 x", "layer 1 x", "a_03_logits"]


def test_commas_are_decimal_where_no_number_has_a_point() -> None:
    rows = "\n".join(f"Block {i} Ausgang  1.536  -0,{i:02}785  1,07424  1.234,5" for i in range(30))
    assert in_decimal(f"prog 0.3\n{rows}").split("\n")[2] == "Block 1 Ausgang  1536  -0.01785  1.07424  1234.5"
    assert in_decimal(rows.replace("1,07424", "1.07424")) == rows.replace("1,07424", "1.07424")  # lists, then
    ids = "ids 101,2045,312 7,450 " * 10
    assert in_decimal(ids + "x 0.5 " * 20) == ids + "x 0.5 " * 20


FAILED_TESTS = """ids 77 31 204 then 118, 42
_____________ test_row[prefill-embd] _____________
E    ACTUAL: array([ 0.5,  1.5,
E           2.5], dtype=float32)
E    DESIRED: array([ 0.5, 9.5,
E           2.5], dtype=float32)
_____________ test_row[step1-h0/ctx] _____________
E    ACTUAL: array([ 3.5,  1.5], dtype=float32)
E    DESIRED: array([ 0.5, 9.5], dtype=float32)
=========== short test summary info ============
FAILED test_row[step1-h0/ctx] 0.5 1.5
"""


def test_arrays_of_failed_tests_are_the_engines() -> None:
    assert with_asserted_arrays(FAILED_TESTS).splitlines()[2:] == [
        "embd: [ 0.5,  1.5, 2.5]",
        "--- decode step 1, token 118 ---",
        "layer 0 ctx: [ 3.5,  1.5]",
    ]
    dump = read_log(Path("x"), text=FAILED_TESTS)
    assert [o.name for o in dump.observations] == ["embd"] and dump.tokens == (77, 31, 204)
    assert [(t, [o.name for o in seen]) for t, seen in dump.later] == [(118, ["kqv_out-0"])]


def test_a_log_of_decode_steps_alone_has_the_ids_before_them() -> None:
    dump = read_log(Path("x"), text=FAILED_TESTS.replace("prefill-", "step1-"))
    assert not dump.observations and [(t, len(seen)) for t, seen in dump.later] == [(118, 2)]


def notebook(*cells: tuple[str, str]) -> str:
    shown = [{"output_type": "execute_result", "data": {"text/plain": [output]}} for _, output in cells]
    return json.dumps(
        {
            "cells": [
                {"cell_type": "code", "source": [source], "outputs": [output] if text else []}
                for (source, text), output in zip(cells, shown, strict=True)
            ]
        },
        indent=1,
    )


def test_cells_of_a_notebook_name_what_they_show() -> None:
    text = notebook(
        ("prompt = [5, 6, 7]\ny = m.feed(prompt, 0)", ""),
        (
            "np.array(m.get('mid', 0))  # before the feed-forward",
            "array([[0.5, 1.5],\n       [2.5, 3.5],\n       [1.0, 2.0]])",
        ),
        ("np.array(m.get('mid', 0))[:, 1:2]", "array([[1.5], [3.5], [2.0]])"),
        ("y = m.feed([9], 3); m.get('mid', 0), np.sort(y)", "(array([[7.5, 8.5]]),\n array([0.1, 0.2]))"),
    )
    dump = read_log(Path("x"), text=text)
    assert dump.tokens == (5, 6, 7) and {o.name for o in dump.observations} == {"ffn_inp-0"}
    assert [(t, [(o.name, o.data) for o in seen]) for t, seen in dump.later] == [(9, [("ffn_inp-0", (7.5, 8.5))])]


@pytest.mark.parametrize(
    "text", ['{"cells": 3, "cell_type": "', '{"cells": [3], "cell_type": "code"}', '{"cells": {"cell_type": []}}']
)
def test_other_documents_are_no_notebook(text: str) -> None:
    assert notebook_as_text(text) == text
