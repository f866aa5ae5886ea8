"""Enums, flags and constants that the compiler passes to kernels, or that both sides compute with.

A constant NAME_OF_IT is `kNameOfIt` in C++. Enumerators have the same name on both sides; in C++ they share one
namespace, so a name is used once.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, IntFlag

# Constants: value, and the comment that the header has.
CONSTANTS: dict[str, tuple[int, str]] = {
    "PAGE": (32, "positions of a cache page"),
    "BLOCK": (256, "keys of one step of attention's running softmax"),
    "MAX_PARTS": (4, "matrices of one product launch"),
    "MAX_NORMS": (2, "norms of one walk step"),
    "TILE_WORDS": (8, "int32 words of a query tile, see TileWord"),
    "CHUNK_WORDS": (6, "int32 words of a chunk, see ChunkWord"),
    "STATE_WORDS": (4, "int32 words of a sequence with a state, see StateWord"),
    "CONTINUES": (-2, "STATE_FROM of a row that goes on where the row before has ended"),
    "HALVED_SHIFT": (28, "bit of `halved` from which on it holds a HalvedAs; the bits below are the rows of memory"),
    "LINE": (272, "bytes between the 256 codes of two rows in shared memory: eight rows hit all banks"),
    "HALF_BLOCK": (128, "keys that attention_tensor.cu stages at a time"),
    "PATCH_KEYS": (64, "keys that attention_patches.cu stages at a time"),
    "PATCH_ROWS": (128, "query rows of a tile of attention_patches.cu"),
    "PROMPT_KEYS": (128, "keys that attention_prompt.cu stages at a time"),
    "FLOAT_STEP": (16, "columns that gemm_floats.cu stages at a time"),
    "WALK_WARPS": (12, "consumer warps of a walk; producer warps come after them"),
    "WALK_ROWS": (8, "most tokens of a walk"),
    "WALK_UNIT_BYTES": (2560, "bytes of 256 quantised columns of WALK_ROWS rows: codes, then (d, d * sum)"),
    "WALK_CODE_BYTES": (2048, "bytes of them that are codes"),
    "WALK_HEAD": (256, "widest attention head of a walk"),
    "CHOSEN": (32, "most experts of a token in a walk"),
    "CHOICE_BYTES": (512, "shared memory of the choices of two layers"),
    "FEW_CHOICE_BYTES": (3392, "shared memory of the choice of WALK_ROWS tokens"),
    "MOST_EXPERTS": (512, "most experts of a layer in a walk"),
    "MOST_MAPS": (3, "elementwise operations of one walk step"),
    "SCAN_ROWS": (4, "rows of a state that a warp of a walk has at a time"),
    "STEPS_KEPT": (4, "descriptions of steps that a block of threads of walk_all.cu has in shared memory"),
    "DELTA_ROWS": (32, "rows of a head's state that a thread block of a walk has at a time"),
    "DELTA_TAPS": (4, "taps of the convolution before such a state"),
    "DELTA_CHANNELS": (128, "channels of such a head, and rows of its state"),
    "CUT_BYTES": (4096, "first piece of a tile that is fetched as two pieces: its chunks of low bits"),
}


def cpp_name(constant: str) -> str:
    return "k" + "".join(word.capitalize() for word in constant.split("_"))


PAGE, BLOCK, MAX_PARTS, MAX_NORMS = (CONSTANTS[name][0] for name in ("PAGE", "BLOCK", "MAX_PARTS", "MAX_NORMS"))
TILE_WORDS, CHUNK_WORDS, STATE_WORDS, HALVED_SHIFT = (
    CONSTANTS[name][0] for name in ("TILE_WORDS", "CHUNK_WORDS", "STATE_WORDS", "HALVED_SHIFT")
)
LINE, HALF_BLOCK, PROMPT_KEYS, FLOAT_STEP = (
    CONSTANTS[name][0] for name in ("LINE", "HALF_BLOCK", "PROMPT_KEYS", "FLOAT_STEP")
)
WALK_WARPS, WALK_ROWS, WALK_UNIT_BYTES, WALK_CODE_BYTES, WALK_HEAD, CUT_BYTES = (
    CONSTANTS[name][0]
    for name in ("WALK_WARPS", "WALK_ROWS", "WALK_UNIT_BYTES", "WALK_CODE_BYTES", "WALK_HEAD", "CUT_BYTES")
)

CHOSEN, CHOICE_BYTES, FEW_CHOICE_BYTES, MOST_EXPERTS = (
    CONSTANTS[name][0] for name in ("CHOSEN", "CHOICE_BYTES", "FEW_CHOICE_BYTES", "MOST_EXPERTS")
)
PATCH_ROWS = CONSTANTS["PATCH_ROWS"][0]
MOST_MAPS, SCAN_ROWS = CONSTANTS["MOST_MAPS"][0], CONSTANTS["SCAN_ROWS"][0]
DELTA_ROWS, DELTA_TAPS, DELTA_CHANNELS, STEPS_KEPT = (
    CONSTANTS[name][0] for name in ("DELTA_ROWS", "DELTA_TAPS", "DELTA_CHANNELS", "STEPS_KEPT")
)


class Act(IntEnum):
    """Activation of a gate (arithmetic.h)."""

    SILU = 0
    GELU_TANH = 1
    GELU_ERF = 2
    RELU = 3
    RELU_SQR = 4
    TANH = 5


class WeightFormat(IntEnum):
    """Layout of a matrix in device memory (formats.h). WIDE16 holds any other type, expanded to int8 codes with float32
    scales per 16 columns; WIDE16_MIN has minima, too."""

    F32 = 0
    F16 = 1
    BF16 = 2
    Q4_0 = 3
    Q4_1 = 4
    Q5_0 = 5
    Q5_1 = 6
    Q8_0 = 7
    Q4_K = 8
    Q5_K = 9
    Q6_K = 10
    IQ4_NL = 11
    IQ4_XS = 12
    MXFP4 = 13
    WIDE16 = 14
    WIDE16_MIN = 15


class KvType(IntEnum):
    """Type of the values in a cache page (cache.h)."""

    KV_F32 = 0
    KV_F16 = 1
    KV_BF16 = 2
    KV_Q8_0 = 3


class MapOp(IntEnum):
    """Operation of the kernel `map` (rows.cu), which has the formula of each."""

    ADD = 0
    GLU = 1
    BIAS = 2
    SCALE = 3
    SOFTCAP = 4
    CLAMP_MIN = 5
    DIV = 6
    GATHER = 7
    EXPERT_SCALE = 8
    EXPERT_SUM = 9
    SLICE = 10
    ROW_SUM = 11
    CLAMP = 12
    ACT = 13
    GLU_SPLIT = 14
    GLU_OAI = 15
    EXPERT_INPUT = 16
    EXPERT_BIAS = 17
    EXPERT_GAIN = 18
    SIGMOID = 19
    MUL = 20
    MUL_WEIGHT = 21
    CONCAT = 22
    SOFTPLUS = 23
    EXP = 24
    XIELU = 25
    ADD_SCALAR = 26
    HEAD_GAIN = 27
    ADD_GAIN = 28
    LERP = 29
    LERP_ROW = 30
    REPEAT_HEADS = 31
    JOIN = 32
    MIX_STREAMS = 33
    ADD_TO_STREAMS = 34


class ScanKind(IntEnum):
    """Recurrence that the kernels `scan_N` compute (recurrent.cu)."""

    DELTA_RULE = 0
    SSM_SCAN = 1
    WKV6 = 2
    WKV7 = 3


class StateWord(IntEnum):
    """Words of a sequence (ScanArgs.sequences): its first row, its tokens, and the slots that hold its state before and
    after the step. STATE_FROM is -1 where the sequence begins. A sequence whose state is kept at several tokens has
    several rows; STATE_FROM of the further ones is kContinues. Padding has no tokens."""

    STATE_ROW = 0
    STATE_TOKENS = 1
    STATE_FROM = 2
    STATE_TO = 3


class ConcatFlag(IntFlag):
    """`integer` of the map operation CONCAT: the operand has one head, which every head of the result gets."""

    X_IS_ONE_HEAD = 1
    Y_IS_ONE_HEAD = 2


class Pooling(IntEnum):
    """Row that stands for a sequence: the mean of its tokens, the first or the last (steps.cu, pool_rows)."""

    MEAN = 0
    FIRST_TOKEN = 1
    LAST_TOKEN = 2


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


class StepKind(IntEnum):
    """Kind of a walk step (walk.h)."""

    PRODUCT = 0
    ATTEND = 1
    FOLD = 2
    QUANTISE = 3
    NORM = 4
    FLOAT_ROWS = 5
    EXPERT_ROWS = 6
    MAP_ROW = 7
    PART_NORMS = 8
    PART_LENGTHS = 9
    RECURRENCE = 10
    WINDOW = 11
    WEIGH_EXPERTS = 12
    DELTA = 13
    GATED_NORMS = 14


class Routing(IntEnum):
    """Probabilities of experts: the logits themselves, their softmax, or their sigmoid."""

    AS_LOGITS = 0
    BY_SOFTMAX = 1
    BY_SIGMOID = 2


class ExpertGate(IntEnum):
    """How an expert's gate and up combine: act(up) without a gate, act(gate) up, or the clamped gate of gpt-oss."""

    NO_GATE = 0
    ACT_GATE = 1
    OAI_GATE = 2


