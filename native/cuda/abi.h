// The binary interface between kernels and the compiler in Python: enums, constants, structs, bytes of shared memory.
//
// Generated from src/assay/engines/cuda/abi; do not edit. `python -m assay.engines.cuda.abi` writes it anew.
#pragma once
#include "platform.h"

namespace assay {

constexpr int kPage = 32;  // positions of a cache page
constexpr int kBlock = 256;  // keys of one step of attention's running softmax
constexpr int kMaxParts = 4;  // matrices of one product launch
constexpr int kMaxNorms = 2;  // norms of one walk step
constexpr int kTileWords = 8;  // int32 words of a query tile, see TileWord
constexpr int kChunkWords = 6;  // int32 words of a chunk, see ChunkWord
constexpr int kStateWords = 4;  // int32 words of a sequence with a state, see StateWord
constexpr int kContinues = -2;  // STATE_FROM of a row that goes on where the row before has ended
constexpr int kHalvedShift = 28;  // bit of `halved` from which on it holds a HalvedAs; the bits below are the rows of memory
constexpr int kLine = 272;  // bytes between the 256 codes of two rows in shared memory: eight rows hit all banks
constexpr int kHalfBlock = 128;  // keys that attention_tensor.cu stages at a time
constexpr int kPatchKeys = 64;  // keys that attention_patches.cu stages at a time
constexpr int kPatchRows = 128;  // query rows of a tile of attention_patches.cu
constexpr int kPromptKeys = 128;  // keys that attention_prompt.cu stages at a time
constexpr int kFloatStep = 16;  // columns that gemm_floats.cu stages at a time
constexpr int kWalkWarps = 12;  // consumer warps of a walk; producer warps come after them
constexpr int kWalkRows = 8;  // most tokens of a walk
constexpr int kWalkUnitBytes = 2560;  // bytes of 256 quantised columns of WALK_ROWS rows: codes, then (d, d * sum)
constexpr int kWalkCodeBytes = 2048;  // bytes of them that are codes
constexpr int kWalkHead = 256;  // widest attention head of a walk
constexpr int kChosen = 32;  // most experts of a token in a walk
constexpr int kChoiceBytes = 512;  // shared memory of the choices of two layers
constexpr int kFewChoiceBytes = 3392;  // shared memory of the choice of WALK_ROWS tokens
constexpr int kMostExperts = 512;  // most experts of a layer in a walk
constexpr int kMostMaps = 3;  // elementwise operations of one walk step
constexpr int kScanRows = 4;  // rows of a state that a warp of a walk has at a time
constexpr int kStepsKept = 4;  // descriptions of steps that a block of threads of walk_all.cu has in shared memory
constexpr int kDeltaRows = 32;  // rows of a head's state that a thread block of a walk has at a time
constexpr int kDeltaTaps = 4;  // taps of the convolution before such a state
constexpr int kDeltaChannels = 128;  // channels of such a head, and rows of its state
constexpr int kCutBytes = 4096;  // first piece of a tile that is fetched as two pieces: its chunks of low bits

// Activation of a gate (arithmetic.h).
enum Act {
    SILU = 0, GELU_TANH = 1, GELU_ERF = 2, RELU = 3, RELU_SQR = 4, TANH = 5
};

// Layout of a matrix in device memory (formats.h). WIDE16 holds any other type, expanded to int8 codes with float32
// scales per 16 columns; WIDE16_MIN has minima, too.
enum WeightFormat {
    F32 = 0, F16 = 1, BF16 = 2, Q4_0 = 3, Q4_1 = 4, Q5_0 = 5, Q5_1 = 6, Q8_0 = 7, Q4_K = 8, Q5_K = 9, Q6_K = 10,
    IQ4_NL = 11, IQ4_XS = 12, MXFP4 = 13, WIDE16 = 14, WIDE16_MIN = 15
};

// Type of the values in a cache page (cache.h).
enum KvType {
    KV_F32 = 0, KV_F16 = 1, KV_BF16 = 2, KV_Q8_0 = 3
};

// Operation of the kernel `map` (rows.cu), which has the formula of each.
enum MapOp {
    ADD = 0, GLU = 1, BIAS = 2, SCALE = 3, SOFTCAP = 4, CLAMP_MIN = 5, DIV = 6, GATHER = 7, EXPERT_SCALE = 8,
    EXPERT_SUM = 9, SLICE = 10, ROW_SUM = 11, CLAMP = 12, ACT = 13, GLU_SPLIT = 14, GLU_OAI = 15, EXPERT_INPUT = 16,
    EXPERT_BIAS = 17, EXPERT_GAIN = 18, SIGMOID = 19, MUL = 20, MUL_WEIGHT = 21, CONCAT = 22, SOFTPLUS = 23, EXP = 24,
    XIELU = 25, ADD_SCALAR = 26, HEAD_GAIN = 27, ADD_GAIN = 28, LERP = 29, LERP_ROW = 30, REPEAT_HEADS = 31, JOIN = 32,
    MIX_STREAMS = 33, ADD_TO_STREAMS = 34
};

// Recurrence that the kernels `scan_N` compute (recurrent.cu).
enum ScanKind {
    DELTA_RULE = 0, SSM_SCAN = 1, WKV6 = 2, WKV7 = 3
};

// Words of a sequence (ScanArgs.sequences): its first row, its tokens, and the slots that hold its state before and
// after the step. STATE_FROM is -1 where the sequence begins. A sequence whose state is kept at several tokens has
// several rows; STATE_FROM of the further ones is kContinues. Padding has no tokens.
enum StateWord {
    STATE_ROW = 0, STATE_TOKENS = 1, STATE_FROM = 2, STATE_TO = 3
};

// `integer` of the map operation CONCAT: the operand has one head, which every head of the result gets.
enum ConcatFlag {
    X_IS_ONE_HEAD = 1, Y_IS_ONE_HEAD = 2
};

// Row that stands for a sequence: the mean of its tokens, the first or the last (steps.cu, pool_rows).
enum Pooling {
    MEAN = 0, FIRST_TOKEN = 1, LAST_TOKEN = 2
};

// Operation of the kernel `scores` (scores.cu). WEIGHTS are the softmax of raw scores whose m and l are given.
enum ScoreOp {
    KQ = 0, SOFTMAX = 1, KQV = 2, CAPPED = 3, WEIGHTS = 4
};

// Input of a product: quantised rows, rows of floats, or rows of floats that the kernel norms first.
enum Prologue {
    GIVEN = 0, PLAIN_ROWS = 1, NORMED_ROWS = 2
};

// 16-bit floats that products on tensor cores read: f16 in the column order of gemm_tensor.cu, f16 or bf16 in the
// column order of gemm_halves.cu (arithmetic.h, store_halved).
enum HalvedAs {
    INTERLEAVED_F16 = 0, ORDERED_F16 = 1, ORDERED_BF16 = 2
};

// Kind of a walk step (walk.h).
enum StepKind {
    PRODUCT = 0, ATTEND = 1, FOLD = 2, QUANTISE = 3, NORM = 4, FLOAT_ROWS = 5, EXPERT_ROWS = 6, MAP_ROW = 7,
    PART_NORMS = 8, PART_LENGTHS = 9, RECURRENCE = 10, WINDOW = 11, WEIGH_EXPERTS = 12, DELTA = 13, GATED_NORMS = 14
};

// `fresh` of a walk step. AWAIT_X, AWAIT_RESIDUAL: an earlier step of the same walk writes x or the residual, so
// readers spin-wait for it. AS_CODES: x, or the result of attention, is quantised. TWO_LANES: two lanes share an item.
// SPLIT_TILE: a tile is fetched as two pieces. COUNTED: quantised rows are published by a count of rows.
enum StepFlag {
    AWAIT_X = 1, AWAIT_RESIDUAL = 2, AS_CODES = 4, TWO_LANES = 8, SPLIT_TILE = 16, COUNTED = 32
};

// Activation that a walk step applies before it quantises a row; `paired` of its first part. SPLIT: act(x) y, where y
// is the second half of the row. ALONE: act(x).
enum Gating {
    AS_IT_IS = 0, SPLIT = 1, ALONE = 2
};

// Probabilities of experts: the logits themselves, their softmax, or their sigmoid.
enum Routing {
    AS_LOGITS = 0, BY_SOFTMAX = 1, BY_SIGMOID = 2
};

// How an expert's gate and up combine: act(up) without a gate, act(gate) up, or the clamped gate of gpt-oss.
enum ExpertGate {
    NO_GATE = 0, ACT_GATE = 1, OAI_GATE = 2
};

// Words of a query tile (AttentionArgs.tiles). Rows are counted within the tokens of the chunk: row r is token r /
// group and head r % group. TILE_SCORES is the offset of the chunk's scores, low word first.
enum TileWord {
    TILE_TOKEN = 0, TILE_ROW = 1, TILE_ROWS = 2, TILE_KEYS = 3, TILE_TOKENS = 4, TILE_SCORES = 5, TILE_SCORES_HIGH = 6,
    TILE_CHUNK_TOKEN = 7
};

// Words of a chunk (ScoreArgs.chunks): its tokens, its keys, and the offset of its scores, low word first.
enum ChunkWord {
    CHUNK_TOKEN = 0, CHUNK_TOKENS = 1, CHUNK_KEY = 2, CHUNK_KEYS = 3, CHUNK_SCORES = 4, CHUNK_SCORES_HIGH = 5
};

// Size of each layout, which formats.h must agree with: 16-byte chunks of an item.
struct FormatSize {
    int chunks, scale_chunks;
    bool word, floats, half_sums;
};
constexpr FormatSize format_size(int format) {
    switch (format) {
        case F32: return {64, 0, false, true, false};
        case F16: return {32, 0, false, true, false};
        case BF16: return {32, 0, false, true, false};
        case Q4_0: return {9, 1, false, false, false};
        case Q4_1: return {10, 2, false, false, false};
        case Q5_0: return {11, 1, false, false, false};
        case Q5_1: return {12, 2, false, false, false};
        case Q8_0: return {17, 1, false, false, false};
        case Q4_K: return {9, 1, true, false, false};
        case Q5_K: return {11, 1, true, false, false};
        case Q6_K: return {13, 1, true, false, false};
        case IQ4_NL: return {9, 1, false, false, false};
        case IQ4_XS: return {9, 1, true, false, false};
        case MXFP4: return {9, 1, false, false, false};
        case WIDE16: return {20, 4, false, false, false};
        case WIDE16_MIN: return {24, 8, false, false, true};
    }
    return {};
}

// A matrix in device memory, in tiles of 32 items (formats.h).
struct Matrix {
    const uint8_t* data;
    int64_t group_bytes;  // bytes of the tiles of a group of rows
    int32_t format, rows, columns, units;  // WeightFormat; units: of 256 columns
    int32_t group, tiles, tile_bytes;  // rows of a group; tiles of a group, ceil(group * units / 32)
    int32_t all_rows;  // rows of all groups, with padding and with both matrices of a pair

