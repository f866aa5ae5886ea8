"""The ids of decode steps: listed behind the prompt in many words, or told by the values of the embedding."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from assay.engines.reference import ReferenceEngine
from assay.models import Model
from assay.verify.dumps.load import load_dump
from assay.verify.dumps.printed.log_reader import read_log
from assay.verify.dumps.tracing import take_trace
from tests.verify.conftest import TOKENS

PROMPT = "prompt ids = 17 92 4 140"
LISTED = (
    "followed by = 58 121", "then 58 121", "then: [58, 121]", "continuation: 58 121", "continued with 58, 121",
    "decode ids = 58 121", "decode_ids: [58, 121]", "next tokens: 58 121", "forced: 58 121",
    "teacher-forced ids 58,121", "forced tokens (2): 58 121",
)  # fmt: skip


@pytest.mark.parametrize("listed", LISTED)
def test_ids_behind_the_prompt(listed: str) -> None:
    dump = read_log(Path("log"), (), f"{PROMPT}\n{listed}\nlayer 0 out: 0.5 1.5\n")
    assert dump.tokens == (17, 92, 4, 140) and dump.decoded == (58, 121) and len(dump.observations) == 1


@pytest.mark.parametrize("between", [" then ", ", followed by ", "; decode: ", " continuation=", " forced "])
def test_both_lists_on_one_line(between: str) -> None:
    dump = read_log(Path("log"), (), f"{PROMPT}{between}58 121\nlayer 0 out: 0.5 1.5\n")
    assert dump.tokens == (17, 92, 4, 140) and dump.decoded == (58, 121)


@pytest.mark.parametrize("line", ["then layer 3", "next: 58 (9.5)", "steps: 2", "step ids 58", "continued"])
def test_lines_that_list_no_ids(line: str) -> None:
    assert len(read_log(Path("log"), (), f"{PROMPT}\n{line}\nlayer 0 out: 0.5 1.5\n").decoded) < 2


KINDS = {
    "values": lambda row: " ".join(f"{x:.5f}" for x in row[:4]) + " ... " + f"{row[-1]:.5f}",
    "statistics": lambda row: f"sum={row.sum():.6e} sumsq={np.square(row).sum():.6e} amax={np.abs(row).max():.6f}",
    "lengths": lambda row: f"rms={np.sqrt(np.mean(row * row)):.7f} mean={row.mean():.7f} min={row.min():.5f}",
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("wrong", [False, True])
def test_the_embedding_tells_the_token(model: Model, tmp_path: Path, kind: str, wrong: bool) -> None:
    """Rows behind the prompt without ids; where the prompt's own rows are of other tokens, no token is named."""
    trace = take_trace(ReferenceEngine(model), TOKENS, nodes="^embd$")
    rows = np.asarray(trace.values("embd"), np.float64)
    shown = np.roll(rows, 1, axis=0) if wrong else rows
    lines = [f"pos {t} emb {KINDS[kind](row)}" for t, row in enumerate(shown)]
    (tmp_path / "run.log").write_text("\n".join([f"prompt ids: {' '.join(map(str, TOKENS[:4]))}", *lines]))
    dump = load_dump(tmp_path / "run.log", model)
    assert dump.tokens == (tuple(TOKENS[:4]) if wrong else tuple(TOKENS))


@pytest.mark.parametrize(
    "words",
    [
        ("prompt L{layer} t={t} {said}[64]: {v}", "step L{layer} t={t} {said}[64]: {v}"),
        ("prefill layer={layer} pos={t} {said} {v}", "decode layer={layer} pos={t} {said} {v}"),
        ("t={t} layer {layer} {said} {v}", "t={t} layer {layer} {said} {v}"),
    ],
)
def test_a_statement_is_the_same_in_prompt_and_steps(model: Model, tmp_path: Path, words: tuple[str, str]) -> None:
    """`zz` says nothing. In the prompt its values are attn_out's; in the wrong steps they are no node's."""
    said = {"zz": "attn_out", "yy": "ffn_out"}
    trace = take_trace(ReferenceEngine(model), TOKENS, nodes="^(attn_out|ffn_out)")
    lines = [f"prompt ids = {' '.join(map(str, TOKENS[:4]))}", f"followed by = {' '.join(map(str, TOKENS[4:]))}"]
    for t in range(len(TOKENS)):
        for layer in (0, 1):
            for word, role in said.items():
                row = np.asarray(trace.values(f"{role}-{layer}"), np.float64)[t] * (1 if t < 4 else -1.5)
                shown = " ".join(f"{x:.6f}" for x in row[:4]) + f" .. {row[-1]:.6f}"
                lines.append(words[t >= 4].format(layer=layer, t=t, said=word, v=shown))
    (tmp_path / "run.log").write_text("\n".join(lines))
    dump = load_dump(tmp_path / "run.log", model)
    for role in said.values():
        for layer in (0, 1):
            rows = {obs.rows for obs in dump.by_name[f"{role}-{layer}"]}
            assert rows == {(t, t + 1) for t in range(len(TOKENS))}


def test_final_values_one_layer_behind_the_last(model: Model, tmp_path: Path) -> None:
    """Engines number what follows the layers as one more layer; the values say whether it is normed."""
    for role in ("result_norm", "l_out-1"):
        trace = take_trace(ReferenceEngine(model), TOKENS, nodes="^(l_out|result_norm)")
        lines = [f"prompt ids = {' '.join(map(str, TOKENS))}"]
        for name, head in (("l_out-0", "layer 0 x"), ("l_out-1", "layer 1 x"), (role, "layer 2 x_final")):
            for t, row in enumerate(np.asarray(trace.values(name))):
                lines.append(f"pos {t} {head}: " + " ".join(f"{x:.6f}" for x in row[:5]))
        (tmp_path / "run.log").write_text("\n".join(lines))
        dump = load_dump(tmp_path / "run.log", model)
        assert role in dump.by_name and ("result_norm" in dump.by_name) == (role == "result_norm")
