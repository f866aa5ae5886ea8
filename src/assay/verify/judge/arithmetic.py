"""Legitimate arithmetics: the roundings of a right engine that computes in less than float64.

Each arithmetic is a set of roundings that are applied while the definition runs. They model real engines:

  f32     results in float32. A sum of n products p_i gets a random error with the standard deviation
          sqrt(n) * 2^-24 * sqrt(sum of p_i^2), for any order of summation. The error is not relative to the value
          itself, which may be small where large products cancel.
  f16     results, weights and cache in float16 (bf16: bfloat16), sums in float32
  Q8      as llama.cpp on a CPU: the operand of a product with a quantised matrix is quantised first, to Q8_0 (Q8_1
          with Q4_1 and Q5_1) for 32-blocks and Q8_K for 256-blocks; with an F16 or BF16 matrix it is rounded to that
  GELU    as llama.cpp on a CPU: GELU by a table of halves, its input and its value rounded to float16; the pixels and
          the kernel of a vision tower's patches rounded to float16
  f16 KV  keys and values kept in float16, queries and probabilities rounded to it before they are multiplied, and
          products of halves added up in 32 lanes of halves, as ggml does where the processor can
  q8 KV   keys and values kept in Q8_0 blocks, queries quantised to Q8_0 as well
  f16 weights   every tensor of the file decoded to halves and kept so; everything else in float32
  bf16 weights  the same with bfloat16: a model from a checkpoint that was published so, beside a finer file

Errors of summation are drawn from a generator that is seeded by the node's name, so every run draws the same.

How an operation rounds is a row of the tables `_INDEX_OPERANDS`, `_CACHE_OPERANDS`, `_GATES` and `_TERMS`, or follows
from its traits. Touch this module to model another kind of engine: a row of `ARITHMETICS`, and its roundings here.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.gguf import GGUFFile
from assay.graph import Graph, Node, Trait, split

Array = NDArray[Any]
UNIT = {"f32": 2.0**-24, "f16": 2.0**-11, "bf16": 2.0**-8}  # Half a unit in the last place, relative.
WITH_MINIMUM = ("Q4_1", "Q5_1")  # Types whose products take Q8_1.
_EXP = 4  # Half-units of error of a fast float32 exponential, and of a quotient by a sum of them.
_ANGLE = 8  # Half-units of error of a rotary angle: frequencies are often products of rounded factors.


@dataclass(frozen=True)
class SimulatedArithmetic:
    """Where it rounds: every result (`storage`), operands of quantised products, weights, the cache, GELU."""

    name: str
    storage: str = "f32"
    q8: bool = False
    f16_cache: bool = False
    q8_cache: bool = False
    gelu_table: bool = False
    f16_weights: bool = False
    bf16_weights: bool = False

    @property
    def unit(self) -> float:
        return UNIT[self.storage]

    @property
    def weights(self) -> str:
        """The 16-bit type that weights are kept in; empty where they are kept as the file has them."""
        return "bf16" if self.bf16_weights else "f16" if self.f16_weights else ""


# From the strictest to the most lenient; the first that explains a run is taken.
ARITHMETICS: tuple[SimulatedArithmetic, ...] = (
    SimulatedArithmetic("f32"),
    SimulatedArithmetic("f32, GELU table", gelu_table=True),
    SimulatedArithmetic("f16 KV", f16_cache=True, gelu_table=True),
    SimulatedArithmetic("f16 weights", f16_weights=True, gelu_table=True),
    SimulatedArithmetic("f16 weights, f16 KV", f16_weights=True, f16_cache=True, gelu_table=True),
    SimulatedArithmetic("Q8 activations", q8=True, gelu_table=True),
    SimulatedArithmetic("Q8 activations, f16 KV", q8=True, f16_cache=True, gelu_table=True),
    SimulatedArithmetic("Q8 activations, q8 KV", q8=True, f16_cache=True, q8_cache=True, gelu_table=True),
    SimulatedArithmetic("f16", storage="f16", f16_cache=True),
    SimulatedArithmetic("bf16 weights", bf16_weights=True),
    SimulatedArithmetic("bf16", storage="bf16"),
)


def round_to(x: Array, kind: str) -> Array:
    """x rounded to a float type, to nearest even, and back."""
    if kind == "f16":
        return x.astype(np.float16).astype(x.dtype)
    if kind == "bf16":
        bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
        up = ((bits >> 16) & 1) + np.uint32(0x7FFF)
        return ((bits + up) & np.uint32(0xFFFF0000)).view(np.float32).astype(x.dtype)
    return x.astype(np.float32).astype(x.dtype, copy=False)


def q8_0(x: Array) -> Array:
    """Blocks of 32: q = round(x / d), d = max|x| / 127 kept in float16."""
    blocks = x.reshape(-1, 32)
    d = np.abs(blocks).max(-1, keepdims=True) / 127
    q = np.round(blocks / np.where(d == 0, 1, d))
    return np.asarray(q * d.astype(np.float16).astype(x.dtype)).reshape(x.shape)


def q8_1_slip(x: Array) -> Array:
    """The error that Q8_1 adds for types with a minimum: m is multiplied by the block's sum, kept as a float16.

    [T, blocks].
    """
    blocks = x.reshape(x.shape[0], -1, 32)
    d = np.abs(blocks).max(-1) / 127
    total = np.round(blocks / np.where(d == 0, 1, d)[..., None]).sum(-1)
    return np.asarray((d * total).astype(np.float16).astype(x.dtype) - d.astype(np.float16).astype(x.dtype) * total)


def block_minima(file: GGUFFile, weight: str) -> Array:
    """The minimum m that every block of a type WITH_MINIMUM holds beside its scale, [O, blocks]."""
    info = file.tensors[weight]
    blocks = file.raw(weight).reshape(-1, info.shape[-1] // info.type.block_size, info.type.type_size)
    return blocks[..., 2:4].view(np.float16)[..., 0].astype(np.float32)


def q8_k(x: Array) -> Array:
    """Blocks of 256: q = round(x / d) with d = -(the value of largest size) / 127 in float32."""
    blocks = x.reshape(-1, 256)
    top = np.take_along_axis(blocks, np.abs(blocks).argmax(-1)[:, None], -1)
    d = np.where(top == 0, 1, -top / 127)
    return np.asarray(np.minimum(np.round(blocks / d), 127) * d).reshape(x.shape)


def quantise_for(file: GGUFFile, weight: str) -> Callable[[Array], Array] | None:
    """How llama.cpp's CPU backend rounds the other operand of a product with this tensor; None where it does not."""
    kind = file.tensors[weight].type
    if kind.name in ("F16", "BF16"):
        return lambda x: round_to(x, kind.name.lower())
    return {1: None, 32: q8_0, 256: q8_k}.get(kind.block_size)


