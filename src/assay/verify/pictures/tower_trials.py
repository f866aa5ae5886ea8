"""The judge on a vision tower, and mistakes tried on the dump's own values.

A tower is a model whose inputs are given: patches, angles, rows of a table. `judge` compares every dumped node with the
definition, and with the definition applied to the dump's own values. A mistake (`faults/vision`) is then planted, and
the nodes that it changes are computed from the dump's own values again. Nodes that a mistake does not reach keep
the definition's value. Touch this to change how a mistake is tried; the answer is made in `diagnose_picture`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.engines.reference import evaluate, interpret
from assay.engines.reference.weights import Weights
from assay.models import Model
from assay.models.hparams import HParams, Layer, RopeParams
from assay.models.vision.tower import Tower
from assay.verify.diagnosis.fault_trials import ObservationFit, grown_noise
from assay.verify.dumps.observation import Dump, Observation, token_axis
from assay.verify.faults.vision import PlantedTower
from assay.verify.judge.arithmetic import ARITHMETICS, UNIT
from assay.verify.judge.compare_nodes import Diff
from assay.verify.judge.evidence import Evidence, deviation, ratios
from assay.verify.judge.noise import by_rows, rms_of_rows
from assay.verify.judge.run_inputs import RunInputs
from assay.verify.judge.verdict import decide, judge
from assay.verify.thresholds import ACCEPT, AMPLIFIED, NEAR_UNITS, RUN, SHORT, STEP
from assay.vision.picture_plan import Size

Array = NDArray[Any]
_UNITS = np.array([a.unit for a in ARITHMETICS])
_TINY = 1e-300


def tower_model(tower: Tower) -> Model:
    """A tower as the judge takes it: file, numbers, graph."""
    keys = tower.keys
    rope = RopeParams(keys.head_dim, 10000.0)
    layer = Layer(
        keys.n_head, keys.n_head_kv, keys.head_dim, keys.head_dim, keys.n_ff, keys.head_dim**-0.5, None, causal=False
    )
    layers = (layer,) * keys.n_layer
    return Model(tower.file, HParams("clip", keys.n_embd, 1, 1, keys.eps, rope, layers), tower.graph)


@dataclass(frozen=True)
class NodeFit:
    """How well a mistake accounts for one node: ratios for every arithmetic, and what is left of its squares."""

    ratios: Array
    residual: float
    count: int

    def at(self, arithmetic: int) -> ObservationFit:
        return ObservationFit(float(self.ratios[arithmetic]), self.residual, self.count, float(self.ratios[0]))


@dataclass
class ImageTrials:
    """One image of a dump: the judge's verdict, and mistakes tried on it."""

    tower: Tower
    weights: Weights
    size: Size
    pixels: NDArray[np.float32]  # the dump's own, where it has them
    base: PlantedTower  # the definition's pass of these pixels
    values: Mapping[str, Array]  # whole nodes of the dump
    misshapen: Mapping[str, Array]  # nodes of another shape than the definition's
    source: str = ""
    _frontier: dict[str, Array] = field(default_factory=dict)

    @cached_property
    def model(self) -> Model:
        return tower_model(self.tower)

    @cached_property
    def inputs(self) -> RunInputs:
        n = len(self.base.given["inp_pos"])
        positions = tuple(int(p) for p in self.base.given["inp_pos"])
        return RunInputs(self.model, tuple(range(n)), positions, self.base.given, np.zeros((n, n), bool))

    @cached_property
    def dump(self) -> Dump:
        n = len(self.base.given["inp_pos"])
        seen = tuple(
            Observation(name, "values", value, shape=value.shape, foreign=name) for name, value in self.values.items()
        )
        return Dump("", tuple(range(n)), tuple(range(n)), (n,), seen, self.source)

    @cached_property
    def diff(self) -> Diff | None:
        """The judge's verdict on the nodes of the right shape.

        Where it finds wrong nodes, the strictest arithmetic that explains every node is taken instead: few nodes of a
        tower are bare products, so the majority of nodes may not tell in which type the weights are kept.
        """
        if not self.values:
            return None
        found = judge(self.model, self.dump, cache=False, inputs=self.inputs)
        seen = [n.evidence for n in found.nodes]
        for i, arithmetic in enumerate(ARITHMETICS if found.verdict == "wrong" else ()):
            if all(e.local[i] <= 1 for e in seen):
                nodes = tuple(decide(self.inputs, self.dump, seen, arithmetic))
                return replace(found, arithmetic=arithmetic, nodes=nodes)
        return found

    @cached_property
    def evidence(self) -> dict[str, Evidence]:
        return {} if self.diff is None else {n.name: n.evidence for n in self.diff.nodes}

    @cached_property
    def theirs(self) -> dict[str, Array]:
        """The dump's values, and those that are given."""
        wide = {name: x.astype(np.float64) if x.dtype.kind == "f" else x for name, x in self.values.items()}
        return {**self.base.given, **wide}

    # -- a mistake -------------------------------------------------------------------------------------------------

    def reached(self, planted: PlantedTower) -> set[str]:
        """The nodes that the mistake changes before the next dumped node: their prediction differs."""
        other = {name for name, x in planted.given.items() if not _equal(x, self.base.given.get(name))}
        found: set[str] = set()
        for node in planted.graph:
            touched = node.name in planted.functions or self.tower.graph.by_name.get(node.name) != node
            through = any(i in found and i not in self.values for i in node.inputs)
            if touched or through or not other.isdisjoint(node.inputs):
                found.add(node.name)
        return found

    def fits(self, planted: PlantedTower) -> dict[str, NodeFit]:
        """Every dumped node that the mistake reaches, against its prediction from the dump's own values."""
        reached = self.reached(planted)
        seen = {*self.values, *self.misshapen}
        nodes = [node for node in planted.graph if node.name in reached]
        last = max((i for i, node in enumerate(nodes) if node.name in seen), default=-1)
        nodes = nodes[: last + 1]
        values = {**planted.given}
        needed = {i for node in nodes for i in node.inputs if i not in reached and i not in values}
        values |= self._right(needed)
        uses = {i: k for k, node in enumerate(nodes) for i in node.inputs}
        found: dict[str, NodeFit] = {}
        for k, node in enumerate(nodes):
            try:
                made = evaluate(
                    node, [values[i] for i in node.inputs], self.weights, function=planted.functions.get(node.name)
                )
            except (ValueError, IndexError):  # dumped rows of another number than the mistake makes
                return found | {node.name: NodeFit(np.full(len(ARITHMETICS), np.inf), np.inf, 1)}
            if node.name in seen:
                found[node.name] = self._fit(node.name, made)
            values[node.name] = self.theirs.get(node.name, made) if node.name in self.values else made
            for i in node.inputs:
                if uses[i] == k and i not in planted.given:
                    values.pop(i, None)
        return found

    def _right(self, names: set[str]) -> dict[str, Array]:
        """The definition's values of nodes, from the dump's own."""
        missing = [name for name in names if name not in self.theirs and name not in self._frontier]
        if missing:
            self._frontier |= interpret(self.tower.graph, self.weights, self.theirs, missing)
        found = {name: self.theirs[name] if name in self.theirs else self._frontier[name] for name in names}
        while len(self._frontier) > 64:
            self._frontier.pop(next(iter(self._frontier)))
        return found

    def _fit(self, name: str, made: Array) -> NodeFit:
        if name in self.misshapen or name not in self.evidence:
            return _rough_fit(self.misshapen.get(name, self.values.get(name)), made)
        obs, e = self.dump.by_name[name][0], self.evidence[name]
        if made.shape != obs.array().shape:
            return NodeFit(np.full(len(ARITHMETICS), np.inf), np.inf, made.size)
        axis = token_axis(self.tower.graph, name)
        own = obs.array().astype(np.float64)
        with np.errstate(all="ignore"):
            error, expected = deviation(obs, made, axis, self.tower.keys.head_dim, None)
            if not np.isfinite(error).all():
                return NodeFit(np.full(len(ARITHMETICS), np.inf), np.inf, made.size)
            level = grown_noise(made, own, axis, e.noise_local, _UNITS)
            found = ratios(obs, error, expected, made, axis, level, STEP if len(e.segment) <= SHORT else RUN)
            size = float(np.sum((error + expected) ** 2)) + _TINY
            residual = float(np.sum(error**2)) / size
        before = self.before(name)
        if residual <= AMPLIFIED * before.residual:  # the mistake may have amplified the noise
            near = [residual <= (NEAR_UNITS * unit) ** 2 for unit in _UNITS]
            found = np.where(near, np.minimum(found, ACCEPT), found)
        return NodeFit(found, residual, error.size)

    def before(self, name: str) -> NodeFit:
        """A dumped node against the definition on its own inputs."""
        if name in self.misshapen:
            return NodeFit(np.full(len(ARITHMETICS), 1e6), 1.0, self.misshapen[name].size)
        e = self.evidence[name]
        value = self.values[name].astype(np.float64)
        share = float(np.sum(value**2)) + _TINY
        expected = max(e.own_nmse, 0.0) * share  # of the definition's size, which is about the dump's
        return NodeFit(np.asarray(e.local), expected / share, value.size)


def _rough_fit(found: Array | None, made: Array) -> NodeFit:
    """Values whose noise was not simulated: float32's after some hundred operations."""
    if found is None or found.size != made.size or len(found) != len(made):
        return NodeFit(np.full(len(ARITHMETICS), np.inf), np.inf, made.size)
    error = found.reshape(made.shape).astype(np.float64) - made
    size = float(np.sum(made.astype(np.float64) ** 2)) + _TINY
    rows = by_rows(error, 0)
    limit = np.maximum(NEAR_UNITS * _UNITS, NEAR_UNITS * UNIT["f32"])
    share = float(rms_of_rows(rows).max()) / (np.sqrt(size / made.size) + _TINY)
    return NodeFit(share / limit, float(np.sum(error**2)) / size, error.size)


def _equal(a: Array, b: Array | None) -> bool:
    return b is not None and (a is b or (a.shape == b.shape and bool(np.array_equal(a, b))))
