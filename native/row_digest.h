// The checksum of a row of logits in a receipt (docs/reference/receipts.md, version 4).
#pragma once
#include <array>
#include <cstdint>

namespace assay {

// Two sums of products of 32-bit words, modulo 2^64. The order of the sum does not matter, so that any number of
// threads or lanes can share it. `words` are the bits of the row's floats.
std::array<uint64_t, 2> row_digest(const uint32_t* words, int64_t n);

}  // namespace assay
