// Layers that remember, inside rowops.cpp: the convolution, the delta rule, the scan of Mamba, and RWKV's recurrences.
//
// docs/reference/arithmetic.md, "Convolution and recurrences", has the formulas. Tokens are taken in order. Rows of a
// state are independent, so a call gets some of them. It computes W rows at a time: their sums end in one transposition
// instead of a reduction each. Kernels are compiled for rows of 64 and of 128 channels, so that a row's chains stay in
// registers, and for other rows with a loop.

// y = x * f with f = 1 / sqrt(x . x + eps), or with `floor` 1 / max(sqrt(x . x), eps)
void l2_norm(const float* x, float* y, size_t n, float eps, bool floor) {
    const float square = dot(x, x, n), size = std::sqrt(floor ? square : square + eps);
    scale(x, 1.0f / (floor && size < eps ? eps : size), y, n);
}

inline V softplus(V x) {
    const V e = exp(-absolute(x)), s = e / (e + set1(2.0f)), z = s * s, t = s + s;
    const V p = horner(z, 1.0f / 17, 1.0f / 15, 1.0f / 13, 1.0f / 11, 1.0f / 9, 1.0f / 7, 1.0f / 5, 1.0f / 3);
    const V l = fma(t * z, p, t);
    return select(x > V{}, x + l, l);
}

void softplus(const float* x, float* y, size_t n) {
    map(
        y, n, [](V v) __attribute__((always_inline)) { return softplus(v); }, x);
}

// e^x - 1 of a negative x
inline V expm1_down(V x) {
    const V p = horner(x, 1.0f / 362880, 1.0f / 40320, 1.0f / 5040, 1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f);
    return select(x > set1(-0.5f), fma(x * x, p, x), exp(x) - set1(1.0f));
}

void xielu(const float* x, const Xielu& f, float* y, size_t n) {
    map(
        y, n, [=](V v) __attribute__((always_inline)) {
            const V eps = set1(f.eps), line = set1(f.beta) * v;
            const V above = fma(set1(f.above) * v, v, line);
            return select(v > V{}, above, fma(expm1_down(select(v < eps, v, eps)) - v, set1(f.below), line));
        },
        x);
}

// y = relu(x - (mean + factor std)), std by n - 1
void sparse_gate(const float* x, float factor, float* y, size_t n) {
    const float mean = total(x, n) / float(n);
    for (size_t i = 0; i < n; ++i) y[i] = x[i] - mean;
    const float cut = __builtin_fmaf(factor, std::sqrt(dot(y, y, n) / float(n - 1)), mean);
    for (size_t i = 0; i < n; ++i) {
        const float over = x[i] - cut;
        y[i] = over < 0 ? 0.0f : over;
    }
}

// y = x + (z - x) t, rounded twice: the difference, and the multiply-add
void lerp(const float* x, const float* z, const float* t, float* y, size_t n) {
    map(
        y, n, [](V a, V b, V f) __attribute__((always_inline)) { return fma(b - a, f, a); }, x, z, t);
}

// A vector of W values of which `n` exist.
inline V some_of(const float* p, int n) {
    if (n == W) return load(p);
    float v[W] = {};
    std::copy_n(p, n, v);
    return load(v);
}
inline void put_some(float* p, int n, V v) {
    if (n == W) return store(p, v);
    float all[W];
    store(all, v);
    std::copy_n(all, n, p);
}

// y[t, c] = sum over taps k of w[k, c] x[t - K + 1 + k, c]; rows before the call come from the window [c, K - 1].
//
// n of W channels, from channel c on, of T tokens from t on. A row of x is loaded once for all taps that read it. TAPS 0:
// any number of taps.
template <int TAPS, int T>
inline __attribute__((always_inline)) void conv_vector(const ConvBlock& b, const float* const* rows, int t, int c, int n) {
    constexpr int most = (TAPS ? TAPS : kMaxTaps) - 1;
    const int old = TAPS ? TAPS - 1 : b.taps - 1;
    V x[T + most], w[1 + most];
    for (int i = 0; i < T + old; ++i) x[i] = some_of(rows[i] + c, n);
    for (int k = 0; k <= old; ++k) w[k] = some_of(b.w + k * b.w_step + c, n);
    for (int i = 0; i < T; ++i) {
        V y{};
        for (int k = 0; k <= old; ++k) y = fma(w[k], x[i + k], y);
        put_some(b.y + size_t(t + i) * b.y_step + c, n, y);
    }
}
// All channels; `row(t)` is the row of token t.
template <int TAPS, int T, class F>
void conv_tokens(const ConvBlock& b, int t, F row) {
    const float* rows[T + kMaxTaps - 1];
    for (int i = 0; i < T + b.taps - 1; ++i) rows[i] = row(t - b.taps + 1 + i);
    int c = 0;
    for (; c + W <= b.channels; c += W) conv_vector<TAPS, T>(b, rows, t, c, W);
    if (c < b.channels) conv_vector<TAPS, T>(b, rows, t, c, b.channels - c);
}

