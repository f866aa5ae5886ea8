"""The compiler's entry: a graph and the shape of a forward pass in, a program of launches out, by three passes.

    schedule   groups of the plan -> kernel steps: the kernel, what it reads and writes (schedule*.py, folding.py)
    place      kernel steps -> an offset in the arena for every value (place.py)
    lower      kernel steps and offsets -> launches with their arguments (lower*.py, resolver.py)

A program holds no data of a batch: tokens, slots, page tables and positions are tables in device memory that the
engine writes before each run. So a program is compiled once for each shape, and the launches of a small forward pass
are captured as a CUDA graph.

Where every sequence has one token, consecutive kernel steps become a walk: one megakernel executes them (walk.py). If
that gives no walk or several, the graph is scheduled again with experts, recurrences and single operations as steps
of the walk too; of several tokens, without recurrences. If no megakernel fits the graph, it is scheduled as separate
launches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from assay.engines.cuda.chain_maps import chain_maps
from assay.engines.cuda.context import CompileContext, DeviceLimits
from assay.engines.cuda.device import HostCall, Launch, Played
from assay.engines.cuda.fold_maps import fold_maps
from assay.engines.cuda.folding import find_folds
from assay.engines.cuda.layout import DeviceWeights
from assay.engines.cuda.lower import lower
from assay.engines.cuda.place import place
from assay.engines.cuda.resolver import Addresses, Resolver
from assay.engines.cuda.schedule import schedule
from assay.engines.cuda.shapes import CacheLayout, Shape
from assay.engines.cuda.step_list import Schedule
from assay.engines.cuda.walk import MOST_TOKENS, NoWalk, WalkRun, batch_possible, find_walks
from assay.engines.plan.batching import External
from assay.engines.plan.fuse import fuse, is_adapter
from assay.graph import Graph


@dataclass
class Program:
    """Launches in order, the memory they need, and where results lie in it."""

    shape: Shape
    launches: list[Launch]
    arena: int  # Bytes.
    results: list[tuple[External, int]]  # With the offset of each in the arena.
    aliases: dict[str, str]  # Kept nodes that are another node's values.
    play: Played | None = None  # The CUDA graph of a step: tables from the host, then the launches.
    again: Played | None = None  # The launches alone, for tables that the device has updated itself.
    tables: dict[str, Any] = field(default_factory=dict)  # Views of the step's words on the host.
    calls: dict[int, list[HostCall]] = field(default_factory=dict)  # By the launch that comes after them.

    def close(self) -> None:
        for graph in (self.play, self.again):
            if graph:
                graph.close()
        self.play = self.again = None


def compile_program(
    graph: Graph,
    tensors: DeviceWeights,
    cache: CacheLayout,
    shape: Shape,
    keep: frozenset[str],
    limits: DeviceLimits,
    cuts: tuple[tuple[int, int], ...],
    reserve: Callable[[int], Addresses],
    host: Mapping[str, Graph] | None = None,
) -> Program:
    """The program for a shape; `reserve` returns the buffers' addresses once the arena's size is known. `host` has the
    parts of the graph that the host computes."""
    plan = fuse(graph, keep, tensors.format)
    context = CompileContext(graph, tensors, cache, shape, keep, limits, cuts, plan, host=host or {})
    launches = bool(host) or any(map(is_adapter, graph))  # no megakernel has their steps
    if shape.one and shape.tokens <= MOST_TOKENS and not keep and tensors.device.together and not launches:
        for planned in _with_walks(replace(context, walk=True)):
            try:
                return _finish(*planned, reserve)
            except NoWalk:
                pass
    return _finish(*_schedule(context), reserve)


_Scheduled = tuple[CompileContext, Schedule, list[WalkRun]]


def _with_walks(c: CompileContext) -> list[_Scheduled]:
    """The schedules with walks, the fewest walks first. One without small steps has the faster kernels."""
    found: list[_Scheduled] = []
    for small_steps in (False, True):
        with suppress(NoWalk):
            found.append(_schedule(replace(c, small_steps=small_steps)))
        if found and len(found[-1][2]) == 1:
            break
    return sorted(found, key=lambda planned: len(planned[2]))


def _schedule(c: CompileContext) -> _Scheduled:
    """The first pass; raises NoWalk if the context asks for a walk that is not possible."""
    if c.walk and c.shape.tokens > 1 and not batch_possible(c):
        raise NoWalk
    c = replace(c, folds=find_folds(c))
    scheduled = chain_maps(schedule(c)) if c.walk else fold_maps(schedule(c))
    return c, scheduled, find_walks(c, scheduled.steps) if c.walk else []


def _finish(
    c: CompileContext, scheduled: Schedule, walks: list[WalkRun], reserve: Callable[[int], Addresses]
) -> Program:
    """The other two passes; raises NoWalk if a result of the program is read inside a walk."""
    placement = place(scheduled, walks)
    launches: list[Launch] = []
    calls: dict[int, list[HostCall]] = {}
    for work in lower(Resolver(c, placement, reserve(placement.size)), scheduled.steps, walks):
        if isinstance(work, Launch):
            launches.append(work)
        else:
            calls.setdefault(len(launches), []).append(work)
    results = [(e, placement.offsets[v]) for e, v in scheduled.results]
    if all(e.node != c.graph.output for e, _ in results):  # no token's output was asked for
        results.append((External(c.graph.output, "outputs", c.width(c.graph.output)), 0))
    return Program(c.shape, launches, placement.size, results, scheduled.aliases, calls=calls)
