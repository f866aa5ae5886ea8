// The k largest values of each row in descending order, ties by lower index. NaN sorts above all values, so that it
// shows.
//
// A warp takes 512 values and lists its k best; then a warp a row picks the k best of all lists. The host reads k pairs
// instead of the row. Latency-bound: k rounds of two warp reductions, twice. With k = 1 the kernel also advances the
// step's tables by the chosen token, so that the step can run again without the host. A row with no tokens left becomes
// padding.
#include "arithmetic.h"

namespace assay {

constexpr int kEach = 16;  // values of a lane
constexpr uint32_t kNobody = 0xffffffffu;

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

// block_x: 8 lists; block_y: row
KERNEL(best_lists, BestArgs, 256) {
    next_may_start();
    wait_for_previous();
    const int list = block_x() * 8 + thread() / 32, first = list * 32 * kEach + lane();
    if (list >= a.n_lists) return;
    const float* row = a.x + int64_t(block_y()) * a.width;
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
            a.out[int64_t(block_x()) * 2 * a.k + n] = found.y == kNobody ? minus_infinity() : value_of(found.x);
            a.out[int64_t(block_x()) * 2 * a.k + a.k + n] = found.y == kNobody ? -1.0f : float(found.y);
        }
        if (lane() == 0 && a.left) go_on(a, block_x(), found.y == kNobody ? 0 : int(found.y));
    }
}

}  // namespace assay
