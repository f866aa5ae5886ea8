"""The noise floor: how far each legitimate arithmetic moves every node of this model on these tokens.

Two figures per node, arithmetic and token row, each as rms and as largest deviation:
  carried   the deviation of a whole run in that arithmetic from the definition's run. Simulated once per model and
            tokens, and kept on disk.
  local     the deviation of one step: the node (or the smallest segment between observed nodes) computed in that
            arithmetic and exactly, both from the dump's own values. It is far smaller than the carried noise, so a
            fault that carried noise would hide stands out.
Both come from running the definition with roundings (`arithmetic`). A simulation is one random draw. Where a few large
activations decide a sum, the draw may be lucky. So no figure is less than the standard deviation of the roundings,
which is known value by value for sums of products.

Touch this module to change how noise is simulated, and raise VERSION then: it is part of the key on disk.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.engines.reference.weights import Weights
from assay.graph import Node, Trait
from assay.models import Model
from assay.system.files import recall, remember
from assay.system.home import home
from assay.verify.dumps.observation import Observation, measure, patch, token_axis
from assay.verify.judge.arithmetic import (
    ARITHMETICS,
    WITH_MINIMUM,
    SimulatedArithmetic,
    block_minima,
    halved,
    is_gelu,
    is_matrix_product,
    norm_terms,
    operand,
    product_rows,
    q8_1_slip,
    rounding_variance,
    stored,
    summation,
    summed,
)
from assay.verify.judge.own_terms import OWN_TERMS
from assay.verify.judge.routing import (
    allowed,
    allowed_groups,
    masks_groups,
    other_choice,
    other_groups,
    ranking,
    ranks,
)
from assay.verify.judge.run_inputs import RunInputs
from assay.verify.judge.shared_pass import Asking, Lanes, Last

Array = NDArray[Any]
VERSION = 10  # of the noise model; part of the cache key
Watch = Callable[[Node, Lanes, Weights], None]  # told of each node: its inputs in the definition's and in every run
_TOGETHER = 1 << 17  # values of a node up to which all arithmetics are compared with the definition in one array


@dataclass(frozen=True)
class Level:
    """Noise of one node, [arithmetic, token row], absolute; and noise of the observations that show a part of it."""

    rms: Array
    top: Array
    parts: Mapping[Any, Array] = field(default_factory=dict)  # by `part_key`, [arithmetic, value]

    def of(self, kinds: Sequence[int]) -> Level:
        """The noise of some of the arithmetics alone."""
        at = list(kinds)
        if len(at) == len(self.rms):
            return self
        return Level(self.rms[at], self.top[at], {key: noise[at] for key, noise in self.parts.items()})


def part_key(obs: Observation) -> tuple[Any, ...]:
    return obs.foreign, obs.kind, obs.rows


def apart(a: Array, b: Array) -> Array:
    """a - b, and 0 where both are the same infinity: masked scores and masked experts."""
    with np.errstate(invalid="ignore"):
        found = np.asarray(a - b)
    return found if np.isfinite(b).all() else np.where(a == b, 0, found)


def by_rows(value: Array, axis: int) -> Array:
    """[rows, everything else]."""
    moved = np.moveaxis(value, axis, 0) if axis else value
    return moved.reshape(len(moved), -1)


def rms_of_rows(rows: Array) -> Array:
    """The rms of every row of a matrix; the bits of `np.sqrt(np.mean(rows * rows, axis=1))`, in half the time."""
    return np.asarray(np.sqrt(np.add.reduce(rows * rows, axis=1) / rows.shape[1]))


@dataclass(frozen=True)
class _Sums:
    """The error model of a node that sums terms, value by value."""

    squares: Array  # the sum of the squared terms
    sizes: Sequence[float]  # for each arithmetic: the error of the sum, relative to the root of `squares`
    operands: Array | None  # variance by quantising the operand of a product


class NoiseRuns:
    """Visitor: the definition's run and one run per arithmetic, all in float32, evaluated `Together` with others.

    With `observed`, the dump's values replace the node's in every run, and the noise of one step is measured. Without
    it, the noise of the whole run is. `watch` is told the inputs of every node in all of these runs.
    """

    def __init__(
        self,
        inputs: RunInputs,
        observed: Mapping[str, Sequence[Observation]] | None = None,
        watch: Watch | None = None,
    ) -> None:
        self.watch = watch
        self.inputs, self.graph, self.file = inputs, inputs.model.graph, inputs.model.file
        self.observed = observed or {}
        self.exact: dict[str, Array] = dict(inputs.given)
        self.runs: list[dict[str, Array]] = [dict(inputs.given) for _ in ARITHMETICS]
        self.scores: dict[str, tuple[Array, Level]] = {}  # of the routers, by the node that sorts them
        # By arithmetic: the run in which every choice that its noise leaves open fell the other way.
        self.rerouted: dict[int, dict[str, Array]] = {}
        self.last = Last(self.graph)
        self.levels: dict[str, Level] = {}

    def visit(self, node: Node, weights: Weights) -> Asking:
        lanes: list[list[Array]] = [[self.exact[i] for i in node.inputs]]
        same: dict[Any, Array] = {}  # equal roundings of equal inputs stay one array, and are computed once
        product, gelu = node.has(Trait.PRODUCT), is_gelu(node)
        for a, run in zip(ARITHMETICS, self.runs, strict=True):
            rounded = a.q8 if product else (a.f16_cache, a.q8_cache), a.gelu_table and gelu
            lanes.append([self._operand(a, node, i, run[name], rounded, same) for i, name in enumerate(node.inputs)])
        n = len(lanes)
        if self.watch is not None:
            self.watch(node, lanes, weights)
        lanes += [[run[name] for name in node.inputs] for run in self.rerouted.values()]
        exact, *values = (_narrow(v) for v in (yield lanes, False))
        values, others = values[: n - 1], dict(zip(self.rerouted, values[n - 1 :], strict=True))
        choice, groups = node.has(Trait.INDICES), masks_groups(node)
        if choice:  # as the definition chooses; the other choice is a run of its own
            values = [exact] * len(values)
        elif groups:
            values = [np.where(np.isneginf(exact), exact, lane[0]) for lane in lanes[1:n]]
            others |= self._regroup(node, exact)
        values = self._slip(node, values, weights)
        sums = yield from self._sums(node, weights)
        root = None if sums is None else np.sqrt(sums.squares)
        values = self._summed(node, values, exact, root, sums)
        observed = self.observed.get(node.name, ())
        whole = any(o.kind == "values" and o.rows is None for o in observed)
        state = node.has(Trait.CACHES)
        if not whole or state:  # else rounding the result is allowed for where it is judged
            kept = [
                (id(v), a.storage, state and (a.f16_cache, a.q8_cache))
                for a, v in zip(ARITHMETICS, values, strict=True)
            ]
            values = _once(kept, [partial(stored, a, node, v) for a, v in zip(ARITHMETICS, values, strict=True)])
        self.levels[node.name] = self._level(
            node, exact, values, observed, self._spread(node, sums), {} if groups else others
        )
        axis = token_axis(self.graph, node.name)
        self.exact[node.name] = _narrow(patch(observed, exact, axis))
        if choice:
            others |= self._reroute(node, exact, others, whole)
        for run, value in (*zip(self.runs, values, strict=True), *((self.rerouted[i], v) for i, v in others.items())):
            run[node.name] = self.exact[node.name] if whole else _narrow(patch(observed, value, axis))
        self.last.forget(node, self.exact, *self.runs, *self.rerouted.values())

    def _summed(
        self, node: Node, values: Sequence[Array], exact: Array, root: Array | None, sums: _Sums | None
    ) -> list[Array]:
        """The results before they are stored; arithmetics that give equal results share one array."""
        gelu = is_gelu(node)
        alike, todo = [], []
        for i, (a, v) in enumerate(zip(ARITHMETICS, values, strict=True)):
            size = None if sums is None else sums.sizes[i]
            deviation = None if root is None or size is None else partial(np.multiply, root, size)
            alike.append((id(v), size, halved(a, self.file, node) and a.weights, gelu and a.gelu_table))
            todo.append(partial(self._sum, a, node, v, exact, deviation))
        return _once(alike, todo)

    def _sum(
        self, a: SimulatedArithmetic, node: Node, v: Array, exact: Array, deviation: Callable[[], Array] | None
    ) -> Array:
        return summed(a, self.file, self.graph, node, v, exact, None if deviation is None else deviation())

    def _regroup(self, node: Node, masked: Array) -> dict[int, Array]:
        """For each arithmetic whose noise leaves a choice of groups open: the scores with the other one."""
        score = node.inputs[0]
        margin, other = other_groups(self.exact[score], node)
        found = {}
        for i, limit in enumerate(allowed_groups(self.exact[score], self.levels[score].rms)):
            is_open = margin <= limit
            if is_open.any() and node.name not in self.observed:
                self.rerouted.setdefault(i, dict(self.runs[i]))
                found[i] = np.where(is_open[:, None], other, masked)
        return found

    def _reroute(self, node: Node, chosen: Array, others: Mapping[int, Array], known: bool) -> dict[int, Array]:
        """For each arithmetic whose noise leaves a choice open: the other choice; none where it is `known`."""
        if ranks(node):
            score = node.inputs[0]
            self.scores[node.name] = self.exact[score], self.levels[score]
            return {}
        scores, level = self.scores[ranking(self.graph, node).name]
        margin, other = other_choice(scores, chosen)
        found = {}
        for i, limit in enumerate(allowed(scores, level.rms)):
            is_open = margin <= limit
            if is_open.any() and not known:
                self.rerouted.setdefault(i, dict(self.runs[i]))
                found[i] = np.where(is_open[:, None], other, others.get(i, chosen))
        return found

    def _sums(self, node: Node, weights: Weights) -> Generator[tuple[Lanes, bool], list[Array], _Sums | None]:
        """The squared terms of a node that sums; None for other nodes."""
        if not node.has(Trait.SUMS):
            return None
        operands: Array | None = None
        inputs = [self.exact[name] for name in node.inputs]
        if node.op in OWN_TERMS:
            squares = OWN_TERMS[node.op](node, inputs, [np.asarray(weights[name]) for name in node.weights])
        elif node.has(Trait.PRODUCT):
            x = product_rows(node, inputs[0])
            rounded = rounding_variance(self.file, node.weights[0], x)
            lanes = [[v, *inputs[1:]] for v in (x * x, rounded) if v is not None]
            squares, *more = yield lanes, True
            operands = more[0] if more else None
        elif node.has(Trait.NORM):
            squares = norm_terms(
                node, inputs[0], weights[node.weights[0]][:], *(weights[w][:] for w in node.weights[1:])
            )
        elif node.weights:  # a weight is added to the first input
            squares = (yield [[inputs[0] ** 2, *inputs[1:]]], True)[0]
        else:
            squares = (yield [_SQUARED.get(node.op, _squared)(inputs)], False)[0]
        sizes = [summation(a, self.file, self.graph, node, len(self.inputs.tokens)) for a in ARITHMETICS]
        return _Sums(squares, sizes, operands)

    def _spread(self, node: Node, sums: _Sums | None) -> tuple[Array, Array] | None:
        """For each arithmetic the rms and the largest error that is expected in a row of such sums."""
        if sums is None:
            return None
        axis = token_axis(self.graph, node.name)
        squares = by_rows(self._shown(node, sums.squares), axis)
        usual, largest = expected_noise(squares)
        quantised: dict[float, tuple[Array, Array]] = {}
        for a, s in zip(ARITHMETICS, sums.sizes, strict=True):
            if a.q8 and sums.operands is not None and s not in quantised:
                quantised[s] = expected_noise(squares * s**2 + by_rows(sums.operands, axis))
        found = [
            quantised[s] if a.q8 and s in quantised else (usual * s, largest * s)
            for a, s in zip(ARITHMETICS, sums.sizes, strict=True)
        ]
        return np.stack([one for one, _ in found]), np.stack([peak for _, peak in found])

    def _slip(self, node: Node, values: list[Array], weights: Weights) -> list[Array]:
        """Q8_1: the blocks' minima times the rounding of the operand's block sums."""
        if not is_matrix_product(node) or self.file.tensors[node.weights[0]].type.name not in WITH_MINIMUM:
            return values
        if not isinstance(weights[node.weights[0]], np.ndarray):
            return values
        least = block_minima(self.file, node.weights[0])
        alike, out, seen = list[Any](), list[Callable[[], Array]](), dict[int, Array]()
        for a, run, value in zip(ARITHMETICS, self.runs, values, strict=True):
            x = run[node.inputs[0]]
            if a.q8 and id(x) not in seen:
                seen[id(x)] = q8_1_slip(x) @ least.T
            alike.append((id(value), id(x) if a.q8 else None))
            out.append(partial(np.add, value, seen[id(x)]) if a.q8 else partial(np.asarray, value))
        return _once(alike, out)

    def _operand(
        self, a: SimulatedArithmetic, node: Node, i: int, x: Array, rounded: Any, same: dict[Any, Array]
    ) -> Array:
        """Input `i` as the arithmetic reads it; arithmetics that round it alike (`rounded`) share one array."""
        key = (a.storage, i, id(x), rounded)
        if key not in same:
            same[key] = operand(a, self.file, node, i, x)
        return same[key]

    def _level(
        self,
        node: Node,
        exact: Array,
        values: list[Array],
        observed: Sequence[Observation],
        spreads: tuple[Array, Array] | None,
        others: Mapping[int, Array],
    ) -> Level:
        """Noise of each row, and at least the average of rows of this size, because one row may have been lucky.

        `others` are the values of runs with other experts. They count only in the rows that they change.
        """
        axis = token_axis(self.graph, node.name)
        rows = by_rows(exact.astype(np.float32, copy=False), axis)
        scale = np.sqrt(np.mean(rows * rows, axis=1)) + 1e-30
        if np.isinf(scale).any():
            scale = np.sqrt(np.mean(np.where(np.isinf(rows), 0, rows) ** 2, axis=1)) + 1e-30
        rms, top = [], []
        unique = {id(v): v for v in values}
        lane = [list(unique).index(id(v)) for v in values]
        apiece = list(unique.values())
        hidden = self.inputs.hidden_at(node)
        step = len(apiece) if exact.size <= _TOGETHER else 1
        for i in range(0, len(apiece), step):
            difference = apart(np.stack([v.astype(np.float32, copy=False) for v in apiece[i : i + step]]), exact)
            if hidden is not None:
                difference[:, :, hidden] = 0
            difference = np.moveaxis(difference, 1 + axis, 1).reshape(len(difference), len(rows), -1)
            rms.append(np.sqrt(np.mean(difference * difference, axis=2)))
            top.append(np.abs(difference, out=difference).max(axis=2))
        ones, peaks = np.concatenate(rms)[lane], np.concatenate(top)[lane]
        if spreads is not None:
            ones, peaks = (np.maximum(x, s) for x, s in zip((ones, peaks), spreads, strict=True))
        ones, peaks = (
            np.maximum(x, scale * np.sqrt(np.mean((x / scale) ** 2, axis=1, keepdims=True))) for x in (ones, peaks)
        )
        for i, value in others.items():
            difference = by_rows(self._shown(node, apart(value.astype(np.float32), exact)), axis)
            ones[i] = np.maximum(ones[i], np.sqrt(np.mean(difference * difference, axis=1)))
            peaks[i] = np.maximum(peaks[i], np.abs(difference).max(axis=1))
        parts = {
            part_key(o): np.stack(
                [self._seen_as(o, others.get(i, v), axis) - self._seen_as(o, exact, axis) for i, v in enumerate(values)]
            )
            for o in observed
            if o.kind != "values"
        }
        return Level(ones, peaks, parts)

    def _seen_as(self, obs: Observation, value: Array, axis: int) -> Array:
        return measure(obs, value, axis, self.inputs.head_width).astype(np.float64)

    def _shown(self, node: Node, values: Array) -> Array:
        """The values without those that the mask hides."""
        hidden = self.inputs.hidden_at(node)
        if hidden is None:
            return values
        shown = values.copy()
        shown[:, hidden] = 0
        return shown


def _squared(inputs: Sequence[Array]) -> list[Array]:
    return [x * x for x in inputs]


def _squared_mean(inputs: Sequence[Array]) -> list[Array]:
    return [inputs[0] ** 2 / len(inputs[0])]


# Operations whose squared terms are not the operation on squared inputs, and the inputs that give them.
_SQUARED: dict[str, Callable[[Sequence[Array]], list[Array]]] = {"pool": _squared_mean}


def expected_noise(variance: Array) -> tuple[Array, Array]:
    """Rms and largest deviation of rows of independent errors: three deviations of the mean square, two of a value.

    The mean square of many equal errors hardly varies; where one value is far noisier than the rest, it does.
    """
    n = variance.shape[1]
    mean, spread = variance.mean(axis=1), np.sqrt(2 * np.sum(variance * variance, axis=1)) / n
    return np.sqrt(mean + 3 * spread), 2 * np.sqrt(variance.max(axis=1))


def _once(keys: Sequence[Any], todo: Sequence[Callable[[], Array]]) -> list[Array]:
    """Each made once: equal keys share an array."""
    made: dict[Any, Array] = {}
    for key, make in zip(keys, todo, strict=True):
        if key not in made:
            made[key] = make()
    return [made[key] for key in keys]


def _narrow(value: Array) -> Array:
    return value.astype(np.float32, copy=False) if value.dtype.kind == "f" else value


def cache_path(inputs: RunInputs) -> Path:
    """Where the carried noise for these tokens is kept."""
    key = f"{VERSION}|{ARITHMETICS}|{list(inputs.tokens)}|{list(inputs.positions)}"
    return home() / "noise" / inputs.model.file.sha256 / f"{hashlib.sha256(key.encode()).hexdigest()}.npy"


def load_levels(path: Path, model: Model) -> dict[str, Level] | None:
    """Levels kept earlier, or None."""
    kept = recall(path)
    try:
        blocks = np.load(io.BytesIO(kept or b""), allow_pickle=False)  # [node, rms or top, arithmetic, token row]
        if blocks.dtype.kind != "f" or not np.all(blocks >= 0):  # and so no NaN
            return None
        return {node.name: Level(*block) for node, block in zip(model.graph, blocks, strict=True)}
    except (ValueError, TypeError, EOFError, MemoryError):
        return None


def save_levels(path: Path, levels: Mapping[str, Level]) -> None:
    blocks = [np.stack([v.rms, v.top]) for v in levels.values()]
    widest = np.broadcast_shapes(*(b.shape for b in blocks))  # a pooled node has one row
    buffer = io.BytesIO()
    np.save(buffer, np.stack([np.broadcast_to(b, widest) for b in blocks]))
    remember(path, buffer.getvalue())