    DEVICE const uint8_t* tile(int64_t group_index, int t) const;
};

// Rows of quantised activations, padded with zeros to whole units of 256 columns (activations.h).
struct Acts {
    int8_t* q;  // [rows][stride]: codes
    float2* ds;  // of each block of 32: (d, d * sum of codes)
    uint32_t* n;  // of each block of 32: the sums of its halves, 16 bits each
    int32_t stride;  // columns, a multiple of 256
    int32_t step;  // 0: ds and n are [rows][blocks]; else [blocks][step], with memory for `step` rows
};

// One matrix of a product launch and its epilogue.
struct Product {
    Matrix w;
    float* out;  // [tokens][out_stride]
    const float* bias;  // or null
    const float* residual;  // [tokens][out_stride], or null
    float *gate_out, *up_out;  // the two sums of a pair, if a trace keeps them; else null
    int32_t out_stride, first_group;  // first_group: groups of the parts before; in tiled kernels, tiles of rows
    int32_t paired;  // each group has group / 2 rows of gate, then as many of up; out = act(gate) * up
    int32_t act;  // Act
};

// out = x W^T for up to four matrices that share x.
struct ProductArgs {
    Product parts[4];
    Acts acts;  // prologue GIVEN: x, quantised
    const float *x, *norm;  // other prologues: rows of floats, and the weights of their norm or null
    const float* experts;  // matrix of each pair (token, choice); null: matrix h takes head h
    int64_t expert_bytes;  // from one matrix to the next
    int32_t n_parts, groups, tokens, columns, x_stride;  // groups: of all parts; in tiled kernels, tiles of rows
    int32_t prologue;  // Prologue
    float eps;  // of the norm
    int32_t rows_of_x;  // n_experts > 0: pairs that share a row of x; product_one: copies of the quantised row
    int32_t n_experts;  // 0: one matrix
    int32_t slots;  // product_one: ring slots of a warp; walk of several tokens: groups at a time
    // groups of a thread block, and how many blocks have one more; gemm_halves.cu: share > 0 stores 16-bit floats with
    // memory for that many rows
    int32_t share, extra;
    int32_t shift;  // log2 of the rows of a group
    // gemm_tiles.h, gemm_halves.cu: units staged ahead; gemm.h: bytes of a stage; product_one: bytes of a piece; walk:
    // groups between a warp's two tiles of the same columns; walk of several tokens: units of x at a time
    int32_t stages;
};

// A product on 16-bit tensor cores (gemm_tensor.cu).
struct TensorArgs {
    ProductArgs product;
    const uint8_t* factors[4];  // of each part, as make_factors writes them
    int32_t codes[4], pairs[4];  // of each part: chunks of codes and of factors of an item
    float4* partial;  // sums of chains, [tiles][chains, or 1 where one block has all][J][threads]
    int32_t* arrived;  // [tiles]: blocks that have finished; zero before and after
    int32_t room;  // memory for that many rows of `out` if results are stored as halves; else 0
    int32_t chains;  // parts of a row that are summed on their own
    int32_t split, padding;  // split: block_z is the chain
};

// Pairs (token, choice) to sort by matrix (experts.cu).
struct SortArgs {
    const float* experts;  // matrix of each pair, or null: pair % n
    int32_t *pairs, *matrices;  // results: pair of each slot, matrix of each tile
    int32_t count, n;  // pairs; matrices
    int32_t tile, tiles;  // slots of a tile; tiles that there is memory for
};

// Rows of x, or of x with a gate, to quantise in the order of sorted pairs (experts.cu).
struct PairArgs {
    const float* x;
    const float* up;  // or null; x is the gate then
    const int32_t* pairs;
    Acts acts;
    int32_t width, share;  // share: pairs that share a row of x
    int32_t act, oai;  // act: Act of the gate; oai: glu_oai instead, with alpha and limit
    float alpha, limit;
};

// The chosen experts' rows times their weights, added in the order of the choices (rows.cu).
struct TotalArgs {
    const float *x, *weights, *residual;  // residual: added behind the sum, or null
    float* out;
    int64_t rows;
    int32_t width, count;  // width: of out; count: rows of x that are added
};

// A product whose tokens are slots of sorted pairs (experts.cu).
struct SortedArgs {
    ProductArgs product;
    const int32_t *pairs, *matrices;
};

// Scales and minima to round to f16, once, when a matrix is loaded (gemm_tensor.cu).
struct FactorArgs {
    Matrix w;
    uint8_t* out;  // [tiles][chunks][32][16]: word i % 4 of chunk i / 4 is block i's; minima two chunks later
    int64_t tiles;  // of the whole matrix
    int32_t chunks, padding;
};

// Where the keys or values of one layer lie in a cache page (cache.h).
struct Pool {
    int64_t offset;  // bytes from the beginning of a page
    int32_t type, keys, heads, dim;  // KvType; keys: 1 for the layout of keys, 0 for that of values
    int32_t head_bytes, columns, first, padding;  // a position has `columns` values a head; `dim` from `first`

