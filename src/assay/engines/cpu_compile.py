"""From the plan of a graph to a native program: every group becomes native steps, in order.

A kept node is given memory of the caller and is then written by the same step, for all tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from assay._native import Cache, Pool, Program, Vector, Weight
from assay.engines.batch import External
from assay.engines.cache import cache_pools
from assay.engines.functions import rope_angles
from assay.engines.fuse import Attention, Gated, Product, Products, Single, fuse
from assay.errors import AssayError
from assay.graph import OPS, Graph, Node


class Tensors(Protocol):
    """The loaded weights."""

    def matrix(self, name: str) -> Weight: ...
    def vector(self, name: str) -> Vector: ...
    def array(self, name: str) -> NDArray[np.float32]: ...
    def format(self, name: str) -> str: ...


@dataclass(frozen=True)
class Compiled:
    """A program and the arrays it writes, in the order it wants them."""

    program: Program
    externals: tuple[External, ...]
    aliases: Mapping[str, str]  # kept nodes that are another node's values


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
class _Compiler:
    graph: Graph
    tensors: Tensors
    program: Program
    keep: frozenset[str]
    externals: list[External] = field(default_factory=list)
    aliases: dict[str, str] = field(default_factory=dict)

    def compile(self) -> None:
        for node in self.graph:
            if lack := _beyond(node):
                raise AssayError(
                    f"node {node.name}: the cpu engine has no {node.op} with {lack}; run the reference engine"
                )
        plan = fuse(self.graph, self.keep, self.tensors.format)
        self.domains = plan.domains
        self.pools = cache_pools(self.graph)
        self.values: dict[tuple[str, str], int] = {}  # (node, domain) -> native value
        self.acts: dict[tuple[str, str, str], int] = {}  # (node, domain, format) -> prepared activations
        self.tables: dict[tuple[Any, ...], int] = {}
        for name in self.graph.given:
            self.externals.append(External(name, "tokens", self._width(name), given=True))
            self.values[name, "tokens"] = self.program.value(self._width(name), "tokens", external=True)
        for group in plan.groups:
            match group:
                case Single(node):
                    self._emit(node)
                case Products(products):
                    self._products(products)
                case Gated():
                    self._gated(group)
                case Attention():
                    self._attention(group)

    # -- values --------------------------------------------------------------------------------------------

    def _width(self, name: str) -> int:
        width = 1
        for dim in self.graph.shapes[name]:
            width *= dim if isinstance(dim, int) else 1
        return width

    def _new(self, name: str) -> int:
        """The value of a node about to be computed: the caller's memory if it is kept or is the logits."""
        domain, width = self.domains[name], self._width(name)
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

    def _emit(self, node: Node) -> None:
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
        if node.op in special:
            special[node.op](node)
        elif node.op in unary:
            if node.op in ("softmax", "argsort", "row_sum") and len(self.graph.shapes[node.inputs[0]]) != 2:
                raise AssayError(f"node {node.name}: the cpu engine has {node.op} for rows only")
            argument = float(node.attr(unary[node.op])) if unary[node.op] else 0.0
            x = self._get(node.inputs[0], self.domains[node.name])
            self.program.unary(node.op, x, argument, self._new(node.name))
        elif node.op in ("add", "gather", "div", "expert_scale"):
            a, b = (self._get(name, self.domains[node.name]) for name in node.inputs)
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
        x = self._get(node.inputs[0], self.domains[node.name])
        w = self.tensors.vector(node.weights[0])
        self.program.rms_norm(x, w, float(node.attr("eps")), parts, self._new(node.name))

    def _bias(self, node: Node) -> None:
        x = self._get(node.inputs[0], self.domains[node.name])
        self.program.bias(x, self.tensors.vector(node.weights[0]), self._new(node.name))

    def _slice(self, node: Node, start: int) -> None:
        self.program.slice(self._get(node.inputs[0], self.domains[node.name]), start, self._new(node.name))

    def _expert_sum(self, node: Node) -> None:
        self.program.expert_sum(self._get(node.inputs[0], self.domains[node.name]), self._new(node.name))

    def _products(self, products: tuple[Product, ...]) -> None:
        first = products[0].linear
        domain = self.domains[first.name]
        acts = self._prepared(first.inputs[0], domain, self.tensors.format(first.weights[0]))
        rows = []
        for p in products:
            bias = self.tensors.vector(p.bias.weights[0]) if p.bias else None
            residual = self._get(p.residual, domain) if p.residual else -1
            rows.append((self.tensors.matrix(p.linear.weights[0]), self._new(p.last.name), bias, residual))
        self.program.products(acts, rows)

    def _glu(self, node: Node) -> None:
        a, b = (self._get(name, self.domains[node.name]) for name in node.inputs)
        self.program.binary("glu", a, b, self._new(node.name), node.attr("act"))

    def _gated(self, group: Gated) -> None:
        gate, up, glu = group.gate, group.up, group.glu
        acts = self._prepared(gate.inputs[0], self.domains[glu.name], self.tensors.format(gate.weights[0]))
        gate_out, up_out = (self._new(n.name) if n.name in self.keep else -1 for n in (gate, up))
        gate_weight, up_weight = (self.tensors.matrix(n.weights[0]) for n in (gate, up))
        self.program.glu_products(acts, gate_weight, up_weight, gate_out, up_out, self._new(glu.name), glu.attr("act"))

    def _expert_linear(self, node: Node) -> None:
        x, idx = (self._get(name, self.domains[node.name]) for name in node.inputs)
        self.program.expert_product(x, idx, self.tensors.matrix(node.weights[0]), self._new(node.name))

    def _rope(self, node: Node) -> None:
        domain = self.domains[node.name]
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
        p, v = self._get(node.inputs[0], "scores"), self._get(node.inputs[1], "keys")
        self.program.kqv(p, v, int(self.graph.shapes[node.inputs[1]][1]), self._new(node.name))

    def _attention(self, group: Attention) -> None:
        kq, capped, softmax, kqv = group.kq, group.capped, group.softmax, group.kqv
        kept = {
            role: self._new(n.name)
            for role, n in (("kq", kq), ("capped", capped), ("soft_max", softmax))
            if n and n.name in self.keep
        }
        self.program.attention(
            q=self._get(kq.inputs[0], self.domains[kqv.name]),
            k_pool=self.pools[kq.inputs[1]].index,
            v_pool=self.pools[kqv.inputs[1]].index,
            n_head=int(self.graph.shapes[kq.inputs[0]][1]),
            scale=float(softmax.attr("scale")),
            cap=float(capped.attr("cap")) if capped else 0.0,
            window=int(softmax.attr("window")),
            out=self._new(kqv.name) if kqv.name in self.keep else self._heads(kqv),
            **kept,
        )

    def _heads(self, kqv: Node) -> int:
        """Memory for kqv: that of its merged form, if that is what is kept. In memory the two are the same."""
        for user in self.graph.users.get(kqv.name, ()):
            if user in self.keep and self.graph[user].op == "merge_heads":
                self.aliases[kqv.name] = user
                value = self._new(user)
                self.values[kqv.name, self.domains[kqv.name]] = value
                return value
        return self._new(kqv.name)

    def _merge_heads(self, node: Node) -> None:
        """Nothing to do: kqv is stored token by token, heads side by side."""
        domain, source = self.domains[node.name], node.inputs[0]
        if (node.name, domain) in self.values:
            return
        self.values[node.name, domain] = self._get(source, domain)
        if node.name in self.keep:
            self.aliases[node.name] = source
