"""Generators of the grammar for parts of wider values: a node reads its part of the value before a step, not after it.

    x, B, C = split(act(conv(xBC)))     y = scan(x, B, C) + D x

An engine that keeps the wide buffer may take x for the last sum from before the convolution. Values that are no parts
are operands of the same shape, which `edit_grammar` exchanges.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from assay.graph import Node, Trait
from assay.verify.faults.description import OPERAND, Description, features, placed
from assay.verify.faults.fault import Array, Change, Context, Edit, layer, role, standard

MOST_STEPS = 4  # before a part is taken


def parts(c: Context, nodes: Sequence[Node]) -> Iterator[Description]:
    """The operands that are parts of a wider value, taken from an earlier form of it."""
    graph = c.model.graph
    for node in nodes:
        for k, name in enumerate(node.inputs):
            part = graph.by_name.get(name)
            if part is None or part.op != "slice" or layer(part) != layer(node):
                continue
            for n, earlier in enumerate(_before(c, part.inputs[0]), 1):
                label = f"{role(node)} reads {role(part)} from {role(earlier)}, not from {role(graph[part.inputs[0]])}"
                yield OPERAND, placed(label, _taken(k, n), (node.op,), role(node))


def _before(c: Context, name: str) -> list[Node]:
    """The values from which a value is computed step by step, as wide as it is."""
    graph, found = c.model.graph, list[Node]()
    node = graph.by_name.get(name)
    while node is not None and node.inputs and len(found) < MOST_STEPS:
        if not features(c, node.name) or node.has(Trait.PRODUCT):
            break
        earlier = graph.by_name.get(node.inputs[0])
        if earlier is None or features(c, earlier.name) != features(c, node.name) or layer(earlier) != layer(node):
            break
        found.append(earlier)
        node = earlier
    return found


def _taken(k: int, n: int) -> Edit:
    def edit(c: Context, node: Node, p: float) -> Change | None:
        part = c.model.graph.by_name.get(node.inputs[k]) if k < len(node.inputs) else None
        if part is None or part.op != "slice":
            return None
        values = _before(c, part.inputs[0])
        if len(values) < n:
            return None
        own, take, shape = standard(node), standard(part), c.model.graph.shapes[part.name][1:]

        def run(*operands: Array) -> Array:
            inputs = list(operands)
            inputs[k] = take(inputs[k].reshape(len(inputs[k]), -1)).reshape(len(inputs[k]), *shape)
            return own(*inputs)

        return Change(replace(node, inputs=(*node.inputs[:k], values[n - 1].name, *node.inputs[k + 1 :])), run)

    return edit


GENERATORS = (parts,)
