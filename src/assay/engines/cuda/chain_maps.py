"""The chain pass: elementwise operations of a walk, each of which only the next one reads, become one step.

A step of a walk costs the latency of its operands, however small it is. The value between two operations of a chain
stays in a register. A pure function of a schedule. Touch this module when walks learn other elementwise operations.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from assay.engines.cuda.abi.enumerations import MOST_MAPS
from assay.engines.cuda.device_values import Value
from assay.engines.cuda.step_list import Schedule
from assay.engines.cuda.steps import KernelStep, Map, MapChain

# Operations whose element j needs elements j of rows as wide as the result.
_ELEMENTWISE = {
    "add", "glu", "bias", "scale", "softcap", "clamp_min", "clamp", "act", "sigmoid", "mul", "mul_weight", "softplus",
    "exp", "add_scalar",
}  # fmt: skip


def chain_maps(schedule: Schedule) -> Schedule:
    """The same results with fewer steps."""
    results = {v.memory for _, v in schedule.results}
    readers = Counter(v for step in schedule.steps for v in set(step.reads))
    steps: list[KernelStep] = []
    made: dict[Value, KernelStep] = {}  # by the memory that only one later step reads
    for step in schedule.steps:
        if step.walk and isinstance(step.work, Map):
            step = _behind(step, step.work, made, steps)
        steps.append(step)
        if isinstance(step.work, MapChain):
            out = step.work.maps[-1].out
            if readers[out.memory] == 1 and out.memory not in results and out.base is None:
                made[out] = step
    return replace(schedule, steps=tuple(steps))


def _behind(step: KernelStep, last: Map, made: dict[Value, KernelStep], steps: list[KernelStep]) -> KernelStep:
    """The step as a chain, with the operations before it that compute its x or its y."""
    for x, width in ((last.x, last.x_width), (last.y, last.y_width)):
        before = made.get(x)
        if before and isinstance(before.work, MapChain) and _fits(before.work.maps, last, width):
            break
    else:
        return replace(step, work=MapChain((last,)))
    del made[x]
    steps.remove(before)
    reads = dict.fromkeys((*before.reads, *(v for v in step.reads if v is not x)))
    return replace(step, work=MapChain((*before.work.maps, last)), reads=tuple(reads))


def _fits(maps: tuple[Map, ...], last: Map, width: int) -> bool:
    """Whether `last` may go on behind these; the first operation of a chain may take its elements from anywhere."""
    same = last.width == width == maps[-1].width
    return same and len(maps) < MOST_MAPS and not {m.op for m in (*maps[1:], last)} - _ELEMENTWISE
