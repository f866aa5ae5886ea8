"""Measuring one observed node: how far its values are from the definition's, against the noise that is allowed there.

A node is measured twice. *Carried*: against the definition's own run from the tokens. *Local*: against the definition
of this node (or of the smallest segment between observed nodes) applied to the dump's own values. A node that disagrees
with the second is at fault itself; a node that agrees with it only passes on what it was given.

A deviation is excused while it stays below STEP times the noise of an arithmetic (`noise`), both as rms and at every
single value of a token's row. The noise of a long run spreads more, so there RUN times the rms and PEAK times the
largest value are allowed. A ratio above 1 is too much. `inferred` chooses the arithmetic, `verdict` decides.

`examine` gathers a `JudgedNode`, `measure_evidence` turns it into `Evidence`. Touch this module to change how a
deviation is measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.graph import Node
from assay.verify.dumps.observation import STATISTICS, Observation, measure, number_in_words
from assay.verify.judge.arithmetic import ARITHMETICS
from assay.verify.judge.noise import Level, apart, by_rows, part_key, rms_of_rows
from assay.verify.judge.routing import allowed, disorder
from assay.verify.thresholds import LUCK, PEAK, RUN, SHORT, STEP

Array = NDArray[Any]
_TINY = 1e-30
_FAR_ABOVE_TINY = 1e-10  # _TINY is less than half a unit in the last place of any larger number
_SMALL = 1 << 11  # values of a node up to which a call for each arithmetic costs more than its work
_UNITS = np.array([a.unit for a in ARITHMETICS])
_LEAST = np.array([2.0**-25 if a.storage == "f16" else 0.0 for a in ARITHMETICS])  # half of the smallest half


@dataclass(frozen=True)
class Evidence:
    """The measurements of one observed node. Ratios are deviation over allowed deviation, for each arithmetic."""

    name: str
    nmse: float
    cosine: float
    worst: float  # Largest absolute deviation.
    where: tuple[int, ...]  # Its index in the node's tensor; empty for a printed number, which `place` names.
    found: float
    expected: float
    carried: Array  # Ratios against the definition's run.
    local: Array  # Ratios against the recomputation from the dump's own values.
    own_nmse: float
    top1: bool | None  # Of logits: the best token is the same in every observed row.
    whole: bool  # The whole tensor was observed.
    segment: tuple[str, ...]  # The nodes recomputed together, first to last.
    noise_carried: Level  # The noise that `carried` and `local` were measured against.
    noise_local: Level
    given: bool = True  # The inputs of the segment were dumped; False where it begins at the token ids.
    each: tuple[Array, ...] = ()  # `local` of each observation alone.
    place: str = ""  # name of the number with the largest deviation, where it is no element of a tensor

    @property
    def spot(self) -> str:
        """Where the largest deviation is: `at [4, 7, 34]`, `the rms of row 3`."""
        return self.place or f"at {list(self.where)}"


@dataclass(frozen=True)
class RouterScores:
    """The scores that a choice of experts was made from, and how far each arithmetic's noise may move them."""

    truth: Array  # the definition's
    own: Array  # from the dump's own values
    allowed_carried: Array  # [arithmetic, token]
    allowed_local: Array
    used: int  # experts of a token that are used: ranks behind them have no reader

    @staticmethod
    def of(truth: Array, own: Array, carried: Level, local: Level, used: int) -> RouterScores:
        return RouterScores(truth, own, allowed(truth, carried.rms), allowed(own, local.rms), used)

    def ratios(self, chosen: Array) -> tuple[Array, Array]:
        """Carried and local ratios of a whole choice or ranking."""
        chosen = chosen[:, : self.used]
        carried = (disorder(self.truth, chosen) / self.allowed_carried).max(axis=1)
        return carried, (disorder(self.own, chosen) / self.allowed_local).max(axis=1)

    def ratios_of_some(self, obs: Observation, ranked: Array, n: int) -> tuple[Array, Array]:
        """The same of single ranks (`at`, `first`): each may hold another expert whose score is within the noise."""
        worst = [np.zeros(len(ARITHMETICS)), np.zeros(len(ARITHMETICS))]
        start = obs.rows[0] if obs.rows else 0
        for index, expert in obs.data if obs.kind == "at" else enumerate(obs.data):
            row, rank = start + index // n, index % n
            if rank >= self.used or int(expert) == ranked[row, rank]:
                continue
            for i, (scores, limit) in enumerate(((self.truth, self.allowed_carried), (self.own, self.allowed_local))):
                known = 0 <= expert < scores.shape[-1]
                apart = abs(scores[row, int(expert)] - scores[row, ranked[row, rank]]) if known else np.inf
                worst[i] = np.maximum(worst[i], apart / limit[:, row])
        return worst[0], worst[1]


