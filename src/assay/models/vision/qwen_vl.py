"""qwen2vl, qwen2.5vl, qwen3vl: free size, RoPE over rows and columns, 2×2 patches a token.

Patches come block by block, four consecutive ones a token. qwen2.5vl sorts the tokens window by window, attends inside
windows in most layers, and undoes the order at the end. qwen3vl adds the results of some layers as further parts of a
token (deepstack), which the language model adds to its first layers.
"""

from __future__ import annotations

import re

from assay.graph import Graph
from assay.models.vision.vit import TowerBuilder

_KERNELS = ("v.patch_embd.weight", "v.patch_embd.weight.1")  # of the first and the second frame
_DEEPSTACK = re.compile(r"^v\.deepstack\.(\d{1,4})\.fc1\.weight$")


def _begin(b: TowerBuilder) -> str:
    b.rope = ((b.input("inp_rope", b.keys.head_dim), "neox", 0),)
    b.turned, b.normed = "rope", "ln1"
    return b.patches(kernels=_KERNELS)


def qwen2vl(b: TowerBuilder) -> Graph:
    x = b.vit(_begin(b))
    return b.graph(b.mlp(b.merge("merged", x), "mm.0", "mm.2"))


def qwen25vl(b: TowerBuilder) -> Graph:
    b.rms = True
    every = b.keys.window_pattern
    x = b.vit(_begin(b), windows=tuple((i + 1) % every != 0 for i in range(b.keys.n_layer)))
    x = b.mlp(b.merge("merged", x), "mm.0", "mm.2", out="projected")
    return b.graph(b.node("result_embd", "take_rows", x, b.input("inp_raster", 1)))


def qwen3vl(b: TowerBuilder) -> Graph:
    x = b.vit(b.add_positions("inp_pos_emb", _begin(b)))
    layers = sorted(int(m[1]) for name in b.file.tensors if (m := _DEEPSTACK.match(name)))
    parts = [b.mlp(b.merge("merged", x), "mm.0", "mm.2", out="projected" if layers else "result_embd")]
    for layer in layers:
        stem, b.layer = f"v.deepstack.{layer}", layer
        y = b.norm("deepstack_normed", b.merge("deepstack_merged", f"layer_out-{layer}"), f"{stem}.norm")
        parts.append(b.mlp(y, f"{stem}.fc1", f"{stem}.fc2", out="deepstack_out", prefix="deepstack"))
    b.layer = None
    return b.graph(_joined(b, parts))


def _joined(b: TowerBuilder, parts: list[str]) -> str:
    """The parts of a token side by side. `join` takes three at most, and published models have four parts."""
    x, rest = parts[0], parts[1:]
    while rest:
        now, rest = rest[:2], rest[2:]
        x = b.node("result_embd" if not rest else f"joined_{len(parts) - len(rest)}", "join", x, *now)
    return x
