"""Random models of every architecture in other sizes than the golden ones, and the logits of llama.cpp for them.

    python tests/models/others.py            records llama.cpp's results anew (needs llama-cpp-python)
    python tests/models/others.py NAME …     compares without recording, and prints the errors
    python tests/models/others.py --add NAME …     records these beside the others

The models are random and seeded, so the recorded results (tests/data/arch_others.npz) stand for the files. A name is an
architecture, or an architecture with what is special about the file.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from assay.gguf.types import by_name
from assay.gguf.writer import Tensor, write
from assay.models.catalogue import ARCHITECTURES, VARIANTS, Arch, Sizes, example, metadata, tensor_shapes
from assay.models.example_files import _WORDS

GOLDEN = Path(__file__).parents[1] / "data" / "arch_others.npz"
N_VOCAB = 96
IDS = np.random.default_rng(5).integers(0, N_VOCAB, 40).astype(np.int32)
ROWS = (0, 1, 19, 39)  # positions whose logits are recorded
SCALING = "rope.scaling."
YARN = {SCALING + "type": "yarn", SCALING + "factor": 4.0, SCALING + "original_context_length": 24}


@dataclass(frozen=True)
class Case:
    """A file: the row it is made from, and how it is run."""

    row: Arch
    n_ctx: int = 256
    positions: tuple[int, ...] = ()
    extra: dict[str, tuple[int, ...]] = field(default_factory=dict)  # tensors beside the row's
    without: tuple[str, ...] = ()  # tensors left out: those whose name ends so


def _sizes(row: Arch) -> Sizes:
    """Odd ones: 6 heads over 3 or 2 (or as many as the row has), heads of 20, and widths that are no powers of two."""
    z = row.sizes
    kv = {1: 1, 2: 3, 4: 6}[z.n_head_kv] if z.n_head_kv != z.n_head else 6
    return replace(
        z, n_embd=72, n_head=6, n_head_kv=kv, n_embd_head=12, n_embd_head_v=12, n_ff=56, n_vocab=N_VOCAB, n_ctx=512,
        n_rot=z.n_rot and 4, n_expert=z.n_expert and 12, n_expert_used=z.n_expert_used and 5,
        n_ff_exp=40, n_ff_shexp=40,
    )  # fmt: skip


def _of(name: str, sizes: Mapping[str, Any] | None = None, keys: Mapping[str, Any] | None = None) -> Arch:
    """The row of an architecture or variant in other sizes, with other keys; None removes a key."""
    row = VARIANTS[name] if name in VARIANTS else ARCHITECTURES[name]
    found = {key: value for key, value in {**row.keys, **(keys or {})}.items() if value is not None}
    return replace(row, sizes=replace(_sizes(row), **(sizes or {})), keys=found)


def _ssm(taps: int, inner: int, state: int, heads: int, groups: int = 0) -> dict[str, int]:
    """The keys of a state."""
    keys = {"conv_kernel": taps, "inner_size": inner, "state_size": state, "time_step_rank": heads}
    return {f"ssm.{key}": value for key, value in (keys | ({"group_count": groups} if groups else {})).items()}


EPS = "attention.layer_norm_rms_epsilon"
_SCALE_KEYS = ("residual_scale", "embedding_scale", "attention.scale", "logit_scale")
KV = "attention.head_count_kv"
WIDE = {"n_embd_head": 20, "n_embd_head_v": 20}
WINDOW, PATTERN = "attention.sliding_window", "attention.sliding_window_pattern"

# What an architecture wants otherwise: heads of MLA, an expert as wide as the feed-forward, no grouped heads.
_OWN: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "granitemoe": ({"n_ff_exp": 56}, {}),
    "phimoe": ({"n_ff_exp": 56}, {}),
    "olmoe": ({"n_ff_exp": 56, "n_head_kv": 6}, {}),
    "deepseek2": (
        {"n_head_kv": 1, "n_embd_head": 40, "n_embd_head_v": 32, "n_rot": 8},
        {"attention.key_length_mla": 28, "attention.value_length_mla": 20},
    ),
    "minicpm3": ({"n_head_kv": 6, "n_embd_head": 24, "n_embd_head_v": 16, "n_rot": 8}, {}),
    "plm": ({"n_head_kv": 6, "n_embd_head": 24, "n_embd_head_v": 16, "n_rot": 8}, {}),
    "dbrx": ({"n_ff_exp": 56}, {"attention.clamp_kqv": 0.7}),
    "baichuan": ({"n_layer": 32}, {}),
    "lfm2": ({"n_layer": 4}, {KV: [0, 3, 0, 2], "shortconv.l_cache": 5}),
    "lfm2moe": ({"n_layer": 4}, {KV: [2, 0, 0, 6], "shortconv.l_cache": 2}),
    "qwen35": ({"n_layer": 4, "n_rot": 8}, {**_ssm(3, 72, 12, 6, 3), "full_attention_interval": 3}),
    "qwen35moe": ({"n_layer": 3}, {**_ssm(5, 96, 16, 6, 1), "attention.recurrent_layers": [False, True, True]}),
    "qwen3next": ({"n_layer": 3}, _ssm(4, 96, 16, 6, 2)),
    "mamba2": ({}, _ssm(3, 144, 32, 9, 3)),
    "granitehybrid": ({}, _ssm(5, 144, 16, 12, 4)),
    "nemotron_h": ({"n_layer": 4}, {**_ssm(4, 80, 32, 10, 5), KV: [3, 0, 0, 0], "feed_forward_length": [0, 0, 56, 40]}),
    "nemotron_h_moe": ({}, {**_ssm(2, 96, 16, 4, 1), "moe_latent_size": 40}),
    "falcon-h1": ({"n_embd_head": 20, "n_embd_head_v": 20}, _ssm(4, 112, 32, 7, 1)),
    "kimi-linear": (
        {"n_layer": 4, "n_embd_head": 40, "n_embd_head_v": 32, "n_rot": 8},
        {
            KV: [0, 1, 0, 1],
            "ssm.conv_kernel": 3,
            "kda.head_dim": 24,
            "attention.key_length_mla": 28,
            "attention.value_length_mla": 20,
        },
    ),
    "mamba": ({}, _ssm(3, 144, 16, 5)),
    "jamba": ({"n_ff_exp": 56}, {**_ssm(5, 144, 16, 6), KV: [0, 6, 0]}),
    "rwkv7": ({"n_embd": 128}, {"wkv.head_size": 64}),
    "rwkv6": ({"n_layer": 3}, {"wkv.head_size": 24}),
    "minimax-m2": ({"n_ff_exp": 56}, {}),
    "ernie4_5-moe": ({"n_layer": 3}, {}),
    "hunyuan-moe": ({"n_ff_exp": 56}, {}),
    "bailingmoe2": ({}, {"expert_weights_norm": False}),
    "dots1": ({"n_head_kv": 6}, {}),
    "mistral4": (
        {"n_head_kv": 1, "n_embd_head": 40, "n_embd_head_v": 32, "n_rot": 8},
        {"attention.key_length_mla": 28, "attention.value_length_mla": 20},
    ),
    "gemma3n": ({"n_layer": 12}, {}),
    "nomic-bert-moe": ({"n_layer": 4, "n_ff_exp": 56}, {}),
    "gemma4": (
        {"n_layer": 5, "n_embd_head": 16, "n_embd_head_v": 16},
        {"attention.shared_kv_layers": 2, PATTERN: [True, True, False, True, False]},
    ),
}


def _cases() -> Iterator[tuple[str, Case]]:
    for name in ARCHITECTURES:
        yield name, Case(_of(name, *_OWN.get(name, ())))

    def case(name: str, row: Arch, **more: Any) -> tuple[str, Case]:
        return name, Case(row, **more)

    untied = "token_embd output_norm output"
    for keys, said in ({"pooling_type": 2}, "first"), ({"pooling_type": 3}, "last"):
        yield case(f"eurobert, {said}", _of("eurobert", {"n_layer": 3}, keys))
    yield case(
        "minicpm3, long factors", _of("minicpm3", _OWN["minicpm3"][0], {SCALING + "original_context_length": 128})
    )
    yield case("jais, no bias of positions", _of("jais", {}, {"attention.max_alibi_bias": 0.0}))
    yield case("llama, untied with biases", replace(_of("llama with biases"), top=untied))
    yield case("llama, fused", _of("llama with a fused attn_qkv"))
    row = replace(_of("llama"), blocks="PRE attn_output attn_qkv attn_q+only attn_k+only attn_v+only GLU")
    yield case("llama, fused with biases apart", row)
    yield case("llama, experts", _of("llama with experts (Mixtral)", {"n_ff_exp": 56}))
    unread = {SCALING + "yarn_beta_fast": 8.0, SCALING + "yarn_ext_factor": 0.5, "attention.sliding_window": 5}
    yield case("llama, window and yarn keys unread", _of("llama", {}, {**YARN, **unread}))
    for original in (128, 300):
        long = {"rope_factors_long.weight": (6,), "rope_factors_short.weight": (6,)}
        keys = {SCALING + "original_context_length": original}
        for name in ("llama", "granite", "mistral3"):
            plain = {key: None for key in ARCHITECTURES[name].keys if key.startswith(SCALING)}
            row = _of(name, {}, {**plain, **keys, SCALING + "type": "longrope"})
            yield case(f"{name}, factors, 256 of {original}", row, extra=long)
        yield case(f"phi3, 256 of {original}", _of("phi3", {}, keys))
    yield case("qwen2, yarn", _of("qwen2", {}, YARN))
    below = {SCALING + "type": "yarn", SCALING + "factor": 0.5, SCALING + "original_context_length": 300}
    yield case("qwen2, yarn below 1", _of("qwen2", {}, below))
    keys = {SCALING + "type": "linear", SCALING + "factor": 2.0, SCALING + "attn_factor": 1.3}
    yield case("qwen2, linear with a magnitude", _of("qwen2", {}, keys))
    yield case("qwen2, output bias", _of("qwen2"), extra={"output.weight": (N_VOCAB, 72), "output.bias": (N_VOCAB,)})
    yield case("qwen3, wide heads", _of("qwen3", WIDE))
    yield case("qwen3, linear", _of("qwen3", {}, {SCALING + "type": "linear", SCALING + "factor": 2.5}))
    yield case("qwen3, none", _of("qwen3", {}, {SCALING + "type": "none", SCALING + "factor": 2.5}))
    yield case("qwen3, pooling last", _of("qwen3", {}, {"pooling_type": 3}))
    yield case("gemma, wide heads", _of("gemma", WIDE))
    yield case("gemma2, 27B, pattern 3", _of("gemma2", {"n_layer": 46, **WIDE}, {PATTERN: 3}))
    yield case("gemma3, 27B", _of("gemma3", {"n_layer": 62, **WIDE}))
    yield case("gemma3, no window", _of("gemma3", {}, {WINDOW: None}))
    keys = {PATTERN: 2, "rope.freq_base_swa": 5000.0, "final_logit_softcapping": 4.0}
    yield case("gemma3, pattern 2, base, cap", _of("gemma3", {}, keys))
    row = _of("gemma3", {}, {PATTERN: [True, False, True, True, False, False]})
    yield case("gemma3, pattern array, untied", replace(row, top=untied))
    yield case(
        "gemma-embedding, even window, last", _of("gemma-embedding", {"n_layer": 7}, {"pooling_type": 3, WINDOW: 6})
    )
    yield case("gemma-embedding, odd window", _of("gemma-embedding", {"n_layer": 7}, {WINDOW: 7}))
    dense = {"dense_2.weight": (40, 72), "dense_3.weight": (72, 40)}
    keys = {"dense_2_feat_in": 72, "dense_2_feat_out": 40, "dense_3_feat_in": 40, "dense_3_feat_out": 72}
    yield case("gemma-embedding, dense layers", _of("gemma-embedding", {}, keys), extra=dense)
    keys = {SCALING + "type": None, SCALING + "factor": None, "rope.freq_base_swa": 500.0, WINDOW: 3}
    yield case("gpt-oss, local base, plain rope", _of("gpt-oss", {"n_layer": 3}, keys))
    keys = {
        "yarn_beta_fast": 16.0, "yarn_beta_slow": 2.0, "yarn_log_multiplier": 0.5, "original_context_length": 9,
    }  # fmt: skip
    yield case("mistral3, betas and c", _of("mistral3", {}, {SCALING + key: value for key, value in keys.items()}))
    yield case("granite, not rotated", _of("granite", {}, {SCALING + "finetuned": False}))
    plain = dict.fromkeys(("residual_scale", "embedding_scale", "attention.scale"))
    yield case("granite, plain scales", _of("granite", {}, plain))
    row = _of("granitemoe", {"n_ff_exp": 56}, {SCALING + "finetuned": False})
    yield case("granitemoe, rotated all the same", row)
    row = _of("granitemoe", {"n_ff_exp": 56}, {"expert_shared_feed_forward_length": 0})
    yield case("granitemoe, no shared expert", row, without=("_shexp.weight",))
    keys = {"residual_scale": 0.4, "embedding_scale": 3.0, "logit_scale": 2.0}
    yield case("minicpm, keys", _of("minicpm", {}, keys))
    sizes, keys = _OWN["deepseek2"]
    log = SCALING + "yarn_log_multiplier"
    whole = {"n_head_kv": 6, "n_embd_head": 24, "n_embd_head_v": 16, "n_rot": 8}
    yield case("deepseek2, whole", _of("deepseek2 with whole keys and values", whole))
    one = "PRE MLA dense:GLU moe:ffn_gate_inp moe:ffn_gate_up_exps moe:ffn_down_exps moe:exp_probs_b+only moe:SH"
    yield case("deepseek2, gate and up in one", replace(_of("deepseek2", sizes, keys), blocks=one))
    yield case("deepseek2, yarn without its key", _of("deepseek2", sizes, {**keys, log: None}))
    yield case("deepseek2, linear", _of("deepseek2", sizes, {**keys, log: None, SCALING + "type": "linear"}))
    row = _of("deepseek2", sizes, {**keys, log: 0.0707, "expert_gating_func": 1, "expert_weights_norm": False,
                                   "expert_group_count": None, "expert_group_used_count": None})  # fmt: skip
    yield case("deepseek2, c, softmax, one group", row)
    row = _of("deepseek2", {**sizes, "n_layer": 3}, {**keys, "nextn_predict_layers": 1})
    yield case("deepseek2, draft layer", row)
    row = _of("glm4moe", {}, {"expert_gating_func": None})
    yield case("glm4moe, no q/k norm, default gate", row, without=("_q_norm.weight", "_k_norm.weight"))
    yield case("glm4moe, draft layer", _of("glm4moe", {"n_layer": 4}, {"nextn_predict_layers": 1}))
    yield case("glm4, M-RoPE", _of("glm4", {"n_rot": 8}, {"rope.dimension_sections": [2, 1, 1, 0]}))
    yield case("glm4, no bias", _of("glm4"), without=(".bias",))
    yield case("olmo2, no window", _of("olmo2", {}, {WINDOW: None}))
    yield case("olmo2, magnitude", _of("olmo2", {}, {"rope.freq_base_swa": 300.0, SCALING + "attn_factor": 1.2}))
    yield case("exaone4, 32B", _of("exaone4", {"n_layer": 64}, {WINDOW: 7, "rope.freq_base_swa": 99.0}))
    row = replace(_of("command-r", {"n_layer": 64}), blocks="attn_norm QKV attn_q_norm:heads attn_k_norm:heads GLU")
    yield case("command-r, 64 layers", row)
    yield case("cohere2, pattern 3", _of("cohere2", {"n_layer": 5}, {PATTERN: 3}))
    yield case("llama4, over a chunk", _of("llama4", {"n_ctx": 16384}), positions=tuple(range(8170, 8210)))
    yield case("llama4, 128 experts", _of("llama4", {"n_expert": 128, "n_expert_used": 1}))
    heads = {"n_embd_head": 16, "n_embd_head_v": 16}
    yield case("gemma4, experts", _of("gemma4 with experts", heads))
    row = _of("gemma4", {"n_layer": 5, **heads}, {
        "attention.shared_kv_layers": 0, "attention.head_count_kv": [3, 2, 6, 1, 3],
        PATTERN: [True, False, True, True, False], "feed_forward_length": [56, 40, 48, 24, 64]})  # fmt: skip
    yield case("gemma4, heads and widths by layer", row)
    yield case("baichuan, 13B", _of("baichuan", {"n_layer": 40}))
    yield case("gptneox, in sequence", _of("gptneox in sequence"))
    yield case("bailingmoe, weights as they are", _of("bailingmoe", {}, {"expert_weights_norm": False}))
    yield case("hy_v3, softmax", _of("hy_v3", {}, {"expert_gating_func": 1, "expert_weights_norm": False}))
    yield case("mellum, yarn, local base unread", _of("mellum", {}, {**YARN, "rope.freq_base_swa": 700.0}))
    yield case("stablelm, one norm", _of("stablelm with one norm"))
    yield case("falcon, two norms", _of("falcon with two norms", {"n_head_kv": 2}))
    row = replace(_of("mpt"), blocks="attn_norm+b ffn_norm+b attn_qkv+b attn_output+b MLP+b")
    yield case("mpt, biases", replace(row, top="token_embd output_norm+b"))
    row = _of("lfm2", *_OWN["lfm2"])
    yield case("lfm2, untied, window", replace(row, top=f"{row.top} output", keys={**row.keys, WINDOW: 7}))
    keys = {**_ssm(4, 48, 12, 4, 4), "rope.dimension_sections": [3, 0, 1, 0], "full_attention_interval": 2}
    yield case("qwen35, still pairs, equal heads", _of("qwen35", {"n_rot": 12}, keys))
    row = _of("qwen35 with a draft head", {}, _ssm(4, 96, 16, 6, 3))
    yield case("qwen35, draft head", row)
    for name, own in (
        ("biases", "att:attn_q:gated+b att:attn_k+b att:attn_v+b"), ("fused", "att:attn_qkv:gated+b"),
        ("fused with biases apart", "att:attn_qkv:gated att:attn_q:gated+only att:attn_k+only att:attn_v+only"),
    ):  # fmt: skip
        row = _of("qwen35", *_OWN["qwen35"])
        blocks = row.blocks.replace("att:GATED", f"{own} att:attn_output att:QKN")
        yield case(f"qwen35, {name}", replace(row, blocks=blocks))
    groups = {"expert_group_count": 4, "expert_group_used_count": 2}
    for name in ("qwen35moe", "lfm2moe", "nemotron_h_moe"):
        sizes, keys = _OWN[name]
        yield case(f"{name}, groups", _of(name, sizes, {**keys, **groups}))
    row = _of("kimi-linear", *_OWN["kimi-linear"])
    kda = "ssm:attn_qkv:kda " + " ".join(f"ssm:{word}" for word in _WORDS["KDA"].split()[3:])
    row = replace(row, blocks=row.blocks.replace("ssm:KDA", kda), keys={**row.keys, **groups})
    yield case("kimi-linear, fused, groups", row)
    row = _of("qwen3next with one matrix for q, k, v, z", {"n_layer": 3}, _ssm(3, 128, 16, 8, 4))
    yield case("qwen3next, one matrix for q, k, v, z", row)
    keys = {**_ssm(4, 144, 16, 6, 2), **dict.fromkeys(_SCALE_KEYS), SCALING + "finetuned": None}
    yield case("granitehybrid, rotated, no scales", _of("granitehybrid", {}, keys))
    row = _of("granitehybrid", {"n_expert": 12, "n_expert_used": 3, "n_ff_exp": 56}, _OWN["granitehybrid"][1])
    yield case("granitehybrid, experts", replace(row, blocks="PRE ssm:MAMBA2 att:QKV moe:EXPERTS moe:SH"))
    keys = {**_OWN["nemotron_h_moe"][1], "moe_latent_size": 0, "expert_weights_norm": False, EPS: None}
    row = _of("nemotron_h_moe", {}, keys)
    blocks = "attn_norm ssm:MAMBA2 att:QKV ffn:ffn_gate_inp ffn:exp_probs_b+only ffn:ffn_up_exps ffn:ffn_down_exps "
    yield case("nemotron_h_moe, not latent", replace(row, blocks=blocks + "ffn:ffn_up_shexp ffn:ffn_down_shexp"))
    row = _of("falcon-h1", {"n_layer": 1}, _ssm(3, 96, 16, 6, 6))
    yield case("falcon-h1, no norm", row, without=("ssm_norm.weight",))
    yield case("mamba, norms", _of("mamba", {}, {**_ssm(4, 144, 8, 9), "ssm.dt_b_c_rms": True}))
    yield case("mamba, one tap kept", _of("mamba", {}, _ssm(2, 144, 4, 1)))
    yield case("jamba, attention first", _of("jamba", {"n_ff_exp": 56}, {**_ssm(3, 144, 8, 3), KV: [2, 0, 0]}))
    yield case(
        "ernie4_5-moe, every second layer", _of("ernie4_5-moe", {"n_layer": 5}, {"interleave_moe_layer_step": 2})
    )
    yield case("modern-bert, first", _of("modern-bert", {"n_layer": 5}, {"pooling_type": 2, WINDOW: 5}))
    yield case(
        "nomic-bert-moe, every third", _of("nomic-bert-moe", {"n_layer": 5, "n_ff_exp": 56}, {"moe_every_n_layers": 3})
    )
    yield case("bert, first", _of("bert", {}, {"pooling_type": 2}))
    yield case("bert, last", _of("bert", {}, {"pooling_type": 3}))


CASES: dict[str, Case] = dict(_cases())
_RECORDED = frozenset(np.load(GOLDEN).files)  # cases of which llama.cpp's results are known
WITNESSED = tuple(name for name in CASES if name in _RECORDED)


@cache
def on_cpu(name: str) -> bool:
    """Whether the cpu engine has a kernel for every operation of a case or an architecture."""
    from assay.engines.cpu.compile import _STEPS

    row = CASES[name].row if name in CASES else VARIANTS[name]
    return {node.op for node in example(row)[1]} <= {*_STEPS, "linear"}


def _kind(row: Arch) -> tuple[Any, ...]:
    """What a graph is made of, in order: every operation under its name, with its choices and without its sizes."""

    def choices(attrs: Mapping[str, Any]) -> tuple[Any, ...]:
        return tuple(sorted((key, value if isinstance(value, bool | str) else 0) for key, value in attrs.items()))

    parts = ((node.name.partition("-")[0], node.op, choices(node.attrs), len(node.weights)) for node in example(row)[1])
    return tuple(dict.fromkeys(parts))


# One architecture for each kind of graph: a test that reads the graph alone is the same for the others.
KINDS = tuple({_kind(row): name for name, row in reversed(ARCHITECTURES.items())}.values())[::-1]


def _values(name: str, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """Random numbers of a trained model's magnitude."""
    x = rng.standard_normal(shape)
    if name.startswith("rope_f"):
        return np.geomspace(1, 6, shape[0]) if "long" in name or "freqs" in name else np.geomspace(1, 1.5, shape[0])
    if "norm" in name or name.endswith((".scale", "output_scale.weight")):
        return 1 + 0.2 * x if name.endswith(("weight", "scale")) else 0.2 * x
    if name.endswith("ssm_a"):  # a decay: negative
        return -np.exp(x)
    if name.endswith(("bias", "0.weight", "ssm_d", "decay.weight")) or "sinks" in name or "lerp" in name:
        return 0.3 * x
    return x if "embd" in name else x * 1.7 / np.sqrt(shape[-1])