@dataclass(frozen=True)
class JudgedNode:
    """One observed node with everything that its evidence is measured from."""

    node: Node
    observations: tuple[Observation, ...]
    segment: tuple[str, ...]  # The nodes recomputed together, first to last.
    truth: Array  # The definition's value in its own run.
    own: Array  # The definition's value from the dump's own inputs.
    carried: Level  # Noise of the whole run.
    local: Level  # Noise of this step.
    axis: int  # The axis that counts tokens.
    head_width: int
    hidden: Array | None  # values that no reader uses
    scores: RouterScores | None  # of a choice of experts
    is_output: bool  # its values are logits
    given: bool  # the inputs of the segment were dumped

    @property
    def whole(self) -> bool:
        """Was the whole tensor observed?"""
        return any(o.kind == "values" and o.rows is None for o in self.observations)

    def deviation(self, obs: Observation, value: Array) -> tuple[Array, Array]:
        return deviation(obs, value, self.axis, self.head_width, self.hidden)


@dataclass(frozen=True)
class _Compared:
    """One observation of a node against the definition."""

    obs: Observation
    error: Array
    expected: Array
    own_error: Array
    carried: Array
    local: Array

    @property
    def target(self) -> Array:
        return self.expected + self.error


def deviation(obs: Observation, value: Array, axis: int, head_width: int, hide: Array | None) -> tuple[Array, Array]:
    """Observed minus expected, and expected."""
    expected = np.asarray(measure(obs, value, axis, head_width), np.float64)
    error = apart(obs.target().astype(np.float64), expected)
    if np.isinf(expected).any():
        expected = np.where(np.isinf(expected), 0, expected)
    if hide is not None and obs.kind not in STATISTICS:
        masked = measure(obs, np.broadcast_to(hide, value.shape), axis, head_width)
        error[masked] = 0
    return error, expected


def ratios(
    obs: Observation,
    error: Array,
    expected: Array,
    value: Array,
    axis: int,
    level: Level,
    factor: float,
    kinds: Sequence[int] = range(len(ARITHMETICS)),
) -> Array:
    """Deviation over allowed deviation, for each arithmetic of `kinds`, which `level` is the noise of.

    `factor` is STEP or RUN.
    """
    rms, top = level.rms, level.top
    units, least = (_UNITS, _LEAST) if len(kinds) == len(_UNITS) else (_UNITS[list(kinds)], _LEAST[list(kinds)])
    start, stop = obs.rows or (0, rms.shape[1])
    if obs.kind == "values":
        e, x = by_rows(error, axis), by_rows(expected, axis)
        peak = _peaks(np.abs(e), np.abs(x), top[:, start:stop], PEAK[factor], units, least)
        limit = rms[:, start:stop] + units[:, None] * rms_of_rows(x) + least[:, None]
        mean = (rms_of_rows(e) / (factor * limit + _TINY)).max(axis=1)
        return np.asarray(np.maximum(peak, mean))
    printed = np.asarray(obs.printed or 0.0)
    rows = rms[:, start:stop].max(axis=1)
    part = level.parts.get(part_key(obs))
    size = float(np.sqrt(_mean(np.square(by_rows(value, axis)[start:stop]))))
    if obs.kind in STATISTICS:
        n = by_rows(value, axis)[start:stop].size
        spread = {
            "min": 1.0,
            "max": 1.0,
            "absmax": 1.0,
            "norm": 1.0,
            "sum": float(np.sqrt(n)),
            "abssum": float(np.sqrt(n)),
        }.get(obs.kind, 1 / np.sqrt(n))
        shown = by_rows(value, axis)[start:stop]
        if obs.name == _LOGITS and obs.kind in _OF_ALL:
            spread *= float(max(1.0, LUCK * np.sqrt(n) * abs(np.mean(shown)) / (size + _TINY)))
        huge = _weight(shown) if obs.kind in _BY_LARGEST else 0.0
        rounded = huge if huge > _MOST_OF_ROW * size * np.sqrt(n) else size
        noise = 4 * spread * (rows + units * rounded)  # a single number may have been lucky in the simulation
        noise = np.maximum(noise, np.abs(part[:, 0]) if part is not None else top[:, start:stop].max(axis=1))
        return np.asarray(np.abs(error[0]) / (factor * noise + printed.max() + _TINY))
    noise = np.sqrt(_mean(part**2, 1)) if part is not None else top[:, start:stop].max(axis=1)
    # A few values share their luck: those of one head move together, and the simulation may have spared them all.
    noise = np.maximum(noise, LUCK * rows)[:, None] + units[:, None] * np.maximum(np.abs(expected), 0.1 * size)[None]
    excess = np.maximum(np.abs(error) - printed, 0)
    mean = np.sqrt(_mean(excess**2)) / (factor * np.sqrt(_mean(noise**2, 1)) + _TINY)
    return np.asarray(np.maximum(mean, (excess[None] / (PEAK[factor] * noise + _TINY)).max(axis=1)))


