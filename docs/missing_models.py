"""The architectures of llama.cpp that assay does not run, and what each would take, for docs/reference/models.md.

Read off the graphs of llama.cpp (the copy in llama-cpp-python 0.3.36). *Builder* means that every operation exists: a
function in `models/`, a row of the catalogue and golden data are left.
"""

from __future__ import annotations

MISSING: dict[str, str] = {
    "arctic": "builder: experts beside a dense part, each with its own norm and residual",
    "arwkv7": "builder: RWKV-7's recurrence with Qwen2's feed-forward part and RMS norms; one token shift",
    "bailingmoe3": "a safe gate with a lower bound in the delta rule's decay, clamped SwiGLU, gates on MLA",
    "chameleon": "builder for text: q/k LayerNorm by heads; image tokens are masked in the logits",
    "clip": "images: a vision graph, no text model",
    "cogvlm": "a second set of weights for image tokens in every layer; text alone is llama",
    "cohere2moe": "builder: cohere2 with experts behind leading dense layers; a draft layer",
    "deci": "builder: llama whose layers may have no attention, a linear attention or no feed-forward part",
    "deepseek2-ocr": "builder for text: deepseek without MLA; images are another graph",
    "deepseek32": "an index that chooses keys for each query, its cache, and attention over the chosen keys",
    "deepseek4": "chosen and compressed keys, hyper-connections between layers, routing by a hash of the token",
    "dflash": "a head that only drafts, fed by several layers of another file",
    "dots3note": "chosen keys in two MLA widths (window and full), gated attention",
    "dream": "text by filling in masks: a loop of its own over a bidirectional Qwen2",
    "glm-dsa": "an index that chooses keys, as in deepseek32, on GLM's layers",
    "glm5-next": "hyper-connections between layers, attention over keys chosen from pools; KDA and MLA exist",
    "gptj": "a name alone: llama.cpp has no graph for it",
    "graniteswitch": "low-rank adapters that tokens switch on and off: a state of which adapter is active",
    "grok": "builder: norms before and after each part, caps on scores, router and logits, scales",
    "grovemoe": "a second, smaller expert for each group of experts, routed by the first choice",
    "hrm_text": "two stacks of layers that run several times, each time with a cache of its own; gated attention",
    "hunyuan_vl": "builder for text: hunyuan-dense with sections of positions; images are another graph",
    "hy_v4": "hyper-connections between layers, attention over chosen keys, gates on MLA, clamped SwiGLU",
    "jina-bert-v2": "builder: bert with ALiBi, GeGLU and optional q/k LayerNorms, an encoder",
    "kimi-k3": "a decay with a lower bound, the SiTU activation, residuals over blocks of layers, latent experts",
    "laguna": "builder: softplus-gated attention by heads, windows with their own rotation, sigmoid experts",
    "llada": "text by filling in masks: a loop of its own over a bidirectional llama",
    "llada-moe": "text by filling in masks: a loop of its own over a bidirectional OLMoE",
    "maple": "clamped SwiGLU in experts; the rest is qwen3moe whose windows alone are rotated",
    "mimo2": "builder: windows with sinks, other widths of values, sigmoid experts; draft layers",
    "minimax-01": "lightning attention: a matrix state with a fixed decay a head; the rest exists",
    "minimax-m3": "blocks of keys chosen by an index; experts with shared ones",
    "muse-glimmer": "builder: gated attention, windows, layers without rotation, caps and scales",
    "nanbeige": "the same layers run several times, each time with a cache of its own",
    "neo-bert": "builder: pre-norm encoder, fused qkv, one matrix for gate and up",
    "olmo": "LayerNorm without weights in each engine; clamped qkv",
    "openelm": "builder: heads and widths by layer, fused qkv, q/k norms",
    "paddleocr": "builder for text: ernie4_5 with sections of positions; images are another graph",
    "plamo": "builder: attention and feed-forward part side by side, heads of keys repeated in tiles",
    "plamo2": "builder: Mamba with norms of dt, B and C beside attention, norms after each part",
    "plamo3": "builder: fused qkv, q/k norms, windows, norms after each part",
    "pockettts": "sound: latents made by a flow, no text model",
    "qwen": "builder: fused qkv with bias; logits and long texts scale with the logarithm of the position",
    "qwen3tts": "sound: codes for several books a step, no text model",
    "qwen4exp": "hyper-connections, n-grams hashed to embeddings, chosen keys; its graph is provisional",
    "rnd1": "text by filling in masks: a loop of its own over a bidirectional Qwen3 with experts",
    "rwkv6qwen2": "builder: RWKV-6's recurrence with groups of heads, Qwen2's feed-forward part; one token shift",
    "smallthinker": "builder: the router reads the layer's input, ReLU experts, windows, layers without rotation",
    "spark2_5": "builder: windows with their own base, a sigmoid gate for each head of the attention, GeGLU",
    "step35": "builder: head-wise gated attention, windows, clamped SwiGLU, experts; draft layers",
    "t5": "an encoder and a decoder with cross attention; relative position tables",
    "t5encoder": "relative position tables in attention, an encoder",
    "talkie": "builder: llama with gains on attention, feed-forward part and embedding",
    "wavtokenizer-dec": "sound: convolutions over codes, no text model",
}


def lines() -> list[str]:
    """The table, one architecture a line."""

    rows = [f"| `{name}` | {told} |" for name, told in MISSING.items()]
    return ["| architecture | what it takes |", "|---|---|", *rows]
