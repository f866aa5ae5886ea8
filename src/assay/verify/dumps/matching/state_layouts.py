"""Layouts of a state: llama.cpp's, which the graph has, and transformers', whose matrices are transposed.

Differences that engines have: a batch axis of one; several cells, of which one is the sequence's; the matrix of a head
transposed; a window with one column more (the kernel's width instead of one less); a window by rows; value heads in
Hugging Face's order; an array printed with the fastest axis first. Square matrices leave the choice to the values.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.graph import Graph, Node, split

Array = NDArray[Any]
MOST_CELLS = 64  # cells of a cache that are tried
# Nodes of a delta rule's layer whose rows have value heads: after the queries and keys, and alone.
_WITH_KEYS = ("linear_attn_qkv_mixed", "conv_output_raw", "conv_output_silu")
_BY_VALUE_HEAD = (
    "v_conv", "z", "z_silu", "alpha", "alpha_biased", "a_softplus", "gate", "beta", "beta_sigmoid", "attn_output",
    "attn_output_normed", "final_output",
)  # fmt: skip


def state_readings(graph: Graph, name: str, array: Array) -> list[tuple[str, Array]]:
    """All ways in which the array can be this state, with a label; the plain one first, its label empty."""
    node = graph[name]
    want = tuple(int(d) for d in node.attr("state"))
    found: list[tuple[str, Array]] = []
    for label, one in _cells(array, want, window=_is_window(graph, node)):
        for more, laid in _turned(one, want, _is_window(graph, node)):
            for order, value in _head_orders(graph, node, laid):
                if not any(np.array_equal(value, other) for _, other in found):
                    found.append((", ".join(filter(None, (label, more, order))), value))
    return found


def nearest_state(found: list[tuple[str, Array]], truth: Array) -> tuple[str, Array]:
    """The plain reading, unless another is ten times nearer to the definition's state: a fault may match none."""

    def distance(value: Array) -> float:
        return float(np.sum((value.astype(np.float64) - truth) ** 2))

    best = min(found, key=lambda one: distance(one[1]))
    return best if 10 * distance(best[1]) < distance(found[0][1]) else found[0]


def _is_window(graph: Graph, node: Node) -> bool:
    return graph[node.inputs[0]].op == "causal_conv"


def _cells(array: Array, want: tuple[int, ...], window: bool) -> Iterator[tuple[str, Array]]:
    """The array without axes of one; each cell of it where it holds several sequences."""
    thin = array.reshape(tuple(d for d in array.shape if d != 1) or (1,))
    yield "", thin
    size = math.prod(want)
    n = array.size // size
    if array.size == n * size and 1 < n <= MOST_CELLS and not (window and n == 1):
        yield from ((f"cell {i} of {n}", part) for i, part in enumerate(array.reshape(n, size)))


def _turned(array: Array, want: tuple[int, ...], window: bool) -> Iterator[tuple[str, Array]]:
    thin = tuple(d for d in want if d != 1)
    if array.shape == thin or (array.ndim == 1 and array.size == math.prod(want)):
        yield "", array.reshape(want)
    swapped = (*want[:-2], want[-1], want[-2])
    if len(want) > 1 and array.shape == tuple(d for d in swapped if d != 1):
        yield ("rows for channels" if window else "matrix transposed"), array.reshape(swapped).swapaxes(-1, -2)
    if len(thin) > 1 and array.shape == thin[::-1]:
        yield "shape printed fastest axis first", array.reshape(want)
        yield "axes reversed", array.transpose().reshape(want)
    if window and len(want) == 2:
        channels, columns = want[0], want[1] + 1
        if array.shape == (channels, columns):
            yield "one column more: the oldest cut", array[:, 1:]
        if array.shape == (columns, channels):
            yield "one row more: the oldest cut", array[1:].T


def value_head_order(graph: Graph, name: str, width: int) -> NDArray[np.int64] | None:
    """Places of the features of a row whose value heads lie in Hugging Face's order; None where there are none.

    There the value heads of a key head lie side by side. GGUF files of Qwen3.5 have key head h mod G for value head h.
    """
    layer = split(name)[1]
    rules = [n for n in graph if n.op == "delta_rule" and split(n.name)[1] == layer] if layer is not None else []
    if not rules or not 1 < (groups := int(rules[0].attr("n_head_k"))) < (heads := int(rules[0].attr("n_head"))):
        return None
    role = split(name)[0]
    fixed = 2 * groups * int(rules[0].attr("state")[-1]) if role in _WITH_KEYS else 0
    if (role not in _WITH_KEYS and role not in _BY_VALUE_HEAD) or (width - fixed) % heads:
        return None
    order = np.arange(heads).reshape(groups, heads // groups).T.reshape(-1)
    tail = np.arange(width - fixed).reshape(heads, -1)[order].reshape(-1)
    return np.concatenate([np.arange(fixed), fixed + tail])


def _head_orders(graph: Graph, node: Node, value: Array) -> Iterator[tuple[str, Array]]:
    """The value as it is; of the delta rule also with value heads grouped by key head, as Hugging Face has them."""
    yield "", value
    keeper = graph[node.inputs[0]]
    order = None
    if len(node.inputs) == 1 and keeper.op == "causal_conv":
        order = value_head_order(graph, keeper.name, len(value))
    elif len(node.inputs) == 1 and keeper.op == "delta_rule":
        order = value_head_order(graph, keeper.name, int(keeper.attr("n_head")))
    if order is not None:
        yield "value heads in Hugging Face's order", value[order]
