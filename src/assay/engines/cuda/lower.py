"""The lower pass: from kernel steps and their memory to launches, in order.

A step outside walks becomes one launch, by the table of its kernel family. The steps of a walk become one launch
together (lower_walk.py). The first launches of a program fill the memory that the steps of a walk share with the word
kNotYet: a reader inside the walk spins until a word differs from it (place.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from assay.engines.cuda import structs
from assay.engines.cuda.device import HostCall, Launch
from assay.engines.cuda.device_values import Value
from assay.engines.cuda.lower_adapters import ADAPTERS
from assay.engines.cuda.lower_attention import ATTENTION
from assay.engines.cuda.lower_products import PRODUCTS
from assay.engines.cuda.lower_recurrent import RECURRENT
from assay.engines.cuda.lower_rows import ROWS
from assay.engines.cuda.lower_walk import lower_walk
from assay.engines.cuda.product_steps import HostWork
from assay.engines.cuda.resolver import Resolver
from assay.engines.cuda.steps import KernelStep
from assay.engines.cuda.walk import WalkRun


def _host_call(r: Resolver, w: HostWork) -> HostCall:
    reads, writes = ({name: (r.at(v), width) for name, v, width in rows} for rows in (w.reads, w.writes))
    return HostCall(w.part, w.domain, reads, writes)


LOWERINGS: Mapping[type, Callable[[Resolver, Any], Any]] = {
    **ROWS, **RECURRENT, **ADAPTERS, **PRODUCTS, **ATTENTION, HostWork: _host_call,
}  # fmt: skip


def lower(r: Resolver, steps: Sequence[KernelStep], walks: Sequence[WalkRun]) -> list[Launch | HostCall]:
    """The launches of a program, and the calls on the host between them."""
    launches: list[Launch | HostCall] = []
    done = 0
    for i, run in enumerate(walks):
        launches += [_launch(r, step) for step in steps[done : run.begin]]
        inner = steps[run.begin : run.end]
        used = dict.fromkeys(v for s in inner for v in s.values if not r.inside(v))
        launches.append(_bounded(r, lower_walk(r, run, inner), (*used, r.placement.cleared[i])))
        done = run.end
    launches += [_launch(r, step) for step in steps[done:]]
    cleared = [memory for memory in r.placement.cleared if r.size(memory)]
    return [*(_bounded(r, _clear(r, memory), [memory]) for memory in cleared), *launches]


def _launch(r: Resolver, step: KernelStep) -> Launch | HostCall:
    found: Launch | HostCall = LOWERINGS[type(step.work)](r, step.work)
    return _bounded(r, found, step.values) if isinstance(found, Launch) else found


def _bounded(r: Resolver, launch: Launch, used: Iterable[Value]) -> Launch:
    """The launch with the memory that it may touch, which the shim checks."""
    launch.arena = r.base.arena
    launch.values = tuple((r.at(value), r.size(value)) for value in used)
    return launch


def _clear(r: Resolver, memory: Value) -> Launch:
    size = r.size(memory)
    args = structs.ClearArgs(r.at(memory), size // 16)
    return Launch("clear", (min(r.context.limits.processors, -(-size // 4096)), 1, 1), 256, args)