class StepFlag(IntFlag):
    """`fresh` of a walk step. AWAIT_X, AWAIT_RESIDUAL: an earlier step of the same walk writes x or the residual, so
    readers spin-wait for it. AS_CODES: x, or the result of attention, is quantised. TWO_LANES: two lanes share an
    item. SPLIT_TILE: a tile is fetched as two pieces. COUNTED: quantised rows are published by a count of rows."""

    AWAIT_X = 1
    AWAIT_RESIDUAL = 2
    AS_CODES = 4
    TWO_LANES = 8
    SPLIT_TILE = 16
    COUNTED = 32


class Gating(IntEnum):
    """Activation that a walk step applies before it quantises a row; `paired` of its first part. SPLIT: act(x) y, where
    y is the second half of the row. ALONE: act(x)."""

    AS_IT_IS = 0
    SPLIT = 1
    ALONE = 2


class TileWord(IntEnum):
    """Words of a query tile (AttentionArgs.tiles). Rows are counted within the tokens of the chunk: row r is token
    r / group and head r % group. TILE_SCORES is the offset of the chunk's scores, low word first."""

    TILE_TOKEN = 0
    TILE_ROW = 1
    TILE_ROWS = 2
    TILE_KEYS = 3
    TILE_TOKENS = 4
    TILE_SCORES = 5
    TILE_SCORES_HIGH = 6
    TILE_CHUNK_TOKEN = 7


