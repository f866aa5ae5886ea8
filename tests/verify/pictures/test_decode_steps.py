"""Decode steps behind a prompt with pictures: read from arrays and logs, judged, and their own mistake named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from assay.engines.cpu import CpuEngine
from assay.engines.reference import interpret
from assay.engines.reference.weights import Weights
from assay.library.verdicts import read_values
from assay.runtime.image_places import place_images
from assay.verify.faults.vision.prompt_edits import RIGHT_PROMPT, PromptHabits
from assay.verify.pictures.diagnose_prompt import diagnose_prompt, judge_prompt
from assay.verify.pictures.prompt_trials import fed_prompt
from tests.picture_prompts import chunk, golden, model_of

TAIL = (7, 11, 3)
NODES = ("l_out-0", "l_out-1")


def placed(name: str) -> Any:
    return lambda markers: place_images(golden(name)[0] if markers else golden(name)[0][1:2])


def decoded(name: str) -> dict[str, np.ndarray]:
    """The layers and logits of the cpu engine, which computes the prompt in one step and the answer token by token."""
    model, (ids, images) = model_of(name), placed(name)(True)
    whole = (*ids, *TAIL)
    engine = CpuEngine(model, n_pages=64, precision="exact", threads=1)
    found: dict[str, list[np.ndarray]] = {}
    try:
        ends = [len(ids) + i for i in range(len(TAIL) + 1)]
        for start, end in zip([0, *ends[:-1]], ends, strict=True):
            out = engine.forward([chunk(model, whole, images, start, end, outputs="all")], NODES)[0]
            for key, value in {**out.nodes, "logits": out.logits}.items():
                found.setdefault(key, []).append(value)
    finally:
        engine.close()
    return {key: np.concatenate(parts) for key, parts in found.items()}


def run_of(name: str, habits: PromptHabits) -> dict[str, np.ndarray]:
    """The definition's values of prompt and answer with these habits."""
    model = model_of(name)

    def whole(markers: bool) -> Any:
        ids, images = placed(name)(markers)
        return (*ids, *TAIL), images

    made = fed_prompt(model, whole, habits, len(TAIL))
    assert made is not None
    return {k: v.astype(np.float32) for k, v in interpret(made.graph, Weights(model.file), made.given, NODES).items()}


def ids_of(name: str, *, rows: bool) -> np.ndarray:
    ids = placed(name)(True)[0]
    return np.array([*(max(i, 0) for i in ids if rows or i >= 0), *TAIL])


def said(name: str, values: Any) -> Any:
    return diagnose_prompt(model_of(name), placed(name), read_values(values))


@pytest.mark.parametrize("name", ["qwen2vl", "gemma3"])
@pytest.mark.parametrize("rows", [True, False], ids=["ids with rows", "ids of text"])
def test_the_steps_of_a_right_engine_are_healthy(name: str, rows: bool) -> None:
    """Positions of three numbers, and rows that see each other: the ids may have the rows of the picture or not."""
    tokens, n = ids_of(name, rows=rows), len(placed(name)(True)[0])
    values = decoded(name) | {"tokens": tokens, "steps": np.array([len(tokens) - 3, 1, 1, 1])}
    found, judged = said(name, values)
    assert found.verdict == "healthy", found
    assert judged.dump.steps == (n, 1, 1, 1) and len(judged.dump.tokens) == n + 3
    assert {node.name for node in judged.diff.nodes} >= {*NODES, "result_output"}


@pytest.mark.parametrize("name", ["qwen2vl", "gemma3"])
def test_logits_of_the_generated_tokens_alone(name: str) -> None:
    n = len(placed(name)(True)[0])
    values = {
        "tokens": ids_of(name, rows=False)[:-3],
        "generated": np.array(TAIL),
        "logits": decoded(name)["logits"][n - 1 :],
    }
    assert said(name, values)[0].verdict == "healthy"
    values["logits"] = np.roll(values["logits"], 1, axis=0)
    assert judge_prompt(model_of(name), placed(name), read_values(values)).diff.verdict == "wrong"