// All tokens of some channels. `before` is the window as rows, [K - 1][channels].
template <int TAPS>
void conv_channels(const ConvBlock& b, const float* before) {
    const int old = b.taps - 1;
    const auto row = [&](int t) { return t < 0 ? before + (old + t) * b.channels : b.x + size_t(t) * b.x_step; };
    int t = 0;
    for (; t + 4 <= b.tokens; t += 4) conv_tokens<TAPS, 4>(b, t, row);
    for (; t < b.tokens; ++t) conv_tokens<TAPS, 1>(b, t, row);
    for (int k = 0; k < old; ++k) {
        const float* kept = row(b.tokens - old + k);
        for (int c = 0; c < b.channels; ++c) b.to[c * old + k] = kept[c];
    }
}

void causal_conv(const ConvBlock& all) {
    constexpr int kChannels = 256;
    const int old = all.taps - 1;
    for (int first = 0; first < all.channels; first += kChannels) {
        ConvBlock b = all;
        b.channels = std::min(kChannels, all.channels - first);
        b.x += first, b.w += first, b.y += first, b.to += first * old;
        float before[(kMaxTaps - 1) * kChannels];  // a copy: the new window may replace the old
        for (int c = 0; c < b.channels; ++c)
            for (int k = 0; k < old; ++k) before[k * b.channels + c] = b.from ? b.from[(first + c) * old + k] : 0.0f;
        (b.taps == 3 ? conv_channels<3> : b.taps == 4 ? conv_channels<4> : conv_channels<0>)(b, before);
    }
}

// ---- sums of W rows -------------------------------------------------------------------------------------------------
// Of two vectors whose segments of L lanes belong to one row each: the sum of the lower and the upper half of every
// segment, all segments side by side.
template <int L, int... i>
inline V join_halves(V a, V b, std::integer_sequence<int, i...>) {
    return __builtin_shufflevector(a, b, (i / (L / 2) * L + i % (L / 2))...) +
           __builtin_shufflevector(a, b, (i / (L / 2) * L + L / 2 + i % (L / 2))...);
}

// Lane r is the halving tree over the lanes of s[r].
template <int L = W>
inline V sums_of_rows(V* s) {
    if constexpr (L == 1) {
        return s[0];
    } else {
        for (int r = 0; r < L / 2; ++r)
            s[r] = join_halves<L>(s[2 * r], s[2 * r + 1], std::make_integer_sequence<int, W>());
        return sums_of_rows<L / 2>(s);
    }
}

// A vector of each of R rows.
template <int R>
struct Rows {
    V v[R];
};

// How the rows of a state are cut: C vectors make the 64 chains, and a row has `groups` of them (G, unless G is 0).
template <int CHAINS, int G>
struct Cut {
    static constexpr int C = CHAINS, together = 4;  // rows whose operands are loaded together
    int padded;
    int groups() const { return G ? G : padded / (C * W); }
};

// The same, row by row.
template <class Cut>
struct OneByOne : Cut {
    static constexpr int together = 1;
};

