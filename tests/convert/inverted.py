"""Golden GGUF files turned back into Hugging Face folders, by rules written apart from the converter's.

Each family says how its tensors are called and laid out in a folder, and which settings its config.json has. Values
that a converter changes are changed back here: A_log = log(-A), norms minus one, heads in the other order, multipliers
divided out (they are powers of two, so that nothing is rounded).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from assay.gguf import GGUFFile, open_file
from tests.convert.folders import write_safetensors

Arrays = dict[str, np.ndarray]
Config = dict[str, Any]


class Golden:
    """A file's keys and tensors, and the folder that grows out of them."""

    def __init__(self, file: GGUFFile) -> None:
        self.file, self.arch = file, file.get_str("general.architecture")
        self.left = {name: np.array(file.decode(name)) for name in file.tensors}
        self.out: Arrays = {}
        self.n = self.key("block_count")

    def key(self, name: str, default: Any = None) -> Any:
        value = self.file.metadata.get(f"{self.arch}.{name}", default)
        return value.tolist() if isinstance(value, np.ndarray) else value

    def move(self, name: str, to: str, change: Callable[[np.ndarray], np.ndarray] = lambda x: x) -> None:
        if name in self.left:
            self.out[to] = np.ascontiguousarray(change(self.left.pop(name)), np.float32)

    def rows(self, table: str, prefix: str = "model.layers.", layers: range | None = None, **changes: Any) -> None:
        """Lines `gguf hf` of tensors below a layer; a change is given under the GGUF name."""
        for i in layers if layers is not None else range(self.n):
            for line in table.split("\n"):
                if line.strip():
                    name, to = line.split()
                    for suffix in (".weight", ".bias", ""):
                        whole = to if to.endswith(("!", ".weight", ".bias")) else to + suffix
                        change = changes.get(name.replace(".", "_"), lambda x: x)
                        self.move(f"blk.{i}.{name}{suffix}", f"{prefix}{i}.{whole.removesuffix('!')}", change)

    def experts(self, below: str, names: str, prefix: str = "model.layers.") -> None:
        """One tensor for each expert: names of gate, up and down, - for none."""
        for i in range(self.n):
            for part, to in zip(("gate", "up", "down"), names.split(), strict=True):
                stack = self.left.pop(f"blk.{i}.ffn_{part}_exps.weight", ())
                for e, matrix in enumerate(stack):
                    self.out[f"{prefix}{i}.{below}.experts.{e}.{to}.weight"] = matrix

    def together(self, a: str, b: str, to: str) -> None:
        """Two stacks or matrices as one, the rows of the first first."""
        for i in range(self.n):
            if f"blk.{i}.{a}.weight" in self.left:
                both = [self.left.pop(f"blk.{i}.{name}.weight") for name in (a, b)]
                self.out[f"model.layers.{i}.{to}"] = np.concatenate(both, axis=-2)

    def top(self, head: str = "lm_head", embedding: str = "model.embed_tokens", norm: str = "model.norm") -> None:
        self.move("token_embd.weight", f"{embedding}.weight")
        self.move("output.weight", f"{head}.weight")
        for suffix in ("weight", "bias"):
            self.move(f"output_norm.{suffix}", f"{norm}.{suffix}")

    def config(self, **more: Any) -> Config:
        """The settings of most models."""
        heads = self.key("attention.head_count_kv")
        found = {
            "hidden_size": self.key("embedding_length"), "num_hidden_layers": self.n,
            "num_attention_heads": self.key("attention.head_count"),
            "num_key_value_heads": max(heads) if isinstance(heads, list) else heads,
            "intermediate_size": self.key("feed_forward_length"), "max_position_embeddings": self.key("context_length"),
            "rms_norm_eps": self.key("attention.layer_norm_rms_epsilon"), "rope_theta": self.key("rope.freq_base"),
            "vocab_size": len(self.file.decode("token_embd.weight")), "head_dim": self.key("attention.key_length"),
            "tie_word_embeddings": "output.weight" not in self.file.tensors,
            "num_experts_per_tok": self.key("expert_used_count"),
            "moe_intermediate_size": self.key("expert_feed_forward_length"),
        }  # fmt: skip
        return {key: value for key, value in {**found, **more}.items() if value is not None}

    def kinds(self, recurrent: str, attention: str) -> list[str]:
        return [attention if heads else recurrent for heads in self.key("attention.head_count_kv")]


def a_log(x: np.ndarray) -> np.ndarray:
    return np.log(-x.astype(np.float64)).astype(np.float32).reshape(-1)


def conv(x: np.ndarray) -> np.ndarray:
    return x.reshape(-1, 1, x.shape[-1])


def flat(x: np.ndarray) -> np.ndarray:
    return x.reshape(-1)


def halves(x: np.ndarray, n_head: int) -> np.ndarray:
    """RoPE's neighbouring rows of each head, put in halves."""
    heads = x.reshape(n_head, -1, 2, x.shape[-1])
    return np.concatenate([heads[:, :, 0], heads[:, :, 1]], axis=1).reshape(x.shape)


ATTENTION = """
attn_norm input_layernorm
ffn_norm post_attention_layernorm
attn_q self_attn.q_proj
attn_k self_attn.k_proj
attn_v self_attn.v_proj
attn_output self_attn.o_proj
attn_q_norm self_attn.q_norm
attn_k_norm self_attn.k_norm
"""
DENSE = """
ffn_gate mlp.gate_proj
ffn_up mlp.up_proj
ffn_down mlp.down_proj
"""
SHARED = """
ffn_gate_shexp mlp.shared_experts.gate_proj
ffn_up_shexp mlp.shared_experts.up_proj
ffn_down_shexp mlp.shared_experts.down_proj
"""


