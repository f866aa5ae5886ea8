"""Example files of the architectures: the metadata and the tensor shapes that a row of the catalogue stands for.

The names page, the contract tests and the tests' random models are made from them. Touch this when a row needs a tensor
whose shape is not known here, or a new mark for layers that differ.

Tensors are written as words: a stem, `stem+b` for a stem with its bias, `stem+only` for a bias alone, `stem+bare` for a
tensor without a suffix, a group in capitals. A prefix marks tensors that only some layers have:

    dense:, moe:   layers without experts, layers with experts
    ssm:, att:     layers that recur, layers with attention; ffn: layers that are a feed-forward alone (Nemotron)
    own:           layers that compute keys and values. The last `attention.shared_kv_layers` layers do not: they read
                   those of an earlier layer (Gemma 4)
    later:         all layers but the first; draft: the last layers, which draft tokens
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

from assay.graph import Graph
from assay.models.arch_keys import ArchKeys
from assay.models.blocks import Builder, Shapes
from assay.models.hparams import HParams


@dataclass(frozen=True)
class Sizes:
    """The dimensions of an example model."""

    n_layer: int = 2
    n_embd: int = 64
    n_head: int = 4
    n_head_kv: int = 2
    n_embd_head: int = 16
    n_embd_head_v: int = 16
    n_ff: int = 128
    n_vocab: int = 256
    n_ctx: int = 2048
    n_rot: int = 0  # 0: the whole head
    n_expert: int = 0
    n_expert_used: int = 0
    n_ff_exp: int = 32
    n_ff_shexp: int = 48
    n_lora_q: int = 24
    n_lora_kv: int = 32
    n_per_layer: int = 8


@dataclass(frozen=True)
class Arch:
    """An architecture: `build` makes the graph; `blocks`, `top`, `keys` and `sizes` make the example."""

    name: str
    build: Callable[[Builder], Graph]
    models: str
    blocks: str
    keys: Mapping[str, Any] = field(default_factory=dict)
    sizes: Sizes = Sizes()
    top: str = "token_embd output_norm output"


_WORDS = {
    "PRE": "attn_norm ffn_norm",
    "POST": "post_attention_norm post_ffw_norm",
    "QKV": "attn_output attn_q attn_k attn_v",
    "BIASED": "attn_q+b attn_k+b attn_v+b attn_output",
    "QKN": "attn_q_norm attn_k_norm",
    "GLU": "ffn_gate ffn_up ffn_down",
    "MLP": "ffn_up ffn_down",
    "UP2": "ffn_up:two ffn_down",
    "EXPERTS": "ffn_gate_inp ffn_gate_exps ffn_up_exps ffn_down_exps",
    "SH": "ffn_gate_shexp ffn_up_shexp ffn_down_shexp",
    "MLA": "attn_q_a attn_q_a_norm attn_q_b attn_kv_a_mqa attn_kv_a_norm attn_k_b attn_v_b attn_output:mla",
    "PER_LAYER": "inp_gate proj post_norm layer_output_scale",
    "CONV": "shortconv.in_proj shortconv.conv shortconv.out_proj",
    "GDN": "attn_qkv:gdn attn_gate ssm_conv1d:gdn ssm_dt+only ssm_a+bare ssm_norm ssm_out",
    "AB": "ssm_alpha ssm_beta",
    "GATED": "attn_q:gated attn_k attn_v attn_output attn_q_norm attn_k_norm",
    "NEXTN": "nextn.eh_proj nextn.enorm nextn.hnorm nextn.shared_head_norm",
    "MAMBA2": "ssm_in:two ssm_conv1d:two+b ssm_dt+only ssm_a:two+bare ssm_d:two+bare ssm_norm:two ssm_out",
    "MAMBA1": "ssm_in:one ssm_conv1d:one+b ssm_x ssm_dt:one+b ssm_a:one+bare ssm_d:one+bare ssm_out",
    "DBC": "ssm_dt_norm ssm_b_norm ssm_c_norm",
    "LATENT": "ffn_gate_inp exp_probs_b+only ffn_up_exps:latent ffn_down_exps:latent ffn_up_shexp ffn_down_shexp "
    "ffn_latent_down ffn_latent_up",
    "KDA": "attn_q:kda attn_k:kda attn_v:kda ssm_conv1d_q ssm_conv1d_k ssm_conv1d_v ssm_f_a ssm_f_b ssm_beta:kda "
    "ssm_a:kda+bare ssm_dt:kda+only ssm_g_a ssm_g_b ssm_norm:kda attn_output:kda",
    "MLA_Q": "attn_q:mla attn_kv_a_mqa attn_kv_a_norm attn_k_b attn_v_b attn_output:mla",
    "RWKV": "time_mix_lerp_fused time_mix_key time_mix_value time_mix_receptance time_mix_ln+b time_mix_output "
    "channel_mix_lerp_k channel_mix_key channel_mix_value",
    "RWKV7": "time_mix_w0 time_mix_w1 time_mix_w2 time_mix_a0 time_mix_a1 time_mix_a2 time_mix_v0 time_mix_v1 "
    "time_mix_v2 time_mix_g1 time_mix_g2 time_mix_k_k time_mix_k_a time_mix_r_k",
    "RWKV6": "time_mix_w1:six time_mix_w2:six time_mix_lerp_x time_mix_first time_mix_decay time_mix_decay_w1 "
    "time_mix_decay_w2 time_mix_gate channel_mix_lerp_r channel_mix_receptance",
    "ALTUP": "altup_correct_coef altup_correct_scale altup_predict_coef altup_router altup_router_norm laurel_l "
    "laurel_r laurel_post_norm",
}

# Row-major shapes: e embedding, h query heads, g key/value heads, d and v their widths, f feed-forward. X experts,
# x and s the widths of an expert and of the shared one. r rotated values, a and c the ranks of MLA, k and w its head
# widths, p per-layer input, L layers, V vocabulary, C context. Of a state: K taps, P inner width, N state or head
# width, D heads or rank of the time step, G groups. H head width of KDA, R ranks and M mixes of RWKV, m latent width of
# experts. A stem without a row is a vector of e.
_SHAPES = {
    "token_embd": "V,e", "output": "V,e", "position_embd": "C,e", "token_types": "2,e",
    "rope_freqs": "r/2", "rope_factors_long": "r/2", "rope_factors_short": "r/2",
    "attn_q": "h*d,e", "attn_k": "g*d,e", "attn_v": "g*v,e", "attn_output": "e,h*v", "attn_qkv": "h*d+g*d+g*v,e",
    "attn_q_norm": "d", "attn_k_norm": "d", "attn_q_norm:wide": "h*d", "attn_k_norm:wide": "g*d",
    "attn_q_norm:heads": "h,d", "attn_k_norm:heads": "g,d", "attn_sinks": "h",
    "ffn_gate": "f,e", "ffn_up": "f,e", "ffn_down": "e,f", "ffn_up:two": "2*f,e", "ffn_sub_norm": "f",
    "ffn_gate_inp": "X,e", "ffn_gate_exps": "X,x,e", "ffn_up_exps": "X,x,e", "ffn_down_exps": "X,e,x",
    "ffn_gate_up_exps": "X,2*x,e", "exp_probs_b": "X",
    "ffn_gate_shexp": "s,e", "ffn_up_shexp": "s,e", "ffn_down_shexp": "e,s",
    "attn_q_a": "a,e", "attn_q_a_norm": "a", "attn_q_b": "h*k,a", "attn_kv_a_mqa": "c+r,e", "attn_kv_a_norm": "c",
    "attn_k_b": "h,c,k-r", "attn_v_b": "h,w,c", "attn_output:mla": "e,h*w", "attn_q:mla": "h*k,e",
    "attn_kv_b": "h*w+h*k-h*r,c",
    "inp_gate": "p,e", "proj": "e,p", "layer_output_scale": "1",
    "shortconv.in_proj": "3*e,e", "shortconv.conv": "e,K", "shortconv.out_proj": "e,e",
    "attn_qkv:gdn": "2*G*N+P,e", "attn_gate": "P,e", "attn_gate:heads": "h*d,e",
    "ssm_conv1d:gdn": "2*G*N+P,K", "ssm_in:gdn": "2*G*N+2*P,e",
    "ssm_dt": "D", "ssm_a": "D", "ssm_norm": "N", "ssm_out": "e,P", "ssm_alpha": "D,e", "ssm_beta": "D,e",
    "ssm_ba": "2*D,e", "attn_q:gated": "2*h*d,e", "attn_qkv:gated": "2*h*d+g*d+g*v,e",
    "nextn.eh_proj": "e,2*e",
    "ssm_in:two": "2*P+2*G*N+D,e", "ssm_conv1d:two": "P+2*G*N,K", "ssm_a:two": "D,1", "ssm_d:two": "D,1",
    "ssm_norm:two": "G,P/G",
    "ssm_in:one": "2*P,e", "ssm_conv1d:one": "P,K", "ssm_x": "D+2*N,P", "ssm_dt:one": "P,D", "ssm_a:one": "P,N",
    "ssm_d:one": "P", "ssm_dt_norm": "D", "ssm_b_norm": "N", "ssm_c_norm": "N",
    "ffn_up_exps:latent": "X,x,m", "ffn_down_exps:latent": "X,m,x", "ffn_latent_down": "m,e", "ffn_latent_up": "e,m",
    "attn_q:kda": "h*H,e", "attn_k:kda": "h*H,e", "attn_v:kda": "h*H,e", "attn_output:kda": "e,h*H",
    "attn_qkv:kda": "3*h*H,e",
    "ssm_conv1d_q": "1,h*H,1,K", "ssm_conv1d_k": "1,h*H,1,K", "ssm_conv1d_v": "1,h*H,1,K", "ssm_f_a": "H,e",
    "ssm_f_b": "h*H,H", "ssm_g_a": "H,e", "ssm_g_b": "h*H,H", "ssm_beta:kda": "h,e", "ssm_a:kda": "1,1,h,1",
    "ssm_dt:kda": "h*H", "ssm_norm:kda": "H",
    "time_mix_key": "e,e", "time_mix_value": "e,e", "time_mix_receptance": "e,e", "time_mix_output": "e,e",
    "time_mix_gate": "e,e", "channel_mix_receptance": "e,e", "channel_mix_key": "f,e", "channel_mix_value": "e,f",
    "time_mix_lerp_fused": "M,1,1,e", "channel_mix_lerp_k": "1,1,e", "channel_mix_lerp_r": "1,1,e",
    "time_mix_lerp_x": "1,1,e",
    **{f"time_mix_{letter}{n}": "R,e" if n == 1 else "e,R" for letter in "wavg" for n in (1, 2)},
    "time_mix_w1:six": "5*R,e", "time_mix_w2:six": "5,e,R", "time_mix_decay_w1": "R,e", "time_mix_decay_w2": "e,R",
    "time_mix_first": "e/N,N",
    "altup_proj": "3,e,e", "altup_unembd_proj": "3,e,e", "altup_correct_coef": "4,4", "altup_predict_coef": "16,4",
    "altup_router": "4,e", "laurel_l": "64,e", "laurel_r": "e,64",
    "per_layer_token_embd": "V,L*p", "per_layer_model_proj": "L*p,e", "per_layer_proj_norm": "p",
}  # fmt: skip


def metadata(row: Arch) -> dict[str, Any]:
    """The keys of a file with this row's sizes."""
    z = row.sizes
    keys: dict[str, Any] = {
        "context_length": z.n_ctx, "embedding_length": z.n_embd, "block_count": z.n_layer, "vocab_size": z.n_vocab,
        "feed_forward_length": z.n_ff, "attention.head_count": z.n_head, "attention.head_count_kv": z.n_head_kv,
        "attention.key_length": z.n_embd_head, "attention.value_length": z.n_embd_head_v,
        "rope.dimension_count": z.n_rot or z.n_embd_head, "attention.layer_norm_rms_epsilon": 1e-5,
        "attention.layer_norm_epsilon": 1e-5,
    }  # fmt: skip
    if z.n_expert:
        keys |= {
            "expert_count": z.n_expert, "expert_used_count": z.n_expert_used, "expert_feed_forward_length": z.n_ff_exp,
            "expert_shared_feed_forward_length": z.n_ff_shexp,
        }  # fmt: skip
    keys |= row.keys
    plain = {key: value for key, value in keys.items() if key.startswith("xielu.")}  # no architecture in front
    named = {f"{row.name}.{key}": value for key, value in keys.items() if key not in plain}
    return {"general.architecture": row.name, **named, **plain}


