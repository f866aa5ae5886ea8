"""Fusing: which nodes an engine computes together, and on which rows.

The cpu and the cuda engine compile the plan group by group. Nodes are fused where no other node reads the values
between them. Fusing changes when a node is computed and never how:

    linears of one input          one group without a barrier inside; LoRA adapters, a bias and a residual add after one
                                  join it, in this order
    gate, up and their product    one group; gate and up may be halves of one linear
    kq, (softcap,) softmax, kqv   one pass over the cache

Rows: values that only the output needs are computed for the rows that the caller asked for. Values that the cache or a
kept node depends on are computed for all tokens. Touch this module to fuse a further pattern.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

from assay.engines.plan.state_layout import CachePool, cache_pools
from assay.graph import INPUTS, Graph, Node, Trait

# The domain of a value says what its rows are: tokens of the step, tokens whose output is wanted, keys that a sequence
# sees, scores (head, token, key), or sequences.
DOMAINS = ("tokens", "outputs", "keys", "scores", "sequences")


@dataclass(frozen=True)
class Single:
    """A node that is not fused."""

    node: Node


@dataclass(frozen=True)
class Product:
    """A linear node with the adapters, the bias and the residual add that join it."""

    linear: Node
    adapters: tuple[Node, ...] = ()
    bias: Node | None = None
    add: Node | None = None

    @property
    def last(self) -> Node:
        """The node whose value is stored. The values before it never reach memory."""
        return self.add or self.bias or (self.linear, *self.adapters)[-1]

    @property
    def residual(self) -> str | None:
        """The other operand of the add."""
        if self.add is None:
            return None
        own = (self.bias or (self.linear, *self.adapters)[-1]).name
        return next(name for name in self.add.inputs if name != own)


@dataclass(frozen=True)
class Products:
    """Linears of one input, on the same rows."""

    products: tuple[Product, ...]


@dataclass(frozen=True)
class Gated:
    """act(gate) * up and the two linears before it. In a glu_split, gate and up are halves of the same linear."""

    gate: Node
    up: Node
    glu: Node
    adapters: tuple[tuple[Node, ...], tuple[Node, ...]] = ((), ())  # of gate and of up

    @property
    def one_matrix(self) -> bool:
        """Whether gate and up are the two halves of one matrix's rows."""
        return self.gate is self.up

    @property
    def inner(self) -> set[str]:
        """The nodes whose values are stored only if a trace keeps them."""
        return {n.name for n in (self.gate, self.up, *self.adapters[0], *self.adapters[1])}


@dataclass(frozen=True)
class Attention:
    """The nodes that one pass over the cache computes."""

    kq: Node
    capped: Node | None
    softmax: Node
    kqv: Node
    keys: str  # the node whose pool holds the keys
    values: str  # the node whose pool holds the values; the same node where a value is a part of the key
    first: int = 0  # the column of a key at which its value begins

    @property
    def inner(self) -> set[str]:
        """The nodes whose values are stored only if a trace keeps them."""
        return {n.name for n in (self.kq, self.capped, self.softmax) if n}


Group = Single | Products | Gated | Attention


@dataclass(frozen=True)
class Plan:
    """The groups in order, and the domain of every value that is computed or given."""

    groups: tuple[Group, ...]
    domains: Mapping[str, str]


def fuse(
    graph: Graph,
    keep: Collection[str] = (),
    form: Callable[[str], str] = lambda weight: "",
    gates: Collection[str] = ("glu",),
    adapters: bool = False,
) -> Plan:
    """The plan that fills the cache, gives the output and computes the nodes in `keep`.

    `form(weight)` names the format that a product with this weight needs its input in. Products are grouped where the
    format is the same. `gates` are the gating operations that the engine computes together with their products, and
    `adapters` says whether it computes LoRA adapters with them.
    """
    pools = cache_pools(graph)
    needed = graph.ancestors({graph.output, *graph.state.by_node, *keep})
    match = _Matcher(graph, needed, pools, form, gates, adapters)
    folded = {n.name: g for n in graph if n.name in needed and (g := match.attention(n) or match.gated(n, keep))}
    inside = {name for group in folded.values() for name in group.inner} | match.views(folded.values(), keep)
    # Values that must exist for every token: ancestors of the cache and of kept nodes, scores outside a fused pass, and
    # inputs of all tokens to a fused pass or a pool.
    single = needed - inside - folded.keys()
    full = {n.name for n in graph if n.name in single and (n.has(Trait.MIXES_TOKENS) or INPUTS.keys() >= set(n.inputs))}
    full |= {name for name, group in folded.items() if not group.inner.isdisjoint(keep)}
    full = graph.ancestors({*full, *(name for name in pools if name in needed), *keep})
    domains = {name: _domain(graph, name, full) for name in needed if name not in INPUTS}

    products = {n.name: match.product(n, keep, domains) for n in graph if n.op == "linear" and n.name in single}
    done = inside | {n.name for p in products.values() for n in (*p.adapters, p.bias, p.add) if n}
    groups: list[Group] = []
    for node in graph:
        if node.name not in needed or node.name in done:
            continue
        if node.name in products:
            group = match.together(node, [p for n, p in products.items() if n not in done], domains)
            done |= {p.linear.name for p in group.products}
            groups.append(group)
        else:
            groups.append(folded.get(node.name) or Single(node))
    return Plan(tuple(groups), domains)


def is_adapter(node: Node) -> bool:
    """Whether it adds a LoRA adapter with a scale for each token, as engines compile them."""
    return node.op == "add_adapter" and len(node.inputs) == 3