// The upper part of the tree over 64 chains, for R rows: chains AT, AT + STRIDE, ... become one vector a row. `term(j, s)`
// adds vector j of each row to its chain. Chains without a value are +0.
template <class Cut, int R, int AT = 0, int STRIDE = 1, class F>
inline __attribute__((always_inline)) Rows<R> chains(const Cut& cut, F& term) {
    if constexpr (STRIDE == Cut::C) {
        Rows<R> s{};
        for (int g = 0; g < cut.groups(); ++g) term(g * Cut::C + AT, s);
        if constexpr (Cut::C * W < 64)
            for (V& chain : s.v) chain = chain + V{};
        return s;
    } else {
        Rows<R> a = chains<Cut, R, AT, 2 * STRIDE>(cut, term);
        const Rows<R> b = chains<Cut, R, AT + STRIDE, 2 * STRIDE>(cut, term);
        for (int r = 0; r < R; ++r) a.v[r] = a.v[r] + b.v[r];
        return a;
    }
}

// Lane r = the dot product of row r of at most W. `begin(r, count)` gives the `term` of rows r to r + count - 1.
template <class Cut, class F>
inline __attribute__((always_inline)) V dots(const Cut& cut, int rows, F begin) {
    V sums[W];
    const auto some = [&](int r, auto count) __attribute__((always_inline)) {
        constexpr int R = decltype(count)::value;
        auto term = begin(r, count);
        const Rows<R> s = chains<Cut, R>(cut, term);
        for (int i = 0; i < R; ++i) sums[r + i] = s.v[i];
    };
    int r = 0;
    for (; r + Cut::together <= rows; r += Cut::together) some(r, std::integral_constant<int, Cut::together>());
    for (; r < rows; ++r) some(r, std::integral_constant<int, 1>());
    for (; r < W; ++r) sums[r] = V{};
    return sums_of_rows(sums);
}

// n values, then zeros up to `padded`.
void pad(const float* x, int n, int padded, float* y) {
    std::copy_n(x, n, y);
    std::fill(y + n, y + padded, 0.0f);
}

// The operands of a token, padded to a whole number of chains if need be.
struct Padded {
    int n, padded;
    float* room;  // padded floats for each operand
    const float* operator()(const float* x) {
        if (n == padded) return x;
        pad(x, n, padded, room);
        room += padded;
        return room - padded;
    }
};

// The block's rows of a state into `s`, which has rows of `padded` values, and back.
void take_rows(const ScanBlock& b, int padded, float* s) {
    if (!b.from) {
        std::fill_n(s, size_t(b.rows) * padded, 0.0f);
        return;
    }
    for (int r = 0; r < b.rows; ++r) pad(b.from + size_t(r) * b.width, b.width, padded, s + size_t(r) * padded);
}
void put_rows(const ScanBlock& b, int padded, const float* s) {
    for (int r = 0; r < b.rows; ++r) std::copy_n(s + size_t(r) * padded, b.width, b.to + size_t(r) * b.width);
}

// The scan of a block's rows over its tokens. `token(t, operands)` prepares a token. It gives a function of (cut, first
// row, rows, their state before, their state after), which takes at most W rows through the token. Rows that need no
// padding are not copied: the first token reads the state where it lies.
template <class F>
void scan_rows(const ScanBlock& b, F token) {
    constexpr int kNarrow = 16;
    const bool narrow = b.width == kNarrow;
    const int padded = narrow ? kNarrow : (b.width + 63) / 64 * 64;
    const bool whole = b.width == padded;
    float* s = whole ? b.to : b.scratch;
    const float* before = whole && b.from ? b.from : s;
    if (before != b.from) take_rows(b, padded, s);
    float* room = whole ? b.scratch : b.scratch + size_t(b.rows) * padded;
    const auto run = [&](auto cut) {
        for (int t = 0; t < b.tokens; ++t) {
            auto rows_of = token(t, Padded{b.width, padded, room});
            const float* from = t ? s : before;
            for (int r = 0; r < b.rows; r += W) {
                const size_t at = size_t(r) * padded;
                rows_of(cut, r, std::min(W, b.rows - r), from + at, s + at);
            }
        }
    };
    if (narrow)
        run(Cut<kNarrow / W, 1>{padded});
    else if (padded == 64)
        run(Cut<64 / W, 1>{padded});
    else if (padded == 128)
        run(Cut<64 / W, 2>{padded});
    else
        run(Cut<64 / W, 0>{padded});
    if (!whole) put_rows(b, padded, s);
}

// The factor of S for a row: one for all channels, or one for each.
template <bool PER_CHANNEL>
struct Decay {
    V one;
    const float* each;
    V at(int j) const {
        if constexpr (PER_CHANNEL) return load(each + j * W);
        return one;
    }
};

