"""EAGLE-3 heads: a small file that guesses the tokens of another model, from rows of three of that model's layers.

g = fc · [h_a | h_b | h_c]                                    h_l: the model's row before layer l, at position p
x = [rms_norm(embedding of the token at p + 1) | rms_norm(g)]
y = g + Wo · attention(rope(Wq x), rope(Wk x), Wv x)          at position p, with keys and values of its own
z = y + Wdown (silu(Wgate m) * Wup m)                         m = rms_norm(y)
logits for the token at p + 2 = output · rms_norm(z)

z takes the place of g at the next position, so that the head can guess several tokens in turn. With
`norm_before_fc` the three rows are normed together first; with `norm_before_residual` rms_norm(g) is the residual.
`output` may have fewer rows than the model has tokens: `d2t` then has the model's id of each row.

A file without `token_embd` or `output` uses the model's. Touch this when heads of another form are to be read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from assay.graph import Graph
from assay.graph.names import split
from assay.models.arch_keys import ArchKeys
from assay.models.blocks import Builder, Shapes
from assay.models.hparams import HParams

ARCH = "eagle3"
ROWS = "eagle_rows"  # the model's rows of three layers, side by side, that the caller gives to `fuse`
HIDDEN = "eagle_hidden"  # g or z, that the caller gives to `block`
OWN = "eagle_prenorm-0"  # z
FUSED = "eagle_fused"  # g
_LAYERS = 3


@dataclass(frozen=True)
class EagleGraphs:
    """The graphs of a head: `fuse` from the model's rows to g, `block` from g or z to the next z and the logits."""

    hparams: HParams
    fuse: Graph
    block: Graph
    layers: tuple[int, ...]  # of the model; its row before each is read


def eagle3(meta: ArchKeys, shapes: Shapes) -> EagleGraphs:
    """Read the keys and build both graphs. `shapes` has the head's tensors, and the model's where the head has none."""
    layers = _target_layers(meta)
    b = Builder(meta, shapes)
    hp = b.read()
    if hp.n_layer != 1:
        raise meta.error("block_count", hp.n_layer, "1")
    b.rope_factors()
    width = _LAYERS * meta.count("target_hidden_size")
    fuse = _fuse(b, width)
    b.nodes.clear()
    return EagleGraphs(hp, fuse, _block(b), layers)


def _target_layers(meta: ArchKeys) -> tuple[int, ...]:
    found = meta.values.get(f"{meta.arch}.target_layers")
    values = list(found) if isinstance(found, np.ndarray | list) else []
    if len(values) != _LAYERS or not all(isinstance(v, int | np.integer) and 0 <= v < 2**31 for v in values):
        raise meta.error("target_layers", f"{found!s:.40}", f"{_LAYERS} numbers of layers")
    return tuple(int(v) for v in values)


def _fuse(b: Builder, width: int) -> Graph:
    rows = ROWS
    if b.meta.flag("norm_before_fc", False):
        rows = b.norm("eagle_rows_normed", rows, "enc.output_norm")
    b.linear(FUSED, rows, "fc")
    return Graph(tuple(b.nodes), b.shapes, FUSED, given={ROWS: ("T", width)}).check()


def _block(b: Builder) -> Graph:
    b.node("embd", "embed", "inp_tokens", weights=("token_embd.weight",))
    b.layer = 0
    token = b.norm("eagle_token_norm", "embd", "attn_norm")
    hidden = b.norm("eagle_hidden_norm", HIDDEN, "attn_norm_2")
    residual = hidden if b.meta.flag("norm_before_residual", False) else HIDDEN
    y = b.add("ffn_inp", b.attention(b.node("eagle_concat", "join", token, hidden)), residual)
    z = b.add("eagle_prenorm", b.ffn(b.norm("ffn_norm", y)), y)
    b.layer = None
    b.linear("result_output", b.norm("result_norm", z, "output_norm"), "output")
    return Graph(tuple(b.nodes), b.shapes, given={HIDDEN: ("T", b.hp.n_embd)}).check()


def row_before(graph: Graph, layer: int) -> str | None:
    """The node that this layer reads; for the number of layers, the one that the final norm reads. None: there is no
    one such row."""
    last = max((i for i, node in enumerate(graph.nodes) if split(node.name)[1] is not None), default=-1)
    for i, node in enumerate(graph.nodes):
        own = split(node.name)[1]
        if own == layer or (layer == graph.layers.stop and i > last):
            found = [name for name in node.inputs if name in graph and split(name)[1] != layer]
            return found[0] if len(found) == 1 else None
    return None


def tensors_of_the_model(own: Mapping[str, object], model: Mapping[str, object]) -> dict[str, str]:
    """Tensors that a head takes from its model: the name in the head's graphs, and the model's."""
    head = "output.weight" if "output.weight" in model else "token_embd.weight"
    wanted = {"token_embd.weight": "token_embd.weight", "output.weight": head}
    return {name: source for name, source in wanted.items() if name not in own and source in model}
