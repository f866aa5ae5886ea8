"""The architectures: one row each, with the builder, the names of models, and the tensors of an example.

`load` finds the builder here. The names page, the page of models and the tests' random models are generated from the
other columns. Touch this to add an architecture.

Tensors are written as words: a stem, `stem+b` for a stem with its bias, a group in capitals. A prefix marks tensors
that only some layers have:

    dense:, moe:   layers without experts, layers with experts
    own:           layers that compute keys and values. The last `attention.shared_kv_layers` layers do not: they read
                   those of an earlier layer (Gemma 4)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

from assay.graph import Graph
from assay.models import (
    bert,
    classic,
    cohere,
    deepseek,
    gemma,
    gemma4,
    glm,
    gpt_oss,
    granite,
    llama,
    llama4,
    olmo,
    phi,
    qwen,
)
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


_E, _MOE = Sizes(), Sizes(n_expert=8, n_expert_used=2)
_TIED, _LN = "token_embd output_norm", "token_embd output_norm+b"
_MROPE = {"rope.dimension_sections": [4, 2, 2, 0]}
_SCALES = {"logit_scale": 8.0, "residual_scale": 0.22, "embedding_scale": 12.0, "attention.scale": 0.0625}
_LOCAL = {"attention.sliding_window": 8}
_GROUPS = {
    "expert_weights_scale": 2.5, "expert_weights_norm": True, "expert_gating_func": 2, "expert_shared_count": 1,
    "leading_dense_block_count": 1,
}  # fmt: skip
_MLA = {
    "attention.q_lora_rank": 24, "attention.kv_lora_rank": 32, "attention.key_length_mla": 24,
    "attention.value_length_mla": 16, "expert_group_count": 4, "expert_group_used_count": 2,
    "rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.yarn_log_multiplier": 0.1, **_GROUPS,
}  # fmt: skip
_GEMMA4 = {
    "attention.key_length_swa": 8, "attention.value_length_swa": 8, "rope.dimension_count_swa": 8,
    "attention.shared_kv_layers": 1, "attention.sliding_window_pattern": [True, False, True], "rope.freq_base": 1e6,
    "embedding_length_per_layer_input": 8, "final_logit_softcapping": 30.0, **_LOCAL,
}  # fmt: skip
_ENCODER = {"attention.causal": False, "pooling_type": 1}

ARCHITECTURES: dict[str, Arch] = {
    row.name: row
    for row in (
        Arch("llama", llama.llama, "Llama, TinyLlama, SmolLM2, Mistral, Mixtral", "PRE QKV GLU", top=_TIED),
        Arch("ernie4_5", llama.llama, "ERNIE 4.5 dense", "PRE QKV GLU", top=_TIED),
        Arch("internlm2", llama.llama, "InternLM 2", "PRE QKV GLU"),
        Arch("exaone", llama.exaone, "EXAONE 3", "PRE QKV GLU"),
        Arch("mistral3", llama.mistral3, "Ministral 3", "PRE QKV GLU", {
            "rope.scaling.type": "yarn", "rope.scaling.factor": 16.0, "rope.scaling.original_context_length": 128,
            "rope.scaling.yarn_log_multiplier": 1.0, "attention.temperature_scale": 0.1}),
        Arch("smollm3", llama.smollm3, "SmolLM3", "PRE QKV GLU", sizes=replace(_E, n_layer=4), top=_TIED),
        Arch("hunyuan-dense", llama.hunyuan, "Hunyuan dense", "PRE QKV QKN GLU", top=_TIED),
        Arch("granite", granite.granite, "Granite 3", "PRE QKV GLU", _SCALES, top=_TIED),
        Arch("granitemoe", granite.granitemoe, "Granite 3 with experts", "PRE QKV moe:EXPERTS moe:SH", _SCALES,
             replace(_MOE, n_ff_exp=128), _TIED),
        Arch("minicpm", granite.minicpm, "MiniCPM", "PRE QKV GLU", top=_TIED),
        Arch("qwen2", qwen.qwen, "Qwen2, Qwen2.5, R1-Distill-Qwen", "PRE BIASED GLU", top=_TIED),
        Arch("qwen3", qwen.qwen, "Qwen3, Qwen3-Embedding", "PRE QKV QKN GLU", top=_TIED),
        Arch("qwen2moe", qwen.qwen2moe, "Qwen1.5-MoE, Qwen2-57B-A14B", "PRE BIASED EXPERTS SH ffn_gate_inp_shexp",
             sizes=_MOE),
        Arch("qwen3moe", qwen.qwen3moe, "Qwen3-30B-A3B, Qwen3-235B-A22B", "PRE QKV QKN EXPERTS", sizes=_MOE),
        Arch("qwen2vl", qwen.qwen, "Qwen2-VL, Qwen2.5-VL (text)", "PRE BIASED GLU", _MROPE),
        Arch("qwen3vl", qwen.qwen, "Qwen3-VL (text)", "PRE QKV QKN GLU", _MROPE),
        Arch("qwen3vlmoe", qwen.qwen3moe, "Qwen3-VL with experts (text)", "PRE QKV QKN EXPERTS", _MROPE, _MOE),
        Arch("seed_oss", qwen.seed_oss, "Seed-OSS", "attn_norm post_attention_norm BIASED GLU"),
        Arch("gpt-oss", gpt_oss.gpt_oss, "gpt-oss-20b, gpt-oss-120b",
             "attn_norm post_attention_norm attn_sinks QKV+b EXPERTS+b",
             {**_LOCAL, "rope.scaling.type": "yarn", "rope.scaling.factor": 32.0}, _MOE),
        Arch("phi3", phi.phi3, "Phi-3, Phi-3.5, Phi-4", "PRE attn_qkv attn_output UP2",
             {"rope.scaling.attn_factor": 1.19, "rope.scaling.original_context_length": 1024},
             top="token_embd output_norm output rope_factors_long rope_factors_short"),
        Arch("phimoe", phi.phi3, "Phi-3.5-MoE", "attn_norm+b ffn_norm+b QKV+b EXPERTS",
             {"rope.scaling.original_context_length": 1024}, _MOE,
             "token_embd output_norm+b output+b rope_factors_long rope_factors_short"),
        Arch("gemma", gemma.gemma, "Gemma 1", "PRE QKV GLU", top=_TIED),
        Arch("gemma2", gemma.gemma2, "Gemma 2", "PRE POST QKV GLU", _LOCAL, top=_TIED),
        Arch("gemma3", gemma.gemma3, "Gemma 3", "PRE POST QKV QKN GLU",
             {**_LOCAL, "rope.freq_base": 1e6, "rope.scaling.type": "linear", "rope.scaling.factor": 8.0},
             replace(_E, n_layer=6), _TIED),
        Arch("gemma4", gemma4.gemma4, "Gemma 4",
             "PRE POST attn_q attn_q_norm attn_output own:attn_k own:attn_v own:attn_k_norm GLU PER_LAYER",
             _GEMMA4, replace(_E, n_layer=3),
             f"{_TIED} rope_freqs per_layer_token_embd per_layer_model_proj per_layer_proj_norm"),
        Arch("gemma-embedding", gemma.gemma_embedding, "EmbeddingGemma", "PRE POST QKV QKN GLU",
             {**_LOCAL, "pooling_type": 1, "rope.freq_base": 1e6}, replace(_E, n_layer=6), _TIED),
        Arch("deepseek2", deepseek.deepseek2, "DeepSeek V2, V3, R1, Kimi-K2, GLM-4.7-Flash",
             "PRE MLA dense:GLU moe:EXPERTS moe:exp_probs_b+only moe:SH", _MLA,
             replace(_MOE, n_layer=2, n_head_kv=1, n_embd_head=40, n_embd_head_v=32, n_rot=8)),
        Arch("glm4", glm.glm4, "GLM-4 9B, 32B", "PRE POST BIASED UP2", sizes=replace(_E, n_rot=8)),
        Arch("glm4moe", glm.glm4moe, "GLM-4.5 … 4.7",
             "attn_norm post_attention_norm BIASED QKN dense:GLU moe:EXPERTS moe:exp_probs_b+only moe:SH",
             _GROUPS, replace(_MOE, n_rot=8)),
        Arch("olmo2", olmo.olmo2, "OLMo 2, Olmo 3", "POST QKV attn_q_norm:wide attn_k_norm:wide GLU",
             {**_LOCAL, "rope.scaling.type": "yarn", "rope.scaling.factor": 4.0}, replace(_E, n_layer=4)),
        Arch("olmoe", olmo.olmoe, "OLMoE", "PRE QKV attn_q_norm:wide attn_k_norm:wide EXPERTS", sizes=_MOE),
        Arch("exaone4", olmo.exaone4, "EXAONE 4", "POST QKV QKN GLU", top=_TIED),
        Arch("command-r", cohere.command_r, "Command R, R+", "attn_norm QKV GLU", {"logit_scale": 0.0625}, top=_TIED),
        Arch("cohere2", cohere.cohere2, "Command R7B, Command A", "attn_norm QKV GLU",
             {**_LOCAL, "logit_scale": 0.25}, replace(_E, n_layer=4), _TIED),
        Arch("llama4", llama4.llama4, "Llama 4", "PRE QKV dense:GLU moe:EXPERTS moe:SH",
             {"interleave_moe_layer_step": 2}, replace(_MOE, n_layer=4, n_expert_used=1, n_ff_shexp=32)),
        Arch("starcoder2", classic.starcoder2, "StarCoder 2", "attn_norm+b ffn_norm+b QKV+b MLP+b", top=_LN),
        Arch("gpt2", classic.gpt2, "GPT-2", "attn_norm+b ffn_norm+b attn_qkv+b attn_output+b MLP+b",
             sizes=replace(_E, n_head_kv=4), top=f"{_LN} position_embd"),
        Arch("stablelm", classic.stablelm, "StableLM 2", "attn_norm+b ffn_norm+b BIASED GLU",
             sizes=replace(_E, n_rot=4), top=f"{_LN} output"),
        Arch("falcon", classic.falcon, "Falcon", "attn_norm+b attn_qkv attn_output MLP",
             sizes=replace(_E, n_head_kv=1), top=_LN),
        Arch("mpt", classic.mpt, "MPT", "PRE attn_qkv attn_output MLP",
             {"attention.max_alibi_bias": 8.0, "attention.clamp_kqv": 6.0}, replace(_E, n_head_kv=4), _TIED),
        Arch("bert", bert.bert, "BERT, bge, MiniLM", "QKV+b attn_output_norm+b layer_output_norm+b MLP+b", _ENCODER,
             replace(_E, n_head_kv=4), "token_embd token_embd_norm+b token_types position_embd"),
        Arch("nomic-bert", bert.nomic_bert, "nomic-embed-text", "attn_qkv attn_output attn_output_norm+b "
             "layer_output_norm+b GLU", {**_ENCODER, "rope.freq_base": 1000.0}, replace(_E, n_head_kv=4),
             "token_embd token_embd_norm+b token_types"),
    )
}  # fmt: skip

# Files that differ from the row's: the same builder, other tensors or keys.
VARIANTS: dict[str, Arch] = {
    "llama with biases": replace(ARCHITECTURES["llama"], blocks="PRE QKV+b GLU+b"),
    "llama with a fused attn_qkv": replace(ARCHITECTURES["llama"], blocks="PRE attn_qkv attn_output GLU"),
    "llama with experts (Mixtral)": replace(
        ARCHITECTURES["llama"], blocks="PRE QKV EXPERTS", sizes=replace(_MOE, n_ff_exp=128)
    ),
    "gemma4 with experts": replace(
        ARCHITECTURES["gemma4"],
        blocks="PRE POST attn_q attn_q_norm attn_output own:attn_k own:attn_k_norm GLU ffn_gate_inp+s "
        "ffn_gate_up_exps ffn_down_exps+s pre_ffw_norm_2 post_ffw_norm_1 post_ffw_norm_2 layer_output_scale",
        keys={**_GEMMA4, "embedding_length_per_layer_input": 0, "attention.shared_kv_layers": 0},
        sizes=replace(_MOE, n_layer=3),
        top=f"{_TIED} rope_freqs",
    ),
    "deepseek2 with whole keys and values": replace(
        ARCHITECTURES["deepseek2"],
        blocks="PRE attn_q:mla attn_kv_a_mqa attn_kv_a_norm attn_kv_b attn_output:mla dense:GLU moe:EXPERTS moe:SH",
        keys={k: v for k, v in _MLA.items() if "_mla" not in k and "group" not in k} | {"attention.q_lora_rank": 0},
        sizes=replace(_MOE, n_head_kv=4, n_embd_head=24, n_embd_head_v=16, n_rot=8),
    ),
    "stablelm with one norm": replace(
        ARCHITECTURES["stablelm"], blocks="attn_norm+b QKV attn_q_norm:heads attn_k_norm:heads GLU"
    ),
    "falcon with two norms": replace(
        ARCHITECTURES["falcon"], blocks="attn_norm+b attn_norm_2+b attn_qkv attn_output MLP"
    ),
}

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
}

# Row-major shapes: e embedding, h query heads, g key/value heads, d and v their widths, f feed-forward. X experts,
# x and s the widths of an expert and of the shared one. r rotated values, a and c the ranks of MLA, k and w its head
# widths, p per-layer input, L layers, V vocabulary, C context. A stem without a row is a vector of e.
_SHAPES = {
    "token_embd": "V,e", "output": "V,e", "position_embd": "C,e", "token_types": "2,e",
    "rope_freqs": "r/2", "rope_factors_long": "r/2", "rope_factors_short": "r/2",
    "attn_q": "h*d,e", "attn_k": "g*d,e", "attn_v": "g*v,e", "attn_output": "e,h*v", "attn_qkv": "h*d+g*d+g*v,e",
    "attn_q_norm": "d", "attn_k_norm": "d", "attn_q_norm:wide": "h*d", "attn_k_norm:wide": "g*d",
    "attn_q_norm:heads": "h,d", "attn_k_norm:heads": "g,d", "attn_sinks": "h",
    "ffn_gate": "f,e", "ffn_up": "f,e", "ffn_down": "e,f", "ffn_up:two": "2*f,e",
    "ffn_gate_inp": "X,e", "ffn_gate_exps": "X,x,e", "ffn_up_exps": "X,x,e", "ffn_down_exps": "X,e,x",
    "ffn_gate_up_exps": "X,2*x,e", "exp_probs_b": "X",
    "ffn_gate_shexp": "s,e", "ffn_up_shexp": "s,e", "ffn_down_shexp": "e,s",
    "attn_q_a": "a,e", "attn_q_a_norm": "a", "attn_q_b": "h*k,a", "attn_kv_a_mqa": "c+r,e", "attn_kv_a_norm": "c",
    "attn_k_b": "h,c,k-r", "attn_v_b": "h,w,c", "attn_output:mla": "e,h*w", "attn_q:mla": "h*k,e",
    "attn_kv_b": "h*w+h*k-h*r,c",
    "inp_gate": "p,e", "proj": "e,p", "layer_output_scale": "1",
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
    return {"general.architecture": row.name, **{f"{row.name}.{key}": value for key, value in keys.items()}}


def tensor_shapes(row: Arch) -> Shapes:
    """The tensors that a file with this row's sizes and keys holds."""
    z, keys = row.sizes, row.keys
    shapes = _words(row.top, _symbols(row, 0))
    first, step = keys.get("leading_dense_block_count", 0), keys.get("interleave_moe_layer_step", 1)
    for i in range(z.n_layer):
        moe = z.n_expert and i >= first and (i + 1) % step == 0
        own = i < z.n_layer - keys.get("attention.shared_kv_layers", 0)
        here = {"dense": not moe, "moe": moe, "own": own}
        tagged = [word.partition(":") for word in row.blocks.split()]
        words = [tail if head in here else head + colon + tail for head, colon, tail in tagged if here.get(head, True)]
        shapes |= {f"blk.{i}.{name}": shape for name, shape in _words(" ".join(words), _symbols(row, i)).items()}
    return shapes


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
        """Evaluate a sum of products, with `-` for a subtracted term and `/2` for a half."""
        total = 0
        for term in expression.replace("-", "+-").split("+"):
            sign, term = (-1, term[1:]) if term.startswith("-") else (1, term)
            term, half, _ = term.partition("/2")
            total += sign * prod(symbols.get(s) or int(s) for s in term.split("*")) // (2 if half else 1)
        return total

    found: dict[str, tuple[int, ...]] = {}
    for word in words.split():
        word, _, extra = word.partition("+")
        for stem in _WORDS.get(word, word).split():
            stem, _, own = stem.partition("+")
            shape = tuple(size(part) for part in _SHAPES.get(stem, "e").split(","))
            name, more = stem.partition(":")[0], own or extra
            if more != "only":
                found[f"{name}.weight"] = shape
            if more in ("b", "only"):
                found[f"{name}.bias"] = shape[:-1] if len(shape) > 1 else shape
            if more == "s":
                found[f"{name}.scale"] = shape[:1] if len(shape) > 2 else shape[1:]
    return found
