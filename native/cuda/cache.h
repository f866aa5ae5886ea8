// A page of the KV cache on the GPU: 32 positions of every pool, head by head.
//
// 16 bytes hold E = 4 (f32), 8 (f16, bf16) or 16 (q8_0) values. Keys are [dim / E][32 positions][E], so a warp reads
// one vector of each of 32 keys with one coalesced access. Values are [32][dim], each position padded to 16 bytes. q8_0
// appends an f16 scale per 32 values: keys [dim / 32][32 positions], values [32][dim / 32].
#pragma once
#include "arithmetic.h"

namespace assay {

DEVICE int Pool::each() const { return type == KV_F32 ? 4 : type == KV_Q8_0 ? 16 : 8; }
DEVICE int Pool::vectors() const { return (columns + each() - 1) / each(); }
DEVICE int Pool::index(int slot, int d) const {
    d += first;
    return keys ? (d / each() * kPage + slot) * each() + d % each() : slot * vectors() * each() + d;
}
DEVICE int Pool::scale_index(int slot, int d) const {
    return keys ? (first + d) / 32 * kPage + slot : slot * (columns / 32) + (first + d) / 32;
}
DEVICE int Pool::scales_at() const { return kPage * vectors() * 16; }

DEVICE uint8_t* head_of(const Cache& cache, const Pool& pool, int page, int head) {
    return cache.pages + page * cache.page_bytes + pool.offset + int64_t(head) * pool.head_bytes;
}

DEVICE float read_value(const Pool& p, const uint8_t* head, int slot, int d) {
    const int i = p.index(slot, d);
    if (p.type == KV_F32) return reinterpret_cast<const float*>(head)[i];
    if (p.type == KV_F16) return half_to_float(reinterpret_cast<const uint16_t*>(head)[i]);
    if (p.type == KV_BF16) return brain_to_float(reinterpret_cast<const uint16_t*>(head)[i]);
    const uint16_t s = reinterpret_cast<const uint16_t*>(head + p.scales_at())[p.scale_index(slot, d)];
    return float(reinterpret_cast<const int8_t*>(head)[i]) * half_to_float(s);
}

// Store value d of a position and return it as a reader will see it. All lanes of a warp call it, lane d % 32 with d.
// Heads of a q8_0 cache are multiples of 32 wide. With `store` false nothing is written.
DEVICE float write_value(const Pool& p, uint8_t* head, int slot, int d, float x, bool store) {
    const int i = p.index(slot, d);
    const bool mine = d < p.dim;
    if (p.type == KV_Q8_0) {
        int top = mine ? int(bits(x) & 0x7fffffffu) : 0;
        for (int h = 1; h < 32; h *= 2) {
            const int other = shuffle_xor(top, h);
            top = top > other ? top : other;
        }
        const Scale s = block_scale(uint32_t(top));
        const uint16_t stored = float_to_half(s.d);
        const int q = quantise(x, s);
        if (store && mine) {
            reinterpret_cast<int8_t*>(head)[i] = int8_t(q);
            if (d % 32 == 0) reinterpret_cast<uint16_t*>(head + p.scales_at())[p.scale_index(slot, d)] = stored;
        }
        return float(int8_t(q)) * half_to_float(stored);
    }
    if (p.type == KV_F32) {
        if (store && mine) reinterpret_cast<float*>(head)[i] = x;
        return x;
    }
    const uint16_t h = p.type == KV_F16 ? float_to_half(x) : float_to_brain(x);
    if (store && mine) reinterpret_cast<uint16_t*>(head)[i] = h;
    return p.type == KV_F16 ? half_to_float(h) : brain_to_float(h);
}

// Rows (abi.h) has the cache slot and page table of each row of the step. A row of padding has slot -1.

}  // namespace assay
