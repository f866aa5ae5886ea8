"""How the product of one token is dealt to kernels, blocks of threads and warps (native/cuda/products.cu)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from assay.engines.cuda import structs
from assay.engines.cuda.layout import LANES, UNIT, Matrix

if TYPE_CHECKING:
    from assay.engines.cuda.program import Value

_PAIRS = {"q4_k_q6_k", "q5_k_q6_k"}  # layouts that one launch can mix
_CREW = 12  # warps of a block that goes on to further groups ...
_FEW, _LARGE = 8, 8 << 10  # ... fewer where tiles are larger than so many bytes: the kernels around it want room
_ONCE = 24  # most warps of a block that takes all of its groups at once
_LONG = 4096  # columns of a row from which two groups a warp are faster
_TEAMS = 15  # as many barriers as a block has
_TILES = 128 << 10  # most bytes of weights that it fetches at once: the next kernel wants room too


Resident = Callable[[str, int, int], int]  # blocks a multiprocessor runs at once: of a kernel, threads, shared memory


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
    """A kernel, tiles a warp has room for, warps that share a group of rows, groups that a block takes at once, and
    how many blocks of threads there are."""

    kernel: str
    slots: int
    team: int
    together: int
    threads: int
    shared: int
    blocks: int


def slot_bytes(parts: Sequence[Part]) -> int:
    """Room for a tile: the kernel for a pair of layouts has room for the larger of the two."""
    mixed = {p.matrix.format.name for p in parts} != {parts[0].matrix.format.name}
    return max([p.matrix.format.tile_bytes for p in parts] + [13 * 512 + 128] * mixed)


def arrange(
    parts: Sequence[Part],
    layouts: str,
    groups: int,
    *,
    normed: bool,
    several: bool,
    processors: int,
    most: int,
    resident: Resident,
) -> Arrangement | None:
    """How a product of one token is dealt, by its shape. What was measured fastest on an H200 (docs/gpu.md):

    all groups at once        a block a multiprocessor, a warp a tile, all of them on their way before x is there
    long rows, many groups    product_wide: two groups a warp, and the next two on their way
    others                    eight or twelve warps a multiprocessor go from group to group, two tiles a warp
    """
    matrix, tile = parts[0].matrix, slot_bytes(parts)
    stride, tiles = matrix.units * UNIT, matrix.tiles
    columns = matrix.columns if normed else 0
    room = stride + stride // 32 * 12
    crew = _FEW if tile > _LARGE else _CREW

    def made(slots: int, team: int, together: int) -> Arrangement:
        warps = team * together
        threads = LANES * max(warps, min(crew, stride // 8 // LANES))  # those without tiles help to quantise
        sums = max(2 * together * tiles * LANES, columns)
        shared = room + 16 + 4 * (columns + sums) + slots * warps * tile
        kernel = f"product_{'one' if slots == 1 else 'two'}_{layouts}"
        blocks = min(-(-groups // together), processors)
        return Arrangement(kernel, slots, team, together, threads, shared, blocks)

    def wide() -> Arrangement:
        team = -(-tiles // -(-tiles // 16))
        teams = max(1, 8 // team)
        together, warps = 2 * teams, teams * team
        shared = room + 4 * max(2 * together * tiles * LANES, columns) + 2 * warps * tile
        shared += max(4 * columns + 16, 2 * warps * tile)  # the row lies over the tiles to come
        kernel, threads, units = f"product_wide_{layouts}", LANES * warps, -(-groups // together)
        if shared > most - 1024:
            return Arrangement(kernel, 2, team, together, threads, shared, 0)
        turns = -(-units // (resident(kernel, threads, shared) * processors))
        return Arrangement(kernel, 2, team, together, threads, shared, -(-units // turns))

    together = -(-groups // processors)
    found = []
    if together <= _TEAMS and together * tiles <= _ONCE and together * tiles * tile <= _TILES:
        found.append(made(1, tiles, together))
    elif not several and layouts in structs.WIDE_LAYOUTS and matrix.columns >= _LONG:
        found.append(wide())
    team = min(range(1, crew + 1), key=lambda n: -(-groups // (processors * (crew // n))) * -(-tiles // n))
    found += [made(2, team, crew // team), made(2, team, 1), made(1, team, 1)]
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
