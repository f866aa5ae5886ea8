"""The structs that kernels take as arguments, one row a field or a run of fields of one type.

A row has a C++ type and the names of one field or of several. "parts[4]" is an array. The header declares `methods`;
headers that use the struct define them. A struct with a `base` inherits it in C++; in Python the base is its first
field, `of`. A field whose type is a union is anonymous in C++.
"""

from __future__ import annotations

import ctypes
import re
from dataclasses import dataclass
from typing import Any

_SCALARS: dict[str, Any] = {
    "int32_t": ctypes.c_int32,
    "int64_t": ctypes.c_int64,
    "float": ctypes.c_float,
    "double": ctypes.c_double,
}


@dataclass(frozen=True)
class FieldRow:
    type: str
    fields: str
    note: str = ""

    @property
    def names(self) -> list[tuple[str, int]]:
        """Each field's name, and how many an array has (0: no array)."""
        found = [re.fullmatch(r"(\w+)(?:\[(\d+)\])?", word) for word in self.fields.split()]
        return [(match[1], int(match[2] or 0)) for match in found if match]


@dataclass(frozen=True)
class Struct:
    name: str
    note: str
    rows: tuple[FieldRow, ...]
    methods: tuple[str, ...] = ()
    base: str = ""
    union: bool = False


STRUCTS: list[Struct] = []
CLASSES: dict[str, Any] = {}


def _ctype(kind: str) -> Any:
    return ctypes.c_uint64 if kind.endswith("*") else _SCALARS.get(kind) or CLASSES[kind]


def _define(
    name: str, note: str, *rows: tuple[str, str] | tuple[str, str, str], methods: tuple[str, ...] = (), base: str = "",
    union: bool = False,
) -> Any:  # fmt: skip
    """Add a struct to the table; its ctypes class."""
    struct = Struct(name, note, tuple(FieldRow(*row) for row in rows), methods, base, union)
    fields: list[tuple[str, Any]] = [("of", CLASSES[base])] if base else []
    for row in struct.rows:
        kind = _ctype(row.type)
        fields += [(field, kind * count if count else kind) for field, count in row.names]
    made = type(name, (ctypes.Union if union else ctypes.Structure,), {"_fields_": fields, "__doc__": note})
    STRUCTS.append(struct)
    CLASSES[name] = made
    return made


