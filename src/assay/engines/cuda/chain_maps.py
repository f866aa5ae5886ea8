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
    """The step as a chain, with the operations before it that compute its x."""
    before = made.pop(last.x, None)
    if before is None or not isinstance(before.work, MapChain):
        return replace(step, work=MapChain((last,)))
    maps = (*before.work.maps, last)
    same = last.width == last.x_width == before.work.maps[-1].width
    if len(maps) > MOST_MAPS or not same or {m.op for m in maps} - _ELEMENTWISE:
        return replace(step, work=MapChain((last,)))
    steps.remove(before)
    reads = dict.fromkeys((*before.reads, *(v for v in step.reads if v is not last.x)))
    return replace(step, work=MapChain(maps), reads=tuple(reads))
