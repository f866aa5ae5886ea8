"""Segments: a graph whose number of rows changes, as parts that an engine can run one after the other.

An engine compiles graphs in which all tokens have one number of rows. A vision tower has several: patches, patches and
a class row, tokens. Its graph is cut at the operations that regroup rows (`Trait.REGROUPS`). The engine runs each part
for the rows that the part has; the regrouping between two parts is computed here, in float32, by the textbook function.
So it has the same bits whichever engine runs the parts.

Layers that attend inside windows are parts of their own. Rows lie window by window, so that the caller runs each window
as a sequence: the work of attention grows with the size of a window and not with that of the picture. Touch this when a
part must be cut for another reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.engines.reference.functions import FUNCTIONS
from assay.graph import Graph, Node, Trait, split

Array = NDArray[Any]


@dataclass(frozen=True)
class Segment:
    """`regroup` is computed first, on the host; then the graph, if it has nodes. `results` are read later.

    With `windows`, each window of rows is a sequence, and the graph has no mask between them.
    """

    regroup: tuple[Node, ...]
    graph: Graph | None
    results: tuple[str, ...] = ()
    windows: bool = False


def segments(graph: Graph) -> tuple[Segment, ...]:
    """The parts of a graph, in the order in which they run."""
    depth: dict[str, int] = {}
    cuts = _changes(graph)
    for node in graph:
        inputs = [depth.get(name, 0) for name in node.inputs]
        deeper = node.has(Trait.REGROUPS) and any(name in depth for name in node.inputs)
        depth[node.name] = max(max(inputs, default=0) + deeper, cuts.get(split(node.name)[1], 0))
    found = []
    for level in range(max(depth.values(), default=0) + 1):
        own = [node for node in graph if depth[node.name] == level]
        regroup = tuple(node for node in own if node.has(Trait.REGROUPS))
        nodes = tuple(node for node in own if not node.has(Trait.REGROUPS))
        found.append(_segment(graph, regroup, nodes))
    return tuple(found)


def _changes(graph: Graph) -> dict[int | None, int]:
    """For each layer, how often the layers up to it have changed between attention in windows and in the whole."""
    kinds = {split(node.name)[1]: bool(node.attr("window")) for node in graph if node.has(Trait.MASKS)}
    found: dict[int | None, int] = {}
    last, count = None, 0
    for layer, kind in kinds.items():
        count += last is not None and kind != last
        found[layer], last = count, kind
    return found


def _segment(graph: Graph, regroup: tuple[Node, ...], nodes: tuple[Node, ...]) -> Segment:
    if not nodes:
        return Segment(regroup, None)
    inside = {node.name for node in nodes}
    reads = {name for node in nodes for name in node.inputs} - inside - {"inp_pos", "inp_kpos", "inp_tokens"}
    given = {name: graph.shapes[name] if name in graph.shapes else graph.given[name] for name in sorted(reads)}
    outside = {name for node in graph if node.name not in inside for name in node.inputs}
    results = tuple(n.name for n in nodes if n.name in outside or n.name == graph.output)
    weights = {name: graph.weights[name] for node in nodes for name in node.weights}
    windows = any(node.has(Trait.MASKS) and node.attr("window") for node in nodes)
    if windows:
        nodes = tuple(node.with_attrs(window=0) if node.has(Trait.MASKS) else node for node in nodes)
    return Segment(regroup, Graph(nodes, weights, results[-1], given).check(), results, windows)


@np.errstate(all="ignore")  # weights and rows may be NaN, infinite or huge; the results say so
def regroup_rows(node: Node, values: Mapping[str, Array], weight: Callable[[str], Array]) -> NDArray[np.float32]:
    """The value of a node that regroups rows, in float32. Rows in their own order are not copied."""
    operands = [values[name] for name in node.inputs]
    floats = [x.astype(np.float32) if x.dtype == np.float64 else x for x in operands]
    weights, attrs = [weight(name) for name in node.weights], node.all_attrs()
    if node.op == "take_rows" and not weights and not attrs["apart"] and _in_order(floats[1], len(floats[0])):
        return np.asarray(floats[0], np.float32).reshape(len(floats[0]) // int(attrs["n"]), -1)
    at = _INDICES.get(node.op)
    if at is None:
        return np.asarray(FUNCTIONS[node.op](*floats, *weights, **attrs), np.float32)
    parts = []
    for first in range(0, len(floats[at]), _AT_ONCE):  # sums that stay in the cache of a core
        some = [x[first : first + _AT_ONCE] if i >= at else x for i, x in enumerate(floats)]
        parts.append(FUNCTIONS[node.op](*some, *weights, **attrs))
    return np.asarray(np.concatenate(parts), np.float32)


# Operations of which each row of the result is a sum of its own, and the first operand that has a row for each of them.
_INDICES = {"mean_rows": 1, "mix_rows": 0}
_AT_ONCE = 64


def _in_order(indices: Array, rows: int) -> bool:
    return indices.size == rows > 0 and bool((indices.reshape(-1) == np.arange(rows)).all())


def joined_windows(graph: Graph, name: str, values: Sequence[Array]) -> Array:
    """A node's value of all rows, from its values in each window. Scores between windows are masked."""
    if len(values) == 1:
        return values[0]
    axes = [i for i, dim in enumerate(graph.shapes[name]) if dim == "T"]
    if len(axes) == 1:
        return np.concatenate(values, axis=axes[0])
    rows = sum(value.shape[1] for value in values)
    hidden = -np.inf if graph[name].has(Trait.MASKABLE) else 0.0
    found = np.full((values[0].shape[0], rows, rows), hidden, values[0].dtype)
    at = 0
    for value in values:
        found[:, at : at + value.shape[1], at : at + value.shape[2]] = value
        at += value.shape[1]
    return found


def last_uses(parts: Sequence[Segment]) -> dict[str, int]:
    """For every value that a later segment reads, the last segment that does."""
    found: dict[str, int] = {}
    for i, part in enumerate(parts):
        for node in part.regroup:
            found.update(dict.fromkeys(node.inputs, i))
        found.update(dict.fromkeys(part.graph.given if part.graph else (), i))
    return found
