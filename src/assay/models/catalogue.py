"""The architectures: one row each, with the builder, the names of models, and the tensors of an example.

`load` finds the builder here. The names page, the page of models and the tests' random models are generated from the
other columns (`example_files.py` reads them). Touch this to add an architecture.
"""

from __future__ import annotations

from dataclasses import replace

from assay.models import (
    bert,
    classic,
    cohere,
    deepseek,
    gemma,
    gemma3n,
    gemma4,
    glm,
    gpt_oss,
    granite,
    kimi,
    lfm2,
    llama,
    llama4,
    mamba,
    nemotron,
    olmo,
    phi,
    qwen,
    qwen35,
    routed,
    rwkv,
)
from assay.models.example_files import Arch, Sizes, example, metadata, tensor_shapes

__all__ = ["ARCHITECTURES", "VARIANTS", "Arch", "Sizes", "example", "metadata", "tensor_shapes"]

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
_CONV = {"shortconv.l_cache": 3, "attention.head_count_kv": [0, 2, 0]}
_GDN = {
    "ssm.conv_kernel": 4, "ssm.state_size": 16, "ssm.time_step_rank": 4, "ssm.group_count": 2, "ssm.inner_size": 64,
    "full_attention_interval": 2,
}  # fmt: skip
_SSM2 = {
    "ssm.conv_kernel": 4, "ssm.state_size": 16, "ssm.time_step_rank": 8, "ssm.group_count": 2, "ssm.inner_size": 128,
}  # fmt: skip
_SSM1 = {"ssm.conv_kernel": 4, "ssm.state_size": 8, "ssm.time_step_rank": 4, "ssm.inner_size": 128}
_NO_HEADS = {"attention.head_count": 0, "attention.head_count_kv": 0}
_HYBRID = {"attention.head_count_kv": [0, 2, 0]}
_NEMOTRON = {**_SSM2, "attention.head_count_kv": [0, 0, 2], "feed_forward_length": [0, 128, 0]}
_KDA = {
    "attention.head_count_kv": [0, 1, 0], "ssm.conv_kernel": 4, "kda.head_dim": 16, "attention.kv_lora_rank": 32,
    "attention.key_length_mla": 24, "attention.value_length_mla": 16, **_GROUPS,
}  # fmt: skip
_WKV = {
    **_NO_HEADS, "wkv.head_size": 16, "attention.decay_lora_rank": 8, "attention.iclr_lora_rank": 8,
    "attention.value_residual_mix_lora_rank": 8, "attention.gate_lora_rank": 8, "time_decay_extra_dim": 8,
    "time_mix_extra_dim": 8, "token_shift_count": 2,
}  # fmt: skip
_LAYERS3 = replace(_E, n_layer=3)

