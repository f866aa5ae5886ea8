// Which keys a query sees, and what becomes of a score before the softmax.
#pragma once
#include "arithmetic.h"

namespace assay {

DEVICE int64_t Mask::chunk_start(int64_t query) const { return (query >= 0 ? query / chunk : (query + 1) / chunk - 1) * chunk; }
DEVICE bool Mask::hides(int64_t query, int64_t key) const {
    const int64_t distance = query - key, away = distance < 0 ? -distance : distance;
    if (causal ? distance < 0 || (window && distance >= window) : window && away > window / 2) return true;
    return chunk && key < chunk_start(query);
}
// The same for a query that sees keys up to the slot `last`, some of them after its own: only what is far behind is masked
// by position. last < 0: none is given.
DEVICE bool Mask::hides(int64_t query, int64_t key, int slot, int last) const {
    if (last < 0) return hides(query, key);
    if (slot > last || (window && query - key >= window)) return true;
    return chunk && key < chunk_start(query);
}
// If key positions are 0, 1, 2, ..., n - 1, the query sees [from, to).
DEVICE int Mask::from(int query) const {
    const int behind = !window ? 0 : causal ? query - window + 1 : query - window / 2;
    const int start = chunk ? int(chunk_start(query)) : 0, first = behind > start ? behind : start;
    return first > 0 ? first : 0;
}
DEVICE int Mask::to(int query, int n) const {
    const int64_t ahead = int64_t(query) + window / 2 + 1;
    return causal ? query + 1 : window && ahead < n ? int(ahead) : n;
}
DEVICE bool Mask::partial() const { return window || chunk; }  // earlier keys may be masked

DEVICE float Mask::score(float x, int head, int64_t distance) const {
    if (cap != 0.0f) x = softcap(x, cap);
    x = x * scale;
    return slopes ? x + -(slopes[head] * float(distance < 0 ? -distance : distance)) : x;
}

}  // namespace assay
