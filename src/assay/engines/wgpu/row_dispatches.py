"""Operations on rows: one value at a time, norms, embeddings, RoPE, and views without a dispatch.

`EXPRESSIONS` has the formula of each operation on one value at a time. Touch this module for such an operation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from assay.engines.plan.values import heads_in_row, rope_table, row_width
from assay.engines.wgpu.dispatches import NOTHING, Count, View
from assay.engines.wgpu.program_builder import ProgramBuilder, bits
from assay.engines.wgpu.weight_tiles import units_of
from assay.errors import AssayError
from assay.graph import Node

# Operations on one value at a time: an expression of operands A and B and of the numbers P, Q, R.
EXPRESSIONS = {
    "add": "add(A, B)",
    "bias": "add(A, B)",
    "add_row": "add(A, B)",
    "add_scalar": "add(A, P)",
    "mul": "mul(A, B)",
    "mul_weight": "mul(A, B)",
    "expert_scale": "mul(A, B)",
    "expert_input": "mul(A, B)",
    "scale": "mul(A, P)",
    "div": "div(A, B)",
    "softcap": "mul(P, tanh_of(div(A, P)))",
    "sigmoid": "sigmoid(A)",
    "softplus": "softplus(A)",
    "exp": "exp_of(A)",
    "clamp": "clamp_of(A, P, Q)",
    "clamp_min": "select(A, P, less(A, P))",
    "glu": "mul({act}(A), B)",
    "glu_split": "mul({act}(A), B)",
    "glu_oai": "glu_oai(A, B, P, Q)",
    "act": "{act}(A)",
    "slice": "A",
    "repeat_heads": "A",
    "join": "A",
    "head_gain": "mul(A, B)",
    "add_gain": "fused(C, B, A)",
    "lerp": "fused(minus(B, A), C, A)",
    "lerp_row": "fused(minus(B, A), C, A)",
}
ACTS = {"silu": "silu", "gelu_tanh": "gelu_tanh", "gelu_erf": "gelu_erf", "relu": "relu", "relu_sqr": "relu_sqr",
         "sigmoid": "sigmoid", "softplus": "softplus", "tanh": "tanh_of"}  # fmt: skip


@dataclass(frozen=True)
class Operand:
    """How an elementwise kernel reads a view: word (i / div) * jump + (i % mod) * step of a row; mod 0 means div."""

    view: View
    div: int
    jump: int = 0
    step: int = 1
    mod: int = 0

    def numbers(self, name: str) -> dict[str, int]:
        walk = {"div": self.div, "jump": self.jump, "step": self.step, "mod": self.mod or self.div}
        return {**self.view.numbers(name), **{f"{name}_{key}": value for key, value in walk.items()}}


def elementwise(
    build: ProgramBuilder, node: Node, a: Operand, b: Operand | None = None, *numbers: float, c: Operand | None = None
) -> None:
    out = build.new(node)
    each(build, node, out, a, b or a, c, numbers, None if c else build.blocks_beside(node, out))


def each(
    build: ProgramBuilder, node: Node, out: View, a: Operand, b: Operand, c: Operand | None = None,
    numbers: Sequence[float] = (), acts: View | None = None,
) -> None:  # fmt: skip
    """One value of `out` for each value of the operands."""
    act = node.all_attrs().get("act", "")
    if act and act not in ACTS:
        raise AssayError(f"node {node.name}: the wgpu engine does not know the activation {act}; use --engine cpu")
    p, q, r = (*(bits(x) for x in numbers), 0, 0, 0)[:3]
    third = c or a
    build.emit(
        "elementwise", (-(-out.width // 256), build.rows_of(build.domains[node.name]), 1),
        {"width": out.width, **out.numbers("out"), "acts_stride": acts.stride if acts else 0, "p": p, "q": q,
         "r": r, **a.numbers("a"), **b.numbers("b"), **third.numbers("c")},
        ({"quantised"} if acts else set()) | ({"three"} if c else set()),
        EXPRESSIONS[node.op].format(act=ACTS.get(act, "")), a=a.view.buffer, b=b.view.buffer,
        c=third.view.buffer, out=out.buffer, acts=acts.buffer if acts else NOTHING,
    )  # fmt: skip


def map_value(build: ProgramBuilder, node: Node) -> None:
    """A function of one value, with the operation's attributes as numbers."""
    x = build.input(node)
    numbers = [float(v) for v in node.all_attrs().values() if isinstance(v, int | float)]
    elementwise(build, node, Operand(x, x.width), None, *numbers)


