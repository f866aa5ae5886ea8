"""How the product of one token is dealt to kernels, blocks of threads and warps (native/cuda/products.cu)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from assay.engines.cuda.layout import Matrix

if TYPE_CHECKING:
    from assay.engines.cuda.program import Value

_WARPS = 16  # most of a block that multiplies
_PAIRS = {"q4_k_q6_k", "q5_k_q6_k"}  # layouts that one launch can mix
_SHARING = {"q4_0", "q4_1", "q4_k", "q5_k", "q6_k"}  # layouts with a kernel whose warps take two groups


@dataclass
class Part:
    """A matrix of a launch, where its result goes, and what follows it."""

    matrix: Matrix
    name: str
    bias: str = ""
    residual: Value | None = None
    act: int = 0
    kept: tuple[Value | None, ...] = (None, None)
    out: Value | None = None


def warps_for(tiles: int) -> int:
    """Warps for the tiles of a group, as few turns as 16 allow."""
    return -(-tiles // -(-tiles // _WARPS))


def arrangements(kernel: str, groups: int, tiles: int, processors: int) -> list[tuple[int, int, int]]:
    """How a product may be dealt to blocks of threads, best first: groups that share a warp, groups together, slots.

    Where all is done in one round, every multiprocessor gets one block, and a block as many groups as that takes: they
    share the work on the input. Where there are more rounds, the next tile is on its way while one is multiplied.
    """
    warps = warps_for(tiles)
    most = max(1, _WARPS // warps)  # groups of one warp each that a block has room for
    can_share = kernel.removeprefix("product_one_") in _SHARING
    if groups <= most * processors:
        return [(1, -(-groups // processors), 1), (1, 1, 1)]
    if can_share and groups <= 2 * most * processors:
        return [(2, 2 * -(-groups // (2 * processors)), 1), (1, 1, 1)]
    some = max(1, 8 // warps)
    return [*([(2, 2 * some, 2)] if can_share else []), (1, some, 2), (1, 1, 2), (1, 1, 1)]


def one_shared(parts: Sequence[Part], stride: int, items: int, normed: int, tiles: int, slots: int) -> int:
    """Bytes of shared memory of product_one: activations, partial sums, tiles; the row lies over the second ones."""
    slot = max(p.matrix.format.tile_bytes for p in parts)
    if {p.matrix.format.name for p in parts} != {parts[0].matrix.format.name}:
        slot = max(slot, 13 * 512 + 128)  # the kernel for a pair has room for the larger of the two
    return stride + stride // 32 * 12 + 16 + 8 * items + tiles * slot + max(4 * normed, (slots - 1) * tiles * slot)


def by_kernel(parts: Sequence[Part]) -> list[tuple[str, list[Part]]]:
    """The launches that multiply one token by these matrices."""
    if parts[0].matrix.format.floats:
        return [("", list(parts[i : i + 4])) for i in range(0, len(parts), 4)]
    found: dict[str, list[Part]] = {}
    for p in parts:
        found.setdefault(p.matrix.format.name, []).append(p)
    mixed = "_".join(sorted(found))
    if mixed in _PAIRS and len(parts) <= 4:
        return [(f"product_one_{mixed}", list(parts))]
    return [(f"product_one_{n}", some[i : i + 4]) for n, some in found.items() for i in range(0, len(some), 4)]