def lfm2(g: Golden) -> Config:
    table = """
attn_norm operator_norm
ffn_norm ffn_norm
shortconv.conv conv.conv
shortconv.in_proj conv.in_proj
shortconv.out_proj conv.out_proj
attn_q self_attn.q_proj
attn_k self_attn.k_proj
attn_v self_attn.v_proj
attn_output self_attn.out_proj
attn_q_norm self_attn.q_layernorm
attn_k_norm self_attn.k_layernorm
ffn_gate feed_forward.w1
ffn_up feed_forward.w3
ffn_down feed_forward.w2
ffn_gate_inp feed_forward.gate
exp_probs_b feed_forward.expert_bias!
"""
    g.rows(table, shortconv_conv=conv)
    g.experts("feed_forward", "w1 w3 w2")
    g.move("token_embd_norm.weight", "model.embedding_norm.weight")
    g.top()
    more: Config = {"norm_eps": g.key("attention.layer_norm_rms_epsilon"), "rms_norm_eps": None, "conv_bias": False}
    if g.arch == "lfm2":  # the width is two thirds of the setting, then the next multiple
        more |= {"intermediate_size": None, "block_ff_dim": 3 * g.key("feed_forward_length") // 2 - 2}
        more |= {"block_auto_adjust_ff_dim": True, "block_ffn_dim_multiplier": 1.0, "block_multiple_of": 16}
    else:
        more |= {"num_experts": g.key("expert_count"), "num_dense_layers": g.key("leading_dense_block_count")}
    return g.config(**more, layer_types=g.kinds("conv", "full_attention"), conv_L_cache=g.key("shortconv.l_cache"))


def _draft(g: Golden) -> None:
    """The extra layer as `mtp.*`."""
    last = g.n - 1
    if not g.key("nextn_predict_layers"):
        return
    names = {
        "eh_proj": "fc",
        "enorm": "pre_fc_norm_embedding",
        "hnorm": "pre_fc_norm_hidden",
        "shared_head_norm": "norm",
    }
    for name, to in names.items():
        g.move(f"blk.{last}.nextn.{name}.weight", f"mtp.{to}.weight")
    for key in [key for key in g.out if key.startswith(f"model.layers.{last}.")]:
        g.out[key.replace(f"model.layers.{last}.", "mtp.layers.0.")] = g.out.pop(key)


def qwen(g: Golden) -> Config:
    groups, values, width = g.key("ssm.group_count"), g.key("ssm.time_step_rank"), g.key("ssm.state_size")
    each, keys = values // groups, 2 * g.key("ssm.group_count") * g.key("ssm.state_size")
    tiles = g.arch != "qwen3next"

    def runs(x: np.ndarray, size: int = width) -> np.ndarray:
        """Value heads of one key head side by side; in the file they are `groups` apart."""
        order = [k + groups * v for k in range(groups) for v in range(each)] if tiles else range(values)
        return np.concatenate([x[h * size : (h + 1) * size] for h in order])

    def after_keys(x: np.ndarray) -> np.ndarray:
        return np.concatenate([x[:keys], runs(x[keys:])])

    table = """
attn_norm input_layernorm
post_attention_norm post_attention_layernorm
attn_q self_attn.q_proj
attn_k self_attn.k_proj
attn_v self_attn.v_proj
attn_output self_attn.o_proj
attn_q_norm self_attn.q_norm
attn_k_norm self_attn.k_norm
ssm_conv1d linear_attn.conv1d
ssm_a linear_attn.A_log!
ssm_dt linear_attn.dt_bias!
ssm_norm linear_attn.norm
ssm_out linear_attn.out_proj
ssm_beta linear_attn.in_proj_b
ssm_alpha linear_attn.in_proj_a
ssm_ba linear_attn.in_proj_ba
ffn_gate_inp mlp.gate
ffn_gate_inp_shexp mlp.shared_expert_gate
ffn_gate_shexp mlp.shared_expert.gate_proj
ffn_up_shexp mlp.shared_expert.up_proj
ffn_down_shexp mlp.shared_expert.down_proj
"""
    if tiles:
        table += "attn_qkv linear_attn.in_proj_qkv\nattn_gate linear_attn.in_proj_z\n"
    else:
        for i in range(g.n):  # key head by key head: q, k, its values, their gates
            if f"blk.{i}.attn_qkv.weight" in g.left:
                qkv, z = g.left.pop(f"blk.{i}.attn_qkv.weight"), g.left.pop(f"blk.{i}.attn_gate.weight")
                q, k, v = np.split(qkv, [keys // 2, keys])
                parts = [np.split(part, groups) for part in (q, k, v, z)]
                rows = [part[head] for head in range(groups) for part in parts]
                g.out[f"model.layers.{i}.linear_attn.in_proj_qkvz.weight"] = np.concatenate(rows)
    g.rows(
        table + DENSE, ssm_conv1d=lambda x: conv(after_keys(x)), attn_qkv=after_keys, attn_gate=runs,
        ssm_a=lambda x: runs(a_log(x), 1), ssm_dt=lambda x: runs(x, 1), ssm_alpha=lambda x: runs(x, 1),
        ssm_beta=lambda x: runs(x, 1), ssm_out=lambda x: runs(x.T).T, ffn_gate_inp_shexp=lambda x: x.reshape(1, -1),
    )  # fmt: skip
    if g.arch == "qwen35moe":  # experts in one tensor
        g.together("ffn_gate_exps", "ffn_up_exps", "mlp.experts.gate_up_proj")
        g.rows("ffn_down_exps mlp.experts.down_proj!")
    else:
        g.experts("mlp", "gate_proj up_proj down_proj")
    g.top()
    _draft(g)
    for name in g.out:
        if name.endswith("norm.weight") or "norm_" in name.rpartition(".")[0].rpartition(".")[2]:
            g.out[name] = g.out[name] - (0 if "linear_attn" in name else 1)
    drafts = g.key("nextn_predict_layers", 0)
    listed = g.key("attention.recurrent_layers")
    share = g.key("rope.dimension_count") / g.key("attention.key_length")
    n = g.n - drafts
    more: Config = (
        {"layer_types": ["linear_attention" if r else "full_attention" for r in listed[:n]]} if listed else {}
    )
    rope: Config = {"rope_type": "default", "rope_theta": g.key("rope.freq_base"), "partial_rotary_factor": share}
    if tiles:
        rope["mrope_section"] = g.key("rope.dimension_sections")[:3]
    return g.config(
        **more, num_hidden_layers=n, rope_parameters=rope, rope_theta=None, linear_num_key_heads=groups,
        linear_num_value_heads=values, linear_key_head_dim=width, linear_value_head_dim=width,
        linear_conv_kernel_dim=g.key("ssm.conv_kernel"), full_attention_interval=g.key("full_attention_interval"),
        num_experts=g.key("expert_count"),
        shared_expert_intermediate_size=g.key("expert_shared_feed_forward_length"),
    )  # fmt: skip


SCAN = """
ssm_in MIX.in_proj
ssm_conv1d MIX.conv1d
ssm_x MIX.x_proj
ssm_a MIX.A_log!
ssm_d MIX.D!
ssm_norm MIX.norm
ssm_out MIX.out_proj
ssm_dt_norm MIX.dt_layernorm
ssm_b_norm MIX.b_layernorm
ssm_c_norm MIX.c_layernorm
"""


def _scan(g: Golden, below: str, prefix: str = "model.layers.", one: bool = False) -> None:
    """The mixer's tensors. Mamba-1 (`one`): a matrix for dt, and A with a row for each channel."""
    table = SCAN + ("ssm_dt MIX.dt_proj" if one else "ssm_dt MIX.dt_bias!")
    decay = (lambda x: a_log(x).reshape(x.shape)) if one else a_log
    g.rows(table.replace("MIX", below), prefix, ssm_conv1d=lambda x: x if x.ndim == 1 else conv(x), ssm_a=decay,
           ssm_d=flat, ssm_norm=flat)  # fmt: skip


def mamba2(g: Golden) -> Config:
    _scan(g, "mixer", "backbone.layers.")
    g.rows("attn_norm norm", "backbone.layers.")
    g.top(embedding="backbone.embeddings", norm="backbone.norm_f")
    width = g.key("embedding_length")
    return g.config(
        conv_kernel=g.key("ssm.conv_kernel"), state_size=g.key("ssm.state_size"), n_groups=g.key("ssm.group_count"),
        num_heads=g.key("ssm.time_step_rank"), expand=g.key("ssm.inner_size") // width, intermediate_size=None,
        head_dim=g.key("ssm.inner_size") // g.key("ssm.time_step_rank"), num_attention_heads=None, rms_norm_eps=None,
        layer_norm_epsilon=g.key("attention.layer_norm_rms_epsilon"),
    )  # fmt: skip


def mamba(g: Golden) -> Config:
    _scan(g, "mixer", "backbone.layers.", one=True)
    g.rows("attn_norm norm", "backbone.layers.")
    g.top(embedding="backbone.embeddings", norm="backbone.norm_f")
    return g.config(
        conv_kernel=g.key("ssm.conv_kernel"), state_size=g.key("ssm.state_size"),
        time_step_rank=g.key("ssm.time_step_rank"), intermediate_size=g.key("ssm.inner_size"),
        num_attention_heads=None, rms_norm_eps=None, layer_norm_epsilon=g.key("attention.layer_norm_rms_epsilon"),
    )  # fmt: skip


def granite(g: Golden) -> Config:
    _scan(g, "mamba")
    heads = g.config()
    routed = g.key("expert_count")
    if routed:
        g.together("ffn_gate_exps", "ffn_up_exps", "block_sparse_moe.input_linear.weight")
        g.rows("ffn_down_exps block_sparse_moe.output_linear\nffn_gate_inp block_sparse_moe.router.layer")
    end = "_shexp" if routed else ""
    g.together(f"ffn_gate{end}", f"ffn_up{end}", "shared_mlp.input_linear.weight")
    g.rows(f"ffn_down{end} shared_mlp.output_linear")
    g.rows(ATTENTION, attn_q=lambda x: halves(x, heads["num_attention_heads"]),
           attn_k=lambda x: halves(x, heads["num_key_value_heads"]))  # fmt: skip
    g.top()
    shared = g.key("expert_shared_feed_forward_length") if routed else g.key("feed_forward_length")
    return g.config(
        layer_types=g.kinds("mamba", "attention"), num_local_experts=routed or 0, shared_intermediate_size=shared,
        mamba_d_conv=g.key("ssm.conv_kernel"), mamba_d_state=g.key("ssm.state_size"),
        mamba_n_groups=g.key("ssm.group_count"), mamba_n_heads=g.key("ssm.time_step_rank"),
        mamba_expand=g.key("ssm.inner_size") // g.key("embedding_length"),
        attention_multiplier=g.key("attention.scale"),
        embedding_multiplier=g.key("embedding_scale"), residual_multiplier=g.key("residual_scale"),
        logits_scaling=g.key("logit_scale"),
        position_embedding_type="rope" if g.key("rope.scaling.finetuned", True) else "nope",
    )  # fmt: skip


def nemotron(g: Golden) -> Config:
    prefix, moe, drafts = "backbone.layers.", g.arch.endswith("moe"), g.key("nextn_predict_layers", 0)
    _scan(g, "mixer", prefix)
    table = """
attn_norm norm
attn_q mixer.q_proj
attn_k mixer.k_proj
attn_v mixer.v_proj
attn_output mixer.o_proj
ffn_up mixer.up_proj
ffn_down mixer.down_proj
ffn_gate_inp mixer.gate
exp_probs_b mixer.gate.e_score_correction_bias!
ffn_up_shexp mixer.shared_experts.up_proj
ffn_down_shexp mixer.shared_experts.down_proj
ffn_latent_down mixer.fc1_latent_proj
ffn_latent_up mixer.fc2_latent_proj
"""
    g.rows(table, prefix)
    g.experts("mixer", "- up_proj down_proj", prefix)
    g.top(embedding="backbone.embeddings", norm="backbone.norm_f")
    n = g.n - drafts
    if drafts:  # attention in the first layer of the head, experts in the second
        for name in ("eh_proj", "enorm", "hnorm"):
            g.move(f"blk.{n}.nextn.{name}.weight", f"mtp.layers.0.{name}.weight")
        g.move(f"blk.{n}.nextn.shared_head_norm.weight", "mtp.layers.1.final_layernorm.weight")
        g.move(f"blk.{n}.post_attention_norm.weight", "mtp.layers.1.norm.weight")
        for key in [key for key in g.out if key.startswith(f"{prefix}{n}.")]:
            first = any(part in key for part in ("q_proj", "k_proj", "v_proj", "o_proj", f"{n}.norm"))
            g.out[key.replace(f"{prefix}{n}.", f"mtp.layers.{0 if first else 1}.")] = g.out.pop(key)
    widths = g.key("feed_forward_length")[:n]
    heads = g.key("attention.head_count_kv")[:n]
    pattern = "".join("*" if h else ("E" if moe else "-") if f else "M" for h, f in zip(heads, widths, strict=True))
    return g.config(
        num_hidden_layers=n, hybrid_override_pattern=pattern, intermediate_size=max(widths),
        layer_norm_epsilon=g.key("attention.layer_norm_epsilon"), conv_kernel=g.key("ssm.conv_kernel"),
        ssm_state_size=g.key("ssm.state_size"), n_groups=g.key("ssm.group_count"),
        mamba_num_heads=g.key("ssm.time_step_rank"),
        mamba_head_dim=g.key("ssm.inner_size") // g.key("ssm.time_step_rank"), n_routed_experts=g.key("expert_count"),
        moe_shared_expert_intermediate_size=g.key("expert_shared_feed_forward_length"),
        n_shared_experts=g.key("expert_shared_count"), norm_topk_prob=g.key("expert_weights_norm"),
        routed_scaling_factor=g.key("expert_weights_scale"), moe_latent_size=g.key("moe_latent_size"),
    )  # fmt: skip


def falcon_h1(g: Golden) -> Config:
    """Every multiplier, divided out of the weights."""
    _scan(g, "mamba")
    g.rows(ATTENTION.replace("ffn_norm post_attention_layernorm\n", ""))
    g.rows("ffn_gate feed_forward.gate_proj\nffn_up feed_forward.up_proj\nffn_down feed_forward.down_proj")
    for i in range(g.n):
        g.move(f"blk.{i}.ffn_norm", f"model.layers.{i}.pre_ff_layernorm.weight")
    g.top(norm="model.final_layernorm")
    inner, states, heads = g.key("ssm.inner_size"), g.key("ssm.group_count") * g.key("ssm.state_size"), 4
    assert heads == g.key("ssm.time_step_rank")
    parts = [4.0, 0.5, 0.25, 8.0, 2.0]
    column = np.repeat(np.array(parts, np.float32), [inner, inner, states, states, heads])[:, None]
    divide = {
        "q_proj": 2.0, "v_proj": 2.0, "k_proj": 2.0 * 0.5, "o_proj": 0.25, "gate_proj": 0.5, "down_proj": 4.0,
        "mamba.out_proj": 0.125, "mamba.in_proj": 16.0 * column, "embed_tokens": 8.0, "lm_head": 0.0625,
    }  # fmt: skip
    for name in g.out:
        for part, factor in divide.items():
            if name.endswith(f"{part}.weight"):
                g.out[name] = g.out[name] / np.float32(factor) if np.isscalar(factor) else g.out[name] / factor
    return g.config(
        mamba_d_ssm=inner, mamba_d_conv=g.key("ssm.conv_kernel"), mamba_d_state=g.key("ssm.state_size"),
        mamba_n_groups=g.key("ssm.group_count"), mamba_d_head=inner // heads, mamba_rms_norm=True,
        mamba_norm_before_gate=False, attention_in_multiplier=2.0, key_multiplier=0.5, attention_out_multiplier=0.25,
        mlp_multipliers=[0.5, 4.0], ssm_out_multiplier=0.125, ssm_in_multiplier=16.0, ssm_multipliers=parts,
        embedding_multiplier=8.0, lm_head_multiplier=0.0625,
    )  # fmt: skip


def _kv_b(g: Golden) -> None:
    """k_b transposed and v_b, head by head, as one matrix."""
    for i in range(g.n):
        if f"blk.{i}.attn_k_b.weight" in g.left:
            k, v = (g.left.pop(f"blk.{i}.attn_{part}_b.weight") for part in "kv")
            both = np.concatenate([k.transpose(0, 2, 1), v], axis=1)
            g.out[f"model.layers.{i}.self_attn.kv_b_proj.weight"] = both.reshape(-1, both.shape[-1])


def kimi(g: Golden) -> Config:
    table = """
ssm_conv1d_q self_attn.q_conv1d
ssm_conv1d_k self_attn.k_conv1d
ssm_conv1d_v self_attn.v_conv1d
ssm_a self_attn.A_log!
ssm_dt self_attn.dt_bias!
ssm_f_a self_attn.f_a_proj
ssm_f_b self_attn.f_b_proj
ssm_beta self_attn.b_proj
ssm_g_a self_attn.g_a_proj
ssm_g_b self_attn.g_b_proj
ssm_norm self_attn.o_norm
attn_kv_a_mqa self_attn.kv_a_proj_with_mqa
attn_kv_a_norm self_attn.kv_a_layernorm
ffn_gate_inp block_sparse_moe.gate
exp_probs_b block_sparse_moe.gate.e_score_correction_bias!
"""
    g.rows(table, ssm_conv1d_q=conv, ssm_conv1d_k=conv, ssm_conv1d_v=conv,
           ssm_a=lambda x: a_log(x).reshape(1, 1, -1, 1))  # fmt: skip
    g.rows(ATTENTION + DENSE + SHARED.replace("mlp.", "block_sparse_moe."))
    g.experts("block_sparse_moe", "w1 w3 w2")
    _kv_b(g)
    g.top()
    full = [i + 1 for i, heads in enumerate(g.key("attention.head_count_kv")) if heads]
    turned = g.key("rope.dimension_count")
    return g.config(
        linear_attn_config={"full_attn_layers": full, "short_conv_kernel_size": g.key("ssm.conv_kernel"),
                            "head_dim": g.key("kda.head_dim"), "num_heads": g.key("attention.head_count")},
        num_key_value_heads=g.key("attention.head_count"), head_dim=None, kv_lora_rank=g.key("attention.kv_lora_rank"),
        qk_rope_head_dim=turned, qk_nope_head_dim=g.key("attention.key_length_mla") - turned,
        v_head_dim=g.key("attention.value_length_mla"), num_experts=g.key("expert_count"),
        num_experts_per_token=g.key("expert_used_count"), num_experts_per_tok=None,
        num_shared_experts=g.key("expert_shared_count"), first_k_dense_replace=g.key("leading_dense_block_count"),
        routed_scaling_factor=g.key("expert_weights_scale"), moe_router_activation_func="sigmoid",
    )  # fmt: skip


def jamba(g: Golden) -> Config:
    _scan(g, "mamba", one=True)
    g.rows(ATTENTION.replace("post_attention_layernorm", "pre_ff_layernorm"))
    g.rows("ffn_gate feed_forward.gate_proj\nffn_up feed_forward.up_proj\nffn_down feed_forward.down_proj")
    g.rows("ffn_gate_inp feed_forward.router")
    g.experts("feed_forward", "gate_proj up_proj down_proj")
    g.top(norm="model.final_layernorm")
    heads = g.key("attention.head_count_kv")
    return g.config(
        attn_layer_offset=heads.index(max(heads)), attn_layer_period=g.n, mamba_d_conv=g.key("ssm.conv_kernel"),
        mamba_d_state=g.key("ssm.state_size"), mamba_dt_rank=g.key("ssm.time_step_rank"),
        mamba_expand=g.key("ssm.inner_size") // g.key("embedding_length"), num_experts=g.key("expert_count"),
    )  # fmt: skip


def rwkv7(g: Golden) -> Config:
    table = """
attn_norm attn_norm
attn_norm_2 ffn_norm
time_mix_receptance attn.r_proj
time_mix_key attn.k_proj
time_mix_value attn.v_proj
time_mix_output attn.o_proj
time_mix_ln attn.g_norm
time_mix_k_k attn.k_k!
time_mix_k_a attn.k_a!
time_mix_r_k attn.r_k!
channel_mix_lerp_k ffn.x_k!
channel_mix_key ffn.key
channel_mix_value ffn.value
"""
    for letter in "wavg":
        table += "".join(f"time_mix_{letter}{n} attn.{letter}_lora.lora.{to}\n"
                         for n, to in ((1, "0.weight"), (2, "2.weight"), (0, "2.bias")))  # fmt: skip
    for name in ("v0", "v1", "v2"):  # copies of a's in the first layer, which the folder does not have
        g.left.pop(f"blk.0.time_mix_{name}.weight")
    size = g.key("wkv.head_size")
    g.rows(table, time_mix_r_k=lambda x: x.reshape(-1, size))
    for i in range(g.n):
        for letter, row in zip("rwkvag", g.left.pop(f"blk.{i}.time_mix_lerp_fused.weight"), strict=True):
            g.out[f"model.layers.{i}.attn.x_{letter}"] = row
    for suffix in ("weight", "bias"):
        g.move(f"token_embd_norm.{suffix}", f"model.layers.0.pre_norm.{suffix}")
    g.top(embedding="model.embeddings")
    ranks = {"decay_low_rank_dim": "decay", "a_low_rank_dim": "iclr", "v_low_rank_dim": "value_residual_mix",
             "gate_low_rank_dim": "gate"}  # fmt: skip
    return g.config(
        norm_eps=g.key("attention.layer_norm_epsilon"), head_dim=size, num_attention_heads=None,
        **{name: g.key(f"attention.{key}_lora_rank") for name, key in ranks.items()},
    )  # fmt: skip


def rwkv6(g: Golden) -> Config:
    table = """
attn_norm ln1
attn_norm_2 ln2
time_mix_lerp_x attention.time_maa_x!
time_mix_w1 attention.time_maa_w1!
time_mix_w2 attention.time_maa_w2!
time_mix_decay attention.time_decay!
time_mix_decay_w1 attention.time_decay_w1!
time_mix_decay_w2 attention.time_decay_w2!
time_mix_first attention.time_faaaa!
time_mix_receptance attention.receptance
time_mix_key attention.key
time_mix_value attention.value
time_mix_gate attention.gate
time_mix_output attention.output
time_mix_ln attention.ln_x
channel_mix_lerp_k feed_forward.time_maa_k!
channel_mix_lerp_r feed_forward.time_maa_r!
channel_mix_key feed_forward.key
channel_mix_receptance feed_forward.receptance
channel_mix_value feed_forward.value
"""
    prefix, every = "rwkv.blocks.", g.key("rescale_every_n_layers")
    g.rows(table, prefix, time_mix_w1=np.transpose, time_mix_decay_w1=np.transpose, time_mix_decay_w2=np.transpose,
           time_mix_w2=lambda x: x.transpose(0, 2, 1), time_mix_decay=lambda x: x.reshape(1, 1, -1))  # fmt: skip
    for i in range(g.n):
        for letter, row in zip("wkvrg", g.left.pop(f"blk.{i}.time_mix_lerp_fused.weight"), strict=True):
            g.out[f"{prefix}{i}.attention.time_maa_{letter}"] = row
        for name in ("attention.output", "feed_forward.value"):
            g.out[f"{prefix}{i}.{name}.weight"] = g.out[f"{prefix}{i}.{name}.weight"] * np.float32(2 ** (i // every))
    for suffix in ("weight", "bias"):
        g.move(f"token_embd_norm.{suffix}", f"{prefix}0.pre_ln.{suffix}")
    g.top(head="head", embedding="rwkv.embeddings", norm="rwkv.ln_out")
    return g.config(
        layer_norm_epsilon=g.key("attention.layer_norm_epsilon"), head_size=g.key("wkv.head_size"),
        rescale_every=every, num_attention_heads=None,
    )  # fmt: skip


def minimax(g: Golden) -> Config:
    g.rows(ATTENTION + "ffn_gate_inp block_sparse_moe.gate\nexp_probs_b block_sparse_moe.e_score_correction_bias!")
    g.experts("block_sparse_moe", "w1 w3 w2")
    g.top()
    return g.config(num_local_experts=g.key("expert_count"), rotary_dim=g.key("rope.dimension_count"),
                    scoring_func="sigmoid")  # fmt: skip


def ernie(g: Golden) -> Config:
    g.rows(ATTENTION + DENSE + SHARED)
    g.rows("ffn_gate_inp mlp.gate\nexp_probs_b mlp.moe_statics.e_score_correction_bias!",
           exp_probs_b=lambda x: x.reshape(1, -1))  # fmt: skip
    g.experts("mlp", "gate_proj up_proj down_proj")
    g.top()
    return g.config(moe_num_experts=g.key("expert_count"), moe_k=g.key("expert_used_count"),
                    moe_layer_interval=g.key("interleave_moe_layer_step"), num_experts_per_tok=None,
                    moe_layer_start_index=g.key("leading_dense_block_count"))  # fmt: skip


def hunyuan(g: Golden) -> Config:
    g.rows(ATTENTION.replace("q_norm self_attn.q_norm", "q_norm self_attn.query_layernorm")
           .replace("k_norm self_attn.k_norm", "k_norm self_attn.key_layernorm"))  # fmt: skip
    g.rows(SHARED.replace("shared_experts", "shared_mlp") + "ffn_gate_inp mlp.gate.wg")
    g.experts("mlp", "gate_proj up_proj down_proj")
    g.top()
    n = g.n
    return g.config(
        num_experts=g.key("expert_count"), moe_topk=[g.key("expert_used_count")] * n, num_experts_per_tok=None,
        moe_intermediate_size=[g.key("expert_feed_forward_length")] * n, num_shared_expert=[1] * n,
        intermediate_size=g.key("expert_shared_feed_forward_length"),
    )  # fmt: skip


def bailing(g: Golden) -> Config:
    table = """
attn_norm input_layernorm
ffn_norm post_attention_layernorm
attn_qkv attention.query_key_value
attn_output attention.dense
attn_q_norm attention.query_layernorm
attn_k_norm attention.key_layernorm
ffn_gate_inp mlp.gate
exp_probs_b mlp.gate.expert_bias!
"""
    g.rows(table + DENSE + SHARED)
    g.experts("mlp", "gate_proj up_proj down_proj")
    g.top(embedding="model.word_embeddings")
    width = g.key("embedding_length") // g.key("attention.head_count")
    return g.config(
        **_routed(g), n_group=g.key("expert_group_count"), topk_group=g.key("expert_group_used_count"),
        num_experts=g.key("expert_count"), partial_rotary_factor=g.key("rope.dimension_count") / width,
        score_function="sigmoid", num_shared_experts=g.key("expert_shared_count"),
    )  # fmt: skip


def _routed(g: Golden) -> Config:
    return {
        "first_k_dense_replace": g.key("leading_dense_block_count"), "norm_topk_prob": g.key("expert_weights_norm"),
        "routed_scaling_factor": g.key("expert_weights_scale"),
    }  # fmt: skip


def dots1(g: Golden) -> Config:
    g.rows(ATTENTION + DENSE + SHARED + "ffn_gate_inp mlp.gate\nexp_probs_b mlp.gate.e_score_correction_bias!")
    g.experts("mlp", "gate_proj up_proj down_proj")
    g.top()
    return g.config(**_routed(g), n_routed_experts=g.key("expert_count"), n_shared_experts=g.key("expert_shared_count"))


def apertus(g: Golden) -> Config:
    g.rows(ATTENTION.replace("input_layernorm", "attention_layernorm")
           .replace("post_attention_layernorm", "feedforward_layernorm") + DENSE)  # fmt: skip
    g.top()
    for name in ("alpha_p", "alpha_n", "beta", "eps"):
        for i, value in enumerate(g.file.metadata[f"xielu.{name}"]):
            g.out[f"model.layers.{i}.mlp.act_fn.{name}"] = np.array([value], np.float32)
    return g.config(hidden_act="xielu")


def arcee(g: Golden) -> Config:
    config = g.config(hidden_act="relu2")
    g.rows(ATTENTION + DENSE, attn_q=lambda x: halves(x, config["num_attention_heads"]),
           attn_k=lambda x: halves(x, config["num_key_value_heads"]))  # fmt: skip
    g.top()
    return config


def mistral4(g: Golden) -> Config:
    table = """
attn_q_a self_attn.q_a_proj
attn_q_a_norm self_attn.q_a_layernorm
attn_q_b self_attn.q_b_proj
attn_kv_a_mqa self_attn.kv_a_proj_with_mqa
attn_kv_a_norm self_attn.kv_a_layernorm
ffn_gate_inp mlp.gate
"""
    g.rows(ATTENTION + SHARED + table)
    g.together("ffn_gate_exps", "ffn_up_exps", "mlp.experts.gate_up_proj")
    g.rows("ffn_down_exps mlp.experts.down_proj!")
    _kv_b(g)
    g.top()
    turned = g.key("rope.dimension_count")
    rope = {"rope_type": "default", "rope_theta": g.key("rope.freq_base"),
            "llama_4_scaling_beta": g.key("attention.temperature_scale"),
            "original_max_position_embeddings": g.key("attention.temperature_length")}  # fmt: skip
    return g.config(
        **_routed(g), model_type="mistral4", rope_parameters=rope, rope_theta=None, head_dim=None,
        num_key_value_heads=g.key("attention.head_count"), n_routed_experts=g.key("expert_count"),
        n_shared_experts=g.key("expert_shared_count"), q_lora_rank=g.key("attention.q_lora_rank"),
        kv_lora_rank=g.key("attention.kv_lora_rank"), qk_rope_head_dim=turned,
        qk_nope_head_dim=g.key("attention.key_length_mla") - turned, v_head_dim=g.key("attention.value_length_mla"),
        scoring_func="softmax",
    )  # fmt: skip


def gemma3n(g: Golden) -> Config:
    table = """
attn_norm input_layernorm
post_attention_norm post_attention_layernorm
ffn_norm pre_feedforward_layernorm
post_ffw_norm post_feedforward_layernorm
attn_q self_attn.q_proj
attn_k self_attn.k_proj
attn_v self_attn.v_proj
attn_output self_attn.o_proj
attn_q_norm self_attn.q_norm
attn_k_norm self_attn.k_norm
inp_gate per_layer_input_gate
proj per_layer_projection
post_norm post_per_layer_input_norm
altup_correct_coef altup.correction_coefs
altup_correct_scale altup.correct_output_scale!
altup_predict_coef altup.prediction_coefs
altup_router altup.modality_router
altup_router_norm altup.router_norm
laurel_l laurel.linear_left
laurel_r laurel.linear_right
laurel_post_norm laurel.post_laurel_norm
"""
    prefix = "model.language_model."
    g.rows(table + DENSE, f"{prefix}layers.")
    for name, to in (("altup_proj", "altup_projections"), ("altup_unembd_proj", "altup_unembed_projections")):
        for i, matrix in enumerate(g.left.pop(f"{name}.weight")):
            g.out[f"{prefix}{to}.{i}.weight"] = matrix
    g.move("per_layer_token_embd.weight", f"{prefix}embed_tokens_per_layer.weight")
    g.move("per_layer_model_proj.weight", f"{prefix}per_layer_model_projection.weight")
    g.move("per_layer_proj_norm.weight", f"{prefix}per_layer_projection_norm.weight")
    g.top(embedding=f"{prefix}embed_tokens", norm=f"{prefix}norm")
    local = g.key("attention.sliding_window_pattern")
    return g.config(
        sliding_window=g.key("attention.sliding_window"), intermediate_size=[g.key("feed_forward_length")] * g.n,
        layer_types=["sliding_attention" if x else "full_attention" for x in local], altup_num_inputs=4,
        rope_local_base_freq=g.key("rope.freq_base_swa"), final_logit_softcapping=g.key("final_logit_softcapping"),
        altup_active_idx=0, hidden_size_per_layer_input=256, num_kv_shared_layers=0,
        activation_sparsity_pattern=[0.95] * g.n,
    )  # fmt: skip


def modern_bert(g: Golden) -> Config:
    table = """
attn_norm attn_norm
ffn_norm mlp_norm
attn_qkv attn.Wqkv
attn_output attn.Wo
ffn_up mlp.Wi
ffn_down mlp.Wo
"""
    g.rows(table)
    g.move("token_embd_norm.weight", "model.embeddings.norm.weight")
    g.top(embedding="model.embeddings.tok_embeddings", norm="model.final_norm")
    g.out["head.dense.weight"] = g.out["decoder.bias"] = np.zeros((2, 2), np.float32)  # not part of the encoder
    return g.config(
        num_key_value_heads=None, rope_theta=None, norm_eps=g.key("attention.layer_norm_epsilon"),
        local_attention=g.key("attention.sliding_window"), global_rope_theta=g.key("rope.freq_base"),
        local_rope_theta=g.key("rope.freq_base_swa"), global_attn_every_n_layers=3, hidden_activation="gelu",
        classifier_pooling="mean",
    )  # fmt: skip


# golden file: the architecture in config.json, and how it is turned back
FAMILIES: dict[str, tuple[str, Callable[[Golden], Config]]] = {
    "lfm2": ("Lfm2ForCausalLM", lfm2),
    "lfm2moe": ("Lfm2MoeForCausalLM", lfm2),
    "qwen35": ("Qwen3_5ForCausalLM", qwen),
    "qwen35-mtp": ("Qwen3_5ForConditionalGeneration", qwen),
    "qwen35moe": ("Qwen3_5MoeForCausalLM", qwen),
    "qwen35moe-mtp": ("Qwen3_5MoeForConditionalGeneration", qwen),
    "qwen3next": ("Qwen3NextForCausalLM", qwen),
    "qwen3next-mtp": ("Qwen3NextForCausalLM", qwen),
    "mamba2": ("Mamba2ForCausalLM", mamba2),
    "mamba": ("MambaForCausalLM", mamba),
    "granitehybrid": ("GraniteMoeHybridForCausalLM", granite),
    "granitehybrid-moe": ("GraniteMoeHybridForCausalLM", granite),
    "nemotron_h": ("NemotronHForCausalLM", nemotron),
    "nemotron_h_moe": ("NemotronHForCausalLM", nemotron),
    "nemotron_h_moe-mtp": ("NemotronHForCausalLM", nemotron),
    "falcon-h1": ("FalconH1ForCausalLM", falcon_h1),
    "kimi-linear": ("KimiLinearForCausalLM", kimi),
    "jamba": ("JambaForCausalLM", jamba),
    "rwkv7": ("RWKV7ForCausalLM", rwkv7),
    "rwkv6": ("Rwkv6ForCausalLM", rwkv6),
    "minimax-m2": ("MiniMaxM2ForCausalLM", minimax),
    "ernie4_5-moe": ("Ernie4_5_MoeForCausalLM", ernie),
    "hunyuan-moe": ("HunYuanMoEV1ForCausalLM", hunyuan),
    "bailingmoe2": ("BailingMoeV2ForCausalLM", bailing),
    "dots1": ("Dots1ForCausalLM", dots1),
    "apertus": ("ApertusForCausalLM", apertus),
    "arcee": ("ArceeForCausalLM", arcee),
    "mistral4": ("Mistral4ForCausalLM", mistral4),
    "gemma3n": ("Gemma3nForConditionalGeneration", gemma3n),
    "modern-bert": ("ModernBertForMaskedLM", modern_bert),
}


def make(golden: Path, path: Path) -> Path:
    """Write the folder of a golden file."""
    name, inverse = FAMILIES[golden.stem]
    with open_file(golden) as file:
        g = Golden(file)
        config = inverse(g)
    g.left.pop("rope_freqs.weight", None)
    assert not g.left, f"not turned back: {sorted(g.left)}"
    path.mkdir(parents=True, exist_ok=True)
    config = {"architectures": [name], **config}
    if name.endswith("ConditionalGeneration"):
        config = {"architectures": [name], "text_config": {k: v for k, v in config.items() if k != "architectures"}}
    (path / "config.json").write_text(json.dumps(config))
    write_safetensors(path / "model.safetensors", g.out, "F32")
    settings = config.get("text_config", config)
    vocabulary(path, settings["vocab_size"], name)
    return path


def vocabulary(path: Path, n: int, name: str) -> None:
    """A token for each id: letters that mean nothing."""
    if name.lower().startswith("rwkv"):
        lines = [f"{i} {chr(0x100 + i)!r} {len(chr(0x100 + i).encode())}" for i in range(1, n)]
        (path / "rwkv_vocab_v20230424.txt").write_text("\n".join(lines) + "\n", "utf-8")
        return
    model = {"type": "BPE", "vocab": {chr(0x100 + i): i for i in range(n)}, "merges": []}
    splits = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}
    (path / "tokenizer.json").write_text(json.dumps({"pre_tokenizer": splits, "model": model, "added_tokens": []}))