def rounding_variance(file: GGUFFile, weight: str, x: Array) -> Array | None:
    """The variance of that rounding at each value, if it were random: the square of a step over twelve."""
    kind = file.tensors[weight].type
    if kind.name in ("F16", "BF16"):
        return np.asarray((x * x) * (UNIT[kind.name.lower()] ** 2 / 3), x.dtype)
    if kind.block_size == 1:
        return None
    step = np.abs(x.reshape(-1, kind.block_size)).max(-1, keepdims=True) / 127
    return np.asarray(np.repeat(step * step / 12, kind.block_size, axis=1), x.dtype).reshape(x.shape)


def operand(a: SimulatedArithmetic, file: GGUFFile, node: Node, i: int, x: Array) -> Array:
    """Input `i` of a node as this arithmetic reads it; the very same array where the arithmetic does not round it."""
    if x.dtype.kind != "f":
        return _INDEX_OPERANDS.get(node.op, _unchanged)(x)
    if i and (inexact := _TABLE_OPERANDS.get(node.op)) is not None:
        return inexact(node, x)
    if a.gelu_table and i == 0 and reads_halves(node) and not is_gelu(node):
        return round_to(x, "f16")
    if a.q8 and i == 0 and node.has(Trait.PRODUCT):
        quantise = quantise_for(file, node.weights[0])
        return x if quantise is None else quantise(product_rows(node, x))
    if a.f16_cache and i == 0 and node.has(Trait.ATTENDS):
        return _CACHE_OPERANDS[node.op](a, x)
    if a.gelu_table and i == 0 and is_gelu(node):
        gate = gate_width(node, x)
        return np.concatenate([round_to(x[..., :gate], "f16"), x[..., gate:]], axis=-1)
    if node.has(Trait.TRANSCENDENTAL):
        return np.asarray(x * (1 + a.unit * _noise(node, i, x.shape)), x.dtype)
    if a.storage != "f32":
        return round_to(x, a.storage)
    return x


def _unchanged(x: Array) -> Array:
    return x


def _inexact_positions(positions: Array) -> Array:
    """Positions that give inexact rotary angles. The error of a frequency is common to all positions. The rounding of
    each product is its own, and far into a text attention sees mostly that."""
    return positions * (1.0 + UNIT["f32"] * (_ANGLE + np.sin(7919.0 * positions)))


def _inexact_angles(node: Node, table: Array) -> Array:
    """Cosines, then sines, of angles that are off as those of positions are. The largest is about a side."""
    cos, sin = np.split(table, 2, axis=-1)
    error = UNIT["f32"] * math.sqrt(len(table)) * _noise(node, 8, cos.shape)
    return np.concatenate([cos - sin * error, sin + cos * error], axis=-1).astype(table.dtype)


