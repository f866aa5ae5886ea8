"""Schedule attention: one token a sequence, many tokens by tiles, a step of a walk, or one operation at a time."""

from __future__ import annotations

import math
from dataclasses import replace

from assay.engines.cuda.abi.enumerations import BLOCK, HALVED, KV_TYPES, PATCH_ROWS, TILE_WORDS, WALK_HEAD, ScoreOp
from assay.engines.cuda.abi.shared_memory import (
    attend_blocks_bytes,
    attend_halves_bytes,
    attend_one_bytes,
    attend_patches_bytes,
    attend_short_bytes,
    attend_tensor_bytes,
    attend_tensor_one_bytes,
    walk_attention_bytes,
)
from assay.engines.cuda.attention_steps import AttendRow, AttendTiles, AttentionFields, PairScores
from assay.engines.cuda.context import CompileContext, FoldedAttention
from assay.engines.cuda.device_values import Layout, Value, quantised
from assay.engines.cuda.folding import rope_of
from assay.engines.cuda.schedule_products import ROW_COPIES, quantised_key
from assay.engines.cuda.schedule_rows import fill_rope_table
from assay.engines.cuda.shapes import (
    TENSOR_ROWS,
    fits_patches,
    fits_tensor_cores,
    patch_width,
    prompt_rows,
    tile_rows,
)
from assay.engines.cuda.step_list import StepList, fill_pool
from assay.engines.cuda.steps import Tier, WalkAttend, WalkNeeds
from assay.engines.cuda.walk import COLUMN, NoWalk, batch_fits_whole
from assay.engines.plan.fuse import Attention
from assay.engines.plan.values import AttentionMask, attention_mask, heads_in_row
from assay.graph import Node

_PART = 2 + WALK_HEAD  # floats of a head's partial result of a block of keys (walk_attention.h)
_WALK_HEADS = (32, 64, 128, 256)  # head widths that megakernels have


def schedule_attention(steps: StepList, group: Attention) -> None:
    c, kqv = steps.context, group.kqv
    domain = c.domain(kqv.name)
    for name in dict.fromkeys((group.keys, group.values)):
        fill_pool(steps, name)
    folded = c.folds.attention.get(kqv.name)
    fields = _fields(c, group, folded)
    rope = fill_rope_table(steps, fields.rope, domain) if fields.rope else None
    q = steps.value_of(folded.q if folded else group.kq.inputs[0], domain)
    if domain == "tokens" and c.shape.one and not (c.keep & group.inner):
        k, v = (steps.value_of(name, domain) for name in (folded.k, folded.v)) if folded else (None, None)
        _attend_row(steps, kqv, fields, folded, (q, k, v, rope))
    else:
        _attend_tiles(steps, group, fields, q, domain)


def _fields(c: CompileContext, group: Attention, folded: FoldedAttention | None) -> AttentionFields:
    heads, _, v_dim = (int(n) if isinstance(n, int) else 0 for n in c.graph.shapes[group.kqv.name])
    rope = folded.rope if folded else None
    return AttentionFields(
        keys=c.cache.pool(group.keys),
        values=c.cache.pool(group.values, group.first, v_dim),
        mask=mask_of(c, group.softmax, group.capped),
        heads=heads,
        rows=c.rows(c.domain(group.kqv.name)),
        max_blocks=c.shape.blocks,
        rope=rope_of(c, rope) if rope else None,
        neox=bool(rope and rope.attr("mode") == "neox"),
    )


def mask_of(c: CompileContext, softmax: Node, capped: Node | None = None) -> AttentionMask:
    refusal = "the cuda engine masks by inp_pos and inp_kpos only; use --engine cpu"
    return attention_mask(c.graph, softmax, capped, refusal)


# -- one token a sequence --------------------------------------------------------------------------------------------

Operands = tuple[Value, Value | None, Value | None, Value | None]  # q, k, v and the rope table


