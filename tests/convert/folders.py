"""Tiny models as Hugging Face publishes them: configurations, random weights, and vocabularies made by hand."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np

N_VOCAB, N_EMBD, N_FF, N_HEAD, N_KV, WIDTH, LAYERS = 300, 64, 96, 4, 2, 16, 2
_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2 = rf"(?i:'s|'t|'re|'ve|'m|'ll|'d)|{_WORDS}|\p{{N}}|{_REST}"
LLAMA3 = rf"(?i:'s|'t|'re|'ve|'m|'ll|'d)|{_WORDS}|\p{{N}}{{1,3}}|{_REST}"

COMMON: dict[str, Any] = {
    "vocab_size": N_VOCAB, "hidden_size": N_EMBD, "intermediate_size": N_FF, "num_hidden_layers": LAYERS,
    "num_attention_heads": N_HEAD, "num_key_value_heads": N_KV, "max_position_embeddings": 256, "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0, "bos_token_id": 264, "eos_token_id": 265, "tie_word_embeddings": False, "hidden_act": "silu",
}  # fmt: skip
GEMMA: dict[str, Any] = {
    "head_dim": 24, "hidden_activation": "gelu_pytorch_tanh", "tie_word_embeddings": True, "query_pre_attn_scalar": 24,
    "sliding_window": 8,
}  # fmt: skip
EXPERTS: dict[str, Any] = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "norm_topk_prob": True,
}

LAYER_NORM: dict[str, Any] = {"rms_norm_eps": None}  # theirs has another name

# title: architecture, settings, element type, vocabulary
MODELS: dict[str, tuple[str, dict[str, Any], str, str]] = {
    "llama": ("LlamaForCausalLM", {}, "F16", "spm"),
    "llama 3": ("LlamaForCausalLM", {
        "rope_theta": 500000.0, "attention_bias": True,
        "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                         "original_max_position_embeddings": 64}}, "BF16", LLAMA3),
    "mistral": ("MistralForCausalLM", {"head_dim": 24, "sliding_window": None}, "BF16", "spm"),
    "mixtral": ("MixtralForCausalLM", {"num_local_experts": 4, "num_experts_per_tok": 2}, "BF16", "spm"),
    "qwen2": ("Qwen2ForCausalLM", {"tie_word_embeddings": True}, "BF16", QWEN2),
    "qwen3": ("Qwen3ForCausalLM", {"head_dim": 24}, "BF16", QWEN2),
    "qwen3moe": ("Qwen3MoeForCausalLM", {**EXPERTS, "head_dim": 16, "decoder_sparse_step": 1, "mlp_only_layers": []},
                 "BF16", QWEN2),
    "gemma": ("GemmaForCausalLM", {**GEMMA, "hidden_act": "gelu_pytorch_tanh"}, "BF16", "spm"),
    "gemma2": ("Gemma2ForCausalLM", {**GEMMA, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
               "F32", "spm"),
    "gemma3": ("Gemma3ForCausalLM", {**GEMMA, "sliding_window_pattern": 6, "rope_theta": 1e6,
                                     "rope_local_base_freq": 10000.0}, "BF16", "spm"),
    "phi3": ("Phi3ForCausalLM", {"original_max_position_embeddings": 256, "pad_token_id": 0, "sliding_window": 64},
             "BF16", "spm"),
    "smollm3": ("SmolLM3ForCausalLM", {"pad_token_id": 0, "tie_word_embeddings": True}, "BF16", LLAMA3),
    "granite": ("GraniteForCausalLM", {"attention_multiplier": 0.0625, "embedding_multiplier": 12.0,
                                       "residual_multiplier": 0.22, "logits_scaling": 8.0}, "BF16", LLAMA3),
    "seed_oss": ("SeedOssForCausalLM", {"head_dim": 24, "attention_bias": True, "attention_out_bias": False}, "BF16",
                 LLAMA3),
    "olmo2": ("Olmo2ForCausalLM", {}, "BF16", LLAMA3),
    "olmoe": ("OlmoeForCausalLM", {"num_experts": 4, "num_experts_per_tok": 2, "intermediate_size": 32,
                                   "norm_topk_prob": False}, "BF16", LLAMA3),
    "starcoder2": ("Starcoder2ForCausalLM", {**LAYER_NORM, "norm_epsilon": 1e-5, "use_bias": True,
                                             "attention_bias": True, "tie_word_embeddings": True,
                                             "hidden_act": "gelu_pytorch_tanh"}, "BF16", LLAMA3),
    "stablelm": ("StableLmForCausalLM", {**LAYER_NORM, "layer_norm_eps": 1e-5, "partial_rotary_factor": 0.25,
                                         "use_qkv_bias": True}, "BF16", LLAMA3),
    "command-r": ("CohereForCausalLM", {**LAYER_NORM, "layer_norm_eps": 1e-5, "logit_scale": 0.0625,
                                        "tie_word_embeddings": True}, "F16", LLAMA3),
    "smollm": ("LlamaForCausalLM", {"tie_word_embeddings": True}, "F32", "digits"),
}  # fmt: skip


def make(path: Path, title: str) -> Path:
    """Write the folder."""
    name, settings, kind, vocab = MODELS[title]
    config = {**COMMON, **settings, "architectures": [name], "model_type": _model_type(name)}
    if config["rms_norm_eps"] is None:
        del config["rms_norm_eps"]
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(config))
    rng = np.random.default_rng(7)
    tensors = {
        key: (rng.standard_normal(shape) * 0.2).astype(np.float32) for key, shape in shapes(name, config).items()
    }
    write_safetensors(path / "model.safetensors", tensors, kind)
    sentencepiece(path) if vocab == "spm" else byte_level(path, vocab)
    return path


def _model_type(name: str) -> str:
    return {
        "Gemma3ForCausalLM": "gemma3_text", "Qwen3MoeForCausalLM": "qwen3_moe", "SeedOssForCausalLM": "seed_oss",
    }.get(name, name.removesuffix("ForCausalLM").lower())  # fmt: skip


NORMS = {
    "Olmo2ForCausalLM": ("post_attention_layernorm", "post_feedforward_layernorm"),
    "CohereForCausalLM": ("input_layernorm",),
}


def shapes(name: str, config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    width = config.get("head_dim") or N_EMBD // N_HEAD
    q, kv = N_HEAD * width, N_KV * width
    layer: dict[str, tuple[int, ...]] = {
        f"{norm}.weight": (N_EMBD,) for norm in NORMS.get(name, ("input_layernorm", "post_attention_layernorm"))
    }
    if name in ("Starcoder2ForCausalLM", "StableLmForCausalLM"):
        layer |= {key.replace(".weight", ".bias"): shape for key, shape in layer.items()}
    if name == "Phi3ForCausalLM":
        layer |= {"self_attn.qkv_proj.weight": (q + 2 * kv, N_EMBD), "mlp.gate_up_proj.weight": (2 * N_FF, N_EMBD)}
    else:
        layer |= {f"self_attn.{p}_proj.weight": (n, N_EMBD) for p, n in (("q", q), ("k", kv), ("v", kv))}
    if name in ("Qwen2ForCausalLM", "StableLmForCausalLM") or config.get("attention_bias"):
        layer |= {f"self_attn.{p}_proj.bias": (n,) for p, n in (("q", q), ("k", kv), ("v", kv))}
    if config.get("attention_bias") and config.get("attention_out_bias", True):
        layer["self_attn.o_proj.bias"] = (N_EMBD,)
    if name.startswith(("Qwen3", "Gemma3")):
        layer |= {f"self_attn.{p}_norm.weight": (width,) for p in "qk"}
    if name.startswith("Olmo"):
        layer |= {"self_attn.q_norm.weight": (q,), "self_attn.k_norm.weight": (kv,)}
    if name.startswith(("Gemma2", "Gemma3")):
        layer |= {f"{p}_feedforward_layernorm.weight": (N_EMBD,) for p in ("pre", "post")}
    layer["self_attn.o_proj.weight"] = (N_EMBD, q)
    if "num_local_experts" in config:
        layer["block_sparse_moe.gate.weight"] = (4, N_EMBD)
        for e in range(4):
            layer |= {f"block_sparse_moe.experts.{e}.{w}.weight": (N_FF, N_EMBD) for w in ("w1", "w3")}
            layer[f"block_sparse_moe.experts.{e}.w2.weight"] = (N_EMBD, N_FF)
    elif "num_experts" in config:
        layer["mlp.gate.weight"] = (4, N_EMBD)
        for e in range(4):
            layer |= {f"mlp.experts.{e}.{w}_proj.weight": (32, N_EMBD) for w in ("gate", "up")}
            layer[f"mlp.experts.{e}.down_proj.weight"] = (N_EMBD, 32)
    elif name == "Starcoder2ForCausalLM":
        layer |= {"mlp.c_fc.weight": (N_FF, N_EMBD), "mlp.c_fc.bias": (N_FF,)}
        layer |= {"mlp.c_proj.weight": (N_EMBD, N_FF), "mlp.c_proj.bias": (N_EMBD,)}
    else:
        if name != "Phi3ForCausalLM":
            layer |= {f"mlp.{w}_proj.weight": (N_FF, N_EMBD) for w in ("gate", "up")}
        layer["mlp.down_proj.weight"] = (N_EMBD, N_FF)
    found: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (N_VOCAB, N_EMBD), "model.norm.weight": (N_EMBD,)}
    if "input_layernorm.bias" in layer:
        found["model.norm.bias"] = (N_EMBD,)
    found |= {f"model.layers.{i}.{key}": shape for i in range(LAYERS) for key, shape in layer.items()}
    return found if config["tie_word_embeddings"] else {**found, "lm_head.weight": (N_VOCAB, N_EMBD)}


def write_safetensors(path: Path, tensors: dict[str, np.ndarray], kind: str) -> None:
    """Values are rounded to the element type, to nearest even."""
    header, parts, at = {}, [], 0
    for name, x in tensors.items():
        if kind == "BF16":
            bits = x.view(np.uint32)
            raw = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype("<u2").tobytes()
        else:
            raw = x.astype({"F16": "<f2", "F32": "<f4"}[kind]).tobytes()
        header[name] = {"dtype": kind, "shape": list(x.shape), "data_offsets": [at, at + len(raw)]}
        parts.append(raw)
        at += len(raw)
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(parts))


def _bytes_to_text() -> list[str]:
    """The byte-level alphabet: printable bytes stand for themselves, the others follow from U+0100 on."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    found, n = [], 0
    for byte in range(256):
        found.append(chr(byte) if byte in plain else chr(256 + n))
        n += byte not in plain
    return found


