"""A model's programs as JSON and its weights as one file, for a host that is not Python (`library/website/runner.js`).

The kernels, dispatches and buffers are those that the engine runs. Touch this module together with the runner.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.engines.contract import PAGE, pages_for
from assay.engines.plan.state_layout import cache_pools
from assay.engines.wgpu.dispatches import NOTHING, SPARE, DispatchPlan
from assay.engines.wgpu.graph_dispatches import compile_dispatches
from assay.engines.wgpu.placed_weights import StackedWeights
from assay.engines.wgpu.program_builder import ProgramShape, cache_words
from assay.engines.wgpu.shaders import TIERS, Kernel, arithmetic
from assay.engines.wgpu.step_words import HEADER, RECORD, RopeRows
from assay.engines.wgpu.tier_probe import expected_results, probe_vectors
from assay.models import Model

ROWS = (1, 16)  # tokens of a step, a program each: decoding, and a part of a prompt
KV_TYPE = "f16"


class _Arrays:
    """Weights kept as arrays, each small enough for a binding of any WebGPU device."""

    max_binding = 128 << 20

    def loaded(self, data: NDArray[Any], what: str) -> NDArray[np.uint8]:
        return np.ascontiguousarray(data).reshape(-1).view(np.uint8)


def exported_plan(model: Model, context: int) -> tuple[dict[str, Any], list[NDArray[np.uint8]]]:
    """The plan as data for JSON, and the arrays of the file of weights in its order."""
    weights = StackedWeights(_Arrays(), model.file, model.graph, exact=False)
    plans = [compile_dispatches(model.graph, weights, ProgramShape(n, context, KV_TYPE, best=True)) for n in ROWS]
    primitives = Kernel("primitives")
    kernels = list(dict.fromkeys([primitives, *(d.kernel for plan in plans for d in plan.dispatches)]))
    number = {kernel: i for i, kernel in enumerate(kernels)}
    used = {name for plan in plans for d in plan.dispatches for name in d.buffers.values()}
    parts = {name: data for name, data in weights.buffers.items() if name in used}
    tables = plans[0].rope_tables
    ropes = RopeRows(tables).at(np.arange(context, dtype=np.int32))
    hosted = {f"rope {i}": rows.reshape(-1).view(np.uint8) for i, rows in enumerate(ropes)}
    vectors = probe_vectors()
    plan = {
        "context": context,
        "arithmetic": [arithmetic(tier) for tier in TIERS],
        "kernels": [
            {"name": k.name, "source": k.template, "writes": list(k.bindings.values())} for k in kernels
        ],
        "programs": [_program(n, plan, number) for n, plan in zip(ROWS, plans, strict=True)],
        "buffers": _engine_buffers(model, context, sum(table.n_rot for table in tables)),
        "weights": [
            {"name": name, "bytes": len(data), "host": name in hosted} for name, data in {**parts, **hosted}.items()
        ],
        "ropes": [{"name": f"rope {i}", "width": table.n_rot} for i, table in enumerate(tables)],
        "primitives": {
            "kernel": number[primitives],
            "count": len(vectors),
            "vectors": vectors.ravel().tolist(),
            "expected": expected_results().ravel().tolist(),
        },
    }  # fmt: skip
    return plan, [*parts.values(), *hosted.values()]


def _program(rows: int, plan: DispatchPlan, number: dict[Kernel, int]) -> dict[str, Any]:
    return {
        "rows": rows,
        "sizes": dict(plan.sizes),
        "logits": {"buffer": plan.logits.buffer, "at": plan.logits.at, "width": plan.logits.width},
        "dispatches": [
            {
                "kernel": number[d.kernel],
                "words": d.words,
                "buffers": list(d.buffers.values()),
                "groups": list(d.groups),
            }
            for d in plan.dispatches
        ],
    }


def _engine_buffers(model: Model, context: int, rope_width: int) -> dict[str, int]:
    """Bytes of the buffers that all programs share."""
    pages = pages_for(context)
    words = HEADER + RECORD * max(ROWS) + pages + 1 + rope_width * max(ROWS)
    pools = set(cache_pools(model.graph).values())
    return {
        NOTHING: 16,
        SPARE: 16,
        "step": 4 * words,
        "positions": 4 * PAGE * pages,
        "chosen": 16,  # the most probable token and its logit
        **{
            f"pool {p.index}": 4 * PAGE * pages * p.heads * cache_words(p.dim, p.type(KV_TYPE))
            for p in sorted(pools, key=lambda pool: pool.index)
        },
    }
