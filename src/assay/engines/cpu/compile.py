"""The compiler of the cpu engine: every group of a graph's plan becomes native steps, in order.

A kept node gets memory of the caller, and the same step that computes it writes it there, for all tokens. `_STEPS` has
a row for each operation. Touch this when the cpu engine gets a kernel for a further operation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from assay._native import Cache, Mask, Pool, Program, Vector, Weight
from assay.engines.cpu.foreign_kernels import kernel_address, numeric_attributes
from assay.engines.plan.batching import External
from assay.engines.plan.fuse import Attention, Gated, Product, Products, Single, fuse
from assay.engines.plan.state_layout import cache_pools, slot_offsets
from assay.engines.plan.values import RopeTable, attention_mask, heads_in_row, rope_table, row_width
from assay.engines.reference.recurrent_functions import xielu_factors
from assay.errors import AssayError
from assay.graph import Graph, Node, Trait

GATES = ("glu", "glu_split")  # computed block by block, together with their products
AdapterRow = tuple[int, float, int, Vector]  # scale, factor, rank and pair


class LoadedTensors(Protocol):
    """The loaded weights."""

    def matrix(self, name: str) -> Weight: ...
    def halves(self, name: str) -> tuple[Weight, Weight]: ...
    def vector(self, name: str) -> Vector: ...
    def adapter(self, a: str, b: str) -> Vector: ...
    def array(self, name: str) -> NDArray[np.float32]: ...
    def format(self, name: str) -> str: ...


@dataclass(frozen=True)
class Compiled:
    """A program and the arrays that it reads and writes, in the order of its arguments."""

    program: Program
    externals: tuple[External, ...]
    aliases: Mapping[str, str]  # kept node -> the node whose values it shares


def compile_program(
    graph: Graph,
    tensors: LoadedTensors,
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


@dataclass
class _Compiler:
    graph: Graph
    tensors: LoadedTensors
    program: Program
    keep: frozenset[str]
    externals: list[External] = field(default_factory=list)
    aliases: dict[str, str] = field(default_factory=dict)

    def compile(self) -> None:
        plan = fuse(self.graph, self.keep, self.tensors.format, GATES, adapters=True)
        self.domains = plan.domains
        self.pools = cache_pools(self.graph)
        self.states, _ = slot_offsets(self.graph)  # node -> where its state begins in a state slot
        self.values: dict[tuple[str, str], int] = {}  # (node, domain) -> native value
        self.acts: dict[tuple[str, str, str], int] = {}  # (node, domain, format) -> prepared activations
        self.tables: dict[tuple[RopeTable, str], int] = {}  # (table, domain) -> native value
        for name in self.graph.given:
            self.externals.append(External(name, "tokens", self._width(name), given=True))
            self.values[name, "tokens"] = self.program.value(self._width(name), "tokens", external=True)
        for group in plan.groups:
            match group:
                case Single(node):
                    self._single(node)
                case Products(products):
                    self._products(products)
                case Gated():
                    self._gated(group)
                case Attention():
                    self._attention(group)

    # -- values --------------------------------------------------------------------------------------------

    def _width(self, name: str) -> int:
        return row_width(self.graph, name)

    def _new(self, name: str) -> int:
        """A value for a node that the next step computes: memory of the caller if it is kept or is the output."""
        domain, width = self.domains[name], self._width(name)
        external = name in self.keep or name == self.graph.output
        if external:
            self.externals.append(External(name, domain, width))
        value = self.values[name, domain] = self.program.value(width, domain, external)
        return value

    def _get(self, name: str, domain: str) -> int:
        """The value of a computed node, on the rows of `domain`."""
        found = self.values.get((name, domain))
        if found is not None:
            return found
        if domain == "outputs" and (name, "tokens") in self.values:
            value = self.program.value(self._width(name), "outputs")
            self.program.output_rows(self.values[name, "tokens"], value)
        elif domain == "keys" and name in self.pools:
            value = self.program.value(self._width(name), "keys")
            self.program.cache_read(self._pool(name), value)
        else:
            raise AssayError(f"node {name}: the cpu engine cannot use it here; run the reference engine")
        self.values[name, domain] = value
        return value

    def _input(self, node: Node) -> int:
        """Its first input, on its own rows."""
        return self._get(node.inputs[0], self.domains[node.name])

    def _pair(self, node: Node) -> tuple[int, int]:
        """Its two inputs, on its own rows."""
        a, b = (self._get(name, self.domains[node.name]) for name in node.inputs)
        return a, b

    def _pool(self, name: str) -> int:
        """The pool with a node's keys or values. Rows that the graph does not cache are written to it first."""
        pool = self.pools[name]
        if pool.passing:
            self.program.cache_write(self._get(name, "tokens"), pool.index)
        return pool.index

    def _parts(self, name: str, n_head: int) -> int:
        return heads_in_row(self.graph, name, n_head)

    def _prepared(self, name: str, domain: str, form: str) -> int:
        key = (name, domain, form)
        if key not in self.acts:
            x = self._get(name, domain)
            self.acts[key] = self.program.acts(self._width(name), domain, form)
            self.program.prepare(x, self.acts[key])
        return self.acts[key]

    # -- steps ---------------------------------------------------------------------------------------------

    def _single(self, node: Node) -> None:
        if emit := _STEPS.get(node.op):
            emit(self, node)
        elif (function := kernel_address(node.op)) is not None:
            self._foreign(node, function)
        else:
            raise AssayError(f"node {node.name}: the cpu engine does not know the operation {node.op}")

    def _foreign(self, node: Node, function: int) -> None:
        """A kernel of another package: rows in, rows out."""
        domain = self.domains[node.name]
        inputs = [self._get(name, domain) for name in node.inputs]
        weights = [self.tensors.vector(name) for name in node.weights]
        self.program.foreign(function, inputs, weights, numeric_attributes(node), self._new(node.name))

    def _embed(self, node: Node) -> None:
        if node.inputs[0] not in ("inp_tokens", "inp_pos"):
            raise AssayError(f"node {node.name}: the cpu engine embeds tokens and positions (found {node.inputs[0]})")
        by_position = node.inputs == ("inp_pos",)
        self.program.embed(self.tensors.matrix(node.weights[0]), by_position, self._new(node.name))

    def _rms_norm(self, node: Node) -> None:
        x, parts = self._input(node), self._parts(node.inputs[0], node.attr("n_head"))
        w = self.tensors.vector(node.weights[0]) if node.weights else None
        self.program.rms_norm(x, w, float(node.attr("eps")), parts, self._new(node.name))

    def _layer_norm(self, node: Node) -> None:
        x, parts = self._input(node), self._parts(node.inputs[0], node.attr("n_head"))
        w, b = (*(self.tensors.vector(name) for name in node.weights), None)[:2]
        assert w is not None
        self.program.layer_norm(x, w, b, float(node.attr("eps")), parts, self._new(node.name))

    def _bias(self, node: Node) -> None:
        row = node.all_attrs().get("row", 0)
        width = int(self.graph.shapes[node.name][-1])
        values = self.tensors.array(node.weights[0]).reshape(-1, width)[row]
        self.program.bias(self._input(node), Vector(np.ascontiguousarray(values)), self._new(node.name))

    def _add_row(self, node: Node) -> None:
        """Row `row` of a table, or for each token the row that it is given."""
        if len(node.inputs) == 1:
            self._bias(node)
        else:
            self._expert_rows(replace(node, op="expert_bias"))

    def _gain(self, node: Node) -> None:
        self.program.gain(self._input(node), self.tensors.vector(node.weights[0]), self._new(node.name))

    def _unary(self, node: Node) -> None:
        """A function of one row with at most one argument, which is the operation's only attribute."""
        argument = next(iter(node.all_attrs().values()), 0.0)
        whole_rows = not node.has(Trait.ELEMENTWISE)
        if whole_rows and len(self.graph.shapes[node.inputs[0]]) != 2:
            raise AssayError(f"node {node.name}: the cpu engine has {node.op} for rows only")
        self.program.unary(node.op, self._input(node), float(argument), self._new(node.name))

    def _binary(self, node: Node) -> None:
        act = node.all_attrs().get("act", "silu")
        self.program.binary(node.op, *self._pair(node), self._new(node.name), act)

    def _act(self, node: Node) -> None:
        self.program.act(self._input(node), node.attr("act"), self._new(node.name))

    def _glu_split(self, node: Node) -> None:
        parts = self._parts(node.inputs[0], 1)
        self.program.glu_split(self._input(node), node.attr("act"), parts, self._new(node.name))

    def _glu_oai(self, node: Node) -> None:
        alpha, limit = float(node.attr("alpha")), float(node.attr("limit"))
        self.program.glu_oai(*self._pair(node), alpha, limit, self._new(node.name))

    def _clamp(self, node: Node) -> None:
        self.program.clamp(self._input(node), float(node.attr("lo")), float(node.attr("hi")), self._new(node.name))

    def _slice(self, node: Node) -> None:
        parts = self._parts(node.inputs[0], node.attr("n_head"))
        self.program.slice(self._input(node), node.attr("start"), parts, self._new(node.name))

    def _topk(self, node: Node) -> None:
        self.program.slice(self._input(node), 0, 1, self._new(node.name))

    def _concat(self, node: Node) -> None:
        a, b = self._pair(node)
        heads = node.attr("n_head")
        parts = [self._parts(name, heads) for name in node.inputs]
        self.program.concat(a, b, parts[0], parts[1], heads, self._new(node.name))

    def _pos_scale(self, node: Node) -> None:
        if node.inputs[1] != "inp_pos":
            raise AssayError(f"node {node.name}: the cpu engine scales by inp_pos only (found {node.inputs[1]})")
        x = self._get(node.inputs[0], self.domains[node.name])
        beta, unit, offset = float(node.attr("beta")), int(node.attr("unit")), int(node.attr("offset"))
        self.program.pos_scale(x, beta, unit, offset, self._new(node.name))

    def _pool_rows(self, node: Node) -> None:
        self.program.pool_rows(self._get(node.inputs[0], "tokens"), node.attr("kind"), self._new(node.name))

    def _group_mask(self, node: Node) -> None:
        self.program.group_mask(self._input(node), node.attr("groups"), node.attr("used"), self._new(node.name))

    def _expert_rows(self, node: Node) -> None:
        x, idx = self._pair(node)
        self.program.expert_rows(node.op, x, idx, self.tensors.vector(node.weights[0]), self._new(node.name))

    def _expert_sum(self, node: Node) -> None:
        self.program.expert_sum(self._input(node), self._new(node.name))

    def _expert_linear(self, node: Node) -> None:
        x, idx = self._pair(node)
        self.program.expert_product(x, idx, self.tensors.matrix(node.weights[0]), self._new(node.name))

    def _head_linear(self, node: Node) -> None:
        """Heads lie side by side in a row: matrix h multiplies part h."""
        self.program.expert_product(self._input(node), -1, self.tensors.matrix(node.weights[0]), self._new(node.name))

    def _products(self, products: tuple[Product, ...]) -> None:
        first = products[0].linear
        domain = self.domains[first.name]
        acts = self._prepared(first.inputs[0], domain, self.tensors.format(first.weights[0]))
        rows = []
        for p in products:
            bias = self.tensors.vector(p.bias.weights[0]) if p.bias else None
            residual = self._get(p.residual, domain) if p.residual else -1
            rows.append((self.tensors.matrix(p.linear.weights[0]), self._new(p.last.name), bias, residual))
        self.program.products(acts, rows, *self._adapters([p.adapters for p in products], first.inputs[0], domain))

    def _gated(self, group: Gated) -> None:
        gate, up, glu = group.gate, group.up, group.glu
        acts = self._prepared(gate.inputs[0], self.domains[glu.name], self.tensors.format(gate.weights[0]))
        lasts = [(n, *adapters)[-1].name for n, adapters in zip((gate, up), group.adapters, strict=True)]
        kept = [self._new(name) if name in self.keep else -1 for name in lasts]
        adapters = self._adapters(group.adapters, gate.inputs[0], self.domains[glu.name])
        if group.one_matrix:
            weights = self.tensors.halves(gate.weights[0])
        else:
            weights = self.tensors.matrix(gate.weights[0]), self.tensors.matrix(up.weights[0])
        act = glu.attr("act")
        self.program.glu_products(acts, *weights, kept[0], kept[1], self._new(glu.name), act, *adapters)

    def _adapters(self, of: Sequence[Sequence[Node]], x: str, domain: str) -> tuple[list[list[AdapterRow]], int]:
        """The adapters of each product, and the rows that they read; none if no product has any."""
        if not any(of):
            return [], -1
        found = [
            [
                (
                    self._get(node.inputs[2], domain),
                    float(node.attr("factor")),
                    int(self.graph.weights[node.weights[0]][0]),
                    self.tensors.adapter(*node.weights),
                )
                for node in nodes
            ]
            for nodes in of
        ]
        return found, self._get(x, domain)

    def _rope(self, node: Node) -> None:
        domain = self.domains[node.name]
        rows = {"inp_pos": "tokens", "inp_kpos": "keys"}.get(node.inputs[1])
        if rows is None or (rows == "keys") != (domain == "keys"):
            raise AssayError(f"node {node.name}: the cpu engine cannot turn by {node.inputs[1]}")
        rope = rope_table(node, self.tensors.array(node.weights[0]) if node.weights else None)
        if (rope, rows) not in self.tables:
            table = self.tables[rope, rows] = self.program.value(rope.n_rot, rows)
            self.program.rope_table(list(rope.frequencies), rope.magnitude, table)
        if (rope, domain) not in self.tables:
            table = self.tables[rope, domain] = self.program.value(rope.n_rot, domain)
            self.program.output_rows(self.tables[rope, rows], table)
        x, heads, offset = self._get(node.inputs[0], domain), node.attr("n_head"), node.attr("offset")
        neox = node.attr("mode") == "neox"
        self.program.rope(x, self.tables[rope, domain], heads, offset, neox, self._new(node.name))

    def _rope_given(self, node: Node) -> None:
        """Rotation by a table that the caller gives, or that the graph computes: cosines, then sines."""
        domain = self.domains[node.name]
        x, table = (self._get(name, domain) for name in node.inputs)
        neox = node.attr("mode") == "neox"
        self.program.rope(x, table, node.attr("n_head"), node.attr("offset"), neox, self._new(node.name))

    def _cache(self, node: Node) -> None:
        self.program.cache_write(self._get(node.inputs[0], "tokens"), self.pools[node.name].index)
        if node.name in self.keep:
            self.program.cache_read(self.pools[node.name].index, self._new(node.name))

    def _kq(self, node: Node) -> None:
        q, k = self._get(node.inputs[0], "tokens"), self._get(node.inputs[1], "keys")
        kv_heads = self._parts(node.inputs[1], node.attr("n_head_kv"))
        self.program.kq(q, k, int(self.graph.shapes[node.name][0]), kv_heads, self._new(node.name))

    def _mask(self, node: Node) -> Mask:
        mask = attention_mask(self.graph, node, None, "the cpu engine masks by inp_pos and inp_kpos only")
        return Mask(
            scale=mask.scale,
            window=mask.window,
            chunk=mask.chunk,
            causal=mask.causal,
            sinks=self.tensors.vector(mask.sinks) if mask.sinks else None,
            slopes=Vector(np.array(mask.slopes, np.float32)) if mask.slopes else None,
        )

    def _attn_softmax(self, node: Node) -> None:
        x, last = self._get(node.inputs[0], "scores"), self._last(node)
        self.program.attn_softmax(x, self._mask(node), self._new(node.name), last)

    def _last(self, softmax: Node) -> int:
        """The value with the last slot that each query sees, or -1."""
        return self._get(softmax.inputs[3], "tokens") if len(softmax.inputs) > 3 else -1

    def _kqv(self, node: Node) -> None:
        p, v = self._get(node.inputs[0], "scores"), self._get(node.inputs[1], "keys")
        self.program.kqv(p, v, self._parts(node.inputs[1], node.attr("n_head_kv")), self._new(node.name))

    def _attention(self, group: Attention) -> None:
        kq, capped, softmax, kqv = group.kq, group.capped, group.softmax, group.kqv
        k_pool, v_pool = self._pool(group.keys), self._pool(group.values)
        kept = {
            role: self._new(n.name)
            for role, n in (("kq", kq), ("capped", capped), ("soft_max", softmax))
            if n and n.name in self.keep
        }
        self.program.attention(
            q=self._get(kq.inputs[0], self.domains[kqv.name]),
            k_pool=k_pool,
            v_pool=v_pool,
            n_head=int(self.graph.shapes[kq.name][0]),
            cap=float(capped.attr("cap")) if capped else 0.0,
            mask=self._mask(softmax),
            v_first=group.first,
            last=self._last(softmax),
            out=self._new(kqv.name) if kqv.name in self.keep else self._heads(kqv),
            **kept,
        )

    def _heads(self, kqv: Node) -> int:
        """Memory for kqv. If its merged form is kept, both share memory: the layout is the same."""
        for user in self.graph.users.get(kqv.name, ()):
            if user in self.keep and self.graph[user].has(Trait.RESHAPES):
                self.aliases[kqv.name] = user
                value = self._new(user)
                self.values[kqv.name, self.domains[kqv.name]] = value
                return value
        return self._new(kqv.name)

    # -- layers that remember ------------------------------------------------------------------------------

    def _convolution(self, node: Node) -> None:
        w = self.tensors.vector(node.weights[0])
        self.program.causal_conv(self._input(node), w, self.states[node.name], self._new(node.name))

    def _shift(self, node: Node) -> None:
        self.program.shift(self._input(node), self.states[node.name], self._new(node.name))

    def _scan(self, node: Node) -> None:
        attrs = node.all_attrs()
        self.program.scan(
            node.op,
            [self._get(name, "tokens") for name in node.inputs],
            self.tensors.vector(node.weights[0]) if node.weights else None,
            heads=attrs["n_head"],
            groups=attrs.get("n_head_k") or attrs.get("n_group") or 1,
            channels=int(attrs["state"][-1]),
            scale=float(attrs.get("scale", 1.0)),
            state=self.states[node.name],
            out=self._new(node.name),
        )

    def _show_state(self, node: Node) -> None:
        shapes = {name: self.graph.state.by_node[name].shape for name in node.inputs}
        parts = [(self.states[name], math.prod(shape)) for name, shape in shapes.items()]
        self.program.show_state(parts, node.op == "state_after", self._new(node.name))

    def _many(self, node: Node) -> None:
        """A row operation of several operands, with the numbers that its kernel takes."""
        attrs, width = node.all_attrs(), self._width(node.name)
        numbers: tuple[float, ...] = ()
        weight = self.tensors.vector(node.weights[0]) if len(node.weights) == 1 else None
        match node.op:
            case "l2_norm":
                numbers = attrs["eps"], self._parts(node.inputs[0], attrs["n_head"]), attrs["floor"]
            case "xielu":
                factors = xielu_factors(attrs["alpha_p"], attrs["alpha_n"], attrs["beta"])
                numbers = *factors, attrs["beta"], attrs["eps"]
            case "repeat_heads":
                numbers = self._parts(node.inputs[0], 1), attrs["n_head"]
            case "head_bonus":
                numbers = (attrs["n_head"],)
            case "mix_streams" | "add_to_streams":
                numbers = attrs["n_stream"], attrs.get("first", 0)
            case "lerp_row":
                rows = self.tensors.array(node.weights[0]).reshape(-1, width)
                weight = Vector(np.ascontiguousarray(rows[attrs["row"]]))
        inputs = [self._get(name, self.domains[node.name]) for name in node.inputs]
        self.program.rows_of_many(node.op, inputs, weight, [float(x) for x in numbers], self._new(node.name))

    def _join(self, node: Node) -> None:
        if len(node.inputs) == 1:
            self._relabel(node)
        else:
            self._many(node)

    def _relabel(self, node: Node) -> None:
        """Heads first or tokens first is an axis order of the graph only. In memory rows lie token by token."""
        domain, source = self.domains[node.name], node.inputs[0]
        if (node.name, domain) in self.values:
            return
        value = self._get(source, domain)
        if node.name not in self.keep and node.name != self.graph.output:
            self.values[node.name, domain] = value
        elif source in self.keep:
            self.values[node.name, domain] = value
            self.aliases[node.name] = source
        else:
            self.program.slice(value, 0, 1, self._new(node.name))


