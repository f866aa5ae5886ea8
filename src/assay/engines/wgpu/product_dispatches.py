"""Products with weights: runs of linears, gated feed-forward layers, and experts.

Touch this module when a product is computed in another way; `shaders/matvec.wgsl` computes it.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from assay.engines.plan.fuse import Gated, Product
from assay.engines.plan.values import row_width
from assay.engines.wgpu.dispatches import NOTHING, View
from assay.engines.wgpu.program_builder import ProgramBuilder, WeightPart
from assay.engines.wgpu.row_dispatches import ACTS, EXPRESSIONS, Operand, elementwise
from assay.engines.wgpu.weight_tiles import ROWS, units_of
from assay.graph import Node


def rows_at_once(tiles: int, units: int) -> int:
    """Rows of a workgroup of products: few where a matrix has too few tiles to keep a large GPU busy.

    Measured on an H200 with 64 to 1000 tiles.
    """
    if units < 8 or tiles > 256:
        return ROWS
    return 8 if tiles <= 128 else 16


def products(build: ProgramBuilder, products: tuple[Product, ...]) -> None:
    """Each run of neighbouring tensors of a stack in one dispatch: q, k and v, usually."""
    domain = build.domains[products[0].linear.name]
    x = build.get(products[0].linear.inputs[0], domain)
    run: list[tuple[Product, WeightPart]] = []
    for product in products:
        part = build.weights.part(product.linear.weights[0])
        if run and not _joins(run[-1], (product, part)):
            _run_of_products(build, x, domain, run)
            run = []
        run.append((product, part))
    _run_of_products(build, x, domain, run)


def _joins(a: tuple[Product, WeightPart], b: tuple[Product, WeightPart]) -> bool:
    follows = a[1].stack == b[1].stack and a[1].first + a[1].tiles == b[1].first
    return follows and not (a[0].add or b[0].add) and bool(a[0].bias) == bool(b[0].bias)


def _run_of_products(build: ProgramBuilder, x: View, domain: str, run: list[tuple[Product, WeightPart]]) -> None:
    width = ROWS * sum(part.tiles for _, part in run)
    out = build.memory(run[0][0].last.name, domain, width)
    biases = tuple((part, p.bias.weights[0]) for p, part in run if p.bias)
    residual = build.get(run[0][0].residual, domain) if run[0][0].residual else None
    bias = build.weights.bias_row(biases) if biases else NOTHING
    _multiply(build, [part for _, part in run], x, domain, out, bias, residual)
    at = 0
    for product, part in run:
        build.set(product.last, out.columns(at, part.rows))
        at += ROWS * part.tiles


def _multiply(
    build: ProgramBuilder, parts: list[WeightPart], x: View, domain: str, out: View, bias: str = NOTHING,
    residual: View | None = None, idx: View | None = None, experts: int = 0, shared: bool = False,
) -> None:  # fmt: skip
    """Multiply neighbouring tensors of a stack, in a dispatch for each slice that they lie in."""
    form, columns = parts[0].form, parts[0].columns
    first, last = parts[0].first, parts[-1].first + parts[-1].tiles
    numbers = {
        "units": units_of(columns), "out_at": out.at, "out_stride": out.stride,
        "has_bias": int(bias != NOTHING), "has_residual": int(residual is not None),
        **(residual or out).numbers("residual"), "experts": experts, "expert_width": parts[0].rows,
        "shared_rows": int(shared), **(idx or out).numbers("idx"), "up_tiles": 0, "acts_stride": 0, "width": 0,
        **form.book_words,
    }  # fmt: skip
    if form.floats:
        kernel, source = "matvec_floats", x
        numbers |= {"columns": columns, **x.numbers("x")}
    else:
        kernel, source = "matvec", build.blocks(x, domain, columns if experts and not shared else 0)
        numbers |= {"blocks": columns // 32, "x_stride": source.stride // 4}
    rows = build.rows_of(domain) + (f"*{experts}" if experts else "")
    for piece in parts[0].slices:
        begin, end = max(first, piece.first), min(last, piece.first + piece.tiles)
        if begin < end:
            here = {"first": begin - piece.first, "column": ROWS * (begin - first), "expert_tiles": piece.tiles}
            tokens = 1 if form.floats or experts else build.tokens_at_once
            each = ROWS if form.floats or tokens > 1 else rows_at_once(end - begin, units_of(columns))
            words = form.words | {"alone", f"rows{each}", f"tokens{tokens}"}
            of_tokens = f"{rows}/{tokens}" if tokens > 1 else rows
            build.emit(
                kernel, ((end - begin) * ROWS // each, of_tokens, 1), {**numbers, **here}, words, w=piece.buffer,
                x=source.buffer, bias=bias, residual=residual.buffer if residual else NOTHING,
                idx=idx.buffer if idx else NOTHING, out=out.buffer,
            )  # fmt: skip


def gated(build: ProgramBuilder, group: Gated) -> None:
    gate, up, glu = group.gate, group.up, group.glu
    domain = build.domains[glu.name]
    x = build.get(gate.inputs[0], domain)
    part = build.weights.part(gate.weights[0])
    if _gated_at_once(build, group, x, part):
        return
    if group.one_matrix:
        both = build.memory(gate.name, domain, ROWS * part.tiles)
        _multiply(build, [part], x, domain, both)
        half = part.rows // 2
        views = both.columns(0, half), both.columns(half, half)
    else:
        other = build.weights.part(up.weights[0])
        if other.stack == part.stack and part.first + part.tiles == other.first:
            both = build.memory(gate.name, domain, ROWS * (part.tiles + other.tiles))
            _multiply(build, [part, other], x, domain, both)
            views = both.columns(0, part.rows), both.columns(ROWS * part.tiles, other.rows)
        else:
            outs = [build.memory(n.name, domain, ROWS * p.tiles) for n, p in ((gate, part), (up, other))]
            _multiply(build, [part], x, domain, outs[0])
            _multiply(build, [other], x, domain, outs[1])
            views = outs[0].columns(0, part.rows), outs[1].columns(0, other.rows)
        for node, view in zip((gate, up), views, strict=True):
            if node.name in build.keep:
                build.set(node, view)
    a, b = (Operand(view, view.width) for view in views)
    elementwise(build, glu, a, b)


def _gated_at_once(build: ProgramBuilder, group: Gated, x: View, gate: WeightPart) -> bool:
    """Gate, up, activation and int8 blocks in one dispatch, where a tile of each lies in one slice."""
    domain = build.domains[group.glu.name]
    half = gate.tiles // 2 if group.one_matrix else gate.tiles
    up = gate if group.one_matrix else build.weights.part(group.up.weights[0])
    here = next((s for s in gate.slices if s.first <= gate.first < s.first + s.tiles), None)
    if (
        gate.form.floats or not here or {group.gate.name, group.up.name} & build.keep or up.stack != gate.stack
        or row_width(build.graph, group.glu.name) != ROWS * half or gate.first + 2 * half > here.first + here.tiles
        or not (group.one_matrix or up.first == gate.first + half) or (group.glu.name, domain) not in build.wanted
        or group.glu.all_attrs().get("act", "") not in ACTS
    ):  # fmt: skip
        return False
    tokens = build.tokens_at_once
    rows = f"{build.rows_of(domain)}/{tokens}" if tokens > 1 else build.rows_of(domain)
    source, out = build.blocks(x, domain), build.new(group.glu)
    acts = build.blocks_beside(group.glu, out)
    assert acts
    unused = dict.fromkeys(("column", "has_bias", "has_residual", "residual_at", "residual_stride", "experts",
                            "expert_width", "expert_tiles", "shared_rows", "idx_at", "idx_stride"), 0)  # fmt: skip
    numbers = {
        **unused, "units": units_of(gate.columns), "blocks": gate.columns // 32, "x_stride": source.stride // 4,
        "first": gate.first - here.first, **out.numbers("out"), "up_tiles": half, "acts_stride": acts.stride,
        "width": out.width, **gate.form.book_words,
    }  # fmt: skip
    build.emit(
        "matvec", (half, rows, 1), numbers, gate.form.words | {"gated", f"rows{ROWS}", f"tokens{tokens}"},
        EXPRESSIONS[group.glu.op].format(act=ACTS[group.glu.all_attrs()["act"]]), w=here.buffer, x=source.buffer,
        out=out.buffer, acts=acts.buffer,
    )  # fmt: skip
    return True


def head_linear(build: ProgramBuilder, node: Node) -> None:
    """Heads lie side by side in a row: matrix h multiplies part h."""
    heads = int(build.graph.weights[node.weights[0]][0])
    every = build.weights.constant(np.arange(heads, dtype=np.float32))
    expert_linear(build, node, View(every, 0, heads))


def expert_linear(build: ProgramBuilder, node: Node, idx: View | None = None) -> None:
    """The chosen matrices, or those of `idx`, times the rows of a token."""
    idx = idx or build.input(node, 1)
    x, domain = build.input(node), build.domains[node.name]
    part, experts = build.weights.part(node.weights[0]), idx.width
    out = build.memory(node.name, domain, experts * ROWS * part.tiles)
    row = replace(out, stride=part.rows)  # a row for each expert of a token
    shared = len(build.graph.shapes[node.inputs[0]]) == 2
    _multiply(build, [part], x, domain, row, idx=idx, experts=experts, shared=shared)
    build.set(node, replace(out, stride=experts * part.rows))
