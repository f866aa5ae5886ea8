"""Attention as launches: a token a sequence, many tokens, or one operation at a time."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from assay.engines.cuda import structs
from assay.engines.cuda.device import Launch
from assay.engines.cuda.program import COPIES, HALVED, Quantised, Value, quantised
from assay.engines.cuda.shapes import BLOCK, KV_NUMBERS, TENSOR_ROWS, prompt_rows, tensor_room, tile_rows
from assay.engines.cuda.walk import Walks
from assay.engines.plan.fuse import Attention
from assay.engines.reference.functions import alibi_slopes
from assay.errors import AssayError
from assay.graph import Node

_KQ, _SOFTMAX, _KQV, _CAPPED, _WEIGHTS = range(5)


class AttentionSteps(Walks):
    """Those of a group of fused nodes, and of nodes that nothing fuses."""

    # -- attention -----------------------------------------------------------------------------------------------

    def _attention(self, group: Attention) -> None:
        kq, capped, softmax, kqv = group.kq, group.capped, group.softmax, group.kqv
        domain = self._domain(kqv.name)
        heads, _, v_dim = (int(n) if isinstance(n, int) else 0 for n in self.graph.shapes[kqv.name])
        k_pool, v_pool = self.layout.pool(group.keys), self.layout.pool(group.values, group.first, v_dim)
        for name in dict.fromkeys((group.keys, group.values)):
            self._fill(name)
        folded = self.fused_attention.get(kqv.name)
        fields: dict[str, Any] = {
            "heads": heads,
            "mask": self._mask(softmax, capped),
            "irregular": int(self.shape.irregular),
            "n_tokens": self._rows(domain),
            "max_blocks": self.shape.blocks,
        }
        turn = None
        if folded and folded.rope:
            key = self._turn_key(folded.rope)
            turn = self._turn(key, domain)
            fields |= {"n_rot": len(key[1]) // 4, "neox": int(key[0]), "turn_k": 1}
        halves = self.tensors.halves and tensor_room(k_pool, v_pool) is not None
        q = self._get(folded.q if folded else kq.inputs[0], domain)
        out = self._new_read(kqv.name, *HALVED) if halves else self._new(kqv.name)
        if domain == "tokens" and self.shape.one and not (self.keep & group.inner):
            k = v = None
            if folded:
                k, v = self._get(folded.k, domain), self._get(folded.v, domain)
            if halves:
                self._attend_tensor(q, k, v, turn, out, heads, k_pool, v_pool, fields)
                return
            mask = fields["mask"]
            usual = self._is_usual(k_pool, v_pool, mask)
            if k and v and folded and usual and self.walks and k_pool.dim in (32, 64, 128, 256):
                codes = self._read_as("q8", kqv.name)
                self._walk_attention((q, k, v, turn, out), heads, k_pool, v_pool, fields, folded, codes)
                return
            self.fits &= not folded or (not folded.norms and folded.factor == 1.0)
            usual &= not (mask.window or mask.cap)
            few = self.shape.tokens == 1 and heads * self.shape.blocks <= 2 * self._processors()
            if k and v and turn and usual and few:
                stride = heads * v_dim
                acts = quantised(COPIES, stride) if stride % 256 == 0 and self._read_as("q8", kqv.name) else None
                if acts:
                    self.prepared[id(out), stride, 0, ""] = acts
                self._attend_short(q, k, v, turn, out, acts, heads, k_pool, v_pool, fields)
                return
            self._attend_one(q, k, v, turn, out, heads, k_pool, v_pool, fields)
            return
        kept = {role: self._new(n.name) if n and n.name in self.keep else None for role, n in
                (("kq", kq), ("capped", capped), ("soft_max", softmax))}  # fmt: skip
        self._attend_tile(q, out, heads, k_pool, v_pool, fields, domain, kept)

    def _is_usual(self, k_pool: Any, v_pool: Any, mask: Any) -> bool:
        """Whether walks have all that this needs, and without a window and a cap attention_short.cu, too."""
        usual = not (self.shape.irregular or mask.sinks or mask.slopes or mask.chunk)
        alike = k_pool.type == v_pool.type == KV_NUMBERS["f16"] and k_pool.dim == v_pool.dim == v_pool.columns
        shape = k_pool.dim % 32 == 0 and k_pool.dim <= 256 and not v_pool.keys and k_pool.heads == v_pool.heads
        return bool(usual and mask.causal and alike and shape)

    def _attend_short(
        self,
        q: Value,
        k: Value,
        v: Value,
        turn: Value,
        out: Value,
        acts: Quantised | None,
        heads: int,
        k_pool: Any,
        v_pool: Any,
        fields: dict[str, Any],
    ) -> None:
        dim, blocks = k_pool.dim, self.shape.blocks
        partial = Value(4 * heads * blocks * (2 + dim)) if blocks > 1 else None

        def make() -> Launch:
            args = structs.ShortArgs(
                self._attention_args((q, k, v, turn, out, partial), k_pool, v_pool, heads // k_pool.heads, fields),
                self._acts(acts, heads * dim),
                COPIES,
            )
            shared = 4 * (BLOCK * dim + 2 * dim + BLOCK + 8 + 8 * dim)
            return Launch("attend_short", (blocks, heads, 1), max(256, 3 * dim), args, shared)

        self._step([q, k, v, turn, out, partial, *(acts or ())], make)

    def _attend_tensor(
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
        rows, blocks, splits = self.shape.tokens, self.shape.blocks, -(-heads // k_pool.heads // 16)
        partial = Value(4 * rows * heads * blocks * (2 + v_pool.dim)) if blocks > 1 else None
        keys, row = tensor_room(k_pool, v_pool) or (0, 0)
        shared = 16 * row + keys // 2 + 544 * (16 if heads // k_pool.heads > 8 else 8) + 2 * k_pool.dim

        def make() -> Launch:
            args = self._attention_args((q, k, v, turn, out, partial), k_pool, v_pool, splits, fields)
            args = structs.TensorAttentionArgs(args, self._room_of(out, rows))
            grid = (blocks, k_pool.heads * splits, rows)
            return Launch(f"attend_tensor_one_{k_pool.dim}", grid, 128, args, shared)

        self._step([q, k, v, turn, out, partial], make)

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
        halves = k_pool.type == KV_NUMBERS["f16"] and not v_pool.keys and k_pool.dim % 8 == v_pool.dim % 8 == 0 and (
            v_pool.dim <= 2 * k_pool.dim and staged + 32768 < self.shared)  # fmt: skip
        at_once = 1
        sizes = (1, 2, 4, 8) if halves else (1, 4)
        for at_once in sizes:
            if at_once >= group or rows * k_pool.heads * -(-group // at_once) * blocks <= 2 * self._processors():
                break
        splits = -(-group // at_once)
        partial = Value(4 * rows * heads * blocks * (2 + v_pool.dim)) if blocks > 1 else None
        grid = (blocks, k_pool.heads * splits, rows)
        shared = 4 * at_once * (k_pool.dim + BLOCK + 2)
        kernel = "one"
        if halves:
            at_a_time = self._processors() * max(1, self.shared // (shared + staged))
            kernel = "blocks" if math.prod(grid) > at_a_time else "halves"
            if kernel == "halves":
                shared += staged + 2 * (k_pool.dim + v_pool.dim) + 56 * at_once
            else:
                shared += 2 * BLOCK * v_pool.dim + 2 * k_pool.dim + 32 * at_once * v_pool.dim + 8
        else:
            shared += 4 * (k_pool.dim + v_pool.dim + 64 + 8 * at_once * v_pool.dim)

        def make() -> Launch:
            args = self._attention_args((q, k, v, turn, out, partial), k_pool, v_pool, splits, fields)
            return Launch(f"attend_{kernel}_{at_once}", grid, 256, args, shared)

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
        traced = any(kept.values())
        plain = all(p.type == KV_NUMBERS["f16"] and p.columns == p.dim for p in (k_pool, v_pool)) and not v_pool.keys
        tile = tile_rows(v_pool.dim, k_pool.dim, self.shared)
        if plain and not (traced or self.shape.irregular):
            tile = prompt_rows(v_pool.dim, k_pool.dim, self.shared) or tile
        bytes_of = tensor_room(k_pool, v_pool) if self.tensors.halves else None
        if bytes_of:
            tile = f"attend_tensor_{k_pool.dim}", TENSOR_ROWS, TENSOR_ROWS * bytes_of[1] + 2 * bytes_of[0]
        kernel, rows, shared = tile
        cut = self.cuts.index((heads // k_pool.heads, rows)) * 32 * self.shape.tiles
        raw = (kept["kq"] or Value(4 * heads * self.shape.scores)) if traced else None
        state = Value(8 * heads * self._rows(domain)) if traced else None

        def make() -> Launch:
            args = structs.AttentionArgs(
                q=self._at(q),
                out=self._at(out),
                tiles=self._table("tiles" if domain == "tokens" else "output_tiles") + cut,
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
            if bytes_of:
                args = structs.TensorAttentionArgs(args, self._room_of(out, self._rows(domain)))
            threads = structs.KERNELS[kernel][1]
            return Launch(kernel, (self.shape.tiles, k_pool.heads, 1), threads, args, shared)

        self._step([q, out, raw, state], make)
        if kept["capped"]:
            self._scores(_CAPPED, raw, None, kept["capped"], heads, fields["mask"])
        if kept["soft_max"]:
            self._scores(_WEIGHTS, raw, state, kept["soft_max"], heads, fields["mask"])

    def _mask(self, softmax: Node, capped: Node | None = None) -> Any:
        if softmax.inputs[1:] not in (("inp_pos", "inp_kpos"), ("inp_pos", "inp_pos")):
            raise AssayError(
                f"node {softmax.name}: the cuda engine masks by inp_pos and inp_kpos only; use --engine cpu"
            )
        slopes, max_bias = 0, float(softmax.attr("max_bias"))
        if max_bias:
            heads = int(self.graph.shapes[softmax.name][0])
            slopes = self.tensors.constant(alibi_slopes(heads, max_bias).astype(np.float32))
        return structs.Mask(
            sinks=self.tensors.vector(softmax.weights[0]) if softmax.weights else 0,
            slopes=slopes,
            window=int(softmax.attr("window")),
            chunk=int(softmax.attr("chunk")),
            causal=int(softmax.attr("causal")),
            scale=float(softmax.attr("scale")),
            cap=float(capped.attr("cap")) if capped else 0.0,
        )

    def _scores(
        self,
        op: int,
        x: Value | None,
        y: Value | None,
        out: Value,
        heads: int,
        mask: Any = None,
        *,
        kv_heads: int = 0,
        dim: int = 0,
    ) -> None:
        def make() -> Launch:
            args = structs.ScoreArgs(
                self._at(x),
                self._at(y),
                self._at(out),
                self._table("chunks"),
                self._table("positions"),
                self._table("key_positions"),
                mask or structs.Mask(),
                heads,
                kv_heads,
                dim,
                op,
            )
            return Launch("scores", (self.shape.longest, heads, self.shape.chunks), 32, args)

        self._step([x, y, out], make)

    def _kq(self, node: Node) -> None:
        q, k = self._get(node.inputs[0], "tokens"), self._get(node.inputs[1], "keys")
        heads, kv_heads = int(self.graph.shapes[node.name][0]), self._kv_heads(node)
        self._scores(
            _KQ, q, k, self._new(node.name), heads, kv_heads=kv_heads, dim=self._width(node.inputs[0]) // heads
        )

    def _kv_heads(self, node: Node) -> int:
        shape = self.graph.shapes[node.inputs[1]]
        return int(shape[1]) if len(shape) == 3 else int(node.attr("n_head_kv"))

    def _attn_softmax(self, node: Node) -> None:
        x = self._get(node.inputs[0], "scores")
        self._scores(_SOFTMAX, x, None, self._new(node.name), self._width(node.name), self._mask(node))

    def _kqv(self, node: Node) -> None:
        p, v = self._get(node.inputs[0], "scores"), self._get(node.inputs[1], "keys")
        heads, kv_heads = int(self.graph.shapes[node.name][0]), self._kv_heads(node)
        dim = self._width(node.inputs[1]) // kv_heads
        self._scores(_KQV, p, v, self._new(node.name), heads, kv_heads=kv_heads, dim=dim)
