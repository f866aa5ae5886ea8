"""Edits of faults that WGSL invites: dispatches, barriers, and the layout of buffers.

Other faults of such engines have rows of their own: `f16-act-overflow`, `rope-inplace-alias` (one buffer is read and
written in one pass) and `w-transposed` (row-major taken for column-major). Touch this module for a mistake that comes
from WebGPU and not from the model.
"""

from __future__ import annotations

import numpy as np

from assay.graph import Node
from assay.verify.faults.block_edits import over_features, rms
from assay.verify.faults.fault import Array, Change, Context, plant, standard


def _width(c: Context, node: Node) -> int:
    """Values of a row of the node; 0 if the model does not fix it."""
    last = c.model.graph.shapes[node.name][-1] if node.name in c.model.graph.shapes else 0
    return last if isinstance(last, int) else 0


# -- wgsl-tail: a dispatch of n / W workgroups leaves the last n % W values of a row as the buffer was -------------


def _tail(size: int, op: str) -> None:
    @plant("wgsl-tail", f"the last n % {size} values of a row are 0", op=op)
    def edit(c: Context, node: Node, p: float) -> Change | None:
        own, n = standard(node), _width(c, node)

        def run(*operands: Array) -> Array:
            value = np.array(own(*operands))
            value[..., n - n % size :] = 0
            return value

        return Change(node, run) if n > size and n % size else None


for _size in (64, 128, 256, 512):
    for _op in ("linear", "glu", "rms_norm"):
        _tail(_size, _op)


# -- wgsl-barrier: the sums of a workgroup are added before the other subgroups have written theirs ------------------
# Subgroups have 32 or 64 invocations on most GPUs, 8 or 16 on Intel's, 4 or 8 on adapters in software. Either one
# invocation adds for all, or each adds for itself and finds its own subgroup's sums alone (observed in SwiftShader).


def _barrier(threads: int, seen: int) -> None:
    label = f"the sum has the columns of {seen} of {threads} invocations"

    @plant("wgsl-barrier", label, op="rms_norm", weighted=True, when=over_features)
    def edit(c: Context, node: Node, p: float) -> Change | None:
        eps = node.attr("eps")

        def run(x: Array, w: Array) -> Array:
            part = np.where(np.arange(x.shape[-1]) % threads < seen, x, 0)
            return np.asarray(x / rms(part, eps) * w)

        return Change(node, run) if _width(c, node) > seen else None


def _barrier_each(threads: int, size: int) -> None:
    label = f"each {size} of {threads} invocations have their own sums alone"

    @plant("wgsl-barrier", label, op="rms_norm", weighted=True, when=over_features)
    def edit(c: Context, node: Node, p: float) -> Change | None:
        eps = node.attr("eps")

        def run(x: Array, w: Array) -> Array:
            n = x.shape[-1]
            group = np.arange(n) % threads // size
            sums = np.stack([(x * x)[..., group == g].sum(axis=-1) for g in range(threads // size)], axis=-1)
            return np.asarray(x / np.sqrt(sums[..., group] / n + eps) * w)

        return Change(node, run) if _width(c, node) > size else None


for _threads in (64, 128, 256):
    for _size in (4, 8, 16, 32, 64):
        if _size < _threads:
            _barrier(_threads, _size)
            _barrier_each(_threads, _size)


# -- wgsl-stride: packed floats are read as an array whose elements are 16 bytes apart -------------------------------


def _strided(label: str, each: int, clamped: bool) -> None:
    """Beyond the buffer a read gives 0, or, where the browser clamps indices, a part of the last element."""

    @plant("wgsl-stride", label, op="rms_norm", weighted=True, when=over_features)
    def edit(c: Context, node: Node, p: float) -> Change | None:
        eps = node.attr("eps")

        def run(x: Array, w: Array) -> Array:
            i = np.arange(len(w))
            last = len(w) // 4 - 1
            element = np.minimum(i // each, last) if clamped else i // each
            at = element * 4 + i % each
            read = np.where(at < len(w), w[np.minimum(at, len(w) - 1)], 0)
            return np.asarray(x / rms(x, eps) * read)

        return Change(node, run)


for _label, _each in (("array<vec3<f32>>", 3), ("the first parts of array<vec4<f32>>", 1)):
    _strided(f"the weight read as {_label}", _each, False)
    _strided(f"the weight read as {_label}, indices clamped", _each, True)


# -- wgsl-uniform: a field of a uniform struct lies elsewhere than the host wrote it ---------------------------------


@plant("wgsl-uniform", "the scale of scores is read from padding: 0", op="attn_softmax")
def scale_of_padding(c: Context, node: Node, p: float) -> Change | None:
    return Change(node.with_attrs(scale=0.0)) if node.attr("scale") else None


@plant("wgsl-uniform", "the scale of scores is the epsilon beside it", op="attn_softmax")
def scale_of_epsilon(c: Context, node: Node, p: float) -> Change | None:
    return Change(node.with_attrs(scale=c.hp.eps)) if node.attr("scale") else None
