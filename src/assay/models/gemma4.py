"""gemma4: gemma3's order of norms; local and full layers of different widths; values normed; the scale is 1.

The last layers have no keys and values of their own and read those of an earlier one. The small models add a row
for each token and layer (per-layer input); the large one adds routed experts beside the dense feed-forward.
"""

from __future__ import annotations

from dataclasses import replace

from assay.graph import Graph, join
from assay.models.blocks import Builder


def gemma4(b: Builder) -> Graph:
    b.read(mode="neox")
    hp, meta, local = b.hp, b.meta, widths(b)
    b.routing(act="geglu")
    shared = meta.count("attention.shared_kv_layers", 0, least=0)
    own = hp.n_layer - shared  # layers with keys and values
    if shared and own < 2:
        raise meta.error("attention.shared_kv_layers", shared, f"at most {hp.n_layer - 2}")
    extra = meta.count("embedding_length_per_layer_input", least=0)
    x = b.embedding(hp.n_embd**0.5)
    rows = per_layer_input(b, x, extra) if extra else ""
    for i in b.blocks():
        source = i if i < own else own - (2 if local[i] else 1)
        attn = shared_attention(b, b.norm("attn_norm", x), source)
        x = b.add("sa_out", b.norm("attn_post_norm", attn, "post_attention_norm"), x)
        ffn = b.norm("ffn_post_norm", _experts(b, x) if b.has("ffn_gate_inp") else _dense(b, x), "post_ffw_norm")
        last = not b.has("layer_output_scale")
        if extra:
            x = _add_row(b, b.add("pe_in", ffn, x), rows, extra, "l_out" if last else "pe_out")
        else:
            x = b.add("l_out" if last else "ffn_res", ffn, x)
        if not last:
            x = b.node("l_out", "mul_weight", x, weights=(b.weight("layer_output_scale"),))
    return b.head(x, cap=meta.number("final_logit_softcapping", 0.0))


def widths(b: Builder, unseen: int = 0) -> list[bool]:
    """Give local and full layers their widths, rotation and window, `unseen` keys shorter; which layers are local."""
    hp, meta = b.hp, b.meta
    local = meta.pattern(hp.n_layer, None)
    window = meta.count("attention.sliding_window", least=1 + unseen) - unseen
    width, width_v = meta.count("attention.key_length_swa"), meta.count("attention.value_length_swa")
    n_rot = meta.count("rope.dimension_count_swa", hp.rope.n_rot)
    near = replace(hp.rope.unscaled(meta.positive("rope.freq_base_swa", 10000.0)), n_rot=n_rot)
    b.hp = hp.each(lambda i, row: replace(row, scale=1.0))
    b.rope_factors()
    b.hp = b.hp.each(
        lambda i, row: (
            replace(row, window=window, n_embd_head=width, n_embd_head_v=width_v, rope=near) if local[i] else row
        )
    )
    return local


def shared_attention(b: Builder, x: str, source: int) -> str:
    """Attention over the keys and values of layer `source`. The source layer computes and caches them."""
    row, eps = b.here, b.hp.eps
    b.check_rows("attn_q", row.n_head * row.n_embd_head)
    q = b.head_norm("Qcur_normed", b.linear("Qcur_proj", x, "attn_q"), "attn_q_norm", row.n_head)
    q = b.query(b.rope("Qcur", q, row.n_head))
    if source == b.layer:
        b.check_rows("attn_k", row.n_head_kv * row.n_embd_head)
        k = b.linear("Kcur_proj", x, "attn_k")
        v = b.linear("Vcur_proj", x, "attn_v") if b.has("attn_v") else k
        k = b.rope("Kcur", b.head_norm("Kcur_normed", k, "attn_k_norm", row.n_head_kv), row.n_head_kv)
        b.cached(k, b.node("Vcur", "rms_norm", v, eps=eps, n_head=row.n_head_kv))
    return b.output(b.attend(q, join("cache_k", source), join("cache_v", source)))


def _dense(b: Builder, x: str) -> str:
    return b.ffn(b.norm("ffn_norm", x), "geglu")


def _experts(b: Builder, x: str) -> str:
    """A dense branch and a routed one. The router reads the residual stream, normed without a weight."""
    y = b.node("ffn_moe_inp_normed", "rms_norm", x, eps=b.hp.eps)
    y = b.scaled("ffn_moe_inp_scaled", y, b.hp.n_embd**-0.5)
    router = b.node("ffn_moe_inp", "mul_weight", y, weights=(b.weight("ffn_gate_inp", "scale"),))
    routed = b.experts(b.norm("ffn_norm_2", x, "pre_ffw_norm_2"), router=router)
    dense = b.ffn(b.norm("ffn_norm_1", x, "ffn_norm"), "geglu", out="ffn_down")
    dense = b.norm("ffn_mlp", dense, "post_ffw_norm_1")
    return b.add("ffn_moe_combined", dense, b.norm("ffn_moe", routed, "post_ffw_norm_2"))


def per_layer_input(b: Builder, x: str, width: int) -> str:
    """A row of `width` values for each layer, side by side: from a separate table and from the embedding."""
    rows = b.node("per_layer_embd", "embed", "inp_tokens", weights=("per_layer_token_embd.weight",))
    rows = b.scaled("inp_per_layer_selected", rows, width**0.5)
    y = b.scaled(
        "per_layer_model_scaled", b.linear("per_layer_model_proj", x, "per_layer_model_proj"), b.hp.n_embd**-0.5
    )
    y = b.norm("per_layer_proj", y, "per_layer_proj_norm", n_head=b.hp.n_layer)
    return b.scaled("inp_per_layer", b.add("inp_per_layer_sum", y, rows), 2**-0.5)


def _add_row(b: Builder, x: str, rows: str, width: int, out: str) -> str:
    """This layer's row, gated by the residual stream, projected, normed and added to the stream."""
    assert b.layer is not None
    gate = b.node("per_layer_gelu", "act", b.linear("per_layer_gate", x, "inp_gate"))
    row = b.node("inp_this_layer", "slice", rows, start=b.layer * width, stop=(b.layer + 1) * width)
    y = b.linear("per_layer_out_proj", b.node("per_layer_gated", "mul", gate, row), "proj")
    return b.add(out, x, b.norm("per_layer_embd_out", y, "post_norm"))
