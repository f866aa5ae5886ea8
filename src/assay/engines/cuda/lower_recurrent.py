"""Lower the steps of layers that remember: the arguments and the grid of each launch (native/cuda/recurrent.cu)."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from typing import Any

from assay.engines.cuda import structs
from assay.engines.cuda.device import Launch
from assay.engines.cuda.resolver import Resolver
from assay.engines.cuda.steps import AdvanceStates, RowSums, Scan, ShowState

_WARPS = 4  # of a thread block


def _args(r: Resolver, **fields: Any) -> Any:
    return structs.ScanArgs(
        states=r.base.states, sequences=r.table("states"), slot_floats=r.context.state_floats, **fields
    )


def _scan(r: Resolver, w: Scan) -> Launch:
    x = (ctypes.c_uint64 * 6)(*map(r.at, w.x))
    fields = {
        name: getattr(w, name) for name in ("heads", "groups", "channels", "rows", "kind", "per_channel", "scale")
    }
    args = _args(r, weight=r.weights(w.weight), out=r.at(w.out), offset=w.offset, x=x, **fields)
    if w.kernel == "head_bonus":
        return Launch(w.kernel, (w.rows * w.heads, 1, 1), 32, args)
    columns = w.kernel in ("causal_conv", "shift_rows")
    blocks = -(-w.channels // 128) if columns else -(-w.heads * w.rows // _WARPS)
    return Launch(w.kernel, (blocks, r.context.shape.states, 1), 32 * _WARPS, args)


def _show_state(r: Resolver, w: ShowState) -> Launch:
    args = _args(
        r, out=r.at(w.out), offset=w.offset, heads=w.width, channels=w.size, rows=w.column, kind=w.after
    )  # fmt: skip
    return Launch("show_state", (-(-w.size // 128), r.context.shape.states, 1), 128, args)


def _advance_states(r: Resolver, _: AdvanceStates) -> Launch:
    return Launch("advance_states", (1, 1, 1), 128, _args(r, heads=r.context.shape.states))


def _row_sums(r: Resolver, w: RowSums) -> Launch:
    args = structs.RowArgs(
        x=r.at(w.x), out=r.at(w.out), width=w.width, parts=w.parts, eps=w.number, w_step=int(w.floor)
    )  # fmt: skip
    return Launch(w.kernel, (w.rows * w.parts, 1, 1), 32, args)


RECURRENT: Mapping[type, Callable[[Resolver, Any], Launch]] = {
    Scan: _scan,
    ShowState: _show_state,
    AdvanceStates: _advance_states,
    RowSums: _row_sums,
}
