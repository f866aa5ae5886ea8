"""Generators of the grammar for attention and experts: which head, which expert. `pairing_grammar` has whose weight.

heads in another order                 two are exchanged; a loop over groups writes what a loop over heads reads
a head is not rotated                  a loop over heads that ends too early or begins too late
another expert's tensor is read        an index that is no id: the slot of the choice, a neighbour, another token's
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from assay.graph import Node, Trait
from assay.verify.faults.description import INDEX, Description, placed
from assay.verify.faults.fault import Array, Change, Context, Edit, by_heads, role, standard
from assay.verify.faults.rotary import heads

MOST_HEADS = 64  # that are tried one by one
MOST_PAIRED = 16  # heads of which each pair is exchanged; of more, neighbours and those at a group's distance


def unrotated_heads(c: Context, nodes: Sequence[Node]) -> Iterator[Description]:
    """One head that the rotation leaves out: of queries and keys, or of one of them."""
    roles = list(dict.fromkeys(role(node) for node in nodes if node.op == "rope"))
    if len(roles) > 1:
        for at, which in ((-1, "last"), (0, "first")):
            label = f"the {which} head of {' and '.join(roles)} is not rotated"
            yield INDEX, placed(label, _unrotated(at), ("rope",), *roles)
    for node in (n for n in nodes if n.op == "rope"):
        for at in range(min(int(node.attr("n_head")), MOST_HEADS)):
            label = f"head {at} of {role(node)} is not rotated"
            yield INDEX, placed(label, _unrotated(at), ("rope",), role(node))


def _unrotated(at: int) -> Edit:
    def edit(c: Context, node: Node, p: float) -> Change | None:
        own = standard(node)

        def run(x: Array, *rest: Array) -> Array:
            y, plain = heads(node, own(x, *rest)).copy(), heads(node, x)
            y[:, at] = plain[:, at]
            return y

        return Change(node, run) if node.attr("n_head") > 1 else None

    return edit


# -- the order of heads ----------------------------------------------------------------------------------------------

Order = NDArray[np.int64]
_QUERIES: dict[str, tuple[str, ...]] = {
    "results": ("kqv", "merge_heads"),
    "queries": ("kq",),
    "keys": ("kq",),
    "values": ("kqv",),
    "keys and values": ("kq", "kqv"),
}


def head_orders(c: Context, nodes: Sequence[Node]) -> Iterator[Description]:
    """Heads in another order: of the results, of the queries, of keys and values."""
    at = next((c.at(node) for node in nodes if node.op in ("kq", "kqv", "merge_heads")), None)
    if at is None:
        return
    ops = {node.op for node in nodes}
    n, m = int(at.hp.n_head), max(int(at.hp.n_head_kv), 1)
    if n < m:  # recurrent layers without attention: no heads are counted
        return
    for what, readers in _QUERIES.items():
        first = next((op for op in readers if op in ops), None)
        if first is None:
            continue
        here = readers if what == "keys and values" else (first,)
        by_key = what in ("keys", "values", "keys and values")
        seen: set[tuple[int, ...]] = {tuple(range(m if by_key else n))}
        for words, order in _orders(m if by_key else n, n // m):
            if tuple(order.tolist()) not in seen and order.size > 1:
                seen.add(tuple(order.tolist()))
                yield INDEX, placed(words.format(what), _in_order(what, order), here)


def _orders(n: int, group: int) -> Iterator[tuple[str, Order]]:
    """Orders of n heads: two are exchanged, groups and their members are exchanged, the reverse."""
    heads = np.arange(n)
    if n % group == 0:
        yield (
            "the heads of the {} are sorted by their place in a group, not by group",
            heads.reshape(-1, group).T.reshape(-1),
        )
        yield (
            "the heads of the {} are sorted by group, not by their place in a group",
            heads.reshape(group, -1).T.reshape(-1),
        )
    yield "the heads of the {} are in reverse order", heads[::-1].copy()
    yield "the heads of the {} are read one head too far on", np.roll(heads, -1)
    yield "the heads of the {} are read one head too early", np.roll(heads, 1)
    steps = range(1, n) if n <= MOST_PAIRED else sorted({1, group, n // 2})
    for step in steps:
        for i in range(min(n, MOST_HEADS) - step):
            order = heads.copy()
            order[[i, i + step]] = i + step, i
            yield f"heads {i} and {i + step} of the {{}} are exchanged", order


def _in_order(what: str, order: Order) -> Edit:
    def edit(c: Context, node: Node, p: float) -> Change | None:
        own = standard(node)
        if node.op == "merge_heads":
            return Change(node, lambda x: own(x[order]))
        if not by_heads(c, node.inputs[1]):
            return None
        if what == "results":
            return Change(node, lambda a, kv: own(a, kv)[order])
        if what == "queries":
            return Change(node, lambda a, kv: own(a.reshape(len(a), len(order), -1)[:, order].reshape(a.shape), kv))
        return Change(node, lambda a, kv: own(a, kv[:, order]) if kv.shape[1] == len(order) else own(a, kv))

    return edit


# For the ids that a token has chosen [T, k], and the number of experts: the index by which an engine reads.
_INDICES: dict[str, Callable[[Array, int], Array]] = {
    "the slot of the choice, not the expert's id": lambda ids, n: np.broadcast_to(np.arange(ids.shape[-1]), ids.shape),
    "the first chosen expert's id for all": lambda ids, n: np.repeat(ids[:, :1], ids.shape[-1], axis=1),
    "the last chosen expert's id for all": lambda ids, n: np.repeat(ids[:, -1:], ids.shape[-1], axis=1),
    "the expert's id + 1": lambda ids, n: (ids + 1) % n,
    "the expert's id - 1": lambda ids, n: (ids - 1) % n,
    "the ids of the token before": lambda ids, n: np.concatenate([ids[:1], ids[:-1]]),
    "the ids of the first token": lambda ids, n: np.repeat(ids[:1], len(ids), axis=0),
    "the ids of the last token": lambda ids, n: np.repeat(ids[-1:], len(ids), axis=0),
    "the chosen ids in reverse order": lambda ids, n: ids[:, ::-1],
    "the chosen ids sorted": lambda ids, n: np.sort(ids, axis=-1),
    "expert 0 for all": lambda ids, n: np.zeros_like(ids),
}


def expert_ids(c: Context, nodes: Sequence[Node]) -> Iterator[Description]:
    """Another index into the experts' tensors: into all of them, or into those of one role."""
    roles = list(dict.fromkeys(role(n) for n in c.model.graph if n.has(Trait.EXPERTS)))
    here = [role(node) for node in nodes if node.has(Trait.EXPERTS)]
    for some in (tuple(roles), *((name,) for name in here)) if here else ():
        whose = "the experts' tensors are" if len(some) > 1 else f"the tensor of {some[0]} is"
        for words, index in _INDICES.items():
            if len(some) > 1 and words.startswith("the chosen ids"):
                continue  # all of an expert's tensors in another slot: `pairing_grammar` says it
            yield INDEX, placed(f"{whose} indexed by {words}", _indexed(index), (), *some, when=_has_experts)
    for node in nodes:
        for words, index in _INDICES.items() if node.op == "gather" and role(node) == "ffn_moe_weights" else ():
            label = f"the experts' weights are indexed by {words}"
            yield INDEX, placed(label, _indexed(index), (node.op,), role(node))


def _has_experts(c: Context, node: Node) -> bool:
    return node.has(Trait.EXPERTS)


def _indexed(index: Callable[[Array, int], Array]) -> Edit:
    def edit(c: Context, node: Node, p: float) -> Change | None:
        own = standard(node)
        if node.has(Trait.EXPERTS):
            n = int(c.model.graph.weights[node.weights[0]][0])
        else:
            n = int(c.model.graph.shapes[node.inputs[0]][-1])
        return Change(node, lambda x, ids, *w: own(x, index(ids, n), *w))

    return edit


GENERATORS = (unrotated_heads, head_orders, expert_ids)
