"""Segments: a graph whose number of rows changes, as parts that an engine can run one after the other.

An engine compiles graphs in which all tokens have one number of rows. A vision tower has several: patches, patches and
a class row, tokens. Its graph is cut at the operations that regroup rows (`Trait.REGROUPS`). The engine runs each part
for the rows that the part has; the regrouping between two parts is computed here, in float32, by the textbook function.
So it has the same bits whichever engine runs the parts. Touch this when a part must be cut for another reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.engines.reference.functions import FUNCTIONS
from assay.graph import Graph, Node, Trait

Array = NDArray[Any]


@dataclass(frozen=True)
class Segment:
    """`regroup` is computed first, on the host; then the graph, if it has nodes. `results` are read later."""

    regroup: tuple[Node, ...]
    graph: Graph | None
    results: tuple[str, ...] = ()


def segments(graph: Graph) -> tuple[Segment, ...]:
    """The parts of a graph, in the order in which they run."""
    depth: dict[str, int] = {}
    for node in graph:
        inputs = [depth.get(name, 0) for name in node.inputs]
        deeper = node.has(Trait.REGROUPS) and any(name in depth for name in node.inputs)
        depth[node.name] = max(inputs, default=0) + deeper
    found = []
    for level in range(max(depth.values(), default=0) + 1):
        own = [node for node in graph if depth[node.name] == level]
        regroup = tuple(node for node in own if node.has(Trait.REGROUPS))
        nodes = tuple(node for node in own if not node.has(Trait.REGROUPS))
        found.append(_segment(graph, regroup, nodes))
    return tuple(found)


def _segment(graph: Graph, regroup: tuple[Node, ...], nodes: tuple[Node, ...]) -> Segment:
    if not nodes:
        return Segment(regroup, None)
    inside = {node.name for node in nodes}
    reads = {name for node in nodes for name in node.inputs} - inside - {"inp_pos", "inp_kpos", "inp_tokens"}
    given = {name: graph.shapes[name] if name in graph.shapes else graph.given[name] for name in sorted(reads)}
    outside = {name for node in graph if node.name not in inside for name in node.inputs}
    results = tuple(n.name for n in nodes if n.name in outside or n.name == graph.output)
    weights = {name: graph.weights[name] for node in nodes for name in node.weights}
    return Segment(regroup, Graph(nodes, weights, results[-1], given).check(), results)


def regroup_rows(node: Node, values: Mapping[str, Array], weight: Callable[[str], Array]) -> NDArray[np.float32]:
    """The value of a node that regroups rows, in float32."""
    operands = [values[name] for name in node.inputs]
    floats = [x.astype(np.float32) if x.dtype == np.float64 else x for x in operands]
    found = FUNCTIONS[node.op](*floats, *[weight(name) for name in node.weights], **node.all_attrs())
    return np.asarray(found, np.float32)


def last_uses(parts: Sequence[Segment]) -> dict[str, int]:
    """For every value that a later segment reads, the last segment that does."""
    found: dict[str, int] = {}
    for i, part in enumerate(parts):
        for node in part.regroup:
            found.update(dict.fromkeys(node.inputs, i))
        found.update(dict.fromkeys(part.graph.given if part.graph else (), i))
    return found
