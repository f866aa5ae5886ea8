"""Edits of stage `gguf parsing`: a tensor read as another block type, at another place, or in another byte order.

A block type that is decoded wrongly under its right name is an edit of `decoders.py`.
"""

from __future__ import annotations

import numpy as np

from assay.gguf import codecs
from assay.graph import Node
from assay.verify.faults.fault import Array, Change, Context, Search, plant
from assay.verify.faults.tensors import decoded, first_element, quantised, read, sizes, tensor_type, with_tensor

_TYPES = ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "Q8_K")


def _as_type(other: str) -> None:
    @plant("gguf-type-enum", f"the bytes decoded as {other}")
    def edit(c: Context, node: Node, p: float) -> Change | None:
        if not quantised(c, node) or tensor_type(c, node.weights[0]) == other:
            return None
        return with_tensor(node, lambda name, rows: read(c, name, rows, other))


for _other in _TYPES:
    _as_type(_other)


@plant(
    "gguf-block-bytes",
    "blocks {p} bytes too far apart",
    Search(-48, 64, (4, 2, -4, -2, -1, -12, -6, 30), False, True, 113, 0),
)
def block_bytes(c: Context, node: Node, p: float) -> Change | None:
    if not quantised(c, node):
        return None
    kind = tensor_type(c, node.weights[0])
    stride = sizes(kind)[0] + int(p)
    return with_tensor(node, lambda name, rows: read(c, name, rows, kind, stride=stride)) if stride > 8 else None


@plant("gguf-data-align", "the data begin {p} bytes off", Search(-64, 64, (-32, 32, -16, 16), False, True, 129, 0))
def data_align(c: Context, node: Node, p: float) -> Change | None:
    return with_tensor(node, lambda name, rows: read(c, name, rows, tensor_type(c, name), shift=int(p)))


def _data_start(c: Context, name: str) -> int:
    part = c.model.file.tensors[name].part
    return min(t.offset for t in c.model.file.tensors.values() if t.part == part)


@plant("gguf-offset-base", "the start of the data not added")
def offset_omitted(c: Context, node: Node, p: float) -> Change | None:
    return with_tensor(node, lambda n, rows: read(c, n, rows, tensor_type(c, n), shift=-_data_start(c, n)))


@plant("gguf-offset-base", "the start of the data added twice")
def offset_twice(c: Context, node: Node, p: float) -> Change | None:
    return with_tensor(node, lambda n, rows: read(c, n, rows, tensor_type(c, n), shift=_data_start(c, n)))


def _zero_after(c: Context, name: str, rows: slice, per_row: bool) -> Array:
    value = decoded(c, name, rows).copy()
    block = max(32, c.model.file.tensors[name].type.block_size)
    if per_row:
        value[..., block:] = 0
    else:
        value.reshape(-1)[max(0, block - first_element(c, name, rows)) :] = 0
    return value


@plant("gguf-first-block-only", "only the first block of the tensor decoded")
def first_block(c: Context, node: Node, p: float) -> Change | None:
    return with_tensor(node, lambda n, rows: _zero_after(c, n, rows, False)) if quantised(c, node) else None


@plant("gguf-first-block-only", "only the first block of each row decoded")
def first_block_of_rows(c: Context, node: Node, p: float) -> Change | None:
    return with_tensor(node, lambda n, rows: _zero_after(c, n, rows, True)) if quantised(c, node) else None


@plant("gguf-bf16-raw", "bytes taken for numbers")
def raw_bytes(c: Context, node: Node, p: float) -> Change | None:
    if not node.weights or tensor_type(c, node.weights[0]) not in ("F16", "BF16"):
        return None
    width = c.model.file.tensors[node.weights[0]].shape[-1]
    return with_tensor(node, lambda n, rows: c.model.file.raw(n)[rows][..., :width].astype(np.float32))


@plant("gguf-endian", "the fields' bytes in the other order")
def endian_fields(c: Context, node: Node, p: float) -> Change | None:
    if not node.weights:
        return None
    info = c.model.file.tensors[node.weights[0]]
    if info.type.layout is None:
        return None
    layout = np.dtype(info.type.layout)

    def swapped(name: str, rows: slice) -> Array:
        raw = np.ascontiguousarray(c.model.file.raw(name)[rows])
        return codecs.decode(info.type, raw.view(layout).byteswap().view(np.uint8))

    return with_tensor(node, swapped)


@plant("gguf-endian", "whole blocks turned round")
def endian_blocks(c: Context, node: Node, p: float) -> Change | None:
    if not quantised(c, node):
        return None
    kind = tensor_type(c, node.weights[0])

    def turned(name: str, rows: slice) -> Array:
        raw = c.model.file.raw(name)[rows]
        return codecs.decode(kind, np.ascontiguousarray(raw.reshape(-1, sizes(kind)[0])[:, ::-1]).reshape(raw.shape))

    return with_tensor(node, turned)


def _missing(label: str, stem: str) -> None:
    @plant("gguf-missing-tensor", label)
    def edit(c: Context, node: Node, p: float) -> Change | None:
        if not node.weights or not (stem == "" or f".{stem}." in f".{node.weights[0]}"):
            return None
        return with_tensor(node, lambda n, rows: np.zeros_like(decoded(c, n, rows)))


_missing("the weight is all zeros", "")
for _stem in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"):
    _missing(f"{_stem} is all zeros", _stem)
