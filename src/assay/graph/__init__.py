"""The graph of a model: what is computed, and no numbers.

    ops.py     the table of operations: formula, operands, shape rule, traits. Touch it to add an operation.
    node.py    one node: a named value
    graph.py   a graph: checking, shapes, rewriting, cutting by layers
    state.py   what layers keep between steps, declared by kind. Touch it to add a kind of state.
    names.py   the grammar of node names

Engines run graphs, `models` builds them, `verify` rewrites them. This package imports none of these.
"""

from assay.graph.graph import INPUTS, Graph, GraphError
from assay.graph.names import join, split
from assay.graph.node import Node
from assay.graph.ops import OPS, Op, Shape, Trait, register
from assay.graph.state import KINDS, GraphState, KeptState, Kind

__all__ = [
    "INPUTS", "KINDS", "OPS", "Graph", "GraphError", "GraphState", "KeptState", "Kind", "Node", "Op", "Shape", "Trait",
    "join", "register", "split",
]  # fmt: skip
