"""Foreign names of nodes: llama.cpp's (with its traps), Hugging Face's, Meta's, llama2.c's. Plain words: `phrases.py`.

llama.cpp's names are ours (read off its commit b21e4de), except where it gives several values one name: there the
operation decides. All other names are in the table below, tried from top to bottom; docs/reference/names.md prints it.
`{n}` in a node stands for the layer, `{n-1}` for the one before.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from assay.graph import Graph, Trait, join, split
from assay.verify.dumps.naming.name_rule import HF, LAYER, N, NameRule
from assay.verify.dumps.naming.recurrent_names import gated_query, recurrent_rules

# llama.cpp: one name, several values; ggml's operation tells them apart. Empty: a view of a value named before. A
# matrix product denotes the first of the nodes that is one: `gemma4` calls its K product `Vcur` where V is made of it,
# and `llama4` renames `attn_out` where it means to name the norm.
BY_OP: dict[tuple[str, str], tuple[str, ...]] = {
    ("Qcur", "MUL_MAT"): ("Qcur_proj",), ("Kcur", "MUL_MAT"): ("Kcur_proj",),
    ("Vcur", "MUL_MAT"): ("Vcur_proj", "Vcur", "Kcur_proj"), ("ffn_norm", "MUL_MAT"): ("attn_out",),
    ("Qcur", "MUL"): ("Qcur_normed", "Qcur_attn_temp_scaled"), ("Kcur", "MUL"): ("Kcur_normed",),
    ("ffn_norm", "GET_ROWS"): (),
    ("Qcur", "ADD"): ("Qcur_biased",), ("Kcur", "ADD"): ("Kcur_biased",), ("Vcur", "ADD"): ("Vcur",),
    ("Qcur", "ROPE"): ("Qcur",), ("Kcur", "ROPE"): ("Kcur",), ("Qcur", "SCALE"): ("Qcur_scaled",),
    ("attn_out", "ADD"): ("sa_out", "attn_out"), ("ffn_norm", "ADD"): (),
    ("ffn_inp", "MUL_MAT"): ("mamba_out", "attn_out"), ("ffn_inp", "RESHAPE"): ("mamba_out",),
    ("ffn_inp", "GET_ROWS"): (),
    **{(role, op): () for role in ("Qcur", "Kcur", "Vcur") for op in ("RESHAPE", "VIEW", "PERMUTE", "CONT")},
}  # fmt: skip
# Names that denote no single value: `norm` is every RMSNorm before its weight; the others are views and copies.
IGNORED = re.compile(
    r"^norm(-\d+)?$|^(leaf|node)_\d+ \(.*\)|.* \((view|reshaped|permuted|copy|copy of.*|cont|transposed)\)"
    r"|^(cache_[kv]_l\d+|[kqv])(-\d+)? \(|^inp_(tokens|pos|out_ids)$|^(KQ_mask|attn_inp_).*"
)
# Other spellings of llama.cpp: of earlier versions, and of gemma4.
OLD = {
    "inp_embd": "embd", "kq_soft_max_ext": "kq_soft_max", "kqv_merged_cont": "kqv_out", "ffn_gate_par": "ffn_swiglu",
    "bqkv": "wqkv_b", "kqv_wo": "attn_out", "ffn_par": "ffn_swiglu", "Qcur_pos": "Qcur",
    "Kcur_pos": "Kcur", "Vcur_normed": "Vcur", "model.embed_tokens": "embd", "attn_output": "attn_out",
    "gate": "gate_raw", "post_moe": "l_out", "post_ffn": "l_out", "Qcur_view": "Qcur_proj",
}  # fmt: skip
# llama.cpp's names for lfm2: Hugging Face's, with `{}` where the layer would stand. Its `ffn_out` is the norm again.
_LFM2 = {
    "operator_norm": "attn_norm", "ffn_norm": "ffn_norm", "ffn_out": "ffn_norm", "self_attn.q_proj": "Qcur_proj",
    "self_attn.k_proj": "Kcur_proj", "self_attn.v_proj": "Vcur", "self_attn.q_layernorm": "Qcur_normed",
    "self_attn.k_layernorm": "Kcur_normed", "self_attn.out_proj": "attn_out", "conv.in_proj": "bcx",
    "conv.conv": "conv_output_raw", "conv.out_proj": "shortconv_out",
}  # fmt: skip
OLD |= {f"model.layers.{{}}.{name}": node for name, node in _LFM2.items()}


def _hugging_face_rules() -> Iterable[NameRule]:
    def hf(name: str, *nodes: str, order: str = "gguf") -> NameRule:
        return NameRule("Hugging Face", HF + name, nodes, order)

    yield hf(r"embed_tokens", "embd")
    yield hf(rf"layers\.{N}\.input_layernorm", "attn_norm-{n}")
    yield hf(rf"layers\.{N}\.self_attn\.q_proj", "Qcur_biased-{n}", "Qcur_proj-{n}", order="hf")
    yield hf(rf"layers\.{N}\.self_attn\.k_proj", "Kcur_biased-{n}", "Kcur_proj-{n}", order="hf")
    yield hf(rf"layers\.{N}\.self_attn\.v_proj", "Vcur-{n}")
    yield hf(rf"layers\.{N}\.self_attn\.q_norm", "Qcur_normed-{n}")
    yield hf(rf"layers\.{N}\.self_attn\.k_norm", "Kcur_normed-{n}")
    yield hf(rf"layers\.{N}\.self_attn\.o_proj\.input", "kqv_out-{n}")
    yield hf(rf"layers\.{N}\.self_attn(?:\.o_proj)?", "attn_out-{n}")
    yield hf(rf"layers\.{N}\.pre_feedforward_layernorm", "ffn_norm-{n}")
    yield hf(rf"layers\.{N}\.post_feedforward_layernorm", "ffn_post_norm-{n}")
    yield hf(rf"layers\.{N}\.post_attention_layernorm\.input", "ffn_inp-{n}")
    yield hf(rf"layers\.{N}\.post_attention_layernorm", "attn_post_norm-{n}", "ffn_norm-{n}")
    yield NameRule("Bumblebee", rf"(?:decoder\.)?blocks\.{N}\.output_norm", ("ffn_norm-{n}",))
    yield hf(rf"layers\.{N}\.mlp\.gate_proj", "ffn_gate-{n}")
    yield hf(rf"layers\.{N}\.mlp\.up_proj", "ffn_up-{n}")
    yield hf(rf"layers\.{N}\.mlp\.down_proj\.input", "ffn_swiglu-{n}", "ffn_geglu-{n}")
    yield hf(rf"layers\.{N}\.mlp(?:\.down_proj)?", "ffn_out-{n}")
    yield hf(rf"layers\.{N}", "l_out-{n}")
    yield hf(r"norm", "result_norm")
    yield hf(r"lm_head", "result_output")
    yield NameRule("Hugging Face", r"hidden_states[._\[]0\]?", ("embd",))
    # The last of them is taken after the final norm: there is no layer n, so no `l_out-{n}` is asked for.
    yield NameRule("Hugging Face", rf"hidden_states[._\[]{N}\]?", ("l_out-{n-1}", "result_norm"), needs="l_out-{n}")


def _meta_rules() -> Iterable[NameRule]:
    def meta(name: str, *nodes: str) -> NameRule:
        return NameRule("Meta, llama2.c", rf"layers\.{N}\.{name}", nodes)

    yield meta("attention_norm", "attn_norm-{n}")
    yield meta(r"attention\.wq", "Qcur_biased-{n}", "Qcur_proj-{n}")
    yield meta(r"attention\.wk", "Kcur_biased-{n}", "Kcur_proj-{n}")
    yield meta(r"attention\.wv", "Vcur-{n}")
    yield meta(r"attention(?:\.wo)?", "attn_out-{n}")
    yield meta("ffn_norm", "ffn_norm-{n}")
    yield meta(r"feed_forward\.w1", "ffn_gate-{n}")
    yield meta(r"feed_forward\.w3", "ffn_up-{n}")
    yield meta(r"feed_forward(?:\.w2)?", "ffn_out-{n}")
    yield NameRule("Meta, llama2.c", r"tok_embeddings|token_embedding_table", ("embd",))
    yield NameRule("Meta, llama2.c", r"output", ("result_output",))


def _encoder_rules() -> Iterable[NameRule]:
    """BERT's modules: its norms stand behind the sums."""
    layer = rf"(?:bert\.)?encoder\.(?:layers?\.)?{N}\."
    for name, *nodes in (
        (r"(?:attention\.)?self\.query", "Qcur_biased-{n}", "Qcur_proj-{n}"),
        (r"(?:attention\.)?self\.key", "Kcur_biased-{n}", "Kcur_proj-{n}"),
        (r"(?:attention\.)?self\.value", "Vcur-{n}"),
        (r"(?:attention\.)?self", "kqv_out-{n}"),
        (r"attention\.output\.dense", "attn_out-{n}"),
        (r"attention\.(?:output\.)?LayerNorm", "ffn_inp-{n}"),
        (r"intermediate\.dense", "ffn_up_b-{n}", "ffn_up-{n}"),
        (r"intermediate(?:\.gelu|\.intermediate_act_fn)?", "ffn_gelu-{n}"),
        (r"output\.dense", "ffn_out-{n}"),
        (r"output(?:\.LayerNorm)?", "l_out-{n}"),
    ):
        yield NameRule("BERT", layer + name, tuple(nodes))
    yield NameRule("BERT", r"(?:bert\.)?embeddings\.word_embeddings", ("embd",))
    yield NameRule("BERT", r"(?:bert\.)?embeddings(?:\.LayerNorm)?", ("inp_norm-0",))


