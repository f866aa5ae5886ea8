// Row steps that slice or concatenate heads, scale a row by its position, or pool a sequence's rows into one.
#include <bit>
#include <cmath>

#include "program.h"

namespace assay {

// y = x[start : start + width] of each of `parts` equal parts of a row
void Program::slice(int x, int64_t start, int parts, int out) {
    const int64_t from = parts > 0 ? width(x) / parts : 0, n = parts > 0 ? width(out) / parts : 0;
    fits(parts > 0 && from * parts == width(x) && n * parts == width(out) && start >= 0 && start + n <= from &&
             domain(x) == domain(out),
         "slice");
    row({domain(x), width(out), {x}, {out}, [=](Run& run, int64_t first, int64_t last) {
             for (int64_t i = first; i < last; ++i)
                 for (int64_t part = 0; part < parts; ++part)
                     std::copy_n(run.row(x, i) + part * from + start, n, run.row(out, i) + part * n);
         }});
}

// y[h] = a[h] then b[h]; an operand of one part is broadcast
void Program::concat(int a, int b, int parts_a, int parts_b, int parts, int out) {
    const auto shaped = [&](int v, int n) { return n > 0 && (n == 1 || n == parts) && width(v) % n == 0; };
    fits(parts > 0 && shaped(a, parts_a) && shaped(b, parts_b) && domain(a) == domain(out) && domain(b) == domain(out),
         "concat");
    const int64_t n = width(a) / parts_a, m = width(b) / parts_b;
    fits(width(out) == parts * (n + m), "concat");
    row({domain(out), width(out), {a, b}, {out}, [=](Run& run, int64_t first, int64_t last) {
             for (int64_t i = first; i < last; ++i) {
                 float* y = run.row(out, i);
                 for (int64_t h = 0; h < parts; ++h, y += n + m) {
                     std::copy_n(run.row(a, i) + (parts_a == 1 ? 0 : h * n), n, y);
                     std::copy_n(run.row(b, i) + (parts_b == 1 ? 0 : h * m), m, y + n);
                 }
             }
         }});
}

namespace {

// The natural logarithm of a positive integer, to about 1 ulp: x = 2^e m with m in [0.71, 1.42), and ln m = 2 artanh((m
// - 1) / (m + 1)) as a series. Plain double operations, so that the bits are the same everywhere.
double ln(int64_t x) {
    int e = 64 - std::countl_zero(static_cast<uint64_t>(x)) - 1;
    double m = std::ldexp(static_cast<double>(x), -e);
    if (m > 1.4142135623730951) m *= 0.5, ++e;
    const double s = (m - 1) / (m + 1), z = s * s;
    double p = 0;
    for (int k = 23; k >= 1; k -= 2) p = p * z + 1.0 / k;
    return e * 0.6931471805599453 + 2 * s * p;
}

}  // namespace

// y = x * (1 + beta * ln(floor((pos + offset) / unit) + 1)); the factor in float64, then rounded
void Program::pos_scale(int x, double beta, int64_t unit, int64_t offset, int out) {
    const int64_t n = width(x);
    const Domain d = domain(x);
    fits(
        width(out) == n && d == domain(out) && (d == Domain::tokens || d == Domain::outputs) && unit > 0 && offset >= 0,
        "pos_scale");
    row({d, n, {x}, {out}, [=](Run& run, int64_t first, int64_t last) {
             for (int64_t i = first; i < last; ++i) {
                 const int64_t token = d == Domain::tokens ? i : run.batch.output_rows[i];
                 const int64_t at = std::max<int64_t>(0, run.batch.positions[token] + offset);
                 const float factor = static_cast<float>(1.0 + beta * ln(at / unit + 1));
                 run.program.ops().scale(run.row(x, i), factor, run.row(out, i), n);
             }
         }});
}

// One row of each sequence: the mean of its tokens (summed in order, then divided), the first or the last
void Program::pool_rows(int x, const std::string& kind, int out) {
    const int64_t n = width(x);
    fits(width(out) == n && domain(x) == Domain::tokens && domain(out) == Domain::sequences &&
             (kind == "mean" || kind == "first" || kind == "last"),
         "pool");
    row({Domain::sequences, n, {x}, {out}, [=](Run& run, int64_t first, int64_t last) {
             for (int64_t i = first; i < last; ++i) {
                 const Chunk& c = run.batch.chunks[i];
                 float* y = run.row(out, i);
                 std::copy_n(run.row(x, kind == "last" ? c.first + c.n_tokens - 1 : c.first), n, y);
                 if (kind != "mean") continue;
                 for (int t = 1; t < c.n_tokens; ++t) run.program.ops().add(y, run.row(x, c.first + t), y, n);
                 for (int64_t j = 0; j < n; ++j) y[j] /= static_cast<float>(c.n_tokens);
             }
         }});
}

}  // namespace assay
