"""A kit of a model with a state: vectors of operations with the state before and after, and states of whole runs.

The answers are written by a program that shares no code with the package: convolution and delta rule in a few lines.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from assay.gguf import open_file
from assay.models import load
from assay.text import Tokenizer
from assay.verify.conformance.grade import expected, score_kit
from assay.verify.conformance.vectors import write_kit

GOLDEN = Path(__file__).parents[2] / "data" / "arch" / "qwen35.gguf"
Array = np.ndarray[Any, Any]


@pytest.fixture(scope="module")
def kit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kit") / "kit"
    file = open_file(GOLDEN)
    model = load(file)
    write_kit(model, Tokenizer.from_gguf(file, nameless=model.hparams.n_vocab), folder)
    return folder


def conv(item: dict[str, Any], x: Array, w: Array, state: Array) -> tuple[Array, Array]:
    """y[t] = sum over taps of w[c, tap] times the row that many places back; the window holds the last rows."""
    rows = np.concatenate([state.T, x])  # oldest first
    taps = w.reshape(x.shape[1], -1)
    out = np.stack([np.sum(rows[t : t + taps.shape[1]].T * taps, axis=1) for t in range(len(x))])
    return out, rows[len(x) :].T


def delta(
    item: dict[str, Any], q: Array, k: Array, v: Array, g: Array, beta: Array, state: Array
) -> tuple[Array, Array]:
    """S = S exp(g); d = beta (v - S k); S = S + d k; y = S q, for every value head."""
    heads, groups = item["attrs"]["n_head"], item["attrs"]["n_head_k"]
    tokens = len(q)
    q, k = (x.reshape(tokens, groups, -1) for x in (q, k))
    v, scale, state = v.reshape(tokens, heads, -1), item["attrs"]["scale"], state.copy()
    out = np.zeros_like(v)
    for t in range(tokens):
        for h in range(heads):
            s = state[h] * np.exp(g.reshape(tokens, heads, -1)[t, h])
            d = beta.reshape(tokens, heads)[t, h] * (v[t, h] - s @ k[t, h % groups])
            state[h] = s + np.outer(d, k[t, h % groups])
            out[t, h] = scale * (state[h] @ q[t, h % groups])
    return out, state


BY_HAND = {"causal_conv": conv, "delta_rule": delta}


def answers(kit: Path, results: Path, *, forgets: bool = False) -> None:
    """Write the results of both operations. `forgets`: a faulty engine begins every call with zeros."""
    (results / "ops").mkdir(parents=True)
    for item in json.loads((kit / "manifest.json").read_text())["ops"]:
        if item["op"].removesuffix(".next") in BY_HAND:
            operands = [expected(kit, x).astype(np.float64) for x in (*item["inputs"], *item["weights"])]
            before = expected(kit, item["state_before"]).astype(np.float64)
            compute: Any = BY_HAND[item["op"].removesuffix(".next")]
            output, after = compute(item, *operands, 0 * before if forgets else before)
            output.astype("<f4").tofile(results / "ops" / f"{item['op']}.bin")
            after.astype("<f4").tofile(results / "ops" / f"{item['op']}.state.bin")


def grades(kit: Path, results: Path) -> dict[str, str]:
    found = score_kit(kit, results).grades
    return {g.item: g.verdict for g in found if g.section == "ops" and g.verdict != "missing"}


def test_an_independent_program_passes(kit: Path, tmp_path: Path) -> None:
    answers(kit, tmp_path / "results")
    found = grades(kit, tmp_path / "results")
    items = {f"{op}{call}{kind}" for op in BY_HAND for call in ("", ".next") for kind in ("", ".state")}
    assert found == dict.fromkeys(items, "f32")


def test_a_state_that_is_forgotten_between_calls_shows(kit: Path, tmp_path: Path) -> None:
    """The first call is right. The second is wrong, and so is the matrix after it; a window is full of new rows."""
    answers(kit, tmp_path / "results", forgets=True)
    found = grades(kit, tmp_path / "results")
    wrong = {item for item, verdict in found.items() if verdict == "wrong"}
    assert wrong == {"causal_conv.next", "causal_conv.next.state", "delta_rule.next", "delta_rule.next.state"}


def test_states_of_a_run(kit: Path) -> None:
    """Before and after each step: zero at the start, and a step begins with what the one before left."""
    probes = {probe["id"]: probe for probe in json.loads((kit / "manifest.json").read_text())["probes"]}
    assert "states" not in probes["prompt"], "only probes with every node have them"
    states = {(s["name"], s["step"]): expected(kit, s) for s in probes["decode"]["states"]}
    steps = len(probes["decode"]["steps"])
    for kind in ("r", "s"):
        assert not states[f"cache_{kind}_before-0", 0].any() and states[f"cache_{kind}_l0", 0].any()
        for step in range(1, steps):
            assert np.array_equal(states[f"cache_{kind}_before-0", step], states[f"cache_{kind}_l0", step - 1])