    DEVICE int each() const;
    DEVICE int vectors() const;
    DEVICE int index(int slot, int d) const;
    DEVICE int scale_index(int slot, int d) const;
    DEVICE int scales_at() const;
};

// The pages of the cache.
struct Cache {
    uint8_t* pages;
    int64_t page_bytes, positions_at;  // positions_at: offset in a page of its 32 int32 positions
};

// Token, position, cache slot and page table of each row of the step.
struct Rows {
    const int32_t *tokens, *positions;
    const int32_t* slots;  // -1 for a row of padding
    const int32_t* tables;  // index in `pages` at which the row's page table begins
    const int32_t* pages;
};

// Which keys a query sees, and what becomes of a score before the softmax (mask.h).
struct Mask {
    const float *sinks, *slopes;  // of each head: an extra score without a value, the slope of ALiBi; or null
    int32_t window, chunk, causal, padding;  // 0: none
    float scale, cap;  // cap 0: none

    DEVICE bool hides(int64_t query, int64_t key) const;
    DEVICE bool hides(int64_t query, int64_t key, int slot, int last) const;
    DEVICE int from(int query) const;
    DEVICE int to(int query, int n) const;
    DEVICE bool partial() const;
    DEVICE float score(float x, int head, int64_t distance) const;
    DEVICE int64_t chunk_start(int64_t query) const;
};

// Attention over the paged cache (attention.h).
struct AttentionArgs {
    const float* q;  // [tokens][heads * k dim], before RoPE if `turn` is given
    const float *k, *v;  // one token a sequence: [tokens][kv heads * dim], to store; null: already in the cache
    const float* turn;  // [tokens][n_rot]: cosines, then sines; or null
    float* out;  // [tokens][heads * v dim]
    float* partial;  // one token a sequence: [tokens][heads][blocks][m, l, v dim sums]
    int32_t* arrived;  // one token a sequence: [tokens][kv heads * splits] counters, zero before and after
    const int32_t* tiles;  // many tokens: [tiles][TILE_WORDS], see TileWord
    float* kq;  // for a trace: raw scores [head][token][key] of each chunk, or null
    float* state;  // for a trace: (m, l) of each row [token][head], or null
    Cache cache;
    Pool keys, values;
    Rows rows;
    Mask mask;
    const int32_t* query_rows;  // token of each query row if only outputs are attended; else null
    const float* last;  // many tokens: the last slot that each token sees; null: its own
    int32_t heads, n_rot, neox, n_tokens, splits;  // neox: RoPE turns halves, not neighbours; splits: of a head group
    int32_t irregular;  // positions differ from slots
    int32_t turn_k, max_blocks;  // turn_k: apply RoPE to k as well; max_blocks: blocks that `partial` has
};

// Attention on tensor cores (attention_tensor.cu, attention_patches.cu).
struct TensorAttentionArgs {
    AttentionArgs of;
    int32_t halved;  // 0: float32 results; else as store_halved says
    int32_t columns;  // of a row of 16-bit results: zeros follow the heads
};

// Attention as a walk step (walk_attention.h).
struct WalkAttention : AttentionArgs {
    const float *q_norm, *k_norm;  // weights of a norm of every head before RoPE, or null
    float eps, factor;  // factor: multiplies q after RoPE
    int32_t q_step, padding_3;  // floats from a head of q to the next
};

// out = (x f) w + b + residual; centred: x minus its mean (walk_products.h).
struct Norm {
    const float *x, *w, *b, *residual;
    float* out;
    const float* more;  // added to x first, or null
    float* sum;  // where x + more is written
    int32_t columns, first, centred;  // first: its first task; a task is 256 columns of a row
    float eps;
};

// Up to two norms as one walk step.
struct NormArgs {
    Norm parts[2];
    int32_t n_parts, tokens, tasks, padding;
};

// An elementwise operation (rows.cu).
struct MapArgs {
    const float *x, *y, *z;  // z: a third operand, or a table of weights of which y has the row of each value
    float* out;
    int64_t rows;
    int32_t width, x_width, y_width, op;  // width: of out; op: MapOp
    int32_t integer;  // Act, the first column of a slice, or ConcatFlag
    int32_t z_rows, parts, z_width;  // parts: heads or experts of a row of out
    float number, second;  // a lower bound or a factor; an upper bound or a limit
};

// Elementwise operations as one walk step. An operand at the address of the last result is that of the one before.
struct MapChain {
    MapArgs maps[3];
    int32_t count, padding;
};

// An operation on whole rows (rows.cu).
struct RowArgs {
    const float *x, *w, *b;  // w, b: weights and bias of a norm, or null
    float* out;
    Acts acts;
    int32_t width, parts;
    float eps;
    int32_t w_step;  // from one part's weights to the next one's
};

// A recurrence, or a convolution, over the tokens of each sequence (recurrent.cu).
struct ScanArgs {
    const float* x[6];  // operands in the order of the graph's operation
    const float* weight;  // A, u or the taps of each channel; or null
    float *out, *states;  // states: all state slots
    const int32_t* sequences;  // [sequences][STATE_WORDS], see StateWord
    int64_t slot_floats, offset;  // floats of a state slot; where this state begins in it
    int32_t heads, groups, channels, rows;  // rows: of a head's state; of a convolution, its taps
    int32_t kind, per_channel;  // ScanKind; per_channel: every channel has a decay
    float scale;
    int32_t padding;
};

// The gated delta rule of one token with its convolution and norms, and the norm and gate behind it: two steps of a
// walk (walk_delta.h). x: row before the convolution, decay's input, beta's input; the rule's result, gate.
struct WalkDelta : ScanArgs {
    const float* taps;  // of each channel of the convolution
    const float* rate;  // factor of softplus of decay's input, of each head
    int64_t window;  // where the window of the convolution begins in a state slot
    float eps, norm_eps;  // of the length of q and k, and of the norm behind the rule
    int32_t act, gate_act;  // activations of the convolution and of the gate
    int32_t floor, padding_2;  // floor: eps is the least length
};

// Products with the chosen experts' matrices as a walk step: gate and up, or down and, of one token, the weighted sum
// (walk_all.cu); of several tokens, that is a step of its own (walk_few_all.cu).
struct WalkExperts : ProductArgs {
    const float* logits;  // of the router
    const float* choice_bias;  // added where experts are chosen and not to their weights, or null
    int32_t routing;  // Routing: the probabilities of experts
    int32_t by_logits, used;  // by_logits: choose by logits, not by probabilities; used: experts of a token
    int32_t softmax_chosen, normalise;  // what is done to the weights of the chosen experts
    float least, scale;  // lower bound of the sum of weights; factor of the weights
    int32_t down, which;  // which: of two places of choices in shared memory; several tokens: choices before it
    int32_t gated;  // ExpertGate
    float alpha, limit;  // of OAI_GATE
    int32_t halved;  // down has two groups for each group of rows, each of half of the experts
    int32_t by_matrix;  // several tokens: tokens of an expert from which `mma` multiplies
    int64_t costs, padding;  // several tokens: byte n - 1 is the time of a tile that n tokens are multiplied by
    float* partial;  // of halved: the sums of the first half
    const float *addend, *addend_gate;  // of down: a row added to the sum, times sigmoid of a value; or null
};

// One step of a walk (walk.h).
struct WalkStep {
    int32_t kind, fresh;  // StepKind; fresh: StepFlag
    int32_t heads, of_block;  // attention: heads of an item; items of 256 keys
    int32_t dim_shift, per_group;  // attention: log2 of the head width; 65536 / heads of a group, rounded up
    int32_t in_copies, in_bytes;  // copies of x, a power of two, and bytes from one to the next
    int32_t out_copies, out_bytes;  // the same of the result
    int32_t first;  // thread block that takes the first group: the step before leaves it idle, if it leaves any
    int32_t ahead;  // most pieces that the producer warps have in flight
    int32_t second;  // product: first group of the kernel's second layout; attention: 2^24 / of_block, rounded up
    int32_t per_row;  // attention of several rows: 65536 / key heads, rounded up
    union {
        ProductArgs product;
        WalkAttention attention;
        NormArgs norm;
        WalkExperts experts;
        MapChain chain;
        RowArgs row;
        ScanArgs scan;
        WalkDelta delta;
    };
};

// A walk: a list of steps that one launch runs.
struct WalkArgs {
    const WalkStep* steps;
    const int32_t* slot;  // cache slot of each token
    int32_t n_steps, slots, room, rows;  // slots, room: ring slots and the bytes of one; rows: tokens
};

// Memory to fill with kNotYet before a walk (walk.cu).
struct ClearArgs {
    uint4* at;
    int64_t vectors;
};

// Attention of one token in few instructions (attention_short.cu).
struct ShortArgs {
    AttentionArgs attention;
    Acts acts;  // the result, quantised; or null
    int32_t copies, padding;  // copies of the quantised row
};

// Rows to round to 16-bit floats (rows.cu).
struct HalveArgs {
    const float *x, *norm, *bias;  // norm, bias: weights and bias of a norm before rounding, or null
    uint16_t* out;
    int32_t width, stride, room;  // room: rows that `out` has memory for
    float eps;
    int32_t kind;  // HalvedAs
    int32_t centred;  // the norm is of x minus its mean
    int32_t act, padding;  // Act of each value before rounding, or -1
};

// Embedding, RoPE tables, cache reads and writes, rows to take or pool (steps.cu).
struct StepArgs {
    Rows rows;
    Cache cache;
    Pool pool;
    Matrix table;
    const float* x;
    float* out;
    const double* frequencies;
    const int32_t* which;  // rows to take, tokens, positions or chunks
    int64_t n;
    int32_t width, n_rot;
    float magnitude;
    int32_t kind;  // Pooling
};

// RoPE of the heads of a row from value `offset` on (steps.cu).
struct RopeArgs {
    const float *x, *table;  // [rows][width]; [rows][cosines | sines]
    float* out;
    int64_t rows;
    int32_t width, heads, n_rot, neox, offset, padding;
};

// Rows scaled by their position (steps.cu).
struct PositionArgs {
    const float* x;
    float* out;
    const int32_t* which;  // position of each row
    double beta;
    int64_t unit, offset;
    int32_t width, padding;
};

// One operation of attention on whole matrices of scores (scores.cu).
struct ScoreArgs {
    const float *x, *y;
    float* out;
    const int32_t* chunks;  // [chunks][CHUNK_WORDS], see ChunkWord
    const int32_t *positions, *key_positions;
    const float* last;  // the last slot that each token sees; null: its own
    Mask mask;
    int32_t heads, kv_heads, dim, op;  // op: ScoreOp
};

// The k largest values of each row (best.cu).
struct BestArgs {
    const float* x;  // [rows][width]
    uint2* lists;  // [rows][n_lists][k]: order and index
    uint64_t* sums;  // [rows][n_lists][2]: of the row's hash for a receipt; or null
    float* out;  // [rows][2 k]: values, then indices; with sums four words more, the hash
    int32_t *tokens, *positions, *slots, *left;  // the step's tables, to advance by the best token; or null
    int32_t width, n_lists, k, padding;
};

// Rows of a file to bring into their layout (repack.cu).
struct RepackArgs {
    const uint8_t* raw;  // rows as the file has them; WIDE16: int8 codes [rows][columns]
    const float *d, *m;  // WIDE16: scales and minima [rows][columns / 16]
    Matrix to;
    int64_t first_row, rows;  // raw begins with row first_row of all experts' matrices
    int64_t row_bytes, expert_bytes;  // expert_bytes: from one expert's matrix to the next
    int32_t half, part;  // rows of this matrix in each group of `to`, and which part of the group they are
};

constexpr int max_of(int a, int b) { return a > b ? a : b; }

// rms_norm, layer_norm, quantise_rows
constexpr int normed_row_bytes(int width) {
    return 16 + 4 * width;
}

// halve_rows: the row, rounded up to 8 values
constexpr int halved_row_bytes(int width) {
    return 48 + 4 * width;
}

// counters of sort_pairs
constexpr int sort_pairs_bytes(int matrices, int warps) {
    return 4 * (matrices + warps);
}

// places of best_of_lists
constexpr int best_lists_bytes(int lists) {
    return 4 * lists;
}

// 256 columns of `rows` rows
constexpr int staged_weights_bytes(int rows, int chunks, int word) {
    return rows * (16 * chunks + 4 * word);
}

// gemm.h: factors of the weights of a stage, and sums of half blocks
constexpr int few_factors_bytes(int rows, int tokens, int half_sums) {
    return 64 * rows + (64 * rows + 32 * tokens) * half_sums;
}

// gemm.h: a unit of a warp
constexpr int few_stage_bytes(int tokens, int weights, int factors) {
    return tokens * (kLine + 64) + weights + factors;
}

// gemm.h: a stage of each warp, and two rounds of partial sums
constexpr int few_shared_bytes(int rows, int tokens, int warps, int stage) {
    return warps * (stage + 8 * rows * (tokens + 8 * (tokens > 8)));
}

// gemm_tiles.h: an unpacked unit
constexpr int tile_set_bytes(int rows, int half_sums) {
    return rows * (kLine + 64 + 64 * half_sums);
}

// gemm_tiles.h: activations of a unit, and weights of the next
constexpr int tile_stage_bytes(int tokens, int half_sums, int weights) {
    return tokens * (kLine + 64 + 32 * half_sums) + weights;
}

// gemm_tiles.h: groups of warps share units and pass partial sums to the first group
constexpr int tile_shared_bytes(int rows, int tokens, int groups, int stages, int set, int stage) {
    return groups * (2 * set + stages * stage) + 8 * (groups - 1) * rows * tokens;
}

// gemm_floats.cu: totals, partial sums of each group, two steps of each group
constexpr int float_tile_bytes(int rows, int tokens, int groups) {
    return 4 * tokens * (rows + 4) * (1 + groups * (groups > 1)) + 8 * groups * kFloatStep * (rows + tokens + 8);
}

// products_floats.cu: rows of x and their partial sums
constexpr int few_floats_bytes(int tokens, int units, int tiles) {
    return 4 * tokens * (256 * units + max_of(64, 32 * tiles));
}

// products.cu: x, partial sums of a block's tiles, and the ring of each warp
constexpr int one_product_bytes(int stride, int floats, int tiles, int warps, int slots, int piece) {
    return 24 + max_of(4 * stride * floats, stride / 8 * 11) + 128 * tiles + warps * slots * (piece + 8);
}

// gemm_tensor.cu: a unit of a warp's 16 rows
constexpr int tensor_unit_bytes(int codes, int pairs) {
    return 256 * (codes + pairs);
}

// tensor_256 to tensor_32: a ring of activations, two units of each warp
constexpr int tensor_tile_bytes(int tokens, int ring, int strips, int warps, int unit) {
    return ring * (128 * tokens * strips + 16) + 2 * warps * unit + 8;
}

// turns_64 to turns_8: a unit of activations of each group, sums that are passed on, two units of each warp
constexpr int tensor_turns_bytes(int tokens, int groups, int unit) {
    return groups * (512 * tokens + 8 * unit + 8) + 256 * tokens + 8;
}

// gemm_halves.cu: a unit of a warp, 16-bit floats
constexpr int halves_few_stage_bytes(int rows, int tokens) {
    return 528 * tokens + 512 * rows;
}

// gemm_halves.cu: a ring slot
constexpr int halves_step_bytes(int rows, int tokens, int strips) {
    return 128 * (rows + tokens) * strips + 16;
}

// attention_one.cu
constexpr int attend_one_bytes(int heads, int k_dim, int v_dim) {
    return 4 * heads * (k_dim + kBlock + 2) + 4 * (k_dim + v_dim + 64 + 8 * heads * v_dim);
}

// attention_halves.cu
constexpr int attend_halves_bytes(int heads, int k_dim, int v_dim) {
    return 4 * heads * (k_dim + kBlock + 2) + 2 * (kBlock + 1) * (k_dim + v_dim) + 56 * heads;
}

// attention_blocks.cu
constexpr int attend_blocks_bytes(int heads, int k_dim, int v_dim) {
    return 4 * heads * (k_dim + kBlock + 2) + 2 * kBlock * v_dim + 2 * k_dim + 32 * heads * v_dim + 8;
}

// attention_short.cu
constexpr int attend_short_bytes(int dim) {
    return 4 * (kBlock * dim + 2 * dim + kBlock + 8 + 8 * dim);
}

// attention_many.cu: 8 * rows query rows, `pages` staged pages; quads: ceil(k dim / 4)
constexpr int attend_tile_bytes(int rows, int pages, int quads, int v_dim) {
    return 4 * (32 * rows * quads + 32 * pages * max_of(4 * quads, v_dim) + 8 * rows * (kBlock + 8) + 4);
}

// attention_prompt.cu
constexpr int attend_prompt_bytes(int rows, int dim) {
    return 4 * (rows * (dim + 4 + kBlock + 8 + 8) + kPromptKeys * dim + 2);
}

// attention_tensor.cu: a query row
constexpr int tensor_query_bytes(int dim) {
    return 2 * dim + 16;
}

// attention_tensor.cu: keys and values of half a block
constexpr int tensor_keys_bytes(int dim) {
    return 4 * kHalfBlock * dim;
}

// attend_tensor
constexpr int attend_tensor_bytes(int rows, int dim) {
    return rows * tensor_query_bytes(dim) + 2 * tensor_keys_bytes(dim);
}

// attend_tensor_one: values of half a block, and the scores of a group of heads
constexpr int attend_tensor_one_bytes(int dim, int group) {
    return 16 * tensor_query_bytes(dim) + tensor_keys_bytes(dim) / 2 + 32 * (kHalfBlock + 8) * (1 + (group > 8)) + 2 * dim;
}

// attention_patches.cu: keys and values that are staged
constexpr int patch_stage_bytes(int dim) {
    return kPatchKeys * (4 * dim + 16);
}

// attention_patches.cu
constexpr int attend_patches_bytes(int dim) {
    return kPatchRows * tensor_query_bytes(dim) + 2 * patch_stage_bytes(dim);
}

// walk.cu: the ring, two steps (walk_all.cu has more), the work space of the largest step; several: not one token
constexpr int walk_bytes(int slots, int room, int work, int several) {
    return slots * (room + 16) + 2 * int(sizeof(WalkStep)) + 4 * kWalkRows + 32 * several + work;
}

// walk_all.cu: choices, further steps
constexpr int walk_all_own_bytes() {
    return kChoiceBytes + (kStepsKept - 2) * int(sizeof(WalkStep));
}

// walk_products.h: x quantised, then partial sums of `rows` rows or x as floats
constexpr int walk_product_bytes(int stride, int rows, int codes) {
    return 16 + stride / 8 * 11 + max_of(32 * rows * ((stride / 256 + 7) / 8), 16 + 4 * stride * (1 - codes));
}

// walk_products.h: the same for float weights
constexpr int walk_floats_bytes(int stride, int rows) {
    return 16 + 4 * stride + 32 * rows * ((stride / 256 + 7) / 8);
}

// walk_all.cu: x, and `rows` rows of weights
constexpr int walk_float_rows_bytes(int units, int rows, int chunks) {
    return 16 + units * (1040 + rows * 16 * (chunks + 1));
}

// walk_all.cu: x quantised, then partial sums and totals of `rows` rows or x as floats
constexpr int walk_experts_bytes(int x_units, int units, int rows, int codes) {
    return 16 + 352 * x_units + max_of(4 * rows * (units + 2), (16 + 1024 * units) * (1 - codes));
}

// walk_delta.h: q, k, rows of v, decay, beta
constexpr int walk_delta_bytes() {
    return 4 * (2 * kDeltaChannels + kDeltaRows + 4);
}

// walk_few_all.cu: x of some tokens, `rows` rows of weights, and partial sums
constexpr int walk_few_float_rows_bytes(int tokens, int units, int rows, int chunks) {
    return units * (tokens * (1040 + 4 * rows) + rows * 16 * (chunks + 1));
}

// walk_few_all.cu: quantised rows of an expert's tokens, one by one or as eight, and `sums` partial sums
constexpr int walk_few_experts_bytes(int tokens, int units, int sums) {
    return units * max_of(352 * tokens, kWalkUnitBytes) + 4 * sums;
}

// walk_attention.h
constexpr int walk_attention_bytes(int heads, int dim) {
    return 4 * (heads * (9 * dim + 2 * kBlock + 8) + dim + 4);
}

// Size of each struct, and offset of each field, as ctypes has them.
#define ABI_STRUCTS(STRUCT) \
    STRUCT(Matrix, 48) STRUCT(Acts, 32) STRUCT(Product, 104) STRUCT(ProductArgs, 536) STRUCT(TensorArgs, 632) \
    STRUCT(SortArgs, 40) STRUCT(PairArgs, 80) STRUCT(TotalArgs, 48) STRUCT(SortedArgs, 552) STRUCT(FactorArgs, 72) \
    STRUCT(Pool, 40) STRUCT(Cache, 24) STRUCT(Rows, 40) STRUCT(Mask, 40) STRUCT(AttentionArgs, 312) \
    STRUCT(TensorAttentionArgs, 320) STRUCT(WalkAttention, 344) STRUCT(Norm, 72) STRUCT(NormArgs, 160) \
    STRUCT(MapArgs, 80) STRUCT(MapChain, 248) STRUCT(RowArgs, 80) STRUCT(ScanArgs, 128) STRUCT(WalkDelta, 176) \
    STRUCT(WalkExperts, 648) STRUCT(WalkStep, 704) STRUCT(WalkArgs, 32) STRUCT(ClearArgs, 16) STRUCT(ShortArgs, 352) \
    STRUCT(HalveArgs, 64) STRUCT(StepArgs, 208) STRUCT(RopeArgs, 56) STRUCT(PositionArgs, 56) STRUCT(ScoreArgs, 112) \
    STRUCT(BestArgs, 80) STRUCT(RepackArgs, 112)
#define ABI_FIELDS(FIELD) \
    FIELD(Matrix, data, 0) FIELD(Matrix, group_bytes, 8) FIELD(Matrix, format, 16) FIELD(Matrix, rows, 20) \
    FIELD(Matrix, columns, 24) FIELD(Matrix, units, 28) FIELD(Matrix, group, 32) FIELD(Matrix, tiles, 36) \
    FIELD(Matrix, tile_bytes, 40) FIELD(Matrix, all_rows, 44) FIELD(Acts, q, 0) FIELD(Acts, ds, 8) FIELD(Acts, n, 16) \
    FIELD(Acts, stride, 24) FIELD(Acts, step, 28) FIELD(Product, w, 0) FIELD(Product, out, 48) \
    FIELD(Product, bias, 56) FIELD(Product, residual, 64) FIELD(Product, gate_out, 72) FIELD(Product, up_out, 80) \
    FIELD(Product, out_stride, 88) FIELD(Product, first_group, 92) FIELD(Product, paired, 96) FIELD(Product, act, 100) \
    FIELD(ProductArgs, parts, 0) FIELD(ProductArgs, acts, 416) FIELD(ProductArgs, x, 448) \
    FIELD(ProductArgs, norm, 456) FIELD(ProductArgs, experts, 464) FIELD(ProductArgs, expert_bytes, 472) \
    FIELD(ProductArgs, n_parts, 480) FIELD(ProductArgs, groups, 484) FIELD(ProductArgs, tokens, 488) \
    FIELD(ProductArgs, columns, 492) FIELD(ProductArgs, x_stride, 496) FIELD(ProductArgs, prologue, 500) \
    FIELD(ProductArgs, eps, 504) FIELD(ProductArgs, rows_of_x, 508) FIELD(ProductArgs, n_experts, 512) \
    FIELD(ProductArgs, slots, 516) FIELD(ProductArgs, share, 520) FIELD(ProductArgs, extra, 524) \
    FIELD(ProductArgs, shift, 528) FIELD(ProductArgs, stages, 532) FIELD(TensorArgs, product, 0) \
    FIELD(TensorArgs, factors, 536) FIELD(TensorArgs, codes, 568) FIELD(TensorArgs, pairs, 584) \
    FIELD(TensorArgs, partial, 600) FIELD(TensorArgs, arrived, 608) FIELD(TensorArgs, room, 616) \
    FIELD(TensorArgs, chains, 620) FIELD(TensorArgs, split, 624) FIELD(TensorArgs, padding, 628) \
    FIELD(SortArgs, experts, 0) FIELD(SortArgs, pairs, 8) FIELD(SortArgs, matrices, 16) FIELD(SortArgs, count, 24) \
    FIELD(SortArgs, n, 28) FIELD(SortArgs, tile, 32) FIELD(SortArgs, tiles, 36) FIELD(PairArgs, x, 0) \
    FIELD(PairArgs, up, 8) FIELD(PairArgs, pairs, 16) FIELD(PairArgs, acts, 24) FIELD(PairArgs, width, 56) \
    FIELD(PairArgs, share, 60) FIELD(PairArgs, act, 64) FIELD(PairArgs, oai, 68) FIELD(PairArgs, alpha, 72) \
    FIELD(PairArgs, limit, 76) FIELD(TotalArgs, x, 0) FIELD(TotalArgs, weights, 8) FIELD(TotalArgs, residual, 16) \
    FIELD(TotalArgs, out, 24) FIELD(TotalArgs, rows, 32) FIELD(TotalArgs, width, 40) FIELD(TotalArgs, count, 44) \
    FIELD(SortedArgs, product, 0) FIELD(SortedArgs, pairs, 536) FIELD(SortedArgs, matrices, 544) \
    FIELD(FactorArgs, w, 0) FIELD(FactorArgs, out, 48) FIELD(FactorArgs, tiles, 56) FIELD(FactorArgs, chunks, 64) \
    FIELD(FactorArgs, padding, 68) FIELD(Pool, offset, 0) FIELD(Pool, type, 8) FIELD(Pool, keys, 12) \
    FIELD(Pool, heads, 16) FIELD(Pool, dim, 20) FIELD(Pool, head_bytes, 24) FIELD(Pool, columns, 28) \
    FIELD(Pool, first, 32) FIELD(Pool, padding, 36) FIELD(Cache, pages, 0) FIELD(Cache, page_bytes, 8) \
    FIELD(Cache, positions_at, 16) FIELD(Rows, tokens, 0) FIELD(Rows, positions, 8) FIELD(Rows, slots, 16) \
    FIELD(Rows, tables, 24) FIELD(Rows, pages, 32) FIELD(Mask, sinks, 0) FIELD(Mask, slopes, 8) \
    FIELD(Mask, window, 16) FIELD(Mask, chunk, 20) FIELD(Mask, causal, 24) FIELD(Mask, padding, 28) \
    FIELD(Mask, scale, 32) FIELD(Mask, cap, 36) FIELD(AttentionArgs, q, 0) FIELD(AttentionArgs, k, 8) \
    FIELD(AttentionArgs, v, 16) FIELD(AttentionArgs, turn, 24) FIELD(AttentionArgs, out, 32) \
    FIELD(AttentionArgs, partial, 40) FIELD(AttentionArgs, arrived, 48) FIELD(AttentionArgs, tiles, 56) \
    FIELD(AttentionArgs, kq, 64) FIELD(AttentionArgs, state, 72) FIELD(AttentionArgs, cache, 80) \
    FIELD(AttentionArgs, keys, 104) FIELD(AttentionArgs, values, 144) FIELD(AttentionArgs, rows, 184) \
    FIELD(AttentionArgs, mask, 224) FIELD(AttentionArgs, query_rows, 264) FIELD(AttentionArgs, last, 272) \
    FIELD(AttentionArgs, heads, 280) FIELD(AttentionArgs, n_rot, 284) FIELD(AttentionArgs, neox, 288) \
    FIELD(AttentionArgs, n_tokens, 292) FIELD(AttentionArgs, splits, 296) FIELD(AttentionArgs, irregular, 300) \
    FIELD(AttentionArgs, turn_k, 304) FIELD(AttentionArgs, max_blocks, 308) FIELD(TensorAttentionArgs, of, 0) \
    FIELD(TensorAttentionArgs, halved, 312) FIELD(TensorAttentionArgs, columns, 316) FIELD(WalkAttention, q_norm, 312) \
    FIELD(WalkAttention, k_norm, 320) FIELD(WalkAttention, eps, 328) FIELD(WalkAttention, factor, 332) \
    FIELD(WalkAttention, q_step, 336) FIELD(WalkAttention, padding_3, 340) FIELD(Norm, x, 0) FIELD(Norm, w, 8) \
    FIELD(Norm, b, 16) FIELD(Norm, residual, 24) FIELD(Norm, out, 32) FIELD(Norm, more, 40) FIELD(Norm, sum, 48) \
    FIELD(Norm, columns, 56) FIELD(Norm, first, 60) FIELD(Norm, centred, 64) FIELD(Norm, eps, 68) \
    FIELD(NormArgs, parts, 0) FIELD(NormArgs, n_parts, 144) FIELD(NormArgs, tokens, 148) FIELD(NormArgs, tasks, 152) \
    FIELD(NormArgs, padding, 156) FIELD(MapArgs, x, 0) FIELD(MapArgs, y, 8) FIELD(MapArgs, z, 16) \
    FIELD(MapArgs, out, 24) FIELD(MapArgs, rows, 32) FIELD(MapArgs, width, 40) FIELD(MapArgs, x_width, 44) \
    FIELD(MapArgs, y_width, 48) FIELD(MapArgs, op, 52) FIELD(MapArgs, integer, 56) FIELD(MapArgs, z_rows, 60) \
    FIELD(MapArgs, parts, 64) FIELD(MapArgs, z_width, 68) FIELD(MapArgs, number, 72) FIELD(MapArgs, second, 76) \
    FIELD(MapChain, maps, 0) FIELD(MapChain, count, 240) FIELD(MapChain, padding, 244) FIELD(RowArgs, x, 0) \
    FIELD(RowArgs, w, 8) FIELD(RowArgs, b, 16) FIELD(RowArgs, out, 24) FIELD(RowArgs, acts, 32) \
    FIELD(RowArgs, width, 64) FIELD(RowArgs, parts, 68) FIELD(RowArgs, eps, 72) FIELD(RowArgs, w_step, 76) \
    FIELD(ScanArgs, x, 0) FIELD(ScanArgs, weight, 48) FIELD(ScanArgs, out, 56) FIELD(ScanArgs, states, 64) \
    FIELD(ScanArgs, sequences, 72) FIELD(ScanArgs, slot_floats, 80) FIELD(ScanArgs, offset, 88) \
    FIELD(ScanArgs, heads, 96) FIELD(ScanArgs, groups, 100) FIELD(ScanArgs, channels, 104) FIELD(ScanArgs, rows, 108) \
    FIELD(ScanArgs, kind, 112) FIELD(ScanArgs, per_channel, 116) FIELD(ScanArgs, scale, 120) \
    FIELD(ScanArgs, padding, 124) FIELD(WalkDelta, taps, 128) FIELD(WalkDelta, rate, 136) \
    FIELD(WalkDelta, window, 144) FIELD(WalkDelta, eps, 152) FIELD(WalkDelta, norm_eps, 156) \
    FIELD(WalkDelta, act, 160) FIELD(WalkDelta, gate_act, 164) FIELD(WalkDelta, floor, 168) \
    FIELD(WalkDelta, padding_2, 172) FIELD(WalkExperts, logits, 536) FIELD(WalkExperts, choice_bias, 544) \
    FIELD(WalkExperts, routing, 552) FIELD(WalkExperts, by_logits, 556) FIELD(WalkExperts, used, 560) \
    FIELD(WalkExperts, softmax_chosen, 564) FIELD(WalkExperts, normalise, 568) FIELD(WalkExperts, least, 572) \
    FIELD(WalkExperts, scale, 576) FIELD(WalkExperts, down, 580) FIELD(WalkExperts, which, 584) \
    FIELD(WalkExperts, gated, 588) FIELD(WalkExperts, alpha, 592) FIELD(WalkExperts, limit, 596) \
    FIELD(WalkExperts, halved, 600) FIELD(WalkExperts, by_matrix, 604) FIELD(WalkExperts, costs, 608) \
    FIELD(WalkExperts, padding, 616) FIELD(WalkExperts, partial, 624) FIELD(WalkExperts, addend, 632) \
    FIELD(WalkExperts, addend_gate, 640) FIELD(WalkStep, kind, 0) FIELD(WalkStep, fresh, 4) FIELD(WalkStep, heads, 8) \
    FIELD(WalkStep, of_block, 12) FIELD(WalkStep, dim_shift, 16) FIELD(WalkStep, per_group, 20) \
    FIELD(WalkStep, in_copies, 24) FIELD(WalkStep, in_bytes, 28) FIELD(WalkStep, out_copies, 32) \
    FIELD(WalkStep, out_bytes, 36) FIELD(WalkStep, first, 40) FIELD(WalkStep, ahead, 44) FIELD(WalkStep, second, 48) \
    FIELD(WalkStep, per_row, 52) FIELD(WalkStep, product, 56) FIELD(WalkArgs, steps, 0) FIELD(WalkArgs, slot, 8) \
    FIELD(WalkArgs, n_steps, 16) FIELD(WalkArgs, slots, 20) FIELD(WalkArgs, room, 24) FIELD(WalkArgs, rows, 28) \
    FIELD(ClearArgs, at, 0) FIELD(ClearArgs, vectors, 8) FIELD(ShortArgs, attention, 0) FIELD(ShortArgs, acts, 312) \
    FIELD(ShortArgs, copies, 344) FIELD(ShortArgs, padding, 348) FIELD(HalveArgs, x, 0) FIELD(HalveArgs, norm, 8) \
    FIELD(HalveArgs, bias, 16) FIELD(HalveArgs, out, 24) FIELD(HalveArgs, width, 32) FIELD(HalveArgs, stride, 36) \
    FIELD(HalveArgs, room, 40) FIELD(HalveArgs, eps, 44) FIELD(HalveArgs, kind, 48) FIELD(HalveArgs, centred, 52) \
    FIELD(HalveArgs, act, 56) FIELD(HalveArgs, padding, 60) FIELD(StepArgs, rows, 0) FIELD(StepArgs, cache, 40) \
    FIELD(StepArgs, pool, 64) FIELD(StepArgs, table, 104) FIELD(StepArgs, x, 152) FIELD(StepArgs, out, 160) \
    FIELD(StepArgs, frequencies, 168) FIELD(StepArgs, which, 176) FIELD(StepArgs, n, 184) FIELD(StepArgs, width, 192) \
    FIELD(StepArgs, n_rot, 196) FIELD(StepArgs, magnitude, 200) FIELD(StepArgs, kind, 204) FIELD(RopeArgs, x, 0) \
    FIELD(RopeArgs, table, 8) FIELD(RopeArgs, out, 16) FIELD(RopeArgs, rows, 24) FIELD(RopeArgs, width, 32) \
    FIELD(RopeArgs, heads, 36) FIELD(RopeArgs, n_rot, 40) FIELD(RopeArgs, neox, 44) FIELD(RopeArgs, offset, 48) \
    FIELD(RopeArgs, padding, 52) FIELD(PositionArgs, x, 0) FIELD(PositionArgs, out, 8) FIELD(PositionArgs, which, 16) \
    FIELD(PositionArgs, beta, 24) FIELD(PositionArgs, unit, 32) FIELD(PositionArgs, offset, 40) \
    FIELD(PositionArgs, width, 48) FIELD(PositionArgs, padding, 52) FIELD(ScoreArgs, x, 0) FIELD(ScoreArgs, y, 8) \
    FIELD(ScoreArgs, out, 16) FIELD(ScoreArgs, chunks, 24) FIELD(ScoreArgs, positions, 32) \
    FIELD(ScoreArgs, key_positions, 40) FIELD(ScoreArgs, last, 48) FIELD(ScoreArgs, mask, 56) \
    FIELD(ScoreArgs, heads, 96) FIELD(ScoreArgs, kv_heads, 100) FIELD(ScoreArgs, dim, 104) FIELD(ScoreArgs, op, 108) \
    FIELD(BestArgs, x, 0) FIELD(BestArgs, lists, 8) FIELD(BestArgs, sums, 16) FIELD(BestArgs, out, 24) \
    FIELD(BestArgs, tokens, 32) FIELD(BestArgs, positions, 40) FIELD(BestArgs, slots, 48) FIELD(BestArgs, left, 56) \
    FIELD(BestArgs, width, 64) FIELD(BestArgs, n_lists, 68) FIELD(BestArgs, k, 72) FIELD(BestArgs, padding, 76) \
    FIELD(RepackArgs, raw, 0) FIELD(RepackArgs, d, 8) FIELD(RepackArgs, m, 16) FIELD(RepackArgs, to, 24) \
    FIELD(RepackArgs, first_row, 72) FIELD(RepackArgs, rows, 80) FIELD(RepackArgs, row_bytes, 88) \
    FIELD(RepackArgs, expert_bytes, 96) FIELD(RepackArgs, half, 104) FIELD(RepackArgs, part, 108)
#define ABI_SIZE_IS(name, size) static_assert(sizeof(name) == size, #name);
ABI_STRUCTS(ABI_SIZE_IS)
#undef ABI_SIZE_IS
#ifndef __CUDACC_RTC__  // NVRTC 13.0 has no offsetof; the host compiler of the shim checks the offsets
#define ABI_OFFSET_IS(name, member, offset) \
    static_assert(__builtin_offsetof(name, member) == offset, #name "." #member);
ABI_FIELDS(ABI_OFFSET_IS)
#undef ABI_OFFSET_IS
#endif

}  // namespace assay
