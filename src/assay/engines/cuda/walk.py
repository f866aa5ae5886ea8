"""Walks: consecutive kernel steps of a program that one megakernel executes (native/cuda/walk.cu).

A walk is a list of steps in device memory. Every multiprocessor runs one block of threads, which computes its share of
each step in turn. A step waits for the results of earlier steps by spinning on the values themselves, so no launch lies
between them. Producer warps prefetch weights and keys into a ring buffer in shared memory; twelve consumer warps
compute. There are megakernels for one token (walk.cu) and for two to eight tokens (walk_few.cu). Others have more kinds
of steps (walk_more.cu), experts and recurrences (walk_all.cu), experts of several tokens (walk_few_all.cu), or two
producer warps (walk_two.cu).

This module holds the sizes that the kernels fix, and finds the steps of a schedule that make a walk. lower_walk.py
writes the table of steps. Touch this module when a megakernel is added or its shared memory changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from assay.engines.cuda import structs
from assay.engines.cuda.abi.enumerations import FEW_CHOICE_BYTES, WALK_ROWS, WALK_UNIT_BYTES, WALK_WARPS
from assay.engines.cuda.abi.shared_memory import walk_all_own_bytes, walk_bytes
from assay.engines.cuda.context import CompileContext
from assay.engines.cuda.layout import FORMATS, UNIT, WIDE, WIDE_MIN, Format, rows_per_group
from assay.engines.cuda.steps import BatchExperts, KernelStep, Tier, WalkExperts, WalkNeeds, WeighExperts

WARPS, MOST_TOKENS = WALK_WARPS, WALK_ROWS  # consumer warps, and tokens of a walk
COLUMN = WALK_UNIT_BYTES // UNIT  # bytes of a quantised column of MOST_TOKENS rows: codes and a share of the scales
_FLOATS = 8 * 512  # bytes of a prefetched piece of float weights
_MOST_SLOTS = 60
# Most walks of a program. With more, separate launches are faster, because each begins before the previous one ends.
MOST_WALKS = 4
LONG = 8192  # Columns from which a row is quantised once instead of by every block of threads.
MOST_FEW = 56 << 10  # bytes of shared memory of a router's or of experts' step of several tokens
# Units of x of several tokens in shared memory: all of them up to ALL_UNITS, else parts of one of SOME_UNITS.
ALL_UNITS, SOME_UNITS = 24, (12, 8, 6, 4)
_KERNELS = {Tier.PLAIN: structs.WALKS, Tier.MORE: structs.MORE_WALKS, Tier.ALL: structs.ALL_WALKS}
_FORMATS = {f.name: f for f in (*FORMATS.values(), WIDE, WIDE_MIN)}


class NoWalk(Exception):
    """No megakernel can run this graph for this shape; it is compiled to separate launches."""


@dataclass(frozen=True)
class WalkRun:
    """Steps [begin, end) of a schedule, and what they need together."""

    begin: int
    end: int
    needs: WalkNeeds


def kernel_formats(formats: frozenset[str], tier: Tier = Tier.PLAIN) -> list[Format]:
    """The weight formats of the megakernel that has all these; empty if there is no such kernel."""
    return [_FORMATS[name] for name in next((names for names in _KERNELS[tier] if formats <= set(names)), ())]


def piece_bytes(form: Format) -> int:
    """Bytes that the producer warp fetches at a time: a tile, or a part of a tile of floats."""
    return _FLOATS if form.floats else form.tile_bytes


def _slot(formats: frozenset[str], piece: int = 0, tier: Tier = Tier.PLAIN) -> tuple[int, int]:
    """Bytes of a slot of the ring buffer, and the fewest slots that a kernel needs."""
    pieces = [piece_bytes(form) for form in kernel_formats(formats, tier) if form.name in formats]
    return max(pieces[0], piece), 8 + WARPS * (1 + (pieces[-1] > pieces[0]))


def _fixed_shared(tokens: int) -> int:
    """Shared memory beside the ring buffer and what steps need."""
    return walk_bytes(0, 0, 0, int(tokens > 1))


def work_bytes(needs: WalkNeeds, tokens: int) -> int:
    """Shared memory of the largest step, and of the choice of experts."""
    return needs.shared + (FEW_CHOICE_BYTES if tokens > 1 else walk_all_own_bytes()) * (needs.tier == Tier.ALL)


def ring(c: CompileContext, needs: WalkNeeds) -> tuple[int, int]:
    """Slots of the ring buffer (0: too few fit), and the bytes of each."""
    size, fewest = _slot(needs.formats, needs.piece, needs.tier)
    free = c.limits.shared - 1024 - work_bytes(needs, c.shape.tokens) - _fixed_shared(c.shape.tokens)
    found = min(_MOST_SLOTS, free // (size + 16))
    return found if found >= fewest else 0, size


def free_shared(c: CompileContext, formats: frozenset[str]) -> int:
    """Shared memory that steps may use beside the smallest ring buffer for such weights."""
    tier = Tier.ALL if c.small_steps else Tier.PLAIN
    size, fewest = _slot(formats, tier=tier)
    own = work_bytes(WalkNeeds(tier=tier), c.shape.tokens)
    return c.limits.shared - 1024 - own - _fixed_shared(c.shape.tokens) - fewest * (size + 16)


def batch_possible(c: CompileContext) -> bool:
    """Whether one megakernel of several tokens has the weight formats of all products."""
    formats, tier = c.product_formats, Tier.ALL if c.small_steps else Tier.PLAIN
    return not c.tensors.halves and bool(kernel_formats(formats, tier)) and not formats & {*structs.NOT_FEW}


def batch_fits_whole(c: CompileContext, columns: int) -> bool:
    """Whether several quantised rows fit in shared memory at once, so that attention may write them quantised."""
    if columns % UNIT or columns > ALL_UNITS * UNIT:
        return False
    units = columns // UNIT
    least = columns * COLUMN + units * 4 * MOST_TOKENS * rows_per_group(units, False)
    return least <= free_shared(c, c.product_formats)


def find_walks(c: CompileContext, steps: Sequence[KernelStep]) -> list[WalkRun]:
    """Consecutive steps that one megakernel executes; raises NoWalk where launches are needed or are faster."""
    tier = max((s.walk.tier for s in steps if s.walk), default=Tier.PLAIN)
    runs: list[WalkRun] = []
    for i, needs in enumerate(s.walk for s in steps):
        last = runs[-1] if runs and runs[-1].end == i else None
        if needs is None:
            continue
        together = last.needs.formats | needs.formats if last else needs.formats
        if last and kernel_formats(together, tier):
            shared, piece = max(last.needs.shared, needs.shared), max(last.needs.piece, needs.piece)
            runs[-1] = WalkRun(last.begin, i + 1, WalkNeeds(together, shared, piece, tier))
        else:
            runs.append(WalkRun(i, i + 1, WalkNeeds(needs.formats, needs.shared, needs.piece, tier)))
    if not 0 < len(runs) <= MOST_WALKS or any(_reads_choice(steps[run.begin]) for run in runs):
        raise NoWalk
    for run in runs:
        formats = run.needs.formats
        if not kernel_formats(formats, tier) or not formats or not ring(c, run.needs)[0]:
            raise NoWalk
    return runs


def _reads_choice(step: KernelStep) -> bool:
    """Whether the step reads a choice of experts that an earlier step of the same walk has left in shared memory."""
    work = step.work
    return isinstance(work, WeighExperts) or (isinstance(work, (WalkExperts, BatchExperts)) and work.down)