# A row for each operation. Linears are compiled in groups, so they have no row.
_STEPS: dict[str, Callable[[_Compiler, Node], None]] = {
    "embed": _Compiler._embed,
    "rms_norm": _Compiler._rms_norm,
    "layer_norm": _Compiler._layer_norm,
    "bias": _Compiler._bias,
    "add_row": _Compiler._add_row,
    "mul_weight": _Compiler._gain,
    **dict.fromkeys(("scale", "softcap", "sigmoid", "clamp_min", "softmax", "argsort", "row_sum"), _Compiler._unary),
    **dict.fromkeys(("add", "mul", "glu", "gather", "div", "expert_scale", "expert_input"), _Compiler._binary),
    "act": _Compiler._act,
    "glu_split": _Compiler._glu_split,
    "glu_oai": _Compiler._glu_oai,
    "clamp": _Compiler._clamp,
    "slice": _Compiler._slice,
    "topk": _Compiler._topk,
    "concat": _Compiler._concat,
    "rope": _Compiler._rope,
    "rope_given": _Compiler._rope_given,
    "pos_scale": _Compiler._pos_scale,
    "cache": _Compiler._cache,
    "kq": _Compiler._kq,
    "attn_softmax": _Compiler._attn_softmax,
    "kqv": _Compiler._kqv,
    "merge_heads": _Compiler._relabel,
    "split_heads": _Compiler._relabel,
    "head_linear": _Compiler._head_linear,
    "group_mask": _Compiler._group_mask,
    "expert_linear": _Compiler._expert_linear,
    "expert_bias": _Compiler._expert_rows,
    "expert_gain": _Compiler._expert_rows,
    "expert_sum": _Compiler._expert_sum,
    "pool": _Compiler._pool_rows,
    "causal_conv": _Compiler._convolution,
    "shift": _Compiler._shift,
    **dict.fromkeys(("delta_rule", "ssm_scan", "wkv6", "wkv7"), _Compiler._scan),
    **dict.fromkeys(("state_before", "state_after"), _Compiler._show_state),
    **dict.fromkeys(("softplus", "exp", "add_scalar", "length", "sparse_gate"), _Compiler._unary),
    **dict.fromkeys(("l2_norm", "xielu", "repeat_heads", "head_gain", "add_gain", "lerp", "lerp_row"), _Compiler._many),
    **dict.fromkeys(("head_bonus", "mix_streams", "add_to_streams"), _Compiler._many),
    "join": _Compiler._join,
}