def _domain(graph: Graph, name: str, full: Collection[str]) -> str:
    symbols = [d for d in graph.shapes[name] if isinstance(d, str)]
    if len(symbols) != 1:
        return "scores" if symbols else "sequences"
    if symbols == ["S"]:
        return "keys"
    return "tokens" if name in full or name in graph.given else "outputs"


@dataclass(frozen=True)
class _Matcher:
    """Finds the patterns among the nodes that are needed."""

    graph: Graph
    needed: Collection[str]
    pools: Mapping[str, CachePool]
    form: Callable[[str], str]
    gates: Collection[str]
    adapters: bool

    def readers(self, name: str) -> list[Node]:
        return [self.graph[u] for u in self.graph.users.get(name, ()) if u in self.needed]

    def alone(self, chain: Collection[Node]) -> bool:
        """Whether each node of the chain is read by the next one only."""
        return all(self.readers(a.name) == [b] for a, b in pairwise(chain))

    def attention(self, kqv: Node) -> Attention | None:
        if kqv.op != "kqv":
            return None
        softmax = self.graph.by_name.get(kqv.inputs[0])
        if not softmax or softmax.op != "attn_softmax":
            return None
        capped: Node | None = None
        kq = self.graph.by_name.get(softmax.inputs[0])
        if kq and kq.op == "softcap":
            capped, kq = kq, self.graph.by_name.get(kq.inputs[0])
        if not kq or kq.op != "kq" or not self.alone([n for n in (kq, capped, softmax, kqv) if n]):
            return None
        k, (v, first) = kq.inputs[1], self.column(kqv.inputs[1])
        if k not in self.pools or v not in self.pools or not self.pools[k].keys or self.pools[v].keys != (k == v):
            return None
        positions = ("inp_pos", "inp_pos" if self.pools[k].passing else "inp_kpos")
        if softmax.inputs[1:3] != positions or self.graph.shapes[kq.inputs[0]][0] != "T":
            return None
        return Attention(kq, capped, softmax, kqv, k, v, first)

    def column(self, name: str) -> tuple[str, int]:
        """The pool that holds a value, and its first column there. A slice of cached rows is read in place."""
        node = self.graph.by_name.get(name)
        if node and node.op == "slice" and node.inputs[0] in self.pools and self.pools[node.inputs[0]].heads == 1:
            return node.inputs[0], int(node.attr("start"))
        return name, 0

    def views(self, groups: Collection[Attention | Gated], keep: Collection[str]) -> set[str]:
        """Slices of the cache that only fused passes read. They are never computed."""
        passes = {g.kqv.name: g for g in groups if isinstance(g, Attention)}
        sliced = {g.kqv.inputs[1] for g in passes.values() if g.kqv.inputs[1] != g.values}
        return {n for n in sliced if n not in keep and all(r.name in passes for r in self.readers(n))}

    def gated(self, glu: Node, keep: Collection[str]) -> Gated | None:
        if glu.op not in self.gates:
            return None
        chains = [self.chain(name) for name in glu.inputs]
        if not all(chains):
            return None
        (gate, *of_gate), (up, *of_up) = chains[0], chains[-1]
        if glu.op == "glu_split" and of_gate:
            return None
        if glu.op == "glu_split":
            return Gated(gate, up, glu) if self.alone([gate, glu]) and gate.name not in keep else None
        if gate is up or gate.inputs != up.inputs or self.form(gate.weights[0]) != self.form(up.weights[0]):
            return None
        if not self.alone([gate, *of_gate, glu]) or not self.alone([up, *of_up, glu]):
            return None
        return Gated(gate, up, glu, (tuple(of_gate), tuple(of_up)))

    def chain(self, last: str) -> list[Node]:
        """The linear whose value this is, and the adapters after it; empty for the value of another operation."""
        node = self.graph.by_name.get(last)
        if node and self.adapters and is_adapter(node):
            before = self.chain(node.inputs[0])
            return [*before, node] if before else []
        return [node] if node and node.op == "linear" else []

    def product(self, linear: Node, keep: Collection[str], domains: Mapping[str, str]) -> Product:
        """A linear with the adapters, the bias and the residual add that join it. A kept node ends the chain."""
        product, order = Product(linear), self.graph.order
        while self.adapters and product.last.name not in keep:
            readers = self.readers(product.last.name)
            if len(readers) != 1 or not is_adapter(readers[0]) or readers[0].inputs[0] != product.last.name:
                break
            product = replace(product, adapters=(*product.adapters, readers[0]))
        for kind in ("bias", "add"):
            last = product.last.name
            readers = self.readers(last)
            if len(readers) != 1 or readers[0].op != kind or last in keep:
                continue
            reader = readers[0]
            if domains[last] != domains[reader.name]:
                continue
            if kind == "bias":
                product = replace(product, bias=reader)
            elif reader.inputs.count(last) == 1:
                (other,) = (n for n in reader.inputs if n != last)
                if order.get(other, -1) < order[linear.name]:
                    product = replace(product, add=reader)
        return product

    def together(self, first: Node, left: Collection[Product], domains: Mapping[str, str]) -> Products:
        """This linear and all later ones of the same input, rows and format whose residual is computed already."""
        order, form = self.graph.order, self.form(first.weights[0])
        return Products(
            tuple(
                p
                for p in left
                if p.linear.inputs == first.inputs
                and domains[p.linear.name] == domains[first.name]
                and self.form(p.linear.weights[0]) == form
                and (p.residual is None or order.get(p.residual, -1) < order[first.name])
            )
        )
