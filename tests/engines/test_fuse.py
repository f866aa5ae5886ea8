"""The plan of a graph: every needed node in exactly one group, fused only where no other node reads between."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.engines.plan.fuse import DOMAINS, Attention, Gated, Group, Plan, Products, Single, fuse
from assay.gguf import open_file
from assay.graph import INPUTS, Graph, Node
from assay.models import load
from tests import tiny


@pytest.fixture(scope="module")
def graphs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Graph]:
    folder = tmp_path_factory.mktemp("fuse")
    options: dict[str, dict[str, Any]] = {
        "plain": {},
        "bias": {"bias": True, "tied": False},
        "experts": {"n_expert": 4},
    }
    return {name: load(open_file(tiny.make(folder / name, **kw))).graph for name, kw in options.items()}


def nodes_of(group: Group) -> Iterator[Node]:
    match group:
        case Single(node):
            yield node
        case Products(products):
            for p in products:
                yield from (n for n in (p.linear, p.bias, p.add) if n)
        case Gated(gate, up, glu):
            yield from (gate, up, glu)
        case Attention(kq, capped, softmax, kqv):
            yield from (n for n in (kq, capped, softmax, kqv) if n)


def stored(group: Group) -> set[str]:
    """The values that a group stores."""
    match group:
        case Single(node):
            return {node.name}
        case Products(products):
            return {p.last.name for p in products}
        case Gated(_, _, glu):
            return {glu.name}
        case Attention():
            return {group.kqv.name}


def check(graph: Graph, keep: set[str], plan: Plan) -> None:
    needed = graph.ancestors({graph.output, *keep, *(n.name for n in graph if n.op == "cache")})
    names = [n.name for group in plan.groups for n in nodes_of(group)]
    assert sorted(names) == sorted(n.name for n in graph if n.name in needed)
    there = {*INPUTS, *graph.given}
    for group in plan.groups:
        own = {n.name for n in nodes_of(group)}
        read = {i for n in nodes_of(group) for i in n.inputs} - own
        assert read <= there, f"{group} reads what is not there yet"
        inner = own & keep if isinstance(group, Gated | Attention) else set()  # written on the side
        there |= stored(group) | inner
    assert keep | {graph.output} <= there
    assert set(plan.domains.values()) <= set(DOMAINS)
    for name in keep:
        assert plan.domains[name] != "outputs"
    full = {n for n, d in plan.domains.items() if d == "tokens"}
    for node in graph:  # nothing for all tokens hangs on something for a few
        if node.name in full:
            assert all(i in INPUTS or plan.domains[i] != "outputs" for i in node.inputs)


def test_a_layer_is_five_groups_and_some_rows(graphs: dict[str, Graph]) -> None:
    plan = fuse(graphs["plain"])
    kinds = [g for g in plan.groups if not isinstance(g, Single)]
    layer: list[type] = [Products, Attention, Products, Gated, Products]
    # In the last one, queries exist for the asked rows only: a group of their own. Then the head.
    assert [type(g) for g in kinds] == [*layer, Products, *layer, Products]
    qkv, _, out, _, down = kinds[:5]
    assert isinstance(qkv, Products) and [p.linear.name for p in qkv.products] == [
        "Qcur_proj-0",
        "Kcur_proj-0",
        "Vcur-0",
    ]
    assert isinstance(out, Products) and out.products[0].residual == "embd" and out.products[0].last.name == "ffn_inp-0"
    assert isinstance(down, Products) and down.products[0].last.name == "l_out-0"
    # Behind the last keys, only the asked rows.
    assert (
        plan.domains["Qcur-1"] == "outputs"
        and plan.domains["Kcur-1"] == "tokens"
        and plan.domains["l_out-0"] == "tokens"
    )
    assert plan.domains["cache_k_l1"] == "keys" and plan.domains["kq-1"] == "scores"


def test_biases_join(graphs: dict[str, Graph]) -> None:
    products = [p for g in fuse(graphs["bias"]).groups if isinstance(g, Products) for p in g.products]
    assert all(p.bias for p in products if p.linear.name != "result_output")
    assert any(p.bias and p.add and p.residual == "embd" for p in products)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_kept_set(graphs: dict[str, Graph], data: st.DataObject) -> None:
    graph = graphs[data.draw(st.sampled_from(sorted(graphs)))]
    if data.draw(st.booleans()):
        first = data.draw(st.integers(0, 1))
        graph = graph.part(first, data.draw(st.integers(first + 1, 2)))
    keep = set(data.draw(st.lists(st.sampled_from([n.name for n in graph]), max_size=6)))
    check(graph, keep, fuse(graph, keep))


def test_a_value_with_another_reader_is_not_fused(graphs: dict[str, Graph]) -> None:
    graph = graphs["plain"]

    def spy(name: str) -> Plan:
        """The plan with a kept reader of `name`."""
        extra = Node("spy", "scale", (name,), (), {"factor": 1.0})
        watched = replace(graph, nodes=(*graph.nodes, extra))
        plan = fuse(watched, {"spy"})
        check(watched, {"spy"}, plan)
        return plan

    for name, kind in (("kq-1", Attention), ("kq_soft_max-1", Attention), ("ffn_gate-1", Gated), ("ffn_up-1", Gated)):
        assert sum(isinstance(g, kind) for g in spy(name).groups) == 1, name
    single = {g.node.name for g in spy("attn_out-1").groups if isinstance(g, Single)}
    assert "ffn_inp-1" in single


def test_products_of_other_forms_stay_apart(graphs: dict[str, Graph]) -> None:
    plan = fuse(graphs["plain"], form=lambda weight: "k" if "attn_k" in weight else "")
    first, second = (g for g in plan.groups[:4] if isinstance(g, Products))
    assert [p.linear.name for p in first.products] == ["Qcur_proj-0", "Vcur-0"]
    assert [p.linear.name for p in second.products] == ["Kcur_proj-0"]
    assert not any(isinstance(g, Gated) for g in fuse(graphs["plain"], form=lambda weight: weight).groups)
