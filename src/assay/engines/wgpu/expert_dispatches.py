"""Rows of the chosen experts: gathered, scaled and summed. Their products are in `product_dispatches.py`.

Touch this module for an operation on rows of experts.
"""

from __future__ import annotations

from assay.engines.wgpu.dispatches import Count
from assay.engines.wgpu.program_builder import ProgramBuilder
from assay.graph import Node


def gather(build: ProgramBuilder, node: Node) -> None:
    x, idx, out = build.input(node), build.input(node, 1), build.new(node)
    numbers = {"width": out.width, **x.numbers("x"), **idx.numbers("idx"), "out_stride": out.stride}
    groups: tuple[Count, Count, Count] = (-(-out.width // 64), build.rows_of(build.domains[node.name]), 1)
    build.emit("gather", groups, numbers, x=x.buffer, idx=idx.buffer, out=out.buffer)


def expert_rows(build: ProgramBuilder, node: Node) -> None:
    x, idx, out = build.input(node), build.input(node, 1), build.new(node)
    each = out.width // idx.width
    shape = build.graph.weights[node.weights[0]]
    numbers = {
        "width": out.width, "each": each, "w_each": each if len(shape) == 2 else 1, **x.numbers("x"),
        **idx.numbers("idx"), "out_stride": out.stride,
    }  # fmt: skip
    build.emit(
        "expert_rows", (-(-out.width // 256), build.rows_of(build.domains[node.name]), 1), numbers,
        expression="add(A, B)" if node.op == "expert_bias" else "mul(A, B)", x=x.buffer, idx=idx.buffer,
        w=build.weights.vector(node.weights[0]), out=out.buffer,
    )  # fmt: skip


def expert_sum(build: ProgramBuilder, node: Node) -> None:
    x, out = build.input(node), build.new(node)
    numbers = {"width": out.width, "experts": x.width // out.width, **x.numbers("x"), "out_stride": out.stride}
    groups: tuple[Count, Count, Count] = (-(-out.width // 256), build.rows_of(build.domains[node.name]), 1)
    build.emit("expert_sum", groups, numbers, x=x.buffer, out=out.buffer)
