"""Tensors as a faulty reader would decode them: helpers that the edits of decoders and layouts share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from assay.engines.reference.functions import linear
from assay.gguf import by_name, codecs
from assay.gguf.codecs.codec import Bytes, Floats
from assay.graph import Node
from assay.verify.faults.fault import Array, Change, Context, with_weight

PREVIEW = 48  # features computed first, to see whether a guess is worth decoding the whole tensor


def tensor_type(c: Context, name: str) -> str:
    return c.model.file.tensors[name].type.name


def read(c: Context, name: str, rows: slice, codec: str, *, shift: int = 0, stride: int = 0) -> Floats:
    """Some rows of the tensor, decoded with another type, place or block size."""
    info = c.model.file.tensors[name]
    start, stop, _ = rows.indices(info.shape[0])
    shape = (stop - start, *info.shape[1:])
    count, before = int(np.prod(shape)), first_element(c, name, rows)
    data = c.model.file.parts[info.part].data
    size, width = sizes(codec)
    step, inside = stride or size, before % width
    begin = info.offset + shift + before // width * step
    n_blocks = -(-(inside + count) // width)
    length = (n_blocks - 1) * step + size
    raw = np.zeros(length, np.uint8)
    lo, hi = max(0, begin), min(len(data), begin + length)
    if lo < hi:
        raw[lo - begin : hi - begin] = data[lo:hi]
    blocks = raw[: n_blocks * size].reshape(n_blocks, size) if step == size else _strided(raw, n_blocks, step, size)
    with np.errstate(all="ignore"):
        return codecs.decode(codec, np.ascontiguousarray(blocks)).reshape(-1)[inside : inside + count].reshape(shape)


def first_element(c: Context, name: str, rows: slice) -> int:
    """The number of elements of the tensor before these rows."""
    shape = c.model.file.tensors[name].shape
    return int(rows.indices(shape[0])[0] * np.prod(shape[1:]))


def _strided(raw: Bytes, n_blocks: int, step: int, size: int) -> Bytes:
    return np.lib.stride_tricks.as_strided(raw, (n_blocks, size), (step, 1), writeable=False).copy()


def sizes(codec: str) -> tuple[int, int]:
    kind = by_name(codec)
    return kind.type_size, kind.block_size


Make = Callable[[str, slice], Array]  # a tensor's rows, as the faulty reader sees them


def with_tensor(node: Node, make: Make) -> Change | None:
    if not node.weights:
        return None
    name = node.weights[0]
    if node.op == "embed":
        return Change(replace(node, weights=()), lambda ids: _looked_up(make, name, ids))
    change = with_weight(node, lambda: make(name, slice(None)))
    if node.op != "linear":
        return change

    def first(x: Array) -> Array:
        with np.errstate(all="ignore"):
            return linear(x, make(name, slice(0, PREVIEW)).astype(x.dtype))

    return replace(change, preview=first)


def _looked_up(make: Make, name: str, ids: Array) -> Array:
    """Rows of a table, of which no others are decoded."""
    own, each = np.unique(ids, return_inverse=True)
    rows = np.concatenate([make(name, slice(int(i), int(i) + 1)) for i in own])
    return np.asarray(rows[each.reshape(-1)], np.float64)


def quantised(c: Context, node: Node) -> bool:
    return bool(node.weights) and tensor_type(c, node.weights[0]) in codecs.CODECS


def decoded(c: Context, name: str, rows: slice) -> Array:
    return codecs.decode(c.model.file.tensors[name].type, c.model.file.raw(name)[rows])
