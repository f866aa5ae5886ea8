"""Find gated delta rules that two steps of a walk compute (native/cuda/walk_delta.h), with the nodes around them.

The pattern is that of models/qwen35.py, between the products of a layer: convolution and activation, slices for q, k
and v, their lengths, decay and beta, the rule; then the norm of its heads, times an activated gate. Layers that do not
fit are left to single steps. A pure function of the graph and its plan. Touch this module when such layers differ.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from assay.engines.cuda.abi.enumerations import ACTS, DELTA_CHANNELS, DELTA_TAPS
from assay.engines.cuda.context import CompileContext, FoldedDelta
from assay.engines.plan.fuse import Single
from assay.graph import Node


class _Misfit(Exception):
    """The nodes are not what the two steps compute."""


def find_deltas(c: CompileContext) -> Mapping[str, FoldedDelta]:
    """By the last node that the steps compute."""
    singles = {g.node.name: g.node for g in c.plan.groups if isinstance(g, Single)}
    found = {}
    for rule in (n for n in singles.values() if n.op == "delta_rule"):
        try:
            folded = _Match(c, singles).fold(rule)
        except _Misfit:
            continue
        found[folded.last] = folded
    return found


class _Match:
    """The nodes of one layer, while they are found."""

    def __init__(self, c: CompileContext, singles: Mapping[str, Node]) -> None:
        self.c, self.singles = c, singles
        self.names: set[str] = set()

    def fold(self, rule: Node) -> FoldedDelta:
        self.take(rule.name, "delta_rule")
        q, k = (self.take(name, "l2_norm") for name in rule.inputs[:2])
        slices = [self.take(name, "slice") for name in (q.inputs[0], k.inputs[0], rule.inputs[2])]
        acts = [self.take(n.inputs[0], "act") for n in slices]
        conv = self.take(acts[0].inputs[0], "causal_conv")
        decay, beta = self.take(rule.inputs[3], "mul_weight"), self.take(rule.inputs[4], "sigmoid")
        softplus = self.take(decay.inputs[0], "softplus")
        norm = self.reader(rule.name, "rms_norm")
        product = self.reader(norm.name, "mul")
        gating = self.take(next((n for n in product.inputs if n != norm.name), norm.name), "act")
        self.check_sizes(rule, (q, k), slices, conv, norm)
        self.check(acts, gating, product)
        return FoldedDelta(
            frozenset(self.names), product.name, conv, acts[0], softplus.inputs[0], beta.inputs[0], decay, q, rule,
            norm, gating,
        )  # fmt: skip

    def take(self, name: str, op: str) -> Node:
        """The node of this name, which the steps compute, if it has this operation."""
        node = self.singles.get(name)
        if node is None or node.op != op or name in self.c.keep:
            raise _Misfit
        self.names.add(name)
        return node

    def readers(self, name: str) -> set[str]:
        """Nodes that read a value; those that show a state read none in a walk."""
        users = self.c.graph.users.get(name, ())
        return {n for n in users if not self.c.graph[n].op.startswith("state_")}

    def reader(self, name: str, op: str) -> Node:
        readers = self.readers(name)
        if len(readers) != 1:
            raise _Misfit
        return self.take(readers.pop(), op)

    def check_sizes(self, rule: Node, norms: tuple[Node, Node], slices: list[Node], conv: Node, norm: Node) -> None:
        c, heads, n = self.c, int(rule.attr("n_head")), int(rule.attr("state")[-1])
        groups, attrs = int(rule.all_attrs().get("n_head_k") or 1), [x.all_attrs() for x in norms]
        bounds = [(int(s.attr("start")), int(s.attr("stop"))) for s in slices]
        keys, channels, before = groups * n, *map(int, conv.attr("state"))
        fits = (
            c.width(rule.name) == heads * n == channels - 2 * keys,
            heads % groups == 0 and n == DELTA_CHANNELS and before + 1 == DELTA_TAPS,
            bounds == [(0, keys), (keys, 2 * keys), (2 * keys, channels)],
            not any(s.all_attrs().get("n_head") for s in slices),
            all(int(a["n_head"]) == groups for a in attrs) and attrs[0] == attrs[1],
            c.width(rule.inputs[3]) == c.width(rule.inputs[4]) == heads,
            norm.attr("n_head") == heads and self.size(norm) == n,
        )
        if not all(fits):
            raise _Misfit

    def size(self, node: Node) -> int:
        return math.prod(int(n) for w in node.weights for n in self.c.graph.weights[w]) if node.weights else 0

    def check(self, acts: list[Node], gating: Node, product: Node) -> None:
        c, inner = self.c, self.names - {product.name}
        if len({n.name for n in acts}) > 1 or not {str(n.attr("act")) for n in (acts[0], gating)} <= {*ACTS}:
            raise _Misfit
        if any(not self.readers(name) <= self.names for name in inner) or not c.read_as("q8", product.name):
            raise _Misfit