ARCHITECTURES: dict[str, Arch] = {
    row.name: row
    for row in (
        Arch("llama", llama.llama, "Llama, TinyLlama, SmolLM2, Mistral, Mixtral", "PRE QKV GLU", top=_TIED),
        Arch("ernie4_5", llama.llama, "ERNIE 4.5 dense", "PRE QKV GLU", top=_TIED),
        Arch("internlm2", llama.llama, "InternLM 2", "PRE QKV GLU"),
        Arch("exaone", llama.exaone, "EXAONE 3", "PRE QKV GLU"),
        Arch("xverse", llama.llama, "XVERSE", "PRE QKV GLU"),
        Arch("baichuan", llama.baichuan, "Baichuan, Baichuan 2", "PRE QKV GLU", sizes=replace(_E, n_head_kv=4)),
        Arch("llama-embed", llama.llama_embed, "Llama as an encoder", "PRE QKV GLU", _ENCODER, top=_TIED),
        Arch("eurobert", llama.eurobert, "EuroBERT", "PRE QKV GLU", _ENCODER, top=_TIED),
        Arch("bitnet", llama.bitnet, "BitNet b1.58", "PRE QKV attn_sub_norm GLU ffn_sub_norm", top=_TIED),
        Arch("refact", llama.refact, "Refact-1.6B", "PRE QKV GLU", sizes=replace(_E, n_head_kv=1)),
        Arch("maincoder", llama.maincoder, "Maincoder-1B", "PRE QKV QKN GLU", top=_TIED),
        Arch("pangu-embedded", llama.exaone, "openPangu-Embedded", "PRE QKV+b GLU"),
        Arch("chatglm", llama.llama, "ChatGLM 3, GLM-4 (chat)", "PRE attn_qkv+b attn_output UP2",
             sizes=replace(_E, n_rot=8)),
        Arch("mistral3", llama.mistral3, "Ministral 3", "PRE QKV GLU", {
            "rope.scaling.type": "yarn", "rope.scaling.factor": 16.0, "rope.scaling.original_context_length": 128,
            "rope.scaling.yarn_log_multiplier": 1.0, "attention.temperature_scale": 0.1}),
        Arch("smollm3", llama.smollm3, "SmolLM3", "PRE QKV GLU", sizes=replace(_E, n_layer=4), top=_TIED),
        Arch("hunyuan-dense", llama.hunyuan, "Hunyuan dense", "PRE QKV QKN GLU", top=_TIED),
        Arch("granite", granite.granite, "Granite 3", "PRE QKV GLU", _SCALES, top=_TIED),
        Arch("granitemoe", granite.granitemoe, "Granite 3 with experts", "PRE QKV moe:EXPERTS moe:SH", _SCALES,
             replace(_MOE, n_ff_exp=128), _TIED),
        Arch("granite_swa", granite.granite_swa, "Granite 4 with windows", "PRE QKV attn_sinks GLU",
             {**_SCALES, **_LOCAL, "attention.sliding_window_pattern": [True, False, True],
              "attention.rope_pattern": [True, True, False]}, _LAYERS3, _TIED),
        Arch("minicpm", granite.minicpm, "MiniCPM", "PRE QKV GLU", top=_TIED),
        Arch("qwen2", qwen.qwen, "Qwen2, Qwen2.5, R1-Distill-Qwen", "PRE BIASED GLU", top=_TIED),
        Arch("qwen3", qwen.qwen, "Qwen3, Qwen3-Embedding", "PRE QKV QKN GLU", top=_TIED),
        Arch("qwen2moe", qwen.qwen2moe, "Qwen1.5-MoE, Qwen2-57B-A14B", "PRE BIASED EXPERTS SH ffn_gate_inp_shexp",
             sizes=_MOE),
        Arch("qwen3moe", qwen.qwen3moe, "Qwen3-30B-A3B, Qwen3-235B-A22B", "PRE QKV QKN EXPERTS", sizes=_MOE),
        Arch("qwen2vl", qwen.qwen_vl, "Qwen2-VL, Qwen2.5-VL (text)", "PRE BIASED GLU", _MROPE),
        Arch("qwen3vl", qwen.qwen3_vl, "Qwen3-VL (text)", "PRE QKV QKN GLU", _MROPE),
        Arch("qwen3vlmoe", qwen.qwen3_vl, "Qwen3-VL with experts (text)", "PRE QKV QKN EXPERTS", _MROPE, _MOE),
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
        Arch("minicpm3", deepseek.minicpm3, "MiniCPM 3",
             "PRE attn_q_a attn_q_a_norm attn_q_b attn_kv_a_mqa attn_kv_a_norm attn_kv_b attn_output:mla GLU",
             {"attention.q_lora_rank": 24, "attention.kv_lora_rank": 32,
              "rope.scaling.original_context_length": 1024},
             replace(_E, n_head_kv=4, n_embd_head=24, n_embd_head_v=16, n_rot=8),
             f"{_TIED} rope_factors_long rope_factors_short"),
        Arch("plm", deepseek.plm, "PLM", "PRE attn_q attn_kv_a_mqa attn_kv_a_norm attn_kv_b attn_output:mla MLP",
             {"attention.kv_lora_rank": 32}, replace(_E, n_head_kv=4, n_embd_head=24, n_embd_head_v=16, n_rot=8),
             _TIED),
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
        Arch("starcoder", classic.gpt2, "StarCoder, SantaCoder",
             "attn_norm+b ffn_norm+b attn_qkv+b attn_output+b MLP+b", sizes=replace(_E, n_head_kv=1),
             top=f"{_LN} output position_embd"),
        Arch("bloom", classic.bloom, "BLOOM", "attn_norm+b ffn_norm+b attn_qkv+b attn_output+b MLP+b",
             sizes=replace(_E, n_head_kv=4), top=f"{_LN} token_embd_norm+b output"),
        Arch("jais", classic.jais, "Jais", "attn_norm+b ffn_norm+b attn_qkv+b attn_output+b GLU+b",
             {"attention.max_alibi_bias": 8.0}, replace(_E, n_head_kv=4), f"{_LN} output"),
        Arch("gptneox", classic.gptneox, "Pythia, GPT-NeoX, RedPajama, Dolly",
             "attn_norm+b ffn_norm+b attn_qkv+b attn_output+b MLP+b", {"use_parallel_residual": True},
             replace(_E, n_head_kv=4, n_rot=4), f"{_LN} output"),
        Arch("phi2", classic.phi2, "Phi-1.5, Phi-2", "attn_norm+b attn_qkv+b attn_output+b MLP+b",
             sizes=replace(_E, n_head_kv=4, n_rot=8), top=f"{_LN} output+b"),
        Arch("codeshell", classic.starcoder2, "CodeShell", "attn_norm+b ffn_norm+b attn_qkv+b attn_output+b MLP+b",
             top=f"{_LN} output"),
        Arch("nemotron", classic.nemotron, "Nemotron 4, Minitron", "attn_norm+b ffn_norm+b QKV MLP",
             sizes=replace(_E, n_rot=8), top=f"{_LN} output"),
        Arch("jais2", classic.nemotron, "Jais 2", "attn_norm+b ffn_norm+b QKV+b MLP+b", sizes=replace(_E, n_head_kv=4),
             top=f"{_LN} output"),
        Arch("orion", classic.orion, "Orion-14B", "attn_norm+b ffn_norm+b QKV GLU", top=f"{_LN} output"),
        Arch("bert", bert.bert, "BERT, bge, MiniLM", "QKV+b attn_output_norm+b layer_output_norm+b MLP+b", _ENCODER,
             replace(_E, n_head_kv=4), "token_embd token_embd_norm+b token_types position_embd"),
        Arch("nomic-bert", bert.nomic_bert, "nomic-embed-text", "attn_qkv attn_output attn_output_norm+b "
             "layer_output_norm+b GLU", {**_ENCODER, "rope.freq_base": 1000.0}, replace(_E, n_head_kv=4),
             "token_embd token_embd_norm+b token_types"),
        Arch("lfm2", lfm2.lfm2, "LFM2, LFM2.5", "PRE GLU ssm:CONV att:QKV att:QKN", _CONV, _LAYERS3,
             "token_embd token_embd_norm"),
        Arch("lfm2moe", lfm2.lfm2, "LFM2-8B-A1B",
             "PRE ssm:CONV att:QKV att:QKN dense:GLU moe:EXPERTS moe:exp_probs_b+only",
             {**_CONV, "expert_gating_func": 2, "leading_dense_block_count": 1}, replace(_MOE, n_layer=3),
             "token_embd token_embd_norm"),
        Arch("qwen35", qwen35.qwen35, "Qwen3.5, Qwen3.6", "attn_norm post_attention_norm GLU ssm:GDN ssm:AB att:GATED",
             {**_GDN, **_MROPE}, replace(_E, n_rot=8), _TIED),
        Arch("qwen35moe", qwen35.qwen35, "Qwen3.5-35B-A3B, Qwen3.6-35B-A3B",
             "attn_norm post_attention_norm EXPERTS SH ffn_gate_inp_shexp ssm:GDN ssm:AB att:GATED",
             {**_GDN, **_MROPE}, replace(_MOE, n_rot=8)),
        Arch("qwen3next", qwen35.qwen3next, "Qwen3-Next-80B-A3B",
             "attn_norm post_attention_norm EXPERTS SH ffn_gate_inp_shexp ssm:GDN ssm:ssm_ba att:GATED",
             _GDN, replace(_MOE, n_rot=8)),
        Arch("mamba2", mamba.mamba2, "Mamba-2, Codestral-Mamba", "attn_norm MAMBA2",
             {**_SSM2, **_NO_HEADS, "feed_forward_length": 0}, top=_TIED),
        Arch("granitehybrid", granite.granitehybrid, "Granite 4", "PRE GLU ssm:MAMBA2 att:QKV",
             {**_SSM2, **_HYBRID, **_SCALES, "rope.scaling.finetuned": False}, _LAYERS3, _TIED),
        Arch("nemotron_h", nemotron.nemotron_h, "Nemotron Nano 2", "attn_norm ssm:MAMBA2 att:QKV ffn:MLP",
             _NEMOTRON, _LAYERS3),
        Arch("nemotron_h_moe", nemotron.nemotron_h, "Nemotron 3", "attn_norm ssm:MAMBA2 att:QKV ffn:LATENT",
             {**_NEMOTRON, "expert_weights_norm": True, "expert_weights_scale": 2.5, "moe_latent_size": 24},
             replace(_MOE, n_layer=3)),
        Arch("falcon-h1", mamba.falcon_h1, "Falcon-H1", "attn_norm ffn_norm+bare QKV MAMBA2 GLU", _SSM2),
        Arch("kimi-linear", kimi.kimi_linear, "Kimi-Linear-48B-A3B",
             "PRE ssm:KDA att:MLA_Q dense:GLU moe:EXPERTS moe:exp_probs_b+only moe:SH", _KDA,
             replace(_MOE, n_layer=3, n_embd_head=40, n_embd_head_v=32, n_rot=8)),
        Arch("mamba", mamba.mamba, "Mamba, Falcon-Mamba", "attn_norm MAMBA1",
             {**_SSM1, **_NO_HEADS, "feed_forward_length": 0}, top=_TIED),
        Arch("jamba", mamba.jamba, "Jamba", "PRE ssm:MAMBA1 ssm:DBC att:QKV dense:GLU moe:EXPERTS",
             {**_SSM1, **_HYBRID, "leading_dense_block_count": 1}, replace(_MOE, n_layer=3, n_ff_exp=128)),
        Arch("rwkv7", rwkv.rwkv7, "RWKV-7 World", "attn_norm+b attn_norm_2+b RWKV RWKV7", _WKV,
             top="token_embd token_embd_norm+b output_norm+b output"),
        Arch("rwkv6", rwkv.rwkv6, "RWKV-6 World", "attn_norm+b attn_norm_2+b RWKV RWKV6",
             {**_WKV, "rescale_every_n_layers": 2}, top="token_embd token_embd_norm+b output_norm+b output"),
        Arch("minimax-m2", routed.minimax_m2, "MiniMax-M2",
             "PRE QKV attn_q_norm:wide attn_k_norm:wide EXPERTS exp_probs_b+only", {"expert_gating_func": 2},
             replace(_MOE, n_rot=8, n_ff_exp=128)),
        Arch("ernie4_5-moe", routed.ernie_moe, "ERNIE 4.5 with experts", "PRE QKV dense:GLU moe:EXPERTS moe:SH",
             {"interleave_moe_layer_step": 1, "leading_dense_block_count": 1}, _MOE, _TIED),
        Arch("dbrx", routed.dbrx, "DBRX", "attn_norm attn_output_norm attn_qkv attn_output EXPERTS",
             {"attention.clamp_kqv": 2.0}, replace(_MOE, n_ff_exp=128)),
        Arch("hunyuan-moe", routed.hunyuan_moe, "Hunyuan-A13B", "PRE QKV QKN EXPERTS SH",
             sizes=replace(_MOE, n_ff_exp=128), top=_TIED),
        Arch("bailingmoe2", routed.bailing_moe2, "Ling 2, Ring 2",
             "PRE attn_qkv attn_output QKN dense:GLU moe:EXPERTS moe:exp_probs_b+only moe:SH",
             {**_GROUPS, "expert_group_count": 4, "expert_group_used_count": 2}, replace(_MOE, n_rot=8)),
        Arch("bailingmoe", routed.bailing_moe, "Ling, Ling-Coder", "PRE QKV EXPERTS SH",
             {"expert_weights_norm": True, "expert_shared_count": 1, "expert_weights_scale": 1.0},
             replace(_MOE, n_ff_shexp=32)),
        Arch("deepseek", routed.deepseek, "DeepSeek MoE 16B", "PRE QKV dense:GLU moe:EXPERTS moe:SH",
             {"leading_dense_block_count": 1, "expert_shared_count": 1, "expert_weights_scale": 1.0},
             replace(_MOE, n_ff_shexp=32)),
        Arch("hy_v3", routed.hy_v3, "Hunyuan 3",
             "PRE QKV QKN dense:GLU moe:EXPERTS moe:exp_probs_b+bare moe:SH", _GROUPS, _MOE),
        Arch("mellum", routed.mellum, "Mellum 2", "PRE QKV QKN EXPERTS", _LOCAL, replace(_MOE, n_layer=4)),
        Arch("exaone-moe", routed.exaone_moe, "K-EXAONE",
             "PRE QKV QKN dense:GLU moe:EXPERTS moe:exp_probs_b+only moe:SH", {**_GROUPS, **_LOCAL},
             replace(_MOE, n_layer=4)),
        Arch("afmoe", routed.afmoe, "Trinity",
             "PRE POST QKV QKN attn_gate:heads dense:GLU moe:EXPERTS moe:exp_probs_b+only moe:SH",
             {**_GROUPS, **_LOCAL}, replace(_MOE, n_layer=4, n_ff_shexp=32)),
        Arch("dots1", routed.dots1, "dots.llm1",
             "PRE QKV QKN dense:GLU moe:EXPERTS moe:exp_probs_b+only moe:SH", _GROUPS,
             replace(_MOE, n_head_kv=4, n_ff_shexp=32)),
        Arch("apertus", qwen.apertus, "Apertus", "PRE QKV QKN MLP",
             {"xielu.alpha_p": 0.5, "xielu.alpha_n": 0.3, "xielu.beta": 0.5, "xielu.eps": -1e-6}),
        Arch("arcee", llama.arcee, "AFM-4.5B", "PRE QKV MLP", top=_TIED),
        Arch("mistral4", deepseek.deepseek2, "Mistral 4",
             "PRE MLA dense:GLU moe:EXPERTS moe:exp_probs_b+only moe:SH",
             {**_MLA, "attention.temperature_scale": 0.1, "attention.temperature_length": 16},
             replace(_MOE, n_layer=2, n_head_kv=1, n_embd_head=40, n_embd_head_v=32, n_rot=8)),
        Arch("gemma3n", gemma3n.gemma3n, "Gemma 3n",
             "PRE POST QKV QKN GLU inp_gate proj post_norm ALTUP", {**_LOCAL, "rope.freq_base": 1e6},
             replace(_E, n_per_layer=256),
             f"{_TIED} per_layer_token_embd per_layer_model_proj per_layer_proj_norm altup_proj altup_unembd_proj"),
        Arch("modern-bert", bert.modern_bert, "ModernBERT", "later:attn_norm ffn_norm attn_qkv attn_output UP2",
             {**_ENCODER, **_LOCAL, "rope.freq_base": 160000.0, "rope.freq_base_swa": 10000.0},
             replace(_E, n_layer=4, n_head_kv=4), "token_embd token_embd_norm output_norm"),
        Arch("jina-bert-v3", bert.jina_bert3, "jina-embeddings-v3",
             "attn_qkv+b attn_output+b attn_output_norm+b layer_output_norm+b MLP+b", _ENCODER,
             replace(_E, n_head_kv=4), "token_embd token_embd_norm+b token_types"),
        Arch("nomic-bert-moe", bert.jina_bert3, "nomic-embed-text-v2",
             "attn_qkv+b attn_output+b attn_output_norm+b layer_output_norm+b dense:MLP+b moe:ffn_gate_inp "
             "moe:ffn_up_exps moe:ffn_down_exps",
             {**_ENCODER, "moe_every_n_layers": 2},
             replace(_MOE, n_head_kv=4, n_ff_exp=128), "token_embd token_embd_norm+b token_types"),
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
    "qwen35 with a draft head": replace(
        ARCHITECTURES["qwen35"],
        blocks="attn_norm post_attention_norm GLU ssm:GDN ssm:AB att:GATED draft:NEXTN",
        keys={**_GDN, **_MROPE, "nextn_predict_layers": 1},
        sizes=replace(_E, n_layer=3, n_rot=8),
    ),
    "qwen3next with one matrix for q, k, v, z": replace(
        ARCHITECTURES["qwen3next"],
        blocks="attn_norm post_attention_norm EXPERTS SH ffn_gate_inp_shexp ssm:ssm_in:gdn ssm:ssm_conv1d:gdn "
        "ssm:ssm_dt+only ssm:ssm_a+bare ssm:ssm_norm ssm:ssm_out ssm:ssm_ba att:GATED",
    ),
    "gptneox in sequence": replace(ARCHITECTURES["gptneox"], keys={"use_parallel_residual": False}),
    "falcon with two norms": replace(
        ARCHITECTURES["falcon"], blocks="attn_norm+b attn_norm_2+b attn_qkv attn_output MLP"
    ),
}
