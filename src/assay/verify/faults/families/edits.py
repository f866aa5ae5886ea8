"""Edits that several mistakes share: a step left out, other attributes, another layer's node."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from assay.graph import Node, join
from assay.models.hparams import Layer
from assay.verify.faults.fault import Change, Context, layer, plant


def at(fault: str, label: str, edit: Callable[[Context, Node], Change | None], **where: Any) -> None:
    """The edit at every node that `where` selects (`plant`)."""
    plant(fault, label, **where)(lambda c, node, p: edit(c, node))


def passed_through(c: Context, node: Node) -> Change:
    """The step left out: its first operand is its result."""
    return Change(node, lambda x, *rest: x)


def skipped(fault: str, label: str, *roles: str, op: str | tuple[str, ...] = ()) -> None:
    """A step left out: its first operand passes through."""
    at(fault, label, passed_through, op=op, roles=roles)


def attributes(fault: str, label: str, op: str, attrs: Callable[[Context, Node], dict[str, Any] | None]) -> None:
    """The node with other attributes; None where they do not apply or change nothing."""

    def edit(c: Context, node: Node) -> Change | None:
        new = attrs(c, node)
        if not new or all(node.attr(key) == value for key, value in new.items()):
            return None
        return Change(node.with_attrs(**new))

    at(fault, label, edit, op=op)


def row(c: Context, node: Node) -> Layer | None:
    """The hyper-parameters of the node's layer."""
    i = layer(node)
    return None if i is None or i >= len(c.hp.layers) else c.hp.layers[i]


def is_local(one: Layer | None) -> bool:
    return one is not None and bool(one.window or one.chunk)


def another(c: Context, node: Node, wanted: Callable[[Layer], bool], name: str) -> Node | None:
    """The first node of that role in a layer of the wanted kind, other than the node's own."""
    for i, one in enumerate(c.hp.layers):
        found = c.model.graph.by_name.get(join(name, i))
        if i != layer(node) and wanted(one) and found is not None:
            return found
    return None
