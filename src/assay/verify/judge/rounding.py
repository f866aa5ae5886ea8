"""Rounding rules: the exact numbers that a rounding engine gives, where `noise` only asks how large the errors are.

Quantised activations and a half-precision cache round by a rule. An engine that applies the same rule to the same
values gets the same numbers, except for a few values at the edge of a rounding step. So the values of such an engine
can be predicted far below its noise, and a fault smaller than the noise shows. The rules of real engines:

  f16 KV        keys, values, queries and probabilities in half precision
  q8 KV         keys, values and queries in blocks of eight bits; the scale as of Q8, or a half first
  Q8            as llama.cpp: blocks of integers from a float32 scale, which is kept as a half; GELU by a table
  Q8, half      the scale is rounded to a half before the division
  f16, bf16     every result
  f16 weights   every tensor of the file, or its matrices alone (norms, biases and kernels stay as they are);
                bf16 weights the same

Touch this module to add a rule: a row of `_RULES`, and its roundings in `hooks`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.engines.reference import Hooks
from assay.engines.reference.weights import Table, Weights
from assay.gguf import GGUFFile
from assay.graph import Graph, Node, Trait
from assay.verify.judge.arithmetic import (
    ARITHMETICS,
    SimulatedArithmetic,
    gate_width,
    is_gelu,
    product_rows,
    q8_0,
    quantise_for,
    round_to,
)

Array = NDArray[Any]


@dataclass(frozen=True)
class Rounding:
    """A rounding rule; `as_coarse` is the arithmetic whose noise covers it."""

    name: str
    as_coarse: str
    storage: str = ""
    half_cache: bool = False
    q8: bool = False
    half_scale: bool = False
    table: bool = False
    half_weights: bool = False
    brain_weights: bool = False
    matrices: bool = False  # of the weights, matrices alone are rounded
    q8_cache: bool = False


EXACT = Rounding("float32", "f32")
_Q8_CACHE = "Q8 activations, q8 KV"
_RULES = (
    Rounding("a half cache", "f16 KV", half_cache=True),
    Rounding("weights in half precision", "f16 weights", half_weights=True),
    Rounding("matrices in half precision", "f16 weights", half_weights=True, matrices=True),
    Rounding("weights in half precision and a half cache", "f16 weights, f16 KV", half_cache=True, half_weights=True),
    Rounding("Q8 activations", "Q8 activations", q8=True, table=True),
    Rounding("Q8 activations with half scales", "Q8 activations", q8=True, half_scale=True),
    Rounding("Q8 activations and a half cache", "Q8 activations, f16 KV", half_cache=True, q8=True, table=True),
    Rounding(
        "Q8 activations with half scales and a half cache",
        "Q8 activations, f16 KV",
        half_cache=True,
        q8=True,
        half_scale=True,
    ),
    Rounding("a cache of eight bits", _Q8_CACHE, q8_cache=True),
    Rounding("a cache of eight bits with half scales", _Q8_CACHE, q8_cache=True, half_scale=True),
    Rounding("Q8 activations and a cache of eight bits", _Q8_CACHE, q8_cache=True, q8=True, table=True),
    Rounding(
        "Q8 activations and a cache of eight bits with half scales", _Q8_CACHE, q8_cache=True, q8=True, half_scale=True
    ),
    Rounding("half precision", "f16", storage="f16"),
    Rounding("weights in bfloat16", "bf16 weights", brain_weights=True),
    Rounding("matrices in bfloat16", "bf16 weights", brain_weights=True, matrices=True),
    Rounding("bfloat16", "bf16", storage="bf16"),
)


def roundings(most: SimulatedArithmetic) -> list[Rounding]:
    """The rules that are no coarser than this arithmetic, and float32.

    The noise of halved weights, quantised operands or a GELU table hides a half-precision cache. So rules with such a
    cache are listed as well. The noise of weights in bfloat16 is as large as that of results in bfloat16.
    """
    names = [a.name for a in ARITHMETICS]
    if most.bf16_weights:
        most = next(a for a in ARITHMETICS if a.storage == "bf16")
    if most.gelu_table and not most.f16_cache:
        most = next(a for a in ARITHMETICS if a.f16_cache and (a.q8, a.f16_weights) == (most.q8, most.f16_weights))
    return [EXACT, *(r for r in _RULES if names.index(r.as_coarse) <= names.index(most.name))]


class Halved(Weights):
    """Other weights, each rounded to a half, or to a bfloat16; those of `only`, if given."""

    def __init__(self, weights: Weights, kind: str = "f16", only: frozenset[str] | None = None) -> None:
        super().__init__(weights.file, weights.dtype, budget=0)
        self._whole, self._kind, self._only = weights, kind, only
        self._halves: dict[str, Array] = {}

    def __getitem__(self, name: str) -> Any:
        if self._only is not None and name not in self._only:
            return self._whole[name]
        if name not in self._halves:
            whole = self._whole[name]
            if not isinstance(whole, np.ndarray):
                return _Rows(whole, self._kind)
            self._halves[name] = _kept(whole, self._kind)
        return self._halves[name].astype(self.dtype)

    def rows(self, name: str) -> Any:
        if self._only is not None and name not in self._only:
            return self._whole.rows(name)
        return _Rows(self._whole.rows(name), self._kind)


def _kept(values: Array, kind: str) -> Array:
    """The values in two bytes each, or in float32 where NumPy has no such type."""
    return values.astype(np.float16) if kind == "f16" else round_to(values.astype(np.float32), kind)


class _Rows:
    """A matrix whose rows are rounded as they are read."""

    def __init__(self, matrix: Array | Table, kind: str) -> None:
        self._matrix, self.shape, self._kind = matrix, matrix.shape, kind

    def __getitem__(self, rows: Any) -> Array:
        return round_to(self._matrix[rows], self._kind)


def weights_of(rule: Rounding, weights: Weights, graph: Graph) -> Weights:
    """The weights as a run that obeys the rule reads them."""
    kind = "bf16" if rule.brain_weights else "f16" if rule.half_weights else ""
    if not kind:
        return weights
    only = frozenset(node.weights[0] for node in graph if node.has(Trait.MATRIX)) if rule.matrices else None
    return Halved(weights, kind, only)


def hooks(rule: Rounding, file: GGUFFile) -> Hooks | None:
    """The rule as hooks for a run of the graph; None for float32."""
    if rule == EXACT:
        return None

    def operand(node: Node, i: int, x: Array) -> Array:
        if i or x.dtype.kind != "f":
            return x
        if rule.q8 and node.has(Trait.PRODUCT) and node.weights:
            quantise = _half_scaled if rule.half_scale and _blocks_of_32(file, node) else quantise_for(
                file, node.weights[0]
            )  # fmt: skip
            return x if quantise is None else quantise(product_rows(node, x))
        if rule.half_cache and node.has(Trait.ATTENDS):
            return round_to(x, "f16")
        if rule.q8_cache and node.has(Trait.KEYS):  # the query meets keys in eight bits
            return cached(x)
        if rule.table and is_gelu(node):
            return round_to(x, "f16") if gate_width(node, x) == x.shape[-1] else x
        return x

    def cached(x: Array) -> Array:
        return round_to(x, "f16") if x.shape[-1] % 32 else (_half_scaled if rule.half_scale else q8_0)(x)

    def result(node: Node, y: Array) -> Array:
        if y.dtype.kind != "f":
            return y
        if rule.q8_cache and node.has(Trait.CACHES):
            return cached(y)
        if rule.storage:
            return round_to(y, rule.storage)
        return round_to(y, "f16") if rule.half_cache and node.has(Trait.CACHES) else y

    return Hooks(operand, result)


def _blocks_of_32(file: GGUFFile, node: Node) -> bool:
    return file.tensors[node.weights[0]].type.block_size == 32


def _half_scaled(x: Array) -> Array:
    blocks = x.reshape(-1, 32)
    d = (np.abs(blocks).max(-1, keepdims=True) / 127).astype(np.float16).astype(x.dtype)
    return np.asarray(np.round(blocks / np.where(d == 0, 1, d)) * d).reshape(x.shape)
