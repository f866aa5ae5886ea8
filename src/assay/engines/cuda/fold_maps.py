"""The fold pass of launches: operations of rows beside products that the step next to them computes.

    a gated activation of experts                  computed by the step that quantises the pairs of the next product
    an activation, or a layer norm                 computed by the step that rounds the next product's rows to 16 bits
    experts' rows times weights, sum, residual     one step (TotalExperts)

An operation is folded only where no other step reads what lies between. A pure function of a schedule. Touch this
module when a step learns to compute an operation beside it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from assay.engines.cuda.device_values import Value
from assay.engines.cuda.product_steps import PairGate, QuantisePairs
from assay.engines.cuda.step_list import Schedule
from assay.engines.cuda.steps import HalveRows, KernelStep, Map, NormRows, TotalExperts


def fold_maps(schedule: Schedule) -> Schedule:
    """The same results with fewer steps."""
    results = {v.memory for _, v in schedule.results}
    readers = Counter(v.memory for step in schedule.steps for v in {r.memory: r for r in step.reads}.values())
    steps: dict[int, KernelStep] = {}
    made: dict[Value, int] = {}  # where the value is made that only one later step reads
    for n, step in enumerate(schedule.steps):
        for value in step.reads:
            before = made.get(value)
            if before is not None and before in steps and (joined := _joined(steps[before], step, value)):
                del steps[before]
                step = joined
        steps[n] = step
        if isinstance(step.work, Map | NormRows | TotalExperts):
            out = step.work.out
            if out.base is None and readers[out.memory] == 1 and out.memory not in results:
                made[out] = n
    return replace(schedule, steps=tuple(steps.values()))


def _joined(before: KernelStep, step: KernelStep, value: Value) -> KernelStep | None:
    """Both as one step, if there is such a step; `before` makes `value`, which only `step` reads."""
    first, last = before.work, step.work
    work: HalveRows | QuantisePairs | TotalExperts | None = None
    match first, last:
        case Map(op="glu" | "glu_oai"), QuantisePairs(gating=None) if first.x_width == first.y_width == first.width:
            gating = PairGate(first.y, first.integer, first.op == "glu_oai", first.number, first.second)
            work = replace(last, x=first.x, gating=gating)
        case Map(op="act"), HalveRows(norm=None, layer_norm=None, act=-1):
            work = replace(last, x=first.x, act=first.integer)
        case NormRows(kernel="layer_norm", parts=1), HalveRows(norm=None, layer_norm=None, act=-1) if first.weights:
            work = replace(last, x=first.x, layer_norm=first)
        case Map(op="expert_scale"), Map(op="expert_sum") if last.width % 4 == 0 and first.width == first.x_width:
            count = first.x_width // last.width
            if count == first.y_width:
                work = TotalExperts(first.x, first.y, None, last.out, last.rows, last.width, count)
        case TotalExperts(residual=None), Map(op="add") if last.x_width == last.y_width == last.width == first.width:
            other = last.y if last.x is value else last.x
            if other is not value:
                work = replace(first, residual=other, out=last.out)
    if work is None:
        return None
    reads = dict.fromkeys((*before.reads, *(v for v in step.reads if v is not value)))
    return replace(step, work=work, reads=tuple(reads))
