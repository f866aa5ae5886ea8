"""Schedule matrix products: one row, a few, many; as launches or as steps of a walk.

Each group of linears becomes the steps that prepare their input (quantise, halve, norm) and the products themselves.
All products of one input share its preparation. Kernels and tiles are chosen here; lower_products.py only fills in
arguments.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from assay.engines.cuda import structs, walk
from assay.engines.cuda.abi.enumerations import HALVED, MAX_PARTS
from assay.engines.cuda.abi.shared_memory import (
    normed_row_bytes,
    walk_few_float_rows_bytes,
    walk_float_rows_bytes,
    walk_floats_bytes,
    walk_product_bytes,
)
from assay.engines.cuda.arrange import by_kernel, by_layouts
from assay.engines.cuda.context import FEW_FLOAT_ROWS
from assay.engines.cuda.device_values import (
    Layout,
    Quantised,
    Value,
    padded_rows,
    quantised,
)
from assay.engines.cuda.layout import UNIT, Matrix
from assay.engines.cuda.product_steps import (
    FloatTiles,
    Part,
    RowProduct,
    TileChoice,
    TileProduct,
    part_reads,
    part_writes,
)
from assay.engines.cuda.schedule_rows import activation, map_rows, norm_rows
from assay.engines.cuda.step_list import StepList
from assay.engines.cuda.steps import (
    BatchFloatRows,
    BatchProduct,
    BatchQuantise,
    HalveRows,
    QuantiseRows,
    Tier,
    WalkFloatRows,
    WalkNeeds,
    WalkProduct,
    WalkQuantise,
)
from assay.engines.cuda.tiles import count_tiles, float_tile, half_tile, quantised_tile, tensor_tile
from assay.engines.plan.fuse import Gated, Products
from assay.graph import Node

MOST_SUMS = 48 << 10  # bytes of shared memory of a product beside experts or recurrences, above which it is cut
ROW_COPIES = 4  # of one quantised row that all blocks of threads of a product read


def schedule_products(steps: StepList, group: Products) -> None:
    c = steps.context
    first = group.products[0].linear
    domain = c.domain(first.name)
    parts = []
    for p in group.products:
        residual = steps.value_of(p.residual, domain) if p.residual else None
        bias = p.bias.weights[0] if p.bias else ""
        matrix = c.tensors.matrix(p.linear.weights[0])
        for n in c.folds.slices.get(p.last.name, ()):
            start, rows = int(n.attr("start")), c.width(n.name)
            view = replace(matrix, rows=rows, data=matrix.data + start // matrix.group * matrix.group_bytes)
            parts.append(Part(view, n.name, bias, first=start))
        if p.last.name not in c.folds.slices:
            parts.append(Part(matrix, p.last.name, bias, residual=residual))
    _multiply(steps, first, domain, parts)


def schedule_gated(steps: StepList, group: Gated) -> None:
    """A gate with its up: one product of paired rows, if both weights have one format; else two products and a map."""
    tensors, gate, up, glu = steps.context.tensors, group.gate, group.up, group.glu
    domain, act = steps.context.domain(glu.name), activation(glu)
    if group.one_matrix:
        _multiply(steps, gate, domain, [Part(tensors.matrix(gate.weights[0]), gate.name)])
        map_rows(steps, glu, glu.inputs, integer=act)
        return
    names = gate.weights[0], up.weights[0]
    if tensors.same_format(*names):
        kept = tuple(steps.new(n.name) if n.name in steps.context.keep else None for n in (gate, up))
        _multiply(steps, gate, domain, [Part(tensors.matrix(*names), glu.name, act=act, kept=kept)])
        return
    _multiply(steps, gate, domain, [Part(tensors.matrix(n.weights[0]), n.name) for n in (gate, up)])
    map_rows(steps, glu, glu.inputs, integer=act)


def _multiply(steps: StepList, linear: Node, domain: str, wanted: Sequence[Part]) -> None:
    """Products of one input, whose results become new values."""
    c = steps.context
    rows, form = c.rows(domain), wanted[0].matrix.format
    on_tensor_cores = c.tensors.on_tensor_cores(form)
    halves = len(wanted) == 1 and on_tensor_cores and (rows > 8 or not form.floats)
    read_as = form.name if form.floats else "half"
    parts = [replace(p, out=steps.new_for_readers(p.name, read_as) if halves else steps.new(p.name)) for p in wanted]
    if on_tensor_cores:
        _multiply_halves(steps, linear, domain, parts)
    elif rows == 1:
        for kernel, chosen in by_kernel(parts):
            _row_product(steps, kernel, linear, domain, chosen)
    elif form.floats:
        for i in range(0, len(parts), 4):
            _multiply_floats(steps, linear, domain, parts[i : i + 4])
    else:
        _multiply_codes(steps, linear, domain, parts)


def _folded_norm(steps: StepList, linear: Node) -> Node | None:
    """The norm before a linear that preparing its input computes."""
    norm = steps.context.folds.norms.get(linear.name)
    return steps.context.graph[norm] if norm else None


def _input(steps: StepList, linear: Node, domain: str) -> tuple[Value, Node | None, Node | None]:
    """The value that preparation reads, and the norm or the activation that it computes first."""
    norm, gating = _folded_norm(steps, linear), steps.context.folds.gatings.get(linear.inputs[0])
    before = norm or gating
    return steps.value_of(before.inputs[0] if before else linear.inputs[0], domain), norm, gating


def _multiply_halves(steps: StepList, linear: Node, domain: str, parts: Sequence[Part]) -> None:
    """Rows of 16-bit floats, on tensor cores."""
    c, rows = steps.context, steps.context.rows(domain)
    x = halve(steps, linear, domain, parts[0].matrix)
    choose = half_tile if parts[0].matrix.format.floats else tensor_tile
    for formats, some in by_layouts(parts):
        tile = choose(rows, [p.matrix for p in some], c.limits)
        if f"{tile.kernel}_{formats}" in structs.KERNELS:
            tile = replace(tile, kernel=f"{tile.kernel}_{formats}")
        _tile_product(steps, x, rows, tuple(some), tile)


def _multiply_floats(steps: StepList, linear: Node, domain: str, parts: Sequence[Part]) -> None:
    """Float weights: by tiles for more than eight rows, else each row on its own."""
    c, rows, norm = steps.context, steps.context.rows(domain), _folded_norm(steps, linear)
    tile = float_tile(rows, [p.matrix for p in parts], c.limits)
    if tile is None:
        _row_product(steps, "", linear, domain, parts)
        return
    if norm and (norm.name, domain) not in steps.values:
        norm_rows(steps, norm)
    x, of = steps.value_of(norm.name if norm else linear.inputs[0], domain), tuple(parts)
    steps.add(linear.name, FloatTiles(of, x, rows, tile), [x, *part_reads(of)], part_writes(of))


def _multiply_codes(steps: StepList, linear: Node, domain: str, parts: Sequence[Part]) -> None:
    """Quantised weights and several rows."""
    c, rows = steps.context, steps.context.rows(domain)
    x, norm, gating = _input(steps, linear, domain)
    if c.walk:
        for _, chosen in by_kernel(parts):
            _batch_product(steps, x, norm, chosen, gating)
        return
    acts = quantise(steps, x, rows, norm, parts[0].matrix, padded_rows(rows))
    for i in range(0, len(parts), 4):
        some = tuple(parts[i : i + 4])
        _tile_product(steps, acts, rows, some, quantised_tile(rows, [p.matrix for p in some], c.limits))


# -- the input of products -------------------------------------------------------------------------------------------


def quantise(steps: StepList, x: Value, rows: int, norm: Node | None, matrix: Matrix, padded: int = 0) -> Quantised:
    """Quantised rows of a value, normed first where there is a norm; computed once for all readers."""
    stride = matrix.units * UNIT

    def make() -> Quantised:
        copies = ROW_COPIES if rows == 1 and not padded else rows
        acts = quantised(padded or copies, stride, padded)
        work = QuantiseRows(x, acts, rows, matrix.columns, copies, norm)
        steps.add(norm.name if norm else "", work, [x], acts.values)
        return acts

    return steps.once(quantised_key(x, matrix.columns, padded, norm.name if norm else ""), make)


def quantised_key(x: Value, columns: int, padded: int = 0, norm: str = "") -> tuple[object, ...]:
    """The key under which `StepList.once` keeps quantised rows."""
    return "quantised rows", x, columns, padded, norm


def halve(steps: StepList, linear: Node, domain: str, matrix: Matrix) -> Value:
    """The input of a product as 16-bit floats of the matrix's type, normed first where a norm is folded."""
    norm, rows, stride = _folded_norm(steps, linear), steps.context.rows(domain), matrix.units * UNIT
    x = steps.value_of(norm.inputs[0] if norm else linear.inputs[0], domain)
    if x.layout.value in HALVED:
        return x
    out = Value(2 * padded_rows(rows) * stride, Layout(matrix.format.name if matrix.format.floats else "half"))
    steps.add(linear.inputs[0], HalveRows(x, out, rows, matrix.columns, stride, norm), [x], [out])
    return out