// One value of each of R rows, for all lanes.
template <int R>
inline Rows<R> values(const float* p) {
    Rows<R> x;
    for (int r = 0; r < R; ++r) x.v[r] = set1(p[r]);
    return x;
}

// D = S * a; d = beta (v - D . k); S = D + d k; y = S . q * scale
template <bool PER_CHANNEL>
void delta_rule_of(const ScanBlock& b) {
    scan_rows(b, [&](int t, Padded operand) {
        const int n = operand.padded;
        float* each = operand.room + 2 * n;
        const float *q = operand(b.in[0].at(t)), *k = operand(b.in[1].at(t)), *g = b.in[3].at(t);
        Decay<PER_CHANNEL> decay{{}, each};
        if constexpr (PER_CHANNEL) {
            exps(g, 0.0f, each, b.width);
            std::fill(each + b.width, each + n, 0.0f);
        } else {
            decay.one = exp(set1(*g));
        }
        return [=, v = b.in[2].at(t), y = b.out.at(t), beta = set1(*b.in[4].at(t)), scale = set1(b.scale)](
                   auto cut, int r0, int rows, const float* old, float* s) __attribute__((always_inline)) {
            const V found = dots(cut, rows, [&](int r, auto count) __attribute__((always_inline)) {
                return [=](int j, auto& sum) __attribute__((always_inline)) {
                    const V x = load(k + j * W), a = decay.at(j);
                    for (int i = 0; i < count; ++i)
                        sum.v[i] = fma(load(old + size_t(r + i) * n + j * W) * a, x, sum.v[i]);
                };
            });
            float d[W];
            store(d, beta * (some_of(v + r0, rows) - found));
            const V out = dots(cut, rows, [&](int r, auto count) __attribute__((always_inline)) {
                return [=, by = values<count>(d + r)](int j, auto& sum) __attribute__((always_inline)) {
                    const V x = load(k + j * W), a = decay.at(j), z = load(q + j * W);
                    for (int i = 0; i < count; ++i) {
                        const size_t at = size_t(r + i) * n + j * W;
                        const V state = fma(by.v[i], x, load(old + at) * a);
                        store(s + at, state);
                        sum.v[i] = fma(state, z, sum.v[i]);
                    }
                };
            });
            put_some(y + r0, rows, out * scale);
        };
    });
}
void delta_rule(const ScanBlock& b) { b.per_channel ? delta_rule_of<true>(b) : delta_rule_of<false>(b); }

// a = exp(dt A); u = dt x; S = a S + u B; y = S . C. A row belongs to head (first + r) / head_rows. With a decay for each
// channel the rows are taken one by one, because a head of Mamba-1 is a single row.
template <bool PER_CHANNEL>
void ssm_scan_of(const ScanBlock& b) {
    scan_rows(b, [&](int t, Padded operand) {
        const int n = operand.padded;
        float* each = operand.room + 2 * n;
        const float *B = operand(b.in[2].at(t)), *c = operand(b.in[3].at(t));
        return [=, &b, x = b.in[0].at(t), dt = b.in[1].at(t), y = b.out.at(t), head = -1, decay = V{}](
                   auto cut, int r0, int rows, const float* old, float* s) mutable __attribute__((always_inline)) {
            const int first = b.first + r0;
            const auto begin_head = [&](int own) {
                if (own == head) return;
                head = own;
                if constexpr (PER_CHANNEL) {
                    scale(b.weight + size_t(own) * b.width, dt[own], each, b.width);
                    exps(each, 0.0f, each, b.width);
                    std::fill(each + b.width, each + n, 0.0f);
                } else {
                    decay = exp(set1(dt[own] * b.weight[own]));
                }
            };
            const auto some = [&](int r, auto count) __attribute__((always_inline)) {
                begin_head((first + r) / b.head_rows);
                float u[count];
                for (int i = 0; i < count; ++i) u[i] = dt[head] * x[first + r + i];
                return [=, by = values<count>(u), a = Decay<PER_CHANNEL>{decay, each}](int j, auto& sum)
                    __attribute__((always_inline)) {
                        const V in = load(B + j * W), z = load(c + j * W), f = a.at(j);
                        for (int i = 0; i < count; ++i) {
                            const size_t at = size_t(r + i) * n + j * W;
                            const V state = fma(by.v[i], in, f * load(old + at));
                            store(s + at, state);
                            sum.v[i] = fma(state, z, sum.v[i]);
                        }
                    };
            };
            // Rows that are loaded together must belong to one head.
            using Cut = decltype(cut);
            const bool aligned = first % Cut::together == 0 && b.head_rows % Cut::together == 0;
            const V out = aligned ? dots(cut, rows, some) : dots(OneByOne<Cut>{cut}, rows, some);
            put_some(y + first, rows, out);
        };
    });
}
void ssm_scan(const ScanBlock& b) { b.per_channel ? ssm_scan_of<true>(b) : ssm_scan_of<false>(b); }

