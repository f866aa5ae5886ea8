"""Attention as launches: a token a sequence, many tokens, or one operation at a time."""

from __future__ import annotations

from typing import Any

from assay.engines.cuda import structs
from assay.engines.cuda.device import Launch
from assay.engines.cuda.program import Steps, Value
from assay.engines.cuda.shapes import BLOCK, tile_rows
from assay.engines.fuse import Attention
from assay.errors import AssayError
from assay.graph import Node

_KQ, _SOFTMAX, _KQV, _CAPPED, _WEIGHTS = range(5)


class AttentionSteps(Steps):
    """Those of a group of fused nodes, and of nodes that nothing fuses."""

    # -- attention -----------------------------------------------------------------------------------------------

    def _attention(self, group: Attention) -> None:
        kq, capped, softmax, kqv = group.kq, group.capped, group.softmax, group.kqv
        for attr, plain in (("causal", True), ("chunk", 0), ("max_bias", 0.0)):
            if attr in softmax.all_attrs() and softmax.attr(attr) != plain:
                raise AssayError(f"node {softmax.name}: the cuda engine has no {attr}; use --engine cpu")
        if softmax.weights:
            raise AssayError(f"node {softmax.name}: the cuda engine has no sinks; use --engine cpu")
        domain = self._domain(kqv.name)
        k_name, v_name = kq.inputs[1], kqv.inputs[1]
        k_pool, v_pool = self.layout.pool(k_name), self.layout.pool(v_name)
        heads = int(self.graph.shapes[kqv.name][0])
        folded = self.fused_attention.get(kqv.name, ())
        fields: dict[str, Any] = {
            "heads": heads,
            "window": int(softmax.attr("window")),
            "scale": float(softmax.attr("scale")),
            "cap": float(capped.attr("cap")) if capped else 0.0,
            "irregular": int(self.shape.irregular),
            "n_tokens": self._rows(domain),
            "max_blocks": self.shape.blocks,
        }
        q_node, turn = self.graph.by_name.get(kq.inputs[0]), None
        q_name = kq.inputs[0]
        if q_node and q_node.name in folded:
            key = self._turn_key(q_node)
            turn, q_name = self._turn(key, domain), q_node.inputs[0]
            fields |= {"n_rot": len(key[1]) // 4, "neox": int(key[0]), "turn_k": 1}
        q, out = self._get(q_name, domain), self._new(kqv.name)
        if domain == "tokens" and self.shape.one and not (self.keep & group.inner):
            k = v = None
            if k_name in folded:
                k_source = self.graph[k_name].inputs[0]
                if turn:
                    k_source = self.graph[k_source].inputs[0]
                k, v = self._get(k_source, domain), self._get(self.graph[v_name].inputs[0], domain)
            self._attend_one(q, k, v, turn, out, heads, k_pool, v_pool, fields)
            return
        kept = {role: self._new(n.name) if n and n.name in self.keep else None for role, n in
                (("kq", kq), ("capped", capped), ("soft_max", softmax))}  # fmt: skip
        self._attend_tile(q, out, heads, k_pool, v_pool, fields, domain, kept)

    def _attend_one(
        self,
        q: Value,
        k: Value | None,
        v: Value | None,
        turn: Value | None,
        out: Value,
        heads: int,
        k_pool: Any,
        v_pool: Any,
        fields: dict[str, Any],
    ) -> None:
        rows, blocks, group = self.shape.tokens, self.shape.blocks, heads // k_pool.heads
        staged = 2 * BLOCK * (k_pool.dim + v_pool.dim)  # keys and values of a block, as halves
        halves = self.layout.kv_type == "f16" and k_pool.dim % 8 == v_pool.dim % 8 == 0 and (
            v_pool.dim <= 2 * k_pool.dim and staged + 32768 < self.shared)  # fmt: skip
        at_once = 1
        sizes = (1, 2, 4, 8) if halves else (1, 4)
        for at_once in sizes:
            if at_once >= group or rows * k_pool.heads * -(-group // at_once) * blocks <= 2 * self._processors():
                break
        splits = -(-group // at_once)
        partial = Value(4 * rows * heads * blocks * (2 + v_pool.dim)) if blocks > 1 else None
        shared = 4 * at_once * (k_pool.dim + BLOCK)
        if halves:
            shared += staged + 2 * (k_pool.dim + v_pool.dim) + 64 * at_once
        else:
            shared += 4 * (2 * at_once + k_pool.dim + v_pool.dim + 64 + 8 * at_once * v_pool.dim)
        kernel = f"attend_{'halves' if halves else 'one'}_{at_once}"
        grid = (blocks, k_pool.heads * splits, rows)

        def make() -> Launch:
            args = structs.AttentionArgs(
                q=self._at(q),
                k=self._at(k),
                v=self._at(v),
                turn=self._at(turn),
                out=self._at(out),
                partial=self._at(partial),
                arrived=self.memory.counters,
                cache=self._cache_struct(),
                keys=k_pool,
                values=v_pool,
                rows=self._rows_struct(),
                splits=splits,
                **fields,
            )
            return Launch(kernel, grid, 256, args, shared)

        self._step([q, k, v, turn, out, partial], make)

    def _attend_tile(
        self,
        q: Value,
        out: Value,
        heads: int,
        k_pool: Any,
        v_pool: Any,
        fields: dict[str, Any],
        domain: str,
        kept: dict[str, Value | None],
    ) -> None:
        kernel, rows, shared = tile_rows(v_pool.dim, k_pool.dim, self.shared)
        assert rows
        traced = any(kept.values())
        raw = (kept["kq"] or Value(4 * heads * self.shape.scores)) if traced else None
        state = Value(8 * heads * self._rows(domain)) if traced else None

        def make() -> Launch:
            args = structs.AttentionArgs(
                q=self._at(q),
                out=self._at(out),
                tiles=self._table("tiles" if domain == "tokens" else "output_tiles"),
                kq=self._at(raw),
                state=self._at(state),
                query_rows=0 if domain == "tokens" else self._table("outputs"),
                cache=self._cache_struct(),
                keys=k_pool,
                values=v_pool,
                rows=self._rows_struct(),
                splits=1,
                **fields,
            )
            return Launch(kernel, (self.shape.tiles, k_pool.heads, 1), 256, args, shared)

        self._step([q, out, raw, state], make)
        if traced:
            cap, scale, window = fields["cap"], fields["scale"], fields["window"]
            if kept["capped"]:
                self._scores(_CAPPED, raw, None, kept["capped"], heads, cap=cap)
            if kept["soft_max"]:
                self._scores(_WEIGHTS, raw, state, kept["soft_max"], heads, cap=cap, scale=scale, window=window)

    def _scores(
        self,
        op: int,
        x: Value | None,
        y: Value | None,
        out: Value,
        heads: int,
        *,
        kv_heads: int = 0,
        dim: int = 0,
        cap: float = 0.0,
        scale: float = 1.0,
        window: int = 0,
    ) -> None:
        def make() -> Launch:
            args = structs.ScoreArgs(
                self._at(x),
                self._at(y),
                self._at(out),
                self._table("chunks"),
                self._table("positions"),
                self._table("key_positions"),
                heads,
                kv_heads,
                dim,
                window,
                scale,
                cap,
                op,
            )
            return Launch("scores", (self.shape.longest, heads, self.shape.chunks), 32, args)

        self._step([x, y, out], make)

    def _kq(self, node: Node) -> None:
        q, k = self._get(node.inputs[0], "tokens"), self._get(node.inputs[1], "keys")
        heads, kv_heads = (int(self.graph.shapes[name][1]) for name in node.inputs)
        dim = int(self.graph.shapes[node.inputs[0]][2])
        self._scores(_KQ, q, k, self._new(node.name), heads, kv_heads=kv_heads, dim=dim)

    def _attn_softmax(self, node: Node) -> None:
        if node.inputs[1:] != ("inp_pos", "inp_kpos"):
            raise AssayError(f"node {node.name}: the cuda engine masks by inp_pos and inp_kpos only; use --engine cpu")
        heads, window = self._width(node.name), int(node.attr("window"))
        x = self._get(node.inputs[0], "scores")
        self._scores(_SOFTMAX, x, None, self._new(node.name), heads, scale=float(node.attr("scale")), window=window)

    def _kqv(self, node: Node) -> None:
        p, v = self._get(node.inputs[0], "scores"), self._get(node.inputs[1], "keys")
        heads, _, dim = self.graph.shapes[node.name]
        kv_heads = int(self.graph.shapes[node.inputs[1]][1])
        self._scores(_KQV, p, v, self._new(node.name), int(heads), kv_heads=kv_heads, dim=int(dim))
