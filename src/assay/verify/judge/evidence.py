"""The verdict on every observed node: same, noise explained by an arithmetic, or wrong; and whose fault it is.

A node is judged twice. Against the definition's own run: how far is the value from the truth? And *on its own
inputs*: the definition of this node (or of the smallest segment between observed nodes) is applied to the stranger's
values. A node that disagrees with that is at fault itself; one that agrees only passes on what it was given.

A deviation is excused when it stays below STEP times the noise of an arithmetic (`noise`), both as rms and at every
single value of a token's row. Where the noise is that of a long run, whose samples spread more, it is RUN times the rms
and PEAK times the largest. The arithmetic is inferred once for the whole dump, from what its nodes have in common, so
that one sloppy node cannot buy itself a lenient judge.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.engines.reference import interpret
from assay.engines.reference.weights import Weights
from assay.graph import Node
from assay.models import Model
from assay.verify.dumps.observation import STATISTICS, Dump, Observation, inputs_of, measure, patch, token_axis
from assay.verify.judge.arithmetic import ARITHMETICS
from assay.verify.judge.noise import (
    Level,
    NoiseRuns,
    apart,
    by_rows,
    cache_path,
    load_levels,
    part_key,
    save_levels,
    unseen,
)
from assay.verify.judge.routing import CHOICES, Route, allowed, disorder, ranking, routes
from assay.verify.judge.shared_pass import Last, Together, evaluate_all, sweep
from assay.verify.thresholds import LUCK, PEAK, RUN, SHORT, STEP

Array = NDArray[Any]
_TINY = 1e-30
_UNITS = np.array([a.unit for a in ARITHMETICS])
_LEAST = np.array([2.0**-25 if a.storage == "f16" else 0.0 for a in ARITHMETICS])  # half of the smallest half


@dataclass(frozen=True)
class Evidence:
    """What one observed node shows. Ratios are deviation over what is allowed, per arithmetic: above 1 is too much."""

    name: str
    nmse: float
    cosine: float
    worst: float  # largest absolute deviation
    where: tuple[int, ...]  # its index in the node's tensor
    found: float
    expected: float
    carried: Array  # ratios against the definition's run
    local: Array  # ratios against the recomputation from the dump's own values
    own_nmse: float
    top1: bool | None  # logits: is the best token the same, in every observed row
    whole: bool  # the whole tensor was observed
    segment: tuple[str, ...]  # the nodes recomputed together, first to last
    noise_carried: Level  # what `carried` and `local` were measured against
    noise_local: Level


def deviation(obs: Observation, value: Array, axis: int, head_width: int, hide: Array | None) -> tuple[Array, Array]:
    """Observed minus expected, and expected."""
    expected = np.asarray(measure(obs, value, axis, head_width), np.float64)
    error = apart(obs.target().astype(np.float64), expected)
    expected = np.where(np.isinf(expected), 0, expected)
    if hide is not None and obs.kind not in STATISTICS:
        masked = measure(obs, np.broadcast_to(hide, value.shape), axis, head_width)
        error[masked] = 0
    return error, expected


def ratios(
    obs: Observation, error: Array, expected: Array, value: Array, axis: int, level: Level, factor: float
) -> Array:
    """Deviation over allowed deviation, for each arithmetic."""
    rms, top = level.rms, level.top
    start, stop = obs.rows or (0, rms.shape[1])
    if obs.kind == "values":
        e, x = by_rows(error, axis), by_rows(expected, axis)
        peak = _peaks(np.abs(e), np.abs(x), top[:, start:stop], PEAK[factor])
        scale = np.sqrt(np.mean(x * x, axis=1))
        limit = rms[:, start:stop] + _UNITS[:, None] * scale + _LEAST[:, None]
        mean = (np.sqrt(np.mean(e * e, axis=1)) / (factor * limit + _TINY)).max(axis=1)
        return np.asarray(np.maximum(peak, mean))
    printed = np.asarray(obs.printed or 0.0)
    rows = rms[:, start:stop].max(axis=1)
    part = level.parts.get(part_key(obs))
    size = float(np.sqrt(np.mean(np.square(by_rows(value, axis)[start:stop]))))
    if obs.kind in STATISTICS:
        n = by_rows(value, axis)[start:stop].size
        spread = {"min": 1.0, "max": 1.0, "absmax": 1.0, "norm": 1.0, "sum": float(np.sqrt(n))}.get(
            obs.kind, 1 / np.sqrt(n)
        )
        noise = 4 * spread * (rows + _UNITS * size)  # a single number may have been lucky in the simulation
        noise = np.maximum(noise, np.abs(part[:, 0]) if part is not None else top[:, start:stop].max(axis=1))
        return np.asarray(np.abs(error[0]) / (factor * noise + printed.max() + _TINY))
    noise = np.sqrt(np.mean(part**2, axis=1)) if part is not None else top[:, start:stop].max(axis=1)
    # A few values share their luck: those of one head move together, and the simulation may have spared them all.
    noise = np.maximum(noise, LUCK * rows)[:, None] + _UNITS[:, None] * np.maximum(np.abs(expected), 0.1 * size)[None]
    excess = np.maximum(np.abs(error) - printed, 0)
    mean = np.sqrt(np.mean(excess**2)) / (factor * np.sqrt(np.mean(noise**2, axis=1)) + _TINY)
    return np.asarray(np.maximum(mean, (excess[None] / (PEAK[factor] * noise + _TINY)).max(axis=1)))


def _peaks(error: Array, size: Array, top: Array, factor: float) -> Array:
    """The largest error over factor * (top + unit * size + least), for each arithmetic; alike ones are one pass."""
    found: dict[tuple[bytes, float, float], Any] = {}
    units, least = _UNITS.tolist(), _LEAST.tolist()
    steps = {unit: unit * size for unit in set(units)}
    keys = list(zip((one.tobytes() for one in top), units, least, strict=True))
    for key, one in zip(keys, top, strict=True):
        if key not in found:
            allowed = np.add(one[:, None], steps[key[1]])
            allowed += key[2]
            allowed *= factor
            allowed += _TINY
            found[key] = np.divide(error, allowed, out=allowed).max()
    return np.array([found[key] for key in keys])


class OwnInputs:
    """Visitor: the definition's run, and the recomputation of every observed node from the dump's own values."""

    def __init__(
        self, model: Model, dump: Dump, carried: Callable[[str], Level], local: Callable[[str], Level]
    ) -> None:
        self.graph, self.dump, self.carried, self.local = model.graph, dump, carried, local
        given = inputs_of(dump.tokens, dump.positions)
        self.hidden = unseen(model, given)
        self.head_width = model.hparams.n_embd_head
        self.truth: dict[str, Array] = dict(given)
        self.theirs: dict[str, Array] = dict(given)  # dumped where dumped, else recomputed from what was
        self.path: dict[str, tuple[str, ...]] = {}  # unobserved nodes that a value was derived through
        self.last = Last(model.graph)
        self.evidence: list[Evidence] = []
        self.scores: dict[str, tuple[str, Array, Array]] = {}  # of the routers: the node, the definition's, theirs
        self.routes: list[Route] = []  # tokens that got, or may have got, other experts

    def visit(self, node: Node, weights: Weights) -> None:
        true_in = [self.truth[i] for i in node.inputs]
        their_in = [self.theirs[i] for i in node.inputs]
        truth, own = evaluate_all(node, [_wide(true_in), _wide(their_in)], weights)
        self.truth[node.name] = truth
        if node.op == "argsort":
            self.scores[node.name] = node.inputs[0], true_in[0], their_in[0]
        segment = (*dict.fromkeys(s for i in node.inputs for s in self.path.get(i, ())), node.name)
        observations = tuple(
            replace(o, data=o.array()) if o.kind == "values" else o for o in self.dump.by_name.get(node.name, ())
        )
        if not observations:
            self.theirs[node.name], self.path[node.name] = own, segment
        else:
            found = self._judge(node, observations, truth, own, segment)
            self.evidence.append(found)
            self.theirs[node.name] = patch(observations, own, token_axis(self.graph, node.name))
            if not found.whole:
                self.path[node.name] = segment
        if node.op == "topk":
            score, right, _ = self.scores[ranking(self.graph, node).name]
            seen = bool(observations) or not np.array_equal(np.sort(truth), np.sort(self.theirs[node.name]))
            rms = self.carried(score).rms
            self.routes += routes(node.name, right, truth, self.theirs[node.name], rms, seen)
        self.last.forget(node, self.truth, self.theirs, self.path)

    def _judge(
        self,
        node: Node,
        observations: tuple[Observation, ...],
        truth: Array,
        own: Array,
        segment: tuple[str, ...],
    ) -> Evidence:
        axis = token_axis(self.graph, node.name)
        hide = self.hidden if node.op == "kq" else None
        far, near = self.carried(node.name), self.local(node.name)
        step = STEP if len(segment) <= SHORT else RUN
        carried = local = np.zeros(len(ARITHMETICS))
        squares = base = dot = theirs2 = own_squares = 0.0
        worst, where, found, wanted = -1.0, tuple[int, ...](), 0.0, 0.0
        top1: bool | None = None
        for obs in observations:
            error, expected = deviation(obs, truth, axis, self.head_width, hide)
            own_error, own_expected = deviation(obs, own, axis, self.head_width, hide)
            if node.op in CHOICES and obs.kind == "values" and obs.rows is None:
                score, right, theirs = self.scores[ranking(self.graph, node).name]
                far_off, own_off = disorder(right, obs.array()), disorder(theirs, obs.array())
                carried = np.maximum(carried, (far_off / allowed(right, self.carried(score).rms)).max(axis=1))
                local = np.maximum(local, (own_off / allowed(theirs, self.local(score).rms)).max(axis=1))
            elif truth.dtype.kind != "f":  # indices: equal or not
                carried = np.maximum(carried, np.inf if own_error.any() else 0)
                local = carried
            else:
                carried = np.maximum(carried, ratios(obs, error, expected, truth, axis, far, RUN))
                local = np.maximum(local, ratios(obs, own_error, own_expected, own, axis, near, step))
            squares, base = squares + float(np.sum(error**2)), base + float(np.sum(expected**2))
            target = expected + error
            dot, theirs2 = dot + float(np.sum(expected * target)), theirs2 + float(np.sum(target**2))
            own_squares += float(np.sum(own_error**2))
            at = int(np.abs(error).argmax())
            if abs(error.flat[at]) > worst:
                worst, found, wanted = float(abs(error.flat[at])), float(target.flat[at]), float(expected.flat[at])
                where = tuple(int(i) for i in np.unravel_index(at, error.shape))
                if obs.kind == "values" and obs.rows:
                    where = tuple(w + (obs.rows[0] if i == axis else 0) for i, w in enumerate(where))
            if node.name == self.graph.output and obs.kind == "values":
                top1 = bool((target.argmax(-1) == expected.argmax(-1)).all())
            if node.name == self.graph.output and obs.kind == "top" and obs.data:
                row = obs.row if obs.row is not None else len(truth) - 1
                top1 = int(truth[row].argmax()) == max(obs.data, key=lambda pair: pair[1])[0] % truth.shape[1]
        return Evidence(
            name=node.name,
            nmse=squares / (base + _TINY),
            cosine=dot / (np.sqrt(base * theirs2) + _TINY) if theirs2 or base else 1.0,
            worst=worst,
            where=where,
            found=found,
            expected=wanted,
            carried=carried,
            local=local,
            own_nmse=own_squares / (base + _TINY),
            top1=top1,
            whole=any(obs.kind == "values" and obs.rows is None for obs in observations),
            segment=segment,
            noise_carried=self.carried(node.name),
            noise_local=self.local(node.name),
        )


def _wide(values: list[Array]) -> list[Array]:
    return [v.astype(np.float64, copy=False) if v.dtype.kind == "f" else v for v in values]


def examine(
    model: Model, dump: Dump, progress: Callable[[int, int], None] | None = None, cache: bool = True
) -> tuple[list[Evidence], list[Route]]:
    """Everything the dump shows, node by node in the graph's order; and the tokens routed otherwise."""
    path = cache_path(model, dump.tokens, dump.positions)
    levels = load_levels(path, model) if cache else None

    one_step = NoiseRuns(model, dump.tokens, dump.positions, dump)
    # A step from what was merely printed begins at the tokens, too.
    printed = not any(o.kind == "values" or model.graph[o.name].op == "group_mask" for o in dump.observations)
    whole_run = None if levels or printed else NoiseRuns(model, dump.tokens, dump.positions)

    def carried(name: str) -> Level:
        if levels:
            return levels[name]
        return whole_run.levels[name] if whole_run else replace(one_step.levels[name], parts={})

    own = OwnInputs(model, dump, carried, one_step.levels.__getitem__)
    with np.errstate(over="ignore", invalid="ignore"):  # a stranger's values may be too large for some arithmetic
        noise = Together([run.visit for run in (whole_run, one_step) if run])
        sweep(model, [noise, own], progress)
    if cache and not levels:
        save_levels(path, (whole_run or one_step).levels)
    return own.evidence, own.routes


def recompute(model: Model, dump: Dump, name: str, without: Collection[str] = ()) -> Array:
    """The definition's value of a node from the dump's own values; those of `without` are recomputed first."""
    env = inputs_of(dump.tokens, dump.positions)
    for other in dump.by_name:
        if other != name and other not in without and (value := dump.values(other)) is not None:
            env[other] = _wide([value])[0]
    return interpret(model.graph, Weights(model.file, np.float32, budget=0), env, [name])[name]


def follows(model: Model, dump: Dump, e: Evidence, faulty: Collection[str]) -> Array:
    """Ratios for a node recomputed as if its faulty inputs were right; their steps' noise counts as well."""
    axis, hide = token_axis(model.graph, e.name), None
    if model.graph[e.name].op == "kq":
        given = inputs_of(dump.tokens, dump.positions)
        hide = unseen(model, given)
    value = recompute(model, dump, e.name, faulty)
    worst = np.zeros(len(ARITHMETICS))
    for obs in dump.by_name[e.name]:
        error, expected = deviation(obs, value, axis, model.hparams.n_embd_head, hide)
        worst = np.maximum(worst, ratios(obs, error, expected, value, axis, e.noise_carried, RUN))
    return worst
