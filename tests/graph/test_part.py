"""A graph cut by layers: the parts hold every node once and say what they read from each other."""

from __future__ import annotations

from itertools import pairwise

import pytest

from assay.gguf import open_file
from assay.graph import Graph, GraphError, Node
from assay.models import load
from tests import tiny


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Graph:
    return load(open_file(tiny.make(tmp_path_factory.mktemp("part") / "m.gguf", n_layer=5))).graph


def test_ancestors_stop_at_what_is_known(graph: Graph) -> None:
    everything = {n.name for n in graph} | {"inp_tokens", "inp_pos", "inp_kpos"}
    assert graph.ancestors([graph.output]) == everything
    behind = graph.ancestors([graph.output], ["l_out-3"])
    assert "l_out-3" in behind and "attn_norm-4" in behind
    assert not any(name.endswith("-3") and name != "l_out-3" for name in behind)
    assert graph.ancestors([]) == set()


@pytest.mark.parametrize("cuts", [(0, 5), (0, 1, 5), (0, 2, 4, 5), (0, 1, 2, 3, 4, 5)])
def test_parts_hold_every_node_once(graph: Graph, cuts: tuple[int, ...]) -> None:
    parts = [graph.part(a, b).check() for a, b in pairwise(cuts)]
    assert [n for part in parts for n in part] == list(graph)
    for before, part in pairwise(parts):
        assert dict(part.given) == {before.output: graph.shapes[before.output]}
        assert before.output == f"l_out-{part.layers.start - 1}"
    assert not parts[0].given and parts[-1].output == "result_output"


def test_a_part_of_a_part(graph: Graph) -> None:
    assert graph.part(1, 4).part(2, 3) == graph.part(2, 3)


@pytest.mark.parametrize(("first", "last"), [(0, 0), (3, 2), (-1, 2), (0, 6), (5, 6)])
def test_no_such_layers(graph: Graph, first: int, last: int) -> None:
    with pytest.raises(GraphError, match="expected some of 0 to 4"):
        graph.part(first, last)


def test_keys_do_not_cross_a_cut(graph: Graph) -> None:
    """Layer 3 uses the keys of layer 1: they lie in another part's cache."""
    shared = graph.rename_input("cache_k_l3", "cache_k_l1", lambda n: n.op == "kq")
    shared.part(1, 4)
    with pytest.raises(GraphError, match="cache_k_l1: read by layers 2 to 4 from outside; cut elsewhere"):
        shared.part(2, 5)


def test_what_all_layers_read_is_given_to_all(graph: Graph) -> None:
    """A value made before the layers and read in them is declared by every part but the first."""
    extra = Node("side", "scale", ("embd",), (), {"factor": 2.0})

    def change(node: Node) -> list[Node] | Node | None:
        if node.name == "embd":
            return [node, extra]
        return Node(node.name, "add", (node.inputs[0], "side")) if node.name == "ffn_inp-3" else None

    part = graph.rewrite(change).check().part(2, 4)
    assert list(part.given) == ["l_out-1", "side"]
    assert part.check().shapes["side"] == ("T", 64)
