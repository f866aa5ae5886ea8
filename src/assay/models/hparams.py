"""Hyper-parameters, read from metadata with every value checked before anything divides by it."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from assay.errors import AssayError
from assay.gguf import GGUFFile

_TINY = 1e-20  # numbers beyond it and its inverse overflow in the formulas that use them
_BLOCK = re.compile(r"^blk\.([0-9]{1,9})\.")


@dataclass(frozen=True)
class Rope:
    """Rotary embedding: `theta_i = pos * base^(-2i/n_rot)`, then scaling by `kind`."""

    n_rot: int
    base: float
    kind: str  # "none" | "linear" | "yarn"
    factor: float  # context extension; positions are divided by it
    n_ctx_orig: int
    ext_factor: float
    attn_factor: float
    beta_fast: float
    beta_slow: float

    def attrs(self, mode: str) -> dict[str, Any]:
        """The attributes of a `rope` node; those at their default are left out."""
        found: dict[str, Any] = {"n_rot": self.n_rot, "base": self.base, "mode": mode}
        if self.kind != "none":
            found["freq_scale"] = 1.0 / self.factor
        if self.kind == "yarn":
            found |= {
                "ext_factor": self.ext_factor,
                "beta_fast": self.beta_fast,
                "beta_slow": self.beta_slow,
                "n_ctx_orig": self.n_ctx_orig,
            }
        if self.attn_factor != 1.0:
            found["attn_factor"] = self.attn_factor
        return found


@dataclass(frozen=True)
class HParams:
    """The numbers every builder needs, under llama.cpp's names."""

    arch: str
    n_layer: int
    n_embd: int
    n_head: int
    n_head_kv: int
    n_embd_head: int  # width of a query and key head
    n_embd_head_v: int
    n_ff: int
    n_vocab: int
    n_ctx_train: int
    eps: float
    attn_scale: float
    window: int  # sliding attention window, 0 for none
    n_expert: int
    n_expert_used: int
    rope: Rope

    @staticmethod
    def read(file: GGUFFile, arch: str) -> HParams:
        """Read and check; a bad value names its key, what was found and what was expected."""
        get = _Reader(file, arch)
        n_layer = get.count("block_count")
        n_embd = get.count("embedding_length")
        n_head = get.count("attention.head_count")
        n_head_kv = get.count("attention.head_count_kv", n_head)
        if n_head % n_head_kv:
            raise get.error("attention.head_count_kv", n_head_kv, f"a divisor of head_count {n_head}")
        if "attention.key_length" not in get and n_embd % n_head:
            raise get.error("attention.head_count", n_head, f"a divisor of embedding_length {n_embd}")
        n_embd_head = get.count("attention.key_length", n_embd // n_head)
        _check_blocks(file, get, n_layer)
        n_expert = get.count("expert_count", 0, least=0)
        n_expert_used = get.count("expert_used_count", 0, least=0)
        if n_expert_used > n_expert or (n_expert and not n_expert_used):
            raise get.error("expert_used_count", n_expert_used, f"1 to expert_count {n_expert}")
        return HParams(
            arch=arch,
            n_layer=n_layer,
            n_embd=n_embd,
            n_head=n_head,
            n_head_kv=n_head_kv,
            n_embd_head=n_embd_head,
            n_embd_head_v=get.count("attention.value_length", n_embd_head),
            n_ff=get.count("feed_forward_length"),
            n_vocab=_vocabulary(file),
            n_ctx_train=get.count("context_length"),
            eps=get.positive("attention.layer_norm_rms_epsilon", 1e-5),
            attn_scale=get.positive("attention.scale", 1.0 / math.sqrt(n_embd_head)),
            window=get.count("attention.sliding_window", 0, least=0),
            n_expert=n_expert,
            n_expert_used=n_expert_used,
            rope=_rope(get, n_embd_head),
        )


class _Reader:
    """Reads `arch.key` and complains in one voice."""

    def __init__(self, file: GGUFFile, arch: str) -> None:
        self.file, self.arch = file, arch

    def __contains__(self, key: str) -> bool:
        return f"{self.arch}.{key}" in self.file.metadata

    def error(self, key: str, found: object, expected: str) -> AssayError:
        return AssayError(f"{self.file.path}: {self.arch}.{key}: bad value (found {found}, expected {expected})")

    def count(self, key: str, default: int | None = None, *, least: int = 1) -> int:
        """A whole number in 1..2^31-1; an array is accepted where all layers agree."""
        full = f"{self.arch}.{key}"
        if full not in self.file.metadata:
            if default is None:
                raise AssayError(f"{self.file.path}: {full}: missing from the metadata; the file is incomplete")
            return default
        value = self.file.metadata[full]
        if isinstance(value, np.ndarray) and value.dtype.kind in "iu":
            if value.size == 0 or (value != value[0]).any():
                raise self.error(key, "different values per layer", "one value for all layers")
            value = int(value[0])
        else:
            value = self.file.get_int(full)
        if not least <= value < 2**31:
            raise self.error(key, value, f"{least} to 2147483647")
        return value

    def positive(self, key: str, default: float) -> float:
        value = float(self.file.get_float(f"{self.arch}.{key}", default))
        if not _TINY <= value <= 1 / _TINY:
            raise self.error(key, value, f"a number from {_TINY:g} to {1 / _TINY:g}")
        return value


def _rope(get: _Reader, n_embd_head: int) -> Rope:
    n_rot = get.count("rope.dimension_count", n_embd_head)
    if n_rot % 2 or n_rot > n_embd_head:
        raise get.error("rope.dimension_count", n_rot, f"an even number up to the head width {n_embd_head}")
    kind = get.file.get_str(f"{get.arch}.rope.scaling.type", "")
    factor = get.positive("rope.scaling.factor", get.positive("rope.scale_linear", 1.0))
    if kind == "":
        kind = "linear" if factor != 1.0 else "none"
    if kind not in ("none", "linear", "yarn"):
        raise get.error("rope.scaling.type", repr(kind), "none, linear or yarn")
    n_ctx_orig = get.count("rope.scaling.original_context_length", get.count("context_length"))
    base = get.positive("rope.freq_base", 10000.0)
    if kind == "yarn" and base <= 1:
        raise get.error("rope.freq_base", base, "a number above 1, for YaRN divides by its logarithm")
    return Rope(
        n_rot=n_rot,
        base=base,
        kind=kind,
        factor=factor if kind != "none" else 1.0,
        n_ctx_orig=n_ctx_orig,
        ext_factor=get.positive("rope.scaling.yarn_ext_factor", 1.0) if kind == "yarn" else 0.0,
        attn_factor=get.positive("rope.scaling.attn_factor", 1.0),
        beta_fast=get.positive("rope.scaling.yarn_beta_fast", 32.0),
        beta_slow=get.positive("rope.scaling.yarn_beta_slow", 1.0),
    )


def _vocabulary(file: GGUFFile) -> int:
    """Rows of the embedding table: the only vocabulary size that cannot lie."""
    table = file.tensors.get("token_embd.weight")
    if table is None or len(table.shape) != 2:
        raise AssayError(f"{file.path}: token_embd.weight: missing or not a matrix; there is no model in this file")
    return table.shape[0]


def _check_blocks(file: GGUFFile, get: _Reader, n_layer: int) -> None:
    """Before anybody loops over `n_layer`: the file must hold exactly those blocks."""
    present = {int(m[1]) for name in file.tensors if (m := _BLOCK.match(name))}
    top = max(present, default=-1) + 1
    if top != n_layer:
        raise get.error("block_count", n_layer, f"{top}, the blocks whose tensors are present")
