"""Find the experts of a layer that two steps of a walk compute: gate and up, then down with the weighted sum.

The pattern is that of models/blocks.py (`experts`), from the sum backwards to the router's logits. Layers that do not
fit it are left to separate launches. A pure function of the graph and its plan. Touch this module when walks learn
another way to choose experts.
"""

from __future__ import annotations

from collections.abc import Mapping

from assay.engines.cuda.abi.enumerations import ACTS, CHOSEN, MOST_EXPERTS
from assay.engines.cuda.context import CompileContext, FoldedExperts
from assay.engines.cuda.steps import ExpertChoice
from assay.engines.plan.fuse import Single
from assay.graph import Node


class _Misfit(Exception):
    """The nodes are not what a walk computes."""


def find_experts(c: CompileContext) -> Mapping[str, FoldedExperts]:
    """By the last node that the steps compute."""
    singles = {g.node.name: g.node for g in c.plan.groups if isinstance(g, Single)}
    found = {}
    for total in (n for n in singles.values() if n.op == "expert_sum"):
        try:
            folded = _Match(c, singles).fold(total)
        except _Misfit:
            continue
        found[folded.last] = folded
    return found


class _Match:
    """The nodes of one layer, while they are found."""

    def __init__(self, c: CompileContext, singles: Mapping[str, Node]) -> None:
        self.c, self.singles = c, singles
        self.names: set[str] = set()

    def fold(self, total: Node) -> FoldedExperts:
        weighted = self.take(self.take(total.name, "expert_sum").inputs[0], "expert_scale")
        down, down_bias = self.product(weighted.inputs[0])
        best = down.inputs[1]
        gating = self.take(down.inputs[0], "glu", "glu_oai", "act")
        parts = tuple(self.product(name) for name in gating.inputs)
        xs = {node.inputs[0] for node, _ in parts}
        if len(xs) > 1 or {node.inputs[1] for node, _ in parts} != {best}:
            raise _Misfit
        choice, logits = self.choice(best, weighted.inputs[1])
        last, residual, addend, gate = self.sums(total)
        self.check(last, down, [node for node, _ in parts], gating)
        return FoldedExperts(
            frozenset(self.names),
            last,
            xs.pop(),
            logits,
            choice,
            parts,
            gating,
            (down, down_bias),
            residual,
            addend,
            gate,
        )

    def take(self, name: str, *ops: str) -> Node:
        """The node of this name, which the steps compute, if it has one of these operations."""
        node = self.singles.get(name)
        if node is None or node.op not in ops or name in self.c.keep:
            raise _Misfit
        self.names.add(name)
        return node

    def is_a(self, name: str, op: str) -> bool:
        return name in self.singles and self.singles[name].op == op

    def product(self, name: str) -> tuple[Node, str]:
        """A product with the experts' matrices, and the weights of its bias."""
        bias = ""
        if self.is_a(name, "expert_bias"):
            node = self.take(name, "expert_bias")
            name, bias = node.inputs[0], node.weights[0]
        return self.take(name, "expert_linear"), bias

    def choice(self, best: str, weights: str) -> tuple[ExpertChoice, str]:
        """How experts are chosen and weighed, and the router's logits."""
        scale, least, softmax_chosen = 1.0, None, False
        if self.is_a(weights, "scale"):
            node = self.take(weights, "scale")
            scale, weights = float(node.attr("factor")), node.inputs[0]
        if self.is_a(weights, "div"):
            weights, total = self.take(weights, "div").inputs
            floor = self.take(total, "clamp_min")
            least = float(floor.attr("lo"))
            if self.take(floor.inputs[0], "row_sum").inputs[0] != weights:
                raise _Misfit
        if self.is_a(weights, "softmax"):
            softmax_chosen, weights = True, self.take(weights, "softmax").inputs[0]
        gather, topk = self.take(weights, "gather"), self.take(best, "topk")
        if gather.inputs[1] != best:
            raise _Misfit
        probs, key = gather.inputs[0], self.take(topk.inputs[0], "argsort").inputs[0]
        routing = next((op for op in ("softmax", "sigmoid") if self.is_a(probs, op)), "none")
        logits = probs if routing == "none" else self.take(probs, routing).inputs[0]
        bias = ""
        if key not in (probs, logits):
            node = self.take(key, "bias")
            key, bias = node.inputs[0], node.weights[0]
        if key not in (probs, logits):
            raise _Misfit
        by_logits = key != probs
        used = int(topk.attr("k"))
        return ExpertChoice(used, routing, by_logits, bias, softmax_chosen, least, scale), logits

    def sums(self, total: Node) -> tuple[str, str, str, str]:
        """The last node, the residual, a row that is added before it, and its gate: of one token that is a shared
        expert, whose products then come before those of the chosen experts."""
        c, add = self.c, self.add_behind(total.name)
        outer = self.add_behind(add.name) if add and c.shape.tokens == 1 else None
        if add and outer:
            addend, x = (next(n for n in a.inputs if n != b.name) for a, b in ((add, total), (outer, add)))
            if c.graph.order.get(x, -1) < c.graph.order[total.name] < c.graph.order.get(addend, -1):
                self.names |= {add.name, outer.name}
                return outer.name, x, *self.gated_row(addend)
        return *self.residual(total), "", ""

    def add_behind(self, name: str) -> Node | None:
        """The add of two values that alone reads this one."""
        readers = list(self.c.graph.users.get(name, ()))
        add = self.singles.get(readers[0]) if len(readers) == 1 else None
        return add if add and add.op == "add" and len(set(add.inputs)) == 2 and name not in self.c.keep else None

    def gated_row(self, name: str) -> tuple[str, str]:
        """A row and the value whose sigmoid multiplies it, if the row is such a product."""
        mul = self.singles.get(name)
        if mul is None or mul.op != "mul" or self.c.width(mul.inputs[1]) != 1 or name in self.c.keep:
            return name, ""
        gate = self.singles.get(mul.inputs[1])
        alone = gate and all(len(self.c.graph.users.get(n, ())) == 1 for n in (mul.name, gate.name))
        if not gate or gate.op != "sigmoid" or not alone or gate.name in self.c.keep:
            return name, ""
        self.names |= {mul.name, gate.name}
        return mul.inputs[0], gate.inputs[0]

    def residual(self, total: Node) -> tuple[str, str]:
        """The last node, and the other operand of the add that alone reads the sum."""
        readers, order = list(self.c.graph.users.get(total.name, ())), self.c.graph.order
        add = self.singles.get(readers[0]) if len(readers) == 1 else None
        if add is None or add.op != "add" or len(set(add.inputs)) != 2:
            return total.name, ""
        other = next(name for name in add.inputs if name != total.name)
        if order.get(other, -1) > order[total.name]:
            return total.name, ""
        self.names.add(add.name)
        return add.name, other

    def check(self, last: str, down: Node, parts: list[Node], gating: Node) -> None:
        """Raise if another node reads a value that no step stores, or if a kernel lacks what is needed."""
        c, tensors = self.c, self.c.tensors
        if any(not set(c.graph.users.get(name, ())) <= self.names for name in self.names - {last}):
            raise _Misfit
        formats = [tensors.layout(node.weights[0]) for node in (*parts, down)]
        shapes = {tensors.file.tensors[node.weights[0]].shape for node in parts}
        count, rows, _ = tensors.file.tensors[parts[0].weights[0]].shape
        same = len(shapes) == 1 and len({form.name for form in formats[:-1]}) == 1
        if not same or any(form.floats for form in formats) or rows % 8 or count > MOST_EXPERTS:
            raise _Misfit
        if gating.op != "glu_oai" and str(gating.attr("act")) not in ACTS:
            raise _Misfit
        if c.width(self.names_of_choice()) > CHOSEN:
            raise _Misfit

    def names_of_choice(self) -> str:
        return next(name for name in self.names if self.singles[name].op == "topk")
