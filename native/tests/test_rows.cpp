// Self-check of the row kernels and the thread pool: a plain program without Python or a test framework; exit code 1 on
// a failure.
//
// Checks for each instruction set of this machine:
//   pages      values written to a page of each cache type are read back within the type's rounding.
//   attention  a block against float64; the same bits for a row alone and among others, and with keys after its last.
//   halves     the edges of half precision.
//   gates      silu and gelu against float64.
//   functions  exp, tanh, erf, cos and sin against the C library's doubles, in ulp; their edges.
//   lerp       rows of any length against fmaf, number by number.
//   nan        a NaN reaches the rows that depend on it and no others.
//   bits       every operation on seeded numbers gives the recorded hash.
//   team       every unit of every step is done once, in order of steps, for any number of threads; errors are rethrown.
#include <atomic>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>
#include <stdexcept>
#include <vector>

#include "kernels/kernels.h"
#include "kernels/rowops.h"
#include "program/pool.h"

using namespace assay;

namespace {

int faults = 0;

const char* isa = "";

void expect(bool ok, const char* what, double found = 0) {
    if (ok) return;
    std::printf("%s: %s (found %g)\n", isa, what, found);
    ++faults;
}

std::vector<float> normal(size_t n, unsigned seed, float size = 1) {
    std::mt19937 random(seed);
    std::normal_distribution<float> draw(0, size);
    std::vector<float> x(n);
    for (float& v : x) v = draw(random);
    return x;
}

// One head's keys and values of a block, and a few queries on them.
struct Bench {
    const RowOps& ops;
    PageShape k, v;
    std::vector<uint8_t> k_pages, v_pages;
    std::vector<float> queries;
    int n_rows;

