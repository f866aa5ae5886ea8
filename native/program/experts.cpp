// Row steps of expert layers: choice of groups, bias or gain of each chosen expert, and the sum over experts.
#include <cmath>
#include <numeric>

#include "program.h"

namespace assay {

// x where its group is one of the `used` with the largest sum of their two best, ties to the lower group; else -inf
void Program::group_mask(int x, int groups, int used, int out) {
    const int64_t n = width(x), each = groups > 0 ? n / groups : 0;
    fits(groups > 0 && each * groups == n && each >= 2 && used > 0 && used <= groups && width(out) == n &&
             domain(x) == domain(out),
         "group_mask");
    row({domain(x), n, {x}, {out}, [=](Run& run, int64_t first, int64_t last) {
             std::vector<float> score(groups);
             std::vector<int> order(groups);
             for (int64_t i = first; i < last; ++i) {
                 const float* p = run.row(x, i);
                 float* y = run.row(out, i);
                 for (int g = 0; g < groups; ++g) {
                     float best = -INFINITY, next = -INFINITY;
                     for (int64_t j = g * each; j < (g + 1) * each; ++j) {
                         if (p[j] > best) {
                             next = best, best = p[j];
                         } else if (p[j] > next) {
                             next = p[j];
                         }
                     }
                     score[g] = next + best;
                 }
                 std::iota(order.begin(), order.end(), 0);
                 std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return score[a] > score[b]; });
                 std::copy_n(p, n, y);
                 for (int g = used; g < groups; ++g) std::fill_n(y + order[g] * each, each, -INFINITY);
             }
         }});
}

// expert_bias: y[j] = x[j] + rows[idx[j]];  expert_gain: y[j] = x[j] * rows[idx[j]], a number an expert
void Program::expert_rows(const std::string& op, int x, int idx, Floats rows, int out) {
    const bool adds = op == "expert_bias";
    const int64_t k = width(idx), each = width(x) / k, step = adds ? each : 1;
    const int64_t count = step > 0 ? static_cast<int64_t>(rows->size()) / step : 0;
    fits((adds || op == "expert_gain") && each * k == width(x) && count > 0 &&
             count * step == static_cast<int64_t>(rows->size()) && width(out) == width(x) && domain(x) == domain(out) &&
             domain(idx) == domain(out),
         op.c_str());
    row({domain(out), width(x), {x, idx}, {out}, [=](Run& run, int64_t first, int64_t last) {
             for (int64_t i = first; i < last; ++i)
                 for (int64_t j = 0; j < k; ++j) {
                     const int64_t expert = std::clamp<int64_t>(static_cast<int64_t>(run.row(idx, i)[j]), 0, count - 1);
                     const float *p = run.row(x, i) + j * each, *own = rows->data() + expert * step;
                     float* y = run.row(out, i) + j * each;
                     if (adds)
                         run.program.ops().add(p, own, y, each);
                     else
                         run.program.ops().scale(p, *own, y, each);
                 }
         }});
}

// y[o] = sum_j x[j, o], j ascending
void Program::expert_sum(int x, int out) {
    const int64_t n = width(out), k = width(x) / n;
    fits(k * n == width(x) && domain(x) == domain(out), "expert_sum");
    row({domain(x), width(x), {x}, {out}, [=](Run& run, int64_t first, int64_t last) {
             for (int64_t i = first; i < last; ++i) {
                 float *p = run.row(x, i), *y = run.row(out, i);
                 std::copy_n(p, n, y);
                 for (int64_t j = 1; j < k; ++j) run.program.ops().add(y, p + j * n, y, n);
             }
         }});
}

}  // namespace assay