def pair(build: ProgramBuilder, node: Node) -> None:
    a, b = build.input(node), build.input(node, 1)
    numbers = [float(v) for v in node.all_attrs().values() if isinstance(v, int | float)]
    width = row_width(build.graph, node.name)
    first, second = Operand(a, a.width), Operand(b, b.width)
    if node.op in ("expert_scale", "expert_input"):  # b has a number for each expert
        second = Operand(b, width // b.width, 1, 0)
    elif b.width == 1:
        second = Operand(b, width, 0, 0)
    elementwise(build, node, first, second, *numbers)


def with_vector(build: ProgramBuilder, node: Node) -> None:
    x, width = build.input(node), row_width(build.graph, node.name)
    name = node.weights[0]
    if node.op == "add_row":
        buffer = _row_of_weight(build, node)
    else:
        buffer = build.weights.vector(name)
    n = int(np.prod(build.graph.weights[name])) if node.op != "add_row" else width
    b = View(buffer, 0, n)
    elementwise(build, node, Operand(x, x.width), Operand(b, n, 0, 1 if n > 1 else 0))


def _row_of_weight(build: ProgramBuilder, node: Node) -> str:
    rows = build.weights.array(node.weights[0]).reshape(-1, int(build.graph.shapes[node.name][-1]))
    return build.weights.constant(rows[node.attr("row")])


def lerp(build: ProgramBuilder, node: Node) -> None:
    """From the first operand to the second, by the third one or by a row of the weight."""
    a, b = build.input(node), build.input(node, 1)
    c = View(_row_of_weight(build, node), 0, a.width) if node.weights else build.input(node, 2)
    elementwise(build, node, Operand(a, a.width), Operand(b, b.width), c=Operand(c, c.width))


def glu_split(build: ProgramBuilder, node: Node) -> None:
    x = build.input(node)
    half = x.width // heads_in_row(build.graph, node.inputs[0], 1) // 2
    elementwise(build, node, Operand(x, half, 2 * half), Operand(x.columns(half, x.width - half), half, 2 * half))


def slice_of(build: ProgramBuilder, node: Node) -> None:
    x, start = build.input(node), int(node.attr("start"))
    parts = heads_in_row(build.graph, node.inputs[0], node.attr("n_head"))
    width = row_width(build.graph, node.name)
    if parts == 1:
        build.set(node, x.columns(start, width))
    else:
        each = width // parts
        elementwise(build, node, Operand(x.columns(start, width), each, x.width // parts))


def repeat_heads(build: ProgramBuilder, node: Node) -> None:
    x, width = build.input(node), int(build.graph.shapes[node.name][-1])
    times = row_width(build.graph, node.name) // x.width
    elementwise(build, node, Operand(x, times * width, width, mod=width))


def join(build: ProgramBuilder, node: Node) -> None:
    """Values side by side; one alone only loses its axis of heads."""
    if len(node.inputs) == 1:
        relabel(build, node)
        return
    out, at = build.new(node), 0
    for i in range(len(node.inputs)):
        x = build.input(node, i)
        operand = Operand(x, x.width)
        each(build, node, out.columns(at, x.width), operand, operand)
        at += x.width


def per_head(build: ProgramBuilder, node: Node) -> None:
    """A weight of each head times its row, added to another row in `add_gain`."""
    heads, width = int(node.attr("n_head")), row_width(build.graph, node.name)
    w = Operand(View(build.weights.vector(node.weights[0]), 0, heads), width // heads, 1, 0)
    first = Operand(build.input(node), width)
    if node.op == "head_gain":
        elementwise(build, node, first, w)
    else:
        elementwise(build, node, first, Operand(build.input(node, 1), width), c=w)


def topk(build: ProgramBuilder, node: Node) -> None:
    build.set(node, build.input(node).columns(0, row_width(build.graph, node.name)))


def relabel(build: ProgramBuilder, node: Node) -> None:
    """Heads first or tokens first is an axis order of the graph only. In memory rows lie token by token."""
    build.set(node, build.input(node))


def norm(build: ProgramBuilder, node: Node) -> None:
    x, out = build.input(node), build.new(node)
    parts = heads_in_row(build.graph, node.inputs[0], node.attr("n_head"))
    acts = build.blocks_beside(node, out) if parts == 1 else None
    n = x.width // parts
    vectors = [build.weights.vector(name) for name in node.weights]
    own = bool(node.weights) and int(np.prod(build.graph.weights[node.weights[0]])) > n  # each head has its own
    words = {"layer_norm": {"layer", "mean"}, "rms_norm": {"mean"}}.get(node.op) or (
        {"floored"} if node.attr("floor") else {"l2"}
    )
    words = words | ({"weighted"} if vectors else set()) | ({"biased"} if len(vectors) > 1 else set())
    numbers = {
        "n": n, "count": bits(n), "eps": bits(node.attr("eps")), **x.numbers("x"), "out_stride": out.stride,
        "w_stride": n if own else 0, "acts_stride": acts.stride if acts else 0,
    }  # fmt: skip
    w, bias = (*vectors, NOTHING, NOTHING)[:2]
    build.emit(
        "norm", (parts, build.rows_of(build.domains[node.name]), -(-n // 256)), numbers,
        words | ({"quantised"} if acts else set()),
        x=x.buffer, w=w, bias=bias, out=out.buffer, acts=acts.buffer if acts else NOTHING,
    )  # fmt: skip


def embed(build: ProgramBuilder, node: Node) -> None:
    part, out = build.weights.part(node.weights[0]), build.new(node)
    numbers = {
        "width": out.width, "units": units_of(part.columns), "by_position": int(node.inputs == ("inp_pos",)),
        "stride": out.stride, **part.form.book_words,
    }  # fmt: skip
    for piece in part.slices:
        here = {"first": piece.first, "tiles": piece.tiles}
        build.emit(
            "embed", (units_of(part.columns), "T", 1), {**numbers, **here}, part.form.words, step="step",
            w=piece.buffer, out=out.buffer,
        )  # fmt: skip


def rope(build: ProgramBuilder, node: Node) -> None:
    if node.inputs[1] != "inp_pos":
        raise AssayError(f"node {node.name}: the wgpu engine turns by inp_pos only (found {node.inputs[1]})")
    table = rope_table(node, build.weights.array(node.weights[0]) if node.weights else None)
    if table not in build.tables:
        build.tables.append(table)
    domain, x = build.domains[node.name], build.input(node)
    turn = {
        "n_rot": table.n_rot, "offset": int(node.attr("offset")), "neox": int(node.attr("mode") == "neox"),
        "table": build.tables.index(table),
    }  # fmt: skip
    readers = build.graph.users.get(node.name, ())
    alone = node.name not in build.keep and len(readers) == 1
    if alone and (_is_key_cache(build, readers[0]) or _is_query(build, node.name, readers[0])):
        build.values[node.name, domain] = x  # turned when it is written to the cache, or read by attention
        build.turns[node.name] = turn
        return
    out = build.new(node)
    numbers = {
        "width": x.width, "dim": x.width // int(node.attr("n_head")), **turn, "by_output": int(domain == "outputs"),
        **x.numbers("x"), "out_stride": out.stride,
    }  # fmt: skip
    groups: tuple[Count, Count, Count] = (-(-x.width // 256), build.rows_of(domain), 1)
    build.emit("rope", groups, numbers, step="step", x=x.buffer, out=out.buffer)


def rope_given(build: ProgramBuilder, node: Node) -> None:
    """Rotation by a table that the caller gives: cosines, then sines of each row."""
    x, table, out = build.input(node), build.input(node, 1), build.new(node)
    numbers = {
        "width": x.width, "dim": x.width // int(node.attr("n_head")), "n_rot": table.width,
        "offset": int(node.attr("offset")), "neox": int(node.attr("mode") == "neox"), "table": 0,
        **x.numbers("x"), **table.numbers("given"), "out_stride": out.stride,
    }  # fmt: skip
    groups: tuple[Count, Count, Count] = (-(-x.width // 256), build.rows_of(build.domains[node.name]), 1)
    build.emit("rope_given", groups, numbers, x=x.buffer, given=table.buffer, out=out.buffer)


def _is_key_cache(build: ProgramBuilder, name: str) -> bool:
    return build.graph[name].op == "cache" and name in build.domains and build.pools[name].keys


def _is_query(build: ProgramBuilder, name: str, reader: str) -> bool:
    return build.graph[reader].op == "kq" and build.graph[reader].inputs[0] == name and reader in build.domains


def row(build: ProgramBuilder, node: Node) -> None:
    """A kernel of one workgroup a row."""
    x, out = build.input(node), build.new(node)
    rows = build.rows_of(build.domains[node.name])
    kernel = {"softmax": "row_softmax"}.get(node.op, node.op)
    groups: tuple[Count, Count, Count] = (-(-x.width // 64), rows, 1) if node.op == "argsort" else (rows, 1, 1)
    numbers = {"width": x.width, **x.numbers("x"), "out_stride": out.stride}
    build.emit(kernel, groups, numbers, x=x.buffer, out=out.buffer)
