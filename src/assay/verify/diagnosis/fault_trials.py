"""Trying faults: which values would an engine have dumped if it had made this mistake?

`FaultTrials` holds one dump together with the model, the weights and the verdicts on the dump. A *unit* of evidence is
an observed node and the segment of the graph between it and the nearest nodes that were dumped whole. That is one node
in a full dump, one layer where only layer outputs were dumped, and the whole model where only logits were. A trial
plants a hypothesis in the segment and computes it from the dump's own inputs. The nodes before the fault's first effect
are computed once and shared by all hypotheses.

Touch this module to change how a prediction is computed or how it is compared with the observations. Which hypotheses
are tried is decided in `candidates`, `likelihood`, `by_nodes` and `by_runs`.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.engines.reference import Hooks, evaluate, interpret
from assay.engines.reference.weights import Weights
from assay.graph import Graph, Node, Trait
from assay.models import Model
from assay.verify.diagnosis.run_cache import run_cache_of
from assay.verify.diagnosis.time_budget import UNLIMITED, TimeBudget
from assay.verify.dumps.observation import Dump, Observation, token_axis
from assay.verify.faults import FAULTS, Change, Context, Planted, Variant, add_plugin_faults
from assay.verify.faults.description import REACHING_BACK
from assay.verify.judge.arithmetic import ARITHMETICS, UNIT, is_matrix_product
from assay.verify.judge.compare_nodes import Diff
from assay.verify.judge.evidence import deviation, ratios
from assay.verify.judge.noise import Level, by_rows, rms_of_rows
from assay.verify.judge.rounding import EXACT, Rounding, hooks, weights_of
from assay.verify.judge.run_inputs import RunInputs, run_inputs
from assay.verify.thresholds import (
    ACCEPT,
    AMPLIFIED,
    ARITHMETIC_GUESSED,
    LARGE_LAYER,
    LONG_RUN,
    NEAR_Q8,
    NEAR_UNITS,
    RUN,
    SHAKEN,
    STEP,
)

Array = NDArray[Any]
# Operations that only move numbers and that engines rarely dump: their values follow from their inputs' dumps.
_FILLED_IN = frozenset({"cache", "merge_heads", "slice", "join"})
_TINY = 1e-300
MOST_SOLVED = 4096  # nodes planted with a parameter that are kept: the same one is asked for several times in a row
_UNITS = np.array([a.unit for a in ARITHMETICS])


@dataclass(frozen=True)
class EvidenceUnit:
    """An observed node and the nodes recomputed to reach it."""

    target: str
    segment: tuple[str, ...]


@dataclass(frozen=True)
class ObservationFit:
    """How well a value accounts for the observations of a node."""

    ratio: float  # Residual over allowed noise: up to ACCEPT is explained.
    residual: float  # Sum of squares, relative to the size of the observations.
    count: int  # Number of values compared.
    strict: float = np.inf  # As `ratio`, against the noise of float32 alone.
    every: tuple[float, ...] = ()  # As `ratio`, for each arithmetic; empty where the arithmetic is known.

    @property
    def explained(self) -> bool:
        return self.ratio <= ACCEPT

    @property
    def exact(self) -> bool:
        """Explained to float32's noise, without a coarser arithmetic."""
        return self.strict <= ACCEPT


NEVER = ObservationFit(np.inf, np.inf, 0)  # does not account for anything


@dataclass(frozen=True)
class Hypothesis:
    """A way to commit a fault, with its parameter."""

    fault: str
    variant: Variant
    p: float = 0.0
    lasting: bool = False  # composed, and the same object for every dump of the text

    def __str__(self) -> str:
        return self.variant.text(self.p)


@dataclass(frozen=True)
class Terms:
    """The terms on which hypotheses are judged."""

    arithmetic: int  # index in ARITHMETICS
    guessed: bool  # it was inferred from few nodes: a coarser one is possible
    subtle: bool = False  # look for small faults only; misread weights are never small
    carried: bool = False  # judge by the noise of whole runs, not of single steps

    @staticmethod
    def of(diff: Diff, *, subtle: bool = False) -> Terms:
        wholes = sum(n.evidence.whole for n in diff.nodes)
        return Terms(ARITHMETICS.index(diff.arithmetic), wholes < ARITHMETIC_GUESSED, subtle)

    @property
    def open(self) -> bool:
        """May a hypothesis be accepted under a coarser arithmetic than `arithmetic`?"""
        return self.guessed and not self.subtle