    Bench(const RowOps& ops, KvType type, int dim, int rows)
        : ops(ops),
          k{type, true, 1, dim},
          v{type, false, 1, dim},
          k_pages(8 * k.page_bytes()),
          v_pages(8 * v.page_bytes()),
          queries(normal(size_t(rows) * dim, 3)),
          n_rows(rows) {
        for (int slot = 0; slot < kBlock; ++slot) {
            ops.page_write(k, k_pages.data() + slot / kPage * k.page_bytes(), slot % kPage,
                           normal(dim, 10 + slot).data());
            ops.page_write(v, v_pages.data() + slot / kPage * v.page_bytes(), slot % kPage,
                           normal(dim, 900 + slot).data());
        }
    }
    std::vector<float> read(const PageShape& s, const std::vector<uint8_t>& pages, int slot) const {
        std::vector<float> x(s.dim);
        ops.page_read(s, pages.data() + slot / kPage * s.page_bytes(), slot % kPage, x.data());
        return x;
    }
    // Rows [first, first + count): row r sees keys [0, 7 r + 9). Returns acc / l, [count][dim].
    std::vector<float> attend(int first, int count, int keys) const {
        std::vector<const float*> q;
        std::vector<const uint8_t*> kp, vp;
        std::vector<int> from(count, 0), to;
        for (int r = first; r < first + count; ++r) {
            q.push_back(queries.data() + size_t(r) * k.dim);
            to.push_back(7 * r + 9);
        }
        for (int page = 0; page < 8; ++page) {
            kp.push_back(k_pages.data() + page * k.page_bytes());
            vp.push_back(v_pages.data() + page * v.page_bytes());
        }
        std::vector<float> m(count), l(count), acc(size_t(count) * v.stride()), room(attn_scratch(count, k, v));
        ops.attend({k, v, -1, 0.2f, 0.0f, count, keys, 0, q.data(), kp.data(), vp.data(), from.data(), to.data(), nullptr,
                    nullptr, m.data(), l.data(), acc.data(), nullptr, room.data()});
        std::vector<float> out;
        for (int r = 0; r < count; ++r)
            for (int d = 0; d < v.dim; ++d) out.push_back(acc[size_t(r) * v.stride() + d] / l[r]);
        return out;
    }
    std::vector<double> expected(int row) const {
        std::vector<double> out(v.dim);
        double total = 0;
        for (int j = 0; j < 7 * row + 9; ++j) {
            const std::vector<float> key = read(k, k_pages, j), value = read(v, v_pages, j);
            double score = 0;
            for (int d = 0; d < k.dim; ++d) score += double(queries[size_t(row) * k.dim + d]) * key[d];
            const double weight = std::exp(score * double(0.2f));
            total += weight;
            for (int d = 0; d < v.dim; ++d) out[d] += weight * value[d];
        }
        for (double& x : out) x /= total;
        return out;
    }
};

void check_attention(const RowOps& ops, KvType type, int dim) {
    constexpr int rows = 31;
    const Bench bench(ops, type, dim, rows);
    const double rounding[] = {0, 1e-3, 8e-3, 3e-2};  // of a normal value, by cache type
    double worst = 0;
    for (int slot = 0; slot < kBlock; slot += 37) {
        const std::vector<float> found = bench.read(bench.k, bench.k_pages, slot), given = normal(dim, 10 + slot);
        for (int d = 0; d < dim; ++d) worst = std::max(worst, double(std::fabs(found[d] - given[d])));
    }
    expect(worst <= rounding[int(type)], "a page gives back something else", worst);

    const std::vector<float> all = bench.attend(0, rows, 7 * rows + 2);
    double error = 0, size = 0;
    for (int r = 0; r < rows; ++r) {
        const std::vector<double> e = bench.expected(r);
        for (int d = 0; d < dim; ++d) {
            error += std::pow(all[size_t(r) * dim + d] - e[d], 2);
            size += e[d] * e[d];
        }
    }
    expect(error / size < 1e-11, "attention is far from float64", error / size);
    for (int r = 0; r < rows; ++r)
        for (int count : {1, 2, 3, 5}) {
            if (r + count > rows) continue;
            const std::vector<float> some = bench.attend(r, count, 7 * (r + count - 1) + 9);
            expect(!std::memcmp(some.data(), all.data() + size_t(r) * dim, some.size() * 4),
                   "attention has other bits for fewer rows", r);
        }
}

// Half precision at its edges: values out of range become the largest finite half, NaN stays NaN, ties go to even.
void check_halves(const RowOps& ops) {
    const float inf = INFINITY;
    const std::vector<float> given = {NAN,      inf,   -inf,  1e30f,   -65520.0f, 65504.0f, 65519.0f,
                                      6e-8f,    2e-8f, -0.0f, 2049.0f, 2051.0f,   1.0f,     -3.5f,
                                      65503.0f, 1e-5f, NAN,   -1e30f,  0.1f,      4097.0f};
    const std::vector<float> wanted = {NAN,      65504.0f,   -65504.0f, 65504.0f,  -65504.0f,   65504.0f, 65504.0f,
                                       0x1p-24f, 0.0f,       -0.0f,     2048.0f,   2052.0f,     1.0f,     -3.5f,
                                       65504.0f, 0x1.5p-17f, NAN,       -65504.0f, 0x1.998p-4f, 4096.0f};
    for (bool keys : {true, false}) {
        const PageShape shape{KvType::f16, keys, 1, static_cast<int>(given.size())};
        std::vector<uint8_t> page(shape.page_bytes());
        std::vector<float> found(given.size());
        ops.page_write(shape, page.data(), 5, given.data());
        ops.page_read(shape, page.data(), 5, found.data());
        for (size_t i = 0; i < given.size(); ++i)
            expect(std::isnan(wanted[i]) ? std::isnan(found[i]) : found[i] == wanted[i], "a half is another", found[i]);
    }
}

void check_gates(const RowOps& ops) {
    const std::vector<float> gate = normal(1003, 5, 8), up = normal(1003, 6);
    std::vector<float> y(1003);
    double error[2] = {};
    for (Act act : {Act::silu, Act::gelu_tanh}) {
        ops.glu(act, gate.data(), up.data(), y.data(), y.size());
        for (size_t i = 0; i < y.size(); ++i) {
            const double g = gate[i], t = act == Act::silu ? g : 2 * std::sqrt(2 / M_PI) * (g + 0.044715 * g * g * g);
            error[int(act)] += std::pow(y[i] - g / (1 + std::exp(-t)) * up[i], 2);
        }
        expect(error[int(act)] / double(y.size()) < 1e-11, "a gate is far from float64", error[int(act)]);
    }
}

// The largest error in ulp of the exact result, over floats of both signs.
template <class Exact>
double worst_ulp(const std::vector<float>& x, const std::vector<float>& y, Exact exact) {
    double worst = 0;
    for (size_t i = 0; i < x.size(); ++i) {
        const double want = exact(double(x[i]));
        const float near = float(want);
        const double ulp = double(std::nextafter(std::fabs(near), INFINITY)) - std::fabs(double(near));
        worst = std::max(worst, std::fabs(double(y[i]) - want) / ulp);
    }
    return worst;
}

void check_functions(const RowOps& ops) {
    std::vector<float> x, y;
    for (uint32_t i = 0x2f000000; i < 0x42a00000; i += 1777)  // 1e-10 .. 80
        for (uint32_t sign : {0u, 1u << 31}) x.push_back(std::bit_cast<float>(i | sign));
    y.resize(x.size());
    ops.exps(x.data(), 0.0f, y.data(), x.size());
    double found = worst_ulp(x, y, [](double v) { return std::exp(v); });
    expect(found < 1.1, "exp, in ulp", found);
    ops.softcap(x.data(), 1.0f, y.data(), x.size());
    found = worst_ulp(x, y, [](double v) { return std::tanh(v); });
    expect(found < 2, "tanh, in ulp", found);
    const std::vector<float> up(x.size(), 1.0f);
    ops.glu(Act::gelu_erf, x.data(), up.data(), y.data(), x.size());
    found = 0;
    for (size_t i = 0; i < x.size(); ++i)
        found = std::max(found, std::fabs(y[i] - 0.5 * x[i] * (1 + std::erf(x[i] * std::sqrt(0.5)))) / std::fabs(x[i]));
    expect(found < 1.5e-7, "gelu by erf, over x", found);
    const std::vector<float> edges = {NAN, INFINITY, -INFINITY, -0.0f, 88.4f, -87.34f, 1e30f, -1e30f};
    const float most = float(std::exp(double(88.3f)));
    const std::vector<float> wanted = {NAN, most, 0.0f, 1.0f, most, 0.0f, most, 0.0f};
    ops.exps(edges.data(), 0.0f, y.data(), edges.size());
    for (size_t i = 0; i < edges.size(); ++i)
        expect(std::isnan(wanted[i]) ? std::isnan(y[i]) : std::fabs(y[i] / wanted[i] - 1) < 1e-6 || y[i] == wanted[i],
               "exp at an edge", y[i]);
    ops.softcap(edges.data(), 2.0f, y.data(), edges.size());
    expect(std::isnan(y[0]) && y[1] == 2 && y[2] == -2 && y[3] == 0 && y[6] == 2, "tanh at an edge");
}

void check_turns(const RowOps& ops) {
    std::vector<double> frequencies;
    for (int i = 0; i < 37; ++i) frequencies.push_back(std::pow(10000.0, -i / 37.0));
    std::vector<float> cos(37), sin(37);
    for (int32_t position : {0, 1, 2, 3, 5, 22, 355, 710, 4095, 131071, 5419351, 12345678, -7, 2147483647}) {
        ops.rope_table(frequencies.data(), 37, position, 1.0f, cos.data(), sin.data());
        for (int i = 0; i < 37; ++i) {
            const double angle = position * frequencies[size_t(i)];
            expect(std::fabs(cos[size_t(i)] - std::cos(angle)) <= 0x1.000002p-24 * std::fabs(std::cos(angle)) &&
                       std::fabs(sin[size_t(i)] - std::sin(angle)) <= 0x1.000002p-24 * std::fabs(std::sin(angle)),
                   "cos or sin is not the nearest float", angle);
        }
    }
}

// A NaN value reaches the rows that see its key and no others; a NaN score makes its row NaN, also alone in a block.
void check_nan(const RowOps& ops) {
    for (KvType type : {KvType::f32, KvType::f16, KvType::bf16, KvType::q8_0}) {
        Bench bench(ops, type, 32, 6);
        const std::vector<float> before = bench.attend(0, 6, 44);
        std::vector<float> x(32, 1.0f);
        x[3] = NAN;
        ops.page_write(bench.v, bench.v_pages.data(), 25, x.data());  // seen by rows 3, 4, 5
        const std::vector<float> after = bench.attend(0, 6, 44);
        for (int r = 0; r < 6; ++r)
            for (int d = 0; d < 32; ++d) {
                const float b = before[size_t(r * 32 + d)], a = after[size_t(r * 32 + d)];
                if (r < 3) expect(a == b, "a NaN value reaches a row that does not see it", r);
                if (r >= 3 && (d == 3 || type == KvType::q8_0)) expect(std::isnan(a), "a NaN value is lost", r);
            }
        for (float& q : bench.queries) q = NAN;
        for (float a : bench.attend(0, 6, 44)) expect(std::isnan(a), "NaN queries are lost", a);
    }
    float m = 1, l = 2, acc[16] = {3}, other[16] = {5};
    ops.attn_merge(&m, &l, acc, -INFINITY, 0, other, 16);
    expect(m == 1 && l == 2 && acc[0] == 3, "a block without keys is not left out");
}

// Recorded hash, the same on every machine (docs/reference/arithmetic.md, version 1).
constexpr uint64_t kBits = 0x8c0f1c1b3b43e89c;

uint64_t hash(const void* data, size_t bytes, uint64_t h = 0xcbf29ce484222325) {
    for (size_t i = 0; i < bytes; ++i) h = (h ^ static_cast<const uint8_t*>(data)[i]) * 0x100000001b3;
    return h;
}

// Hash of every row operation on seeded numbers.
uint64_t hash(const RowOps& ops) {
    uint64_t h = hash("", 0);
    std::vector<float> x(5003), z(5003), y(5003);
    uint32_t state = 1;
    const auto draw = [&] { return float(int32_t(state = state * 1664525 + 1013904223)) * 0x1p-29f; };  // -4 .. 4
    for (float& v : x) v = draw();
    for (float& v : z) v = draw();
    const auto add = [&](size_t n) { h = hash(y.data(), 4 * n, h); };
    for (size_t n : {1, 31, 64, 100, 5003}) {
        ops.rms_norm(x.data(), z.data(), y.data(), n, 1e-5f), add(n);
        ops.softmax(x.data(), y.data(), n), add(n);
        ops.softcap(x.data(), 3.0f, y.data(), n), add(n);
        for (Act act : {Act::silu, Act::gelu_tanh, Act::gelu_erf, Act::relu})
            ops.glu(act, x.data(), z.data(), y.data(), n), add(n);
        y[0] = ops.chain(x.data(), z.data(), n), add(1);
        ops.axpy(0.7f, x.data(), y.data(), n), add(n);
    }
    std::vector<double> frequencies;
    for (int i = 0; i < 200; ++i) frequencies.push_back(1.0 / (1 + i * i));
    for (int32_t position : {0, 7, 100000, 8000001}) {
        ops.rope_table(frequencies.data(), 200, position, 1.25f, y.data(), y.data() + 200), add(400);
        for (bool neox : {false, true})
            ops.rope(x.data(), y.data(), y.data() + 200, y.data() + 400, 3, 500, 400, neox), add(1900);
    }
    for (KvType type : {KvType::f32, KvType::f16, KvType::bf16, KvType::q8_0}) {
        const PageShape k{type, true, 1, 64}, v{type, false, 1, 64};
        std::vector<uint8_t> kp(8 * k.page_bytes()), vp(8 * v.page_bytes());
        for (int slot = 0; slot < kBlock; ++slot) {
            ops.page_write(k, kp.data() + slot / kPage * k.page_bytes(), slot % kPage, x.data() + slot * 11);
            ops.page_write(v, vp.data() + slot / kPage * v.page_bytes(), slot % kPage, z.data() + slot * 13);
        }
        h = hash(vp.data(), vp.size(), hash(kp.data(), kp.size(), h));
        for (int rows : {1, 3, 7}) {
            std::vector<const float*> q;
            std::vector<const uint8_t*> ks, vs;
            std::vector<int> from, to;
            for (int r = 0; r < rows; ++r)
                q.push_back(z.data() + r * 64), from.push_back(5 * r), to.push_back(201 + 9 * r);
            for (int page = 0; page < 8; ++page) {
                ks.push_back(kp.data() + page * k.page_bytes());
                vs.push_back(vp.data() + page * v.page_bytes());
            }
            std::vector<float> room(attn_scratch(rows, k, v)), state(size_t(rows) * 66);
            float* s = state.data();
            for (float cap : {0.0f, 20.0f}) {
                ops.attend({k, v, -1, 0.125f, cap, rows, kBlock, 0, q.data(), ks.data(), vs.data(), from.data(), to.data(),
                            nullptr, nullptr, s, s + rows, s + 2 * rows, nullptr, room.data()});
                for (int r = 1; r < rows; ++r)
                    ops.attn_merge(s, s + rows, s + 2 * rows, s[r], s[rows + r], s + 2 * rows + 64 * r, 64);
                h = hash(s, 4 * state.size(), h);
            }
        }
    }
    return h;
}

void check_lerp(const RowOps& ops) {
    for (size_t n : {1, 3, 7, 16, 31, 64, 101}) {
        const std::vector<float> x = normal(n, 1), z = normal(n, 2, 1e-3f), t = normal(n, 3);
        std::vector<float> y(n + 1, 7.0f);
        ops.lerp(x.data(), z.data(), t.data(), y.data(), n);
        for (size_t i = 0; i < n; ++i) expect(y[i] == std::fmaf(z[i] - x[i], t[i], x[i]), "lerp rounds otherwise", y[i]);
        expect(y[n] == 7.0f, "lerp writes behind its row", y[n]);
    }
}

// Steps of 1 to 40 units; each sums its units, and the next step begins only when all are done.
class Count : public Job {
public:
    explicit Count(int fail_at = -1) : fail_at_(fail_at) {}
    Step next(unsigned) override {
        if (step_ && done_ != units_) wrong = true;
        done_ = 0;
        if (++step_ > 300) return {};
        units_ = 1 + step_ * 7 % 40;
        return {static_cast<uint32_t>(units_), step_ % 2 == 0};
    }
    void work(uint32_t first, uint32_t last, unsigned) override {
        if (step_ == fail_at_) throw std::runtime_error("asked to");
        done_ += static_cast<int>(last - first);
    }
    bool wrong = false;

private:
    int fail_at_, step_ = 0, units_ = 0;
    std::atomic<int> done_{0};
};

void check_team(unsigned threads) {
    Pool pool(threads);
    for (int i = 0; i < 20; ++i) {
        Count count;
        expect(pool.run(count) && !count.wrong, "a step began before the last was done", threads);
    }
    bool caught = false;
    try {
        Count count(150);
        pool.run(count);
    } catch (const std::runtime_error&) {
        caught = true;
    }
    expect(caught, "an error in a unit got lost", threads);
    Count count;
    expect(pool.run(count) && !count.wrong, "it does not work on after an error", threads);
}

}  // namespace

int main() {
    for (const kernels::Isa* table : kernels::isas()) {
        isa = table->name;
        const RowOps& ops = *table->rows;
        for (KvType type : {KvType::f32, KvType::f16, KvType::bf16, KvType::q8_0})
            for (int dim : {8, 32, 48, 64, 128})
                if (type != KvType::q8_0 || dim % 32 == 0) check_attention(ops, type, dim);
        check_halves(ops);
        check_gates(ops);
        check_functions(ops);
        check_turns(ops);
        check_lerp(ops);
        check_nan(ops);
        std::printf("%s checked, bits %016llx\n", isa, static_cast<unsigned long long>(hash(ops)));
        expect(hash(ops) == kBits, "other bits than the recorded ones");
    }
    isa = "team";
    for (unsigned threads : {1, 2, 3, 4, 7}) check_team(threads);
    std::printf("%d faults\n", faults);
    return faults != 0;
}
