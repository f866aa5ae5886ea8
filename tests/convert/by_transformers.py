"""Tiny models made by transformers itself, for the families of test_families.py: configurations and random weights.

Weights are drawn so that every tensor matters. transformers writes the folder as it publishes models, and computes the
logits that the converted file must give.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

SIZES: dict[str, Any] = {
    "vocab_size": 300, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 256,
}  # fmt: skip
ROUTED: dict[str, Any] = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}
GDN: dict[str, Any] = {
    "head_dim": 32, "linear_num_key_heads": 2, "linear_num_value_heads": 6, "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
}  # fmt: skip
MROPE = {"rope_type": "default", "rope_theta": 1e6, "partial_rotary_factor": 0.25, "mrope_section": [2, 1, 1],
         "mrope_interleaved": True}  # fmt: skip
SCAN: dict[str, Any] = {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 16, "mamba_expand": 2}
NEMOTRON: dict[str, Any] = {
    "head_dim": 16, "mamba_num_heads": 8, "mamba_head_dim": 12, "n_groups": 2, "ssm_state_size": 16,
}  # fmt: skip
FALCON: dict[str, Any] = {
    "head_dim": 16, "mamba_d_ssm": 96, "mamba_n_heads": 6, "mamba_d_head": 16, "mamba_d_state": 16, "mamba_n_groups": 2,
    "embedding_multiplier": 3.0, "lm_head_multiplier": 0.4,
}  # fmt: skip
MLA: dict[str, Any] = {"num_key_value_heads": 4, "kv_lora_rank": 16, "qk_nope_head_dim": 8}
SHORT: dict[str, Any] = {"layer_types": ["conv", "full_attention", "conv", "full_attention"], "conv_L_cache": 3}

# title: the configuration's class, the model's class, settings
MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "lfm2": ("Lfm2Config", "Lfm2ForCausalLM", {**SHORT, "block_multiple_of": 32}),
    "lfm2moe": ("Lfm2MoeConfig", "Lfm2MoeForCausalLM", {
        **SHORT, **ROUTED, "num_dense_layers": 1, "num_experts": 4, "use_expert_bias": True, "norm_topk_prob": True}),
    "qwen35": ("Qwen3_5TextConfig", "Qwen3_5ForCausalLM", {**GDN, "rope_parameters": MROPE}),
    "qwen35moe": ("Qwen3_5MoeTextConfig", "Qwen3_5MoeForCausalLM", {
        **GDN, **ROUTED, "rope_parameters": MROPE, "num_experts": 4, "shared_expert_intermediate_size": 48,
        "layer_types": ["linear_attention", "full_attention", "linear_attention", "linear_attention"]}),
    "qwen3next": ("Qwen3NextConfig", "Qwen3NextForCausalLM", {
        **GDN, **ROUTED, "num_experts": 4, "shared_expert_intermediate_size": 48, "partial_rotary_factor": 0.25}),
    "mamba2": ("Mamba2Config", "Mamba2ForCausalLM", {
        "num_heads": 8, "head_dim": 16, "state_size": 16, "n_groups": 2, "expand": 2, "tie_word_embeddings": False}),
    "mamba": ("MambaConfig", "MambaForCausalLM", {"intermediate_size": 128, "state_size": 8}),
    "falcon-mamba": ("FalconMambaConfig", "FalconMambaForCausalLM", {"intermediate_size": 128, "state_size": 8}),
    "granitehybrid": ("GraniteMoeHybridConfig", "GraniteMoeHybridForCausalLM", {
        **SCAN, "layer_types": ["mamba", "attention", "mamba", "mamba"], "num_local_experts": 4, "mamba_n_groups": 2,
        "num_experts_per_tok": 2, "shared_intermediate_size": 80, "embedding_multiplier": 12.0, "logits_scaling": 8.0,
        "residual_multiplier": 0.22, "attention_multiplier": 0.1, "position_embedding_type": None}),
    "granitehybrid, dense and turned": ("GraniteMoeHybridConfig", "GraniteMoeHybridForCausalLM", {
        **SCAN, "layer_types": ["mamba", "attention", "mamba", "mamba"], "num_local_experts": 0, "mamba_n_groups": 1,
        "shared_intermediate_size": 80, "position_embedding_type": "rope", "tie_word_embeddings": True}),
    "nemotron_h": ("NemotronHConfig", "NemotronHForCausalLM", {
        **NEMOTRON, "layers_block_type": ["mamba", "mlp", "attention", "mamba"]}),
    "nemotron_h_moe": ("NemotronHConfig", "NemotronHForCausalLM", {
        **NEMOTRON, **ROUTED, "layers_block_type": ["mamba", "moe", "attention", "moe"], "n_routed_experts": 4,
        "moe_shared_expert_intermediate_size": 48, "n_shared_experts": 1, "n_group": 1, "topk_group": 1,
        "norm_topk_prob": True, "routed_scaling_factor": 2.5, "moe_latent_size": 24}),
    "falcon-h1": ("FalconH1Config", "FalconH1ForCausalLM", {
        **FALCON, "mamba_rms_norm": True, "mamba_norm_before_gate": False, "attention_in_multiplier": 1.3,
        "attention_out_multiplier": 0.7, "key_multiplier": 0.6, "mlp_multipliers": [0.9, 1.2], "ssm_in_multiplier": 1.1,
        "ssm_out_multiplier": 0.8, "ssm_multipliers": [0.5, 0.6, 0.7, 0.8, 0.9]}),
    "falcon-h1, tied": ("FalconH1Config", "FalconH1ForCausalLM", {
        **FALCON, "mamba_rms_norm": False, "tie_word_embeddings": True}),
    "kimi-linear": ("KimiLinearConfig", "KimiLinearForCausalLM", {
        **MLA, "q_lora_rank": None, "qk_rope_head_dim": 4, "v_head_dim": 8, "num_experts": 4,
        "moe_intermediate_size": 32, "num_experts_per_token": 2, "num_shared_experts": 1, "first_k_dense_replace": 1,
        "routed_scaling_factor": 2.4,
        "linear_attn_config": {"full_attn_layers": [2, 4], "kda_layers": [1, 3], "short_conv_kernel_size": 4,
                               "head_dim": 16, "num_heads": 4}}),
    "jamba": ("JambaConfig", "JambaForCausalLM", {
        "num_experts": 4, "num_experts_per_tok": 2, "expert_layer_period": 2, "expert_layer_offset": 1,
        "attn_layer_period": 4, "attn_layer_offset": 2, "mamba_d_state": 8, "mamba_dt_rank": 4,
        "use_mamba_kernels": False}),
    "minimax-m2": ("MiniMaxM2Config", "MiniMaxM2ForCausalLM", {
        "head_dim": 32, "num_local_experts": 4, "num_experts_per_tok": 2, "rotary_dim": 16,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "partial_rotary_factor": 0.5}}),
    "ernie4_5-moe": ("Ernie4_5_MoeConfig", "Ernie4_5_MoeForCausalLM", {
        "moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 32, "moe_num_shared_experts": 2,
        "moe_layer_start_index": 1, "moe_layer_interval": 1}),
    "hunyuan-moe": ("HunYuanMoEV1Config", "HunYuanMoEV1ForCausalLM", {
        "head_dim": 16, "num_experts": 4, "moe_topk": [2] * 4, "moe_intermediate_size": [96] * 4,
        "num_shared_expert": [1] * 4}),
    "apertus": ("ApertusConfig", "ApertusForCausalLM", {
        "hidden_act": "xielu",
        "rope_parameters": {"rope_type": "llama3", "rope_theta": 12e6, "factor": 8.0, "low_freq_factor": 1.0,
                            "high_freq_factor": 4.0, "original_max_position_embeddings": 64}}),
    "dots1": ("Dots1Config", "Dots1ForCausalLM", {
        **ROUTED, "num_key_value_heads": 4, "head_dim": 16, "n_routed_experts": 4, "n_shared_experts": 2,
        "first_k_dense_replace": 1, "norm_topk_prob": True, "routed_scaling_factor": 2.5}),
    "arcee": ("ArceeConfig", "ArceeForCausalLM", {"head_dim": 16}),
    "mistral4": ("Mistral4Config", "Mistral4ForCausalLM", {
        **MLA, **ROUTED, "q_lora_rank": 24, "qk_rope_head_dim": 8, "v_head_dim": 12, "qk_head_dim": 16,
        "n_routed_experts": 4, "n_shared_experts": 1, "first_k_dense_replace": 0, "norm_topk_prob": True}),
    "gemma3n": ("Gemma3nTextConfig", "Gemma3nForCausalLM", {
        "vocab_size_per_layer_input": 300, "num_hidden_layers": 25, "intermediate_size": [96] * 25, "head_dim": 16,
        "num_kv_shared_layers": 5, "sliding_window": 5, "activation_sparsity_pattern": [0.95] * 10 + [0.0] * 15,
        "layer_types": (["sliding_attention"] * 4 + ["full_attention"]) * 5}),
    "modern-bert": ("ModernBertConfig", "ModernBertModel", {
        "local_attention": 6, "cls_token_id": 1, "sep_token_id": 2}),
}  # fmt: skip
TOKENS = [1, 5, 99, 260, 261, 7, 40, 41, 100, 3, 17, 262, 5, 6, 7, 8, 9, 200, 201, 150, 33, 77, 12, 1]


def make(path: Path, title: str) -> np.ndarray:
    """Write the folder; returns the logits, or an encoder's rows."""
    import torch
    import transformers

    config_class, model_class, settings = MODELS[title]
    ids = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    config = getattr(transformers, config_class)(**{**SIZES, **ids, **settings})
    config._attn_implementation = "eager"
    torch.manual_seed(0)
    net = getattr(transformers, model_class)(config).float().eval()
    fixed = {name for name, _ in net.named_buffers() if not name.endswith("bias")}
    with torch.no_grad():
        for name, values in (*net.named_parameters(), *net.named_buffers()):
            if name not in fixed and values.is_floating_point() and "act_fn" not in name:
                values.copy_(_drawn(torch, name, values))
        if config.tie_word_embeddings:
            net.tie_weights()
        path.mkdir(parents=True, exist_ok=True)
        net.save_pretrained(path)
        result = net(torch.tensor([TOKENS]))
    rows = result.logits if hasattr(result, "logits") else result.last_hidden_state
    return np.asarray(rows[0].float().numpy())


def _drawn(torch: Any, name: str, values: Any) -> Any:
    noise = torch.randn_like(values)
    if name.endswith("A_log"):
        return torch.log(1 + 15 * torch.rand_like(values))
    if values.ndim >= 2:
        return noise * (0.5 if "embed" in name else 1.2 / values.shape[-1] ** 0.5)
    return 0.3 * noise if name.endswith("bias") else values + 0.2 * noise  # norms, skips
