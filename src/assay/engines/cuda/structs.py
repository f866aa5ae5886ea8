"""The arguments of the kernels, field by field as native/cuda declares them. The shim checks the sizes."""

from __future__ import annotations

import ctypes
from ctypes import c_double, c_float, c_int32, c_int64, c_uint64
from typing import Any

_POINTER, _I32, _I64, _F32 = c_uint64, c_int32, c_int64, c_float


def _struct(name: str, *fields: tuple[str, Any]) -> type[ctypes.Structure]:
    return type(name, (ctypes.Structure,), {"_fields_": list(fields)})


def _all(kind: Any, names: str) -> list[tuple[str, Any]]:
    return [(name, kind) for name in names.split()]


Matrix = _struct(
    "Matrix",
    ("data", _POINTER),
    ("group_bytes", _I64),
    *_all(_I32, "format rows columns units group tiles tile_bytes all_rows"),
)
Acts = _struct("Acts", *_all(_POINTER, "q ds n"), *_all(_I32, "stride step"))
Product = _struct(
    "Product",
    ("w", Matrix),
    *_all(_POINTER, "out bias residual gate_out up_out"),
    *_all(_I32, "out_stride first_group paired act"),
)
ProductArgs = _struct(
    "ProductArgs",
    ("parts", Product * 4),
    ("acts", Acts),
    *_all(_POINTER, "x norm experts"),
    ("expert_bytes", _I64),
    *_all(_I32, "n_parts groups tokens columns x_stride prologue"),
    ("eps", _F32),
    *_all(_I32, "rows_of_x n_experts slots share extra shift stages"),
)
TensorArgs = _struct(
    "TensorArgs",
    ("product", ProductArgs),
    ("factors", _POINTER * 4),
    ("codes", _I32 * 4),
    ("pairs", _I32 * 4),
    *_all(_POINTER, "partial arrived"),
    *_all(_I32, "room chains split padding"),
)
SortArgs = _struct("SortArgs", *_all(_POINTER, "experts pairs matrices"), *_all(_I32, "count n tile tiles"))
PairArgs = _struct("PairArgs", *_all(_POINTER, "x pairs"), ("acts", Acts), *_all(_I32, "width share"))
SortedArgs = _struct("SortedArgs", ("product", ProductArgs), *_all(_POINTER, "pairs matrices"))
FactorArgs = _struct("FactorArgs", ("w", Matrix), ("out", _POINTER), ("tiles", _I64), *_all(_I32, "chunks padding"))
Pool = _struct("Pool", ("offset", _I64), *_all(_I32, "type keys heads dim head_bytes columns first padding"))
Cache = _struct("Cache", ("pages", _POINTER), *_all(_I64, "page_bytes positions_at"))
Rows = _struct("Rows", *_all(_POINTER, "tokens positions slots tables pages"))
Mask = _struct(
    "Mask", *_all(_POINTER, "sinks slopes"), *_all(_I32, "window chunk causal padding"), *_all(_F32, "scale cap")
)
AttentionArgs = _struct(
    "AttentionArgs",
    *_all(_POINTER, "q k v turn out partial arrived tiles kq state"),
    ("cache", Cache),
    ("keys", Pool),
    ("values", Pool),
    ("rows", Rows),
    ("mask", Mask),
    ("query_rows", _POINTER),
    *_all(_I32, "heads n_rot neox n_tokens splits irregular turn_k max_blocks"),
)

TensorAttentionArgs = _struct("TensorAttentionArgs", ("of", AttentionArgs), *_all(_I32, "halved padding"))


WalkAttention = _struct(
    "WalkAttention", ("of", AttentionArgs), *_all(_POINTER, "q_norm k_norm"), *_all(_F32, "eps factor")
)
Norm = _struct(
    "Norm", *_all(_POINTER, "x w b residual out more sum"), *_all(_I32, "columns first centred"), ("eps", _F32)
)
NormArgs = _struct("NormArgs", ("parts", Norm * 2), *_all(_I32, "n_parts tokens tasks padding"))


class StepUnion(ctypes.Union):
    _fields_ = (("product", ProductArgs), ("attention", WalkAttention), ("norm", NormArgs))


