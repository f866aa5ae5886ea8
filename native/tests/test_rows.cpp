// Self-check of the row kernels and the thread team: a plain program, no Python, no framework; exit code 1 on a fault.
//
// Checked for each instruction set this machine has:
//   pages      what is written to a page of each cache type is read back within the type's rounding
//   attention  a block against float64; the same bits for a row alone and among others, and with keys after its last
//   halves     the edges of half precision
//   gates      silu and gelu against float64
//   team       every unit of every step is done once, in order of steps, whatever the number of threads; errors arrive
#include <atomic>
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

void expect(bool ok, const char* isa, const char* what, double found = 0) {
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
    // Rows [first, first + count): row r sees keys [0, 7 r + 9). Gives acc / l, [count][dim].
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
        std::vector<float> m(count), l(count), acc(size_t(count) * v.stride()),
            room(attn_scratch(count, k.dim, v.stride()));
        ops.attend({k, v, 0.2f, 0.0f, count, keys, q.data(), kp.data(), vp.data(), from.data(), to.data(), nullptr,
                    m.data(), l.data(), acc.data(), nullptr, room.data()});
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
    expect(worst <= rounding[int(type)], ops.isa, "a page gives back something else", worst);

    const std::vector<float> all = bench.attend(0, rows, 7 * rows + 2);
    double error = 0, size = 0;
    for (int r = 0; r < rows; ++r) {
        const std::vector<double> e = bench.expected(r);
        for (int d = 0; d < dim; ++d) {
            error += std::pow(all[size_t(r) * dim + d] - e[d], 2);
            size += e[d] * e[d];
        }
    }
    expect(error / size < 1e-11, ops.isa, "attention is far from float64", error / size);
    for (int r = 0; r < rows; ++r)
        for (int count : {1, 2, 3, 5}) {
            if (r + count > rows) continue;
            const std::vector<float> some = bench.attend(r, count, 7 * (r + count - 1) + 9);
            expect(!std::memcmp(some.data(), all.data() + size_t(r) * dim, some.size() * 4), ops.isa,
                   "attention has other bits for fewer rows", r);
        }
}

// Half precision at its edges: too large is the largest, NaN stays NaN, ties go to even.
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
            expect(std::isnan(wanted[i]) ? std::isnan(found[i]) : found[i] == wanted[i], ops.isa, "a half is another",
                   found[i]);
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
        expect(error[int(act)] / double(y.size()) < 1e-11, ops.isa, "a gate is far from float64", error[int(act)]);
    }
}

// Steps of 1 to 40 units; each adds up its units, the next step begins only when all are in.
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
        expect(pool.run(count) && !count.wrong, "team", "a step began before the last was done", threads);
    }
    bool caught = false;
    try {
        Count count(150);
        pool.run(count);
    } catch (const std::runtime_error&) {
        caught = true;
    }
    expect(caught, "team", "an error in a unit got lost", threads);
    Count count;
    expect(pool.run(count) && !count.wrong, "team", "it does not work on after an error", threads);
}

}  // namespace

int main() {
    for (const char* isa : {"portable", "neon", "avx2", "avx512vnni"}) {
        if (!kernels::isa_available(isa)) continue;
        const RowOps& ops = row_ops(isa);
        expect(!std::strcmp(ops.isa, isa), isa, "no row kernels for this instruction set");
        for (KvType type : {KvType::f32, KvType::f16, KvType::bf16, KvType::q8_0})
            for (int dim : {8, 32, 48, 64, 128})
                if (type != KvType::q8_0 || dim % 32 == 0) check_attention(ops, type, dim);
        check_halves(ops);
        check_gates(ops);
        std::printf("%s checked\n", isa);
    }
    for (unsigned threads : {1, 2, 3, 4, 7}) check_team(threads);
    std::printf("%d faults\n", faults);
    return faults != 0;
}
