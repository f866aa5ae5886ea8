"""What is computed: operations, nodes, graphs, rewrites, the name grammar. No numbers."""

from assay.graph.graph import INPUTS, Graph, GraphError, Node
from assay.graph.names import join, split
from assay.graph.ops import OPS, Op, Shape, Trait

__all__ = ["INPUTS", "OPS", "Graph", "GraphError", "Node", "Op", "Shape", "Trait", "join", "split"]