WalkStep = _struct(
    "WalkStep",
    *_all(_I32, "kind fresh heads of_block dim_shift per_group in_copies in_bytes out_copies out_bytes"),
    *_all(_I32, "first ahead second per_row"),
    ("args", StepUnion),
)
WalkArgs = _struct("WalkArgs", *_all(_POINTER, "steps slot"), *_all(_I32, "n_steps slots room rows"))
ClearArgs = _struct("ClearArgs", ("at", _POINTER), ("vectors", _I64))
ShortArgs = _struct("ShortArgs", ("attention", AttentionArgs), ("acts", Acts), *_all(_I32, "copies padding"))
MapArgs = _struct(
    "MapArgs",
    *_all(_POINTER, "x y z out"),
    ("rows", _I64),
    *_all(_I32, "width x_width y_width op integer z_rows parts padding"),
    *_all(_F32, "number second"),
)
RowArgs = _struct(
    "RowArgs",
    *_all(_POINTER, "x w b out"),
    ("acts", Acts),
    *_all(_I32, "width parts"),
    ("eps", _F32),
    ("w_step", _I32),
)
HalveArgs = _struct(
    "HalveArgs",
    *_all(_POINTER, "x norm out"),
    *_all(_I32, "width stride room"),
    ("eps", _F32),
    *_all(_I32, "kind padding"),
)
StepArgs = _struct(
    "StepArgs",
    ("rows", Rows),
    ("cache", Cache),
    ("pool", Pool),
    ("table", Matrix),
    *_all(_POINTER, "x out frequencies which"),
    ("n", _I64),
    *_all(_I32, "width n_rot"),
    ("magnitude", _F32),
    ("kind", _I32),
)
RopeArgs = _struct(
    "RopeArgs", *_all(_POINTER, "x table out"), ("rows", _I64), *_all(_I32, "width heads n_rot neox offset padding")
)
PositionArgs = _struct(
    "PositionArgs",
    *_all(_POINTER, "x out which"),
    ("beta", c_double),
    *_all(_I64, "unit offset"),
    *_all(_I32, "width padding"),
)
ScoreArgs = _struct(
    "ScoreArgs",
    *_all(_POINTER, "x y out chunks positions key_positions"),
    ("mask", Mask),
    *_all(_I32, "heads kv_heads dim op"),
)
BestArgs = _struct(
    "BestArgs", *_all(_POINTER, "x lists out tokens positions slots left"), *_all(_I32, "width n_lists k padding")
)
RepackArgs = _struct(
    "RepackArgs",
    *_all(_POINTER, "raw d m"),
    ("to", Matrix),
    *_all(_I64, "first_row rows row_bytes"),
    *_all(_I32, "half part"),
)