def _attend_row(
    steps: StepList, kqv: Node, fields: AttentionFields, folded: FoldedAttention | None, x: Operands
) -> None:
    """The first kernel family that has all that this attention needs."""
    c = steps.context
    if c.tensors.halves and fits_tensor_cores(fields.keys, fields.values):
        _attend_tensor(steps, kqv, fields, x)
        return
    mask, plain = fields.mask, _is_plain(c, fields)
    if folded and plain and c.walk and fields.keys.dim in _WALK_HEADS:
        _walk_attention(steps, kqv, fields, folded, x)
        return
    if c.walk and folded and (folded.norms or folded.factor != 1.0 or folded.q_step):
        raise NoWalk  # only a walk computes these
    one = c.shape.tokens == 1 and fields.heads * c.shape.blocks <= 2 * c.limits.processors
    one = one and attend_short_bytes(fields.keys.dim) <= c.limits.shared - 1024
    if folded and folded.rope and plain and not (mask.window or mask.cap or mask.sinks) and one:
        _attend_short(steps, kqv, fields, x)
    else:
        _attend_blocks(steps, kqv, fields, x)


def _is_plain(c: CompileContext, fields: AttentionFields) -> bool:
    """Whether walks have all that this needs; without window, cap and sinks, attention_short.cu does as well."""
    mask, k, v = fields.mask, fields.keys, fields.values
    simple = not (c.shape.irregular or mask.slopes or mask.chunk)
    alike = k.type == v.type == KV_TYPES["f16"] and k.dim == v.dim == v.columns
    shape = k.dim % 32 == 0 and k.dim <= 256 and not v.keys and k.heads == v.heads
    return bool(simple and mask.causal and alike and shape)


def _add_row(steps: StepList, kqv: Node, work: AttendRow) -> None:
    acts = work.acts.values if work.acts else ()
    steps.add(kqv.name, work, (work.q, work.k, work.v, work.rope), (work.out, work.partial, *acts))


def _partial(rows: int, fields: AttentionFields) -> Value | None:
    """Memory for the partial results of blocks of keys, where there are several."""
    size = 4 * rows * fields.heads * fields.max_blocks * (2 + fields.values.dim)
    return Value(size, Layout.SCRATCH) if fields.max_blocks > 1 else None


def _attend_short(steps: StepList, kqv: Node, fields: AttentionFields, x: Operands) -> None:
    """One sequence: a block of threads for each head and block of keys; it quantises the result for its readers."""
    dim, heads, stride = fields.keys.dim, fields.heads, fields.heads * fields.values.dim
    out, acts = steps.new(kqv.name), None
    if stride % 256 == 0 and steps.context.read_as("q8", kqv.name):
        acts = steps.once(quantised_key(out, stride), lambda: quantised(ROW_COPIES, stride))
    shared = attend_short_bytes(dim)
    grid, threads, splits = (fields.max_blocks, heads, 1), max(256, 3 * dim), heads // fields.keys.heads
    partial = _partial(1, fields)
    work = AttendRow("attend_short", fields, *x, out, partial, splits, grid, threads, shared, acts)
    _add_row(steps, kqv, work)


