"""Schedule products in which rows are multiplied by different matrices of one tensor: of experts, or of heads.

With experts, the router chooses some matrices for each token, and a pair is (token, chosen expert). With heads, nothing
is chosen: a pair is (token, head), and head h is always multiplied by matrix h.

Pairs are multiplied one by one or, where many pairs have the same matrix, sorted by matrix and multiplied in tiles.
"""

from __future__ import annotations

from dataclasses import replace

from assay.engines.cuda import walk
from assay.engines.cuda.abi.enumerations import ACTS
from assay.engines.cuda.abi.shared_memory import walk_experts_bytes, walk_few_experts_bytes
from assay.engines.cuda.context import FoldedExperts
from assay.engines.cuda.device_values import (
    Layout,
    Quantised,
    Value,
    quantised,
)
from assay.engines.cuda.layout import UNIT, Matrix
from assay.engines.cuda.product_steps import (
    ExpertProduct,
    HostWork,
    Part,
    QuantisePairs,
    SortedProduct,
    SortPairs,
    TileChoice,
    part_reads,
)
from assay.engines.cuda.schedule_products import quantise
from assay.engines.cuda.step_list import StepList
from assay.engines.cuda.steps import BatchExperts, Tier, WalkExperts, WalkNeeds, WeighExperts
from assay.engines.cuda.tiles import expert_tile
from assay.graph import Graph, Node

# Tokens of an expert from which `mma` multiplies, and the time of a tile of an expert with one token to eight
# (docs/lab/gpu-measured.md). Up to two tokens of most formats it is the time in which the tile arrives.
BY_MATRIX, COSTS = {"mxfp4": 3}, {"mxfp4": (4, 5, 8, 8, 8, 8, 8, 8)}
_BY_MATRIX, _COSTS = 5, (4, 5, 8, 8, 8, 8, 8, 8)
HANDING_ON = 8  # tiles in whose time one block of threads passes a sum to another