# Statistics to which the largest values contribute most: where a row has a few huge ones, their roundings do not
# average out. The norm of 576 values, one of which is 190, moves with the rounding of that one.
_MOST_OF_ROW = 0.5  # share of a row's norm from which its largest values decide how the norm is rounded
# There are many times as many logits as inputs: their errors are not independent. Where most of their size is a value
# that all share, so is most of an error, and it does not average out.
_LOGITS, _OF_ALL = "result_output", ("mean", "rms", "norm", "std", "absmean", "sum", "abssum")
_BY_LARGEST = ("norm", "rms", "std", "min", "max", "absmax")


def _weight(values: Array) -> float:
    """The deviation of the norm of values whose relative errors are independent and of size 1: the root of the sum of
    the fourth powers over the norm. It is the largest value, where that is far larger than the rest."""
    squares = np.square(values, dtype=np.float64)
    return float(np.sqrt(_total(squares, squares) / (np.add.reduce(squares, axis=None) + _TINY)))


def _mean(x: Array, axis: int | None = None) -> Any:
    """The bits of `np.mean`, in a third of the time for a few values."""
    return np.add.reduce(x, axis=axis) / (x.size if axis is None else x.shape[axis])


def _total(a: Array, b: Array) -> float:
    """The sum of all products; the bits of `np.sum(a * b)`."""
    return float(np.add.reduce(a * b, axis=None))


def _peaks(error: Array, size: Array, top: Array, factor: float, units: Array, least: Array) -> Array:
    """The largest error over factor * (top + unit * size + least), for each arithmetic."""
    if error.size <= _SMALL:
        return _peaks_at_once(error, size, top, factor, units, least)
    found: dict[tuple[bytes, float, float], Array] = {}  # alike arithmetics are one pass
    keys = list(zip((one.tobytes() for one in top), units.tolist(), least.tolist(), strict=True))
    for i, key in enumerate(keys):
        if key not in found:
            one = slice(i, i + 1)
            found[key] = _peaks_at_once(error, size, top[one], factor, units[one], least[one])
    return np.concatenate([found[key] for key in keys])


def _peaks_at_once(error: Array, size: Array, top: Array, factor: float, units: Array, least: Array) -> Array:
    allowed = top[:, :, None] + units[:, None, None] * size  # a pooled node has one row, and a kept level one a token
    if least.any():  # adding zeros changes no bit, and of a large node each pass counts
        allowed += least[:, None, None]
    allowed *= factor
    if not top.min(initial=1.0) > _FAR_ABOVE_TINY:
        allowed += _TINY
    np.divide(error, allowed, out=allowed)
    return np.asarray(np.maximum.reduce(allowed.reshape(len(top), -1), axis=1))


