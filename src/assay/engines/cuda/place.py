"""The place pass: from the kernel steps of a schedule to an offset for every value. A pure function of both.

A value needs memory from the first step that uses it to the last. Values that are live at the same time get different
bytes, first fit.

Values that one walk (walk.py) both writes and reads get one block of memory together. It is reserved from the
beginning of the program, which fills it with the word kNotYet (native/cuda/platform.h: all bits set). Readers inside
the walk spin until a word differs from kNotYet. No result has these bits, so a result of 0 is seen too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from assay.engines.cuda.device_values import Layout, Value
from assay.engines.cuda.step_list import Schedule
from assay.engines.cuda.steps import KernelStep, WalkExperts, WalkFloatRows, WalkNorms, WalkProduct
from assay.engines.cuda.walk import NoWalk, WalkRun

_ALIGNMENT = 256
_COPIES = 2  # of a row that every block of threads reads, so that half of them spin on each


@dataclass(frozen=True)
class Placement:
    """Bytes of the whole program, and where each value lies in them."""

    size: int
    offsets: Mapping[Value, int]
    sizes: Mapping[Value, int]
    copies: Mapping[Value, int]  # of values inside a walk, side by side
    inside: frozenset[Value]  # values that a walk writes and reads: their readers spin
    cleared: tuple[Value, ...]  # the memory of each walk; of size 0 where its steps share nothing


@dataclass
class _Life:
    """The first and the last step that uses a value."""

    first: int
    last: int


def place(schedule: Schedule, walks: Sequence[WalkRun]) -> Placement:
    """Offsets for all values; raises NoWalk if a walk's steps read a result of the program that the walk writes."""
    steps, results = schedule.steps, dict.fromkeys(v for _, v in schedule.results)
    lives, copied = _lives(steps), _copied(steps)
    sizes = {v: v.size for v in (*results, *lives)}
    copies: dict[Value, int] = {}
    within: dict[Value, tuple[Value, int]] = {}  # a value inside a walk -> the walk's memory, and the offset in it
    memories: dict[int, Value] = {}  # by the walk's first step
    for walk in walks:
        used = list(dict.fromkeys(v for s in steps[walk.begin : walk.end] for v in s.values))
        inner = [v for v in used if lives[v].first >= walk.begin]
        stays = [v for v in inner if v in results or v.resident]
        read = {v for s in steps[walk.begin : walk.end] for v in s.reads}
        if not read.isdisjoint(stays):
            raise NoWalk
        size, memory = 0, Value(0, Layout.SCRATCH)
        for value in (v for v in inner if v not in stays):
            if value in copied:
                sizes[value], copies[value] = _aligned(value.size) * _COPIES, _COPIES
            within[value] = memory, size
            size += _aligned(sizes[value])
        for value in used:
            life = lives[value]
            life.first, life.last = min(life.first, walk.begin), max(life.last, walk.end - 1)
        lives[memory] = _Life(0, max([walk.end - 1, *(lives[v].last for v in inner)]))
        sizes[memory], memories[walk.begin] = size, memory
    order = dict(results)
    for i, step in enumerate(steps):
        order |= dict.fromkeys((*step.values, *([memories[i]] if i in memories else [])))
    for value in order:
        if value in results or value.resident:
            life = lives.setdefault(value, _Life(-1, -1))
            life.first, life.last = 0 if value.resident else life.first, len(steps)
    offsets, end = _first_fit([v for v in order if v not in within], lives, sizes)
    offsets |= {value: offsets[memory] + at for value, (memory, at) in within.items()}
    return Placement(end, offsets, sizes, copies, frozenset(within), tuple(memories.values()))


def _lives(steps: Sequence[KernelStep]) -> dict[Value, _Life]:
    lives: dict[Value, _Life] = {}
    for i, step in enumerate(steps):
        for value in step.values:
            lives.setdefault(value, _Life(0 if value.resident else i, i)).last = i
    return lives


def _copied(steps: Sequence[KernelStep]) -> set[Value]:
    """Rows that every block of threads reads and that one step writes alone: they are written _COPIES times."""
    read: set[Value] = set()
    written: set[Value | None] = set()
    together: set[Value | None] = set()
    for work in (s.work for s in steps):
        if isinstance(work, WalkFloatRows):
            read.add(work.x)
        elif isinstance(work, WalkExperts):
            read.add(work.x)
            written |= {work.parts[0].out} if work.down else set()
        elif isinstance(work, WalkProduct):
            outs = {p.out for p in work.parts}
            read.add(work.x)
            written |= outs
            together |= outs if len(work.parts) > 1 else set()
        elif isinstance(work, WalkNorms) and len(work.parts) == 1:
            written.add(work.parts[0].out)
    return {v for v in (read & written) - together if v.layout != Layout.CODES}


def _first_fit(
    values: Sequence[Value], lives: Mapping[Value, _Life], sizes: Mapping[Value, int]
) -> tuple[dict[Value, int], int]:
    """Offsets, and the end of the last value."""
    offsets: dict[Value, int] = {}
    end = 0
    for value in values:
        life, size = lives[value], _aligned(sizes[value])
        taken = sorted(
            (at, at + _aligned(sizes[v]))
            for v, at in offsets.items()
            if lives[v].first <= life.last and life.first <= lives[v].last
        )
        at = 0
        for begin, stop in taken:
            if at + size <= begin:
                break
            at = max(at, stop)
        offsets[value], end = at, max(end, at + size)
    return offsets, end


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT
