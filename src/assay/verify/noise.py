"""The noise floor: what each legitimate arithmetic does to every node of this model on these tokens.

Two figures per node, arithmetic and token row, each as rms and as largest deviation:
  carried   the deviation of a whole run in that arithmetic: what separates its value from the definition's
  local     the deviation of one step: the node computed in that arithmetic from exact values of the nearest nodes
            that were observed. This is what remains when a stranger is judged on his own inputs, and it is far
            smaller: a fault hidden by carried noise stands out of the local one.
Both are simulated by running the definition with roundings (`arithmetic`), once per model, tokens and set of observed
nodes, and remembered on disk.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.engines.weights import Weights
from assay.graph import Node
from assay.models import Model
from assay.verify.arithmetic import ARITHMETICS, MATRIX, Arithmetic, operand, stored, summed
from assay.verify.observe import token_axis
from assay.verify.store import cache_dir, fingerprint, remember
from assay.verify.sweep import Last, evaluate_all, inputs_of

Array = NDArray[Any]
VERSION = 1  # of the noise model; part of the cache key


@dataclass(frozen=True)
class Level:
    """Noise of one node: [arithmetic, token row], absolute."""

    carried_rms: Array
    carried_top: Array
    local_rms: Array
    local_top: Array


def by_rows(value: Array, axis: int) -> Array:
    """[rows, everything else]."""
    moved = np.moveaxis(value, axis, 0)
    return moved.reshape(len(moved), -1)


def visible(positions: Array, key_positions: Array) -> Array:
    """Which keys a query may see, [T, S]; scores elsewhere mean nothing."""
    return np.asarray(key_positions[None, :] <= positions[:, None])


def _spread(difference: Array, axis: int) -> tuple[Array, Array]:
    rows = by_rows(difference, axis)
    return np.sqrt(np.mean(rows * rows, axis=1)), np.abs(rows).max(axis=1)


class NoiseRuns:
    """Visitor: the definition in float32 beside one run per arithmetic, carried and local."""

    def __init__(
        self, model: Model, tokens: Sequence[int], positions: Sequence[int], observed: Collection[str]
    ) -> None:
        self.graph, self.file, self.observed = model.graph, model.file, frozenset(observed)
        given = inputs_of(tokens, positions)
        self.exact: dict[str, Array] = dict(given)
        self.carried: list[dict[str, Array]] = [dict(given) for _ in ARITHMETICS]
        self.local: list[dict[str, Array]] = [dict(given) for _ in ARITHMETICS]
        self.seen = visible(given["inp_pos"], given["inp_kpos"])
        self.n_tokens = len(tokens)
        self.last = Last(model.graph)
        self.levels: dict[str, Level] = {}

    def visit(self, node: Node, weights: Weights) -> None:
        lanes: list[list[Array]] = [[self.exact[i] for i in node.inputs]]
        seen: dict[tuple[str, int, int, bool], Array] = {}  # equal roundings of equal inputs stay one array
        for a, runs in (*zip(ARITHMETICS, self.carried, strict=True), *zip(ARITHMETICS, self.local, strict=True)):
            lanes.append([self._operand(a, node, i, runs[name], seen) for i, name in enumerate(node.inputs)])
        exact, *values = evaluate_all(node, lanes, weights)
        if exact.dtype.kind == "f":
            exact = exact.astype(np.float32, copy=False)
        self.exact[node.name] = exact
        n = len(ARITHMETICS)
        before = [summed(a, self.graph, node, v, self.n_tokens) for a, v in zip(ARITHMETICS * 2, values, strict=True)]
        carried = [stored(a, node, v) for a, v in zip(ARITHMETICS, before[:n], strict=True)]
        for a, runs, value, one in zip(ARITHMETICS, self.carried, carried, before[n:], strict=True):
            runs[node.name] = value
            self.local[ARITHMETICS.index(a)][node.name] = exact if node.name in self.observed else stored(a, node, one)
        self._measure(node, exact, carried, before[n:])
        self.last.forget(node, self.exact, *self.carried, *self.local)

    def _operand(self, a: Arithmetic, node: Node, i: int, x: Array, seen: dict[Any, Array]) -> Array:
        key = (a.storage, i, id(x), a.q8 if node.op in MATRIX else a.f16_cache)
        if key not in seen:
            seen[key] = operand(a, self.file, node, i, x)
        return seen[key]

    def _measure(self, node: Node, exact: Array, carried: list[Array], local: list[Array]) -> None:
        axis = token_axis(self.graph, node.name)
        hide = ~self.seen if node.op == "kq" else None

        def spreads(values: list[Array]) -> tuple[Array, Array]:
            found: dict[int, tuple[Array, Array]] = {}
            for value in values:
                if id(value) not in found:
                    difference = value.astype(np.float32) - exact
                    if hide is not None:
                        difference[:, hide] = 0
                    found[id(value)] = _spread(difference, axis)
            return np.stack([found[id(v)][0] for v in values]), np.stack([found[id(v)][1] for v in values])

        self.levels[node.name] = Level(*spreads(carried), *spreads(local))


def cache_path(model: Model, tokens: Sequence[int], positions: Sequence[int], observed: Collection[str]) -> Path:
    """Where the levels for these tokens and this set of observed nodes are kept."""
    names = ",".join(node.name for node in model.graph if node.name in set(observed))
    key = f"{VERSION}|{ARITHMETICS}|{list(tokens)}|{list(positions)}|{names}"
    return cache_dir() / "noise" / fingerprint(model.file) / f"{hashlib.sha256(key.encode()).hexdigest()}.npz"


def load_levels(path: Path, model: Model) -> dict[str, Level] | None:
    """Levels kept earlier, or None."""
    try:
        with np.load(path, allow_pickle=False) as data:
            blocks = {name: data[name] for name in data.files}
        return {node.name: Level(*blocks[node.name]) for node in model.graph}
    except (OSError, ValueError, KeyError, TypeError, EOFError):
        return None


def save_levels(path: Path, levels: Mapping[str, Level]) -> None:
    buffer = io.BytesIO()
    blocks: dict[str, Any] = {
        name: np.stack([v.carried_rms, v.carried_top, v.local_rms, v.local_top]) for name, v in levels.items()
    }
    np.savez(buffer, **blocks)
    remember(path, buffer.getvalue())
