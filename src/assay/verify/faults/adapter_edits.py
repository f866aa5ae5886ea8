"""Edits of LoRA adapters, in the graph of a model with its adapters (`models/adapters.py`, `with_adapters`)."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from assay.graph import Node
from assay.verify.faults.fault import Array, Change, Context, plant

_OP = "add_adapter"


def _scaled(fault: str, label: str, factor: Callable[[Context, Node], float]) -> None:
    """The adapter's term multiplied by another factor."""

    def edit(c: Context, node: Node, p: float) -> Change | None:
        found = factor(c, node)
        return None if abs(found - 1) < 1e-9 else Change(node.with_attrs(factor=node.attr("factor") * found))

    plant(fault, label, op=_OP)(edit)


def _rank(c: Context, node: Node) -> int:
    return int(c.model.file.tensors[node.weights[0]].shape[0])


_scaled("lora-scale", "alpha / r left out", lambda c, node: 1 / node.attr("factor"))
_scaled("lora-scale", "alpha not divided by r", lambda c, node: float(_rank(c, node)))
_scaled("lora-scale", "1 / r without alpha", lambda c, node: 1 / (node.attr("factor") * _rank(c, node)))
_scaled("lora-scale", "alpha / sqrt(r)", lambda c, node: float(_rank(c, node)) ** 0.5)
_scaled("lora-scale", "the scale of the request left out", lambda c, node: 1 / node.attr("scale"))
_scaled("lora-twice", "the adapter's term twice", lambda c, node: 2.0)


@plant("lora-ignored", "the adapter not applied", op=_OP)
def ignored(c: Context, node: Node, p: float) -> Change | None:
    return Change(node, lambda a, x, A, B: a)


@plant("lora-a-b-swapped", "A and B swapped: the term's matrix transposed", op=_OP)
def swapped(c: Context, node: Node, p: float) -> Change | None:
    a, b = (c.model.file.tensors[name].shape for name in node.weights)
    if a[1] != b[0]:
        return None  # other sizes do not fit
    factor = node.attr("factor") * node.attr("scale")

    def run(base: Array, x: Array, A: Array, B: Array) -> Array:
        return np.asarray(base + (factor * (x.reshape(len(x), -1) @ B @ A)).reshape(base.shape))

    return Change(node, run)


@plant("lora-a-b-swapped", "B read as [r, n_out]", op=_OP)
def other_order(c: Context, node: Node, p: float) -> Change | None:
    factor = node.attr("factor") * node.attr("scale")

    def run(base: Array, x: Array, A: Array, B: Array) -> Array:
        term = x.reshape(len(x), -1) @ A.T @ B.reshape(B.shape[::-1])
        return np.asarray(base + (factor * term).reshape(base.shape))

    return Change(node, run)


def _weights(fault: str, label: str, other: Callable[[str], str]) -> None:
    """The pair of another matrix."""

    def edit(c: Context, node: Node, p: float) -> Change | None:
        found = tuple(map(other, node.weights))
        return None if found == node.weights else Change(replace(node, weights=found))

    plant(fault, label, op=_OP)(edit)


def _layer(number: Callable[[int], int]) -> Callable[[str], str]:
    return lambda name: re.sub(r"\bblk\.(\d+)\.", lambda match: f"blk.{number(int(match[1]))}.", name)


_weights("lora-wrong-layer", "the adapter of layer 0 in every layer", _layer(lambda i: 0))
_weights("lora-wrong-layer", "the adapter of the layer before", _layer(lambda i: i - 1))
_weights("lora-wrong-layer", "the adapter of the layer after", _layer(lambda i: i + 1))


def _exchanged(one: str, other: str) -> Callable[[str], str]:
    to = {one: other, other: one}
    return lambda name: re.sub(rf"\.({one}|{other})\.", lambda match: f".{to[match[1]]}.", name)


for _a, _b in (("attn_q", "attn_v"), ("attn_q", "attn_k"), ("attn_k", "attn_v"), ("attn_q", "attn_output"),
               ("ffn_gate", "ffn_up")):  # fmt: skip
    _weights("lora-wrong-projection", f"the adapters of {_a} and {_b} exchanged", _exchanged(_a, _b))
