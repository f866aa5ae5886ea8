"""Which kernel multiplies many rows, and in tiles of what size: functions of the matrices, the rows and the device.

Every function returns a TileChoice whose shared memory fits the device. Tests replace the tables here to reach one
kernel. Touch this module when a product kernel gets another tile.
"""

from __future__ import annotations

from collections.abc import Sequence

from assay.engines.cuda import structs
from assay.engines.cuda.abi.shared_memory import (
    few_factors_bytes,
    few_shared_bytes,
    few_stage_bytes,
    float_tile_bytes,
    halves_few_stage_bytes,
    halves_step_bytes,
    staged_weights_bytes,
    tensor_tile_bytes,
    tensor_turns_bytes,
    tensor_unit_bytes,
    tile_set_bytes,
    tile_shared_bytes,
    tile_stage_bytes,
)
from assay.engines.cuda.context import DeviceLimits
from assay.engines.cuda.device_values import padded_rows
from assay.engines.cuda.layout import Format, Matrix
from assay.engines.cuda.product_steps import TileChoice

# Tiles of gemm_many.cu: rows, tokens, groups of warps that share the units, most stages.
TILES = ((128, 128, 1, 2), (128, 64, 1, 2), (64, 64, 1, 2), (32, 64, 2, 3), (32, 32, 1, 2))
TENSOR_TILES = tuple(structs.TENSOR_TILES)  # kernels of gemm_tensor.cu
HALF_TILES = tuple(structs.HALF_TILES)  # kernels of gemm_halves.cu
# Kernels of experts.cu: pairs a matrix from which they are chosen, their rows and slots a tile.
EXPERT_TILES = ((48, 64, 64), (24, 32, 32), (0, 32, 8))
# Pairs a matrix from which pairs are sorted by matrix: for small matrices, and for those of at least _LARGE bytes.
SORTED, SORTED_LARGE, _LARGE = 4, 2, 2 << 20


