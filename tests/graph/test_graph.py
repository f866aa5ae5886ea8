"""Graphs are checked before anyone runs them, and the messages name the node and both numbers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.engines.reference.functions import FUNCTIONS
from assay.graph import OPS, Graph, GraphError, Node, join, split

WEIGHTS = {"E": (10, 8), "w": (8,), "W": (6, 8), "H": (10, 8)}


def graph(*nodes: Node, output: str = "result_output") -> Graph:
    return Graph(nodes, WEIGHTS, output)


EMBED = Node("embd", "embed", ("inp_tokens",), ("E",))
NORM = Node("norm", "rms_norm", ("embd",), ("w",), {"eps": 1e-5})
HEAD = Node("result_output", "linear", ("norm",), ("H",))


def test_shapes_and_text() -> None:
    g = graph(EMBED, NORM, HEAD).check()
    assert g.shapes["result_output"] == ("T", 10)
    assert "norm = rms_norm(embd, w; eps=1e-05)" in g.text()
    assert g.users["embd"] == ("norm",)


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ((EMBED, EMBED), "node embd: the name is used twice"),
        ((NORM, EMBED), "node norm: input embd is computed only later"),
        ((EMBED, Node("x", "rms_norm", ("nowhere",), ("w",), {"eps": 1.0})), "input nowhere is never computed"),
        ((EMBED, Node("x", "linear", ("embd",), ("absent",))), "tensor absent is not in the file"),
        ((EMBED, Node("x", "sofmax", ("embd",))), "unknown operation 'sofmax'"),
        ((EMBED, Node("x", "rms_norm", ("embd",), ("w",))), "rms_norm needs the attribute 'eps'"),
        ((EMBED, Node("x", "scale", ("embd",), (), {"factr": 1, "factor": 1})), "no attribute 'factr'"),
        ((EMBED, Node("x", "linear", ("embd",), ())), "linear takes weights (W) (found none)"),
        ((EMBED, NORM), "the output result_output is never computed"),
        (
            (EMBED, Node("y", "linear", ("embd",), ("W",)), Node("x", "linear", ("y",), ("W",))),
            "node x: linear: input width differs from the weight's columns (found 6, expected 8)",
        ),
        (
            (EMBED, Node("x", "rope", ("embd", "inp_pos"), (), {"n_head": 3, "n_rot": 2})),
            "width 8 does not divide into 3 heads",
        ),
    ],
)
def test_bad_graphs_say_what_is_wrong(nodes: tuple[Node, ...], message: str) -> None:
    with pytest.raises(GraphError) as caught:
        graph(*nodes).check()
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_rewrite_replaces_inserts_and_leaves() -> None:
    g = graph(EMBED, NORM, HEAD)
    doubled = g.rewrite(lambda n: n.with_attrs(eps=1.0) if n.op == "rms_norm" else None)
    assert doubled["norm"].attr("eps") == 1.0 and g["norm"].attr("eps") == 1e-5
    extra = Node("extra", "scale", ("norm",), (), {"factor": 2.0})
    inserted = g.rewrite(lambda n: (n, extra) if n.name == "norm" else None)
    inserted = inserted.rename_input("norm", "extra", where=lambda n: n.op == "linear").check()
    assert inserted["result_output"].inputs == ("extra",)


def test_every_operation_has_a_definition() -> None:
    assert set(OPS) == set(FUNCTIONS)


@given(
    st.sampled_from(["Qcur", "cache_k", "cache_v", "cache_r", "cache_s", "result_norm", "a-b"]),
    st.none() | st.integers(0, 999),
)
def test_names_split_and_join(role: str, layer: int | None) -> None:
    if layer is not None:
        assert split(join(role, layer)) == (role, layer)
    else:
        assert join(*split(role)) == role


def test_a_formula_for_people_has_short_numbers() -> None:
    node = Node("x", "rms_norm", ("a",), ("w",), {"eps": 9.999999747378752e-06})
    assert node.formula == "x = rms_norm(a, w; eps=1e-05)"
    assert "9.999999747378752e-06" in str(node)