ADDED = ("<|endoftext|>", "<|im_end|>", "<|im_start|>", "<tool>")
TEMPLATE = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"


def byte_level(path: Path, regex: str) -> None:
    alphabet = _bytes_to_text()
    merges = [("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o"), ("Ġ", "w"), ("o", "r"), ("Ġw", "or"), ("1", "2")]
    vocab = {text: i for i, text in enumerate(alphabet)}
    vocab |= {a + b: 256 + i for i, (a, b) in enumerate(merges)}
    byte = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": regex == "digits"}
    split: dict[str, Any] = {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}
    if regex == "digits":
        split = {"type": "Digits", "individual_digits": True}
    added = [
        {"id": len(vocab) + i, "content": text, "single_word": False, "lstrip": False, "rstrip": False,
         "normalized": False, "special": i < 2} for i, text in enumerate(ADDED)
    ]  # fmt: skip
    model = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
             "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
             "vocab": vocab, "merges": [f"{a} {b}" for a, b in merges]}  # fmt: skip
    tokenizer = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte]},
        "post_processor": byte, "decoder": byte, "model": model,
    }  # fmt: skip
    (path / "tokenizer.json").write_text(json.dumps(tokenizer))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": ADDED[0], "eos_token": ADDED[1],
              "pad_token": ADDED[0], "chat_template": TEMPLATE}  # fmt: skip
    (path / "tokenizer_config.json").write_text(json.dumps(config))


