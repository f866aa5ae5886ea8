"""Draft heads (`nextn_predict_layers`): the last block of a file, which guesses the token after the next one.

x = eh_proj · [rms_norm(embedding of the token at p) | rms_norm(h)]     h = result_norm of the model at p - 1
block at position p, with keys and values of its own; its norm is the next h, its logits are for p + 1

It is a separate graph over the same file. The caller gives the rows h as `mtp_hidden`: zeros at the first token.
Touch this when another family names these tensors or joins these parts in another way.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from assay.errors import AssayError
from assay.graph import Graph
from assay.models.blocks import Builder
from assay.models.hparams import Layer
from assay.system.terminal import printable

HIDDEN = "mtp_hidden"  # the rows that the caller gives
# Architectures whose files are a draft head for another file: `models/eagle3.py`, `models/gemma4_assistant.py`.
HEAD_FILES = {"eagle3": "an EAGLE-3 head", "gemma4-assistant": "an assistant of Gemma 4"}


def head_in_file(metadata: Mapping[str, Any], tensors: Collection[str]) -> str | None:
    """The kind of draft head that a file holds instead of a model; None if it holds none."""
    arch = metadata.get("general.architecture")
    if not isinstance(arch, str) or arch in HEAD_FILES:  # a damaged file may have an array there
        return HEAD_FILES.get(arch) if isinstance(arch, str) else None
    drafts = metadata.get(f"{arch}.nextn_predict_layers")
    layers = {name.split(".")[1] for name in tensors if name.startswith("blk.")}
    if isinstance(drafts, int) and drafts > 0 and layers and "0" not in layers:
        return f"a draft head of {printable(arch)} alone"
    return None


def draft_head(
    b: Builder, block: Callable[[Builder, str], str], row: Layer | None = None, norm: str = "rms"
) -> Graph | None:
    """The graph of the draft head, or None where the file has none. `block` builds the layer from its input.

    `row` is the layer's row of hyper-parameters, by default that of the last layer with attention; `norm` the kind of
    the last norm. A file with several draft layers has no graph: how they follow each other is not defined. A head that
    lacks tensors or whose tensors do not fit has none either, and `b.draft_fault` says why: the model runs without it.
    """
    count = b.meta.count("nextn_predict_layers", 0, least=0)
    if count != 1:
        b.draft_fault = f"it has {count} draft layers, and one can be run" if count else ""
        return None
    try:
        graph = _head_graph(b, block, row, norm)
        return graph.check() if graph else None
    except AssayError as error:
        b.draft_fault = str(error)
        return None


def _head_graph(b: Builder, block: Callable[[Builder, str], str], row: Layer | None, norm: str) -> Graph | None:
    d = Builder(b.meta, b.shapes, b.n_ctx)
    d.norm_op = b.norm_op
    row = row or next((r for r in reversed(b.hp.layers) if not r.recurrent), b.hp.layers[-1])
    d.hp = b.hp.with_row(row)
    table = f"blk.{b.hp.n_layer}.nextn.embed_tokens"
    d.node("embd", "embed", "inp_tokens", weights=(f"{table if d.has(table) else 'token_embd'}.weight",))
    d.layer = b.hp.n_layer
    if not d.has("nextn.eh_proj"):
        b.draft_fault = f"{d.weight('nextn.eh_proj')}: not in the file"
        return None
    token = d.norm("mtp_enorm", "embd", "nextn.enorm")
    both = d.node("mtp_concat", "join", token, d.norm("mtp_hnorm", HIDDEN, "nextn.hnorm"))
    x = block(d, d.linear("mtp_eh_proj", both, "nextn.eh_proj"))
    own_norm, own_head = d.has("nextn.shared_head_norm"), d.has("nextn.shared_head_head")
    prefix, d.layer = f"blk.{d.layer}.nextn.", None
    weights = (f"{prefix}shared_head_norm.weight" if own_norm else "output_norm.weight",)
    eps = b.hp.eps if norm == "rms" else b.meta.positive("attention.layer_norm_epsilon")
    x = d.node("result_norm", f"{norm}_norm", x, weights=weights, eps=eps)
    stem = f"{prefix}shared_head_head" if own_head else "output" if d.has("output") else "token_embd"
    d.linear("result_output", x, stem)
    return Graph(tuple(d.nodes), b.shapes, given={HIDDEN: ("T", b.hp.n_embd)})
