"""The graph of a compiled engine for batches with pictures.

A model with M-RoPE turns queries and keys by tables of cosines and sines that are computed here and given to the graph.
They have the bits of the tables that programs compute for positions of one number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.engines.contract import Chunk
from assay.engines.plan.given_rows import with_pictures
from assay.engines.plan.values import RopeTable, rope_table
from assay.graph import Graph, Node
from assay.models.pictures import POSITIONS, PictureForm, pictured


@dataclass(frozen=True)
class PictureGraph:
    """The graph of a compiled engine for batches with pictures. `tables` are given in place of positions t, y, x."""

    graph: Graph
    form: PictureForm
    tables: Mapping[str, RopeTable]

    def rows_for(self, chunk: Chunk, width: int) -> Chunk:
        """The chunk with the rows that the graph is given."""
        chunk = with_pictures(chunk, self.form, width, np.dtype(np.float32))
        rows = dict(chunk.rows)
        if self.form.axes:
            positions = np.ascontiguousarray(rows.pop(POSITIONS), np.int32)
            for name, rope in self.tables.items():
                found = np.empty(len(positions) * rope.n_rot, np.float32)
                _host().rope_rows(list(rope.frequencies), rope.magnitude, positions, list(rope.axes), found)
                rows[name] = found.reshape(-1, rope.n_rot)
        return replace(chunk, rows=rows)


@cache
def _host() -> Any:
    from assay import _native

    return _native.Pool(1)


def picture_graph(graph: Graph, form: PictureForm, factors: Callable[[str], NDArray[np.float32]]) -> PictureGraph:
    """The variant of a graph for pictures in this form. `factors` gives the values of a weight."""
    found, names = pictured(graph, form), dict[RopeTable, str]()

    def change(node: Node) -> Node | None:
        if node.op != "rope" or not node.attr("axes"):
            return None
        rope = rope_table(node, factors(node.weights[0]) if node.weights else None)
        name = names.setdefault(rope, f"inp_turns_{len(names)}")
        attrs = {key: node.attr(key) for key in ("n_head", "mode", "offset")}
        return Node(node.name, "rope_given", (node.inputs[0], name), (), attrs)

    if form.axes:
        found = found.rewrite(change)
        given = {name: shape for name, shape in found.given.items() if name != POSITIONS}
        given |= {name: ("T", rope.n_rot) for rope, name in names.items()}
        found = replace(found, given=given).check()
    return PictureGraph(found, form, {name: rope for rope, name in names.items()})