def _field(number: int, raw: bytes) -> bytes:
    return bytes([number << 3 | 2, len(raw)]) + raw


def sentencepiece(path: Path) -> None:
    """A model of pieces with scores; the last seven ids have no piece."""
    pieces = [("<unk>", 0.0, 2), ("<s>", 0.0, 3), ("</s>", 0.0, 3), *((f"<0x{i:02X}>", 0.0, 6) for i in range(256))]
    words = ["▁", *"helowrdabc", "▁h", "▁he", "ll", "▁hell", "▁hello", "or", "▁w", "▁wor", "▁worl", "▁world"]
    pieces += [(word, -float(i), 1) for i, word in enumerate(words)]
    data = b"".join(
        _field(1, _field(1, text.encode()) + b"\x15" + struct.pack("<f", score) + bytes([0x18, kind]))
        for text, score, kind in pieces
    )
    data += _field(2, b"\x18\x02\x98\x02\x01")  # trained as BPE, bytes for what is missing
    (path / "tokenizer.model").write_bytes(data)
    decoder = {"290": {"content": "<|im_start|>", "special": True}, "291": {"content": "<tool>", "special": False}}
    config = {"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>",
              "add_bos_token": True, "add_eos_token": False, "added_tokens_decoder": decoder,
              "chat_template": TEMPLATE}  # fmt: skip
    (path / "tokenizer_config.json").write_text(json.dumps(config))
    settings = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**settings, "bos_token_id": 1, "eos_token_id": 2}))