class FaultTrials:
    """One dump, and the means to try faults on it.

    Terms, values and rounding rule never change after construction; `on`, `rounding`, `shaken` and `from_tokens` give
    trials under other ones.
    """

    def __init__(
        self,
        model: Model,
        dump: Dump,
        diff: Diff,
        weights: Weights | None = None,
        terms: Terms | None = None,
        theirs: Mapping[str, Array] | None = None,
        rule: Rounding = EXACT,
        inputs: RunInputs | None = None,
        budget: TimeBudget = UNLIMITED,
    ) -> None:
        add_plugin_faults()
        self.model, self.dump, self.diff = model, dump, diff
        self.inputs = inputs or run_inputs(model, dump.tokens, dump.positions, dump.given)
        self.terms, self.budget = terms or Terms.of(diff), budget
        self.right = {n.name for n in diff.nodes if n.verdict != "wrong"}
        self.evidence = {n.name: n.evidence for n in diff.nodes}
        self.context = Context(model, dump.steps, tokens=dump.tokens, chosen=_chosen(model, dump))
        self.weights = weights or Weights(model.file)
        self.given = self.inputs.given
        self.theirs = self._theirs() if theirs is None else theirs  # the dump's values, and what follows from them
        self.rule, self._hooks = rule, hooks(rule, model.file)
        self._before: dict[tuple[EvidenceUnit, str], ObservationFit] = {}
        kind = diff.arithmetic
        self._near = (NEAR_Q8 if kind.q8 else NEAR_UNITS * kind.unit) ** 2
        self._bases: dict[EvidenceUnit, dict[str, Array]] = {}
        self._by_op: dict[EvidenceUnit, dict[str, list[Node]]] = {}
        self._changes: dict[tuple[int, str], tuple[Variant, Change | None]] = {}  # the variant keeps its id in use
        self._solved: dict[tuple[int, str, float], tuple[Variant, Change | None]] = {}  # the same, by parameter
        self._planted: tuple[Hypothesis, EvidenceUnit, Planted] | None = None  # the last one: it is asked for in a row
        self._cuts: dict[tuple[EvidenceUnit, int], EvidenceUnit] = {}
        self._ordered: tuple[EvidenceUnit, dict[str, int]] | None = None  # the places of the last unit's nodes
        self._outside: tuple[EvidenceUnit, dict[str, Array]] | None = None  # `theirs` without the last unit's segment
        self._ran = False  # `theirs` are the definition's own values
        self._shake = 0  # number of the draw of float32 errors, 0 for none
        self._runs = run_cache_of(self.weights, model.graph)
        self._feed = (dump.tokens, dump.positions, dump.steps)
        self.rows = max(dump.positions, default=0) + 1  # counted from position 0

    def _with(
        self,
        *,
        terms: Terms | None = None,
        weights: Weights | None = None,
        theirs: Mapping[str, Array] | None = None,
        rule: Rounding | None = None,
    ) -> FaultTrials:
        """Trials of the same dump that differ in these."""
        trials = FaultTrials(
            self.model,
            self.dump,
            self.diff,
            weights or self.weights,
            terms or self.terms,
            self.theirs if theirs is None else theirs,
            rule or self.rule,
            self.inputs,
            self.budget,
        )
        trials._changes, trials._solved = self._changes, self._solved
        return trials

    def on(self, terms: Terms) -> FaultTrials:
        """The same trials, judged on other terms."""
        trials = self._with(terms=terms)
        trials._bases, trials._ran = self._bases, self._ran  # the definition's values do not depend on the terms
        return trials

    def rounding(self, rule: Rounding) -> FaultTrials:
        """The same trials, in which every computation rounds by this rule."""
        if rule == self.rule:
            return self
        trials = self._with(weights=weights_of(rule, self.weights, self.graph), rule=rule)
        trials._runs = self._runs  # the key names the rule, and halved weights follow from these
        return trials

    def with_weights(self, weights: Weights) -> FaultTrials:
        """The same trials with the weights in another type, in float arithmetic without a rounding rule."""
        return self._with(weights=weights, rule=EXACT)

    def in_float32(self, weights: Weights) -> FaultTrials:
        """The same trials on the definition's own run, in float32 with these weights: products take a third."""
        narrow = {name: v.astype(np.float32) if v.dtype == np.float64 else v for name, v in self.theirs.items()}
        trials = self._with(weights=weights, theirs=narrow, rule=EXACT)
        trials._ran = self._ran
        return trials

    @property
    def ran(self) -> bool:
        """Do the trials begin with the definition's own run, without a rounding rule?"""
        return self._ran and self.rule == EXACT and not self._shake

    def shaken(self, draw: int) -> FaultTrials:
        """The same trials, in which every result is off by an error as large as float32's sums make, drawn anew.

        A prediction that moves by much more than that depends on a value at the edge of a rounding step. It is no
        evidence.
        """
        trials = self.on(self.terms)
        trials._bases, trials._shake = {}, draw
        trials._hooks = Hooks(self._hooks.operand if self._hooks else None, partial(_shaken, self._hooks, draw))
        return trials

    def from_tokens(self) -> FaultTrials:
        """Trials that start at the tokens, for a dump without a whole tensor: the definition's run stands in for it."""
        names = [n.name for n in self.graph if not n.has(Trait.SHOWS_STATE)]
        run = interpret(self.graph, self.weights, self.given, names) | dict(self.given)
        trials = self._with(terms=replace(self.terms, carried=True), theirs=run, rule=EXACT)
        trials._ran = True
        return trials

    def _theirs(self) -> dict[str, Array]:
        """The dump's whole tensors, and the values that follow from them by moving numbers alone."""
        found = dict(self.given)
        for node in self.model.graph:
            if node.has(Trait.SHOWS_STATE):
                continue  # state is judged, but never given: it belongs to one call, and these runs have all calls
            whole = self.dump.values(node.name) if node.name in self.dump.by_name else None
            if whole is not None:
                found[node.name] = whole.astype(np.float64) if whole.dtype.kind == "f" else whole
            elif _is_filled_in(node) and all(i in found for i in node.inputs):
                found[node.name] = evaluate(node, [found[i] for i in node.inputs], self.weights)
        return found

    @cached_property
    def graph(self) -> Graph:
        return self.model.graph

    def composed(self, unit: EvidenceUnit, key: Hashable, make: Callable[[], list[Hypothesis]]) -> list[Hypothesis]:
        """Hypotheses that are composed for this text. Where their runs follow from its tokens, they are made once."""
        inside = set(unit.segment)
        read = {i for name in unit.segment for i in self.graph[name].inputs} - inside
        if not self._ran and not read <= self.given.keys():
            return make()
        return self._runs.listed((unit, key, self._feed), lambda: [replace(h, lasting=True) for h in make()])

    def hidden_at(self, name: str) -> Array | None:
        """The values of the node that no reader uses, because the mask hides them; None where every value counts."""
        return self.inputs.hidden_at(self.graph[name])

    def base(self, unit: EvidenceUnit) -> dict[str, Array]:
        """The definition's values in the unit's segment, from the dump's own inputs to it."""
        if unit not in self._bases:
            ran = self._ran and self.rule == EXACT and not self._shake
            if ran and all(name in self.theirs for name in unit.segment):
                self._bases[unit] = {name: self.theirs[name] for name in unit.segment}
            else:
                env = self._given_to(unit)
                self._bases[unit] = interpret(self.graph, self.weights, env, unit.segment, hooks=self._hooks)
            if len(self._bases) > 4:
                self._bases.pop(next(iter(self._bases)))
        return self._bases[unit]

    def _given_to(self, unit: EvidenceUnit) -> dict[str, Array]:
        """The dump's values outside the unit's segment."""
        if self._outside is None or self._outside[0] != unit:
            inside = set(unit.segment)
            self._outside = unit, {k: v for k, v in self.theirs.items() if k not in inside}
        return self._outside[1]

    def operand(self, node: Node, x: Array) -> Array:
        """The first operand of a node, rounded by the rule of these trials."""
        return x if self._hooks is None or self._hooks.operand is None else self._hooks.operand(node, 0, x)

    def carry_on(
        self, unit: EvidenceUnit, after: Sequence[str], node: Node, token: int, rows: Array, *, rounded: bool
    ) -> Array:
        """The unit's target for one token, if a node in its segment had these values (one row a guess).

        `after` are the nodes that depend on the node. They must not mix tokens.
        """
        base = self.base(unit)
        wanted = {i for name in after for i in self.graph[name].inputs if i not in after and i != node.name}
        env = {i: np.repeat((base[i] if i in unit.segment else self.theirs[i])[token : token + 1], len(rows), axis=0)
               for i in wanted}  # fmt: skip
        hooks = self._hooks if rounded else None
        with np.errstate(all="ignore"):
            made = interpret(self.graph, self.weights, env | {node.name: rows}, [unit.target], hooks=hooks)
        return made[unit.target]

    def size(self, nodes: Iterable[str]) -> int:
        """The number of weights that these nodes read."""
        return sum(math.prod(self.graph.weights[w]) for name in nodes for w in self.graph[name].weights)

    def run_of(self, nodes: Collection[str]) -> bool:
        """Is computing them a run of many layers, too costly for every point of a scan?"""
        return len(nodes) >= LONG_RUN and self.size(nodes) >= LARGE_LAYER

    def touches(self, variant: Variant, unit: EvidenceUnit, p: float = 0.0) -> bool:
        return any(self._change(variant, node, p) is not None for node in self._selected(variant, unit))

    def _change(self, variant: Variant, node: Node, p: float) -> Change | None:
        """The node with the fault planted. A variant without a parameter is planted once in every node."""
        if variant.search is None:
            key = id(variant), node.name
            if key not in self._changes:
                self._changes[key] = variant, variant.at(self.context, node)
            return self._changes[key][1]
        at = id(variant), node.name, p
        if at not in self._solved:
            if len(self._solved) >= MOST_SOLVED:
                self._solved.clear()
            self._solved[at] = variant, variant.at(self.context, node, p)
        return self._solved[at][1]

    def _selected(self, variant: Variant, unit: EvidenceUnit) -> Iterable[Node]:
        """The nodes of the segment whose operation the variant's selector names."""
        if unit not in self._by_op:
            found: dict[str, list[Node]] = {}
            for name in unit.segment:
                found.setdefault(self.graph[name].op, []).append(self.graph[name])
            self._by_op[unit] = found
        by_op = self._by_op[unit]
        return (node for op in (variant.where.ops or by_op) for node in by_op.get(op, ()))

    def predict(self, h: Hypothesis, unit: EvidenceUnit, targets: Iterable[str] = ()) -> dict[str, Array] | None:
        """The values of the unit's target (or of `targets` in its segment) with the fault planted in the segment.

        None where the fault reads a value that the dump does not give.
        """
        wanted = frozenset(targets) or frozenset((unit.target,))
        key = (h, unit.segment, wanted, self.rule, self._feed, self._ran, self._shake)
        known = self._runs.recall(key)
        if known is not None:
            return known
        made = self._plant(h, unit, wanted)
        changed = _downstream(made)
        env = self._given_to(unit) | {k: v for k, v in self.base(unit).items() if k not in changed}
        if not _known(made, env):
            return self._from_the_start(h, unit, wanted)
        try:
            values = interpret(made.graph, self.weights, env, wanted, hooks=self._hooks, functions=made.functions)
        except Exception as error:  # an edit that applies must run: name the one that does not
            if self.dump.given:  # edits of rotations are written for positions of one number, not for t, y, x
                return None
            if h.variant.added_by:
                h.variant.warn(error)
                return None
            if h.variant not in FAULTS[h.fault].variants:  # a composed edit that an operation refuses explains nothing
                return None
            error.add_note(f"with the fault {h.fault} ({h}) planted before {unit.target}")
            raise
        if (h.variant in FAULTS[h.fault].variants or h.lasting) and (
            self._ran or all(i in self.given or i in made.graph for node in made.graph for i in node.inputs)
        ):
            self._runs.keep(key, values)  # they depend on the tokens alone
        return values

    def _from_the_start(self, h: Hypothesis, unit: EvidenceUnit, wanted: frozenset[str]) -> dict[str, Array] | None:
        """The same in a run from the tokens, for a fault that reads what an earlier layer left; None for others."""
        order = [node.name for node in self.graph]
        whole = EvidenceUnit(unit.target, tuple(order[: 1 + max(order.index(name) for name in unit.segment)]))
        if h.fault not in REACHING_BACK or whole == unit or self.run_of(whole.segment):
            return None
        return self.predict(h, whole, wanted)

    def changed(self, h: Hypothesis, unit: EvidenceUnit, before: str = "") -> set[str]:
        """The nodes of the segment that the fault changes, directly or through their inputs; up to a node, if given."""
        return _downstream(self._plant(h, unit, (before or unit.segment[-1],)))

    def _up_to(self, unit: EvidenceUnit, wanted: Iterable[str]) -> EvidenceUnit:
        """The unit without the nodes after its target and after the wanted ones: they change neither."""
        order = self._order(unit)
        end = 1 + max(order[name] for name in (unit.target, *wanted) if name in order)
        if end == len(unit.segment):
            return unit
        if (unit, end) not in self._cuts:
            self._cuts[unit, end] = EvidenceUnit(unit.target, unit.segment[:end])
        return self._cuts[unit, end]

    def _order(self, unit: EvidenceUnit) -> dict[str, int]:
        if self._ordered is None or self._ordered[0] != unit:
            self._ordered = unit, {name: i for i, name in enumerate(unit.segment)}
        return self._ordered[1]

    def _plant(self, h: Hypothesis, unit: EvidenceUnit, wanted: Iterable[str]) -> Planted:
        """The segment alone as a graph, up to its target and the wanted nodes, with the fault in it."""
        unit = self._up_to(unit, wanted)
        if self._planted is None or self._planted[0] is not h or self._planted[1] != unit:
            nodes = {name: self.graph[name] for name in unit.segment}
            changes = {node.name: self._change(h.variant, node, h.p) for node in self._selected(h.variant, unit)}
            made = {name: change for name, change in changes.items() if change is not None}
            nodes |= {name: _named(change.node, name) for name, change in made.items()}
            functions = {name: change.function for name, change in made.items() if change.function is not None}
            planted = Planted(replace(self.graph, nodes=tuple(nodes.values())), functions, frozenset(made))
            self._planted = h, unit, planted
        return self._planted[2]

    def compare(
        self,
        name: str,
        value: Array,
        own: Array | None = None,
        only: Callable[[Observation], bool] = lambda obs: True,
        most: float = np.inf,
    ) -> ObservationFit:
        """The observations of a node, or `only` some, against a value. `own` is the definition's value there: noise
        grows with size. A residual of `most` or more is not compared with noise, which takes most of the time."""
        axis, evidence, terms = token_axis(self.graph, name), self.evidence[name], self.terms
        hide = self.hidden_at(name)
        measured, residual, count = [], 0.0, 0
        for obs in filter(only, self.dump.by_name[name]):
            if value.shape[axis] < len(self.dump.tokens) and self.graph.shapes[name][axis] != 1:  # 1: pooled
                return NEVER
            with np.errstate(all="ignore"):
                error, expected = deviation(obs, value, axis, self.model.hparams.n_embd_head, hide)
                if not np.isfinite(error).all():
                    return ObservationFit(np.inf, np.inf, error.size)
                size = float(np.sum((error + expected) ** 2)) + _TINY
                residual += float(np.sum(error**2)) / size
            count += error.size
            measured.append((obs, error, expected))
        if residual >= most:
            return ObservationFit(np.inf, residual, count)
        kinds = range(len(ARITHMETICS)) if terms.open else sorted({0, terms.arithmetic})
        level = (evidence.noise_carried if terms.carried else evidence.noise_local).of(kinds)
        if own is not None and own.shape == value.shape:
            level = grown_noise(value, own, axis, level, _UNITS[list(kinds)])
        every, factor = np.zeros(len(kinds)), RUN if terms.carried else STEP
        for obs, error, expected in measured:
            with np.errstate(all="ignore"):
                if value.dtype.kind != "f":
                    every = np.maximum(every, np.inf if error.any() else 0.0)
                else:
                    every = np.maximum(every, ratios(obs, error, expected, value, axis, level, factor, kinds))
        ratio = float(every[kinds.index(terms.arithmetic)])
        return ObservationFit(ratio, residual, count, float(every[0]), tuple(every.tolist()) if terms.open else ())

    def before(self, unit: EvidenceUnit, name: str | None = None) -> ObservationFit:
        """The observations against the definition."""
        key = (unit, name or unit.target)
        if key not in self._before:
            self._before[key] = self.compare(key[1], self.base(unit)[key[1]])
        return self._before[key]

    def after(self, unit: EvidenceUnit, name: str, value: Array, most: float = np.inf) -> ObservationFit:
        """The observations against a hypothesis. One that leaves `most` or more explains nothing, however noisy.

        Inside a segment a fault may amplify noise beyond the simulation. So a value that accounts for all but a
        10,000th of a large deviation is explained as well.
        """
        fit = self.compare(name, value, own=self.base(unit).get(name), most=most)
        before = self.before(unit, name)
        if fit.residual > AMPLIFIED * before.residual:
            return fit
        n = len(self.dump.by_name[name])
        ratio = min(fit.ratio, ACCEPT) if fit.residual <= self._near * n else fit.ratio
        strict = min(fit.strict, ACCEPT) if fit.residual <= (NEAR_UNITS * UNIT["f32"]) ** 2 * n else fit.strict
        return replace(fit, ratio=ratio, strict=strict)

    def fit(self, h: Hypothesis, unit: EvidenceUnit, most: float = np.inf) -> ObservationFit:
        """The observations of the unit's target against the hypothesis; `most` as for `after`."""
        values = None if self._hopeless(h, unit) else self.predict(h, unit)
        return NEVER if values is None else self.after(unit, unit.target, values[unit.target], most)

    def _hopeless(self, h: Hypothesis, unit: EvidenceUnit) -> bool:
        """Do the first features of a large product rule the hypothesis out? Decoding the whole matrix is costly."""
        node = self.graph[unit.target]
        found = self.dump.values(unit.target) if len(unit.segment) == 1 and is_matrix_product(node) else None
        change = h.variant.at(self.context, node, h.p) if found is not None else None
        if found is None or change is None or change.preview is None:
            return False
        try:
            guess = change.preview(*(self.theirs[i] for i in change.node.inputs))
        except Exception as error:
            if not h.variant.added_by:
                raise
            h.variant.warn(error)
            return True
        seen, own = found[:, : guess.shape[1]], self.base(unit)[unit.target][:, : guess.shape[1]]
        with np.errstate(all="ignore"):
            return not float(np.sum((seen - guess) ** 2)) <= 0.5 * float(np.sum((seen - own) ** 2))


