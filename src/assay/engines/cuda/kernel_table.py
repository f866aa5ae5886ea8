"""Every kernel under native/cuda: its module, its arguments, and the most threads of a block.

A module is one .cu file. tests/engines/test_cuda_abi.py compares this table with the compiled kernels.
"""

from __future__ import annotations

import ctypes

from assay.engines.cuda.abi.arguments import (
    AttentionArgs,
    BestArgs,
    ClearArgs,
    FactorArgs,
    HalveArgs,
    MapArgs,
    PairArgs,
    PositionArgs,
    ProductArgs,
    RepackArgs,
    RopeArgs,
    RowArgs,
    ScanArgs,
    ScoreArgs,
    ShortArgs,
    SortArgs,
    SortedArgs,
    StepArgs,
    TensorArgs,
    TensorAttentionArgs,
    TotalArgs,
    WalkArgs,
)

_LAYOUTS = (
    "f32", "f16", "bf16", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "iq4_nl", "iq4_xs", "mxfp4", "wide16", "wide16_min",
    "q4_k_q6_k", "q5_k_q6_k",
)  # fmt: skip
# Layouts of the weights of each walk kernel: one, or a first and a second one.
WALKS: tuple[tuple[str, ...], ...] = (
    ("f32",), ("f16",), ("bf16",), ("q5_0",), ("q5_1",), ("q8_0",), ("iq4_nl",), ("iq4_xs",), ("mxfp4",), ("wide16",),
    ("wide16_min",), ("q4_k", "q6_k"), ("q5_k", "q6_k"), ("q4_0", "q6_k"), ("q4_0", "q8_0"), ("q4_1", "q6_k"),
    ("q4_1", "q8_0"),
)  # fmt: skip
# Layouts that also have a kernel with more step kinds (walk_more.cu), and one with two producer warps (walk_two.cu).
MORE_WALKS = (("f16",), ("bf16",), ("q8_0",), ("q4_k", "q6_k"), ("q5_k", "q6_k"), ("q4_0", "q6_k"))
TWO_WALKS = tuple(names for names in MORE_WALKS if names != ("q8_0",))
# Layouts of the kernels with experts, recurrences and single operations of rows (walk_all.cu), and with
# experts of several tokens (walk_few_all.cu).
ALL_WALKS = (("q8_0",), ("q4_k", "q6_k"), ("q5_k", "q6_k"), ("mxfp4", "q8_0"))
NOT_FEW = ("f32", "f16", "bf16", "wide16_min")  # layouts without a walk of several tokens
# gemm_tensor.cu: most threads of a tile. Tiles of up to 64 tokens have a kernel for each layout or pair of layouts.
TENSOR_TILES = {"tensor_256": 256, "tensor_128": 256, "tensor_64": 512, "tensor_32": 512}
TENSOR_TILES |= {"turns_64": 384, "turns_32": 512, "turns_16": 512, "turns_8": 512}
_LARGE = ("tensor_256", "tensor_128")
_SMALL = TENSOR_TILES.keys() - _LARGE | {"tensor_64_alone"}
_QUANTISED = (*_LAYOUTS[3:], "q4_k", "q5_k", "q6_k")
# gemm_halves.cu: most threads of a tile, by its rows and tokens.
HALF_TILES = {"halves_128_128": 384, "halves_128_64": 384} | {f"halves_64_{tokens}": 256 for tokens in (64, 32, 16, 8)}
# gemm_floats.cu: rows and tokens of a tile, and groups of warps that share the units.
FLOAT_TILES = {"floats_128_64": (128, 64, 1), "floats_32_64": (32, 64, 4), "floats_32_32": (32, 32, 8)}
# attention_patches.cu: threads of a block, by the widest heads.
PATCH_WIDTHS = {64: 256, 80: 256, 96: 256, 128: 256}
# By module: the arguments of each kernel, and the most threads of a block.
MODULES: dict[str, dict[str, tuple[type[ctypes.Structure], int]]] = {
    "products": {f"product_one_{name}": (ProductArgs, 384) for name in _LAYOUTS},
    "walk": {"clear": (ClearArgs, 256)} | {f"walk_{'_'.join(names)}": (WalkArgs, 416) for names in WALKS},
    "walk_few": {f"walk_few_{'_'.join(names)}": (WalkArgs, 448) for names in WALKS if names[0] not in NOT_FEW},
    "walk_more": {f"walk_more_{'_'.join(names)}": (WalkArgs, 416) for names in MORE_WALKS},
    "walk_all": {f"walk_all_{'_'.join(names)}": (WalkArgs, 416) for names in ALL_WALKS},
    "walk_few_all": {f"walk_few_all_{'_'.join(names)}": (WalkArgs, 448) for names in ALL_WALKS},
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
    "attention_patches": {f"attend_patches_{width}": (TensorAttentionArgs, n) for width, n in PATCH_WIDTHS.items()},
    "attention_blocks": {f"attend_blocks_{heads}": (AttentionArgs, 256) for heads in (1, 2, 4, 8)},
    "attention_halves": {f"attend_halves_{heads}": (AttentionArgs, 256) for heads in (1, 2, 4, 8)},
    "attention_many": {
        f"attend_tile_{width}": (AttentionArgs, 256) for width in ("64", "128", "256", "512", "512_small")
    },
    "attention_prompt": {"attend_prompt_64": (AttentionArgs, 512), "attend_prompt_128": (AttentionArgs, 256)},
    "rows": {
        "map": (MapArgs, 256),
        "total_experts": (TotalArgs, 256),
        "part_norm": (RowArgs, 256),
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
    "recurrent": {
        **{f"scan_{channels}": (ScanArgs, 128) for channels in (64, 128, 192, 256)},
        "causal_conv": (ScanArgs, 128),
        "shift_rows": (ScanArgs, 128),
        "show_state": (ScanArgs, 128),
        "advance_states": (ScanArgs, 128),
        "l2_norm": (RowArgs, 32),
        "row_length": (RowArgs, 32),
        "sparse_gate": (RowArgs, 32),
        "head_bonus": (ScanArgs, 32),
    },
    "adapters": {"adapter_inputs": (ScanArgs, 128), "adapter_outputs": (ScanArgs, 128)},
    "best": {"best_lists": (BestArgs, 256), "best_of_lists": (BestArgs, 32)},
    "scores": {"scores": (ScoreArgs, 32)},
    "repack": {"repack": (RepackArgs, 256)},
}
SMALL_MODULES = (
    "rows",
    "steps",
    "recurrent",
    "adapters",
    "best",
    "scores",
    "repack",
)  # compiled as a whole, in seconds
KERNELS = {name: row for kernels in MODULES.values() for name, row in kernels.items()}
MODULE_OF = {name: module for module, kernels in MODULES.items() for name in kernels}