def make(name: str, path: Path) -> Case:
    """Write the file of a case."""
    case = CASES[name]
    shapes = {**tensor_shapes(case.row), **case.extra}
    shapes = {n: s for n, s in shapes.items() if not n.endswith(case.without or ("?",))}
    rng = np.random.default_rng(sum(name.encode()))
    tensors = [Tensor(n, s, by_name("F32"), _values(n, s, rng).astype(np.float32)) for n, s in shapes.items()]
    write(
        path, {**metadata(case.row), "tokenizer.ggml.model": "no_vocab", "tokenizer.ggml.token_type_count": 2}, tensors
    )
    return case


def positions(case: Case) -> np.ndarray:
    return np.array(case.positions or range(len(IDS)), np.int32)


def witness(path: Path, ids: np.ndarray, at: np.ndarray, n_ctx: int, *, pooled: bool = False) -> np.ndarray:
    """llama.cpp's logits at every position, or the pooled embedding: float32 cache, no flash attention or repacking."""
    import llama_cpp as L

    with _quiet():
        mp = L.llama_model_default_params()
        mp.n_gpu_layers, mp.use_extra_bufts = 0, False
        model = L.llama_model_load_from_file(str(path).encode(), mp)
        assert model, f"{path}: llama.cpp refuses it"
        cp = L.llama_context_default_params()
        cp.n_ctx, cp.n_batch, cp.n_ubatch, cp.n_threads = n_ctx, max(64, len(ids)), 64, 1
        cp.type_k = cp.type_v = 0
        cp.flash_attn_type = 0
        cp.embeddings = pooled
        ctx = L.llama_init_from_model(model, cp)
        assert ctx
        batch = L.llama_batch_init(len(ids), 0, 1)
        batch.n_tokens = len(ids)
        for i, (token, position) in enumerate(zip(ids, at, strict=True)):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = int(token), int(position), 1, 1
            batch.seq_id[i][0] = 0
        assert L.llama_decode(ctx, batch) == 0
        if pooled:
            width = L.llama_model_n_embd(model)
            found = np.ctypeslib.as_array(L.llama_get_embeddings_seq(ctx, 0), (width,)).copy()[None]
        else:
            width = L.llama_vocab_n_tokens(L.llama_model_get_vocab(model))
            rows = [np.ctypeslib.as_array(L.llama_get_logits_ith(ctx, r), (width,)).copy() for r in range(len(ids))]
            found = np.array(rows)
        L.llama_batch_free(batch)
        L.llama_free(ctx)
        L.llama_model_free(model)
    return found


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence llama.cpp on stderr."""
    saved, null = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    try:
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(null)


def ours(path: Path, case: Case) -> np.ndarray:
    """The definition's results for the same rows."""
    from assay.engines.contract import Chunk, pages_for
    from assay.engines.reference import ReferenceEngine
    from assay.gguf import open_file
    from assay.models import load

    engine = ReferenceEngine(load(open_file(path), case.n_ctx))
    pages = np.arange(pages_for(len(IDS)), dtype=np.int32)
    pooled = case.row.keys.get("pooling_type", 0)
    chunk = Chunk(IDS, 0, pages, "none" if pooled else "all", positions(case))
    graph = engine.model.graph
    found = engine.forward([chunk], [graph.embedding] if pooled else [])[0]
    return found.nodes[graph.embedding] if pooled else found.logits[list(ROWS)]


def nmse(found: np.ndarray, golden: np.ndarray) -> float:
    return float(np.sum((found - golden) ** 2) / np.sum(golden**2))


def main(names: list[str]) -> None:
    add, names = "--add" in names, [name for name in names if name != "--add"]
    recorded = dict(np.load(GOLDEN)) if add else {}
    with tempfile.TemporaryDirectory() as folder:
        for i, name in enumerate(names or CASES):
            path = Path(folder) / f"{i}.gguf"
            try:
                case = make(name, path)
                pooled = "pooling_type" in case.row.keys
                found = witness(path, IDS, positions(case), case.n_ctx, pooled=pooled)
                recorded[name] = found if pooled else found[list(ROWS)]
                print(f"{nmse(ours(path, case), recorded[name]):.1e}  {name}")
            except Exception as error:
                print(f"FAILED   {name}: {type(error).__name__}: {error}")
            path.unlink(missing_ok=True)
    if add or not names:
        np.savez_compressed(GOLDEN, **recorded)
        print(f"wrote {GOLDEN}, {GOLDEN.stat().st_size} bytes", file=sys.stderr)


if __name__ == "__main__":
    main(sys.argv[1:])
