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
    is_matrix_product,
    norm_terms,
    operand,
    product_rows,
    q8_1_slip,
    rounding_variance,
    stored,
    summed,
)
from assay.verify.judge.arithmetic_runs import STORED, RunValues, distinct_lanes, reading, sizes_of_sums, summing
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
_Q8 = [i for i, a in enumerate(ARITHMETICS) if a.q8]
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
    if np.isfinite(b).all():
        return np.asarray(a - b)
    with np.errstate(invalid="ignore"):
        return np.where(a == b, 0, np.asarray(a - b))


def by_rows(value: Array, axis: int) -> Array:
    """[rows, everything else]."""
    moved = np.moveaxis(value, axis, 0) if axis else value
    return moved.reshape(len(moved), -1)


def rms_of_rows(rows: Array) -> Array:
    """The rms of every row of a matrix; the bits of `np.sqrt(np.mean(rows * rows, axis=1))`, in half the time."""
    with np.errstate(over="ignore"):  # values of a narrow arithmetic that left its range: infinite noise
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
        self.runs: dict[str, RunValues] = {name: RunValues.same(value) for name, value in inputs.given.items()}
        self.scores: dict[str, tuple[Array, Level]] = {}  # of the routers, by the node that sorts them
        # By arithmetic: the run in which every choice that its noise leaves open fell the other way.
        self.rerouted: dict[int, dict[str, Array]] = {}
        self.last = Last(self.graph)
        self.levels: dict[str, Level] = {}

    def visit(self, node: Node, weights: Weights) -> Asking:
        given = [self.runs[name] for name in node.inputs]
        read = [v.change(reading(node, i), partial(self._operand, node, i)) for i, v in enumerate(given)]
        lanes, of = distinct_lanes([self.exact[name] for name in node.inputs], read)
        if self.watch is not None:
            self.watch(node, [lanes[0], *(lanes[i] for i in of)], weights)
        rerouted = [[run[name] for name in node.inputs] for run in self.rerouted.values()]
        found = [_narrow(v) for v in (yield [*lanes, *rerouted], False)]
        exact, values = found[0], RunValues(found[: len(lanes)], of)
        others = dict(zip(self.rerouted, found[len(lanes) :], strict=True))
        choice, groups = node.has(Trait.INDICES), masks_groups(node)
        if choice:  # as the definition chooses; the other choice is a run of its own
            values = RunValues.same(exact)
        elif groups:
            values = RunValues([np.where(np.isneginf(exact), exact, lane[0]) for lane in lanes], of)
            others |= self._regroup(node, exact)
        values = self._slip(node, given, values, weights)
        sums = yield from self._sums(node, weights)
        root = None if sums is None else np.sqrt(sums.squares)
        computing = summing(self.file, node, None if sums is None else sums.sizes)
        values = values.change(computing, partial(self._summed, node, exact, root, sums))
        observed = self.observed.get(node.name, ())
        whole = any(o.kind == "values" and o.rows is None for o in observed)
        cached = node.has(Trait.CACHES)
        if not whole or cached:  # else rounding the result is allowed for where it is judged
            values = values.change(STORED[cached], lambda a, v: stored(a, node, v))
        self.levels[node.name] = self._level(
            node, exact, values, observed, self._spread(node, sums), {} if groups else others
        )
        axis = token_axis(self.graph, node.name)
        self.exact[node.name] = _narrow(patch(observed, exact, axis))
        if choice:
            others |= self._reroute(node, exact, others, whole)
        if whole:
            self.runs[node.name] = RunValues.same(self.exact[node.name])
        else:
            self.runs[node.name] = RunValues([_narrow(patch(observed, v, axis)) for v in values.arrays], values.of)
        for i, value in others.items():
            self.rerouted[i][node.name] = self.exact[node.name] if whole else _narrow(patch(observed, value, axis))
        self.last.forget(node, self.exact, self.runs, *self.rerouted.values())

    def _operand(self, node: Node, i: int, a: SimulatedArithmetic, x: Array) -> Array:
        """Input `i` as the arithmetic reads it."""
        return operand(a, self.file, node, i, x)

    def _summed(
        self, node: Node, exact: Array, root: Array | None, sums: _Sums | None, a: SimulatedArithmetic, v: Array
    ) -> Array:
        """The result before it is stored."""
        deviation = None if root is None or sums is None else root * sums.sizes[ARITHMETICS.index(a)]
        return summed(a, self.file, self.graph, node, v, exact, deviation)

    def _run(self, arithmetic: int) -> dict[str, Array]:
        """The values of one run that are still needed."""
        return {name: values[arithmetic] for name, values in self.runs.items()}

    def _regroup(self, node: Node, masked: Array) -> dict[int, Array]:
        """For each arithmetic whose noise leaves a choice of groups open: the scores with the other one."""
        score = node.inputs[0]
        margin, other = other_groups(self.exact[score], node)
        found = {}
        for i, limit in enumerate(allowed_groups(self.exact[score], self.levels[score].rms)):
            is_open = margin <= limit
            if is_open.any() and node.name not in self.observed:
                self.rerouted.setdefault(i, self._run(i))
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
                self.rerouted.setdefault(i, self._run(i))
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
        return _Sums(squares, sizes_of_sums(self.file, self.graph, node, len(self.inputs.tokens)), operands)

    def _spread(self, node: Node, sums: _Sums | None) -> tuple[Array, Array] | None:
        """For each arithmetic the rms and the largest error that is expected in a row of such sums."""
        if sums is None:
            return None
        axis = token_axis(self.graph, node.name)
        squares = by_rows(self._shown(node, sums.squares), axis)
        usual, largest = expected_noise(squares)
        sizes = np.array(sums.sizes, usual.dtype)[:, None]
        rms, top = usual * sizes, largest * sizes
        if sums.operands is not None:
            rows = by_rows(sums.operands, axis)
            quantised = {s: expected_noise(squares * s**2 + rows) for s in {sums.sizes[i] for i in _Q8}}
            for i in _Q8:
                rms[i], top[i] = quantised[sums.sizes[i]]
        return rms, top

    def _slip(self, node: Node, given: Sequence[RunValues], values: RunValues, weights: Weights) -> RunValues:
        """Q8_1: the blocks' minima times the rounding of the operand's block sums."""
        if not is_matrix_product(node) or self.file.tensors[node.weights[0]].type.name not in WITH_MINIMUM:
            return values
        if not isinstance(weights[node.weights[0]], np.ndarray):
            return values
        least = block_minima(self.file, node.weights[0])
        x = given[0]
        slips = {i: q8_1_slip(x.arrays[i]) @ least.T for i in dict.fromkeys(x.of[i] for i in _Q8)}
        moved: dict[tuple[int, int], Array] = {}  # by value and slip; those that slip alike stay one array
        arrays: list[Array] = list(values.arrays)
        of = list(values.of)
        for i in _Q8:
            key = values.of[i], x.of[i]
            if key not in moved:
                moved[key] = values[i] + slips[x.of[i]]
                arrays.append(moved[key])
            of[i] = next(k for k, array in enumerate(arrays) if array is moved[key])
        return RunValues(arrays, tuple(of))

    def _level(
        self,
        node: Node,
        exact: Array,
        values: RunValues,
        observed: Sequence[Observation],
        spreads: tuple[Array, Array] | None,
        others: Mapping[int, Array],
    ) -> Level:
        """Noise of each row, and at least the average of rows of this size, because one row may have been lucky.

        `others` are the values of runs with other experts. They count only in the rows that they change.
        """
        axis = token_axis(self.graph, node.name)
        rows = by_rows(exact.astype(np.float32, copy=False), axis)
        scale = rms_of_rows(rows) + 1e-30
        if np.isinf(scale).any():
            scale = np.sqrt(np.mean(np.where(np.isinf(rows), 0, rows) ** 2, axis=1)) + 1e-30
        rms, top = [], []
        apiece, lane = values.arrays, list(values.of)
        hidden = self.inputs.hidden_at(node)
        step = len(apiece) if exact.size <= _TOGETHER else 1
        for i in range(0, len(apiece), step):
            difference = apart(np.stack([v.astype(np.float32, copy=False) for v in apiece[i : i + step]]), exact)
            if hidden is not None:
                difference[:, :, hidden] = 0
            difference = np.moveaxis(difference, 1 + axis, 1).reshape(len(difference), len(rows), -1)
            rms.append(np.sqrt(np.add.reduce(difference * difference, axis=2) / difference.shape[2]))
            top.append(np.abs(difference, out=difference).max(axis=2))
        ones, peaks = np.concatenate(rms)[lane], np.concatenate(top)[lane]
        if spreads is not None:
            ones, peaks = (np.maximum(x, s) for x, s in zip((ones, peaks), spreads, strict=True))
        ones, peaks = (np.maximum(x, scale * rms_of_rows(x / scale)[:, None]) for x in (ones, peaks))
        for i, value in others.items():
            difference = by_rows(self._shown(node, apart(value.astype(np.float32), exact)), axis)
            ones[i] = np.maximum(ones[i], np.sqrt(np.mean(difference * difference, axis=1)))
            peaks[i] = np.maximum(peaks[i], np.abs(difference).max(axis=1))
        parts = {part_key(o): self._part(o, exact, values, others, axis) for o in observed if o.kind != "values"}
        return Level(ones, peaks, parts)

    def _part(self, obs: Observation, exact: Array, values: RunValues, others: Mapping[int, Array], axis: int) -> Array:
        """Noise of the numbers that an observation shows, [arithmetic, value]."""
        base = self._seen_as(obs, exact, axis)
        apiece = [self._seen_as(obs, v, axis) - base for v in values.arrays]
        moved = {i: self._seen_as(obs, v, axis) - base for i, v in others.items()}
        return np.stack([moved[i] if i in moved else apiece[at] for i, at in enumerate(values.of)])

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
    mean = np.add.reduce(variance, axis=1) / n
    spread = np.sqrt(2 * np.add.reduce(variance * variance, axis=1)) / n
    return np.sqrt(mean + 3 * spread), 2 * np.sqrt(variance.max(axis=1))


def _narrow(value: Array) -> Array:
    return value.astype(np.float32, copy=False) if value.dtype.kind == "f" else value


def cache_path(inputs: RunInputs) -> Path:
    """Where the carried noise for these tokens is kept."""
    key = f"{VERSION}|{ARITHMETICS}|{list(inputs.tokens)}|{list(inputs.positions)}"
    if scales := sorted({float(node.attr("scale")) for node in inputs.model.graph if node.op == "add_adapter"}):
        key += f"|adapters {scales}"  # the adapters themselves are in the file
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