// s = -(S . kk); S = S w + v k + s (kk a); y = S . r
void wkv7(const ScanBlock& b) {
    scan_rows(b, [&](int t, Padded operand) {
        const int n = operand.padded;
        float* both = operand.room + 4 * n;
        const float *read = operand(b.in[0].at(t)), *w = operand(b.in[1].at(t)), *k = operand(b.in[2].at(t));
        const float *kk = operand(b.in[4].at(t)), *a = b.in[5].at(t);
        for (int i = 0; i < b.width; ++i) both[i] = kk[i] * a[i];
        std::fill(both + b.width, both + n, 0.0f);
        return [=, v = b.in[3].at(t), y = b.out.at(t)](auto cut, int r0, int rows, const float* old, float* s)
            __attribute__((always_inline)) {
                float taken[W];
                store(taken, -dots(cut, rows, [&](int r, auto count) __attribute__((always_inline)) {
                    return [=](int j, auto& sum) __attribute__((always_inline)) {
                        const V x = load(kk + j * W);
                        for (int i = 0; i < count; ++i)
                            sum.v[i] = fma(load(old + size_t(r + i) * n + j * W), x, sum.v[i]);
                    };
                }));
                const V out = dots(cut, rows, [&](int r, auto count) __attribute__((always_inline)) {
                    return [=, from = values<count>(taken + r), to = values<count>(v + r0 + r)](int j, auto& sum)
                        __attribute__((always_inline)) {
                            const V x = load(both + j * W), key = load(k + j * W), f = load(w + j * W);
                            const V z = load(read + j * W);
                            for (int i = 0; i < count; ++i) {
                                const size_t at = size_t(r + i) * n + j * W;
                                const V state = fma(from.v[i], x, fma(to.v[i], key, load(old + at) * f));
                                store(s + at, state);
                                sum.v[i] = fma(state, z, sum.v[i]);
                            }
                        };
                });
                put_some(y + r0, rows, out);
            };
    });
}

// m = k v; e = S + u m; y = e . r; S = w S + m, for columns [first, first + rows) of a state [key, value].
void wkv6(const ScanBlock& b) {
    float* s = b.scratch;  // [key][W]
    for (int c0 = 0; c0 < b.rows; c0 += W) {
        const int n = std::min(W, b.rows - c0);
        for (int i = 0; i < b.width; ++i)
            store(s + i * W, b.from ? some_of(b.from + size_t(i) * b.width + c0, n) : V{});
        for (int t = 0; t < b.tokens; ++t) {
            const float *read = b.in[0].at(t), *w = b.in[1].at(t), *k = b.in[2].at(t);
            const V v = some_of(b.in[3].at(t) + c0, n);
            V chains[64] = {};
            for (int i = 0; i < b.width; ++i) {
                const V old = load(s + i * W), m = set1(k[i]) * v, e = fma(set1(b.weight[i]), m, old);
                chains[i % 64] = fma(e, set1(read[i]), chains[i % 64]);
                store(s + i * W, fma(set1(w[i]), old, m));
            }
            for (int h = 32; h; h /= 2)
                for (int c = 0; c < h; ++c) chains[c] = chains[c] + chains[c + h];
            put_some(b.out.at(t) + c0, n, chains[0]);
        }
        for (int i = 0; i < b.width; ++i) put_some(b.to + size_t(i) * b.width + c0, n, load(s + i * W));
    }
}
