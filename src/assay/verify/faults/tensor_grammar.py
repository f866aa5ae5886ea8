"""Generators of the grammar for tensors: a node reads a tensor of another role or another layer.

norms             another norm's weight, bias, or both; each other's
vectors           read one value or one head too far on or too early
matrices, rows    of the layer before or after, of one layer in all, of any layer in one, of another role; each other's
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from assay.graph import Node, Trait
from assay.verify.faults.description import INDEX, NORMS, OPERAND, Description, placed
from assay.verify.faults.fault import Change, Context, Edit, Variant, layer, role, standard

MOST_WEIGHTS = 1 << 24  # of a matrix that another layer's may replace: each trial decodes it
MOST_DECODED = 1 << 28  # weights of other layers that are decoded to try each of them in one layer


def in_layers(variant: Variant, first: int, last: int | None = None) -> Variant:
    """The same mistake from a layer on, or in some layers alone. Nodes of no layer, such as the head, are kept."""
    own = variant.where.when

    def when(c: Context, node: Node) -> bool:
        at = layer(node)
        inside = at is None or (first <= at and (last is None or at <= last))
        return inside and (own is None or own(c, node))

    return replace(variant, where=replace(variant.where, when=when))


def named(name: str) -> Callable[[Context, Node], bool]:
    return lambda c, node: node.name == name


def norm_weights(c: Context, nodes: Sequence[Node]) -> Iterator[Description]:
    """The tensors of another norm: of this layer, of its neighbours, of the last layer, of the head; of the same norm
    of any layer."""
    graph = c.model.graph
    norms = [node for node in graph if node.has(Trait.NORM) and node.weights]
    final = max((at for node in norms if (at := layer(node)) is not None), default=0)
    for node in nodes:
        if not node.has(Trait.NORM) or not node.weights:
            continue
        at = layer(node)
        near = {None, final} if at is None else {None, at - 1, at, at + 1}
        for other in norms:
            if (layer(other) in near or role(other) == role(node)) and other.weights[0] != node.weights[0]:
                whose = role(other) if layer(other) == at else other.name
                for words, some in _NORM_TENSORS.items() if len(node.weights) == len(other.weights) else ():
                    if some and len(node.weights) < 2:
                        continue
                    label = f"{role(node)} takes the {words} of {whose}"
                    found = placed(label, _weight(_relative(node, other), some), (node.op,), role(node))
                    if at is not None and layer(other) not in near:  # a wrong name, not a rule for all layers
                        found = replace(in_layers(found, at, at), label=f"{label}, in layer {at} alone")
                    yield NORMS, found
    for node in (n for n in nodes if n.has(Trait.NORM) and n.weights and layer(n) is not None):
        yield from _always(c, node, NORMS, "weight")


# Which of a norm's tensors are another one's: its weight, or weight and bias, or the bias alone.
_NORM_TENSORS: dict[str, tuple[int, ...]] = {"weight": (), "weight and bias": (0, 1), "bias": (1,)}


def exchanged_norms(c: Context, nodes: Sequence[Node]) -> Iterator[Description]:
    """Two norms of a layer that have each other's weights."""
    norms = [node for node in c.model.graph if node.has(Trait.NORM) and node.weights and layer(node) is not None]
    for node in (n for n in nodes if n in norms):
        for other in norms[norms.index(node) + 1 :]:
            shapes = {c.model.graph.weights[n.weights[0]] for n in (node, other)}
            if layer(other) == layer(node) and node.op == other.op and len(shapes) == 1:
                label = f"{role(node)} and {role(other)} have each other's weights"
                yield NORMS, placed(label, _each_other(node, other), (node.op,), role(node), role(other))


def _each_other(node: Node, other: Node) -> Edit:
    both = tuple(range(len(node.weights))) if len(node.weights) == len(other.weights) else ()
    to_other, to_node = _weight(_relative(node, other), both), _weight(_relative(other, node), both)
    return lambda c, n, p: (to_other if role(n) == role(node) else to_node)(c, n, p)


_VECTORS = frozenset({"bias", "mul_weight", "head_gain", "pos_row"})  # operations that read a tensor of a row


def _reads_tensor(c: Context, node: Node) -> str:
    """The kind of tensor that a node may read in place of its own: "matrix" or "vector"; empty for other nodes."""
    if not node.weights or math.prod(c.model.graph.weights[node.weights[0]]) > MOST_WEIGHTS:
        return ""
    return "matrix" if node.has(Trait.MATRIX) else "vector" if node.op in _VECTORS else ""


