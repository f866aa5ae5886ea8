"""How the product of one token is dealt to kernels, blocks of threads and warps (native/cuda/products.cu)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from assay.engines.cuda.layout import LANES, UNIT, Matrix

if TYPE_CHECKING:
    from assay.engines.cuda.program import Value

_PAIRS = {"q4_k_q6_k", "q5_k_q6_k"}  # layouts that one launch can mix
_CREW = 12  # warps of a block that goes on to further groups
_ONCE = 24  # most warps of a block that takes all of its groups at once
_TEAMS = 15  # as many barriers as a block has
_TILES = 128 << 10  # most bytes of weights that it fetches at once: the next kernel wants room too


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


@dataclass(frozen=True)
class Arrangement:
    """Tiles that a warp has room for, warps that share a group of rows, groups that a block takes at once."""

    slots: int
    team: int
    together: int
    threads: int
    shared: int


def slot_bytes(parts: Sequence[Part]) -> int:
    """Room for a tile: the kernel for a pair of layouts has room for the larger of the two."""
    mixed = {p.matrix.format.name for p in parts} != {parts[0].matrix.format.name}
    return max([p.matrix.format.tile_bytes for p in parts] + [13 * 512 + 128] * mixed)


def arrange(parts: Sequence[Part], groups: int, normed: bool, processors: int, most: int) -> Arrangement | None:
    """Where a block a multiprocessor can take all groups at once, a warp has one tile, and all of them are on their way
    before x is there; else twelve warps a multiprocessor go from group to group, two tiles a warp."""
    matrix, tile = parts[0].matrix, slot_bytes(parts)
    stride, tiles = matrix.units * UNIT, matrix.tiles
    columns = matrix.columns if normed else 0

    def made(slots: int, team: int, together: int) -> Arrangement:
        warps = team * together
        threads = LANES * max(warps, min(_CREW, stride // 8 // LANES))  # those without tiles help to quantise
        sums = max(2 * together * tiles * LANES, columns)
        return Arrangement(
            slots,
            team,
            together,
            threads,
            stride + stride // 32 * 12 + 16 + 4 * (columns + sums) + slots * warps * tile,
        )

    together = -(-groups // processors)
    found = []
    if together <= _TEAMS and together * tiles <= _ONCE and together * tiles * tile <= _TILES:
        found.append(made(1, tiles, together))
    team = min(range(1, _CREW + 1), key=lambda n: -(-groups // (processors * (_CREW // n))) * -(-tiles // n))
    found += [made(2, team, _CREW // team), made(2, team, 1), made(1, team, 1)]
    return next((a for a in found if a.shared <= most - 1024), None)


def by_kernel(parts: Sequence[Part]) -> list[tuple[str, list[Part]]]:
    """The launches that multiply one token by these matrices: names of layouts, and their parts."""
    if parts[0].matrix.format.floats:
        return [("", list(parts[i : i + 4])) for i in range(0, len(parts), 4)]
    found: dict[str, list[Part]] = {}
    for p in parts:
        found.setdefault(p.matrix.format.name, []).append(p)
    mixed = "_".join(sorted(found))
    if mixed in _PAIRS and len(parts) <= 4:
        return [(mixed, list(parts))]
    return [(n, some[i : i + 4]) for n, some in found.items() for i in range(0, len(some), 4)]


def warps_for(tiles: int) -> int:
    """Warps for the tiles of a group of floats, as few turns as 16 allow."""
    return -(-tiles // -(-tiles // 16))