_LAYOUTS = (
    "f32", "f16", "bf16", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "iq4_nl", "iq4_xs", "mxfp4", "wide16", "wide16_min",
    "q4_k_q6_k", "q5_k_q6_k",
)  # fmt: skip
# Layouts of the weights of each walk: of one kind, or of a first and a second kind.
WALKS: tuple[tuple[str, ...], ...] = (
    ("f32",), ("f16",), ("bf16",), ("q5_0",), ("q5_1",), ("q8_0",), ("iq4_nl",), ("iq4_xs",), ("mxfp4",), ("wide16",),
    ("wide16_min",), ("q4_k", "q6_k"), ("q5_k", "q6_k"), ("q4_0", "q6_k"), ("q4_0", "q8_0"), ("q4_1", "q6_k"),
    ("q4_1", "q8_0"),
)  # fmt: skip
# Those that have a kernel with more, too (walk_more.cu), and one in which two warps fetch (walk_two.cu).
MORE_WALKS = (("f16",), ("bf16",), ("q8_0",), ("q4_k", "q6_k"), ("q5_k", "q6_k"), ("q4_0", "q6_k"))
TWO_WALKS = tuple(names for names in MORE_WALKS if names != ("q8_0",))
NOT_FEW = ("f32", "f16", "bf16", "wide16_min")  # layouts that have no walk of several tokens
# Of gemm_tensor.cu: the most threads of a tile. Those of up to 64 tokens have a kernel for each layout or pair of them.
TENSOR_TILES = {"tensor_256": 256, "tensor_128": 256, "tensor_64": 512, "tensor_32": 512}
TENSOR_TILES |= {"turns_64": 384, "turns_32": 512, "turns_16": 512, "turns_8": 512}
_LARGE = ("tensor_256", "tensor_128")
_SMALL = TENSOR_TILES.keys() - _LARGE | {"tensor_64_alone"}
_QUANTISED = (*_LAYOUTS[3:], "q4_k", "q5_k", "q6_k")
# Of gemm_halves.cu, rows and tokens of a tile: most threads.
HALF_TILES = {"halves_128_128": 384, "halves_128_64": 384} | {f"halves_64_{tokens}": 256 for tokens in (64, 32, 16, 8)}
# Of gemm_floats.cu: rows and tokens of a tile, groups of warps that share the units.
FLOAT_TILES = {"floats_128_64": (128, 64, 1), "floats_32_64": (32, 64, 4), "floats_32_32": (32, 32, 8)}
# Each file of kernels under native/cuda: their arguments, and the most threads a block.
MODULES: dict[str, dict[str, tuple[type[ctypes.Structure], int]]] = {
    "products": {f"product_one_{name}": (ProductArgs, 384) for name in _LAYOUTS},
    "walk": {"clear": (ClearArgs, 256)} | {f"walk_{'_'.join(names)}": (WalkArgs, 416) for names in WALKS},
    "walk_few": {f"walk_few_{'_'.join(names)}": (WalkArgs, 448) for names in WALKS if names[0] not in NOT_FEW},
    "walk_more": {f"walk_more_{'_'.join(names)}": (WalkArgs, 416) for names in MORE_WALKS},
    "walk_two": {f"walk_two_{'_'.join(names)}": (WalkArgs, 448) for names in TWO_WALKS},
    "walk_few_more": {
        f"walk_few_more_{'_'.join(names)}": (WalkArgs, 448) for names in MORE_WALKS if names[0] not in NOT_FEW
    },
    "products_floats": {f"product_floats_{n}": (ProductArgs, 512) for n in (1, 2, 4)},
    "gemm_floats": dict.fromkeys(FLOAT_TILES, (ProductArgs, 256)),
    "gemm_few": {f"product_{name}": (ProductArgs, 256) for name in ("8", "16", "16_8", "16_16")},
    "gemm_many": {
        "product_128_128": (ProductArgs, 512),
        "product_128_64": (ProductArgs, 256),
        "product_64_64": (ProductArgs, 256),
        "product_32_64": (ProductArgs, 512),
        "product_32_32": (ProductArgs, 128),
    },
    "experts": {
        "sort_pairs": (SortArgs, 1024),
        "quantise_pairs": (PairArgs, 256),
        "experts_32_8": (SortedArgs, 128),
        "experts_32_32": (SortedArgs, 128),
        "experts_64_64": (SortedArgs, 256),
    },
    "gemm_halves": {
        "product_tensor_8": (ProductArgs, 256),
        "product_tensor_8_small": (ProductArgs, 128),
        **{name: (ProductArgs, most) for name, most in HALF_TILES.items()},
    },
    "gemm_tensor": {
        **{name: (TensorArgs, TENSOR_TILES[name]) for name in _LARGE},
        **{f"{tile}_{name}": (TensorArgs, TENSOR_TILES.get(tile, 128)) for tile in _SMALL for name in _QUANTISED},
        "make_factors": (FactorArgs, 256),
    },
    "attention_one": {f"attend_one_{heads}": (AttentionArgs, 256) for heads in (1, 4)},
    "attention_short": {"attend_short": (ShortArgs, 768)},
    "attention_tensor": {
        "attend_tensor_64": (TensorAttentionArgs, 256),
        "attend_tensor_128": (TensorAttentionArgs, 256),
        "attend_tensor_one_64": (TensorAttentionArgs, 128),
        "attend_tensor_one_128": (TensorAttentionArgs, 128),
    },
    "attention_blocks": {f"attend_blocks_{heads}": (AttentionArgs, 256) for heads in (1, 2, 4, 8)},
    "attention_halves": {f"attend_halves_{heads}": (AttentionArgs, 256) for heads in (1, 2, 4, 8)},
    "attention_many": {
        f"attend_tile_{width}": (AttentionArgs, 256) for width in ("64", "128", "256", "512", "512_small")
    },
    "attention_prompt": {"attend_prompt_64": (AttentionArgs, 512), "attend_prompt_128": (AttentionArgs, 256)},
    "rows": {
        "map": (MapArgs, 256),
        "rms_norm": (RowArgs, 256),
        "layer_norm": (RowArgs, 256),
        "quantise_rows": (RowArgs, 1024),
        "halve_rows": (HalveArgs, 512),
        "softmax": (RowArgs, 32),
        "argsort": (RowArgs, 256),
        "group_mask": (RowArgs, 256),
    },
    "steps": {
        "embed": (StepArgs, 256),
        "rope_table": (StepArgs, 128),
        "take_rows": (StepArgs, 256),
        "cache_write": (StepArgs, 256),
        "cache_read": (StepArgs, 256),
        "rope": (RopeArgs, 256),
        "pos_scale": (PositionArgs, 256),
        "pool_rows": (StepArgs, 256),
    },
    "best": {"best_lists": (BestArgs, 256), "best_of_lists": (BestArgs, 32)},
    "scores": {"scores": (ScoreArgs, 32)},
    "repack": {"repack": (RepackArgs, 256)},
}
TENSOR_MODULES = ("gemm_halves", "gemm_tensor", "attention_tensor")  # precision tensor alone has these
KERNELS = {name: row for kernels in MODULES.values() for name, row in kernels.items()}
