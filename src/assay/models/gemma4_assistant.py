"""Gemma 4's assistants: a small file that guesses the tokens of a Gemma 4, over that model's own keys and values.

x = pre_projection · [√B · embedding of the token at p in the model's table | h]   h: the model's result_norm at p - 1
layers of Gemma 4 without keys and values of their own: local ones see those of the model's last local layer,
full ones those of its last full layer, up to position p - 1
logits for the token at p + 1 = token_embd · z        z = rms_norm(x);  the next h = post_projection · z

While it guesses, the position stays p and the keys stay the model's: only the token and h change.

The graph keeps copies of these two layers' keys and values. The caller gives row p - 1 of them with h, side by side as
`ROWS`, and the pair has slot p - 1. So no engine has to read another engine's cache. RoPE positions
are one more than slots, for queries and for cached keys. A window counts slots, so it is one shorter here.

Touch this when an assistant of another form is to be read.
"""

from __future__ import annotations

from dataclasses import dataclass

from assay.errors import AssayError
from assay.graph import Graph, join
from assay.models.arch_keys import ArchKeys
from assay.models.blocks import Builder, Shapes
from assay.models.gemma4 import widths
from assay.models.hparams import HParams

ARCH = "gemma4-assistant"
ROWS = "assistant_rows"  # h, then the keys and values of each kind of layer, that the caller gives
OWN = "h_nextn"  # the next h
TABLE = "target.token_embd.weight"  # the model's embedding table, under another name than the assistant's own


@dataclass(frozen=True)
class AssistantGraph:
    """The graph of an assistant. `copied` has, for each kind of layer that it has, whether the kind is local, and the
    heads and widths of the keys and values that it reads; `row` is the width of h."""

    hparams: HParams
    graph: Graph
    row: int
    copied: tuple[tuple[bool, int, int, int], ...]


def gemma4_assistant(meta: ArchKeys, shapes: Shapes) -> AssistantGraph:
    """Read the keys and build the graph. `shapes` has the assistant's tensors and the model's table."""
    # All blocks are draft layers, which the common keys would leave out.
    values = {key: value for key, value in meta.values.items() if key != f"{ARCH}.nextn_predict_layers"}
    b = Builder(ArchKeys(values, ARCH, meta.where.removesuffix(": ")), shapes)
    b.read(mode="neox")
    local = widths(b, unseen=1)
    width = meta.count("embedding_length_out")
    if shapes[TABLE][1:] != (width,):
        raise meta.error("embedding_length_out", width, f"{shapes[TABLE][1]}, the width of the model's rows")
    first = {kind: local.index(kind) for kind in (True, False) if kind in local}
    rows = {kind: b.hp.layers[layer] for kind, layer in first.items()}
    copied = tuple((kind, row.n_head_kv, row.n_embd_head, row.n_embd_head_v) for kind, row in rows.items())
    start = width
    for layer, (_, heads, width_k, width_v) in zip(first.values(), copied, strict=True):
        b.layer, middle = layer, start + heads * width_k
        k = b.node("Kcur", "slice", ROWS, start=start, stop=middle)
        start = middle + heads * width_v
        b.cached(k, b.node("Vcur", "slice", ROWS, start=middle, stop=start))
    b.layer = None
    x = _layers(b, _entry(b, width), [first[kind] for kind in local])
    z = b.norm("result_norm", x, "output_norm")
    b.linear(OWN, z, "nextn.post_projection")
    b.linear("result_output", z, "token_embd")
    graph = Graph(tuple(b.nodes), shapes, given={ROWS: ("T", start)}).check()
    if graph.shapes[OWN] != ("T", width):
        made = graph.shapes[OWN][1]
        raise AssayError(
            f"nextn.post_projection.weight: does not make the next h (found {made} rows, expected {width})"
        )
    return AssistantGraph(b.hp, graph, width, copied)


def _entry(b: Builder, width: int) -> str:
    token = b.scaled("inp_embd_target", b.node("embd", "embed", "inp_tokens", weights=(TABLE,)), width**0.5)
    both = b.node("inp_xh", "join", token, b.node("inp_h", "slice", ROWS, start=0, stop=width))
    return b.linear("pre_proj", both, "nextn.pre_projection")


def _layers(b: Builder, x: str, sources: list[int]) -> str:
    """The layers; `sources` has the layer that caches what each one reads."""
    for i in b.blocks():
        row = b.here
        b.check_rows("attn_q", row.n_head * row.n_embd_head)
        q = b.linear("Qcur_proj", b.norm("attn_norm", x), "attn_q")
        q = b.rope("Qcur", b.head_norm("Qcur_normed", q, "attn_q_norm", row.n_head), row.n_head)
        attn = b.output(b.attend(q, join("cache_k", sources[i]), join("cache_v", sources[i])))
        x = b.add("sa_out", b.norm("attn_post_norm", attn, "post_attention_norm"), x)
        ffn = b.norm("ffn_post_norm", b.ffn(b.norm("ffn_norm", x), "geglu"), "post_ffw_norm")
        x = b.node("l_out", "mul_weight", b.add("ffn_res", ffn, x), weights=(b.weight("layer_output_scale"),))
    return x
