"""The cases of `bench/stock_server.py`: a server of llama.cpp, honest or with one thing changed.

Options have the names of xllamacpp's settings, which are those of llama.cpp's source. `FLAGS` has llama-server's flags
for them, and `PYTHON_NAMES` the options of llama-cpp-python's server. A proxy changes what no option of the server can.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from assay.text.builtin import TEMPLATES

FLAGS = {
    "n_threads": "--threads", "n_ctx": "--ctx-size", "n_parallel": "--parallel", "n_batch": "--batch-size",
    "n_ubatch": "--ubatch-size", "cache_prompt": "--cache-prompt", "kv_unified": "--kv-unified",
    "cache_type_k": "--cache-type-k", "cache_type_v": "--cache-type-v", "flash_attn_type": "--flash-attn",
    "no_extra_bufts": "--no-repack", "swa_full": "--swa-full", "ctx_shift": "--context-shift",
    "n_cache_reuse": "--cache-reuse", "n_predict": "--predict", "rope_freq_base": "--rope-freq-base",
    "rope_freq_scale": "--rope-freq-scale", "rope_scaling_type": "--rope-scaling", "chat_template": "--chat-template",
    "yarn_orig_ctx": "--yarn-orig-ctx",
    "temp": "sampling:--temp", "top_k": "sampling:--top-k", "top_p": "sampling:--top-p", "min_p": "sampling:--min-p",
    "penalty_repeat": "sampling:--repeat-penalty", "penalty_freq": "sampling:--frequency-penalty",
    "penalty_present": "sampling:--presence-penalty", "dry_multiplier": "sampling:--dry-multiplier",
    "xtc_probability": "sampling:--xtc-probability", "typ_p": "sampling:--typical", "mirostat": "sampling:--mirostat",
    "mirostat_tau": "sampling:--mirostat-ent",
    "dynatemp_range": "sampling:--dynatemp-range", "samplers": "sampling:--samplers", "seed": "sampling:--seed",
    "ignore_eos": "sampling:--ignore-eos",
}  # fmt: skip
PYTHON_NAMES = {
    "n_threads": "n_threads", "n_ctx": "n_ctx", "n_batch": "n_batch", "n_ubatch": "n_ubatch",
    "flash_attn_type": "flash_attn", "rope_freq_base": "rope_freq_base", "rope_freq_scale": "rope_freq_scale",
    "chat_format": "chat_format",
}  # fmt: skip
SYSTEM = (
    "{% for message in messages %}{% if loop.first and message['role'] != 'system' %}<|im_start|>system\n%s<|im_end|>\n"
)
SYSTEM += "{% endif %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
SYSTEM += "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
NARROW = {"temp": 0.2, "top_k": 5, "top_p": 0.5, "min_p": 0.3}


@dataclass(frozen=True)
class ServedCase:
    """A server, and the words of the right answer: a regular expression; none for an honest server."""

    name: str
    right: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    proxy: dict[str, Any] = field(default_factory=dict)
    served: str = "claim"
    claim: str = "claim"
    asked: tuple[str, ...] = ()  # more options of the audit
    adds_bos: bool | None = None  # for claimed files that put BOS before a text, or that do not


def both(kind: str) -> dict[str, str]:
    return {"cache_type_k": kind, "cache_type_v": kind}


HONEST = (
    ServedCase("as claimed"),
    ServedCase("one slot", options={"n_parallel": 1}),
    ServedCase("a cache for each slot", options={"kv_unified": False}),
    ServedCase("four slots, two other clients", proxy={"others": 2}),
    ServedCase("prefix cache off", options={"cache_prompt": False}),
    ServedCase("parts of prompts reused", options={"n_cache_reuse": 8}),
    ServedCase("flash attention on", options={"flash_attn_type": 1}),
    ServedCase("flash attention off", options={"flash_attn_type": 0}),
    ServedCase("the whole window kept", options={"swa_full": True}),
    ServedCase("cache in float32", options=both("f32")),
    ServedCase("cache in bfloat16", options=both("bf16")),
    ServedCase("cache in q8_0", options=both("q8_0")),
    ServedCase("keys in q8_0", options={"cache_type_k": "q8_0"}),
    ServedCase("batches of 8", options={"n_batch": 8, "n_ubatch": 8}),
    ServedCase("weights not repacked", options={"no_extra_bufts": True}),
    ServedCase("a context of 512", options={"n_ctx": 512, "n_parallel": 1}),
    ServedCase("context shift", options={"ctx_shift": True, "n_ctx": 256, "n_parallel": 1}),
    ServedCase("other defaults of the sampler", options=NARROW),
    ServedCase("samplers in another order", options={"samplers": "temperature;min_p;top_p;top_k"}),
    ServedCase("at most 6 tokens an answer", options={"n_predict": 6}),
    ServedCase("one seed by default", options={"seed": 5}),
    ServedCase("Q4_0, and claimed so", served="Q4_0", claim="Q4_0"),
    ServedCase("Q4_K_M, and claimed so", served="Q4_K_M", claim="Q4_K_M"),
    ServedCase("repetition penalty 1.3 by default", options={"penalty_repeat": 1.3}),
    ServedCase("repetition penalty 1.1 by default", options={"penalty_repeat": 1.1}),
    ServedCase("frequency penalty 1 by default", options={"penalty_freq": 1.0}),
    ServedCase("presence penalty 1 by default", options={"penalty_present": 1.0}),
    ServedCase("DRY 0.8 by default", options={"dry_multiplier": 0.8}),
    ServedCase("XTC 0.5 by default", options={"xtc_probability": 0.5}),
    ServedCase("typical 0.5 by default", options={"typ_p": 0.5}),
)
Q4 = "q4_0|four bits"
DISHONEST = (
    ServedCase("cache in q4_0", Q4, both("q4_0")),
    ServedCase("keys in q4_0", Q4, {"cache_type_k": "q4_0"}),
    ServedCase("values in q4_0", Q4, {"cache_type_v": "q4_0"}),
    ServedCase("weights in Q4_0", "Q4_0", served="Q4_0"),
    ServedCase("weights in Q4_K_M", "Q4_K_M", served="Q4_K_M"),
    ServedCase("weights in IQ4_XS", "IQ4_XS", served="IQ4_XS"),
    ServedCase("weights in Q3_K_M", "Q3_K_M", served="Q3_K_M"),
    ServedCase("weights in Q2_K", "Q2_K", served="Q2_K"),
    ServedCase("norms changed by 6 %", "fine-tune", served="tuned"),
    ServedCase("three layers changed", "fine-tune", served="layers"),
    ServedCase("another model", "another model", served="other"),
    ServedCase("RoPE base 5e4", "base of (about )?(5|49|50)", {"rope_freq_base": 5e4}),
    ServedCase("RoPE scale 0.5", "multiplied by 0.5", {"rope_freq_scale": 0.5}),
    ServedCase("YaRN, scale 0.5", "YaRN", {"rope_scaling_type": 2, "rope_freq_scale": 0.5, "yarn_orig_ctx": 128}),
    ServedCase("prompts cut to 32 tokens", "cut", proxy={"cut": 32}),
    ServedCase("BOS twice", "BOS", proxy={"before": "BOS"}, adds_bos=True),
    ServedCase("BOS missing", "no BOS", served="no BOS", adds_bos=True),
    ServedCase("BOS added", "BOS", served="BOS", adds_bos=False),
    ServedCase("template of llama2", "llama2", {"chat_template": TEMPLATES["llama2"]}),
    ServedCase(
        "a system message in the template", "Be concise", {"chat_template": SYSTEM.replace("%s", "Be concise.")}
    ),
    ServedCase(
        "an unusual system message", "chat prompt", {"chat_template": SYSTEM.replace("%s", "Speak like a pirate.")}
    ),
    ServedCase("temperature 0.8 for 0", "temperature 0 was asked for", proxy={"temperature": 0.8}),
    ServedCase("top-k 1", "top-k 1", proxy={"top_k": 1}),
    ServedCase("top-p 0.8", "top-p", proxy={"top_p": 0.8}),
    ServedCase("min-p 0.2", "min-p", proxy={"min_p": 0.2}),
    ServedCase("one seed", "one seed|same tokens", proxy={"seed": 5}),
    ServedCase("repetition penalty 1.3", "penalty", proxy={"repeat_penalty": 1.3}),
    ServedCase("frequency penalty 1", "penalty", proxy={"frequency_penalty": 1.0}),
    ServedCase("mirostat 2 by default", options={"mirostat": 2, "mirostat_tau": 1.0}),
    ServedCase("dynamic temperature by default", options={"dynatemp_range": 0.8}),
)
CASES = {case.name: case for case in (*HONEST, *DISHONEST)}