def _attend_tensor(steps: StepList, kqv: Node, fields: AttentionFields, x: Operands) -> None:
    """On tensor cores."""
    k_pool, heads, rows = fields.keys, fields.heads, fields.rows
    splits = -(-heads // k_pool.heads // 16)
    shared = attend_tensor_one_bytes(k_pool.dim, heads // k_pool.heads)
    grid, out = (fields.max_blocks, k_pool.heads * splits, rows), steps.new_for_readers(kqv.name, *HALVED)
    name = f"attend_tensor_one_{k_pool.dim}"
    _add_row(steps, kqv, AttendRow(name, fields, *x, out, _partial(rows, fields), splits, grid, 128, shared))


def _attend_blocks(steps: StepList, kqv: Node, fields: AttentionFields, x: Operands) -> None:
    """Any cache and any mask: a block of threads for some heads of a group and a block of keys."""
    limits, k, v = steps.context.limits, fields.keys, fields.values
    rows, blocks, group = fields.rows, fields.max_blocks, fields.heads // fields.keys.heads
    staged = 2 * BLOCK * (k.dim + v.dim)  # keys and values of a block, as halves
    aligned = k.dim % 8 == v.dim % 8 == 0 and v.dim <= 2 * k.dim
    halves = k.type == KV_TYPES["f16"] and not v.keys and aligned and staged + 32768 < limits.shared
    at_once = 1
    for at_once in (1, 2, 4, 8) if halves else (1, 4):
        if at_once >= group or rows * k.heads * -(-group // at_once) * blocks <= 2 * limits.processors:
            break
    splits = -(-group // at_once)
    grid = (blocks, k.heads * splits, rows)
    kernel, bytes_of = "one", attend_one_bytes
    if halves:
        each = 4 * at_once * (k.dim + BLOCK + 2) + staged
        kernel, bytes_of = "halves", attend_halves_bytes
        if math.prod(grid) > limits.processors * max(1, limits.shared // each):
            kernel, bytes_of = "blocks", attend_blocks_bytes  # more blocks of threads than run at once: less for each
    shared = bytes_of(at_once, k.dim, v.dim)
    out, name = steps.new(kqv.name), f"attend_{kernel}_{at_once}"
    _add_row(steps, kqv, AttendRow(name, fields, *x, out, _partial(rows, fields), splits, grid, 256, shared))


def _walk_attention(steps: StepList, kqv: Node, fields: AttentionFields, folded: FoldedAttention, x: Operands) -> None:
    """A step of a walk, and where there are several blocks of keys a second one that folds their results."""
    c, dim, heads = steps.context, fields.keys.dim, fields.heads
    group, window, mask = heads // fields.keys.heads, fields.mask.window, fields.mask
    if window:
        fields = replace(fields, max_blocks=min(fields.max_blocks, (window + BLOCK - 2) // BLOCK + 1))
    blocks, processors, all_heads = fields.max_blocks, c.limits.processors, heads * c.shape.tokens
    at_once = 4 if group % 4 == 0 and dim <= 128 and all_heads * blocks > processors else 1
    if c.shape.tokens > 1 and group % 2 == 0 and dim > 32 and all_heads * blocks <= 2 * processors:
        at_once = min(at_once, 2)
    codes = c.read_as("q8", kqv.name) and (c.shape.tokens == 1 or batch_fits_whole(c, heads * dim))
    out = steps.new(kqv.name, Layout.CODES, heads * dim * COLUMN) if codes else steps.new(kqv.name)
    partial = Value(4 * all_heads * blocks * _PART, Layout.SCRATCH) if blocks > 1 else None
    q, k, v, rope = x
    assert k and v
    piece = min(64, dim) * 64
    more = folded.norms or folded.factor != 1.0 or window or mask.cap or mask.sinks or dim == 256 or folded.q_step
    tier = Tier.MORE if more else Tier.PLAIN
    values = q, k, v, rope, out, partial
    work = WalkAttend(fields, *values, folded.norms, folded.factor, folded.q_step or dim, at_once, piece, fold=False)
    needs = WalkNeeds(shared=walk_attention_bytes(at_once, dim), piece=piece, tier=tier)
    steps.add(kqv.name, work, x, (out, partial), needs)
    if partial:
        steps.add(kqv.name, replace(work, fold=True), x, (out, partial), WalkNeeds(tier=tier))


# -- many tokens -----------------------------------------------------------------------------------------------------


def _attend_tiles(steps: StepList, group: Attention, fields: AttentionFields, q: Value, domain: str) -> None:
    c, kqv, k_pool, v_pool = steps.context, group.kqv, fields.keys, fields.values
    last = _last(steps, group.softmax)
    patches = c.tensors.halves and not last and fits_patches(k_pool, v_pool, fields.mask)
    on_tensor_cores = patches or (c.tensors.halves and fits_tensor_cores(k_pool, v_pool))
    out = steps.new_for_readers(kqv.name, *HALVED, padded=patches) if on_tensor_cores else steps.new(kqv.name)
    kept = [steps.new(n.name) if n and n.name in c.keep else None for n in (group.kq, group.capped, group.softmax)]
    traced, (raw, capped, weights) = any(kept), kept
    plain = all(p.type == KV_TYPES["f16"] and p.columns == p.dim for p in (k_pool, v_pool)) and not v_pool.keys
    kernel, rows, shared = tile_rows(v_pool.dim, k_pool.dim, c.limits.shared)
    if plain and not (traced or c.shape.irregular or last):
        found = prompt_rows(v_pool.dim, k_pool.dim, c.limits.shared)
        kernel, rows, shared = found or (kernel, rows, shared)
    if patches:
        width = patch_width(k_pool.dim)
        kernel, rows, shared = f"attend_patches_{width}", PATCH_ROWS, attend_patches_bytes(width)
    elif on_tensor_cores:
        kernel, rows = f"attend_tensor_{k_pool.dim}", TENSOR_ROWS
        shared = attend_tensor_bytes(rows, k_pool.dim)
    cut = c.cuts.index((fields.heads // k_pool.heads, rows)) * 4 * TILE_WORDS * c.shape.tiles
    scores = (raw or Value(4 * fields.heads * c.shape.scores)) if traced else None
    state = Value(8 * fields.heads * c.rows(domain), Layout.SCRATCH) if traced else None
    grid = (c.shape.tiles, k_pool.heads, 1)
    work = AttendTiles(kernel, fields, q, out, scores, state, domain, cut, on_tensor_cores, grid, shared, last)
    steps.add(kqv.name, work, [q, last], [out, scores, state])
    if capped:
        _add_scores(steps, kqv.name, PairScores(ScoreOp.CAPPED, scores, None, capped, fields.heads, fields.mask))
    if weights:
        work_of = PairScores(ScoreOp.WEIGHTS, scores, state, weights, fields.heads, fields.mask, last=last)
        _add_scores(steps, kqv.name, work_of)


def _last(steps: StepList, softmax: Node) -> Value | None:
    """The last slot that each token sees, where some see later ones: rows of a picture."""
    return steps.value_of(softmax.inputs[3], "tokens") if len(softmax.inputs) > 3 else None


# -- one operation at a time -----------------------------------------------------------------------------------------


def _add_scores(steps: StepList, node: str, work: PairScores) -> None:
    steps.add(node, work, [work.x, work.y, work.last], [work.out])


def kq(steps: StepList, node: Node) -> None:
    c = steps.context
    q, k = steps.value_of(node.inputs[0], "tokens"), steps.value_of(node.inputs[1], "keys")
    heads = int(c.graph.shapes[node.name][0])
    dim, kv_heads = c.width(node.inputs[0]) // heads, _kv_heads(c, node)
    work = PairScores(ScoreOp.KQ, q, k, steps.new(node.name), heads, kv_heads=kv_heads, dim=dim)
    _add_scores(steps, node.name, work)


def attn_softmax(steps: StepList, node: Node) -> None:
    c, x = steps.context, steps.value_of(node.inputs[0], "scores")
    out, mask, last = steps.new(node.name), mask_of(c, node), _last(steps, node)
    _add_scores(steps, node.name, PairScores(ScoreOp.SOFTMAX, x, None, out, c.width(node.name), mask, last=last))


def kqv(steps: StepList, node: Node) -> None:
    c = steps.context
    p, v = steps.value_of(node.inputs[0], "scores"), steps.value_of(node.inputs[1], "keys")
    heads, kv_heads = int(c.graph.shapes[node.name][0]), _kv_heads(c, node)
    dim = c.width(node.inputs[1]) // kv_heads
    work = PairScores(ScoreOp.KQV, p, v, steps.new(node.name), heads, kv_heads=kv_heads, dim=dim)
    _add_scores(steps, node.name, work)


def _kv_heads(c: CompileContext, node: Node) -> int:
    return heads_in_row(c.graph, node.inputs[1], int(node.attr("n_head_kv")))