def _chosen(model: Model, dump: Dump) -> dict[str, Array]:
    """The choices in the order of the dump, by node; -1 where it has none for a token. An engine may pair them with
    values of another order."""
    found: dict[str, Array] = {}
    for node in model.graph:
        if not node.has(Trait.INDICES) or node.name not in dump.by_name or node.op != "topk":
            continue
        ids = np.full((len(dump.tokens), node.attr("k")), -1, np.int64)
        for obs in dump.by_name[node.name]:
            rows = ids[slice(*(obs.rows or (0, len(ids))))]
            if obs.kind in ("values", "first") and np.size(data := obs.array()) == rows.size:
                rows[...] = np.asarray(data).reshape(rows.shape)
        if (ids >= 0).any():
            found[node.name] = ids
    return found


def _named(node: Node, name: str) -> Node:
    return node if node.name == name else replace(node, name=name)


def _is_filled_in(node: Node) -> bool:
    return node.op in _FILLED_IN


def _shaken(hooks: Hooks | None, draw: int, node: Node, y: Array) -> Array:
    if y.dtype.kind == "f" and not _is_filled_in(node):
        noise = np.random.default_rng(zlib.crc32(f"{node.name}/{draw}".encode())).standard_normal(y.shape, np.float32)
        y = y + SHAKEN * UNIT["f32"] * np.sqrt(np.mean(y * y, axis=-1, keepdims=True)) * noise
    return hooks.result(node, y) if hooks and hooks.result else y


