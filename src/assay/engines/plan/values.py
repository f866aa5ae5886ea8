"""Facts about a graph's values that every compiled engine needs: widths, heads, rope tables, masks.

Pure functions of a graph, without memory or kernels. An engine's compiler asks here instead of reading shapes and
attributes itself. Touch this module when the graph's meaning of one of these changes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from assay.engines.reference.functions import alibi_slopes, rope_angles
from assay.errors import AssayError
from assay.graph import Graph, Node

# The one number that these operations take, by the attribute that holds it.
NUMBERS = {"scale": "factor", "softcap": "cap", "clamp_min": "lo"}


def row_width(graph: Graph, name: str) -> int:
    """Numbers in one row of a value: the product of its axes other than tokens and keys."""
    return math.prod(d for d in graph.shapes[name] if isinstance(d, int))


def heads_in_row(graph: Graph, name: str, n_head: int = 0) -> int:
    """Heads (or experts) in one row of a value: its own axis, or else the `n_head` that its reader cuts it into."""
    shape = graph.shapes[name]
    return int(shape[1]) if len(shape) == 3 else n_head or 1


@dataclass(frozen=True)
class RopeTable:
    """The cosines and sines that a rope node multiplies by: equal tables are computed once for all nodes."""

    frequencies: tuple[float, ...]  # radians per position, one for each rotated pair
    magnitude: float
    positions: str  # the graph input that gives each row's position
    axes: tuple[int, ...] = ()  # where a position has several numbers: which of them turns each pair

    @property
    def n_rot(self) -> int:
        return 2 * len(self.frequencies)


def rope_table(node: Node, factors: NDArray[np.float32] | None) -> RopeTable:
    """The table of a rope node; `factors` are the values of its optional weight."""
    attrs = node.all_attrs()
    for name in ("mode", "n_head", "offset", "axes"):
        del attrs[name]
    angles, magnitude = rope_angles(np.ones(1), factors, **attrs)
    return RopeTable(tuple(angles[0].tolist()), float(magnitude), node.inputs[1], tuple(node.attr("axes")))


@dataclass(frozen=True)
class AttentionMask:
    """Which keys a query sees and how its scores are changed before the softmax."""

    scale: float
    window: int
    chunk: int
    causal: bool
    cap: float  # softcap of the scores; 0: none
    sinks: str  # weight with one sink a head; empty: none
    slopes: tuple[float, ...]  # ALiBi, one a head; empty: none


def attention_mask(graph: Graph, softmax: Node, capped: Node | None, refusal: str) -> AttentionMask:
    """The mask of a softmax node. Positions must be inp_pos and those of the keys; else an error ends in `refusal`."""
    if softmax.inputs[1:3] not in (("inp_pos", "inp_kpos"), ("inp_pos", "inp_pos")):
        raise AssayError(f"node {softmax.name}: {refusal}")
    max_bias, heads = float(softmax.attr("max_bias")), int(graph.shapes[softmax.name][0])
    slopes = alibi_slopes(heads, max_bias).astype(np.float32).tolist() if max_bias else ()
    return AttentionMask(
        scale=float(softmax.attr("scale")),
        window=int(softmax.attr("window")),
        chunk=int(softmax.attr("chunk")),
        causal=bool(softmax.attr("causal")),
        cap=float(capped.attr("cap")) if capped else 0.0,
        sinks=softmax.weights[0] if softmax.weights else "",
        slopes=tuple(slopes),
    )
