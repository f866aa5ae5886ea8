// LoRA adapters: y = base, then for each adapter whose scale s of the row is not 0, in order,
//     h[k] = (s * factor) * dot(A[k], x);  y = fma(h[k], B[.][k], y), k ascending
//
// All products of one input take two steps: one computes h, one computes y. Rows are grouped by adapter, so that a unit
// reads its part of A or of B from memory once and then uses it for many rows. A row without adapters copies its base.
#include <algorithm>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "program.h"

namespace assay {
namespace {

// Rows of A, and rows of x, of a unit of the first step; columns and rows of y of a unit of the second.
constexpr int64_t kRanks = 4, kRows = 8, kColumns = 256, kRowsOut = 64;

struct Pair {
    int product;
    Adapter adapter;
    const std::vector<int64_t>* rows = nullptr;  // those that use the adapter, ascending
    float* h = nullptr;                          // [rows][rank]
};

// What both steps of a group share. `begin` is called once for a run.
struct Adapters {
    int x;
    std::vector<AdaptedProduct> products;
    std::vector<Pair> pairs;                         // in order of product, then adapter
    std::map<int, std::vector<int64_t>> rows_of;     // by the value with the scales
    std::vector<float> room;

    void begin(Run& run) {
        const int64_t n = run.batch.rows(run.program.domain(x));
        for (auto& [scale, rows] : rows_of) {
            rows.clear();
            const float* s = run.rows(scale);
            for (int64_t i = 0; i < n; ++i)
                if (s[i] != 0) rows.push_back(i);
        }
        size_t floats = 0;
        for (const Pair& pair : pairs) floats += pair.rows->size() * pair.adapter.rank;
        if (room.size() < floats) room.resize(floats);
        float* at = room.data();
        for (Pair& pair : pairs) pair.h = std::exchange(at, at + pair.rows->size() * pair.adapter.rank);
    }
};

class AdapterInputs : public Instruction {
public:
    explicit AdapterInputs(std::shared_ptr<Adapters> group) : group_(std::move(group)) {
        reads = {group_->x};
        for (const auto& [scale, rows] : group_->rows_of) reads.push_back(scale);
    }
    Step plan(Run& run) override {
        group_->begin(run);
        units_.clear();
        for (const Pair& pair : group_->pairs)
            for (int64_t row = 0; row < static_cast<int64_t>(pair.rows->size()); row += kRows)
                for (int64_t k = 0; k < pair.adapter.rank; k += kRanks) units_.push_back({&pair, row, k});
        return {static_cast<uint32_t>(units_.size()), false};
    }
    void work(Run& run, uint32_t first, uint32_t last, unsigned) override {
        const RowOps& ops = run.program.ops();
        const int64_t n = run.program.width(group_->x);
        for (uint32_t u = first; u < last; ++u) {
            const auto& [pair, row, rank] = units_[u];
            const Adapter& a = pair->adapter;
            const int64_t row_end = std::min<int64_t>(row + kRows, pair->rows->size());
            const int64_t rank_end = std::min(rank + kRanks, a.rank);
            for (int64_t i = row; i < row_end; ++i) {
                const int64_t at = (*pair->rows)[i];
                const float s = run.rows(a.scale)[at] * a.factor;
                const float* x = run.row(group_->x, at);
                for (int64_t k = rank; k < rank_end; ++k)
                    pair->h[i * a.rank + k] = s * ops.dot(a.pair->data() + k * n, x, n);
            }
        }
    }

private:
    struct Unit {
        const Pair* pair;
        int64_t row, rank;  // the first of each
    };
    std::shared_ptr<Adapters> group_;
    std::vector<Unit> units_;
};

class AdapterOutputs : public Instruction {
public:
    AdapterOutputs(const Program& program, std::shared_ptr<Adapters> group) : group_(std::move(group)) {
        for (const auto& [scale, rows] : group_->rows_of) reads.push_back(scale);
        for (int i = 0; i < static_cast<int>(group_->products.size()); ++i) {
            const AdaptedProduct& p = group_->products[i];
            reads.push_back(p.base);
            writes.push_back(p.out);
            for (int64_t column = 0; column < program.width(p.out); column += kColumns) blocks_.push_back({i, column});
        }
    }
    Step plan(Run& run) override {
        rows_ = run.batch.rows(run.program.domain(group_->x));
        return {static_cast<uint32_t>((rows_ + kRowsOut - 1) / kRowsOut * blocks_.size()), false};
    }
    void work(Run& run, uint32_t first, uint32_t last, unsigned) override {
        const int64_t from = run.program.width(group_->x);
        for (uint32_t u = first; u < last; ++u) {
            const auto& [product, column] = blocks_[u % blocks_.size()];
            const AdaptedProduct& p = group_->products[product];
            const int64_t n = run.program.width(p.out), columns = std::min(kColumns, n - column);
            const int64_t begin = u / blocks_.size() * kRowsOut, end = std::min(rows_, begin + kRowsOut);
            for (int64_t row = begin; row < end; ++row)
                std::copy_n(run.row(p.base, row) + column, columns, run.row(p.out, row) + column);
            for (const Pair& pair : group_->pairs) {
                if (pair.product != product) continue;
                const Adapter& a = pair.adapter;
                const auto& rows = *pair.rows;
                const float* b = a.pair->data() + a.rank * from + column;
                for (auto at = std::lower_bound(rows.begin(), rows.end(), begin); at != rows.end() && *at < end; ++at)
                    run.program.ops().axpys(pair.h + (at - rows.begin()) * a.rank, b, n, static_cast<int>(a.rank),
                                            run.row(p.out, *at) + column, columns);
            }
        }
    }

private:
    std::shared_ptr<Adapters> group_;
    std::vector<std::pair<int, int64_t>> blocks_;  // product and first column
    int64_t rows_ = 0;
};

}  // namespace

void Program::adapters(int x, std::vector<AdaptedProduct> products) {
    auto group = std::make_shared<Adapters>();
    bool ok = !is_acts(x) && !products.empty();
    const auto plain = [&](int v, int64_t n) { return !is_acts(v) && width(v) == n && domain(v) == domain(x); };
    for (int i = 0; i < static_cast<int>(products.size()); ++i) {
        const int64_t n = width(products[i].out);
        ok &= plain(products[i].out, n) && plain(products[i].base, n);
        for (const Adapter& a : products[i].adapters) {
            ok &= plain(a.scale, 1) && a.pair && a.rank > 0 && a.rank <= static_cast<int64_t>(a.pair->size()) &&
                  static_cast<int64_t>(a.pair->size()) == a.rank * (width(x) + n);
            group->pairs.push_back({i, a, &group->rows_of[a.scale]});
        }
    }
    fits(ok, "adapters");
    group->x = x;
    group->products = std::move(products);
    add(std::make_unique<AdapterInputs>(group));
    add(std::make_unique<AdapterOutputs>(*this, std::move(group)));
}

}  // namespace assay
