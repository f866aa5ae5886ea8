"""Hyper-parameters: the numbers that a builder needs, with a row for each layer.

`HParams.read` reads the keys that all architectures share and makes a row for every layer. A builder then changes the
rows of some layers (`each`): a window and another RoPE base on local layers, no rotation on every fourth, experts after
the leading dense layers. Touch this when a layer can differ in a new respect.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any

from assay.models.arch_keys import ArchKeys

EPS_KEYS = {"rms": "attention.layer_norm_rms_epsilon", "layer": "attention.layer_norm_epsilon"}
_BLOCK = re.compile(r"^blk\.(\d{1,9})\.")


def yarn_magnitude(factor: float, c: float = 1.0) -> float:
    """YaRN multiplies the rotated values by m(c) = 1 + 0.1 c ln(factor) if the context is extended."""
    return 1.0 + 0.1 * c * math.log(factor) if factor > 1 else 1.0


@dataclass(frozen=True)
class RopeParams:
    """Rotary embedding: `theta_i = pos * base^(-2i/n_rot)`, then scaling by `kind`."""

    n_rot: int
    base: float
    mode: str = "norm"  # "norm": pairs (2i, 2i+1); "neox": (i, i + n_rot/2)
    kind: str = "linear"  # "none" | "linear" | "yarn" | "longrope"
    factor: float = 1.0  # context extension; positions are divided by it
    n_ctx_orig: int = 0
    magnitude: float = 1.0  # multiplies the rotated values, YaRN's own part included
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    factors: str = ""  # tensor that divides each pair's angle
    still: tuple[int, ...] = ()  # pairs that do not turn

    def attrs(self) -> dict[str, Any]:
        """The attributes of a `rope` node; those at their default are left out."""
        found: dict[str, Any] = {"n_rot": self.n_rot, "base": self.base, "mode": self.mode}
        magnitude = self.magnitude
        if self.factor != 1.0:
            found["freq_scale"] = 1.0 / self.factor
        if self.kind == "yarn":
            found |= {
                "ext_factor": 1.0,
                "beta_fast": self.beta_fast,
                "beta_slow": self.beta_slow,
                "n_ctx_orig": self.n_ctx_orig,
            }
            magnitude /= 1.0 + 0.1 * math.log(self.factor)  # the operation multiplies by this
        if self.still:
            found["still"] = self.still
        if abs(magnitude - 1.0) > 1e-12:
            found["attn_factor"] = magnitude
        return found

    def unscaled(self, base: float | None = None) -> RopeParams:
        """The same rotation over the original context."""
        return replace(self, kind="none", factor=1.0, magnitude=1.0, factors="", base=base or self.base)


@dataclass(frozen=True)
class Experts:
    """How a layer routes tokens to experts: all choices of a mixture of experts, as data."""

    count: int
    used: int
    gate: str = "softmax"  # "softmax" | "sigmoid" | "none": turns the router's logits into probabilities
    choose: str = "probs"  # "probs" | "logits": the values that experts are chosen by
    normalise: bool = True  # divide the weights of the chosen experts by their sum
    softmax_chosen: bool = False  # softmax over the chosen instead
    scale: float = 1.0  # multiplies the weights
    groups: int = 1
    groups_used: int = 1
    weigh_input: bool = False  # the weights multiply the experts' input, not their output
    act: str = "swiglu"  # "swiglu" | "geglu" | "swiglu_oai"; without a gate "relu_sqr" | "gelu"


@dataclass(frozen=True)
class Temperature:
    """q * (1 + beta * ln(floor((pos + offset) / unit) + 1)): sharper attention at later positions."""

    beta: float
    unit: int
    offset: int = 0


@dataclass(frozen=True)
class Layer:
    """The dimensions and choices of one block."""

    n_head: int
    n_head_kv: int
    n_embd_head: int  # width of a query and key head
    n_embd_head_v: int
    n_ff: int  # 0 where the file does not say
    scale: float  # of the scores
    rope: RopeParams | None  # None: queries and keys are not rotated
    window: int = 0  # keys a query sees, itself included; 0: all
    chunk: int = 0  # attention stays inside chunks of this many positions; 0: no chunks
    causal: bool = True
    max_bias: float = 0.0  # ALiBi
    cap: float = 0.0  # softcap of the scores
    scale_query: bool = False  # the scale multiplies the query, not the scores
    temperature: Temperature | None = None
    experts: Experts | None = None
    recurrent: bool = False  # the layer keeps a state of fixed size instead of keys and values


@dataclass(frozen=True)
class HParams:
    """The numbers of a model, under llama.cpp's names; `layers` has a row for each block that is run."""

    arch: str
    n_embd: int
    n_vocab: int
    n_ctx_train: int
    eps: float
    rope: RopeParams  # as the file describes it; a layer's row says what the layer does
    layers: tuple[Layer, ...]
    axes: tuple[int, ...] = ()  # M-RoPE: which of the positions t, y, x turns each pair; empty: one position
    n_deepstack: int = 0  # layers whose output takes a further part of a picture's rows

    # Where all layers are alike, these are every layer's; else those of the first layer with attention.

    @property
    def n_layer(self) -> int:
        return len(self.layers)

    @property
    def _shown(self) -> Layer:
        return next((layer for layer in self.layers if layer.n_head and layer.n_head_kv), self.layers[0])

    @property
    def n_head(self) -> int:
        return self._shown.n_head

    @property
    def n_head_kv(self) -> int:
        return self._shown.n_head_kv

    @property
    def n_embd_head(self) -> int:
        return self._shown.n_embd_head

    @property
    def n_embd_head_v(self) -> int:
        return self._shown.n_embd_head_v

    @property
    def n_ff(self) -> int:
        return next((layer.n_ff for layer in self.layers if layer.n_ff), 0)

    @property
    def attn_scale(self) -> float:
        return self._shown.scale

    @property
    def n_expert(self) -> int:
        return max((layer.experts.count for layer in self.layers if layer.experts), default=0)

    @property
    def n_expert_used(self) -> int:
        return max((layer.experts.used for layer in self.layers if layer.experts), default=0)

    def each(self, change: Callable[[int, Layer], Layer]) -> HParams:
        """The same with every layer's row replaced by `change(index, row)`."""
        return replace(self, layers=tuple(change(i, layer) for i, layer in enumerate(self.layers)))

    def with_row(self, row: Layer) -> HParams:
        """The same with a further layer after the last: a draft head."""
        return replace(self, layers=(*self.layers, row))

    @staticmethod
    def read(
        meta: ArchKeys,
        tensors: Collection[str],
        n_vocab: int,
        *,
        norm: str = "rms",
        mode: str = "norm",
        least_heads: int = 1,
    ) -> HParams:
        """Read the keys that all architectures share. `norm` selects the key of eps, `mode` the pairing of RoPE.

        With `least_heads` 0, a layer may have no heads: it has no attention, or no attention of the usual kind.
        """
        n_layer = _blocks(meta, tensors)
        n_embd = meta.count("embedding_length")
        heads = meta.counts("attention.head_count", n_layer, least=least_heads)
        kv_heads = meta.counts("attention.head_count_kv", n_layer, heads, least=least_heads)
        for n_head, n_head_kv in zip(heads, kv_heads, strict=True):
            if n_head_kv and n_head % n_head_kv:
                raise meta.error("attention.head_count_kv", n_head_kv, f"a divisor of head_count {n_head}")
        first = next((n for n in heads if n), 1)
        if "attention.key_length" not in meta and n_embd % first:
            raise meta.error("attention.head_count", first, f"a divisor of embedding_length {n_embd}")
        width = meta.count("attention.key_length", n_embd // first)
        width_v = meta.count("attention.value_length", max(1, n_embd // first))
        n_ff = meta.counts("feed_forward_length", n_layer, 0, least=0)
        rope = read_rope(meta, meta.count("rope.dimension_count", width), mode)
        eps = meta.positive(EPS_KEYS[norm])
        experts, causal = _experts(meta, n_layer), meta.flag("attention.causal", True)
        layers = [
            Layer(heads[i], kv_heads[i], width, width_v, n_ff[i], width**-0.5, rope, causal=causal, experts=experts[i])
            for i in range(n_layer)
        ]
        n_ctx = meta.count("context_length")
        return HParams(meta.arch, n_embd, n_vocab, n_ctx, eps, rope, tuple(layers))


def read_rope(meta: ArchKeys, n_rot: int, mode: str) -> RopeParams:
    """Base and scaling; YaRN's magnitude is the one of most architectures, m(1)."""
    if n_rot % 2 and "rope.dimension_count" in meta:  # heads without rotation may have any width
        raise meta.error("rope.dimension_count", n_rot, "an even number")
    kind = meta.choice("rope.scaling.type", "linear", ("none", "linear", "yarn", "longrope"))
    key = "rope.scaling.factor" if "rope.scaling.factor" in meta else "rope.scale_linear"
    factor = meta.number(key, 1.0) or 1.0  # 0 is written for none
    if factor < 1e-3:
        raise meta.error(key, factor, "0.001 or more")
    factor = 1.0 if kind == "none" else factor
    base = meta.positive("rope.freq_base", 10000.0)
    if base == 1.0:
        raise meta.error("rope.freq_base", base, "another number than 1")
    magnitude = meta.positive("rope.scaling.attn_factor", 1.0)
    return RopeParams(
        n_rot=n_rot,
        base=base,
        mode=mode,
        kind=kind,
        factor=factor,
        n_ctx_orig=meta.count("rope.scaling.original_context_length", meta.count("context_length")),
        magnitude=magnitude * yarn_magnitude(factor) if kind == "yarn" else magnitude,
    )


def _experts(meta: ArchKeys, n_layer: int) -> list[Experts | None]:
    """The number of experts, of used ones and of groups, for each layer. The builder says how experts are chosen."""
    count = meta.count("expert_count", 0, least=0)
    used = meta.counts("expert_used_count", n_layer, 0, least=0)
    most = max(used)
    if most > count or (count and not most):
        raise meta.error("expert_used_count", most, f"1 to expert_count {count}")
    groups = meta.count("expert_group_count", 0, least=0)
    chosen = meta.count("expert_group_used_count") if groups > 1 else 1
    return [Experts(count, n, groups=max(groups, 1), groups_used=chosen) if n else None for n in used]  # none: dense


def _blocks(meta: ArchKeys, tensors: Collection[str]) -> int:
    """How many blocks are run: all except the last ones, which only draft tokens.

    Checked before any loop over blocks: the file must hold every block that is run, and none beyond `block_count`.
    """
    blocks, drafts = meta.count("block_count"), meta.count("nextn_predict_layers", 0, least=0)
    if drafts >= blocks:
        raise meta.error("nextn_predict_layers", drafts, f"less than the {blocks} blocks")
    present = {int(m[1]) for name in tensors if (m := _BLOCK.match(name))}
    run = sum(block < blocks - drafts for block in present)
    if run != blocks - drafts or max(present) >= blocks:
        raise meta.error("block_count", blocks, f"{len(present)}, the blocks whose tensors are present")
    return run