def measure_evidence(judged: JudgedNode) -> Evidence:
    """The measurements of a node, over all its observations."""
    compared = [_compare(judged, obs) for obs in judged.observations]
    carried = local = np.zeros(len(ARITHMETICS))
    squares = base = dot = theirs2 = own_squares = 0.0
    for one in compared:
        carried, local = np.maximum(carried, one.carried), np.maximum(local, one.local)
        target = one.target
        squares, base = squares + _total(one.error, one.error), base + _total(one.expected, one.expected)
        dot, theirs2 = dot + _total(one.expected, target), theirs2 + _total(target, target)
        own_squares += _total(one.own_error, one.own_error)
    worst, where, place, found, expected = _worst(compared, judged.axis)
    return Evidence(
        name=judged.node.name,
        nmse=squares / (base + _TINY),
        cosine=dot / (np.sqrt(base * theirs2) + _TINY) if theirs2 or base else 1.0,
        worst=worst,
        where=where,
        found=found,
        expected=expected,
        carried=carried,
        local=local,
        own_nmse=own_squares / (base + _TINY),
        top1=_same_best_token(judged, compared) if judged.is_output else None,
        whole=judged.whole,
        segment=judged.segment,
        noise_carried=judged.carried,
        noise_local=judged.local,
        given=judged.given,
        place=place,
        each=tuple(one.local for one in compared),
    )


def _compare(judged: JudgedNode, obs: Observation) -> _Compared:
    error, expected = judged.deviation(obs, judged.truth)
    own_error, own_expected = judged.deviation(obs, judged.own)
    scores = judged.scores
    if scores is not None and obs.kind == "values" and obs.rows is None:
        carried, local = scores.ratios(obs.array())
    elif scores is not None and (obs.kind == "at" or (obs.kind == "first" and obs.row is not None)):
        carried, local = scores.ratios_of_some(obs, judged.own, judged.own.shape[-1])
    elif scores is not None and obs.kind in STATISTICS:
        carried = local = np.zeros(len(ARITHMETICS))  # of indices: two experts that change places move it by anything
    elif judged.truth.dtype.kind != "f":  # indices: equal or not
        carried = local = np.full(len(ARITHMETICS), np.inf if own_error.any() else 0.0)
    else:
        step = STEP if len(judged.segment) <= SHORT else RUN
        carried = ratios(obs, error, expected, judged.truth, judged.axis, judged.carried, RUN)
        local = ratios(obs, own_error, own_expected, judged.own, judged.axis, judged.local, step)
    return _Compared(obs, error, expected, own_error, carried, local)


def _worst(compared: Sequence[_Compared], axis: int) -> tuple[float, tuple[int, ...], str, float, float]:
    """The largest deviation, its index in the node's tensor or words for the number, and the two values there."""
    worst, where, place, found, expected = -1.0, tuple[int, ...](), "", 0.0, 0.0
    for one in compared:
        at = int(np.abs(one.error).argmax())
        size = float(abs(one.error.flat[at]))
        if size > worst:
            worst, found, expected = size, float(one.target.flat[at]), float(one.expected.flat[at])
            if one.obs.kind != "values":
                where, place = (), number_in_words(one.obs, at)
                continue
            where, place = tuple(int(i) for i in np.unravel_index(at, one.error.shape)), ""
            if one.obs.rows:
                where = tuple(w + (one.obs.rows[0] if i == axis else 0) for i, w in enumerate(where))
    return worst, where, place, found, expected


def _same_best_token(judged: JudgedNode, compared: Sequence[_Compared]) -> bool | None:
    """Do the observed logits choose the definition's token? None where the observations do not show it."""
    same: bool | None = None
    for one in compared:
        if one.obs.kind == "values":
            same = bool((one.target.argmax(-1) == one.expected.argmax(-1)).all())
        elif one.obs.kind == "top" and one.obs.data:
            truth = judged.truth
            row = one.obs.row if one.obs.row is not None else len(truth) - 1
            best = max(one.obs.data, key=lambda pair: pair[1])[0]
            same = int(truth[row].argmax()) == best % truth.shape[1]
    return same
