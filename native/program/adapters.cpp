// LoRA adapters: the step that computes h = A x, scaled, and the terms that products add to their results.
//
// Rows are grouped by adapter. A unit reads its part of A or of B from memory once, and then uses it for many rows.
// The products add the terms to a block of results while it is in the cache.
#include "adapters.h"

#include <algorithm>
#include <utility>

namespace assay {
namespace {

constexpr int64_t kRanks = 4, kRows = 8;  // rows of A, and rows of x, of a unit

class AdapterInputs : public Instruction {
public:
    explicit AdapterInputs(std::shared_ptr<AdapterTerms> terms) : terms_(std::move(terms)) {
        reads = {terms_->x};
        for (const auto& [scale, rows] : terms_->rows_of) reads.push_back(scale);
    }
    Step plan(Run& run) override {
        terms_->begin(run);
        units_.clear();
        for (const auto& pairs : terms_->products)
            for (const AdapterTerms::Pair& pair : pairs)
                for (int64_t row = 0; row < static_cast<int64_t>(pair.rows->size()); row += kRows)
                    for (int64_t k = 0; k < pair.adapter.rank; k += kRanks) units_.push_back({&pair, row, k});
        return {static_cast<uint32_t>(units_.size()), false};
    }
    void work(Run& run, uint32_t first, uint32_t last, unsigned) override {
        const RowOps& ops = run.program.ops();
        const int64_t n = run.program.width(terms_->x);
        for (uint32_t u = first; u < last; ++u) {
            const auto& [pair, row, rank] = units_[u];
            const Adapter& a = pair->adapter;
            const int64_t row_end = std::min<int64_t>(row + kRows, pair->rows->size());
            const int64_t rank_end = std::min(rank + kRanks, a.rank);
            for (int64_t i = row; i < row_end; ++i) {
                const int64_t at = (*pair->rows)[i];
                const float s = run.rows(a.scale)[at] * a.factor;
                const float* x = run.row(terms_->x, at);
                for (int64_t k = rank; k < rank_end; ++k)
                    pair->h[i * a.rank + k] = s * ops.dot(a.pair->data() + k * n, x, n);
            }
        }
    }

private:
    struct Unit {
        const AdapterTerms::Pair* pair;
        int64_t row, rank;  // the first of each
    };
    std::shared_ptr<AdapterTerms> terms_;
    std::vector<Unit> units_;
};

}  // namespace

AdapterTerms::AdapterTerms(int x, const Adapters& adapters) : x(x) {
    for (const auto& of : adapters) {
        products.emplace_back();
        for (const Adapter& a : of) products.back().push_back({a, &rows_of[a.scale]});
    }
}

void AdapterTerms::begin(Run& run) {
    const int64_t n = run.batch.rows(run.program.domain(x));
    for (auto& [scale, rows] : rows_of) {
        rows.clear();
        const float* s = run.rows(scale);
        for (int64_t i = 0; i < n; ++i)
            if (s[i] != 0) rows.push_back(i);
    }
    size_t floats = 0;
    for (const auto& pairs : products)
        for (const Pair& pair : pairs) floats += pair.rows->size() * pair.adapter.rank;
    if (room_.size() < floats) room_.resize(floats);
    float* at = room_.data();
    for (auto& pairs : products)
        for (Pair& pair : pairs) pair.h = std::exchange(at, at + pair.rows->size() * pair.adapter.rank);
}

void AdapterTerms::add(const Run& run, size_t product, int64_t first, int64_t n, float* y, int64_t step, int64_t c0,
                       int64_t c1) const {
    const int64_t from = run.program.width(x);
    for (const Pair& pair : products[product]) {
        const Adapter& a = pair.adapter;
        const auto& rows = *pair.rows;
        const int64_t columns = static_cast<int64_t>(a.pair->size()) / a.rank - from;
        const float* b = a.pair->data() + a.rank * from + c0;
        for (auto at = std::lower_bound(rows.begin(), rows.end(), first); at != rows.end() && *at < first + n; ++at)
            run.program.ops().axpys(pair.h + (at - rows.begin()) * a.rank, b, columns, static_cast<int>(a.rank),
                                    y + (*at - first) * step + c0, c1 - c0);
    }
}

// `rows`: the rows of each product's matrix
std::shared_ptr<AdapterTerms> Program::adapter_terms(Adapters adapters, int x, int acts,
                                                     const std::vector<int64_t>& rows) {
    bool any = false, ok = adapters.empty() || adapters.size() == rows.size();
    for (size_t i = 0; ok && i < adapters.size(); ++i)
        for (const Adapter& a : adapters[i]) {
            any = true;
            ok = ok && x >= 0 && !is_acts(x) && width(x) == width(acts) && domain(x) == domain(acts) &&
                 !is_acts(a.scale) && width(a.scale) == 1 && domain(a.scale) == domain(x) && a.pair && a.rank > 0 &&
                 a.rank <= static_cast<int64_t>(a.pair->size()) &&
                 static_cast<int64_t>(a.pair->size()) == a.rank * (width(x) + rows[i]);
        }
    fits(ok, "adapters");
    if (!any) return nullptr;
    auto terms = std::make_shared<AdapterTerms>(x, adapters);
    add(std::make_unique<AdapterInputs>(terms));
    return terms;
}

}  // namespace assay
