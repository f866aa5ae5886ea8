"""Generators of the grammar for blocks of quantised weights: a field that is another block's, in all blocks or some.

field     scale or minimum of a block, scales or minima of its parts
source    the block before, after, the first of the row; the row before, after; the tensor of a sibling; the next part
blocks    all of a row, or the last ones, which a loop over several at once leaves to another loop

A product shows the mistake in every row, so a few rows of the tensor rule it out (`Change.preview`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np

from assay.gguf import codecs
from assay.gguf.codecs.codec import Fields
from assay.graph import Node
from assay.verify.faults.buffer_grammar import rest
from assay.verify.faults.description import BLOCKS, Description, placed
from assay.verify.faults.fault import Array, Change, Context, Edit, layer, role
from assay.verify.faults.tensors import tensor_type, with_tensor

MOST_WEIGHTS = 1 << 24  # of a matrix that is tried: each trial decodes it
AT_ONCE = (2, 4, 8, 16)  # blocks that a loop takes at once; the rest is left to another loop
_NAMES = {
    "d": "scale", "m": "minimum", "dmin": "scale of its minima", "scales": "scales of its parts",
    "mins": "minima of its parts",
}  # fmt: skip
_OF_PARTS = ("scales", "mins")

# Of a field [rows, blocks, …]: what every block finds.
Source = Callable[[Array], Array]
_SOURCES: dict[str, Source] = {
    "of the block before": lambda f: np.concatenate([f[:, :1], f[:, :-1]], axis=1),
    "of the block after": lambda f: np.concatenate([f[:, 1:], f[:, -1:]], axis=1),
    "of the row's first block": lambda f: np.broadcast_to(f[:, :1], f.shape),
}
_PARTS: dict[str, Source] = {
    "of the next part": lambda f: np.roll(f, -1, axis=-1),
    "of the part before": lambda f: np.roll(f, 1, axis=-1),
    "of its first part": lambda f: np.broadcast_to(f[..., :1], f.shape),
}
_PAIRS = (("ffn_gate", "ffn_up"), ("ffn_up", "ffn_gate"), ("Kcur_proj", "Vcur"), ("Vcur", "Kcur_proj"))


def mixed_blocks(c: Context, nodes: Sequence[Node]) -> Iterator[Description]:
    """A field of another block: in the products of one role."""
    for node in nodes:
        kind = tensor_type(c, node.weights[0]) if node.op == "linear" and node.weights else ""
        if kind not in codecs.CODECS or math.prod(c.model.graph.weights[node.weights[0]]) > MOST_WEIGHTS:
            continue
        n = int(c.model.graph.weights[node.weights[0]][-1]) // codecs.CODECS[kind].type.block_size
        names = [name for name in _fields(kind) if name in _NAMES]
        for words, blocks in _places(n):
            for name in names:
                what = f"{words}of {role(node)} take the {_NAMES[name]}"
                for source, take in (_SOURCES if n > 1 else {}).items():
                    yield BLOCKS, placed(f"{what} {source}", _taking(name, take, blocks), ("linear",), role(node))
                for source, take in (_PARTS if name in _OF_PARTS else {}).items():
                    yield BLOCKS, placed(f"{what} {source}", _taking(name, take, blocks), ("linear",), role(node))
                for other in (b for a, b in _PAIRS if a == role(node)):
                    label = f"{what} of {other}"
                    yield BLOCKS, placed(label, _siblings(name, node, other, blocks), ("linear",), role(node))


def _fields(kind: str) -> Fields:
    """The fields of one block of a type."""
    codec = codecs.CODECS[kind]
    return dict(codec.unpack(np.zeros((1, codec.type.type_size), np.uint8)))


def _places(n: int) -> Iterator[tuple[str, slice]]:
    """All blocks of a row; the rest of a division by the blocks that a loop takes at once, each number once."""
    yield "the blocks ", slice(0, n)
    seen = {n}
    for k in AT_ONCE:
        first, end = rest(k, n)
        if 0 < end - first < n and end - first not in seen:
            seen.add(end - first)
            yield f"the last n % {k} of the n blocks of a row ", slice(first, end)


def _taking(name: str, take: Source, blocks: slice) -> Edit:
    def edit(c: Context, node: Node, p: float) -> Change | None:
        return _decoded(c, node, name, lambda mine, rows: take(mine), blocks)

    return edit


def _siblings(name: str, node: Node, other: str, blocks: slice) -> Edit:
    """The field of the tensor that another role of the layer has, if both have one shape and type."""

    def edit(c: Context, node: Node, p: float) -> Change | None:
        at = layer(node)
        there = c.model.graph.by_name.get(f"{other}-{at}")
        if there is None or not there.weights:
            return None
        tensors = c.model.file.tensors
        mine, theirs = tensors[node.weights[0]], tensors[there.weights[0]]
        if (mine.shape, mine.type) != (theirs.shape, theirs.type):
            return None
        return _decoded(c, node, name, partial(_field, c, there.weights[0], name), blocks)

    return edit


def _field(c: Context, tensor: str, name: str, mine: Array, rows: slice) -> Array:
    raw = c.model.file.raw(tensor)[rows]
    found = codecs.fields(tensor_type(c, tensor), raw)[name]
    return found.reshape(mine.shape)


def _decoded(c: Context, node: Node, name: str, take: Callable[[Array, slice], Array], blocks: slice) -> Change | None:
    kind = tensor_type(c, node.weights[0])
    if kind not in codecs.CODECS or name not in _fields(kind):
        return None
    codec = codecs.CODECS[kind]

    def make(tensor: str, rows: slice) -> Array:
        raw = c.model.file.raw(tensor)[rows]
        n = raw.shape[-1] // codec.type.type_size
        fields = dict(codec.unpack(raw.reshape(-1, codec.type.type_size)))
        mine = np.ascontiguousarray(fields[name]).reshape(-1, n, fields[name].shape[-1])
        changed = mine.copy()
        changed[:, blocks] = take(mine, rows)[:, blocks]
        fields[name] = changed.reshape(fields[name].shape)
        out = np.empty((len(fields[name]), codec.type.block_size), np.float32)
        with np.errstate(all="ignore"):
            codec.combine(fields, out)
        return out.reshape(*raw.shape[:-1], n * codec.type.block_size)

    return with_tensor(node, make)


GENERATORS = (mixed_blocks,)