def test_a_wrong_step_is_found_where_it_begins() -> None:
    """A right prompt, and a decode step whose first layer has the row of the step before."""
    values = decoded("gemma3")
    values["l_out-0"][-1] = values["l_out-0"][-2]
    dump = read_values(values | {"tokens": ids_of("gemma3", rows=True)})
    wrong = judge_prompt(model_of("gemma3"), placed("gemma3"), dump).diff.first_name
    assert wrong == "l_out-0"


@pytest.mark.parametrize("rows", [True, False], ids=["ids with rows", "ids of text"])
def test_positions_that_are_wrong_in_decode_steps_alone_are_named(rows: bool) -> None:
    """An engine that goes on at its count of rows and tokens, where M-RoPE's positions lag behind."""
    values = run_of("qwen2vl", PromptHabits(decoding=True))
    right = run_of("qwen2vl", RIGHT_PROMPT)
    n = len(placed("qwen2vl")(True)[0])
    np.testing.assert_array_equal(values["l_out-1"][:n], right["l_out-1"][:n])
    found = said("qwen2vl", values | {"tokens": ids_of("qwen2vl", rows=rows)})[0]
    assert [cause.fault for cause in found.causes] == ["vis-lm-advance"]
    assert "the answer goes on" in found.causes[0].how


def test_mistakes_of_the_prompt_are_named_from_its_decode_steps() -> None:
    values = run_of("qwen2vl", PromptHabits(exchanged=True))
    found = said("qwen2vl", values | {"tokens": ids_of("qwen2vl", rows=True)})[0]
    assert [cause.fault for cause in found.causes] == ["vis-lm-yx"]


def test_json_lines_with_a_header_for_each_step(tmp_path: Path) -> None:
    values, ids = decoded("gemma3"), placed("gemma3")(True)[0]
    n, path = len(ids), tmp_path / "run.jsonl"
    lines: list[dict[str, Any]] = [{"assay_dump": 1, "tokens": [max(i, 0) for i in ids]}]
    lines += [{"name": "l_out-1", "values": values["l_out-1"][:n].tolist(), "shape": [n, values["l_out-1"].shape[1]]}]
    for i, token in enumerate(TAIL):
        row = values["l_out-1"][n + i]
        lines += [{"assay_dump": 1, "tokens": [token], "phase": "decode"}]
        lines += [
            {"name": "l_out-1", "first": row[:6].tolist()},
            {"name": "l_out-1", "rms": float(np.sqrt(np.mean(row**2)))},
        ]
    path.write_text("\n".join(map(json.dumps, lines)))
    assert said("gemma3", path)[0].verdict == "healthy"
    lines[-1]["rms"] *= 1.2
    path.write_text("\n".join(map(json.dumps, lines)))
    found = judge_prompt(model_of("gemma3"), placed("gemma3"), read_values(path))
    assert found.diff.first_name == "l_out-1" and found.dump.steps == (n, 1, 1, 1)


def test_a_log_of_decode_steps(tmp_path: Path) -> None:
    """Rows behind the prompt, printed with their positions and tokens."""
    model, values, ids = model_of("gemma3"), decoded("gemma3"), placed("gemma3")(True)[0]
    n, lines = len(ids), list[str]()
    for i, token in enumerate((None, *TAIL)):
        row = values["l_out-1"][n - 1 + i]
        if token is not None:
            lines.append(f"decode pos {n - 1 + i} token {token}")
        lines.append(f"pos {n - 1 + i} l_out-1 first: {row[:6].round(6).tolist()} rms {np.sqrt(np.mean(row**2)):.6f}")
    (tmp_path / "run.log").write_text("\n".join(lines))
    dump = read_values(tmp_path / "run.log", lenient=True)
    assert dump.log
    found = judge_prompt(model, placed("gemma3"), dump)
    assert len(found.dump.tokens) > n and found.diff.verdict != "wrong", (found.dump, found.diff)
