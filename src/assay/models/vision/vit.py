"""The parts that vision towers share: patches, tables of positions, the transformer, merging, the projector's layers.

A builder method appends nodes and returns the name of the last, as in `models/blocks.py`. Names follow llama.cpp's
clip; where one of its names stands for several values, the stages before the last have an ending of their own. The
graph does not depend on the size of a picture: rows, angles and weights that do are given (`picture_inputs.py`).
Touch this when several towers need the same new part.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from assay.errors import AssayError
from assay.gguf import GGUFFile
from assay.graph import Graph, Node, join
from assay.graph.ops import Shape
from assay.models.vision.projector_keys import ProjectorKeys

QUICK = 1.702  # quick GELU: x σ(1.702 x)


@dataclass
class TowerBuilder:
    """Collects nodes. `rms` chooses the tower's norm, `layer_norm` otherwise; `rope` names the given tables."""

    keys: ProjectorKeys
    file: GGUFFile
    rms: bool = False
    rope: tuple[tuple[str, str, int], ...] = ()  # (given table, mode, first value of the head) of each rotation
    turned: str = "pos"  # the end of the names of rotated queries and keys
    normed: str = "layer_inp_normed"
    nodes: list[Node] = field(default_factory=list)
    given: dict[str, Shape] = field(default_factory=dict)
    layer: int | None = None

    # -- tensors -------------------------------------------------------------------------------------------

    def has(self, name: str) -> bool:
        return name in self.file.tensors

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor that the tower needs."""
        if not self.has(name):
            raise AssayError(f"{self.file.path}: {name}: the file has no such tensor; it is incomplete")
        return self.file.tensors[name].shape

    def stem(self, name: str) -> str:
        return f"v.blk.{self.layer}.{name}" if self.layer is not None else name

    # -- nodes ---------------------------------------------------------------------------------------------

    def node(self, role: str, op: str, *inputs: str, weights: tuple[str, ...] = (), **attrs: Any) -> str:
        name = join(role, self.layer)
        self.nodes.append(Node(name, op, inputs, weights, attrs))
        return name

    def input(self, name: str, *shape: int | str) -> str:
        """A value that the caller gives, a row for each row of this part of the graph."""
        self.given[name] = ("T", *shape)
        return name

    def norm(self, role: str, x: str, stem: str, *, rms: bool | None = None, eps: float | None = None) -> str:
        rms = self.rms if rms is None else rms
        eps = self.keys.eps if eps is None else eps
        weight, bias = f"{stem}.weight", f"{stem}.bias"
        if not rms:
            weights = (weight, bias) if self.has(bias) else (weight,)
            return self.node(role, "layer_norm", x, weights=weights, eps=eps)
        if not self.has(bias):
            return self.node(role, "rms_norm", x, weights=(weight,), eps=eps)
        y = self.node(f"{role}_unbiased", "rms_norm", x, weights=(weight,), eps=eps)
        return self.node(role, "bias", y, weights=(bias,))

    def linear(self, role: str, x: str, stem: str, *, partial: str = "") -> str:
        """`role = W x (+ b)`, with clamps before and after the product where the file has them.

        `partial` is the name of the product where a bias follows it.
        """
        biased = self.has(f"{stem}.bias")
        product = (partial or f"{role}_proj") if biased else role
        low, high, least, most = (self.scalar(f"{stem}.{end}") for end in _CLAMPS)
        if low is not None and high is not None:
            x = self.node(f"{product}_inp_clamped", "clamp", x, lo=low, hi=high)
        clamped = least is not None and most is not None
        weight = f"{stem}.weight"
        self.shape(weight)
        y = self.node(f"{product}_unclamped" if clamped else product, "linear", x, weights=(weight,))
        if clamped:
            y = self.node(product, "clamp", y, lo=least, hi=most)
        return self.node(role, "bias", y, weights=(f"{stem}.bias",)) if biased else y

    def scalar(self, name: str) -> float | None:
        """The value of a tensor of one element; None if the file does not have it."""
        if not self.has(name):
            return None
        value = self.file.decode(name).reshape(-1)
        if len(value) != 1 or math.isnan(value[0]):
            raise AssayError(f"{self.file.path}: {name}: not one number (found {len(value)} values)")
        return float(value[0])

    # -- the beginning -------------------------------------------------------------------------------------

    def patches(self, x: str = "", *, kernels: tuple[str, ...] = ("v.patch_embd.weight",)) -> str:
        """The convolution: a product over the rows of the patches, [c, y, x] each; several kernels are summed."""
        x = x or self.pixels()
        for kernel in kernels:
            self.shape(kernel)
        names = [f"inp_{i}" for i in range(len(kernels))] if len(kernels) > 1 else ["inp"]
        found = [self.node(name, "linear", x, weights=(k,)) for name, k in zip(names, kernels, strict=True)]
        y = found[0] if len(found) == 1 else self.node("inp", "add", found[0], found[1])
        if self.has("v.patch_embd.bias"):
            y = self.node("patch_bias", "bias", y, weights=("v.patch_embd.bias",))
        return y

    def pixels(self) -> str:
        return self.input("inp_patches", 3 * self.keys.patch**2)

    def add_positions(self, role: str, x: str) -> str:
        """+ rows of the table of positions, resized to the picture where the given weights say so."""
        inputs = self.input("inp_table_rows", "K"), self.input("inp_table_weights", "K")
        rows = self.node("pos_rows", "mix_rows", *inputs, weights=("v.position_embd.weight",))
        return self.node(role, "add", x, rows)

    def add_class(self, x: str) -> str:
        """The class row behind the patches."""
        return self.node("inp_class", "take_rows", x, self.input("inp_class_rows", 1), weights=("v.class_embd",))

    # -- the transformer -----------------------------------------------------------------------------------

    def vit(self, x: str, *, n_layer: int | None = None, windows: tuple[bool, ...] = (), scale: float = 0.0) -> str:
        """The layers between `pre_ln` and `post_ln`. `windows` marks layers that attend inside windows."""
        if self.has("v.pre_ln.weight"):
            x = self.norm("pre_ln", x, "v.pre_ln")
        for layer in range(self.keys.n_layer if n_layer is None else n_layer):
            self.layer = layer
            x = self.block(x, window=bool(windows) and windows[layer], scale=scale or self.keys.head_dim**-0.5)
        self.layer = None
        return self.norm("post_ln", x, "v.post_ln") if self.has("v.post_ln.weight") else x

    def block(self, x: str, *, window: bool, scale: float) -> str:
        y = self.attention(self.norm(self.normed, x, self.stem("ln1")), window=window, scale=scale)
        y = self.optional(y, ("ls1", "attn_out_scaled"), ("attn_post_norm", "attn_post_normed"))
        x = self.node("ffn_inp", "add", y, x)
        y = self.ffn(self.norm("ffn_inp_normed", x, self.stem("ln2")))
        y = self.optional(y, ("ffn_post_norm", "ffn_post_normed"), ("ls2", "ffn_out_scaled"))
        x = self.node("layer_out", "add", x, y)
        return self.optional(x, ("out_scale", "layer_out_scaled"))

    def optional(self, x: str, *parts: tuple[str, str]) -> str:
        """LayerScale and norms after a part, where the file has their tensors."""
        for stem, role in parts:
            weight = f"{self.stem(stem)}.weight"
            if not self.has(weight):
                continue
            x = self.norm(role, x, self.stem(stem)) if "norm" in stem else self.gain(role, x, weight)
        return x

    def gain(self, role: str, x: str, weight: str) -> str:
        return self.node(role, "mul_weight", x, weights=(weight,))

    def attention(self, x: str, *, window: bool, scale: float) -> str:
        keys = self.keys
        heads: dict[str, Any] = {"n_head": keys.n_head, "n_head_kv": keys.n_head_kv}
        q, k, v = self.qkv(x)
        for table, mode, offset in self.rope:
            last = (table, mode, offset) == self.rope[-1]
            end = self.turned if last else f"{self.turned}_{table.removeprefix('inp_rope_')}"
            q = self.node(f"Qcur_{end}", "rope_given", q, table, n_head=keys.n_head, mode=mode, offset=offset)
            k = self.node(f"Kcur_{end}", "rope_given", k, table, n_head=keys.n_head_kv, mode=mode, offset=offset)
        if keys.projector == "gemma4v":
            v = self.node("Vcur_normed", "rms_norm", v, eps=keys.eps, n_head=keys.n_head_kv)
        kq = self.node("kq", "kq", q, k, **heads)
        near: dict[str, Any] = {"window": 2} if window else {}  # positions of one window are equal, of others 2 apart
        p = self.node("kq_soft_max", "attn_softmax", kq, "inp_pos", "inp_pos", scale=scale, causal=False, **near)
        kqv = self.node("kqv", "kqv", p, v, n_head_kv=keys.n_head_kv)
        return self.linear("attn_out", self.node("kqv_out", "merge_heads", kqv), self.stem("attn_out"))

    def qkv(self, x: str) -> tuple[str, str, str]:
        """Query, key and value after bias and norm, before rotation: from three matrices or a fused one."""
        keys, found, start = self.keys, [], 0
        fused = self.has(f"{self.stem('attn_qkv')}.weight")
        if fused:
            x = self.linear("qkv", x, self.stem("attn_qkv"))
        for role, letter, n_head in (
            ("Qcur", "q", keys.n_head),
            ("Kcur", "k", keys.n_head_kv),
            ("Vcur", "v", keys.n_head_kv),
        ):
            width, norm = n_head * keys.head_dim, f"{self.stem(f'attn_{letter}_norm')}.weight"
            first = f"{role}_unnormed" if self.has(norm) else role
            if fused:
                y = self.node(first, "slice", x, start=start, stop=start + width)
            else:
                rows = self.shape(f"{self.stem(f'attn_{letter}')}.weight")[0]
                if rows != width:
                    raise AssayError(
                        f"{self.file.path}: {self.stem(f'attn_{letter}')}.weight: rows do not make the heads (found "
                        f"{rows}, expected {n_head} of {keys.head_dim})"
                    )
                y = self.linear(first, x, self.stem(f"attn_{letter}"), partial=f"{role}_proj")
            start += width
            if self.has(norm):
                y = self.head_norm(role, y, norm, n_head)
            found.append(y)
        return found[0], found[1], found[2]

    def head_norm(self, role: str, x: str, weight: str, n_head: int) -> str:
        """The tower's norm over each head, or over the whole width if the weight is that long."""
        whole = n_head > 1 and self.shape(weight) == (n_head * self.keys.head_dim,)
        heads: dict[str, Any] = {} if whole else {"n_head": n_head}
        op = "rms_norm" if self.rms else "layer_norm"
        return self.node(role, op, x, weights=(weight,), eps=self.keys.eps, **heads)

    def ffn(self, x: str) -> str:
        up, gate = (self.stem(f"ffn_{role}") for role in ("up", "gate"))
        y = self.linear(*self._named("ffn_up", x, up), partial="ffn_up")
        if self.has(f"{gate}.weight"):
            y = self.gated(self.linear(*self._named("ffn_gate", x, gate), partial="ffn_gate"), y)
        else:
            y = self.activation(y, self.keys.act)
        return self.linear("ffn_out", y, self.stem("ffn_down"), partial="ffn_down")

    def _named(self, role: str, x: str, stem: str) -> tuple[str, str, str]:
        """llama.cpp's name of a product after its bias ends in `_b`."""
        return (f"{role}_b" if self.has(f"{stem}.bias") else role), x, stem

    def activation(self, x: str, act: str, role: str = "") -> str:
        role = role or f"ffn_{act}"
        if act != "gelu_quick":
            return self.node(role, "act", x, act={"gelu": "gelu_tanh", "silu": "silu"}[act])
        y = self.node(f"{role}_sigmoid", "sigmoid", self.node(f"{role}_scaled", "scale", x, factor=QUICK))
        return self.node(role, "mul", x, y)

    def gated(self, gate: str, up: str) -> str:
        if self.keys.act == "gelu_quick":
            return self.node("ffn_geglu_quick", "mul", self.activation(gate, "gelu_quick"), up)
        role, act = {"gelu": ("ffn_geglu", "gelu_tanh"), "silu": ("ffn_swiglu", "silu")}[self.keys.act]
        return self.node(role, "glu", gate, up, act=act)

    # -- the projector -------------------------------------------------------------------------------------

    def merge(self, role: str, x: str, *, apart: bool = False) -> str:
        """The m×m patches of each token joined: row slow, column, channel fast; `apart`: channel slow."""
        n = self.keys.merge**2
        more: dict[str, Any] = {"apart": True} if apart else {}
        return self.node(role, "take_rows", x, self.input("inp_blocks", n), n=n, **more)

    def pool(self, role: str, x: str) -> str:
        """The mean of the m×m patches of each token."""
        return self.node(role, "mean_rows", x, self.input("inp_blocks", self.keys.merge**2))

    def mlp(self, x: str, first: str, second: str, *, out: str = "result_embd", prefix: str = "ffn") -> str:
        """second(GELU(first x)): every projector's GELU is the tanh form, whatever the tower uses."""
        role = f"{prefix}_up_b" if self.has(f"{first}.bias") else f"{prefix}_up"
        y = self.activation(self.linear(role, x, first, partial=f"{prefix}_up"), "gelu", f"{prefix}_gelu")
        return self.linear(out, y, second, partial=f"{prefix}_down")

    def graph(self, output: str) -> Graph:
        shapes: Mapping[str, tuple[int, ...]] = {name: info.shape for name, info in self.file.tensors.items()}
        return Graph(tuple(self.nodes), shapes, output, given=dict(self.given))


_CLAMPS = ("input_min", "input_max", "output_min", "output_max")
