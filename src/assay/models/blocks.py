"""The parts that architectures share: embedding, norms, attention, feed-forward, experts, head.

A builder method appends nodes and returns the name of the last. Names follow llama.cpp; where one of its names
stands for several values, the stages are `_proj`, `_biased`, `_normed`, then the plain name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from assay.graph import Graph, Node, join
from assay.models.hparams import HParams

Shapes = Mapping[str, tuple[int, ...]]  # GGUF tensor name -> row-major shape


class Builder:
    """Collects nodes; `layer` is the block being built, or None outside the blocks."""

    def __init__(self, shapes: Shapes, hp: HParams, *, rope_mode: str) -> None:
        self.shapes, self.hp, self.rope_mode = shapes, hp, rope_mode
        self.nodes: list[Node] = []
        self.layer: int | None = None

    def graph(self) -> Graph:
        return Graph(tuple(self.nodes), self.shapes)

    def weight(self, stem: str, suffix: str = "weight") -> str:
        return f"blk.{self.layer}.{stem}.{suffix}" if self.layer is not None else f"{stem}.{suffix}"

    def has(self, stem: str, suffix: str = "weight") -> bool:
        return self.weight(stem, suffix) in self.shapes

    def node(self, role: str, op: str, *inputs: str, weights: tuple[str, ...] = (), **attrs: Any) -> str:
        name = join(role, self.layer)
        self.nodes.append(Node(name, op, inputs, weights, attrs))
        return name

    # -- parts ---------------------------------------------------------------------------------------------

    def embedding(self) -> str:
        return self.node("embd", "embed", "inp_tokens", weights=("token_embd.weight",))

    def rms_norm(self, role: str, x: str, weight: str = "") -> str:
        return self.node(role, "rms_norm", x, weights=(self.weight(weight or role),), eps=self.hp.eps)

    def project(self, role: str, x: str, stem: str, *, partial: str) -> str:
        """`role = W x (+ b)`; the product alone is called `partial` where there is a bias."""
        if not self.has(stem, "bias"):
            return self.node(role, "linear", x, weights=(self.weight(stem),))
        y = self.node(partial, "linear", x, weights=(self.weight(stem),))
        return self.node(role, "bias", y, weights=(self.weight(stem, "bias"),))

    def qkv(self, x: str) -> tuple[str, str, str]:
        """Query, key and value before rotation, from three matrices or from one fused `attn_qkv`."""
        hp = self.hp
        names = []
        if self.has("attn_qkv"):
            x = self.project("wqkv", x, "attn_qkv", partial="wqkv_proj")
        start = 0
        for role, stem, width in (
            ("Qcur", "attn_q", hp.n_head * hp.n_embd_head),
            ("Kcur", "attn_k", hp.n_head_kv * hp.n_embd_head),
            ("Vcur", "attn_v", hp.n_head_kv * hp.n_embd_head_v),
        ):
            final = "Vcur" if role == "Vcur" else f"{role}_biased"
            if self.has("attn_qkv"):
                role = final if role == "Vcur" else f"{role}_proj"
                names.append(self.node(role, "slice", x, start=start, stop=start + width))
            elif self.has(stem, "bias") or role == "Vcur":
                names.append(self.project(final, x, stem, partial=f"{role}_proj"))
            else:
                names.append(self.node(f"{role}_proj", "linear", x, weights=(self.weight(stem),)))
            start += width
        return names[0], names[1], names[2]

    def rope(self, role: str, x: str, n_head: int) -> str:
        factors = ("rope_freqs.weight",) if "rope_freqs.weight" in self.shapes else ()
        attrs = self.hp.rope.attrs(self.rope_mode)
        return self.node(role, "rope", x, "inp_pos", weights=factors, n_head=n_head, **attrs)

    def attention(self, x: str) -> str:
        """Scores, softmax and weighted values over the cache; gives `kqv_out`, heads side by side."""
        hp = self.hp
        q, k, v = self.qkv(x)
        q = self.rope("Qcur", q, hp.n_head)
        k = self.rope("Kcur", k, hp.n_head_kv)
        k = self.node("cache_k", "cache", k, n_head=hp.n_head_kv)
        v = self.node("cache_v", "cache", v, n_head=hp.n_head_kv)
        kq = self.node("kq", "kq", q, k)
        window: dict[str, Any] = {"window": hp.window} if hp.window else {}
        p = self.node("kq_soft_max", "attn_softmax", kq, "inp_pos", "inp_kpos", scale=hp.attn_scale, **window)
        return self.node("kqv_out", "merge_heads", self.node("kqv", "kqv", p, v))

    def ffn(self, x: str, act: str = "silu") -> str:
        """Down(act(gate) * up)."""
        up = self.project("ffn_up_b" if self.has("ffn_up", "bias") else "ffn_up", x, "ffn_up", partial="ffn_up")
        gate_role = "ffn_gate_b" if self.has("ffn_gate", "bias") else "ffn_gate"
        gate = self.project(gate_role, x, "ffn_gate", partial="ffn_gate")
        y = self.node("ffn_swiglu", "glu", gate, up, act=act)
        return self.project("ffn_out", y, "ffn_down", partial="ffn_down")

    def experts(self, x: str) -> str:
        """Mixtral: softmax over all experts, the best k, their probabilities made to sum to 1."""
        logits = self.node("ffn_moe_logits", "linear", x, weights=(self.weight("ffn_gate_inp"),))
        probs = self.node("ffn_moe_probs", "softmax", logits)
        order = self.node("ffn_moe_argsort", "argsort", probs)
        best = self.node("ffn_moe_topk", "topk", order, k=self.hp.n_expert_used)
        w = self.node("ffn_moe_weights", "gather", probs, best)
        total = self.node("ffn_moe_weights_sum", "row_sum", w)
        # llama.cpp's floor, the smallest normal half: the sum cannot be 0, only underflow could make it so.
        total = self.node("ffn_moe_weights_sum_clamped", "clamp_min", total, lo=6.103515625e-5)
        w = self.node("ffn_moe_weights_norm", "div", w, total)
        up = self.node("ffn_moe_up", "expert_linear", x, best, weights=(self.weight("ffn_up_exps"),))
        gate = self.node("ffn_moe_gate", "expert_linear", x, best, weights=(self.weight("ffn_gate_exps"),))
        y = self.node("ffn_moe_swiglu", "glu", gate, up)
        y = self.node("ffn_moe_down", "expert_linear", y, best, weights=(self.weight("ffn_down_exps"),))
        return self.node("ffn_moe_out", "expert_sum", self.node("ffn_moe_weighted", "expert_scale", y, w))

    def head(self, x: str) -> str:
        """Logits, with the embedding table as the matrix where the file has no `output.weight`."""
        stem = "output" if self.has("output") else "token_embd"
        if not self.has("output", "bias"):
            return self.node("result_output", "linear", x, weights=(self.weight(stem),))
        y = self.node("result_output_no_bias", "linear", x, weights=(self.weight(stem),))
        return self.node("result_output", "bias", y, weights=(self.weight("output", "bias"),))
