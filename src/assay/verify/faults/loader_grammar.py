"""Generators of the grammar for loaders: a layer that runs on another layer's tensors.

a rule for all layers    names that are compared by their beginning (blk.1 also fits blk.19) or sorted as text, an
                         index off by one, a reference to the same layer in every entry of a list
one layer, or two        a layer has the tensors of another one; two layers have each other's
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from assay.graph import Node
from assay.verify.faults.description import LAYERS, Description, placed
from assay.verify.faults.fault import Change, Context, Edit, layer

MOST_LAYERS = 128  # of which one may have another one's tensors
MOST_WEIGHTS = 1 << 24  # of these nodes in a layer, if each other layer is tried for it: each trial decodes them
MOST_SAID = 3  # layers that are named for a rule


def other_layers(c: Context, nodes: Sequence[Node]) -> Iterator[Description]:
    """Every way in which a layer of these nodes may have got another layer's tensors."""
    here = sorted({at for node in nodes if node.weights and (at := layer(node)) is not None})
    order = _order_in_file(c)
    if not here or len(order) < 2:
        return
    for rule, source in _RULES.items():
        moved = {at: to for at in sorted(order) if (to := source(at, order)) != at and to in order}
        if set(here) & moved.keys():
            some = ", ".join(f"layer {at} those of layer {to}" for at, to in list(moved.items())[:MOST_SAID])
            more = ", …" if len(moved) > MOST_SAID else ""
            yield LAYERS, placed(f"{rule}: {some}{more}", _reading(moved), ())
    for at in here:
        own = {w for node in nodes if layer(node) == at for w in node.weights}
        if sum(math.prod(c.model.graph.weights[w]) for w in own) > MOST_WEIGHTS:
            continue
        for to in (to for to in sorted(order)[:MOST_LAYERS] if to != at):
            yield LAYERS, placed(f"layer {at} has the tensors of layer {to}", _reading({at: to}), ())
            if to > at:
                both = {at: to, to: at}
                yield LAYERS, placed(f"layers {at} and {to} have each other's tensors", _reading(both), ())


def _order_in_file(c: Context) -> list[int]:
    """The layers, as their tensors follow each other in the file."""
    numbers = (name.split(".")[1] for name in c.model.file.tensors if name.startswith("blk."))
    last = len(c.model.hparams.layers)
    return list(dict.fromkeys(i for number in numbers if number.isdecimal() and (i := int(number)) < last))


def _alike(at: int, order: Sequence[int]) -> list[int]:
    """The layers whose names begin as that of `at` does, in the order of the file."""
    return [i for i in order if str(i).startswith(str(at))]


# The layer whose tensors layer `at` gets; `order` has the layers as in the file.
_RULES: dict[str, Callable[[int, Sequence[int]], int]] = {
    "the beginning of a name is compared, and the last one found is taken": lambda at, order: _alike(at, order)[-1],
    "the beginning of a name is compared, and the first one found is taken": lambda at, order: _alike(at, order)[0],
    "the layers are sorted by their names as text": lambda at, order: sorted(order, key=str)[at],
    "every layer takes the tensors of the layer after": lambda at, order: at + 1,
    "every layer takes the tensors of the layer before": lambda at, order: at - 1,
    "the layers are in reverse order": lambda at, order: len(order) - 1 - at,
    "all layers have the tensors of the first": lambda at, order: 0,
    "all layers have the tensors of the last": lambda at, order: len(order) - 1,
}


def _reading(moved: Mapping[int, int]) -> Edit:
    """The nodes of a layer with the tensors of another one."""

    def edit(c: Context, node: Node, p: float) -> Change | None:
        at = layer(node)
        if at is None or at not in moved or not node.weights:
            return None
        mine, other = f"blk.{at}.", f"blk.{moved[at]}."
        weights = tuple(name.replace(mine, other) for name in node.weights)
        return Change(replace(node, weights=weights)) if weights != node.weights else None

    return edit
