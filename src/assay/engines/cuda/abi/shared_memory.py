"""Bytes of shared memory that each kernel needs, as formulas of its shape.

A formula is one expression over its parameters, the constants of `enumerations` and `max`. Python evaluates it for a
launch; the header has it as a `constexpr` function. Under the shim every kernel checks that its launch has the bytes of
its formula (NEEDS_SHARED). Parameters are integers; a flag is 0 or 1.
"""

from __future__ import annotations

from collections.abc import Callable
from ctypes import sizeof
from dataclasses import dataclass

from assay.engines.cuda.abi.arguments import WalkStep
from assay.engines.cuda.abi.enumerations import CONSTANTS


@dataclass(frozen=True)
class Formula:
    name: str
    parameters: tuple[str, ...]
    expression: str
    note: str


FORMULAS: list[Formula] = []
_NAMES: dict[str, object] = {name: value for name, (value, _) in CONSTANTS.items()} | {"max": max}


def _bytes(name: str, parameters: str, expression: str, note: str) -> Callable[..., int]:
    """Add a formula to the table; the function that evaluates it."""
    formula = Formula(name, tuple(parameters.split()), expression, note)
    made: Callable[..., int] = eval(f"lambda {', '.join(formula.parameters)}: {expression}", _NAMES)
    FORMULAS.append(formula)
    _NAMES[name] = made
    return made


# -- rows --------------------------------------------------------------------------------------------------------------
normed_row_bytes = _bytes("normed_row_bytes", "width", "16 + 4 * width", "rms_norm, layer_norm, quantise_rows")
halved_row_bytes = _bytes("halved_row_bytes", "width", "48 + 4 * width", "halve_rows: the row, rounded up to 8 values")
sort_pairs_bytes = _bytes("sort_pairs_bytes", "matrices warps", "4 * (matrices + warps)", "counters of sort_pairs")
best_lists_bytes = _bytes("best_lists_bytes", "lists", "4 * lists", "places of best_of_lists")

# -- products ----------------------------------------------------------------------------------------------------------
staged_weights_bytes = _bytes(
    "staged_weights_bytes", "rows chunks word", "rows * (16 * chunks + 4 * word)", "256 columns of `rows` rows"
)
few_factors_bytes = _bytes(
    "few_factors_bytes", "rows tokens half_sums", "64 * rows + (64 * rows + 32 * tokens) * half_sums",
    "gemm.h: factors of the weights of a stage, and sums of half blocks",
)  # fmt: skip
few_stage_bytes = _bytes(
    "few_stage_bytes", "tokens weights factors", "tokens * (LINE + 64) + weights + factors", "gemm.h: a unit of a warp"
)
few_shared_bytes = _bytes(
    "few_shared_bytes", "rows tokens warps stage", "warps * (stage + 8 * rows * (tokens + 8 * (tokens > 8)))",
    "gemm.h: a stage of each warp, and two rounds of partial sums",
)  # fmt: skip
tile_set_bytes = _bytes(
    "tile_set_bytes", "rows half_sums", "rows * (LINE + 64 + 64 * half_sums)", "gemm_tiles.h: an unpacked unit"
)
tile_stage_bytes = _bytes(
    "tile_stage_bytes", "tokens half_sums weights", "tokens * (LINE + 64 + 32 * half_sums) + weights",
    "gemm_tiles.h: activations of a unit, and weights of the next",
)  # fmt: skip
tile_shared_bytes = _bytes(
    "tile_shared_bytes", "rows tokens groups stages set stage",
    "groups * (2 * set + stages * stage) + 8 * (groups - 1) * rows * tokens",
    "gemm_tiles.h: groups of warps share units and pass partial sums to the first group",
)  # fmt: skip
float_tile_bytes = _bytes(
    "float_tile_bytes", "rows tokens groups",
    "4 * tokens * (rows + 4) * (1 + groups * (groups > 1)) + 8 * groups * FLOAT_STEP * (rows + tokens + 8)",
    "gemm_floats.cu: totals, partial sums of each group, two steps of each group",
)  # fmt: skip
few_floats_bytes = _bytes(
    "few_floats_bytes", "tokens units tiles", "4 * tokens * (256 * units + max(64, 32 * tiles))",
    "products_floats.cu: rows of x and their partial sums",
)  # fmt: skip
one_product_bytes = _bytes(
    "one_product_bytes", "stride floats tiles warps slots piece",
    "24 + max(4 * stride * floats, stride // 8 * 11) + 128 * tiles + warps * slots * (piece + 8)",
    "products.cu: x, partial sums of a block's tiles, and the ring of each warp",
)  # fmt: skip
tensor_unit_bytes = _bytes(
    "tensor_unit_bytes", "codes pairs", "256 * (codes + pairs)", "gemm_tensor.cu: a unit of a warp's 16 rows"
)
tensor_tile_bytes = _bytes(
    "tensor_tile_bytes", "tokens ring strips warps unit", "ring * (128 * tokens * strips + 16) + 2 * warps * unit + 8",
    "tensor_256 to tensor_32: a ring of activations, two units of each warp",
)  # fmt: skip
tensor_turns_bytes = _bytes(
    "tensor_turns_bytes", "tokens groups unit", "groups * (512 * tokens + 8 * unit + 8) + 256 * tokens + 8",
    "turns_64 to turns_8: a unit of activations of each group, sums that are passed on, two units of each warp",
)  # fmt: skip
halves_few_stage_bytes = _bytes(
    "halves_few_stage_bytes",
    "rows tokens",
    "528 * tokens + 512 * rows",
    "gemm_halves.cu: a unit of a warp, 16-bit floats",
)
halves_step_bytes = _bytes(
    "halves_step_bytes", "rows tokens strips", "128 * (rows + tokens) * strips + 16", "gemm_halves.cu: a ring slot"
)

