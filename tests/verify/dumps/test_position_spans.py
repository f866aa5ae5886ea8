"""First position and length of a call: of which row the values are, the values say."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from assay.engines.reference import ReferenceEngine
from assay.models import Model
from assay.verify.dumps.load import load_dump
from assay.verify.dumps.observation import Dump
from assay.verify.dumps.printed.log_reader import read_log
from assay.verify.dumps.printed.position_spans import with_spans_of_calls
from assay.verify.dumps.tracing import take_trace
from assay.verify.judge.verdict import judge
from tests.verify.conftest import TOKENS

PROMPT, NEXT = TOKENS[:4], TOKENS[4:]
FORMS = {
    "span of tracing": "{phase}{{pos={a} n={m}}}:block{{il={i}}}: model: h_out.mean={mean:.6f} h_out.rms={rms:.6f}",
    "start and len": "{phase} start={a} len={m} layer={i} out mean={mean:.6f} rms={rms:.6f}",
    "range of Rust": "[{phase} pos {a}..{b}] layer {i} out: mean {mean:.6f} rms {rms:.6f}",
    "slice of a call": "{phase}[{a}:{b}] layer {i} out: mean {mean:.6f} rms {rms:.6f}",
    "n_past and n_tokens": "n_past={a} n_tokens={m} | layer {i} | out | mean={mean:.6f} rms={rms:.6f}",
    "turned": "n_tokens = {m}, n_past = {a}, layer {i} out: mean {mean:.6f} rms {rms:.6f}",
    "inclusive": "positions {a}-{last}: layer {i} out: mean {mean:.6f} rms {rms:.6f}",
    "half-open interval": "{phase} span=[{a}, {b}) layer {i} out: mean {mean:.6f} rms {rms:.6f}",
    "record": '{{"pos": {a}, "n": {m}, "layer": {i}, "node": "out", "mean": {mean:.6f}, "rms": {rms:.6f}}}',
}


@pytest.fixture(scope="module")
def decoded(model: Model) -> Dump:
    return take_trace(ReferenceEngine(model), TOKENS, nodes="^l_out")


def log(decoded: Dump, form: str, row: str) -> str:
    lines = [f"prompt ids: {PROMPT}", f"generated ids: {NEXT}"]
    for a, b in ((0, 4), (4, 5), (5, 6)):
        for i in (0, 1):
            value = decoded.values(f"l_out-{i}")
            assert value is not None
            part = np.asarray(value, np.float64)[a:b]
            part = {"first": part[:1], "last": part[-1:], "all": part}[row]
            numbers = {"mean": float(part.mean()), "rms": float(np.sqrt(np.mean(part**2)))}
            phase = "decode" if a else "prefill"
            lines.append(form.format(phase=phase, a=a, b=b, m=b - a, last=b - 1, i=i, **numbers))
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("row", ["last", "first", "all"])
@pytest.mark.parametrize("form", FORMS)
def test_values_decide_which_row_of_a_call(model: Model, decoded: Dump, tmp_path: Path, form: str, row: str) -> None:
    (tmp_path / "run.log").write_text(log(decoded, FORMS[form], row))
    dump = load_dump(tmp_path / "run.log", model)
    assert dump.tokens == tuple(TOKENS) and dump.steps == (4, 1, 1)
    prompt = {"last": (3, 4), "first": (0, 1), "all": (0, 4)}[row]
    assert {o.rows for o in dump.observations} == {prompt, (4, 5), (5, 6)}
    assert judge(model, dump).verdict == "same"


def test_the_last_row_of_each_call_of_a_prompt_in_parts() -> None:
    text = "".join(
        f"eval n_past={a} n_tokens={m} layer 0 out rms={a}.5\n" for a, m in ((0, 4), (4, 2), (6, 1))
    )  # fmt: skip
    found = read_log(Path("log"), (), text).observations
    assert [(o.rows, o.possible_row) for o in found] == [(None, 3), (None, 5), ((6, 7), None)]


@pytest.mark.parametrize(
    "text",
    [
        "pos=0 n=64 layer 0 out rms=0.5\npos=1 n=64 layer 0 out rms=1.5\n",  # elements
        "pos=2 n=3 layer 0 out [0.5, 1.5, 2.5]\n",
        "layer 0 out[0:6] [0.5, 1.5]\n",
        "| layer | rms | last token [0:2] |\n| 0 | 1.5 | 0.5 0.25 |\n",
        "tokens: 5 to 8 are shown\nlayer 0 pos 2 rms=0.5\n",
        "prefill ids=[5, 6, 7] pos=0..3\n",
    ],
)
def test_other_numbers_beside_a_position_stay(text: str) -> None:
    assert with_spans_of_calls(text) == text