def expert_product(steps: StepList, node: Node) -> None:
    """A matrix for each chosen expert, or for each head: heads lie side by side in a row, and matrix h takes head h."""
    c = steps.context
    domain = c.domain(node.name)
    x, choices = (*(steps.value_of(name, domain) for name in node.inputs), None)[:2]
    assert x
    matrix = c.tensors.matrix(node.weights[0])
    part = Part(matrix, node.name, out=steps.new(node.name))
    per_token = c.width(node.inputs[1]) if choices else matrix.count
    pairs = c.rows(domain) * per_token
    pairs_per_row = per_token if choices and c.width(node.inputs[0]) == matrix.columns else 1
    tile = expert_tile(pairs, matrix, c.limits)
    if tile:
        _sorted_product(steps, x, choices, part, pairs, pairs_per_row, tile)
        return
    acts = None if matrix.format.floats else quantise(steps, x, pairs // pairs_per_row, None, matrix)
    reads = [*(acts.values if acts else (x,)), choices]
    steps.add(node.name, ExpertProduct(part, x, acts, choices, pairs, pairs_per_row), reads, [part.out])


def host_experts(steps: StepList, part: Graph) -> None:
    """A part of the graph with experts, which the cpu engine computes."""
    c, domain = steps.context, steps.context.domain(part.output)
    reads = tuple((name, steps.value_of(name, domain), c.width(name)) for name in part.given)
    kept = [node.name for node in part if node.name in c.keep or node.name == part.output]
    writes = tuple((name, steps.new(name), c.width(name)) for name in kept)
    work = HostWork(part.output, domain, reads, writes)
    steps.add(part.output, work, [v for _, v, _ in reads], [v for _, v, _ in writes])


def walk_experts(steps: StepList, folded: FoldedExperts) -> None:
    """Gate and up of the chosen experts, then down with their weighted sum, as steps of a walk."""
    c, domain = steps.context, steps.context.domain(folded.last)
    if c.rows(domain) > 1:
        _batch_experts(steps, folded)
        return
    norm = c.folds.norms.get(folded.last)
    x = steps.value_of(c.graph[norm].inputs[0] if norm else folded.x, domain)
    logits, which = steps.value_of(folded.logits, domain), len(steps.shared.setdefault(("expert layers",), [])) % 2
    steps.shared["expert layers",].append(folded.last)
    act = ACTS.get(str(folded.gating.all_attrs().get("act")), 0)
    inner = steps.new(folded.gating.name)
    parts = tuple(Part(c.tensors.matrix(n.weights[0]), n.name, bias, act=act, out=inner) for n, bias in folded.parts)
    _add_experts(steps, parts, x, c.graph[norm] if norm else None, logits, folded, False, which)
    residual = steps.value_of(folded.residual, domain) if folded.residual else None
    down, bias = folded.down
    addend, gate = (steps.value_of(n, domain) if n else None for n in (folded.addend, folded.addend_gate))
    part = Part(c.tensors.matrix(down.weights[0]), down.name, bias, residual=residual, out=steps.new(folded.last))
    _add_experts(steps, (part,), inner, None, logits, folded, True, which, (addend, gate))


def _batch_experts(steps: StepList, folded: FoldedExperts) -> None:
    """Two to eight tokens: gate and up, down, and the weighted sum as a step of its own."""
    c, domain = steps.context, steps.context.domain(folded.last)
    x, logits = steps.value_of(folded.x, domain), steps.value_of(folded.logits, domain)
    act = ACTS.get(str(folded.gating.all_attrs().get("act")), 0)
    inner, rows = steps.new(folded.gating.name), steps.new(folded.down[0].name)
    parts = tuple(Part(c.tensors.matrix(n.weights[0]), n.name, bias, act=act, out=inner) for n, bias in folded.parts)
    down = (Part(c.tensors.matrix(folded.down[0].weights[0]), folded.down[0].name, folded.down[1], out=rows),)
    most = min(walk.MOST_FEW, walk.free_shared(c, c.product_formats))
    for some, of, is_down in ((parts, x, False), (down, inner, True)):
        matrix, tokens = some[0].matrix, c.shape.tokens
        group = tokens * len(some) * matrix.group * (matrix.units | 1)  # partial sums of a group that all tokens chose
        free = most - walk_few_experts_bytes(tokens, matrix.units, 0)
        name = matrix.format.name
        by_matrix, costs = BY_MATRIX.get(name, _BY_MATRIX), COSTS.get(name, _COSTS)
        work = BatchExperts(
            some, of, logits, folded.choice, folded.gating, is_down, max(group, free // 4), by_matrix, costs
        )
        shared = walk_few_experts_bytes(tokens, matrix.units, work.sums)
        needs = WalkNeeds(frozenset({matrix.format.name}), shared, tier=Tier.ALL)
        steps.add(some[0].name, work, [of, logits], [some[0].out], needs)
    residual = steps.value_of(folded.residual, domain) if folded.residual else None
    out = steps.new(folded.last)
    weigh = WeighExperts(rows, folded.choice, residual, out, c.width(folded.last))
    steps.add(folded.last, weigh, [rows, residual], [out], WalkNeeds(tier=Tier.ALL))


def _add_experts(
    steps: StepList,
    parts: tuple[Part, ...],
    x: Value,
    norm: Node | None,
    logits: Value,
    folded: FoldedExperts,
    down: bool,
    which: int,
    added: tuple[Value | None, Value | None] = (None, None),
) -> None:
    matrix, processors = parts[0].matrix, steps.context.limits.processors
    work = WalkExperts(parts, x, norm, logits, folded.choice, folded.gating, down, which, added=added)
    if down and folded.choice.used % 2 == 0:
        halved = replace(work, partial=Value(4 * matrix.rows))
        work = min(work, halved, key=lambda w: _most_tiles(w, processors) + HANDING_ON * w.halves)
    at_once = -(-work.groups // processors)
    experts = folded.choice.used if at_once > 1 else work.of_group  # of down: whose rows a block of threads reads
    shared = walk_experts_bytes(
        matrix.units * (experts if down else 1), matrix.units, at_once * work.of_group * matrix.group, int(down)
    )
    needs = WalkNeeds(frozenset({matrix.format.name}), shared, tier=Tier.ALL)
    steps.add(
        parts[0].name, work, [x, logits, work.partial, *added, *part_reads(parts)], [parts[0].out, work.partial], needs
    )


def _most_tiles(work: WalkExperts, processors: int) -> int:
    """Tiles of the block of threads that has most of them."""
    return -(-work.groups // processors) * work.of_group * work.parts[0].matrix.tiles


def _sorted_product(
    steps: StepList, x: Value, choices: Value | None, part: Part, pairs: int, pairs_per_row: int, tile: TileChoice
) -> None:
    matrix = part.matrix
    tiles = (pairs + min(pairs, matrix.count) * (tile.tokens - 1)) // tile.tokens  # the most that there can be
    order, matrices = _sort(steps, choices, pairs, matrix.count, tile.tokens, tiles)
    acts = _quantise_pairs(steps, x, order, matrix, tiles * tile.tokens, pairs_per_row)
    work = SortedProduct(part, acts, order, matrices, pairs, tiles, tile)
    steps.add(part.name, work, [*acts.values, order, matrices], [part.out])


def _sort(
    steps: StepList, choices: Value | None, pairs: int, count: int, tokens: int, tiles: int
) -> tuple[Value, Value]:
    """The pair of each slot and the matrix of each tile, once for all products with the same choices."""

    def make() -> tuple[Value, Value]:
        # Resident, because bench/gpu.py runs a launch again on its own: it may touch only what these lists say.
        order, matrices = (Value(4 * n, Layout.SCRATCH, resident=True) for n in (tiles * tokens, tiles))
        work = SortPairs(choices, order, matrices, pairs, count, tokens, tiles)
        steps.add("", work, [choices], [order, matrices])
        return order, matrices

    return steps.once(("sorted pairs", choices, pairs, count, tokens), make)


def _quantise_pairs(
    steps: StepList, x: Value, order: Value, matrix: Matrix, slots: int, pairs_per_row: int
) -> Quantised:
    """The quantised row of each slot, once for all products of x."""

    def make() -> Quantised:
        acts = quantised(slots, matrix.units * UNIT, slots)
        work = QuantisePairs(x, order, acts, matrix.columns, pairs_per_row)
        steps.add("", work, [x, order], acts.values)
        return acts

    return steps.once(("quantised pairs", x, matrix.columns, slots, order), make)