# -- attention ---------------------------------------------------------------------------------------------------------
attend_one_bytes = _bytes(
    "attend_one_bytes", "heads k_dim v_dim",
    "4 * heads * (k_dim + BLOCK + 2) + 4 * (k_dim + v_dim + 64 + 8 * heads * v_dim)", "attention_one.cu",
)  # fmt: skip
attend_halves_bytes = _bytes(
    "attend_halves_bytes", "heads k_dim v_dim",
    "4 * heads * (k_dim + BLOCK + 2) + 2 * (BLOCK + 1) * (k_dim + v_dim) + 56 * heads", "attention_halves.cu",
)  # fmt: skip
attend_blocks_bytes = _bytes(
    "attend_blocks_bytes", "heads k_dim v_dim",
    "4 * heads * (k_dim + BLOCK + 2) + 2 * BLOCK * v_dim + 2 * k_dim + 32 * heads * v_dim + 8", "attention_blocks.cu",
)  # fmt: skip
attend_short_bytes = _bytes(
    "attend_short_bytes", "dim", "4 * (BLOCK * dim + 2 * dim + BLOCK + 8 + 8 * dim)", "attention_short.cu"
)
attend_tile_bytes = _bytes(
    "attend_tile_bytes", "rows pages quads v_dim",
    "4 * (32 * rows * quads + 32 * pages * max(4 * quads, v_dim) + 8 * rows * (BLOCK + 8) + 4)",
    "attention_many.cu: 8 * rows query rows, `pages` staged pages; quads: ceil(k dim / 4)",
)  # fmt: skip
attend_prompt_bytes = _bytes(
    "attend_prompt_bytes", "rows dim", "4 * (rows * (dim + 4 + BLOCK + 8 + 8) + PROMPT_KEYS * dim + 2)",
    "attention_prompt.cu",
)  # fmt: skip
tensor_query_bytes = _bytes("tensor_query_bytes", "dim", "2 * dim + 16", "attention_tensor.cu: a query row")
tensor_keys_bytes = _bytes(
    "tensor_keys_bytes", "dim", "4 * HALF_BLOCK * dim", "attention_tensor.cu: keys and values of half a block"
)
attend_tensor_bytes = _bytes(
    "attend_tensor_bytes", "rows dim", "rows * tensor_query_bytes(dim) + 2 * tensor_keys_bytes(dim)", "attend_tensor"
)
attend_tensor_one_bytes = _bytes(
    "attend_tensor_one_bytes", "dim group",
    "16 * tensor_query_bytes(dim) + tensor_keys_bytes(dim) // 2 + 32 * (HALF_BLOCK + 8) * (1 + (group > 8)) + 2 * dim",
    "attend_tensor_one: values of half a block, and the scores of a group of heads",
)  # fmt: skip
patch_stage_bytes = _bytes(
    "patch_stage_bytes", "dim", "PATCH_KEYS * (4 * dim + 16)", "attention_patches.cu: keys and values that are staged"
)
attend_patches_bytes = _bytes(
    "attend_patches_bytes", "dim", "PATCH_ROWS * tensor_query_bytes(dim) + 2 * patch_stage_bytes(dim)",
    "attention_patches.cu",
)  # fmt: skip

