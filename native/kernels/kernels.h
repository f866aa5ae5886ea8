// Matrix kernels: quantised weights times activations, with the same bits for every batch.
//
// The contract of native/kernels. It knows block formats and instruction sets, and nothing of models, threads or
// Python. Every function is thread-safe and may be called on disjoint ranges concurrently.
//
//   out[t, r] = sum_i W[r, i] * x[t, i]          W: n rows of k (ggml block format), x: m tokens of k (float32)
//
// How a caller uses it (isa: the table of an instruction set)
//   load:   if packable(type): dst = aligned_alloc(64, isa.packed_bytes(type, n, k)); isa.pack(...) in parallel over
//   rows
//           else, or when memory is short: keep the mapped rows as they are (Matrix::packed = false)
//   step:   isa.prepare(format, x, ...) once per input, in parallel over tokens; barrier;
//           isa.gemm(W, ...) for every matrix that reads this input, in parallel over rows; no barrier between them
//
// Bits: out[t, r] depends only on row r of W and row t of x. It does not depend on m, the range of rows of a call,
// packed or mapped storage, other tokens, or the instruction set. docs/reference/arithmetic.md defines the bits.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "rowops.h"

namespace assay::kernels {

// The version of docs/reference/arithmetic.md: it increases if any bit of any result changes.
constexpr int kArithmetic = 1;

// ggml's type ids, as in GGUF files.
// clang-format off
enum class Type : uint32_t {
    F32 = 0, F16 = 1, Q4_0 = 2, Q4_1 = 3, Q5_0 = 6, Q5_1 = 7, Q8_0 = 8, Q8_1 = 9,
    Q2_K = 10, Q3_K = 11, Q4_K = 12, Q5_K = 13, Q6_K = 14, Q8_K = 15,
    IQ2_XXS = 16, IQ2_XS = 17, IQ3_XXS = 18, IQ1_S = 19, IQ4_NL = 20, IQ3_S = 21, IQ2_S = 22, IQ4_XS = 23,
    IQ1_M = 29, BF16 = 30, TQ1_0 = 34, TQ2_0 = 35, MXFP4 = 39,
    NVFP4 = 40, Q1_0 = 41, Q2_0 = 42,
};
// clang-format on

// Form of the activations of gemm. Q8: int8 in blocks of 32 with float32 scales, for quantised weights. F32:
// unquantised, for F32, F16, BF16 (and Q8_K) weights, and for every type in exact mode.
enum class Acts : uint32_t { Q8, F32 };

struct Matrix {
    Type type;
    bool packed;          // data was written by pack() of the instruction set in use; else rows as in the file
    int64_t n, k;         // rows, columns
    const uint8_t* data;  // packed: 64-byte aligned, packed_bytes(); else n * row_bytes(), any alignment
};

// ---- types -------------------------------------------------------------------------------------------------------
bool supported(Type type);  // has a decoder, so gemm and decode_row work
bool packable(Type type);                 // has an interleaved layout
bool finite_halves(const uint8_t* data, size_t n);  // F16 is packed only if every weight is finite
Acts acts_format(Type type, bool exact);  // form that gemm needs for this type
int64_t block_size(Type type);            // weights per block; k must be a multiple (0: unknown type)
size_t row_bytes(Type type, int64_t k);   // bytes of one row in the file

size_t acts_bytes(Acts format, int64_t m, int64_t k);  // bytes of the prepared activations of m tokens, 64-byte aligned

// ---- instruction sets --------------------------------------------------------------------------------------------
// The table of an instruction set. Packed weights are readable only by the set that packed them; all else is
// interchangeable.
struct Isa {
    const char* name;
    int panel_rows;  // rows interleaved together; partition rows in multiples of this
    size_t (*packed_bytes)(Type type, int64_t n, int64_t k);
    // Interleave rows [begin, end) of src (row_bytes apart, the file's format) into dst. begin: multiple of panel_rows;
    // end: likewise, or n.
    void (*pack)(Type type, const uint8_t* src, int64_t n, int64_t k, int64_t begin, int64_t end, uint8_t* dst);
    // One row as float32 (token embeddings). Mapped or packed.
    void (*decode_row)(const Matrix& w, int64_t row, float* out /*[k]*/);
    // Write tokens [begin, end) of x[m, k] (rows ldx apart) into dst. Tokens are independent: any partition, any order.
    void (*prepare)(Acts format, const float* x, int64_t ldx, int64_t m, int64_t k, int64_t begin, int64_t end,
                    void* dst);
    // out[t * ldo + r] for all t in [0, m) and r in [begin, end), any range. acts: prepared with the same m.
    void (*gemm)(const Matrix& w, Acts format, const void* acts, int64_t m, float* out, int64_t ldo, int64_t begin,
                 int64_t end);
    void (*dot_loop)(int64_t iterations);  // 64 independent-enough vector dot products per iteration
    double dot_ops;                        // integer operations per iteration (2 per multiply-add)
    const RowOps* rows;                    // everything that is not a matrix product
};

const std::vector<const Isa*>& isas();  // those of this machine, fastest first
// By name; the empty name means ASSAY_ISA, or the fastest. Throws std::invalid_argument if this machine does not have
// it.
const Isa& find_isa(const std::string& name = {});

// ---- this machine, one thread; call from several threads at once for the machine's total ---------------------------
double measure_dot_peak(const Isa& isa, double seconds);  // integer operations (2 per multiply-add) per second
double measure_read_bandwidth(const void* buffer, size_t bytes, double seconds);  // bytes per second; touches all

}  // namespace assay::kernels