def _plain_rules() -> Iterable[NameRule]:
    for names, node in (
        ("q_rope|rope_q|q_rotated", "Qcur"), ("k_rope|rope_k|k_rotated", "Kcur"), ("q|query|q_proj", "Qcur_proj"),
        ("k|key|k_proj", "Kcur_proj"), ("v|value|v_proj", "Vcur"), ("att|attention_weights|softmax", "kq_soft_max"),
        ("scores|attention_scores|qk", "kq"), ("attn_norm|attention_norm|input_norm|rms_att", "attn_norm"),
        ("ffn_norm|rms_ffn|post_attention_norm|mlp_norm", "ffn_norm"), ("gate|ffn_gate|w1", "ffn_gate"),
        ("up|ffn_up|w3", "ffn_up"), ("attn_output|attn_out|o_proj|wo", "attn_out"),
        ("down|ffn_down|ffn_out|mlp|ffn|w2", "ffn_out"),
        ("ffn_inp|attn_residual|after_attention", "ffn_inp"), ("output|out|x|hidden|l_out", "l_out"),
        ("swiglu|ffn_act|silu_mul", "ffn_swiglu"),
    ):  # fmt: skip
        yield NameRule("plain", rf"{LAYER}(?:{names})", (node + "-{n}",))


RULES: tuple[NameRule, ...] = (
    gated_query(), *_hugging_face_rules(), *recurrent_rules(), *_encoder_rules(), *_meta_rules(),
    *_plain_rules(),
)  # fmt: skip
_COMPILED = [(rule, re.compile(rule.pattern, re.IGNORECASE)) for rule in RULES]