# -- walks -------------------------------------------------------------------------------------------------------------
_NAMES["WALK_STEP_BYTES"] = sizeof(WalkStep)
walk_bytes = _bytes(
    "walk_bytes", "slots room work several",
    "slots * (room + 16) + 2 * WALK_STEP_BYTES + 4 * WALK_ROWS + 32 * several + work",
    "walk.cu: the ring, two steps (walk_all.cu has more), the work space of the largest step; several: not one token",
)  # fmt: skip
walk_all_own_bytes = _bytes(
    "walk_all_own_bytes", "", "CHOICE_BYTES + (STEPS_KEPT - 2) * WALK_STEP_BYTES", "walk_all.cu: choices, further steps"
)
walk_product_bytes = _bytes(
    "walk_product_bytes", "stride rows codes",
    "16 + stride // 8 * 11 + max(32 * rows * ((stride // 256 + 7) // 8), 16 + 4 * stride * (1 - codes))",
    "walk_products.h: x quantised, then partial sums of `rows` rows or x as floats",
)  # fmt: skip
walk_floats_bytes = _bytes(
    "walk_floats_bytes", "stride rows", "16 + 4 * stride + 32 * rows * ((stride // 256 + 7) // 8)",
    "walk_products.h: the same for float weights",
)  # fmt: skip
walk_float_rows_bytes = _bytes(
    "walk_float_rows_bytes", "units rows chunks", "16 + units * (1040 + rows * 16 * (chunks + 1))",
    "walk_all.cu: x, and `rows` rows of weights",
)  # fmt: skip
walk_experts_bytes = _bytes(
    "walk_experts_bytes", "x_units units rows codes",
    "16 + 352 * x_units + max(4 * rows * (units + 2), (16 + 1024 * units) * (1 - codes))",
    "walk_all.cu: x quantised, then partial sums and totals of `rows` rows or x as floats",
)  # fmt: skip
walk_delta_bytes = _bytes(
    "walk_delta_bytes", "", "4 * (2 * DELTA_CHANNELS + DELTA_ROWS + 4)", "walk_delta.h: q, k, rows of v, decay, beta"
)  # fmt: skip
walk_few_float_rows_bytes = _bytes(
    "walk_few_float_rows_bytes", "tokens units rows chunks",
    "units * (tokens * (1040 + 4 * rows) + rows * 16 * (chunks + 1))",
    "walk_few_all.cu: x of some tokens, `rows` rows of weights, and partial sums",
)  # fmt: skip
walk_few_experts_bytes = _bytes(
    "walk_few_experts_bytes", "tokens units sums", "units * max(352 * tokens, WALK_UNIT_BYTES) + 4 * sums",
    "walk_few_all.cu: quantised rows of an expert's tokens, one by one or as eight, and `sums` partial sums",
)  # fmt: skip
walk_attention_bytes = _bytes(
    "walk_attention_bytes", "heads dim", "4 * (heads * (9 * dim + 2 * BLOCK + 8) + dim + 4)", "walk_attention.h"
)
