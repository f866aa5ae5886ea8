// The row kernels, compiled once per instruction set: ASSAY_NS names the namespace, ASSAY_PORTABLE the fallback.
#include "rowops.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>
#include <utility>

#include "elementary.h"

namespace assay::ASSAY_NS {
namespace {

#include "quantise.h"

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// 64 chains, then their reduction tree. The tail is treated as if zeros followed.
float dot(const float* a, const float* b, size_t n) {
    constexpr int kChains = 64;
    V s[kChains / W] = {};
    const auto step = [&](const float* p, const float* q) __attribute__((always_inline)) {
        for (int c = 0; c < kChains / W; ++c) s[c] = fma(load(p + c * W), load(q + c * W), s[c]);
    };
    size_t i = 0;
    for (; i + kChains <= n; i += kChains) step(a + i, b + i);
    if (i < n) {
        float p[kChains] = {}, q[kChains] = {};
        std::copy_n(a + i, n - i, p);
        std::copy_n(b + i, n - i, q);
        step(p, q);
    }
    return tree(s);
}

void rms_norm(const float* x, const float* w, float* y, size_t n, float eps) {
    const float factor = 1.0f / std::sqrt(dot(x, x, n) / float(n) + eps);
    for (size_t i = 0; i < n; ++i) y[i] = x[i] * factor * w[i];
}

void add(const float* a, const float* b, float* y, size_t n) {
    for (size_t i = 0; i < n; ++i) y[i] = a[i] + b[i];
}

// The sum of 64 chains, folded by halves.
float total(const float* x, size_t n) {
    float s[64] = {};
    size_t i = 0;
    for (; i + 64 <= n; i += 64)
        for (size_t c = 0; c < 64; ++c) s[c] += x[i + c];
    for (size_t c = 0; i < n; ++i, ++c) s[c] += x[i];
    for (size_t half = 32; half; half /= 2)
        for (size_t c = 0; c < half; ++c) s[c] += s[c + half];
    return s[0];
}

void layer_norm(const float* x, const float* w, const float* b, float* y, size_t n, float eps) {
    const float mean = total(x, n) / float(n);
    for (size_t i = 0; i < n; ++i) y[i] = x[i] - mean;
    const float factor = 1.0f / std::sqrt(dot(y, y, n) / float(n) + eps);
    for (size_t i = 0; i < n; ++i) y[i] = y[i] * factor * w[i];
    if (b) add(y, b, y, n);
}

void scale(const float* x, float factor, float* y, size_t n) {
    for (size_t i = 0; i < n; ++i) y[i] = x[i] * factor;
}

void axpy(float a, const float* x, float* y, size_t n) {
    for (size_t i = 0; i < n; ++i) y[i] = __builtin_fmaf(a, x[i], y[i]);
}

void axpys(const float* a, const float* x, size_t step, int count, float* y, size_t n) {
    // N vectors of y stay in registers while the rows of x pass, so that y is loaded and stored once.
    const auto columns = [&]<int N>(size_t i) __attribute__((always_inline)) {
        V s[N];
        for (int c = 0; c < N; ++c) s[c] = load(y + i + c * W);
        for (int k = 0; k < count; ++k) {
            const V factor = set1(a[k]);
            const float* row = x + k * step + i;
            for (int c = 0; c < N; ++c) s[c] = fma(factor, load(row + c * W), s[c]);
        }
        for (int c = 0; c < N; ++c) store(y + i + c * W, s[c]);
    };
    size_t i = 0;
    for (; i + 8 * W <= n; i += 8 * W) columns.template operator()<8>(i);
    for (; i + 2 * W <= n; i += 2 * W) columns.template operator()<2>(i);
    for (; i + W <= n; i += W) columns.template operator()<1>(i);
    for (; i < n; ++i)
        for (int k = 0; k < count; ++k) y[i] = __builtin_fmaf(a[k], x[k * step + i], y[i]);
}

float chain(const float* a, const float* b, size_t n) {
    float s = 0;
    for (size_t i = 0; i < n; ++i) s = __builtin_fmaf(a[i], b[i], s);
    return s;
}

// y = f(x) or f(x, z), two vectors at a time: each is one long chain of operations. y may be x or z.
template <class F, class... P>
inline __attribute__((always_inline)) void map(float* y, size_t n, F f, const P*... in) {
    size_t i = 0;
    for (; i + 2 * W <= n; i += 2 * W) {
        const V y0 = f(load(in + i)...), y1 = f(load(in + i + W)...);
        store(y + i, y0);
        store(y + i + W, y1);
    }
    for (; i < n; i += W) {
        const size_t rest = std::min<size_t>(W, n - i);
        const auto tail = [&](const float* p) {
            float some[W] = {};
            std::copy_n(p + i, rest, some);
            return load(some);
        };
        float some[W];
        store(some, f(tail(in)...));
        std::copy_n(some, rest, y + i);
    }
}

void softcap(const float* x, float cap, float* y, size_t n) {
    map(
        y, n, [=](V v) __attribute__((always_inline)) { return set1(cap) * tanh(v / set1(cap)); }, x);
}

void exps(const float* x, float shift, float* y, size_t n) {
    map(
        y, n, [=](V v) __attribute__((always_inline)) { return exp(v - set1(shift)); }, x);
}

// silu with u = x; gelu's tanh form is the same curve with u = 2 sqrt(2/pi) (x + 0.044715 x^3).
inline V gate(V x, V u) { return x / (set1(1.0f) + exp(-u)); }

void glu(Act act, const float* gates, const float* up, float* y, size_t n) {
    switch (act) {
        case Act::silu:
            return map(
                y, n, [](V g, V u) __attribute__((always_inline)) { return gate(g, g) * u; }, gates, up);
        case Act::gelu_tanh:
            return map(
                y, n, [](V g, V u) __attribute__((always_inline)) {
                    return gate(g, set1(1.5957691216057308f) * fma(set1(0.044715f) * g * g, g, g)) * u;
                },
                gates, up);
        case Act::gelu_erf:
            return map(
                y, n, [](V g, V u) __attribute__((always_inline)) {
                    return set1(0.5f) * g * (set1(1.0f) + erf(g * set1(0.70710678118654752f))) * u;
                },
                gates, up);
        case Act::relu:
            return map(
                y, n, [](V g, V u) { return select(g < V{}, V{}, g) * u; }, gates, up);
        case Act::relu_sqr:
            return map(
                y, n, [](V g, V u) { const V r = select(g < V{}, V{}, g); return r * r * u; }, gates, up);
        case Act::tanh:
            return map(
                y, n, [](V g, V u) __attribute__((always_inline)) { return tanh(g) * u; }, gates, up);
    }
}

// y = exp(x - m) and its sum in 32 chains, over n, a multiple of 32; m is the maximum of x. y may be x.
constexpr int kLanes = 32;
float exp_sum(const float* x, float m, float* y, size_t n) {
    V s[kLanes / W] = {};
    const V shift = set1(m);
    for (size_t i = 0; i < n; i += kLanes)
        for (int c = 0; c < kLanes / W; ++c) {
            const V e = exp_down(load(x + i + c * W) - shift);
            store(y + i + c * W, e);
            s[c] = s[c] + e;
        }
    return tree(s);
}

void softmax(const float* x, float* y, size_t n) {
    float m = kMinusInfinity;
    for (size_t i = 0; i < n; ++i) m = x[i] > m ? x[i] : m;
    exps(x, m, y, n);
    float s[kLanes] = {};
    for (size_t i = 0; i < n; ++i) s[i % kLanes] += y[i];
    V chains[kLanes / W];
    for (int c = 0; c < kLanes / W; ++c) chains[c] = load(s + c * W);
    const float total = tree(chains);
    for (size_t i = 0; i < n; ++i) y[i] /= total;
}

void rope_table(const double* frequencies, int n, int32_t position, float magnitude, float* cos, float* sin) {
    for (int i = 0; i < n; ++i) {
        double c, s;
        cos_sin(position * frequencies[i], c, s);
        cos[i] = float(c * double(magnitude));
        sin[i] = float(s * double(magnitude));
    }
}

void rope(const float* x, const float* cos, const float* sin, float* y, int heads, int dim, int n_rot, bool neox) {
    const int half = n_rot / 2;
    for (int h = 0; h < heads; ++h, x += dim, y += dim) {
        if (neox) {
            for (int i = 0; i < half; ++i) {
                const float a = x[i], b = x[i + half];
                y[i] = a * cos[i] - b * sin[i];
                y[i + half] = a * sin[i] + b * cos[i];
            }
        } else {
            for (int i = 0; i < half; ++i) {
                const float a = x[2 * i], b = x[2 * i + 1];
                y[2 * i] = a * cos[i] - b * sin[i];
                y[2 * i + 1] = a * sin[i] + b * cos[i];
            }
        }
        if (y != x)
            for (int i = n_rot; i < dim; ++i) y[i] = x[i];
    }
}

// ---- pages ----------------------------------------------------------------------------------------------------------
// Element d of a position in a head: keys at [d * 32 + slot], values at [slot * stride + d].
struct Place {
    size_t first, step;
    Place(const PageShape& s, int slot) : first(s.keys ? slot : size_t(slot) * s.stride()), step(s.keys ? kPage : 1) {}
};
size_t scale_index(const PageShape& s, int slot, int block) {
    return s.keys ? size_t(block) * kPage + slot : size_t(slot) * (s.dim / 32) + block;
}

template <class E>
void write_head(const PageShape& s, uint8_t* head, int slot, const float* x) {
    const Place at(s, slot);
    E* out = reinterpret_cast<E*>(head) + at.first;
    int d = 0;
    if constexpr (std::is_same_v<E, Half>)
        for (; d + W <= s.dim; d += W) {
            Half some[W];
            store(some, load(x + d));
            for (int i = 0; i < W; ++i) out[(d + i) * at.step] = some[i];
        }
    for (; d < s.dim; ++d) store(out + d * at.step, x[d]);
}

void write_head_q8(const PageShape& s, uint8_t* head, int slot, const float* x) {
    const Place at(s, slot);
    int8_t* out = reinterpret_cast<int8_t*>(head) + at.first;
    uint16_t* scales = reinterpret_cast<uint16_t*>(head + s.values_bytes());
    for (int block = 0; block < s.dim / 32; ++block) {
        int8_t q[32];
        scales[scale_index(s, slot, block)] = float_to_half(quantise(x + block * 32, q).d);
        for (int i = 0; i < 32; ++i) out[(block * 32 + i) * at.step] = q[i];
    }
}

void page_write(const PageShape& s, uint8_t* page, int slot, const float* x) {
    for (int h = 0; h < s.heads; ++h, page += s.head_bytes(), x += s.dim) {
        switch (s.type) {
            case KvType::f32: write_head<float>(s, page, slot, x); break;
            case KvType::f16: write_head<Half>(s, page, slot, x); break;
            case KvType::bf16: write_head<Brain>(s, page, slot, x); break;
            case KvType::q8_0: write_head_q8(s, page, slot, x); break;
        }
    }
}

template <class E>
void read_head(const PageShape& s, const uint8_t* head, int slot, float* x) {
    const Place at(s, slot);
    const E* in = reinterpret_cast<const E*>(head) + at.first;
    for (int d = 0; d < s.dim; ++d) x[d] = value(in[d * at.step]);
}

void page_read(const PageShape& s, const uint8_t* page, int slot, float* x) {
    for (int h = 0; h < s.heads; ++h, page += s.head_bytes(), x += s.dim) {
        switch (s.type) {
            case KvType::f32: read_head<float>(s, page, slot, x); break;
            case KvType::f16: read_head<Half>(s, page, slot, x); break;
            case KvType::bf16: read_head<Brain>(s, page, slot, x); break;
            case KvType::q8_0: {
                const Place at(s, slot);
                const int8_t* in = reinterpret_cast<const int8_t*>(page) + at.first;
                const uint16_t* scales = reinterpret_cast<const uint16_t*>(page + s.values_bytes());
                for (int d = 0; d < s.dim; ++d)
                    x[d] = float(in[d * at.step]) * half_to_float(scales[scale_index(s, slot, d / 32)]);
            }
        }
    }
}

// One head of a page as float32, in the page's layout.
template <class E>
const float* as_floats(const PageShape& s, const uint8_t* head, float* out) {
    const E* in = reinterpret_cast<const E*>(head);
    const size_t n = size_t(kPage) * s.stride();
    for (size_t i = 0; i < n; i += W) store(out + i, load(in + i));
    return out;
}

const float* head_floats(const PageShape& s, const uint8_t* head, float* out) {
    switch (s.type) {
        case KvType::f32: return reinterpret_cast<const float*>(head);
        case KvType::f16: return as_floats<Half>(s, head, out);
        case KvType::bf16: return as_floats<Brain>(s, head, out);
        case KvType::q8_0: break;
    }
    // 32 scales at a time: of 32 keys for 32 columns, or of 32 consecutive blocks of values.
    const int8_t* in = reinterpret_cast<const int8_t*>(head);
    const Half* scales = reinterpret_cast<const Half*>(head + s.values_bytes());
    const int blocks = s.dim / 32;
    for (int n = 0; n < blocks; ++n) {
        float d[kPage], minus[kPage];
        for (int i = 0; i < kPage; i += W) {
            store(d + i, load(scales + n * kPage + i));
            store(minus + i, load(d + i) * set1(-32896.0f));
        }
        V x[16 / W];
        if (s.keys)
            for (int j = 0; j < kPage; j += 16) {
                for (int i = 0; i < 16 / W; ++i) x[i] = load(d + j + i * W);
                for (size_t at = size_t(n) * 32 * kPage + j; at < size_t(n + 1) * 32 * kPage; at += kPage)
                    widen(in + at, x, minus + j, out + at);
            }
        else
            for (int i = 0; i < kPage; ++i) {
                const int slot = (n * kPage + i) / blocks, block = (n * kPage + i) % blocks;
                const size_t at = size_t(slot) * s.stride() + size_t(block) * 32;
                float same[16];
                for (int c = 0; c < 16 / W; ++c) {
                    x[c] = set1(d[i]);
                    store(same + c * W, set1(minus[i]));
                }
                widen(in + at, x, same, out + at);
                widen(in + at + 16, x, same, out + at + 16);
            }
    }
    return out;
}

// ---- attention ------------------------------------------------------------------------------------------------------
// Scores of N query rows against the 32 keys of a page, KT keys at a time: s[r][j] = sum_d q[r][d] k[d][j], d
// ascending. Calls f for 0, 1, ... 3, as constants.
template <class F>
inline __attribute__((always_inline)) void each_lane(F&& f) {
    f(std::integral_constant<int, 0>{}), f(std::integral_constant<int, 1>{});
    f(std::integral_constant<int, 2>{}), f(std::integral_constant<int, 3>{});
}

// Prefetches halves that are read next, row by row: the keys of the next page, or the values of these keys.
struct Ahead {
    const uint8_t *keys, *values;
};

template <class E, int N, int KT>
void scores(const float* const* q, const E* k, int dim, Ahead ahead, float* s) {
    for (int j = 0; j < kPage; j += KT) {
        V acc[N][KT / W] = {};
        const auto column = [&](int d, auto factor) __attribute__((always_inline)) {
            if (std::is_same_v<E, Half> && j == 0) __builtin_prefetch(ahead.keys + d * kPage * sizeof(E));
            if (std::is_same_v<E, Half> && j + KT == kPage) __builtin_prefetch(ahead.values + d * kPage * sizeof(E));
            V key[KT / W];
            for (int i = 0; i < KT / W; ++i) key[i] = load(k + size_t(d) * kPage + j + i * W);
            for (int r = 0; r < N; ++r)
                for (int i = 0; i < KT / W; ++i) acc[r][i] = factor(r, key[i], acc[r][i]);
        };
        int d = 0;
        for (; d + 4 <= dim; d += 4) {
            Four x[N];
            for (int r = 0; r < N; ++r) x[r] = load4(q[r] + d);
            each_lane([&](auto lane) __attribute__((always_inline)) {
                column(
                    d + lane, [&](int r, V key, V a)
                                  __attribute__((always_inline)) { return fma_lane<lane>(x[r], key, a); });
            });
        }
        for (; d < dim; ++d) column(d, [&](int r, V key, V a) { return fma(set1(q[r][d]), key, a); });
        for (int r = 0; r < N; ++r)
            for (int i = 0; i < KT / W; ++i) store(s + size_t(r) * kBlock + j + i * W, acc[r][i]);
    }
}

// acc[r][d] += (sum_j p[r][j] v[j][d], j ascending over a page), DT values at a time.
template <class E, int N, int DT>
void weigh(const float* p, const E* v, int keys, int stride, float* acc) {
    for (int d = 0; d < stride; d += DT) {
        V a[N][DT / W] = {};
        const auto row = [&](int j, auto factor) __attribute__((always_inline)) {
            V x[DT / W];
            for (int i = 0; i < DT / W; ++i) x[i] = load(v + size_t(j) * stride + d + i * W);
            for (int r = 0; r < N; ++r)
                for (int i = 0; i < DT / W; ++i) a[r][i] = factor(r, x[i], a[r][i]);
        };
        int j = 0;
        for (; j + 4 <= keys; j += 4) {
            Four w[N];
            for (int r = 0; r < N; ++r) w[r] = load4(p + size_t(r) * kBlock + j);
            each_lane([&](auto lane) __attribute__((always_inline)) {
                row(
                    j + lane, [&](int r, V x, V y)
                                  __attribute__((always_inline)) { return fma_lane<lane>(w[r], x, y); });
            });
        }
        for (; j < keys; ++j) row(j, [&](int r, V x, V y) { return fma(set1(p[size_t(r) * kBlock + j]), x, y); });
        for (int r = 0; r < N; ++r)
            for (int i = 0; i < DT / W; ++i) {
                float* at = acc + size_t(r) * stride + d + i * W;
                store(at, load(at) + a[r][i]);
            }
    }
}

// With few rows, cache elements are converted on the fly; many rows share one conversion. The values are the same. On
// NEON a conversion occupies one pipe of two for two cycles; interleaved with the products of 8 rows it costs less than
// before them.
#if !defined(ASSAY_PORTABLE) && defined(__aarch64__)
constexpr int kFewRows = 8;
#else
constexpr int kFewRows = 4;
#endif

template <class E>
void scores_rows(const float* const* q, const E* k, int rows, int dim, Ahead ahead, float* s) {
    if constexpr (kFewRows == 8)
        for (; rows >= 8; q += 8, s += 8 * kBlock, rows -= 8) scores<E, 8, 8>(q, k, dim, ahead, s);
    while (rows >= 4) {
        scores<E, 4, 16>(q, k, dim, ahead, s);
        q += 4, s += 4 * kBlock, rows -= 4;
    }
    if (rows == 3) scores<E, 3, 16>(q, k, dim, ahead, s);
    if (rows == 2) scores<E, 2, 32>(q, k, dim, ahead, s);
    if (rows == 1) scores<E, 1, 32>(q, k, dim, ahead, s);
}

template <class E, int DT>
void weigh_rows(const float* p, const E* v, int rows, int keys, int stride, float* acc) {
    if constexpr (kFewRows == 8)
        for (; rows >= 8; p += 8 * kBlock, acc += size_t(8) * stride, rows -= 8)
            weigh<E, 8, 8>(p, v, keys, stride, acc);
    while (rows >= 4) {
        weigh<E, 4, 16>(p, v, keys, stride, acc);
        p += 4 * kBlock, acc += size_t(4) * stride, rows -= 4;
    }
    if (rows == 3) weigh<E, 3, 16>(p, v, keys, stride, acc);
    if (rows == 2) weigh<E, 2, DT>(p, v, keys, stride, acc);
    if (rows == 1) weigh<E, 1, DT>(p, v, keys, stride, acc);
}

void page_scores(const AttnBlock& b, const uint8_t* head, Ahead ahead, float* s) {
    const int dim = b.k_shape.dim;
    if (b.rows <= kFewRows && b.k_shape.type == KvType::f16)
        return scores_rows(b.q, reinterpret_cast<const Half*>(head), b.rows, dim, ahead, s);
    scores_rows(b.q, head_floats(b.k_shape, head, b.scratch + size_t(b.rows) * kBlock), b.rows, dim, ahead, s);
}

// Columns [first, first + dim) of a page of keys, [dim][32], as values, [32][stride].
const float* turned(const AttnBlock& b, const uint8_t* head) {
    float* floats = b.scratch + size_t(b.rows) * kBlock;
    float* out = floats + size_t(kPage) * std::max(b.k_shape.dim, b.v_shape.stride());
    const float* in = head_floats(b.k_shape, head, floats) + size_t(b.v_first) * kPage;
    const int stride = b.v_shape.stride();
    for (int slot = 0; slot < kPage; ++slot)
        for (int d = 0; d < stride; ++d)
            out[slot * stride + d] = d < b.v_shape.dim ? in[size_t(d) * kPage + slot] : 0.0f;
    return out;
}

void page_weigh(const AttnBlock& b, const uint8_t* head, const float* p, int keys) {
    const int stride = b.v_shape.stride();
    const auto run = [&](const auto* v) {
        if (stride % 32 == 0)
            weigh_rows<std::remove_cvref_t<decltype(*v)>, 32>(p, v, b.rows, keys, stride, b.acc);
        else
            weigh_rows<std::remove_cvref_t<decltype(*v)>, 16>(p, v, b.rows, keys, stride, b.acc);
    };
    if (b.v_first >= 0) return run(turned(b, head));
    if (b.rows <= kFewRows && b.v_shape.type == KvType::f16) return run(reinterpret_cast<const Half*>(head));
    run(head_floats(b.v_shape, head, b.scratch + size_t(b.rows) * kBlock));
}

bool sees(const AttnBlock& b, int row, int key) {
    return b.hidden ? !b.hidden[row][key] : key >= b.from[row] && key < b.to[row];
}

// acc of one row over the keys it sees, for values that may be infinite or NaN; `page_weigh` gives the same for finite
// values, whose weight of 0 removes them.
void weigh_seen(const AttnBlock& b, int row, const float* p) {
    const int stride = b.v_shape.stride();
    float *acc = b.acc + size_t(row) * stride, *floats = b.scratch + size_t(b.rows) * kBlock;
    std::fill_n(acc, stride, 0.0f);
    for (int page = b.behind; page * kPage < b.keys; ++page) {
        const float* v = b.v_first >= 0 ? turned(b, b.v[page]) : head_floats(b.v_shape, b.v[page], floats);
        const int keys = std::min(kPage, b.keys - page * kPage);
        for (int d = 0; d < stride; ++d) {
            float part = 0;
            for (int j = 0; j < keys; ++j)
                if (sees(b, row, page * kPage + j)) part = __builtin_fmaf(p[page * kPage + j], v[j * stride + d], part);
            acc[d] += part;
        }
    }
}

bool has_nan(const float* x, int n) {  // n: a multiple of 16
    I found{};
    for (int i = 0; i < n; i += W) {
        const V v = load(x + i);
        found |= v != v;
    }
    return any(found);
}

// Scores in place: capped, scaled, biased, -inf for masked keys; then weights. Returns m and l.
void weights(const AttnBlock& b, int r, int padded, float* row) {
    I lanes;
    for (int i = 0; i < W; ++i) lanes[i] = i;
    if (b.cap != 0) softcap(row, b.cap, row, b.keys);
    const int from = b.hidden ? 0 : b.from[r], to = b.hidden ? b.keys : std::min(b.to[r], b.keys);
    if (b.hidden)
        for (int j = 0; j < b.keys; ++j)
            if (b.hidden[r][j]) row[j] = kMinusInfinity;
    constexpr int kTops = 16 / W;  // several chains, because a maximum waits for the one before
    V top[kTops];
    for (V& t : top) t = set1(kMinusInfinity);
    const V scale = set1(b.scale);
    const float* bias = b.bias ? b.bias[r] : nullptr;
    for (int j = 0; j < padded; j += 16) {
        const bool seen = j >= from && j + 16 <= to;
        for (int c = 0; c < kTops; ++c) {
            const int i = j + c * W;
            V x = load(row + i) * scale;
            if (bias) x = x + load(bias + i);
            if (!seen) {
                const I at = lanes + i;
                x = select((at >= from) & (at < to), x, set1(kMinusInfinity));
            }
            store(row + i, x);
            top[c] = vmax(x, top[c]);  // in this operand order a NaN is ignored
        }
    }
    for (int c = 1; c < kTops; ++c) top[0] = vmax(top[c], top[0]);
    float m = most(top[0]);
    if (m == kMinusInfinity && has_nan(row, padded)) m = -std::numeric_limits<float>::max();
    b.m[r] = m;
    if (m == kMinusInfinity) {
        std::fill_n(row, padded, 0.0f);
        b.l[r] = 0;
    } else {
        b.l[r] = exp_sum(row, m, row, padded);
    }
}

void attend(const AttnBlock& b) {
    float* s = b.scratch;
    const int pages = (b.keys + kPage - 1) / kPage, stride = b.v_shape.stride();
    for (int page = b.behind; page < pages; ++page) {
        const uint8_t* next =
            page + 1 < pages ? b.k[page + 1] : b.k[b.behind] + b.k_shape.head_bytes();  // of the next head
        page_scores(b, b.k[page], {next, b.v[page]}, s + page * kPage);
    }
    int first = b.keys;  // the first key that any row sees
    for (int r = 0; r < b.rows; ++r) {
        float* row = s + size_t(r) * kBlock;
        if (b.kq) std::copy_n(row, b.keys, b.kq[r]);
        weights(b, r, pages * kPage, row);
        first = std::min(first, b.hidden ? 0 : b.from[r]);
    }
    std::fill_n(b.acc, size_t(b.rows) * stride, 0.0f);
    for (int page = std::max(b.behind, first / kPage); page < pages; ++page)
        page_weigh(b, b.v[page], s + page * kPage, std::min(kPage, b.keys - page * kPage));
    for (int r = 0; r < b.rows; ++r)
        if (has_nan(b.acc + size_t(r) * stride, stride)) weigh_seen(b, r, s + size_t(r) * kBlock);
}

void attn_merge(float* m, float* l, float* acc, float m2, float l2, const float* acc2, size_t n) {
    if (m2 == kMinusInfinity) return;
    if (*m == kMinusInfinity) {
        *m = m2, *l = l2;
        std::copy_n(acc2, n, acc);
        return;
    }
    const float top = *m < m2 ? m2 : *m;
    const float a = exp(set1(*m - top))[0], b = exp(set1(m2 - top))[0];
    *m = top;
    *l = *l * a + l2 * b;
    for (size_t i = 0; i < n; ++i) acc[i] = acc[i] * a + acc2[i] * b;
}

#include "recurrent.h"

}  // namespace

extern const RowOps kRowOps;
const RowOps kRowOps = {rms_norm, layer_norm, add,  scale,      glu,        softcap,   softmax, exps,
                        chain,    axpy,       axpys, rope, rope_table, page_write, page_read, attend,  attn_merge,
                        dot,      l2_norm,    softplus, xielu,   sparse_gate, lerp, causal_conv, delta_rule, ssm_scan, wkv6, wkv7};

}  // namespace assay::ASSAY_NS