def ignored(name: str, op: str = "") -> bool:
    """A name known to denote no value of its own."""
    role, _ = split(name)
    return bool(IGNORED.match(name)) or BY_OP.get((role, op)) == ()


def translate(name: str, op: str, graph: Graph) -> tuple[str, str] | None:
    """(node, order) that a foreign name denotes, or None."""
    role, layer = split(name)
    if op and (role, op) in BY_OP:
        nodes = [join(found, layer) for found in BY_OP[role, op]]
        if op == "MUL_MAT":
            nodes = [node for node in nodes if node in graph and graph[node].has(Trait.PRODUCT)]
        return _first(graph, nodes, "gguf")
    plain = name if name in graph else join(OLD.get(role, role), layer)
    if plain in graph:
        return plain, "gguf"
    if op:  # the dump is llama.cpp's; other projects' names mean other things
        return None
    for rule, pattern in _COMPILED:
        if (m := pattern.fullmatch(name)) and (found := _fill(rule, m, graph)):
            return found
    return None


def _numbered(node: str, m: re.Match[str]) -> str:
    if "{" not in node:
        return node
    n = int(m["n"] or 0)
    return node.replace("{n-1}", str(n - 1)).replace("{n}", str(n))


def _fill(rule: NameRule, m: re.Match[str], graph: Graph) -> tuple[str, str] | None:
    nodes = rule.nodes[1:] if rule.needs and _numbered(rule.needs, m) not in graph else rule.nodes
    return _first(graph, [_numbered(node, m) for node in nodes], rule.order)


def _first(graph: Graph, names: list[str], order: str) -> tuple[str, str] | None:
    return next(((name, order) for name in names if name in graph), None)


def page() -> list[str]:
    """The tables of this module, for the page on names."""

    def plain(pattern: str) -> str:
        """A rule's pattern the way a person would write the name."""
        text = pattern.replace(HF, "model.").replace(LAYER, "layer.N.").replace(N, "N").replace("\\.", ".")
        text = re.sub(r"\(\?:\.(\w+)\)\?", r"[.\1]", text)
        text = re.sub(r"\(\?:([^()]*)\)", r"\1", text).replace("[._\\[]", ".").replace("\\]?", "")
        return text.replace("|", "`, `")

    out = ["## Foreign names\n", "Read off llama.cpp at commit b21e4de. Where it gives several values one name, ggml's"]
    out += ["operation tells them apart:\n", "| llama.cpp's name | operation | node |", "|---|---|---|"]
    for (role, op), nodes in BY_OP.items():
        if nodes:
            out.append(f"| `{role}-N` | {op} | {' or '.join(f'`{n}-N`' for n in nodes)} |")
    out += ["", "Its other spellings: " + ", ".join(f"`{a}` is `{b}`" for a, b in OLD.items()) + ".\n"]
    out += ["Other people's names, each for the first of the nodes that the model has:\n"]
    out += ["| whose | name | node |", "|---|---|---|"]
    for rule in RULES:
        found = " or ".join(f"`{n.replace('{n-1}', '(N-1)').replace('{n}', 'N')}`" for n in rule.nodes)
        order = ", heads as halves" if rule.order == "hf" else ""
        out.append(f"| {rule.family} | `{plain(rule.pattern)}` | {found}{order} |")
    return out
