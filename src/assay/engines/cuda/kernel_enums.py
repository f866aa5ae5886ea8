"""Numbers that the kernels of native/cuda give a meaning to; every member has the name it has there."""

from __future__ import annotations

from enum import IntEnum, IntFlag


class Act(IntEnum):
    """Activation of a gate (arithmetic.h)."""

    SILU = 0
    GELU_TANH = 1
    GELU_ERF = 2
    RELU = 3


_MAP_OPS = (
    "ADD GLU BIAS SCALE SOFTCAP CLAMP_MIN DIV GATHER EXPERT_SCALE EXPERT_SUM SLICE ROW_SUM CLAMP ACT GLU_SPLIT GLU_OAI "
    "EXPERT_INPUT EXPERT_BIAS EXPERT_GAIN SIGMOID MUL MUL_WEIGHT CONCAT"
)
MAP_OPS = {name.lower(): number for number, name in enumerate(_MAP_OPS.split())}  # the kernel `map` (rows.cu)
ACTS = {act.name.lower(): act for act in Act}
POOLINGS = {"mean": 0, "first": 1, "last": 2}  # the kernel `pool_rows` (steps.cu)


class ScoreOp(IntEnum):
    """Operation of the kernel `scores` (scores.cu). WEIGHTS are the softmax of raw scores whose m and l are given."""

    KQ = 0
    SOFTMAX = 1
    KQV = 2
    CAPPED = 3
    WEIGHTS = 4


class Prologue(IntEnum):
    """Input of a product: quantised rows, rows of floats, or rows of floats that the kernel norms first."""

    GIVEN = 0
    PLAIN_ROWS = 1
    NORMED_ROWS = 2


class HalvedAs(IntEnum):
    """16-bit floats that products on tensor cores read: f16 in the column order of gemm_tensor.cu, f16 or bf16 in the
    column order of gemm_halves.cu (arithmetic.h, store_halved)."""

    INTERLEAVED_F16 = 0
    ORDERED_F16 = 1
    ORDERED_BF16 = 2


HALVED = {"half": HalvedAs.INTERLEAVED_F16, "f16": HalvedAs.ORDERED_F16, "bf16": HalvedAs.ORDERED_BF16}
HALVED_SHIFT = 28  # bit from which on a kernel's `halved` holds a HalvedAs; the bits below are padded rows


class StepKind(IntEnum):
    """Kind of a walk step (walk.h)."""

    PRODUCT = 0
    ATTEND = 1
    FOLD = 2
    QUANTISE = 3
    NORM = 4


class StepFlag(IntFlag):
    """`fresh` of a walk step. AWAIT_X, AWAIT_RESIDUAL: an earlier step of the same walk writes x or the residual, so
    readers spin until it is written. AS_CODES: x, or the result of attention, is quantised. TWO_LANES: two lanes share
    an item. SPLIT_TILE: a tile is fetched as two pieces. COUNTED: quantised rows are published by a count of rows."""

    AWAIT_X = 1
    AWAIT_RESIDUAL = 2
    AS_CODES = 4
    TWO_LANES = 8
    SPLIT_TILE = 16
    COUNTED = 32


class Gating(IntEnum):
    """Activation before a walk step quantises a row. SPLIT: act(x) y, where y is the second half of the row.
    ALONE: act(x)."""

    AS_IT_IS = 0
    SPLIT = 1
    ALONE = 2