def tensor_shapes(row: Arch) -> Shapes:
    """The tensors that a file with this row's sizes and keys holds."""
    z, keys = row.sizes, row.keys
    shapes = _words(row.top, _symbols(row, 0))
    first, step = keys.get("leading_dense_block_count", 0), keys.get("interleave_moe_layer_step", 1)
    for i in range(z.n_layer):
        moe = z.n_expert and i >= first and (i + 1) % step == 0
        if every := keys.get("moe_every_n_layers"):
            moe = i % every == 1
        own = i < z.n_layer - keys.get("attention.shared_kv_layers", 0)
        here = {"dense": not moe, "moe": moe, "own": own, "later": i > 0, **_kind(row, i)}
        tagged = [word.partition(":") for word in row.blocks.split()]
        words = [tail if head in here else head + colon + tail for head, colon, tail in tagged if here.get(head, True)]
        shapes |= {f"blk.{i}.{name}": shape for name, shape in _words(" ".join(words), _symbols(row, i)).items()}
    return shapes


def _kind(row: Arch, i: int) -> dict[str, bool]:
    """Whether a layer recurs, has attention, is a feed-forward alone, or drafts."""
    keys, n_layer = row.keys, row.sizes.n_layer
    heads, wide = keys.get("attention.head_count_kv"), keys.get("feed_forward_length")
    draft = i >= n_layer - keys.get("nextn_predict_layers", 0)
    ffn = isinstance(wide, list) and isinstance(heads, list) and wide[i] > 0
    if "attention.recurrent_layers" in keys:
        recurs = keys["attention.recurrent_layers"][i] and not draft
    elif isinstance(heads, list):
        recurs = heads[i] == 0 and not ffn
    else:
        recurs = "full_attention_interval" in keys and (i + 1) % keys["full_attention_interval"] != 0 and not draft
    return {"ssm": recurs, "att": not recurs and not ffn, "ffn": ffn, "draft": draft}