def count_tiles(matrix: Matrix, rows: int) -> int:
    """Tiles of `rows` rows."""
    return -(-matrix.groups * matrix.group // rows)


def _all_tiles(matrices: Sequence[Matrix], rows: int) -> int:
    return sum(count_tiles(m, rows) for m in matrices)


def _weight_bytes(formats: Sequence[Format], tile: int) -> int:
    return max(staged_weights_bytes(tile, f.chunks, int(f.word)) for f in formats)


def _few_shared(formats: Sequence[Format], tile: int, tokens: int, warps: int) -> tuple[int, int]:
    """Bytes of a stage of gemm.h, and its shared memory."""
    factors = max(few_factors_bytes(tile, tokens, int(f.sums)) for f in formats)
    stage = few_stage_bytes(tokens, _weight_bytes(formats, tile), factors)
    return stage, few_shared_bytes(tile, tokens, warps, stage)


def _tile_shared(
    formats: Sequence[Format], tile: int, tokens: int, groups: int, most_stages: int, limit: int
) -> tuple[int, int]:
    """Stages of gemm_tiles.h that fit, and its shared memory."""
    sums = int(any(f.sums for f in formats))
    unpacked, stage = tile_set_bytes(tile, sums), tile_stage_bytes(tokens, sums, _weight_bytes(formats, tile))
    fixed = tile_shared_bytes(tile, tokens, groups, 0, unpacked, stage)
    stages = min(most_stages, (limit - fixed) // groups // stage)
    return stages, tile_shared_bytes(tile, tokens, groups, stages, unpacked, stage)


def _largest(rows: int, matrices: Sequence[Matrix], limits: DeviceLimits, tiles: Sequence[TileChoice]) -> TileChoice:
    """The first (largest) tile that occupies all multiprocessors, or the last one."""
    for found in tiles:
        blocks = _all_tiles(matrices, found.rows) * -(-rows // found.tokens)
        if blocks >= 0.9 * limits.processors:
            return found
    return tiles[-1]


def quantised_tile(rows: int, matrices: Sequence[Matrix], limits: DeviceLimits) -> TileChoice:
    """For quantised rows and weights: gemm_few.cu up to 16 tokens, then gemm_many.cu."""
    formats, limit = [m.format for m in matrices], limits.shared - 1024
    few = _all_tiles(matrices, 32) <= limits.processors and not matrices[0].paired
    tile, name = (16, "product_16_") if few else (32, "product_")
    for tokens in (8, 16):
        size, shared = _few_shared(formats, tile, tokens, 8)
        if rows <= tokens and shared <= limit:
            return TileChoice(f"{name}{tokens}", tile, tokens, 256, size, shared)
    fitting = []
    for tile, tokens, groups, most_stages in TILES:
        stages, shared = _tile_shared(formats, tile, tokens, groups, most_stages, limit)
        if stages >= 2:
            name = f"product_{tile}_{tokens}"
            fitting.append(TileChoice(name, tile, tokens, structs.KERNELS[name][1], stages, shared))
    fitting = [t for t in fitting if t.tokens < 2 * rows] or fitting[-1:]
    if rows > 32 and len(fitting) > 1:
        fitting = [t for t in fitting if t.tokens > 32]
    return _largest(rows, matrices, limits, fitting)


def float_tile(rows: int, matrices: Sequence[Matrix], limits: DeviceLimits) -> TileChoice | None:
    """For float weights and more than eight rows: gemm_floats.cu, if a tile fits."""
    fitting = []
    for kernel, (tile, tokens, groups) in structs.FLOAT_TILES.items():
        shared = float_tile_bytes(tile, tokens, groups)
        if shared <= limits.shared - 1024 and (tokens < 2 * rows or tokens == 32):
            fitting.append(TileChoice(kernel, tile, tokens, 256, 0, shared))
    return _largest(rows, matrices, limits, fitting) if rows > 8 and fitting else None


def _chains(matrices: Sequence[Matrix]) -> int:
    """Chains of 64 rows of all matrices."""
    return _all_tiles(matrices, 64) * matrices[0].chains


def tensor_tile(rows: int, matrices: Sequence[Matrix], limits: DeviceLimits) -> TileChoice:
    """For quantised weights and rows of 16-bit floats: gemm_tensor.cu."""
    fitting = {name: t for name in TENSOR_TILES if (t := _tensor_kernel(name, rows, matrices, limits))}
    few = max(8, 1 << (rows - 1).bit_length())
    tiles, processors = _chains(matrices), limits.processors
    full = few >= 32 and -(-rows // 32) * tiles > 3 * processors
    most = 64 if 0.7 * processors <= tiles <= processors else 32  # as many blocks of threads as possible
    chosen = fitting.get(f"tensor_{few}" if full else f"turns_{min(few, most)}")
    if rows <= 64 and chosen:
        return chosen
    large = [t for t in fitting.values() if t.tokens < 2 * rows and (t.tokens >= 64) == t.kernel.startswith("tensor")]
    return _largest(rows, matrices, limits, large or list(fitting.values())[-1:])


def _tensor_kernel(kernel: str, rows: int, matrices: Sequence[Matrix], limits: DeviceLimits) -> TileChoice | None:
    """How a kernel of gemm_tensor.cu is launched, if it fits: its groups of four warps have 64 rows each (tensor_*), or
    take units in turn (turns_*). A warp stages two units of weights."""
    tokens, formats = int(kernel.split("_")[1]), [m.format for m in matrices]
    unit = max(tensor_unit_bytes(f.codes, f.pairs) for f in formats)
    work, most = _chains(matrices) * -(-rows // tokens), limits.shared - 1024
    if kernel.startswith("tensor"):
        strips = 1 if tokens > 64 else 2  # of 64 columns, in a slot of the ring buffer
        ring = 8 if tokens == 128 else 4
        chains = matrices[0].chains > 1 and tokens == 64
        for groups in (2,) if tokens > 64 else (1,) if rows > 64 or chains else (2, 4, 1):
            shared = tensor_tile_bytes(tokens, ring, strips, 4 * groups, unit)
            at_once = groups * limits.processors * min(4 // groups, most // (shared + 1024))
            if shared <= most and (at_once >= work or groups != 2 or tokens > 64):
                name = f"{kernel}_alone" if (groups, tokens) == (1, 64) else kernel  # compiled with more registers
                return TileChoice(name, 64 * groups, tokens, 128 * groups, 0, shared)
        return None
    alone = work <= limits.processors  # else two blocks of threads share a multiprocessor
    first = structs.TENSOR_TILES[kernel] // 128
    for groups, limit in ((first, most), (3, most), (2, most)) if alone else ((2, most // 2 - 512), (2, most)):
        shared = tensor_turns_bytes(tokens, groups, unit)
        if shared <= limit:
            return TileChoice(kernel, 64, tokens, 128 * groups, 0, shared)
    return None


def half_tile(rows: int, matrices: Sequence[Matrix], limits: DeviceLimits) -> TileChoice:
    """For 16-bit float weights and rows: gemm_halves.cu. Of the tiles with at least half of the tokens, or 64, the one
    for which a multiprocessor reads least. Smaller tiles read the weights too often: once for each tile of tokens."""
    most, found = limits.shared - 1024, []
    for kernel in HALF_TILES:
        tile, tokens = (int(n) for n in kernel.split("_")[1:])
        step = halves_step_bytes(tile, tokens, 2 if tile == 64 else 1)
        beside = 0 if tokens == 128 else 16384  # left free, so that the launch that halves rows can begin
        ring = max(3, min(12, (most - beside) // step))
        turns = -(-_all_tiles(matrices, tile) * -(-rows // tokens) // limits.processors)
        if tokens <= padded_rows(rows) and ring * step <= most:
            launch = kernel, tile, tokens, structs.HALF_TILES[kernel], ring, ring * step
            found.append((2 * tokens < min(128, padded_rows(rows)), turns * (tile + tokens), launch))
    if rows <= 8 and (not found or _all_tiles(matrices, 64) < limits.processors):
        size = halves_few_stage_bytes(32, 8)
        for name, splits in (("product_tensor_8", 8), ("product_tensor_8_small", 4)):
            shared = few_shared_bytes(32, 8, splits, size)
            if shared <= most:
                return TileChoice(name, 32, 8, 32 * splits, size, shared)
    return TileChoice(*min(found)[2])


def expert_tile(pairs: int, matrix: Matrix, limits: DeviceLimits) -> TileChoice | None:
    """For pairs sorted by matrix: experts.cu; None where pairs are multiplied one by one."""
    each, formats, limit = pairs / matrix.count, [matrix.format], limits.shared - 1024
    if matrix.format.floats or each < (SORTED_LARGE if matrix.size >= _LARGE else SORTED):
        return None
    for least, tile, tokens in EXPERT_TILES:
        name = f"experts_{tile}_{tokens}"
        threads = structs.KERNELS[name][1]
        if tokens == 8:
            stages, shared = _few_shared(formats, tile, tokens, threads // 32)
        else:
            stages, shared = _tile_shared(formats, tile, tokens, 1, 2, limit)
        if each >= least and stages >= 2 and shared <= limit:
            return TileChoice(name, tile, tokens, threads, stages, shared)
    return None
