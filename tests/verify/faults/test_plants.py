"""Wherever an edit applies, it runs and gives a value of the node's shape, on every architecture."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from assay.engines.reference import evaluate, interpret
from assay.engines.reference.weights import Weights
from assay.gguf import open_file
from assay.graph import split
from assay.models import Model, load
from assay.verify.dumps.observation import inputs_of
from assay.verify.faults import FAULTS, Context, Variant, decode_only
from tests import tiny
from tests.models import others
from tests.synthetic import make_kquant

TOKENS = (1, 5, 9, 7, 3, 2, 8, 4)
MODELS: dict[str, dict[str, Any]] = {
    "plain": {},
    "halves, biases, own head": {"type": "F16", "bias": True, "tied": False},
    "window": {"type": "Q4_0", "window": 4},
    "experts": {"type": "Q8_0", "n_expert": 4, "n_expert_used": 2},
    "a key head for every query": {"n_head": 4, "n_head_kv": 4, "type": "Q4_1"},
    "one key head": {"n_head": 4, "n_head_kv": 1, "type": "Q5_1"},
    "three to a group": {"n_embd": 96, "n_head": 6, "n_head_kv": 2, "type": "Q8_0", "rope_freqs": True},
}


def variants() -> Iterator[tuple[str, Variant, float]]:
    for fault in FAULTS.values():
        for variant in fault.variants:
            for p in (variant.search.grid() or [4.0])[::9] if variant.search else [0.0]:
                yield fault.id, variant, p
            if variant.search is None:
                yield fault.id, decode_only(variant), 0.0


def check(model: Model, steps: tuple[int, ...]) -> int:
    weights, given = Weights(model.file), inputs_of(TOKENS, range(len(TOKENS)))
    right = interpret(model.graph, weights, given, [n.name for n in model.graph]) | given
    context, done = Context(model, steps), 0
    nodes = [(node, split(node.name)[0]) for node in model.graph]
    for fault, variant, p in variants():
        roles = set()
        for node, role in nodes:
            if role in roles or (change := variant.at(context, node, p)) is None:
                continue
            roles.add(role)
            with np.errstate(all="ignore"):
                operands = [right[i] for i in change.node.inputs]
                value = evaluate(change.node, operands, weights, function=change.function)
            assert value.shape == right[node.name].shape, f"{fault} ({variant.text(p)}) at {node.name}"
            done += 1
    return done


@pytest.mark.parametrize("kind", MODELS)
def test_edits_run_where_they_apply(tmp_path: Path, kind: str) -> None:
    model = load(open_file(tiny.make(tmp_path / "tiny.gguf", **MODELS[kind])))
    assert check(model, (6, 1, 1)) > 300


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in others.CASES if "," not in name])
def test_edits_run_on_every_architecture(tmp_path: Path, name: str) -> None:
    others.make(name, tmp_path / "other.gguf")
    assert check(load(open_file(tmp_path / "other.gguf")), (6, 1, 1)) > 150


@pytest.mark.parametrize("steps", [(8,), (3, 5)])
def test_edits_run_on_every_block_type(tmp_path: Path, steps: tuple[int, ...]) -> None:
    assert check(load(open_file(make_kquant(tmp_path / "synthetic.gguf"))), steps) > 500


def test_an_edit_that_asks_for_what_the_model_lacks_does_not_apply(tmp_path: Path) -> None:
    """A model without a separate head, without biases or without a window cannot have the faults of these."""
    tied = load(open_file(tiny.make(tmp_path / "tiny.gguf", tied=True, bias=False)))
    context = Context(tied, (8,))
    for fault in ("head-tied-forced", "qkv-bias-missing", "swa-ignored", "rope-freq-factors", "moe-no-renorm"):
        for variant in FAULTS[fault].variants:
            assert all(variant.at(context, node) is None for node in tied.graph), fault
