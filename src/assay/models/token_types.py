"""BERT's token types: a pair of texts, of which the second one has the second row of `token_types.weight`.

A single text has token type 0 everywhere, which is a constant of the model's own graph. A chunk with a second text is
computed by the graph that `typed` makes from it: `inp_types` [T, 1] has the token type of each token.
"""

from __future__ import annotations

from dataclasses import replace

from assay.graph import Graph, Node

TYPES = "inp_types"
WEIGHT = "token_types.weight"


def has_second_type(graph: Graph) -> bool:
    """Whether the model tells the second text of a pair from the first. RoBERTa's table has one row."""
    return WEIGHT in graph.weights and int(graph.weights[WEIGHT][0]) > 1


def typed(graph: Graph) -> Graph:
    """The graph that is given the type of each token."""

    def change(node: Node) -> Node | None:
        return replace(node, inputs=(*node.inputs, TYPES)) if node.weights == (WEIGHT,) else None

    return replace(graph.rewrite(change), given={**graph.given, TYPES: ("T", 1)}).check()
