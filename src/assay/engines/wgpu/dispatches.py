"""A program as plain data: dispatches in order, the buffers that they name, and which values share memory.

Nothing here knows the device, so a program can be printed, exported as JSON, or run by another host than Python.
Buffers are named by strings. `v0`, `v1`, … are memory of the program; every other name is a buffer of the engine:
`step`, `chosen`, `positions`, `states`, `pool N`, `weights …`, `vector …`, `nothing`, `spare`. Touch this module when
a program must say more than that.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from assay.engines.plan.batching import External
from assay.engines.plan.values import RopeTable
from assay.engines.wgpu.shaders import Kernel

NOTHING = "nothing"  # bound where a kernel's variant does not read a buffer
SPARE = "spare"  # bound where it does not write one

# Workgroups of a dispatch: a number, or "T", "R", "B", "P" (tokens, output rows, blocks of 256 keys and pieces of the
# step), or "T*4", or "T/8", rounded up.
Count = int | str


@dataclass(frozen=True)
class View:
    """Rows of floats in a buffer: row r begins at word `at + r * stride`."""

    buffer: str
    stride: int
    width: int
    at: int = 0

    def columns(self, first: int, width: int) -> View:
        """Some neighbouring columns, in place."""
        return replace(self, at=self.at + first, width=width)

    def numbers(self, name: str) -> dict[str, int]:
        """Where it lies, as the numbers that kernels take for their buffer `name`."""
        return {f"{name}_at": self.at, f"{name}_stride": self.stride}


@dataclass(frozen=True)
class Dispatch:
    """One kernel: its numbers, its buffers by the names of their bindings, and its workgroups."""

    kernel: Kernel
    numbers: Mapping[str, int]
    buffers: Mapping[str, str]
    groups: tuple[Count, Count, Count]

    @property
    def words(self) -> list[int]:
        """`Par` of the kernel: the hidden zero, then its numbers in order."""
        assert set(self.numbers) >= set(self.kernel.numbers), (self.kernel.name, self.kernel.numbers)
        return [0, *(self.numbers[name] for name in self.kernel.numbers)]


@dataclass(frozen=True)
class KeptScores:
    """Scores that a program keeps: the buffer [row, head, key, 3] of kq, capped kq and softmax, and which is meant."""

    buffer: str
    heads: int
    keys: int
    which: int


@dataclass(frozen=True)
class DispatchPlan:
    """The dispatches of a step, the bytes of the program's own buffers, and where results lie."""

    dispatches: tuple[Dispatch, ...]
    sizes: Mapping[str, int]
    results: tuple[tuple[External, View | KeptScores | str], ...]  # a string: the pool that holds a cached node's rows
    rope_tables: tuple[RopeTable, ...]
    logits: View


def share_memory(
    dispatches: list[Dispatch], sizes: Mapping[str, int], kept: Collection[str]
) -> tuple[tuple[Dispatch, ...], dict[str, int], dict[str, str]]:
    """Let values share buffers: a buffer is free after the last dispatch that names its value, unless it is kept.

    Gives the dispatches with names of shared buffers, their sizes, and the shared buffer of each value.
    """
    last = {name: i for i, d in enumerate(dispatches) for name in d.buffers.values() if name in sizes}
    free: list[str] = []
    place: dict[str, str] = {}
    found: dict[str, int] = {}
    shared: list[Dispatch] = []
    for i, d in enumerate(dispatches):
        for name in d.buffers.values():
            if name not in sizes or name in place:
                continue
            if name in kept or not free:
                place[name] = f"v{len(found)}"
            else:
                nearest = min(free, key=lambda slot: abs(found[slot] - sizes[name]))
                free.remove(nearest)
                place[name] = nearest
            found[place[name]] = max(found.get(place[name], 0), sizes[name])
        shared.append(replace(d, buffers={k: place.get(name, name) for k, name in d.buffers.items()}))
        free += sorted({place[n] for n in d.buffers.values() if n in sizes and last[n] == i and n not in kept})
    return tuple(shared), found, place
