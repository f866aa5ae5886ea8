"""Which nodes the kernel step of another node computes, beside the groups of engines/plan/fuse.py.

    a norm before products            the step that quantises the products' input computes it
    RoPE of q and k, cache writes     attention computes them when every sequence has one token; in a walk also norms
                                      of the heads and a factor of q
    slices of a product               in a walk and on tensor cores, the product writes each slice as a value of its own
    activations before products       in a walk, the step that quantises the products' input computes them
    norms with the adds around them   one step of a walk
    all around a gated delta rule     two steps of a walk

A walk is one megakernel for consecutive kernel steps (walk.py). It folds more nodes than separate launches do.
A node is folded only where no other node reads what lies between. Pure functions of the graph and its plan. Touch this
module when a kernel learns to compute a neighbouring node.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from assay.engines.cuda.abi.enumerations import ACTS, MAX_PARTS
from assay.engines.cuda.context import CompileContext, FoldedAttention, FoldedExperts, FoldedNorm, Folds
from assay.engines.cuda.folding_delta import find_deltas
from assay.engines.cuda.folding_experts import find_experts
from assay.engines.plan.fuse import Attention, Gated, Products, Single
from assay.engines.plan.values import RopeTable, rope_table
from assay.graph import Node, Trait


def find_folds(c: CompileContext) -> Folds:
    """All folds of a graph for this shape."""
    experts = find_experts(c) if c.small_steps else {}
    one = c.shape.tokens == 1  # of several tokens, the norm before experts is a step of its own
    norms = _norms_before_products(c, experts if one else {})
    folds = Folds(norms, _attentions(c) if c.shape.one else {}, experts=experts)
    if c.small_steps and one:
        folds = replace(folds, windows=_windows(c), deltas=find_deltas(c))
    if c.walk:
        folds = replace(folds, slices=_slices(c), gatings=_gatings(c))
        folds = replace(folds, walk_norms=_walk_norms(c, folds.skipped))
    elif c.tensors.halves and c.shape.tokens > 8:
        folds = replace(folds, slices={name: found for name, found in _slices(c).items() if _is_halved(c, name)})
    return folds


def _is_halved(c: CompileContext, name: str) -> bool:
    """Whether the slices of this product may be products of 16-bit floats of their own."""
    slices, domain = _readers(c, name), c.plan.domains[name]
    return (
        name not in c.keep and name != c.graph.output and len(slices) <= MAX_PARTS
        and all(c.plan.domains[n] == domain for n in slices)
        and c.tensors.format(_product_of(c, name).weights[0]) in ("f16", "bf16")
    )  # fmt: skip


def _product_of(c: CompileContext, name: str) -> Node:
    """The linear of a product whose last node has this name."""
    groups = (group for group in c.plan.groups if isinstance(group, Products))
    return next(p.linear for group in groups for p in group.products if p.last.name == name)


def rope_of(c: CompileContext, node: Node) -> RopeTable:
    return rope_table(node, c.tensors.array(node.weights[0]) if node.weights else None)


def _readers(c: CompileContext, name: str) -> list[str]:
    return list(c.graph.users.get(name, ()))


def _norms_before_products(c: CompileContext, experts: Mapping[str, FoldedExperts]) -> Mapping[str, str]:
    """For the first linear of a group, or the last node of folded experts: the norm before it, if only products read
    it."""
    firsts: dict[str, str] = {}  # each linear -> the first one of its group
    for folded in experts.values():
        firsts |= {node.name: folded.last for node, _ in folded.parts}
    for group in c.plan.groups:
        if isinstance(group, Products):
            firsts |= {p.linear.name: group.products[0].linear.name for p in group.products}
        elif isinstance(group, Gated):
            firsts |= {n.name: group.gate.name for n in (group.gate, group.up)}
    found: dict[str, str] = {}
    for norm in c.graph:
        if norm.op != "rms_norm" or norm.attr("n_head") or norm.name in c.keep or not norm.weights:
            continue
        if len(c.graph.shapes[norm.name]) != 2 or norm.name == c.graph.output:
            continue
        readers = _readers(c, norm.name)
        if all(name in firsts for name in readers):
            found |= {firsts[name]: norm.name for name in readers}
    return found


def _attentions(c: CompileContext) -> Mapping[str, FoldedAttention]:
    """By kqv: what attention computes itself."""
    groups = [g for g in c.plan.groups if isinstance(g, Attention) and not c.keep & g.inner]
    return {g.kqv.name: folded for g in groups if (folded := _fold_attention(c, g))}


def _fold_attention(c: CompileContext, group: Attention) -> FoldedAttention | None:
    graph = c.graph
    k, v = graph[group.kq.inputs[1]], graph[group.kqv.inputs[1]]
    q, k_rope = (graph.by_name.get(n) for n in (group.kq.inputs[0], k.inputs[0]))
    if not q or not k_rope or c.keep & {k.name, v.name} or not (k.has(Trait.STATE) and v.has(Trait.STATE)):
        return None
    if _readers(c, k.name) != [group.kq.name] or _readers(c, v.name) != [group.kqv.name]:
        return None
    folded = FoldedAttention(frozenset((k.name, v.name)), q.name, k_rope.name, v.inputs[0])
    factor, q_rope = 1.0, q
    if c.walk and q.op == "scale":
        factor, q_rope = float(q.attr("factor")), _only_input(c, q) or q
    if not _same_rope(c, q_rope, k_rope):
        return folded
    names = {q.name, q_rope.name, k_rope.name}
    if c.keep & names or (_readers(c, q.name), _readers(c, k_rope.name)) != ([group.kq.name], [k.name]):
        return None
    inputs = q_rope.inputs[0], k_rope.inputs[0], folded.v
    folded = FoldedAttention(folded.names | names, *inputs, q_rope, None, factor)
    return _with_wider_q(c, _with_head_norms(c, folded, k_rope))


def _with_wider_q(c: CompileContext, folded: FoldedAttention) -> FoldedAttention:
    """In a walk: q from the row that it is the first part of, head by head (Qwen3.5 has a gate behind each query)."""
    q, rope = c.graph.by_name.get(folded.q), folded.rope
    if not (c.small_steps and rope and q and q.op == "slice" and q.name not in c.keep and not q.attr("start")):
        return folded
    heads = int(rope.attr("n_head"))
    if q.all_attrs().get("n_head") != heads or len(_readers(c, q.name)) != 1:
        return folded
    step = c.width(q.inputs[0]) // heads
    return replace(folded, names=folded.names | {q.name}, q=q.inputs[0], q_step=step)


def _same_rope(c: CompileContext, a: Node, b: Node) -> bool:
    """Whether two nodes rotate from the first value of a head on, by the same table and in the same order."""
    if not a.op == b.op == "rope" or a.attr("offset") or b.attr("offset"):
        return False
    return bool(a.attr("mode") == b.attr("mode")) and rope_of(c, a) == rope_of(c, b)


def _only_input(c: CompileContext, node: Node) -> Node | None:
    """The node's first input, if no other node reads that."""
    found = c.graph.by_name.get(node.inputs[0])
    return found if found and _readers(c, found.name) == [node.name] else None


def _with_head_norms(c: CompileContext, folded: FoldedAttention, k_rope: Node) -> FoldedAttention:
    """In a walk: the same with the norms of the heads of q and k."""
    assert folded.rope
    q, k = _only_input(c, folded.rope), _only_input(c, k_rope)
    if not (c.walk and q and k and q.op == k.op == "rms_norm" and q.attr("eps") == k.attr("eps")):
        return folded
    for norm, rope in ((q, folded.rope), (k, k_rope)):
        each = c.width(norm.name) // int(rope.attr("n_head"))
        weights = [math.prod(int(n) for n in c.graph.weights[w]) for w in norm.weights]
        if norm.attr("n_head") != rope.attr("n_head") or weights != [each]:
            return folded
    names = folded.names | {q.name, k.name}
    return replace(folded, names=names, q=q.inputs[0], k=k.inputs[0], norms=(q, k))


def _walk_norms(c: CompileContext, skipped: set[str]) -> Mapping[str, tuple[FoldedNorm, ...]]:
    """Norms that are a step of a walk; two consecutive independent ones are one step."""
    found: dict[str, tuple[FoldedNorm, ...]] = {}
    first = ""  # the norm that begins the step before this one
    before: Node | None = None  # an add whose result the next node may norm
    done = set(skipped)
    for group in c.plan.groups:
        node = group.node if isinstance(group, Single) else None
        if node and node.name in done:
            continue
        if not node or not _can_walk(c, node):
            first, before = "", node if node and node.op == "add" and len(set(node.inputs)) == 2 else None
            continue
        added = before if before and before.name == node.inputs[0] else None
        norm = FoldedNorm(node, added, _add_behind(c, node))
        done |= norm.names
        last = found.get(first, ())
        alone = len(norm.names) == 1 and node.inputs[0] != first
        if alone and len(last) == 1 and len(last[0].names) == 1:
            found[first] = (*last, norm)
        else:
            first, found[node.name] = node.name, (norm,)
        before = None
    return found


def _can_walk(c: CompileContext, node: Node) -> bool:
    if not node.has(Trait.NORM) or not node.weights or node.attr("n_head"):
        return False
    return len(c.graph.shapes[node.name]) == 2 and c.width(node.name) % 8 == 0


def _add_behind(c: CompileContext, norm: Node) -> Node | None:
    """The add that alone reads a norm, if its other operand is computed before the norm."""
    readers, order = [c.graph[n] for n in _readers(c, norm.name)], c.graph.order
    if len(readers) != 1 or readers[0].op != "add" or len(set(readers[0].inputs)) != 2:
        return None
    ready = all(order.get(name, -1) <= order[norm.name] for name in readers[0].inputs)
    return readers[0] if ready else None


def _slices(c: CompileContext) -> Mapping[str, tuple[Node, ...]]:
    """Of products that only slices read: the slices, if each begins with a group of the matrix's rows."""
    found = {}
    for p in (p for group in c.plan.groups if isinstance(group, Products) for p in group.products):
        readers = tuple(c.graph[n] for n in _readers(c, p.last.name))
        group = c.tensors.matrix(p.linear.weights[0]).group
        if not p.add and readers and all(
            n.op == "slice" and not n.attr("n_head") and n.attr("start") % group == 0 for n in readers
        ):  # fmt: skip
            found[p.last.name] = readers
    return found


def _windows(c: CompileContext) -> Mapping[str, Node]:
    """By convolution: the activation that alone reads its values."""
    found = {}
    for conv in (g.node for g in c.plan.groups if isinstance(g, Single) and g.node.op == "causal_conv"):
        readers = [c.graph[n] for n in _readers(c, conv.name) if not c.graph[n].op.startswith("state_")]
        if len(readers) == 1 and readers[0].op == "act" and str(readers[0].attr("act")) in ACTS:
            found[conv.name] = readers[0]
    return found


def _gatings(c: CompileContext) -> Mapping[str, Node]:
    """Activations of a row, and gates of its two halves, that only products with quantised weights read."""
    nodes = [g.node for g in c.plan.groups if isinstance(g, Single) and g.node.op in ("act", "glu_split")]
    return {
        n.name: n
        for n in nodes
        if len(c.graph.shapes[n.name]) == 2 and _readers(c, n.name) and c.read_as("q8", n.name)
        and str(n.attr("act")) in ACTS
    }  # fmt: skip
