"""Lower the steps of LoRA adapters: the arguments and the grid of each launch (native/cuda/adapters.cu)."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from typing import Any

from assay.engines.cuda import structs
from assay.engines.cuda.device import Launch
from assay.engines.cuda.device_values import Value
from assay.engines.cuda.resolver import Resolver
from assay.engines.cuda.steps import AdapterInputs, AdapterOutputs


def _args(r: Resolver, values: tuple[Value, ...], w: AdapterInputs | AdapterOutputs, **fields: Any) -> Any:
    x = (ctypes.c_uint64 * 6)(*map(r.at, values))
    weight = r.context.tensors.floats(w.weight)
    return structs.ScanArgs(x=x, weight=weight, out=r.at(w.out), channels=w.columns, rows=w.rank, **fields)


def _inputs(r: Resolver, w: AdapterInputs) -> Launch:
    return Launch("adapter_inputs", (-(-w.rank // 4), w.rows, 1), 128, _args(r, (w.x, w.scales), w, scale=w.factor))


def _outputs(r: Resolver, w: AdapterOutputs) -> Launch:
    return Launch("adapter_outputs", (-(-w.columns // 128), w.rows, 1), 128, _args(r, (w.base, w.scales, w.h), w))


ADAPTERS: Mapping[type, Callable[[Resolver, Any], Launch]] = {AdapterInputs: _inputs, AdapterOutputs: _outputs}
