"""Divide the product of one token among kernels, blocks of threads and warps (native/cuda/products.cu).

Pure functions of the matrices and the device. Touch this module to tune products of one token, or when a pair of weight
formats gets a kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from assay.engines.cuda.abi.shared_memory import one_product_bytes
from assay.engines.cuda.layout import LANES, UNIT, Matrix
from assay.engines.cuda.product_steps import Part

_KERNELS = {"q4_k": "q4_k_q6_k", "q6_k": "q4_k_q6_k", "q5_k": "q5_k_q6_k"}  # kernels that have two formats
_MIXED = {"q4_k_q6_k", "q5_k_q6_k"}
_WARPS = (8, 12)  # fewest and most of a block of threads
# Most shared memory of a block of threads; less than the device has, so that the next kernel can begin early. The first
# limit holds if all tiles are prefetched at once, the second if some are, the third if a block has over _MANY tiles.
_ALL, _SOME, _STREAM = 136 << 10, 112 << 10, 150 << 10
_MANY = 48  # tiles of a block above which only memory bandwidth counts
_FLOATS = 8 * 512  # bytes of float weights that a warp prefetches at a time; of other formats, a tile
_SUMS = 256  # most tiles of a block, because their partial sums lie in shared memory


@dataclass(frozen=True)
class Arrangement:
    """How a product of one token is launched."""

    blocks: int
    threads: int  # Of a block.
    slots: int  # Prefetched pieces of weights that a warp holds.
    piece: int  # Bytes of a piece.
    share: int  # Groups of rows that every block computes.
    extra: int  # Blocks that compute one group more.
    shared: int  # Bytes of shared memory of a block.


def arrange(matrices: Sequence[Matrix], groups: int, *, processors: int, most: int) -> Arrangement | None:
    """One block of threads for each multiprocessor, as few rounds as its warps allow, and all tiles prefetched before x
    arrives if shared memory holds them. None if nothing fits."""
    matrix, floats = matrices[0], matrices[0].format.floats
    piece = _FLOATS if floats else max(m.format.tile_bytes for m in matrices)
    pieces = matrix.format.tile_bytes // piece if floats else 1
    tiles, stride = matrix.tiles, matrix.units * UNIT
    blocks = min(groups, processors * -(-groups * tiles // (processors * _SUMS)))
    share, extra = divmod(groups, blocks)
    mine = (share + bool(extra)) * tiles
    room = one_product_bytes(stride, floats, mine, 0, 0, 0)
    many = mine > _MANY
    found = []
    for warps in range(_WARPS[0], _WARPS[0 if many else 1] + 1):
        turns, each = -(-mine // warps), warps * (piece + 8)
        slots = turns * pieces
        if room + slots * each > _ALL:
            slots = max(((_STREAM if many else _SOME) - room) // each, min(2, (_ALL - room) // each), 1)
        found.append((slots < min(2, turns * pieces), turns, warps, min(slots, LANES)))
    for _, _, warps, most_slots in sorted(found):
        for slots in range(most_slots, 0, -1):
            shared = one_product_bytes(stride, floats, mine, warps, slots, piece)
            if shared <= most - 1024:
                return Arrangement(blocks, LANES * warps, slots, piece, share, extra, shared)
    return None


def by_layouts(parts: Sequence[Part]) -> list[tuple[str, list[Part]]]:
    """These matrices as launches of at most four: of one format, or of two formats that have a kernel. With each, the
    name of the formats."""
    found: dict[str, list[Part]] = {}
    for p in parts:
        found.setdefault(p.matrix.format.name, []).append(p)
    mixed = "_".join(sorted(found))
    if mixed in _MIXED and len(parts) <= 4:
        return [(mixed, list(parts))]
    return [(name, some[i : i + 4]) for name, some in found.items() for i in range(0, len(some), 4)]


def by_kernel(parts: Sequence[Part]) -> list[tuple[str, list[Part]]]:
    """The launches that multiply one token by these matrices: the kernel's name and the parts of each."""
    return [(_KERNELS.get(name, name), some) for name, some in by_layouts(parts)]


def warps_for(tiles: int) -> int:
    """Warps for the tiles of a group of float weights: the fewest that need no more rounds than 16 warps."""
    return -(-tiles // -(-tiles // 16))
