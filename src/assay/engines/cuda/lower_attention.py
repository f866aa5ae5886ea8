"""Lower attention to launches: its arguments (native/cuda/attention.h) and grids."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from assay.engines.cuda import structs
from assay.engines.cuda.attention_steps import AttendRow, AttendTiles, AttentionFields, PairScores
from assay.engines.cuda.device import Launch
from assay.engines.cuda.device_values import Value
from assay.engines.cuda.layout import UNIT
from assay.engines.cuda.resolver import Resolver, halved
from assay.engines.cuda.schedule_products import ROW_COPIES


def attention_args(
    r: Resolver, fields: AttentionFields, values: Sequence[Value | None], splits: int, **others: Any
) -> Any:
    """AttentionArgs; values: q, k, v, the rope table, the result and partial results."""
    q, k, v, turn, out, partial = map(r.at, values)
    rope = {"n_rot": fields.rope.n_rot, "neox": int(fields.neox), "turn_k": 1} if fields.rope else {}
    return structs.AttentionArgs(
        q=q,
        k=k,
        v=v,
        turn=turn,
        out=out,
        partial=partial,
        cache=r.cache(),
        keys=fields.keys.struct(),
        values=fields.values.struct(),
        rows=r.rows(),
        mask=r.mask(fields.mask),
        heads=fields.heads,
        n_tokens=fields.rows,
        splits=splits,
        irregular=int(r.context.shape.irregular),
        max_blocks=fields.max_blocks,
        **rope,
        **others,
    )


def _attend_row(r: Resolver, w: AttendRow) -> Launch:
    args = attention_args(r, w.fields, w.values, w.splits, arrived=r.base.counters)
    if w.kernel == "attend_short":
        args = structs.ShortArgs(args, r.acts(w.acts), ROW_COPIES)
    elif w.kernel.startswith("attend_tensor"):
        args = structs.TensorAttentionArgs(args, halved(w.out, w.fields.rows))
    return Launch(w.kernel, w.grid, w.threads, args, w.shared)


def _attend_tiles(r: Resolver, w: AttendTiles) -> Launch:
    tokens = w.domain == "tokens"
    args = attention_args(
        r,
        w.fields,
        (w.q, None, None, None, w.out, None),
        1,
        tiles=r.table("tiles" if tokens else "output_tiles") + w.cut,
        kq=r.at(w.scores),
        state=r.at(w.state),
        query_rows=0 if tokens else r.table("outputs"),
        last=r.at(w.last),
    )
    if w.on_tensor_cores:
        width = w.fields.heads * w.fields.values.dim
        args = structs.TensorAttentionArgs(args, halved(w.out, w.fields.rows), -(-width // UNIT) * UNIT)
    return Launch(w.kernel, w.grid, structs.KERNELS[w.kernel][1], args, w.shared)


def _scores(r: Resolver, w: PairScores) -> Launch:
    tables = (r.table(name) for name in ("chunks", "positions", "key_positions"))
    values = r.at(w.x), r.at(w.y), r.at(w.out)
    args = structs.ScoreArgs(*values, *tables, r.at(w.last), r.mask(w.mask), w.heads, w.kv_heads, w.dim, w.op)
    return Launch("scores", (r.context.shape.longest, w.heads, r.context.shape.chunks), 32, args)


ATTENTION: Mapping[type, Callable[[Resolver, Any], Launch]] = {
    AttendRow: _attend_row,
    AttendTiles: _attend_tiles,
    PairScores: _scores,
}
