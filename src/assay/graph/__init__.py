"""What is computed: operations, nodes, graphs, rewrites, the name grammar. No numbers."""

from assay.graph.graph import INPUTS, Graph, GraphError
from assay.graph.names import join, split
from assay.graph.node import Node
from assay.graph.ops import OPS, Op, Shape, Trait, register
from assay.graph.state import KINDS, KeptState, Kind, State

__all__ = [
    "INPUTS", "KINDS", "OPS", "Graph", "GraphError", "KeptState", "Kind", "Node", "Op", "Shape", "State", "Trait",
    "join", "register", "split",
]  # fmt: skip