def _inexact_shares(node: Node, shares: Array) -> Array:
    """The weights of a resized table: the place between two rows was computed in float32."""
    between = (shares != 0) & (shares != 1)
    return np.asarray(shares + between * (UNIT["f32"] * _ANGLE * 2 * _noise(node, 8, shares.shape)), shares.dtype)


def _whole_numbers(node: Node, last: Array) -> Array:
    """The last key that each query sees: a number of a row, exact in every arithmetic."""
    return last


def _query(a: SimulatedArithmetic, q: Array) -> Array:
    return _cached(q) if a.q8_cache else round_to(q, "f16")


def _probabilities(a: SimulatedArithmetic, p: Array) -> Array:
    return round_to(p, "f16")


# Operations that read tokens or positions, and what rounding does to these.
_INDEX_OPERANDS: dict[str, Callable[[Array], Array]] = {"rope": _inexact_positions}
# Operations that read a table which the caller computed for the picture, and what float32 does to its numbers.
_TABLE_OPERANDS: dict[str, Callable[[Node, Array], Array]] = {
    "rope_given": _inexact_angles,
    "mix_rows": _inexact_shares,
    "attn_softmax": _whole_numbers,
}
# Operations that multiply by cached rows, and how their first operand is rounded to meet the cache.
_CACHE_OPERANDS: dict[str, Callable[[SimulatedArithmetic, Array], Array]] = {"kq": _query, "kqv": _probabilities}


def is_matrix_product(node: Node) -> bool:
    """Does it multiply all tokens by one matrix, whatever the axes of its input?"""
    return node.op == "linear"


def product_rows(node: Node, x: Array) -> Array:
    """The first operand of a product as rows that the weight's rows multiply: one a token, or one a head or expert."""
    return x.reshape(len(x), -1) if is_matrix_product(node) else x


_GATES: dict[str, int] = {"glu_split": 2}  # operations that read gate and up as one row: parts of that row


def gate_width(node: Node, x: Array) -> int:
    """How many of the features of an activation's first operand are the gate; the gate comes first."""
    return int(x.shape[-1]) // _GATES.get(node.op, 1)


def is_gelu(node: Node) -> bool:
    """Is it a GELU, alone or as a gate? A quick GELU is three nodes, of which the last has the value."""
    if node.has(Trait.ACTIVATION):
        return bool(node.all_attrs().get("act") == "gelu_tanh")
    return split(node.name)[0] == "ffn_gelu_quick"


def is_patch_product(node: Node) -> bool:
    """Is it the convolution of a vision tower, a product over the pixels of each patch?"""
    return is_matrix_product(node) and node.inputs[0] in _PATCHES


_PATCHES = ("inp_patches", "inp_raw_scaled")


def reads_halves(node: Node) -> bool:
    """Does llama.cpp round its operand to halves on a CPU, whatever the type of its weights?"""
    return is_gelu(node) or is_patch_product(node) or split(node.name)[0] == "ffn_gelu_quick_scaled"


def summation(a: SimulatedArithmetic, file: GGUFFile, graph: Graph, node: Node, n_keys: int) -> float:
    """Error of a sum, relative to the root of the sum of its squared terms; rounded weights count as well."""
    n, product = _terms(graph, node, n_keys), node.has(Trait.PRODUCT)
    size = math.sqrt(n) * UNIT["f32"]
    if (a.storage != "f32" and product) or halved(a, file, node):
        size += a.unit if a.storage != "f32" else UNIT[a.weights]
    elif a.gelu_table and is_patch_product(node):
        size += UNIT["f16"]
    half = product and a.q8 and file.tensors[node.weights[0]].type.name == "F16"
    if half or (a.f16_cache and node.has(Trait.ATTENDS)):  # ggml adds halves in 32 half-precision lanes on ARM
        size += UNIT["f16"] * math.sqrt(max(2, n / 32))
    return size


def halved(a: SimulatedArithmetic, file: GGUFFile, node: Node) -> bool:
    """Does the arithmetic lose digits of this node's weights by keeping them in 16 bits?"""
    return bool(a.weights) and any(file.tensors[name].type.name != a.weights.upper() for name in node.weights)