class ChunkWord(IntEnum):
    """Words of a chunk (ScoreArgs.chunks): its tokens, its keys, and the offset of its scores, low word first."""

    CHUNK_TOKEN = 0
    CHUNK_TOKENS = 1
    CHUNK_KEY = 2
    CHUNK_KEYS = 3
    CHUNK_SCORES = 4
    CHUNK_SCORES_HIGH = 5


ENUMS: tuple[type[IntEnum] | type[IntFlag], ...] = (
    Act, WeightFormat, KvType, MapOp, ScanKind, StateWord, ConcatFlag, Pooling, ScoreOp, Prologue, HalvedAs, StepKind,
    StepFlag, Gating, Routing, ExpertGate, TileWord, ChunkWord,
)  # fmt: skip

# The graph's names of these choices.
ACTS = {act.name.lower(): act for act in Act}
MAP_OPS = {op.name.lower(): op for op in MapOp}
POOLINGS = {"mean": Pooling.MEAN, "first": Pooling.FIRST_TOKEN, "last": Pooling.LAST_TOKEN}
KV_TYPES = {kind.name.removeprefix("KV_").lower(): kind for kind in KvType}
HALVED = {"half": HalvedAs.INTERLEAVED_F16, "f16": HalvedAs.ORDERED_F16, "bf16": HalvedAs.ORDERED_BF16}


@dataclass(frozen=True)
class FormatRow:
    """Size of a layout: 16-byte chunks of an item (256 columns of a row), and which of them are not codes."""

    format: WeightFormat
    chunks: int
    scale_chunks: int = 1
    word: bool = False  # a word per item behind the chunks: f16 scale and minimum of a super-block
    floats: bool = False
    half_sums: bool = False  # products need the sums of half blocks of activations

    @property
    def name(self) -> str:
        return self.format.name.lower()


FORMAT_ROWS = (
    FormatRow(WeightFormat.F32, 64, 0, floats=True),
    FormatRow(WeightFormat.F16, 32, 0, floats=True),
    FormatRow(WeightFormat.BF16, 32, 0, floats=True),
    FormatRow(WeightFormat.Q4_0, 9),
    FormatRow(WeightFormat.Q4_1, 10, 2),
    FormatRow(WeightFormat.Q5_0, 11),
    FormatRow(WeightFormat.Q5_1, 12, 2),
    FormatRow(WeightFormat.Q8_0, 17),
    FormatRow(WeightFormat.Q4_K, 9, word=True),
    FormatRow(WeightFormat.Q5_K, 11, word=True),
    FormatRow(WeightFormat.Q6_K, 13, word=True),
    FormatRow(WeightFormat.IQ4_NL, 9),
    FormatRow(WeightFormat.IQ4_XS, 9, word=True),
    FormatRow(WeightFormat.MXFP4, 9),
    FormatRow(WeightFormat.WIDE16, 20, 4),
    FormatRow(WeightFormat.WIDE16_MIN, 24, 8, half_sums=True),
)