def tensors(c: Context, nodes: Sequence[Node]) -> Iterator[Description]:
    """The tensor of the layer before or after, of the first or the last, in all layers; that of any layer in one."""
    last = len(c.model.hparams.layers)
    decoded = last * sum(math.prod(c.model.graph.weights[n.weights[0]]) for n in nodes if n.has(Trait.MATRIX))
    for node in nodes:
        at, what = layer(node), _reads_tensor(c, node)
        for step in (-1, 1) if at is not None and what else ():
            label = f"{role(node)} takes the {what} of the layer {'after' if step > 0 else 'before'}"
            yield OPERAND, placed(label, _weight(_other_layer(step)), (node.op,), role(node))
        if at is None or not what:
            continue
        yield from _always(c, node, OPERAND, what)
        for to in (to for to in range(last) if to != at) if decoded <= MOST_DECODED else ():
            label = f"{role(node)} takes the {what} of layer {to}, in layer {at} alone"
            yield OPERAND, placed(label, _weight(_other_layer(to - at)), (node.op,), when=named(node.name))


def _always(c: Context, node: Node, fault: str, what: str) -> Iterator[Description]:
    """One layer's tensor in all layers: its number is written in a name, or a list is not advanced."""
    last = len(c.model.hparams.layers) - 1
    for to in dict.fromkeys((0, last)) if last > 1 else ():
        label = f"{role(node)} takes the {what} of layer {to} in every layer"
        every = _weight(lambda c, n, to=to: _moved(n.weights[0], layer(n) or 0, to))  # type: ignore[misc]
        yield fault, placed(label, every, (node.op,), role(node))


def exchanged_tensors(c: Context, nodes: Sequence[Node]) -> Iterator[Description]:
    """Another tensor of the same layer with the same shape: of another role, or both have each other's."""
    graph = c.model.graph
    for node in (n for n in nodes if layer(n) is not None):
        what = _reads_tensor(c, node)
        for other in graph if what else ():
            if layer(other) != layer(node) or other.op != node.op or not other.weights:
                continue
            if other.weights[0] == node.weights[0]:
                continue
            if graph.weights[other.weights[0]] != graph.weights[node.weights[0]]:
                continue
            label = f"{role(node)} takes the {what} of {role(other)}"
            yield OPERAND, placed(label, _weight(_relative(node, other)), (node.op,), role(node))
            both = f"{role(node)} and {role(other)} have each other's {_PLURAL[what]}"
            yield OPERAND, placed(both, _each_other(node, other), (node.op,), role(node), role(other))


def shifted_vectors(c: Context, nodes: Sequence[Node]) -> Iterator[Description]:
    """A norm's weight, or a bias, that is read one value or one head too far on or too early."""
    for node in nodes:
        shape = c.model.graph.weights[node.weights[0]] if node.weights else ()
        if len(shape) != 1 or shape[0] < 2 or not (node.has(Trait.NORM) or node.op in _VECTORS):
            continue
        head = int(c.at(node).hp.n_embd_head) if node.op == "bias" else 0
        for width, words in ((1, "value"), *(((head, "head"),) if 1 < head < shape[0] else ())):
            for step, which in ((width, "far on"), (-width, "early")):
                label = f"the vector of {role(node)} is read one {words} too {which}"
                yield INDEX, placed(label, _rolled(step), (node.op,), role(node))


def _rolled(step: int) -> Edit:
    def edit(c: Context, node: Node, p: float) -> Change | None:
        own, n = standard(node), len(node.inputs)
        return Change(node, lambda *v: own(*v[:n], np.roll(np.asarray(v[n]), -step), *v[n + 1 :]))

    return edit


_PLURAL = {"matrix": "matrices", "vector": "vectors"}


def _weight(name: Callable[[Context, Node], str], which: tuple[int, ...] = ()) -> Edit:
    """The first tensor of a node is that of this name; or the tensors at the places `which` are those beside it."""

    def edit(c: Context, node: Node, p: float) -> Change | None:
        other = name(c, node)
        if other == node.weights[0] or other not in c.model.file.tensors:
            return None
        if not which:
            return Change(replace(node, weights=(other, *node.weights[1:])))
        beside = next((n.weights for n in c.model.graph if n.op == node.op and n.weights[:1] == (other,)), ())
        if len(beside) != len(node.weights):
            return None
        return Change(
            replace(
                node,
                weights=tuple(
                    b if i in which else w for i, (w, b) in enumerate(zip(node.weights, beside, strict=True))
                ),
            )
        )

    return edit


def _relative(node: Node, other: Node) -> Callable[[Context, Node], str]:
    """The other norm's weight, as seen from any layer: it moves along where both are in a layer."""
    here, there = layer(node), layer(other)
    if here is None or there is None:
        return lambda c, n: other.weights[0]
    return lambda c, n: _moved(other.weights[0], there, (layer(n) or 0) + there - here)


def _other_layer(step: int) -> Callable[[Context, Node], str]:
    return lambda c, node: _moved(node.weights[0], layer(node) or 0, (layer(node) or 0) + step)


def _moved(tensor: str, at: int, to: int) -> str:
    return tensor.replace(f"blk.{at}.", f"blk.{to}.")


FIRST = (norm_weights, exchanged_norms)
GENERATORS = (tensors, exchanged_tensors, shifted_vectors)
