// The k largest values of each row in descending order, ties by lower index. NaN sorts above all values, so that it
// shows.
//
// A warp takes 512 values and lists its k best; then a warp a row picks the k best of all lists. The host reads k pairs
// instead of the row. Latency-bound: k rounds of two warp reductions, twice. With k = 1 the kernel also advances the
// step's tables by the chosen token, so that the step can run again without the host. A row with no tokens left becomes
// padding. With `sums` the row's hash for a receipt follows the pairs (native/row_digest.cpp has the same sums).
#include "arithmetic.h"

namespace assay {

constexpr int kEach = 16;  // values of a lane
constexpr uint32_t kNobody = 0xffffffffu;
constexpr int kDigestWords = 4;

DEVICE uint32_t order_of(float x) {  // unsigned integers that order like floats
    if (x != x) return 0xffffffffu;
    const uint32_t b = bits(x + 0.0f);  // -0 becomes +0
    return b & 0x80000000u ? ~b : b | 0x80000000u;
}
DEVICE float value_of(uint32_t order) {
    if (order == 0xffffffffu) return not_a_number();
    return as_float(order & 0x80000000u ? order & 0x7fffffffu : ~order);
}
DEVICE bool before(uint2 a, uint2 b) { return a.x > b.x || (a.x == b.x && a.y < b.y); }

// The best candidate of all lanes; a lane without a candidate has index kNobody.
DEVICE uint2 best_of_warp(uint2 mine) {
    const uint32_t top = reduce_max(mine.y == kNobody ? 0u : mine.x);
    return {top, reduce_min(mine.y != kNobody && mine.x == top ? mine.y : kNobody)};
}

DEVICE uint32_t digest_key(uint32_t i) {
    uint32_t x = i * 0x9E3779B9u + 0x85EBCA6Bu;
    x = (x ^ (x >> 16)) * 0x85EBCA6Bu;
    x = (x ^ (x >> 13)) * 0xC2B2AE35u;
    return x ^ (x >> 16);
}
DEVICE uint64_t sum_of_warp(uint64_t x) {
    for (int by = 16; by; by /= 2) {
        const uint32_t low = uint32_t(shuffle_xor(int(uint32_t(x)), by));
        const uint32_t high = uint32_t(shuffle_xor(int(uint32_t(x >> 32)), by));
        x += uint64_t(high) << 32 | low;
    }
    return x;
}

// The two sums over a list's words. Words of a group of 8 lie in neighbouring lanes; a lane of the first half of its
// group meets the lane four to its right.
DEVICE void digest_list(const BestArgs& a, const float* row, int list, int first) {
    uint64_t sums[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < kEach; i++) {
        const int at = first + 32 * i;
        const uint32_t word = at < a.width ? bits(row[at]) : 0u;
        const uint32_t other = uint32_t(shuffle_xor(int(word), 4));
        if ((at & 4) || (at & ~7) >= a.width) continue;
        const uint32_t k0 = digest_key(at), k1 = digest_key(at + 4), k2 = digest_key(at + 8);
        sums[0] += uint64_t(word + k0) * uint64_t(other + k1);
        sums[1] += uint64_t(word + k1) * uint64_t(other + k2);
    }
    for (int j = 0; j < 2; j++) {
        const uint64_t sum = sum_of_warp(sums[j]);
        if (lane() == 0) a.sums[(int64_t(block_y()) * a.n_lists + list) * 2 + j] = sum;
    }
}

// block_x: 8 lists; block_y: row
KERNEL(best_lists, BestArgs, 256) {
    next_may_start();
    wait_for_previous();
    const int list = block_x() * 8 + thread() / 32, first = list * 32 * kEach + lane();
    if (list >= a.n_lists) return;
    const float* row = a.x + int64_t(block_y()) * a.width;
    if (a.sums) digest_list(a, row, list, first);
    uint32_t order[kEach];
#pragma unroll
    for (int i = 0; i < kEach; i++) order[i] = first + 32 * i < a.width ? order_of(row[first + 32 * i]) : 0u;
    uint2 taken = {0u, kNobody}, mine = {0u, kNobody};
    bool stale = true;
    for (int n = 0; n < a.k; n++) {
        if (stale) {  // the lane's best candidate after the one it gave last
            mine = {0u, kNobody};
#pragma unroll
            for (int i = 0; i < kEach; i++) {
                const uint2 other = {order[i], uint32_t(first + 32 * i)};
                const bool left = int(other.y) < a.width && (taken.y == kNobody || before(taken, other));
                if (left && (mine.y == kNobody || before(other, mine))) mine = other;
            }
        }
        const uint2 found = best_of_warp(mine);
        stale = found.y != kNobody && found.y == mine.y;
        if (stale) taken = mine;
        if (lane() == 0) a.lists[(int64_t(block_y()) * a.n_lists + list) * a.k + n] = found;
    }
}

DEVICE void go_on(const BestArgs& a, int row, int token) {
    if (a.left[row] > 0) {
        a.left[row]--;
        a.tokens[row] = token;
        a.positions[row]++;
        a.slots[row]++;
    } else {
        a.slots[row] = -1;
    }
}

// block_x: row; lane l has lists l, l + 32, ...
KERNEL(best_of_lists, BestArgs, 32) {
    SHARED;
    NEEDS_SHARED(best_lists_bytes(a.n_lists));
    next_may_start();
    wait_for_previous();
    int32_t* used = reinterpret_cast<int32_t*>(shared);  // entries taken from each list
    float* out = a.out + int64_t(block_x()) * (2 * a.k + (a.sums ? kDigestWords : 0));
    if (a.sums)
        for (int j = 0; j < 2; j++) {
            uint64_t sum = 0;
            for (int i = lane(); i < a.n_lists; i += 32) sum += a.sums[(int64_t(block_x()) * a.n_lists + i) * 2 + j];
            sum = sum_of_warp(sum);
            if (lane() < 2) out[2 * a.k + 2 * j + lane()] = as_float(uint32_t(sum >> 32 * lane()));
        }
    const uint2* lists = a.lists + int64_t(block_x()) * a.n_lists * a.k;
    for (int i = lane(); i < a.n_lists; i += 32) used[i] = 0;
    uint2 mine = {0u, kNobody};
    int from = 0;
    bool stale = true;
    for (int n = 0; n < a.k; n++) {
        if (stale) {
            mine = {0u, kNobody};
            for (int i = lane(); i < a.n_lists; i += 32) {
                if (used[i] >= a.k) continue;
                const uint2 head = lists[i * a.k + used[i]];
                if (head.y != kNobody && (mine.y == kNobody || before(head, mine))) mine = head, from = i;
            }
        }
        const uint2 found = best_of_warp(mine);
        stale = found.y != kNobody && found.y == mine.y;
        if (stale) used[from]++;
        if (lane() == 0) {
            out[n] = found.y == kNobody ? minus_infinity() : value_of(found.x);
            out[a.k + n] = found.y == kNobody ? -1.0f : float(found.y);
        }
        if (lane() == 0 && a.left) go_on(a, block_x(), found.y == kNobody ? 0 : int(found.y));
    }
}

}  // namespace assay