def summed(
    a: SimulatedArithmetic, file: GGUFFile, graph: Graph, node: Node, y: Array, exact: Array, deviation: Array | None
) -> Array:
    """The result before it is stored; `exact` is the definition's, `deviation` the standard deviation of each sum."""
    if not node.has(Trait.SUMS) and halved(a, file, node):
        if node.has(Trait.TABLE) and not node.has(Trait.ELEMENTWISE):  # it copies rows of the rounded table
            return round_to(y, a.weights)
        y = np.asarray(y * (1 + UNIT[a.weights] * _noise(node, 5, y.shape)), y.dtype)
    if a.gelu_table and is_gelu(node):
        # The table's value is off by up to half a unit. All of it is allowed, and away from the exact value: one large
        # value of a row may outweigh the others, and a random draw could have spared it.
        away = np.where(np.abs(y) < np.abs(exact), -1, 1)
        return np.asarray(y * (1 + UNIT["f16"] * away), y.dtype)
    if deviation is not None:
        return np.asarray(y + deviation * _noise(node, 7, y.shape), y.dtype)
    if node.has(Trait.NORM):
        return np.asarray(y * (1 + math.sqrt(_terms(graph, node, 0)) * UNIT["f32"]), y.dtype)
    if node.has(Trait.TRANSCENDENTAL):
        return np.asarray(y * (1 + _EXP * UNIT["f32"] * _noise(node, 6, y.shape)), y.dtype)
    return y


def stored(a: SimulatedArithmetic, node: Node, y: Array) -> Array:
    """The result as it is kept."""
    if y.dtype.kind != "f":
        return y
    state = node.has(Trait.CACHES)
    if a.q8_cache and state:
        return _cached(y)
    return round_to(y, "f16" if a.f16_cache and state else a.storage)


def _cached(x: Array) -> Array:
    """A row of an eight-bit cache. Heads whose width is no multiple of a block stay in half precision, as in ggml."""
    return round_to(x, "f16") if x.shape[-1] % 32 else q8_0(x)


def _row_width(graph: Graph, node: Node, n_keys: int) -> int:
    """The values that one statistic of a norm is taken over: a head's, or the last axis."""
    shape = graph.shapes[node.name]
    heads = node.attr("n_head") if "n_head" in node.all_attrs() and len(shape) == 2 else 0
    return int(shape[-1]) // heads if heads else int(shape[-1])


def _input_width(graph: Graph, node: Node, n_keys: int) -> int:
    return int(graph.shapes[node.inputs[0]][-1])


def _chosen(graph: Graph, node: Node, n_keys: int) -> int:
    return int(graph.shapes[node.inputs[0]][1])


def _keys(graph: Graph, node: Node, n_keys: int) -> int:
    return n_keys


def _state_width(graph: Graph, node: Node, n_keys: int) -> int:
    return int(node.attr("state")[-1])


# How many terms a value of each operation sums; products sum over the columns of their weight, all others sum two.
def _adapter_terms(graph: Graph, node: Node, n_keys: int) -> int:
    return sum(graph.weights[node.weights[0]])  # the rank and the columns of A


_TERMS: dict[str, Callable[[Graph, Node, int], int]] = {
    "rms_norm": _row_width,
    "layer_norm": _input_width,
    "kq": _input_width,
    "kqv": _keys,
    "pool": _keys,
    "row_sum": _chosen,
    "expert_sum": _chosen,
    "add_adapter": _adapter_terms,
    **dict.fromkeys(("delta_rule", "ssm_scan", "wkv6", "wkv7"), _state_width),
}


def _terms(graph: Graph, node: Node, n_keys: int) -> int:
    """How many terms a value of this node sums."""
    if node.has(Trait.PRODUCT):
        return graph.weights[node.weights[0]][-1]
    count = _TERMS.get(node.op)
    return 2 if count is None else count(graph, node, n_keys)


def norm_terms(node: Node, x: Array, w: Array, b: Array | None = None) -> Array:
    """The squared terms of a LayerNorm as a sum: w x / sigma, w mean / sigma and the bias, which may cancel."""
    heads = x.reshape(x.shape[0], node.attr("n_head"), -1) if node.attr("n_head") and x.ndim == 2 else x
    mean = heads.mean(-1, keepdims=True)
    if w.size != heads.shape[-1]:  # each head has its own weights
        w = np.asarray(w).reshape(heads.shape[1:])
        b = b if b is None else np.asarray(b).reshape(heads.shape[1:])
    gain = w * w / (np.square(heads - mean).mean(-1, keepdims=True) + node.attr("eps"))
    squares = gain * (heads * heads + mean * mean)
    return np.asarray(squares if b is None else squares + b * b, x.dtype).reshape(x.shape)


def _noise(node: Node, salt: int, shape: tuple[int, ...]) -> Array:
    return (_drawn_small if math.prod(shape) <= _SMALL else _drawn_large)(node.name, salt, shape)


_SMALL = 1 << 13  # values of a draw of which many are kept, 8 MB in all: the next dump of a small model needs them too


def _drawn(name: str, salt: int, shape: tuple[int, ...]) -> Array:
    drawn = np.random.default_rng(zlib.crc32(f"{name}/{salt}".encode())).standard_normal(shape, np.float32)
    drawn.flags.writeable = False
    return drawn


# Every arithmetic draws the same at a node.
_drawn_small, _drawn_large = lru_cache(maxsize=256)(_drawn), lru_cache(maxsize=4)(_drawn)
