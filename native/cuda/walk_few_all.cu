// Walks of several tokens with experts and single operations of rows, beside all that walk_few_more.cu has.
//
// A step publishes the router's logits of all tokens. Every block chooses the experts of each token itself, a warp a token,
// by the arithmetic of the separate kernels. One warp lists the experts that some token chose, each with its tokens, in
// shared memory, and the producer warp waits for this list. An item of gate and up, or of down, is a group of rows of a
// listed expert: blocks share the items out by their cost, so that a block has items of one expert or two. A tile of
// weights is read once and multiplied by the row of each token that chose its expert. Rows are taken two at a time, or by
// `mma` if there are more. Down publishes a row for each (token, choice), and one more step weighs and adds them in order.
#define WALK_MORE
#include "walk_few.cu"

#include "walk_experts.h"

namespace assay {

// ---- rows of float weights -----------------------------------------------------------------------------------------
// A matrix of floats beside quantised ones, such as a router. A block has `stages` rows of weights and `slots` tokens: it
// requests the rows before x arrives. A thread has 256 columns of a row and a token, and then the sum of a row.
OUTLINED void few_float_rows_step(const WalkStep& step, uint8_t* work) {
    const ProductArgs& p = step.product;
    const Matrix& w = p.parts[0].w;
    const int units = w.units, columns = p.columns, most_rows = p.stages, most_tokens = p.slots, of_rows = (w.rows + most_rows - 1) / most_rows;
    const int chunks = w.format == F32 ? 64 : 32, chunk_shift = w.format == F32 ? 6 : 5, items = of_rows * ((p.tokens + most_tokens - 1) / most_tokens);
    const bool fresh = step.fresh & AWAIT_X;
    float* const x = reinterpret_cast<float*>(work);                                           // [token][unit]
    uint4* const weights = reinterpret_cast<uint4*>(x + most_tokens * units * kPadded);        // [row][unit][chunks and one]
    float* const parts = reinterpret_cast<float*>(weights + most_rows * units * (chunks + 1));  // [row][token][unit]
    NEEDS_SHARED(walk_few_float_rows_bytes(most_tokens, units, most_rows, chunks));
#pragma unroll 1
    for (int item = block_of(step); item < items; item += grid_x()) {
        const int first_token = item / of_rows * most_tokens, first_row = (item - item / of_rows * of_rows) * most_rows;
        const int rows = w.rows - first_row < most_rows ? w.rows - first_row : most_rows;
        const int tokens = p.tokens - first_token < most_tokens ? p.tokens - first_token : most_tokens;
        sync_team();  // other warps still read the item before
#pragma unroll 1
        for (int i = thread(); i < rows * units << chunk_shift; i += team()) {
            const int c = i & (chunks - 1), at = i >> chunk_shift, local = at / units, unit = at - local * units, r = first_row + local;
            const int place = unit * w.group + (r & (w.group - 1));
            copy_async(weights + at * (chunks + 1) + c, w.tile(r / w.group, 0) + int64_t(place / 32) * w.tile_bytes + c * 512 + place % 32 * 16);
        }
        copy_group();
        const int wide = units * 64;  // vectors of a token
#pragma unroll 1
        for (int i = thread(); i < tokens * wide; i += 4 * team()) {
            const float* from[4];
            float4* to[4];
            uint4 v[4];
            bool wanted[4];
#pragma unroll
            for (int k = 0; k < 4; k++) {
                const int at = i + k * team(), token = at / wide, c = at - token * wide;
                const bool is = at < tokens * wide;
                v[k] = {}, wanted[k] = is && 4 * c < columns;
                from[k] = p.x + int64_t(first_token + token) * columns + 4 * c;
                to[k] = is ? reinterpret_cast<float4*>(x + (at >> 6) * kPadded) + (c & 63) : nullptr;
            }
            Patience patience;
            for (bool more = true; more; patience.lose()) {
                more = false;
#pragma unroll
                for (int k = 0; k < 4; k++)
                    if (wanted[k]) v[k] = load_fresh4(from[k]);
#pragma unroll
                for (int k = 0; k < 4; k++) wanted[k] = wanted[k] && fresh && !there(v[k]), more |= wanted[k];
            }
#pragma unroll
            for (int k = 0; k < 4; k++)
                if (to[k]) *to[k] = as_floats(v[k]);
        }
        copies_done<0>();
        sync_team();
#pragma unroll 1
        for (int i = thread(); i < rows * tokens * units; i += team()) {  // unit by unit of a token, of a row
            const int local = i / (tokens * units), of_token = i - local * tokens * units, token = of_token / units, unit = of_token - token * units;
            const uint4* const of = weights + (local * units + unit) * (chunks + 1);
            const float* const y = x + of_token * kPadded;
            parts[i] = w.format == F32 ? row_part<F32>(of, y) : w.format == F16 ? row_part<F16>(of, y) : row_part<BF16>(of, y);
        }
        sync_team();
#pragma unroll 1
        for (int i = thread(); i < rows * tokens; i += team()) {
            const int local = i / tokens, token = first_token + i - local * tokens, r = first_row + local;
            float total = -0.0f;
#pragma unroll 4
            for (int u = 0; u < units; u++) total = total + parts[i * units + u];
            store_fresh(p.parts[0].out + int64_t(token) * w.rows + r, p.parts[0].bias ? total + p.parts[0].bias[r] : total);
        }
    }
}

// ---- experts -------------------------------------------------------------------------------------------------------
constexpr int kMostListed = kWalkRows * kChosen;

struct FewChosen {
    Arrival listed, taken;  // the list is there; the producer warp has used it
    int32_t count, cost;  // cost: of a row of all listed experts
    int64_t costs;        // WalkExperts::costs of gate and up
    int32_t pair[kWalkRows];  // of the current expert: its choices (token * used + j)
    Chosen of[kWalkRows];
    uint16_t expert[kMostListed];  // by index; rows: bits of the tokens that chose it
    uint8_t rows[kMostListed];
    union {
        uint8_t tokens_of[kMostExperts];  // while the list is made
        uint16_t before[kMostListed];     // then: the cost of the experts before
    };
    // Time of a tile of a listed expert.
    DEVICE int cost_of(int at) const { return int(costs >> 8 * (count_bits(rows[at]) - 1) & 255); }
};
static_assert(kFewChoiceBytes == sizeof(FewChosen));

// A warp lists the chosen experts in the order of their numbers.
DEVICE void list_experts(const WalkExperts& e, FewChosen& to) {
    const int n = e.n_experts;
#pragma unroll 1
    for (int i = lane(); i < kMostExperts / 4; i += 32) reinterpret_cast<uint32_t*>(to.tokens_of)[i] = 0;
    sync_warp();
#pragma unroll 1
    for (int row = 0; row < e.tokens; row++) {  // a token chooses an expert once
        if (lane() < e.used) to.tokens_of[to.of[row].id[lane()]] |= uint8_t(1 << row);
        sync_warp();
    }
    int count = 0;
#pragma unroll 1
    for (int base = 0; base < n; base += 32) {
        const int rows = base + lane() < n ? to.tokens_of[base + lane()] : 0;
        const uint32_t present = lanes_where(rows != 0);
        const int at = count + count_bits(present & ((1u << lane()) - 1));
        if (rows) to.expert[at] = uint16_t(base + lane()), to.rows[at] = uint8_t(rows);
        count += count_bits(present);
    }
    if (lane() == 0) to.costs = e.costs;
    sync_warp();
    int cost = 0;
#pragma unroll 1
    for (int base = 0; base < count; base += 32) {
        const int own = base + lane() < count ? to.cost_of(base + lane()) : 0;
        int sum = own;
#pragma unroll
        for (int h = 1; h < 32; h *= 2) {
            const int other = shuffle(sum, lane() >= h ? lane() - h : lane());
            sum += lane() >= h ? other : 0;
        }
        if (base + lane() < count) to.before[base + lane()] = uint16_t(cost + sum - own);
        cost += shuffle(sum, 31);
    }
    if (lane() == 0) to.count = count, to.cost = cost;
    sync_warp();
}

// `which` counts the choices of the walk. The list of the one before must have been used.
DEVICE void choose_all(const WalkExperts& e, FewChosen& to) {
    const int warp = thread() / 32, warps = team() / 32;
    if (e.which) piece_here(&to.taken, (e.which - 1) & 1);
#pragma unroll 1
    for (int row = warp; row < e.tokens; row += warps) choose(e, e.logits + row * e.n_experts, to.of[row]);
    sync_team();
    if (warp == warps - 1) list_experts(e, to), leave_place(&to.listed);
#pragma unroll 1
    for (int row = warp; row < e.tokens && warp < warps - 1; row += warps - 1) weigh(e, to.of[row]);
    sync_team();
}

// This block's items: groups of rows of the listed experts, one expert after the other, of about the same cost for each
// block. All lanes of a warp construct it.
struct Items {
    int per_expert, begin, end;
    DEVICE Items(const WalkStep& step, const FewChosen& chosen) {
        const WalkExperts& e = step.experts;
        per_expert = e.parts[0].w.all_rows >> e.shift;
        const int all = chosen.cost * per_expert, at = block_of(step);
        begin = first_from(chosen, all * at / int(grid_x())), end = first_from(chosen, all * (at + 1) / int(grid_x()));
    }
    DEVICE int first_from(const FewChosen& chosen, int cost) const {  // the first item with this cost before it
        const int count = chosen.count;
        int at = -1;
#pragma unroll 1
        for (int base = 0; base < count; base += 32)
            at += count_bits(lanes_where(base + lane() < count && chosen.before[base + lane()] * per_expert <= cost));
        const int each = chosen.cost_of(at), group = (cost - chosen.before[at] * per_expert + each - 1) / each;
        return at * per_expert + (group < per_expert ? group : per_expert);
    }
};

template <class A, class B>
DEVICE void fetch_few_experts(const WalkStep& step, Fetch<false>& fetch, FewChosen& chosen) {
    const WalkExperts& e = step.experts;
    const bool down = e.down;
    const int cut = step.fresh & SPLIT_TILE ? 1 : 0, rest = cut & lane(), tiles = e.parts[0].w.tiles, n_parts = e.n_parts;
    const int64_t expert_bytes = e.expert_bytes, group_bytes = e.parts[0].w.group_bytes;
    const uint8_t *const first = e.parts[0].w.data + rest * kCutBytes, *const second = e.parts[n_parts - 1].w.data + rest * kCutBytes;
    const int tile = A::number == B::number || e.parts[0].w.format == A::number ? A::tile_bytes : B::tile_bytes;
    const int bytes = rest ? tile - kCutBytes : cut ? kCutBytes : tile;
    if (!down) piece_here(&chosen.listed, e.which & 1);
    const int count = chosen.count;
    const Items my(step, chosen);
    const int all = ((my.end - my.begin) * n_parts * tiles) << cut;
    int piece = (lane() & (kAtOnce - 1)) >> cut, part = 0, at = my.begin / my.per_expert, group = my.begin - at * my.per_expert;
#pragma unroll 1
    for (int n = 0; n < all; n += kAtOnce, piece += kAtOnce >> cut) {
#pragma unroll 1
        for (; piece >= tiles; piece -= tiles)
            if (++part == n_parts) {
                part = 0;
                if (++group == my.per_expert) group = 0, at++;
            }
        const int left = all - n < kAtOnce ? all - n : kAtOnce;
        fetch((part ? second : first) + chosen.expert[at < count ? at : 0] * expert_bytes + group * group_bytes + int64_t(piece) * tile, bytes, left);
    }
    sync_warp();
    if (down) leave_place(&chosen.taken);
}

// Rows of x of the current expert, quantised: of gate and up a token's row, of down the row of a choice. `eight`: in the
// layout of eight rows (walk.h).
template <bool DOWN>
DEVICE void take_rows_of(const WalkStep& step, const FewChosen& chosen, int n_rows, bool eight, int8_t* q, float2* ds, uint32_t* n) {
    const WalkExperts& e = step.experts;
    const bool fresh = step.fresh & AWAIT_X;
    const int units = e.parts[0].w.units, all = n_rows * units, warps = team() / 32, columns = e.columns, used = e.used;
#pragma unroll 1
    for (int first = thread() / 32; first < all; first += 2 * warps) {
        Eight v[2];
        const float* from[2];
#pragma unroll
        for (int k = 0; k < 2; k++) {
            const int unit = first + k * warps, slot = unit / units, at = 256 * (unit - slot * units) + 8 * lane();
            const int pair = unit < all ? chosen.pair[slot] : 0, row = DOWN ? pair : pair / used;
            from[k] = unit < all && at < columns ? e.x + int64_t(row) * columns + at : nullptr;
            v[k].a = v[k].b = {};
            if (from[k]) v[k].ask(from[k]);
        }
#pragma unroll
        for (int k = 0; k < 2; k++) {
            const int unit = first + k * warps;
            if (from[k]) v[k].await(from[k], fresh);
            const float y[8] = {as_float(v[k].a.x), as_float(v[k].a.y), as_float(v[k].a.z), as_float(v[k].a.w),
                                as_float(v[k].b.x), as_float(v[k].b.y), as_float(v[k].b.z), as_float(v[k].b.w)};
            sync_warp();
            if (unit >= all) continue;
            if (!eight) {
                quantise_eight(y, unit * 32 + lane(), q, ds, n);
                continue;
            }
            const EightCodes of = codes_of(y);
            uint8_t* const to = reinterpret_cast<uint8_t*>(q);
            const int slot = unit / units, column = 256 * (unit - slot * units) + 8 * lane();
            *code_at(to, slot, column) = of.low, *code_at(to, slot, column + 4) = of.high;
            if (lane() % 4 == 0) *reinterpret_cast<float2*>(scale_at(to, slot, column)) = of.ds;
        }
    }
}

template <class A, class B, bool DOWN>
OUTLINED int few_experts_step(const WalkStep& step, Ring ring, FewChosen& chosen, uint8_t* work) {
    const WalkExperts& e = step.experts;
    const Matrix& w = e.parts[0].w;
    const bool is_first = A::number == B::number || w.format == A::number;
    if (!DOWN) choose_all(e, chosen);
    const Items my(step, chosen);
    const int units = w.units, shift = e.shift, rows = 1 << shift, x_units = e.tokens * units, n_parts = DOWN ? 1 : e.n_parts;
    const int warp = thread() / 32, warps = team() / 32, wide = units | 1, cut = step.fresh & SPLIT_TILE ? 1 : 0;
    int8_t* const q = reinterpret_cast<int8_t*>(work);
    float2* const ds = reinterpret_cast<float2*>(q + x_units * 256);
    uint32_t* const n = reinterpret_cast<uint32_t*>(ds + x_units * 8);
    float* const sums = reinterpret_cast<float*>(work + walk_few_experts_bytes(e.tokens, units, 0));  // [group and part][token][row][wide]
    NEEDS_SHARED(walk_few_experts_bytes(e.tokens, units, e.stages));
    int next = warp, before = 0;  // the warp's next tile; tiles of earlier rounds
    ring.skip(warp << cut);
#pragma unroll 1
    for (int item = my.begin; item < my.end;) {
        const int at = item / my.per_expert, first = item - at * my.per_expert;
        const int last = first + my.end - item < my.per_expert ? first + my.end - item : my.per_expert;
        const int expert = chosen.expert[at], of_tokens = chosen.rows[at], n_rows = count_bits(uint32_t(of_tokens));
        item += last - first;
        sync_team();  // other warps still read the rows of the expert before
        if (warp < e.tokens && of_tokens >> warp & 1) {
            const uint32_t is = lanes_where(lane() < e.used && chosen.of[warp].id[lane()] == expert);
            if (is >> lane() & 1) chosen.pair[count_bits(uint32_t(of_tokens & ((1 << warp) - 1)))] = warp * e.used + lane();
        }
        sync_team();
        const bool by_matrix = n_rows >= e.by_matrix && shift >= 4;
        take_rows_of<DOWN>(step, chosen, n_rows, by_matrix, q, ds, n);
        const int each = n_parts * n_rows * wide << shift, fit = e.stages / each, batch = fit > 1 ? fit : 1;
#pragma unroll 1
        for (int g0 = first; g0 < last; g0 += batch) {
            const int groups = last - g0 < batch ? last - g0 : batch, tiles = groups * n_parts * w.tiles;
            sync_team();  // rows of x are there, and the sums before are read
            int sub = 0, tile = next - before;
#pragma unroll 1
            for (; next < before + tiles; next += warps, tile += warps) {
#pragma unroll 1
                for (; tile >= w.tiles; tile -= w.tiles) sub++;
                const int of = tile * 32 + lane(), whole = of >> shift, unit = whole < units ? whole : units - 1;
                const uint8_t *const piece = ring.take(cut), *rest = piece;
                if (cut) {
                    Ring then = ring;
                    then.skip(1);
                    rest = then.take(true) - kCutBytes;
                }
                float* const to = sums + ((sub * n_rows << shift) + (of & (rows - 1))) * wide + whole;
#pragma unroll 1
                for (int half = 0; by_matrix && half < 32; half += 16) {
                    const int of = tile * 32 + half, unit = of >> shift, row = (of & (rows - 1)) + lane() / 4;
                    if (unit >= units) break;
                    const uint4* const x = reinterpret_cast<const uint4*>(q) + unit * (kWalkUnitBytes / 16);
                    float part[4];
                    if (is_first) multiply_rows<A>(piece, rest, half, x, part);
                    else multiply_rows<B>(piece, rest, half, x, part);
#pragma unroll
                    for (int k = 0; k < 4; k++) {
                        const int slot = lane() % 4 * 2 + k % 2;
                        if (slot < n_rows) sums[(((sub * n_rows + slot) << shift) + row + k / 2 * 8) * wide + unit] = part[k];
                    }
                }
#pragma unroll 1
                for (int slot = 0; !by_matrix && slot < n_rows; slot += 2) {
                    const int x = slot * units + unit;
                    const bool two = slot + 1 < n_rows;
                    float parts[2];
                    const auto multiply_by = [&](auto layout) {
                        using L = decltype(layout);
                        if (two) multiply_two<L>(piece, rest, q + x * 256, ds + x * 8, n + x * 8, units, parts);
                        else parts[0] = multiply<L>(piece, rest, q + x * 256, ds + x * 8, n + x * 8);
                    };
                    if (is_first) multiply_by(A{});
                    else multiply_by(B{});
                    if (whole < units) to[(slot << shift) * wide] = parts[0];
                    if (whole < units && two) to[((slot + 1) << shift) * wide] = parts[1];
                }
                if (cut) ring.leave(1);
                ring.leave((warps << cut) - cut);
            }
            before += tiles;
            sync_team();
            const auto total_of = [&](int of_group, int slot, int r) {
                const float* const of = sums + (((of_group * n_rows + slot) << shift) + r) * wide;
                float y = -0.0f;
#pragma unroll 4
                for (int u = 0; u < units; u++) y = y + of[u];
                return y;
            };
#pragma unroll 1
            for (int i = thread(); i < groups * n_rows << shift; i += team()) {
                const int of = i >> shift, local = of / n_rows, slot = of - local * n_rows, r = i & (rows - 1), at_row = ((g0 + local) << shift) + r;
                if (at_row >= w.rows) continue;
                const int64_t biased = int64_t(expert) * w.rows + at_row;
                float y = total_of(local * n_parts, slot, r);
                if (e.parts[0].bias) y = y + e.parts[0].bias[biased];
                if constexpr (!DOWN) {
                    const int act = e.parts[0].act;
                    float up = 0.0f;
                    if (e.gated != NO_GATE) {
                        up = total_of(local * n_parts + 1, slot, r);
                        if (e.parts[1].bias) up = up + e.parts[1].bias[biased];
                    }
                    const float size = as_float(bits(y) & 0x7fffffffu);
                    if (e.gated == OAI_GATE) y = glu_oai(y, up, e.alpha, e.limit);
                    else if (e.gated == ACT_GATE && act == SILU && size < 0x1p+6f && size > 0x1p-60f) y = divide_near(y, 1.0f + exponential(-y)) * up;
                    else y = e.gated == ACT_GATE ? gate(act, y) * up : gate(act, y);
                }
                store_fresh(e.parts[0].out + int64_t(chosen.pair[slot]) * w.rows + at_row, y);
            }
        }
    }
    return before << cut;
}

// The weighted sum of each token's choices, in order, and the residual: a warp has 32 columns of a token.
OUTLINED void weigh_experts_step(const WalkStep& step, const FewChosen& chosen) {
    const WalkExperts& e = step.experts;
    const bool fresh = step.fresh & AWAIT_X;
    const int columns = e.columns, used = e.used, per = (columns + 31) / 32;
    constexpr int some = 8;
#pragma unroll 1
    for (int i = thread() / 32 * grid_x() + block_of(step); i < e.tokens * per; i += team() / 32 * grid_x()) {
        const int token = i / per, column = (i - token * per) * 32 + lane();
        const bool mine = column < columns;
        const int64_t at = int64_t(token) * columns + column;
        const float* const residual = mine ? e.parts[0].residual : nullptr;
        float more = residual ? load_fresh(residual + at) : -0.0f, y = -0.0f;
#pragma unroll 1
        for (int j = 0; j < used; j += some) {
            const float* const from = e.x + (int64_t(token) * used + j) * columns + column;
            float v[some];
            Patience patience;
            for (bool missing = true; missing; patience.lose()) {
                missing = false;
#pragma unroll
                for (int k = 0; k < some; k++) v[k] = mine && j + k < used ? load_fresh(from + int64_t(k) * columns) : 0.0f;
#pragma unroll
                for (int k = 0; k < some; k++) missing |= fresh && bits(v[k]) == kNotYet;
            }
#pragma unroll
            for (int k = 0; k < some; k++)
                if (j + k < used) y = y + v[k] * chosen.of[token].weight[j + k];
        }
        if (residual && bits(more) == kNotYet) more = await(residual + at, step.fresh & AWAIT_RESIDUAL);
        if (mine) store_fresh(e.parts[0].out + at, y + more);
        sync_warp();
    }
}

// ---- single operations of rows -------------------------------------------------------------------------------------
OUTLINED void map_rows_step(const WalkStep& step) { run_chain(step); }

template <class A, class B>
struct FewSteps {
    static constexpr bool any = true;
    static constexpr int bytes = kFewChoiceBytes;
    static DEVICE FewChosen& chosen(uint8_t* own) { return *reinterpret_cast<FewChosen*>(own); }
    static DEVICE void make(uint8_t* own) { make_places(&chosen(own).listed, 2, kLeavers); }
    static DEVICE void fetch(const WalkStep& step, Fetch<false>& fetch, uint8_t* own) {
        if (step.kind == EXPERT_ROWS) fetch_few_experts<A, B>(step, fetch, chosen(own));
    }
    static DEVICE int run(const WalkStep& step, const Ring& ring, uint8_t* own, uint8_t* work) {
        switch (step.kind) {
            case EXPERT_ROWS:
                return step.experts.down ? few_experts_step<A, B, true>(step, ring, chosen(own), work)
                                         : few_experts_step<A, B, false>(step, ring, chosen(own), work);
            case WEIGH_EXPERTS: weigh_experts_step(step, chosen(own)); break;
            case FLOAT_ROWS: few_float_rows_step(step, work); break;
            case MAP_ROW: map_rows_step(step); break;
        }
        return 0;
    }
};

#define WALK_FEW(name, A, B) \
    TOGETHER(walk_few_all_##name, WalkArgs, 448) { walk_few<Codes<A>, Codes<B>, true, FewSteps<Codes<A>, Codes<B>>>(a); }
WALK_FEW(q8_0, Q8_0, Q8_0)
WALK_FEW(q4_k_q6_k, Q4_K, Q6_K)
WALK_FEW(q5_k_q6_k, Q5_K, Q6_K)
WALK_FEW(mxfp4_q8_0, MXFP4, Q8_0)

}  // namespace assay