Matrix = _define(
    "Matrix",
    "A matrix in device memory, in tiles of 32 items (formats.h).",
    ("const uint8_t*", "data"),
    ("int64_t", "group_bytes", "bytes of the tiles of a group of rows"),
    ("int32_t", "format rows columns units", "WeightFormat; units: of 256 columns"),
    ("int32_t", "group tiles tile_bytes", "rows of a group; tiles of a group, ceil(group * units / 32)"),
    ("int32_t", "all_rows", "rows of all groups, with padding and with both matrices of a pair"),
    methods=("const uint8_t* tile(int64_t group_index, int t) const",),
)
Acts = _define(
    "Acts",
    "Rows of quantised activations, padded with zeros to whole units of 256 columns (activations.h).",
    ("int8_t*", "q", "[rows][stride]: codes"),
    ("float2*", "ds", "of each block of 32: (d, d * sum of codes)"),
    ("uint32_t*", "n", "of each block of 32: the sums of its halves, 16 bits each"),
    ("int32_t", "stride", "columns, a multiple of 256"),
    ("int32_t", "step", "0: ds and n are [rows][blocks]; else [blocks][step], with memory for `step` rows"),
)
Product = _define(
    "Product",
    "One matrix of a product launch and its epilogue.",
    ("Matrix", "w"),
    ("float*", "out", "[tokens][out_stride]"),
    ("const float*", "bias", "or null"),
    ("const float*", "residual", "[tokens][out_stride], or null"),
    ("float*", "gate_out up_out", "the two sums of a pair, if a trace keeps them; else null"),
    ("int32_t", "out_stride first_group", "first_group: groups of the parts before; in tiled kernels, tiles of rows"),
    ("int32_t", "paired", "each group has group / 2 rows of gate, then as many of up; out = act(gate) * up"),
    ("int32_t", "act", "Act"),
)
ProductArgs = _define(
    "ProductArgs",
    "out = x W^T for up to four matrices that share x.",
    ("Product", "parts[4]"),
    ("Acts", "acts", "prologue GIVEN: x, quantised"),
    ("const float*", "x norm", "other prologues: rows of floats, and the weights of their norm or null"),
    ("const float*", "experts", "matrix of each pair (token, choice); null: matrix h takes head h"),
    ("int64_t", "expert_bytes", "from one matrix to the next"),
    ("int32_t", "n_parts groups tokens columns x_stride", "groups: of all parts; in tiled kernels, tiles of rows"),
    ("int32_t", "prologue", "Prologue"),
    ("float", "eps", "of the norm"),
    ("int32_t", "rows_of_x", "n_experts > 0: pairs that share a row of x; product_one: copies of the quantised row"),
    ("int32_t", "n_experts", "0: one matrix"),
    ("int32_t", "slots", "product_one: ring slots of a warp; walk of several tokens: groups at a time"),
    (
        "int32_t",
        "share extra",
        "groups of a thread block, and how many blocks have one more; gemm_halves.cu: share > 0 stores 16-bit floats "
        "with memory for that many rows",
    ),
    ("int32_t", "shift", "log2 of the rows of a group"),
    (
        "int32_t",
        "stages",
        "gemm_tiles.h, gemm_halves.cu: units staged ahead; gemm.h: bytes of a stage; product_one: bytes of a piece; "
        "walk: groups between a warp's two tiles of the same columns; walk of several tokens: units of x at a time",
    ),
)
TensorArgs = _define(
    "TensorArgs",
    "A product on 16-bit tensor cores (gemm_tensor.cu).",
    ("ProductArgs", "product"),
    ("const uint8_t*", "factors[4]", "of each part, as make_factors writes them"),
    ("int32_t", "codes[4] pairs[4]", "of each part: chunks of codes and of factors of an item"),
    ("float4*", "partial", "sums of chains, [tiles][chains, or 1 where one block has all][J][threads]"),
    ("int32_t*", "arrived", "[tiles]: blocks that have finished; zero before and after"),
    ("int32_t", "room", "memory for that many rows of `out` if results are stored as halves; else 0"),
    ("int32_t", "chains", "parts of a row that are summed on their own"),
    ("int32_t", "split padding", "split: block_z is the chain"),
)
SortArgs = _define(
    "SortArgs",
    "Pairs (token, choice) to sort by matrix (experts.cu).",
    ("const float*", "experts", "matrix of each pair, or null: pair % n"),
    ("int32_t*", "pairs matrices", "results: pair of each slot, matrix of each tile"),
    ("int32_t", "count n", "pairs; matrices"),
    ("int32_t", "tile tiles", "slots of a tile; tiles that there is memory for"),
)
PairArgs = _define(
    "PairArgs",
    "Rows of x, or of x with a gate, to quantise in the order of sorted pairs (experts.cu).",
    ("const float*", "x"),
    ("const float*", "up", "or null; x is the gate then"),
    ("const int32_t*", "pairs"),
    ("Acts", "acts"),
    ("int32_t", "width share", "share: pairs that share a row of x"),
    ("int32_t", "act oai", "act: Act of the gate; oai: glu_oai instead, with alpha and limit"),
    ("float", "alpha limit"),
)
TotalArgs = _define(
    "TotalArgs",
    "The chosen experts' rows times their weights, added in the order of the choices (rows.cu).",
    ("const float*", "x weights residual", "residual: added behind the sum, or null"),
    ("float*", "out"),
    ("int64_t", "rows"),
    ("int32_t", "width count", "width: of out; count: rows of x that are added"),
)
SortedArgs = _define(
    "SortedArgs",
    "A product whose tokens are slots of sorted pairs (experts.cu).",
    ("ProductArgs", "product"),
    ("const int32_t*", "pairs matrices"),
)
FactorArgs = _define(
    "FactorArgs",
    "Scales and minima to round to f16, once, when a matrix is loaded (gemm_tensor.cu).",
    ("Matrix", "w"),
    ("uint8_t*", "out", "[tiles][chunks][32][16]: word i % 4 of chunk i / 4 is block i's; minima two chunks later"),
    ("int64_t", "tiles", "of the whole matrix"),
    ("int32_t", "chunks padding"),
)
Pool = _define(
    "Pool",
    "Where the keys or values of one layer lie in a cache page (cache.h).",
    ("int64_t", "offset", "bytes from the beginning of a page"),
    ("int32_t", "type keys heads dim", "KvType; keys: 1 for the layout of keys, 0 for that of values"),
    ("int32_t", "head_bytes columns first padding", "a position has `columns` values a head; `dim` from `first`"),
    methods=(
        "int each() const", "int vectors() const", "int index(int slot, int d) const",
        "int scale_index(int slot, int d) const", "int scales_at() const",
    ),
)  # fmt: skip
Cache = _define(
    "Cache",
    "The pages of the cache.",
    ("uint8_t*", "pages"),
    ("int64_t", "page_bytes positions_at", "positions_at: offset in a page of its 32 int32 positions"),
)
Rows = _define(
    "Rows",
    "Token, position, cache slot and page table of each row of the step.",
    ("const int32_t*", "tokens positions"),
    ("const int32_t*", "slots", "-1 for a row of padding"),
    ("const int32_t*", "tables", "index in `pages` at which the row's page table begins"),
    ("const int32_t*", "pages"),
)
Mask = _define(
    "Mask",
    "Which keys a query sees, and what becomes of a score before the softmax (mask.h).",
    ("const float*", "sinks slopes", "of each head: an extra score without a value, the slope of ALiBi; or null"),
    ("int32_t", "window chunk causal padding", "0: none"),
    ("float", "scale cap", "cap 0: none"),
    methods=(
        "bool hides(int64_t query, int64_t key) const",
        "bool hides(int64_t query, int64_t key, int slot, int last) const",
        "int from(int query) const", "int to(int query, int n) const",
        "bool partial() const", "float score(float x, int head, int64_t distance) const",
        "int64_t chunk_start(int64_t query) const",
    ),
)  # fmt: skip
AttentionArgs = _define(
    "AttentionArgs",
    "Attention over the paged cache (attention.h).",
    ("const float*", "q", "[tokens][heads * k dim], before RoPE if `turn` is given"),
    ("const float*", "k v", "one token a sequence: [tokens][kv heads * dim], to store; null: already in the cache"),
    ("const float*", "turn", "[tokens][n_rot]: cosines, then sines; or null"),
    ("float*", "out", "[tokens][heads * v dim]"),
    ("float*", "partial", "one token a sequence: [tokens][heads][blocks][m, l, v dim sums]"),
    ("int32_t*", "arrived", "one token a sequence: [tokens][kv heads * splits] counters, zero before and after"),
    ("const int32_t*", "tiles", "many tokens: [tiles][TILE_WORDS], see TileWord"),
    ("float*", "kq", "for a trace: raw scores [head][token][key] of each chunk, or null"),
    ("float*", "state", "for a trace: (m, l) of each row [token][head], or null"),
    ("Cache", "cache"),
    ("Pool", "keys values"),
    ("Rows", "rows"),
    ("Mask", "mask"),
    ("const int32_t*", "query_rows", "token of each query row if only outputs are attended; else null"),
    ("const float*", "last", "many tokens: the last slot that each token sees; null: its own"),
    ("int32_t", "heads n_rot neox n_tokens splits", "neox: RoPE turns halves, not neighbours; splits: of a head group"),
    ("int32_t", "irregular", "positions differ from slots"),
    ("int32_t", "turn_k max_blocks", "turn_k: apply RoPE to k as well; max_blocks: blocks that `partial` has"),
)
TensorAttentionArgs = _define(
    "TensorAttentionArgs",
    "Attention on tensor cores (attention_tensor.cu, attention_patches.cu).",
    ("AttentionArgs", "of"),
    ("int32_t", "halved", "0: float32 results; else as store_halved says"),
    ("int32_t", "columns", "of a row of 16-bit results: zeros follow the heads"),
)
WalkAttention = _define(
    "WalkAttention",
    "Attention as a walk step (walk_attention.h).",
    ("const float*", "q_norm k_norm", "weights of a norm of every head before RoPE, or null"),
    ("float", "eps factor", "factor: multiplies q after RoPE"),
    ("int32_t", "q_step padding_3", "floats from a head of q to the next"),
    base="AttentionArgs",
)
Norm = _define(
    "Norm",
    "out = (x f) w + b + residual; centred: x minus its mean (walk_products.h).",
    ("const float*", "x w b residual"),
    ("float*", "out"),
    ("const float*", "more", "added to x first, or null"),
    ("float*", "sum", "where x + more is written"),
    ("int32_t", "columns first centred", "first: its first task; a task is 256 columns of a row"),
    ("float", "eps"),
)
NormArgs = _define(
    "NormArgs",
    "Up to two norms as one walk step.",
    ("Norm", "parts[2]"),
    ("int32_t", "n_parts tokens tasks padding"),
)
MapArgs = _define(
    "MapArgs",
    "An elementwise operation (rows.cu).",
    ("const float*", "x y z", "z: a third operand, or a table of weights of which y has the row of each value"),
    ("float*", "out"),
    ("int64_t", "rows"),
    ("int32_t", "width x_width y_width op", "width: of out; op: MapOp"),
    ("int32_t", "integer", "Act, the first column of a slice, or ConcatFlag"),
    ("int32_t", "z_rows parts z_width", "parts: heads or experts of a row of out"),
    ("float", "number second", "a lower bound or a factor; an upper bound or a limit"),
)
MapChain = _define(
    "MapChain",
    "Elementwise operations as one walk step. An operand at the address of the last result is that of the one before.",
    ("MapArgs", "maps[3]"),
    ("int32_t", "count padding"),
)
RowArgs = _define(
    "RowArgs",
    "An operation on whole rows (rows.cu).",
    ("const float*", "x w b", "w, b: weights and bias of a norm, or null"),
    ("float*", "out"),
    ("Acts", "acts"),
    ("int32_t", "width parts"),
    ("float", "eps"),
    ("int32_t", "w_step", "from one part's weights to the next one's"),
)
ScanArgs = _define(
    "ScanArgs",
    "A recurrence, or a convolution, over the tokens of each sequence (recurrent.cu).",
    ("const float*", "x[6]", "operands in the order of the graph's operation"),
    ("const float*", "weight", "A, u or the taps of each channel; or null"),
    ("float*", "out states", "states: all state slots"),
    ("const int32_t*", "sequences", "[sequences][STATE_WORDS], see StateWord"),
    ("int64_t", "slot_floats offset", "floats of a state slot; where this state begins in it"),
    ("int32_t", "heads groups channels rows", "rows: of a head's state; of a convolution, its taps"),
    ("int32_t", "kind per_channel", "ScanKind; per_channel: every channel has a decay"),
    ("float", "scale"),
    ("int32_t", "padding"),
)
WalkDelta = _define(
    "WalkDelta",
    "The gated delta rule of one token with its convolution and norms, and the norm and gate behind it: two steps of a "
    "walk (walk_delta.h). x: row before the convolution, decay's input, beta's input; the rule's result, gate.",
    ("const float*", "taps", "of each channel of the convolution"),
    ("const float*", "rate", "factor of softplus of decay's input, of each head"),
    ("int64_t", "window", "where the window of the convolution begins in a state slot"),
    ("float", "eps norm_eps", "of the length of q and k, and of the norm behind the rule"),
    ("int32_t", "act gate_act", "activations of the convolution and of the gate"),
    ("int32_t", "floor padding_2", "floor: eps is the least length"),
    base="ScanArgs",
)
WalkExperts = _define(
    "WalkExperts",
    "Products with the chosen experts' matrices as a walk step: gate and up, or down and, of one token, the weighted "
    "sum (walk_all.cu); of several tokens, that is a step of its own (walk_few_all.cu).",
    ("const float*", "logits", "of the router"),
    ("const float*", "choice_bias", "added where experts are chosen and not to their weights, or null"),
    ("int32_t", "routing", "Routing: the probabilities of experts"),
    ("int32_t", "by_logits used", "by_logits: choose by logits, not by probabilities; used: experts of a token"),
    ("int32_t", "softmax_chosen normalise", "what is done to the weights of the chosen experts"),
    ("float", "least scale", "lower bound of the sum of weights; factor of the weights"),
    ("int32_t", "down which", "which: of two places of choices in shared memory; several tokens: choices before it"),
    ("int32_t", "gated", "ExpertGate"),
    ("float", "alpha limit", "of OAI_GATE"),
    ("int32_t", "halved", "down has two groups for each group of rows, each of half of the experts"),
    ("int32_t", "by_matrix", "several tokens: tokens of an expert from which `mma` multiplies"),
    ("int64_t", "costs padding", "several tokens: byte n - 1 is the time of a tile that n tokens are multiplied by"),
    ("float*", "partial", "of halved: the sums of the first half"),
    ("const float*", "addend addend_gate", "of down: a row added to the sum, times sigmoid of a value; or null"),
    base="ProductArgs",
)
StepUnion = _define(
    "StepUnion",
    "The arguments of a walk step, by its kind.",
    ("ProductArgs", "product"),
    ("WalkAttention", "attention"),
    ("NormArgs", "norm"),
    ("WalkExperts", "experts"),
    ("MapChain", "chain"),
    ("RowArgs", "row"),
    ("ScanArgs", "scan"),
    ("WalkDelta", "delta"),
    union=True,
)
WalkStep = _define(
    "WalkStep",
    "One step of a walk (walk.h).",
    ("int32_t", "kind fresh", "StepKind; fresh: StepFlag"),
    ("int32_t", "heads of_block", "attention: heads of an item; items of 256 keys"),
    ("int32_t", "dim_shift per_group", "attention: log2 of the head width; 65536 / heads of a group, rounded up"),
    ("int32_t", "in_copies in_bytes", "copies of x, a power of two, and bytes from one to the next"),
    ("int32_t", "out_copies out_bytes", "the same of the result"),
    ("int32_t", "first", "thread block that takes the first group: the step before leaves it idle, if it leaves any"),
    ("int32_t", "ahead", "most pieces that the producer warps have in flight"),
    ("int32_t", "second", "product: first group of the kernel's second layout; attention: 2^24 / of_block, rounded up"),
    ("int32_t", "per_row", "attention of several rows: 65536 / key heads, rounded up"),
    ("StepUnion", "args"),
)
WalkArgs = _define(
    "WalkArgs",
    "A walk: a list of steps that one launch runs.",
    ("const WalkStep*", "steps"),
    ("const int32_t*", "slot", "cache slot of each token"),
    ("int32_t", "n_steps slots room rows", "slots, room: ring slots and the bytes of one; rows: tokens"),
)
ClearArgs = _define(
    "ClearArgs",
    "Memory to fill with kNotYet before a walk (walk.cu).",
    ("uint4*", "at"),
    ("int64_t", "vectors"),
)
ShortArgs = _define(
    "ShortArgs",
    "Attention of one token in few instructions (attention_short.cu).",
    ("AttentionArgs", "attention"),
    ("Acts", "acts", "the result, quantised; or null"),
    ("int32_t", "copies padding", "copies of the quantised row"),
)
HalveArgs = _define(
    "HalveArgs",
    "Rows to round to 16-bit floats (rows.cu).",
    ("const float*", "x norm bias", "norm, bias: weights and bias of a norm before rounding, or null"),
    ("uint16_t*", "out"),
    ("int32_t", "width stride room", "room: rows that `out` has memory for"),
    ("float", "eps"),
    ("int32_t", "kind", "HalvedAs"),
    ("int32_t", "centred", "the norm is of x minus its mean"),
    ("int32_t", "act padding", "Act of each value before rounding, or -1"),
)
StepArgs = _define(
    "StepArgs",
    "Embedding, RoPE tables, cache reads and writes, rows to take or pool (steps.cu).",
    ("Rows", "rows"),
    ("Cache", "cache"),
    ("Pool", "pool"),
    ("Matrix", "table"),
    ("const float*", "x"),
    ("float*", "out"),
    ("const double*", "frequencies"),
    ("const int32_t*", "which", "rows to take, tokens, positions or chunks"),
    ("int64_t", "n"),
    ("int32_t", "width n_rot"),
    ("float", "magnitude"),
    ("int32_t", "kind", "Pooling"),
)
RopeArgs = _define(
    "RopeArgs",
    "RoPE of the heads of a row from value `offset` on (steps.cu).",
    ("const float*", "x table", "[rows][width]; [rows][cosines | sines]"),
    ("float*", "out"),
    ("int64_t", "rows"),
    ("int32_t", "width heads n_rot neox offset padding"),
)
PositionArgs = _define(
    "PositionArgs",
    "Rows scaled by their position (steps.cu).",
    ("const float*", "x"),
    ("float*", "out"),
    ("const int32_t*", "which", "position of each row"),
    ("double", "beta"),
    ("int64_t", "unit offset"),
    ("int32_t", "width padding"),
)
ScoreArgs = _define(
    "ScoreArgs",
    "One operation of attention on whole matrices of scores (scores.cu).",
    ("const float*", "x y"),
    ("float*", "out"),
    ("const int32_t*", "chunks", "[chunks][CHUNK_WORDS], see ChunkWord"),
    ("const int32_t*", "positions key_positions"),
    ("const float*", "last", "the last slot that each token sees; null: its own"),
    ("Mask", "mask"),
    ("int32_t", "heads kv_heads dim op", "op: ScoreOp"),
)
BestArgs = _define(
    "BestArgs",
    "The k largest values of each row (best.cu).",
    ("const float*", "x", "[rows][width]"),
    ("uint2*", "lists", "[rows][n_lists][k]: order and index"),
    ("uint64_t*", "sums", "[rows][n_lists][2]: of the row's hash for a receipt; or null"),
    ("float*", "out", "[rows][2 k]: values, then indices; with sums four words more, the hash"),
    ("int32_t*", "tokens positions slots left", "the step's tables, to advance by the best token; or null"),
    ("int32_t", "width n_lists k padding"),
)
RepackArgs = _define(
    "RepackArgs",
    "Rows of a file to bring into their layout (repack.cu).",
    ("const uint8_t*", "raw", "rows as the file has them; WIDE16: int8 codes [rows][columns]"),
    ("const float*", "d m", "WIDE16: scales and minima [rows][columns / 16]"),
    ("Matrix", "to"),
    ("int64_t", "first_row rows", "raw begins with row first_row of all experts' matrices"),
    ("int64_t", "row_bytes expert_bytes", "expert_bytes: from one expert's matrix to the next"),
    ("int32_t", "half part", "rows of this matrix in each group of `to`, and which part of the group they are"),
)
