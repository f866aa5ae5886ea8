"""From a graph to a native program: which nodes are computed together, on which rows, in which memory.

Every node becomes native steps in graph order. Three kinds of nodes are folded into others where nobody else
reads them, which changes when they are computed and never how:

    linears of one input          one step, no waiting between them; a bias or a residual add after one joins it
    gate, up and their product    one step
    kq, (softcap,) softmax, kqv   one pass over the cache

Rows: what only the logits need is computed for the rows whose logits are asked for. A kept node is given memory
of the caller and is then written by the same step, for all tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from assay._native import Cache, Pool, Program, Vector, Weight
from assay.engines.functions import rope_angles
from assay.errors import AssayError
from assay.graph import OPS, Graph, Node


class Tensors(Protocol):
    """The loaded weights."""

    def matrix(self, name: str) -> Weight: ...
    def vector(self, name: str) -> Vector: ...
    def array(self, name: str) -> NDArray[np.float32]: ...
    def format(self, name: str) -> str: ...


@dataclass(frozen=True)
class External:
    """A result array the caller provides: `width` floats for each row of `domain`."""

    node: str
    domain: str  # "tokens" | "outputs" | "keys" | "scores"
    width: int


@dataclass(frozen=True)
class Compiled:
    """A program and the arrays it writes, in the order it wants them."""

    program: Program
    externals: tuple[External, ...]
    aliases: Mapping[str, str]  # kept nodes that are another node's values


@dataclass(frozen=True)
class CachePool:
    """One `cache` node: its place among the pools and the shape of a position."""

    index: int
    keys: bool  # read by kq, hence stored transposed
    heads: int
    dim: int


def cache_pools(graph: Graph) -> dict[str, CachePool]:
    """The pools a graph needs; the same for every program of the graph."""
    pools: dict[str, CachePool] = {}
    for node in graph:
        if node.op == "cache":
            readers = [graph[user] for user in graph.users.get(node.name, ())]
            keys = any(r.op == "kq" and r.inputs[1] == node.name for r in readers)
            heads, dim = graph.shapes[node.name][1:]
            pools[node.name] = CachePool(len(pools), keys, int(heads), int(dim))
    return pools


def compile_program(
    graph: Graph,
    tensors: Tensors,
    pool: Pool,
    cache: Cache,
    keep: Collection[str] = (),
    *,
    exact: bool = False,
) -> Compiled:
    """The program that fills the cache, gives the logits, and keeps the nodes in `keep`."""
    compiler = _Compiler(graph, tensors, Program(pool, cache, exact), frozenset(keep))
    compiler.compile()
    return Compiled(compiler.program, tuple(compiler.externals), compiler.aliases)


# What an operation may be asked for that this engine has no step for: attributes away from their default, weights.
_BEYOND = {
    "rope": (("offset",), 1),
    "slice": (("n_head",), 0),
    "kq": (("n_head", "n_head_kv"), 0),
    "attn_softmax": (("causal", "chunk", "max_bias"), 0),
    "kqv": (("n_head_kv",), 0),
}


def _beyond(node: Node) -> str:
    """What this engine lacks of an operation it knows, or nothing."""
    attrs, n_weights = _BEYOND.get(node.op, ((), len(node.weights)))
    found = [a for a in attrs if node.attr(a) != OPS[node.op].attrs[a]] + list(node.weights[n_weights:])
    if node.op == "rms_norm" and not node.weights:
        found.append("no weight")
    return ", ".join(found)


@dataclass
class _Attention:
    """The nodes that one pass over the cache computes."""

    kq: Node
    capped: Node | None
    softmax: Node
    kqv: Node


@dataclass
class _Product:
    """A linear node with what joins it."""

    linear: Node
    bias: Node | None = None
    add: Node | None = None

    @property
    def last(self) -> Node:
        return self.add or self.bias or self.linear

    @property
    def residual(self) -> str | None:
        if self.add is None:
            return None
        own = (self.bias or self.linear).name
        return next(name for name in self.add.inputs if name != own)


@dataclass
class _Compiler:
    graph: Graph
    tensors: Tensors
    program: Program
    keep: frozenset[str]
    externals: list[External] = field(default_factory=list)
    aliases: dict[str, str] = field(default_factory=dict)

    def compile(self) -> None:
        graph = self.graph
        self.pools = cache_pools(graph)
        self.needed = self._ancestors({graph.output, *self.pools, *self.keep})
        for node in graph:
            if node.name in self.needed and (lack := _beyond(node)):
                raise AssayError(
                    f"node {node.name}: the cpu engine has no {node.op} with {lack}; run the reference engine"
                )
        self.order = {node.name: i for i, node in enumerate(graph)}
        self.values: dict[tuple[str, str], int] = {}  # (node, domain) -> native value
        self.acts: dict[tuple[str, str, str], int] = {}  # (node, domain, format) -> prepared activations
        self.tables: dict[tuple[Any, ...], int] = {}
        self.attentions = {a.kqv.name: a for node in graph if (a := self._match_attention(node))}
        self.gated = {n.name: pair for n in graph if n.name in self.needed and (pair := self._match_glu(n))}
        folded = {name: {n.name for n in pair} for name, pair in self.gated.items()}
        folded |= {name: {n.name for n in (a.kq, a.capped, a.softmax) if n} for name, a in self.attentions.items()}
        inside = set().union(*folded.values())
        # What must exist for every token: what the cache and the trace depend on, and scores outside a fused pass.
        loose = {n.name for n in graph if n.op in ("kq", "attn_softmax", "kqv", "embed") and n.name in self.needed}
        loose -= inside | self.attentions.keys()
        loose |= {name for name, parts in folded.items() if parts & self.keep}
        self.full = self._ancestors({*self.pools, *self.keep, *loose})
        self.products = self._match_products(inside)
        done = inside | {n.name for p in self.products.values() for n in (p.bias, p.add) if n}
        for node in graph:
            if node.name in self.needed and node.name not in done:
                self._emit(node, done)

    def _ancestors(self, targets: Collection[str]) -> set[str]:
        found: set[str] = set()
        for node in reversed(self.graph.nodes):
            if node.name in targets or node.name in found:
                found.add(node.name)
                found.update(node.inputs)
        return found

    # -- what is computed together -------------------------------------------------------------------------

    def _only_reader(self, name: str, reader: str) -> bool:
        return [u for u in self.graph.users.get(name, ()) if u in self.needed] == [reader]

    def _match_attention(self, kqv: Node) -> _Attention | None:
        if kqv.op != "kqv" or kqv.name not in self.needed:
            return None
        softmax, v = (self.graph.by_name.get(name) for name in kqv.inputs)
        if not softmax or softmax.op != "attn_softmax" or not v or v.op != "cache":
            return None
        capped: Node | None = None
        kq = self.graph.by_name.get(softmax.inputs[0])
        if kq and kq.op == "softcap":
            capped, kq = kq, self.graph.by_name.get(kq.inputs[0])
        if not kq or kq.op != "kq" or softmax.inputs[1:] != ("inp_pos", "inp_kpos"):
            return None
        k = self.graph.by_name.get(kq.inputs[1])
        chain = [n for n in (kq, capped, softmax, kqv) if n]
        alone = all(self._only_reader(a.name, b.name) for a, b in pairwise(chain))
        keys_and_values = k is not None and k.op == "cache" and not self.pools[v.name].keys
        queries = self.graph.shapes[kq.inputs[0]][0] == "T" if kq else False
        return _Attention(kq, capped, softmax, kqv) if alone and keys_and_values and queries else None

    def _match_glu(self, glu: Node) -> tuple[Node, Node] | None:
        if glu.op != "glu":
            return None
        gate, up = (self.graph.by_name.get(name) for name in glu.inputs)
        if not gate or not up or gate is up or gate.op != "linear" or up.op != "linear":
            return None
        if gate.inputs != up.inputs or self.tensors.format(gate.weights[0]) != self.tensors.format(up.weights[0]):
            return None
        alone = self._only_reader(gate.name, glu.name) and self._only_reader(up.name, glu.name)
        return (gate, up) if alone else None

    def _match_products(self, inside: set[str]) -> dict[str, _Product]:
        """Each loose linear with the bias and the residual that join it. A kept node ends its chain."""
        found = {}
        for node in self.graph:
            if node.op != "linear" or node.name not in self.needed or node.name in inside:
                continue
            product = _Product(node)
            for kind in ("bias", "add"):
                last = product.last
                readers = [self.graph[u] for u in self.graph.users.get(last.name, ()) if u in self.needed]
                if len(readers) != 1 or readers[0].op != kind or last.name in self.keep:
                    continue
                if (last.name in self.full) != (readers[0].name in self.full):
                    continue
                if kind == "bias":
                    product.bias = readers[0]
                elif readers[0].inputs.count(last.name) == 1:
                    (other,) = (n for n in readers[0].inputs if n != last.name)
                    if self.order.get(other, -1) < self.order[node.name]:
                        product.add = readers[0]
            found[node.name] = product
        return found

    # -- values --------------------------------------------------------------------------------------------

    def _domain(self, name: str) -> str:
        shape = self.graph.shapes[name]
        if "S" in shape:
            return "scores" if len(shape) == 3 and shape[2] == "S" else "keys"
        return "tokens" if name in self.full else "outputs"

    def _width(self, name: str) -> int:
        width = 1
        for dim in self.graph.shapes[name]:
            width *= dim if isinstance(dim, int) else 1
        return width

    def _new(self, name: str) -> int:
        """The value of a node about to be computed: the caller's memory if it is kept or is the logits."""
        domain, width = self._domain(name), self._width(name)
        external = name in self.keep or name == self.graph.output
        if external:
            self.externals.append(External(name, domain, width))
        value = self.values[name, domain] = self.program.value(width, domain, external)
        return value

    def _get(self, name: str, domain: str) -> int:
        """The value of a computed node on the rows of `domain`."""
        found = self.values.get((name, domain))
        if found is not None:
            return found
        if domain == "outputs" and (name, "tokens") in self.values:
            value = self.program.value(self._width(name), "outputs")
            self.program.output_rows(self.values[name, "tokens"], value)
        elif domain == "keys" and name in self.pools:
            value = self.program.value(self._width(name), "keys")
            self.program.cache_read(self.pools[name].index, value)
        else:
            raise AssayError(f"node {name}: the cpu engine cannot use it here; run the reference engine")
        self.values[name, domain] = value
        return value

    def _prepared(self, name: str, domain: str, form: str) -> int:
        key = (name, domain, form)
        if key not in self.acts:
            x = self._get(name, domain)
            self.acts[key] = self.program.acts(self._width(name), domain, form)
            self.program.prepare(x, self.acts[key])
        return self.acts[key]

    # -- steps ---------------------------------------------------------------------------------------------

    def _emit(self, node: Node, done: set[str]) -> None:
        special: dict[str, Callable[[Node], None]] = {
            "embed": self._embed,
            "rms_norm": self._rms_norm,
            "bias": self._bias,
            "slice": lambda n: self._slice(n, n.attr("start")),
            "topk": lambda n: self._slice(n, 0),
            "rope": self._rope,
            "cache": self._cache,
            "kq": self._kq,
            "attn_softmax": self._attn_softmax,
            "kqv": self._kqv,
            "merge_heads": self._merge_heads,
            "glu": self._glu,
            "expert_linear": self._expert_linear,
            "expert_sum": self._expert_sum,
        }
        unary = {"scale": "factor", "softcap": "cap", "clamp_min": "lo", "softmax": "", "argsort": "", "row_sum": ""}
        if node.op == "linear":
            self._linears(node, done)
        elif node.op in special:
            special[node.op](node)
        elif node.op in unary:
            if node.op in ("softmax", "argsort", "row_sum") and len(self.graph.shapes[node.inputs[0]]) != 2:
                raise AssayError(f"node {node.name}: the cpu engine has {node.op} for rows only")
            argument = float(node.attr(unary[node.op])) if unary[node.op] else 0.0
            x = self._get(node.inputs[0], self._domain(node.name))
            self.program.unary(node.op, x, argument, self._new(node.name))
        elif node.op in ("add", "gather", "div", "expert_scale"):
            a, b = (self._get(name, self._domain(node.name)) for name in node.inputs)
            self.program.binary(node.op, a, b, self._new(node.name))
        else:
            raise AssayError(f"node {node.name}: the cpu engine does not know the operation {node.op}")

    def _embed(self, node: Node) -> None:
        if node.inputs != ("inp_tokens",):
            raise AssayError(f"node {node.name}: the cpu engine embeds inp_tokens only (found {node.inputs[0]})")
        self.program.embed(self.tensors.matrix(node.weights[0]), self._new(node.name))

    def _rms_norm(self, node: Node) -> None:
        shape = self.graph.shapes[node.inputs[0]]
        parts = int(shape[1]) if len(shape) == 3 else node.attr("n_head") or 1
        x = self._get(node.inputs[0], self._domain(node.name))
        w = self.tensors.vector(node.weights[0])
        self.program.rms_norm(x, w, float(node.attr("eps")), parts, self._new(node.name))

    def _bias(self, node: Node) -> None:
        x = self._get(node.inputs[0], self._domain(node.name))
        self.program.bias(x, self.tensors.vector(node.weights[0]), self._new(node.name))

    def _slice(self, node: Node, start: int) -> None:
        self.program.slice(self._get(node.inputs[0], self._domain(node.name)), start, self._new(node.name))

    def _expert_sum(self, node: Node) -> None:
        self.program.expert_sum(self._get(node.inputs[0], self._domain(node.name)), self._new(node.name))

    def _linears(self, first: Node, done: set[str]) -> None:
        """This linear and all later ones of the same input and rows, as one step."""
        domain, form = self._domain(first.name), self.tensors.format(first.weights[0])
        group = [
            p
            for p in self.products.values()
            if p.linear.inputs == first.inputs
            and p.linear.name not in done
            and self._domain(p.linear.name) == domain
            and self.tensors.format(p.linear.weights[0]) == form
            and (p.residual is None or self.order.get(p.residual, -1) < self.order[first.name])
        ]
        acts = self._prepared(first.inputs[0], domain, form)
        rows = []
        for p in group:
            done.add(p.linear.name)
            bias = self.tensors.vector(p.bias.weights[0]) if p.bias else None
            residual = self._get(p.residual, domain) if p.residual else -1
            rows.append((self.tensors.matrix(p.linear.weights[0]), self._new(p.last.name), bias, residual))
        self.program.products(acts, rows)

    def _glu(self, node: Node) -> None:
        domain = self._domain(node.name)
        if node.name not in self.gated:
            a, b = (self._get(name, domain) for name in node.inputs)
            self.program.binary("glu", a, b, self._new(node.name), node.attr("act"))
            return
        gate, up = self.gated[node.name]
        acts = self._prepared(gate.inputs[0], domain, self.tensors.format(gate.weights[0]))
        gate_out, up_out = (self._new(n.name) if n.name in self.keep else -1 for n in (gate, up))
        self.program.glu_products(
            acts,
            self.tensors.matrix(gate.weights[0]),
            self.tensors.matrix(up.weights[0]),
            gate_out,
            up_out,
            self._new(node.name),
            node.attr("act"),
        )

    def _expert_linear(self, node: Node) -> None:
        x, idx = (self._get(name, self._domain(node.name)) for name in node.inputs)
        self.program.expert_product(x, idx, self.tensors.matrix(node.weights[0]), self._new(node.name))

    def _rope(self, node: Node) -> None:
        domain = self._domain(node.name)
        rows = {"inp_pos": "tokens", "inp_kpos": "keys"}.get(node.inputs[1])
        if rows is None or (rows == "keys") != (domain == "keys"):
            raise AssayError(f"node {node.name}: the cpu engine cannot turn by {node.inputs[1]}")
        attrs = node.all_attrs()
        heads, mode, _ = attrs.pop("n_head"), attrs.pop("mode"), attrs.pop("offset")
        factors = self.tensors.array(node.weights[0]) if node.weights else None
        angles, magnitude = rope_angles(np.ones(1), factors, **attrs)
        key = (angles.tobytes(), magnitude)
        if (*key, rows) not in self.tables:
            table = self.tables[*key, rows] = self.program.value(2 * angles.shape[1], rows)
            self.program.rope_table(angles[0].tolist(), magnitude, table)
        if (*key, domain) not in self.tables:
            table = self.tables[*key, domain] = self.program.value(2 * angles.shape[1], domain)
            self.program.output_rows(self.tables[*key, rows], table)
        x = self._get(node.inputs[0], domain)
        self.program.rope(x, self.tables[*key, domain], heads, mode == "neox", self._new(node.name))

    def _cache(self, node: Node) -> None:
        self.program.cache_write(self._get(node.inputs[0], "tokens"), self.pools[node.name].index)
        if node.name in self.keep:
            self.program.cache_read(self.pools[node.name].index, self._new(node.name))

    def _kq(self, node: Node) -> None:
        q, k = self._get(node.inputs[0], "tokens"), self._get(node.inputs[1], "keys")
        heads, kv_heads = (int(self.graph.shapes[name][1]) for name in node.inputs)
        self.program.kq(q, k, heads, kv_heads, self._new(node.name))

    def _attn_softmax(self, node: Node) -> None:
        if node.inputs[1:] != ("inp_pos", "inp_kpos"):
            raise AssayError(f"node {node.name}: the cpu engine masks by inp_pos and inp_kpos only")
        x = self._get(node.inputs[0], "scores")
        self.program.attn_softmax(x, float(node.attr("scale")), node.attr("window"), self._new(node.name))

    def _kqv(self, node: Node) -> None:
        fused = self.attentions.get(node.name)
        if fused is None:
            p, v = self._get(node.inputs[0], "scores"), self._get(node.inputs[1], "keys")
            self.program.kqv(p, v, int(self.graph.shapes[node.inputs[1]][1]), self._new(node.name))
            return
        kept = {
            role: self._new(n.name)
            for role, n in (("kq", fused.kq), ("capped", fused.capped), ("soft_max", fused.softmax))
            if n and n.name in self.keep
        }
        self.program.attention(
            q=self._get(fused.kq.inputs[0], self._domain(node.name)),
            k_pool=self.pools[fused.kq.inputs[1]].index,
            v_pool=self.pools[node.inputs[1]].index,
            n_head=int(self.graph.shapes[fused.kq.inputs[0]][1]),
            scale=float(fused.softmax.attr("scale")),
            cap=float(fused.capped.attr("cap")) if fused.capped else 0.0,
            window=int(fused.softmax.attr("window")),
            out=self._new(node.name) if node.name in self.keep else self._heads(node),
            **kept,
        )

    def _heads(self, kqv: Node) -> int:
        """Memory for kqv: that of its merged form, if that is what is kept. In memory the two are the same."""
        for user in self.graph.users.get(kqv.name, ()):
            if user in self.keep and self.graph[user].op == "merge_heads":
                self.aliases[kqv.name] = user
                value = self._new(user)
                self.values[kqv.name, self._domain(kqv.name)] = value
                return value
        return self._new(kqv.name)

    def _merge_heads(self, node: Node) -> None:
        """Nothing to do: kqv is stored token by token, heads side by side."""
        domain, source = self._domain(node.name), node.inputs[0]
        if (node.name, domain) in self.values:
            return
        self.values[node.name, domain] = self._get(source, domain)
        if node.name in self.keep:
            self.aliases[node.name] = source
