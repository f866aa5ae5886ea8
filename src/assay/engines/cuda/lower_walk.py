"""Lower a walk: the table of its steps (native/cuda/walk.h, WalkStep) and the launch of its megakernel.

Each kernel step becomes one WalkStep. Then `_link` sets the fields that depend on other steps and on the ring buffer:

    first   the thread block that takes the first group of rows. The groups of the step before fill some blocks once
            more than others; counting goes on behind those, so that idle blocks get work first.
    ahead   how many pieces of weights the producer warps may have requested before the consumer warps use them. A
            piece fills one slot of the ring buffer in shared memory.

walk.py explains producer warps, consumer warps and the ring buffer.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from assay.engines.cuda import structs
from assay.engines.cuda.abi.enumerations import (
    ACTS,
    DELTA_CHANNELS,
    DELTA_ROWS,
    SCAN_ROWS,
    ExpertGate,
    Gating,
    Prologue,
    Routing,
    StepFlag,
    StepKind,
)
from assay.engines.cuda.abi.shared_memory import walk_bytes
from assay.engines.cuda.device import Launch
from assay.engines.cuda.device_values import Layout, Value
from assay.engines.cuda.layout import Format
from assay.engines.cuda.lower_attention import attention_args
from assay.engines.cuda.lower_recurrent import RECURRENT
from assay.engines.cuda.lower_rows import ROWS
from assay.engines.cuda.product_steps import Part
from assay.engines.cuda.resolver import Resolver
from assay.engines.cuda.schedule_products import ROW_COPIES
from assay.engines.cuda.steps import (
    BatchExperts,
    BatchFloatRows,
    BatchProduct,
    BatchQuantise,
    GatedNorms,
    KernelStep,
    Map,
    MapChain,
    NormRows,
    RowSums,
    Scan,
    Tier,
    WalkAttend,
    WalkDelta,
    WalkExperts,
    WalkFloatRows,
    WalkNorms,
    WalkProduct,
    WalkQuantise,
    WeighExperts,
)
from assay.engines.cuda.walk import WARPS, WalkRun, kernel_formats, piece_bytes, ring, work_bytes
from assay.graph import Node

PREFETCHED = 52 << 10  # Bytes that the producer warp of a multiprocessor has requested at a time.
PREFETCHED_BY_TWO = 44 << 10  # The same with two producer warps.
_TIERS = {Tier.PLAIN: (), Tier.MORE: ("more",), Tier.ALL: ("all",)}  # in the kernels' names
TWO_PRODUCERS_FROM = 1.0  # Two producer warps, if products have more pieces than this for each slot, on average.


def lower_walk(r: Resolver, run: WalkRun, steps: Sequence[KernelStep]) -> Launch:
    """The launch of a walk; `steps` are those of its run."""
    tokens = r.context.shape.tokens
    table = [WALK_LOWERINGS[type(step.work)](r, step.work) for step in steps]
    slots, slot_bytes = ring(r.context, run.needs)
    formats = kernel_formats(run.needs.formats, run.needs.tier)
    two = _two_producers(r, run, formats, table, slots)
    _link(r, table, formats, slots, slot_bytes, two)
    if tokens > 1:
        _count_choices(table)
    array = (structs.WalkStep * len(table))(*table)
    at = r.context.tensors.constant(np.frombuffer(bytes(array), np.uint8))
    args = structs.WalkArgs(at, r.table("slots"), len(table), slots, slot_bytes, tokens)
    shared = walk_bytes(slots, slot_bytes, work_bytes(run.needs, tokens), int(tokens > 1))
    kind = ("few",) * (tokens > 1) + _TIERS[run.needs.tier] + ("two",) * two
    name = "_".join(("walk", *kind, *(form.name for form in formats)))
    threads = 32 * (WARPS + 1 + (two or tokens > 1))
    return Launch(name, (r.context.limits.processors, 1, 1), threads, args, shared, together=True)


def _two_producers(r: Resolver, run: WalkRun, formats: Sequence[Format], table: Sequence[Any], slots: int) -> bool:
    """Whether two warps prefetch: one token, and products that the ring buffers do not hold whole."""
    if run.needs.tier or r.context.shape.tokens > 1 or slots < 2 * WARPS + 12:
        return False
    products = [step.args.product for step in table if step.kind == StepKind.PRODUCT]
    pieces = sum(p.groups * int(p.parts[0].w.group_bytes) for p in products) / piece_bytes(formats[0])
    large = pieces > TWO_PRODUCERS_FROM * slots * len(products) * r.context.limits.processors
    return bool(large and tuple(form.name for form in formats) in structs.TWO_WALKS)


def _link(r: Resolver, table: Sequence[Any], formats: Sequence[Format], slots: int, slot_bytes: int, two: bool) -> None:
    """Set what depends on the steps before and on the ring buffer. Until here a step's `first` holds how many blocks of
    threads it occupies beyond full rounds, and `ahead` the bytes of a piece."""
    first = 0
    for step in table:
        piece, turn = step.ahead, WARPS
        step.first, first = first, (first + step.first) % r.context.limits.processors
        if step.kind in (StepKind.PRODUCT, StepKind.EXPERT_ROWS):
            args, last = step.args.product, formats[-1] if len(formats) > 1 else None
            seconds = [p.first_group for p in args.parts[: args.n_parts] if last and p.w.format == last.number]
            step.second = (*seconds, args.groups)[0]
            if seconds:
                step.fresh &= ~StepFlag.TWO_LANES
            if seconds and last and last.tile_bytes > slot_bytes:
                step.fresh |= StepFlag.SPLIT_TILE
                piece, turn = piece // 2, 2 * WARPS
        # A consumer warp derives the slot of its next piece from its turn: the piece that holds the slot now must have
        # arrived, or the warp would wait twice.
        split = step.fresh & StepFlag.SPLIT_TILE and (two or r.context.shape.tokens > 1)
        most = slots - 4 if split else slots - turn - 4
        step.ahead = max(4, min(most, PREFETCHED // piece if piece else 0))
        if two:  # `ahead` is odd, so that each producer warp waits on the other's slots
            step.ahead = min((most - 1) // 2, PREFETCHED_BY_TWO // piece if piece else 5) - 1 | 1


def _count_choices(table: Sequence[Any]) -> None:
    """Number the choices of experts of a walk: blocks of threads and their producer warps wait for each other by it."""
    firsts = [s for s in table if s.kind == StepKind.EXPERT_ROWS and not s.args.experts.down]
    for i, step in enumerate(firsts):
        step.args.experts.which = i


def _walk_step(r: Resolver, kind: StepKind, flags: int, x: Value, out: Value | None, args: Any, *of_heads: int) -> Any:
    step = structs.WalkStep(kind, flags, *of_heads, args=args)
    for name, value in (("in", x), ("out", out)):
        if value:
            copies = r.placement.copies.get(value.memory, 1)
            setattr(step, f"{name}_copies", copies)
            setattr(step, f"{name}_bytes", r.size(value.memory) // copies)
    return step


def _awaited(r: Resolver, x: Sequence[Value | None], residuals: Sequence[Value | None] = ()) -> int:
    """Flags for inputs that an earlier step of the walk writes, so that their readers spin."""
    flags = StepFlag.AWAIT_X * any(map(r.inside, x)) | StepFlag.AWAIT_RESIDUAL * any(map(r.inside, residuals))
    return int(flags)


def _product_args(r: Resolver, parts: Sequence[Part], x: Value) -> tuple[Any, int]:
    """Arguments that products of one token and of several share, and the groups of rows of all parts."""
    matrix, processors = parts[0].matrix, r.context.limits.processors
    array, groups = r.parts(parts, lambda m: m.groups)
    args = structs.ProductArgs(
        parts=array,
        x=r.at(x),
        n_parts=len(parts),
        groups=groups,
        tokens=r.context.shape.tokens,
        columns=matrix.columns,
    )
    args.share, args.extra = divmod(groups, processors)
    args.shift = matrix.group.bit_length() - 1
    return args, groups


def _product(r: Resolver, w: WalkProduct) -> Any:
    matrix, processors = w.parts[0].matrix, r.context.limits.processors
    args, groups = _product_args(r, w.parts, w.x)
    args.x_stride, args.rows_of_x = matrix.columns, ROW_COPIES
    args.prologue = Prologue.NORMED_ROWS if w.norm else Prologue.PLAIN_ROWS
    if w.norm:
        args.norm, args.eps = r.weights(w.norm.weights[0]), float(w.norm.attr("eps"))
    tiles = matrix.tiles * -(-groups // processors)
    if len(w.parts) == 1 and WARPS % matrix.tiles == 0 and tiles <= 2 * WARPS:
        args.stages = WARPS // matrix.tiles  # groups between the first tile of a warp and its second
    flags = _awaited(r, [w.x], [p.residual for p in w.parts]) + StepFlag.AS_CODES * (w.x.layout == Layout.CODES)
    flags += StepFlag.TWO_LANES * (2 * tiles <= WARPS and not matrix.format.floats)
    step = _walk_step(r, StepKind.PRODUCT, int(flags), w.x, w.parts[0].out, structs.StepUnion(product=args))
    step.ahead, step.first = piece_bytes(matrix.format), groups % processors
    return step


def _float_rows(r: Resolver, w: WalkFloatRows) -> Any:
    array, rows = r.parts(w.parts, lambda m: m.rows)
    args = structs.ProductArgs(
        parts=array, x=r.at(w.x), n_parts=len(w.parts), groups=rows, columns=w.parts[0].matrix.columns
    )
    if w.norm:
        args.norm, args.eps = r.weights(w.norm.weights[0]), float(w.norm.attr("eps"))
    union = structs.StepUnion(product=args)
    step = _walk_step(r, StepKind.FLOAT_ROWS, _awaited(r, [w.x]), w.x, w.parts[0].out, union)
    step.first = rows % r.context.limits.processors
    return step


def _batch_float_rows(r: Resolver, w: BatchFloatRows) -> Any:
    matrix = w.part.matrix
    array, _ = r.parts([w.part], lambda m: m.groups)
    args = structs.ProductArgs(
        parts=array, x=r.at(w.x), n_parts=1, columns=matrix.columns, tokens=r.context.shape.tokens, stages=w.rows,
        slots=w.tokens,
    )  # fmt: skip
    union = structs.StepUnion(product=args)
    step = _walk_step(r, StepKind.FLOAT_ROWS, _awaited(r, [w.x]), w.x, w.part.out, union)
    step.first = -(-args.tokens // w.tokens) * -(-matrix.rows // w.rows)
    return step


_GATES = {"glu": ExpertGate.ACT_GATE, "glu_oai": ExpertGate.OAI_GATE, "act": ExpertGate.NO_GATE}
_ROUTINGS = {"softmax": Routing.BY_SOFTMAX, "sigmoid": Routing.BY_SIGMOID, "none": Routing.AS_LOGITS}


def _expert_args(r: Resolver, w: WalkExperts | BatchExperts, product: Any) -> Any:
    """How experts are chosen and weighed, and what becomes of gate and up."""
    choice, attrs = w.choice, w.gating.all_attrs()
    return structs.WalkExperts(
        of=product, logits=r.at(w.logits), choice_bias=r.weights(choice.bias), routing=_ROUTINGS[choice.routing],
        by_logits=int(choice.by_logits), used=choice.used, softmax_chosen=int(choice.softmax_chosen),
        normalise=int(choice.least is not None), least=choice.least or 0.0, scale=choice.scale, down=int(w.down),
        gated=_GATES[w.gating.op], alpha=float(attrs.get("alpha", 0.0)), limit=float(attrs.get("limit", 0.0)),
    )  # fmt: skip


def _experts(r: Resolver, w: WalkExperts) -> Any:
    matrix, processors = w.parts[0].matrix, r.context.limits.processors
    array, _ = r.parts(w.parts, lambda m: m.groups)
    product = structs.ProductArgs(
        parts=array, x=r.at(w.x), expert_bytes=matrix.size, n_parts=len(w.parts), groups=w.groups, tokens=1,
        columns=matrix.columns, n_experts=matrix.count, shift=matrix.group.bit_length() - 1,
    )  # fmt: skip
    product.share, product.extra = divmod(w.groups, processors)
    if w.norm:
        product.norm, product.eps = r.weights(w.norm.weights[0]), float(w.norm.attr("eps"))
    args = _expert_args(r, w, product)
    args.which, args.halved, args.partial = w.which, w.halves - 1, r.at(w.partial)
    args.addend, args.addend_gate = map(r.at, w.added)
    flags = _awaited(r, [w.x], [p.residual for p in w.parts])
    step = _walk_step(r, StepKind.EXPERT_ROWS, flags, w.x, w.parts[0].out, structs.StepUnion(experts=args))
    step.ahead, step.first = piece_bytes(matrix.format), w.groups % processors
    return step


def _batch_experts(r: Resolver, w: BatchExperts) -> Any:
    matrix = w.parts[0].matrix
    array, _ = r.parts(w.parts, lambda m: m.groups)
    product = structs.ProductArgs(
        parts=array, x=r.at(w.x), expert_bytes=matrix.size, n_parts=len(w.parts), tokens=r.context.shape.tokens,
        columns=matrix.columns, n_experts=matrix.count, shift=matrix.group.bit_length() - 1, stages=w.sums,
    )  # fmt: skip
    experts = _expert_args(r, w, product)
    experts.by_matrix, experts.costs = w.by_matrix, int.from_bytes(bytes(w.costs), "little")
    args = structs.StepUnion(experts=experts)
    step = _walk_step(r, StepKind.EXPERT_ROWS, _awaited(r, [w.x]), w.x, w.parts[0].out, args)
    step.ahead = piece_bytes(matrix.format)
    return step


def _weigh(r: Resolver, w: WeighExperts) -> Any:
    product = structs.ProductArgs(x=r.at(w.x), tokens=r.context.shape.tokens, columns=w.width)
    product.parts[0].out, product.parts[0].residual = r.at(w.out), r.at(w.residual)
    args = structs.StepUnion(experts=structs.WalkExperts(of=product, used=w.choice.used))
    return _walk_step(r, StepKind.WEIGH_EXPERTS, _awaited(r, [w.x], [w.residual]), w.x, w.out, args)


def _maps(r: Resolver, w: MapChain) -> Any:
    chain, first, last = structs.MapChain(count=len(w.maps)), w.maps[0], w.maps[-1]
    # A value between two operations has no memory; the kernel knows it by the address of the result.
    inner = {m.out for m in w.maps[:-1]}
    x, y = ([last.out if v in inner else v for v in of] for of in ([m.x for m in w.maps], [m.y for m in w.maps]))
    maps = [replace(m, x=x[i], y=y[i], out=last.out) for i, m in enumerate(w.maps)]
    for i, each in enumerate(maps):
        chain.maps[i] = ROWS[Map](r, each).args
    operands = [v for m in w.maps for v in (m.x, m.y) if v not in inner]
    flags = _awaited(r, operands) + StepFlag.AS_CODES * (last.out.layout == Layout.CODES)
    step = _walk_step(r, StepKind.MAP_ROW, int(flags), first.x, last.out, structs.StepUnion(chain=chain))
    step.first = -(-last.rows * last.width // (32 * WARPS))
    return step


def _part_norms(r: Resolver, w: NormRows | RowSums) -> Any:
    launch = {**ROWS, **RECURRENT}[type(w)](r, w)
    kind = StepKind.PART_NORMS if isinstance(w, NormRows) else StepKind.PART_LENGTHS
    step = _walk_step(r, kind, _awaited(r, [w.x]), w.x, w.out, structs.StepUnion(row=launch.args))
    step.first = w.parts
    return step


def _scan(r: Resolver, w: Scan) -> Any:
    args = structs.StepUnion(scan=RECURRENT[Scan](r, w).args)
    window = w.kernel == "causal_conv"
    kind = StepKind.WINDOW if window else StepKind.RECURRENCE
    step = _walk_step(r, kind, _awaited(r, w.x), w.x[0], w.out, args)
    step.first = -(-w.channels // (32 * WARPS)) if window else w.heads * -(-w.rows // SCAN_ROWS)
    return step


def _delta_args(r: Resolver, w: WalkDelta, x: Sequence[Value | None], **fields: Any) -> Any:
    c, scan = r.context, structs.ScanArgs(
        x=(ctypes.c_uint64 * 6)(*map(r.at, x)), states=r.base.states, sequences=r.table("states"),
        slot_floats=r.context.state_floats, offset=w.offset, heads=w.heads, groups=w.groups, scale=w.scale,
    )  # fmt: skip
    taps, rate = c.tensors.vector(w.taps), c.tensors.vector(w.rate)
    return structs.WalkDelta(
        of=scan, taps=taps, rate=rate, window=w.window, eps=w.eps, act=w.act, floor=int(w.floor), **fields
    )


def _delta(r: Resolver, w: WalkDelta) -> Any:
    args = _delta_args(r, w, w.x)
    args.of.out = r.at(w.out)
    step = _walk_step(r, StepKind.DELTA, _awaited(r, w.x), w.x[0], w.out, structs.StepUnion(delta=args))
    step.first = w.heads * (DELTA_CHANNELS // DELTA_ROWS)
    return step


def _gated_norms(r: Resolver, w: GatedNorms) -> Any:
    x = (*w.rule.x, w.rule.out, w.gate)
    args = _delta_args(r, w.rule, x, norm_eps=w.eps, gate_act=w.act)
    args.of.weight, args.of.out = r.weights(w.weight), r.at(w.out)
    step = _walk_step(r, StepKind.GATED_NORMS, _awaited(r, x), w.rule.out, w.out, structs.StepUnion(delta=args))
    step.first = w.rule.heads * (DELTA_CHANNELS // 32)
    return step


def _batch_product(r: Resolver, w: BatchProduct) -> Any:
    args, groups = _product_args(r, w.parts, w.x)
    args.stages, args.slots = w.units, w.groups
    flags = _awaited(r, [w.x], [p.residual for p in w.parts])
    step = _walk_step(r, StepKind.PRODUCT, flags, w.x, w.parts[0].out, structs.StepUnion(product=args))
    step.ahead, step.first = w.piece, groups % r.context.limits.processors
    return step


def _quantise_args(r: Resolver, w: WalkQuantise | BatchQuantise) -> Any:
    args = structs.ProductArgs(x=r.at(w.x), columns=w.matrix.columns)
    args.parts[0].out, args.parts[0].w = r.at(w.out), w.matrix.struct()
    if w.gating:
        args.parts[0].paired, args.parts[0].act = _gating(w.gating), ACTS[str(w.gating.attr("act"))]
    return args


def _gating(node: Node) -> Gating:
    return Gating.ALONE if node.op == "act" else Gating.SPLIT


def _quantise(r: Resolver, w: WalkQuantise) -> Any:
    args = structs.StepUnion(product=_quantise_args(r, w))
    return _walk_step(r, StepKind.QUANTISE, _awaited(r, [w.x]), w.x, w.out, args)


def _batch_quantise(r: Resolver, w: BatchQuantise) -> Any:
    tokens, processors = r.context.shape.tokens, r.context.limits.processors
    args = _quantise_args(r, w)
    args.tokens = tokens
    if w.norm:
        args.norm, args.eps = r.weights(w.norm.weights[0]), float(w.norm.attr("eps"))
    flags = _awaited(r, [w.x]) + StepFlag.COUNTED * w.counted
    step = _walk_step(r, StepKind.QUANTISE, int(flags), w.x, w.out, structs.StepUnion(product=args))
    rows = min(tokens, processors)
    step.first = rows * min(processors // rows, w.matrix.units) if w.norm else tokens * w.matrix.units
    return step


def _norms(r: Resolver, w: WalkNorms) -> Any:
    args = structs.NormArgs(n_parts=len(w.parts), tokens=r.context.shape.tokens, tasks=w.tasks)
    for i, p in enumerate(w.parts):
        weights, bias = (*map(r.weights, p.norm.weights), 0)[:2]
        args.parts[i] = structs.Norm(
            x=r.at(p.x), w=weights, b=bias, residual=r.at(p.residual), out=r.at(p.out), more=r.at(p.addend),
            sum=r.at(p.total), columns=p.width, first=p.first_task, centred=p.norm.op == "layer_norm",
            eps=float(p.norm.attr("eps")),
        )  # fmt: skip
    flags = _awaited(r, [v for p in w.parts for v in (p.x, p.addend)], [p.residual for p in w.parts])
    first = w.parts[0]
    step = _walk_step(r, StepKind.NORM, flags, first.x, first.out, structs.StepUnion(norm=args))
    step.first = w.tasks
    return step


def _attend(r: Resolver, w: WalkAttend) -> Any:
    fields, processors = w.fields, r.context.limits.processors
    k_heads, dim, group = fields.keys.heads, fields.keys.dim, fields.heads // fields.keys.heads
    args = structs.WalkAttention(attention_args(r, fields, w.values, group, arrived=r.base.counters))
    args.factor, args.q_step = w.factor, w.q_step
    if w.norms:
        args.q_norm, args.k_norm = (r.weights(n.weights[0]) for n in w.norms)
        args.eps = float(w.norms[0].attr("eps"))
    flags = _awaited(r, [w.q, w.k, w.v]) + StepFlag.AS_CODES * (w.out.layout == Layout.CODES)
    head_blocks = fields.heads * r.context.shape.tokens // w.heads_at_once
    of_heads = w.heads_at_once, head_blocks, dim.bit_length() - 1, -(-65536 // group)
    kind = StepKind.FOLD if w.fold else StepKind.ATTEND
    step = _walk_step(r, kind, int(flags), w.q, w.out, structs.StepUnion(attention=args), *of_heads)
    step.second, step.per_row = -(-(1 << 24) // head_blocks), -(-65536 // k_heads)
    if not w.fold:
        step.ahead, step.first = w.piece, min(head_blocks * fields.max_blocks, processors)
    return step


WALK_LOWERINGS: Mapping[type, Callable[[Resolver, Any], Any]] = {
    WalkProduct: _product,
    WalkQuantise: _quantise,
    BatchProduct: _batch_product,
    BatchQuantise: _batch_quantise,
    WalkNorms: _norms,
    WalkAttend: _attend,
    WalkFloatRows: _float_rows,
    WalkExperts: _experts,
    BatchFloatRows: _batch_float_rows,
    BatchExperts: _batch_experts,
    WeighExperts: _weigh,
    MapChain: _maps,
    NormRows: _part_norms,
    RowSums: _part_norms,
    Scan: _scan,
    WalkDelta: _delta,
    GatedNorms: _gated_norms,
}