def example(row: Arch) -> tuple[HParams, Graph]:
    """The hyper-parameters and the graph of a file with this row's sizes."""
    builder = Builder(ArchKeys(metadata(row), row.name), tensor_shapes(row))
    graph = row.build(builder).check()
    return builder.hp, graph


def _symbols(row: Arch, layer: int) -> dict[str, int]:
    z, keys = row.sizes, row.keys
    found = {
        "e": z.n_embd, "h": z.n_head, "g": z.n_head_kv, "d": z.n_embd_head, "v": z.n_embd_head_v, "f": z.n_ff,
        "V": z.n_vocab, "C": z.n_ctx, "X": z.n_expert, "x": z.n_ff_exp, "s": z.n_ff_shexp, "p": z.n_per_layer,
        "L": z.n_layer, "r": z.n_rot or z.n_embd_head, "a": z.n_lora_q, "c": z.n_lora_kv,
        "k": keys.get("attention.key_length_mla", z.n_embd_head),
        "w": keys.get("attention.value_length_mla", z.n_embd_head_v),
        "K": keys.get("ssm.conv_kernel", keys.get("shortconv.l_cache", 0)), "P": keys.get("ssm.inner_size", 0),
        "N": keys.get("ssm.state_size", keys.get("wkv.head_size", 0)), "D": keys.get("ssm.time_step_rank", 0),
        "G": keys.get("ssm.group_count", 0), "H": keys.get("kda.head_dim", 0), "m": keys.get("moe_latent_size", 0),
        "R": keys.get("attention.decay_lora_rank", 0), "M": 5 if "rescale_every_n_layers" in keys else 6,
    }  # fmt: skip
    arrays = {
        "h": "attention.head_count", "g": "attention.head_count_kv", "f": "feed_forward_length",
        "x": "expert_feed_forward_length",
    }  # fmt: skip
    found |= {symbol: keys[key][layer] for symbol, key in arrays.items() if isinstance(keys.get(key), list)}
    if "attention.key_length_swa" in keys and keys["attention.sliding_window_pattern"][layer]:
        found |= {"d": keys["attention.key_length_swa"], "v": keys["attention.value_length_swa"]}
    return found | ({"r": z.n_embd_head} if "attention.key_length_swa" in keys else {})


def _words(words: str, symbols: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
    """The tensor names and shapes that some words stand for."""

    def size(expression: str) -> int:
        """Evaluate a sum of products, with `-` for a subtracted term and `/` for a divisor."""
        total = 0
        for term in expression.replace("-", "+-").split("+"):
            sign, term = (-1, term[1:]) if term.startswith("-") else (1, term)
            term, _, by = term.partition("/")
            total += sign * prod(map(number, term.split("*"))) // (number(by) if by else 1)
        return total

    def number(symbol: str) -> int:
        return symbols[symbol] if symbol in symbols else int(symbol)

    found: dict[str, tuple[int, ...]] = {}
    for word in words.split():
        word, _, extra = word.partition("+")
        for stem in _WORDS.get(word, word).split():
            stem, _, own = stem.partition("+")
            shape = tuple(size(part) for part in _SHAPES.get(stem, "e").split(","))
            name, more = stem.partition(":")[0], own or extra
            if more != "only":
                found[name if more == "bare" else f"{name}.weight"] = shape
            if more in ("b", "only"):
                found[f"{name}.bias"] = shape[:-1] if len(shape) > 1 else shape
            if more == "s":
                found[f"{name}.scale"] = shape[:1] if len(shape) > 2 else shape[1:]
    return found