# -- launches --------------------------------------------------------------------------------------------------------


def _row_product(steps: StepList, kernel: str, linear: Node, domain: str, parts: Sequence[Part]) -> None:
    """One row, or a few with float weights, which every block of threads norms for itself."""
    c, matrix, rows = steps.context, parts[0].matrix, steps.context.rows(domain)
    x, norm, gating = _input(steps, linear, domain)
    if c.small_steps and matrix.format.floats and _few_float_rows(parts):
        _walk_float_rows(steps, x, norm, tuple(parts))
        return
    if c.walk and kernel:
        _walk_product(steps, x, norm, gating, parts)
        return
    acts = None if matrix.format.floats else quantise(steps, x, rows, norm, matrix)
    of = tuple(parts)
    reads = [*(acts.values if acts else (x,)), *part_reads(of)]
    steps.add(linear.name, RowProduct(kernel, of, x, acts, norm, rows), reads, part_writes(of))


def _tile_product(steps: StepList, x: Quantised | Value, rows: int, parts: tuple[Part, ...], tile: TileChoice) -> None:
    matrix, factors = parts[0].matrix, steps.context.tensors.has_factors(parts[0].matrix.format)
    chains = matrix.chains if factors else 1
    split = chains > 1 and tile.tokens <= 64
    blocks = -(-rows // tile.tokens) * sum(count_tiles(p.matrix, tile.rows) for p in parts)
    partial = None
    if chains > 1:
        partial = Value(4 * blocks * tile.rows * tile.tokens * (chains if split else 1), Layout.SCRATCH)
    work = TileProduct(parts, x, rows, tile, factors, chains, split, partial)
    reads = [*(x.values if isinstance(x, Quantised) else (x,)), *part_reads(parts)]
    steps.add(parts[0].name, work, reads, [partial, *part_writes(parts)])


# -- steps of a walk -------------------------------------------------------------------------------------------------


def _walk_product(steps: StepList, x: Value, norm: Node | None, gating: Node | None, parts: Sequence[Part]) -> None:
    """One token."""
    matrix = parts[0].matrix
    long = not (norm or matrix.format.floats or x.layout == Layout.CODES) and matrix.columns >= walk.LONG
    if long or gating:
        x = _walk_quantise(steps, x, matrix, gating)
    of = tuple(sorted(parts, key=lambda p: p.matrix.format.tile_bytes))  # the kernel's second format is the larger one
    codes = x.layout == Layout.CODES
    for some in _cut_rows(of, _walk_shared(steps, of, codes)) if steps.context.small_steps else [of]:
        needs = WalkNeeds(_formats(some), _walk_shared(steps, some, codes))
        steps.add(some[0].name, WalkProduct(some, x, norm), [x, *part_reads(some)], part_writes(some), needs)


def _cut_rows(parts: tuple[Part, ...], shared: int) -> list[tuple[Part, ...]]:
    """A head with so many rows that their partial sums leave the ring too little memory, as several products."""
    part, matrix, out = parts[0], parts[0].matrix, parts[0].out
    if shared <= MOST_SUMS or len(parts) > 1 or part.residual or matrix.paired or not out:
        return [parts]
    found: list[tuple[Part, ...]] = []
    each = -(-matrix.groups // -(-shared // MOST_SUMS))
    for group in range(0, matrix.groups, each):
        start = group * matrix.group
        rows = min(each * matrix.group, matrix.rows - start)
        view = replace(matrix, rows=rows, data=matrix.data + group * matrix.group_bytes)
        to = Value(4 * rows, base=out.memory, offset=out.offset + 4 * start)
        found.append((replace(part, matrix=view, out=to, first=part.first + start),))
    return found


def _few_float_rows(parts: Sequence[Part]) -> bool:
    return all(p.matrix.rows <= FEW_FLOAT_ROWS and not (p.residual or p.matrix.paired) for p in parts)


def _walk_float_rows(steps: StepList, x: Value, norm: Node | None, parts: tuple[Part, ...]) -> None:
    """A few rows of float weights, such as a router's, beside quantised ones."""
    tokens, layouts = steps.context.shape.tokens, {p.matrix.format.name for p in parts}
    if tokens > 1 or len(layouts) > 1 or len(parts) > MAX_PARTS:
        for p in parts:
            _few_float_rows_of(steps, x, norm, (p,))
        return
    _few_float_rows_of(steps, x, norm, parts)


def _few_float_rows_of(steps: StepList, x: Value, norm: Node | None, parts: tuple[Part, ...]) -> None:
    """A step of a walk for matrices of one layout; of several tokens, for one matrix."""
    part, matrix, tokens = parts[0], parts[0].matrix, steps.context.shape.tokens
    rows = -(-sum(p.matrix.rows for p in parts) // steps.context.limits.processors)
    if tokens > 1:
        c = steps.context
        if norm or not c.product_formats:  # no quantised weights beside them
            raise walk.NoWalk
        most = min(walk.MOST_FEW, walk.free_shared(c, c.product_formats))
        cut = _batch_float_cut(tokens, matrix.rows, matrix.units, matrix.format.chunks, most, c.limits.processors)
        of_rows, of_tokens, shared = cut
        work = BatchFloatRows(part, x, of_rows, of_tokens)
        steps.add(part.name, work, [x], [part.out], WalkNeeds(shared=shared, tier=Tier.ALL))
        return
    needs = WalkNeeds(shared=walk_float_rows_bytes(matrix.units, rows, matrix.format.chunks), tier=Tier.ALL)
    steps.add(part.name, WalkFloatRows(parts, x, norm), [x], part_writes(parts), needs)


@lru_cache
def _batch_float_cut(
    all_tokens: int, all_rows: int, units: int, chunks: int, most: int, processors: int
) -> tuple[int, int, int]:
    """Rows and tokens that a block of threads multiplies at a time, and their shared memory: as few rounds as possible,
    then as few products. Raises NoWalk if nothing fits."""
    fits = []
    for tokens in range(1, all_tokens + 1):
        for rows in range(1, all_rows + 1):
            shared = walk_few_float_rows_bytes(tokens, units, rows, chunks)
            items = -(-all_tokens // tokens) * -(-all_rows // rows)
            if shared <= most:
                fits.append((-(-items // processors), rows * tokens, rows, tokens, shared))
    if not fits:
        raise walk.NoWalk
    return min(fits)[2:]


def _formats(parts: Sequence[Part]) -> frozenset[str]:
    return frozenset(p.matrix.format.name for p in parts)


def _walk_shared(steps: StepList, parts: Sequence[Part], codes: bool) -> int:
    """Shared memory of a product of one token: quantised x, then partial sums in the place of x as it was read."""
    matrix = parts[0].matrix
    rows = -(-sum(p.matrix.groups for p in parts) // steps.context.limits.processors) * matrix.group
    stride = matrix.units * UNIT
    return walk_floats_bytes(stride, rows) if matrix.format.floats else walk_product_bytes(stride, rows, int(codes))


def _walk_quantise(steps: StepList, x: Value, matrix: Matrix, gating: Node | None) -> Value:
    """A row that is long or gated, quantised by a step of its own."""

    def make() -> Value:
        codes = Value(matrix.units * UNIT // 32 * 48, Layout.CODES)
        work = WalkQuantise(matrix, x, codes, gating)
        steps.add(
            gating.name if gating else "", work, [x], [codes], WalkNeeds(tier=Tier.MORE if gating else Tier.PLAIN)
        )
        return codes

    return steps.once(("codes of a row", x, matrix.columns), make)


def _batch_product(steps: StepList, x: Value, norm: Node | None, parts: Sequence[Part], gating: Node | None) -> None:
    """Two to eight tokens."""
    c, matrix = steps.context, parts[0].matrix
    of = tuple(sorted(parts, key=lambda p: p.matrix.format.tile_bytes))
    units, groups, shared = _batch_cut(of, c.limits.processors, walk.free_shared(c, c.product_formats))
    codes = _batch_quantise(steps, x, norm, matrix, units < matrix.units, gating)
    work = BatchProduct(of, codes, units, groups, matrix.format.tile_bytes)
    needs = WalkNeeds(_formats(of), shared)
    steps.add(of[0].name, work, [codes, *part_reads(of)], part_writes(of), needs)


def _batch_quantise(
    steps: StepList, x: Value, norm: Node | None, matrix: Matrix, counted: bool, gating: Node | None
) -> Value:
    if x.layout == Layout.CODES:
        return x

    def make() -> Value:
        codes = Value(matrix.units * (UNIT * walk.COLUMN + 4 * counted), Layout.CODES)
        work = BatchQuantise(matrix, x, codes, norm, gating, counted)
        tier = Tier.MORE if gating else Tier.PLAIN
        needs = WalkNeeds(shared=normed_row_bytes(matrix.columns) if norm else 0, tier=tier)
        steps.add(norm.name if norm else "", work, [x], [codes], needs)
        return codes

    return steps.once(("codes of rows", x, matrix.columns, counted, norm.name if norm else ""), make)


def _batch_cut(parts: Sequence[Part], processors: int, free: int) -> tuple[int, int, int]:
    """Units of x in shared memory at a time, groups of rows that a block of threads takes at a time, and their shared
    memory. A thread has one result, which bounds the groups. Raises NoWalk if nothing fits."""
    matrix = parts[0].matrix
    groups = -(-sum(p.matrix.groups for p in parts) // processors)
    x, sums = UNIT * walk.COLUMN, 4 * walk.MOST_TOKENS * matrix.group  # bytes of a unit
    most = 32 * walk.WARPS // (walk.MOST_TOKENS * (matrix.group // 2 if matrix.paired else matrix.group))

    def cost(batch: int) -> float:
        """Tiles that a warp computes one after the other, and the overhead of each batch."""
        whole, rest = divmod(groups, batch)
        tiles = whole * -(-batch * matrix.tiles // walk.WARPS) + -(-rest * matrix.tiles // walk.WARPS)
        return tiles + 0.3 * -(-groups // batch)

    units = matrix.units
    fit = min(groups, most, (free - units * x) // (units * sums))
    if units <= walk.ALL_UNITS and fit > 0:
        batch = min(range(1, 1 + fit), key=cost)
        return units, batch, units * (x + batch * sums)
    for units in walk.SOME_UNITS:  # twice, because the next part is prefetched
        size = units * (2 * x + groups * sums)
        if units < matrix.units and groups <= most and len(parts) == 1 and size <= free:
            return units, groups, size
    raise walk.NoWalk