def _downstream(made: Planted) -> set[str]:
    changed: set[str] = set()
    for node in made.graph.nodes:
        if node.name in made.touched or (changed and not changed.isdisjoint(node.inputs)):
            changed.add(node.name)
    return changed


def _known(made: Planted, env: Mapping[str, Array]) -> bool:
    """Are the inputs of every touched node given, or computed before it?"""
    before: set[str] = set()
    for node in made.graph.nodes:
        if node.name in made.touched and not all(i in env or i in before for i in node.inputs):
            return False
        before.add(node.name)
    return True


def grown_noise(value: Array, own: Array, axis: int, level: Level, units: Array) -> Level:
    """The noise of a faulty value: it grows with the value, and is never less than rounding it once, by `units`.

    The definition's noise can be zero where the fault's is not, as for a rotation by zero.
    """
    faulty, plain = by_rows(value, axis), by_rows(own, axis)
    with np.errstate(all="ignore"):
        size = rms_of_rows(faulty)
        growth = size / rms_of_rows(plain)
        growth = np.minimum(np.maximum(np.where(np.isnan(growth), 1.0, growth), 1.0), 1e6)
        rms, top = units[:, None] * size, units[:, None] * np.abs(faulty).max(axis=1)
        return Level(np.maximum(level.rms * growth, rms), np.maximum(level.top * growth, top))
