// Matrix products: a group of matrices that read one input, gate and up with their activation, experts.
//
// A unit is a block of rows of one matrix for one tile of tokens; no unit waits for another. The epilogue of a product
// (bias, residual, activation) runs while its block is still in the cache.
#include <algorithm>
#include <stdexcept>
#include <utility>

#include "adapters.h"
#include "program.h"

namespace assay {
namespace {

// Rows of a unit. With few tokens, rows of about this many bytes of weights. With many tokens, few enough rows that a
// single tile of tokens gives every thread a unit.
constexpr int64_t kUnitBytes = 16384, kFewTokens = 8, kManyRows = 64, kRowsOfTokens = 32;

int64_t unit_rows(const kernels::Matrix& w, int64_t tokens, int64_t panel) {
    const int64_t bytes = std::max<int64_t>(1, kernels::row_bytes(w.type, w.k));
    const int64_t rows = tokens <= kFewTokens ? kUnitBytes / bytes : tokens <= kTile ? kRowsOfTokens : kManyRows;
    return std::max<int64_t>(1, rows / panel) * panel;
}

// Units in order of tile, then matrix, then rows; `visit` gets runs of neighbouring units as one range of rows.
struct Grid {
    struct Part {
        int64_t rows, per_unit, units;
    };
    std::vector<Part> parts;
    int64_t tokens = 0, panel = 1, tiles = 0, units_a_tile = 0;

    void begin(Run& run, Domain domain) {
        const int64_t rows = run.batch.rows(domain);
        begin(run, rows, (rows + kTile - 1) / kTile);
    }
    void begin(Run& run, int64_t most_tokens, int64_t n_tiles) {
        parts.clear();
        tokens = most_tokens;
        panel = run.program.isa().panel_rows;
        tiles = n_tiles;
        units_a_tile = 0;
    }
    void matrix(const kernels::Matrix& w) {
        const int64_t per = unit_rows(w, tokens, panel), units = (w.n + per - 1) / per;
        parts.push_back({w.n, per, units});
        units_a_tile += units;
    }
    Step step() const { return {static_cast<uint32_t>(tiles * units_a_tile), tokens > kFewTokens}; }
    template <class F>
    void visit(uint32_t first, uint32_t last, F&& f) const {
        for (int64_t u = first; u < last;) {
            const int64_t tile = u / units_a_tile;
            int64_t within = u % units_a_tile, part = 0;
            while (within >= parts[part].units) within -= parts[part++].units;
            const Part& p = parts[part];
            const int64_t n = std::min<int64_t>(last - u, p.units - within);
            f(tile, part, within * p.per_unit, std::min(p.rows, (within + n) * p.per_unit));
            u += n;
        }
    }
    int64_t tile_tokens(int64_t tile) const { return std::min(kTile, tokens - tile * kTile); }
};

class Products : public Instruction {
public:
    Products(Program& program, int acts, std::vector<Product> products, kernels::Acts format,
             std::shared_ptr<AdapterTerms> adapters)
        : acts_(acts),
          format_(format),
          products_(std::move(products)),
          adapters_(std::move(adapters)),
          domain_(program.domain(acts)) {
        reads.push_back(acts);
        for (const Product& p : products_) {
            writes.push_back(p.out);
            if (p.residual >= 0) reads.push_back(p.residual);
        }
    }
    Step plan(Run& run) override {
        grid_.begin(run, domain_);
        for (const Product& p : products_) grid_.matrix(p.weight->matrix());
        return grid_.step();
    }
    void work(Run& run, uint32_t first, uint32_t last, unsigned) override {
        const RowOps& ops = run.program.ops();
        grid_.visit(first, last, [&](int64_t tile, int64_t part, int64_t r0, int64_t r1) {
            const Product& p = products_[part];
            const int64_t n = p.weight->rows(), m = grid_.tile_tokens(tile);
            float* out = run.row(p.out, tile * kTile);
            run.program.isa().gemm(p.weight->matrix(), format_, run.acts(acts_, tile), m, out, n, r0, r1);
            if (adapters_) adapters_->add(run, part, tile * kTile, m, out, n, r0, r1);
            for (int64_t t = 0; t < m; ++t) {
                float* y = out + t * n + r0;
                if (p.bias) ops.add(y, p.bias->data() + r0, y, r1 - r0);
                if (p.residual >= 0) ops.add(y, run.row(p.residual, tile * kTile + t) + r0, y, r1 - r0);
            }
        });
    }

private:
    int acts_;
    kernels::Acts format_;
    std::vector<Product> products_;
    std::shared_ptr<AdapterTerms> adapters_;  // or null
    Domain domain_;
    Grid grid_;
};

class GluProducts : public Instruction {
public:
    GluProducts(Program& program, int acts, kernels::Acts format, std::shared_ptr<const Weight> gate,
                std::shared_ptr<const Weight> up, int gate_out, int up_out, int out, Act act,
                std::shared_ptr<AdapterTerms> adapters)
        : acts_(acts),
          gate_out_(gate_out),
          up_out_(up_out),
          out_(out),
          format_(format),
          act_(act),
          gate_(std::move(gate)),
          up_(std::move(up)),
          adapters_(std::move(adapters)),
          domain_(program.domain(acts)) {
        reads = {acts};
        writes = {out};
        for (int v : {gate_out, up_out})
            if (v >= 0) writes.push_back(v);
    }
    Step plan(Run& run) override {
        grid_.begin(run, domain_);
        grid_.matrix(gate_->matrix());
        return grid_.step();
    }
    void work(Run& run, uint32_t first, uint32_t last, unsigned thread) override {
        const int64_t n = gate_->rows();
        grid_.visit(first, last, [&](int64_t tile, int64_t, int64_t r0, int64_t r1) {
            const int64_t m = grid_.tile_tokens(tile), rows = r1 - r0;
            float* room = run.scratch(thread, 2 * rows * m);
            // The block of gate and of up: in a trace's memory, or [m][rows] of scratch (column r0 first).
            const auto block = [&](size_t i, const Weight& w, int kept,
                                   float* scratch) -> std::pair<const float*, int64_t> {
                float* out = kept >= 0 ? run.row(kept, tile * kTile) : scratch - r0;
                const int64_t ld = kept >= 0 ? n : rows;
                run.program.isa().gemm(w.matrix(), format_, run.acts(acts_, tile), m, out, ld, r0, r1);
                if (adapters_) adapters_->add(run, i, tile * kTile, m, out, ld, r0, r1);
                return {out + r0, ld};
            };
            const auto [g, ldg] = block(0, *gate_, gate_out_, room);
            const auto [u, ldu] = block(1, *up_, up_out_, room + rows * m);
            for (int64_t t = 0; t < m; ++t)
                run.program.ops().glu(act_, g + t * ldg, u + t * ldu, run.row(out_, tile * kTile + t) + r0, rows);
        });
    }

private:
    int acts_, gate_out_, up_out_, out_;
    kernels::Acts format_;
    Act act_;
    std::shared_ptr<const Weight> gate_, up_;
    std::shared_ptr<AdapterTerms> adapters_;  // or null
    Domain domain_;
    Grid grid_;
};

// ---- experts --------------------------------------------------------------------------------------------------------
// The rows of one expert, at most a tile of them. Without a choice, part j of a row goes to expert j.
struct Group {
    int64_t expert, n;
    const int64_t* pairs;  // token * k + choice
    uint8_t* acts;
};
class ExpertProducts;
struct Groups {
    std::vector<Group> list;
    std::vector<int64_t> pairs, ends;  // by expert
    std::vector<uint8_t> acts;
    int64_t most = 0;  // rows of the expert that has most
    ExpertProducts* products = nullptr;  // the product that multiplies them
};

class ExpertGather : public Instruction {
public:
    ExpertGather(int x, int idx, std::shared_ptr<const Weight> weight, kernels::Acts format,
                 std::shared_ptr<Groups> groups)
        : x_(x), idx_(idx), weight_(std::move(weight)), format_(format), groups_(std::move(groups)) {
        reads = {x};
        if (idx >= 0) reads.push_back(idx);
    }
    Step plan(Run& run) override {
        const int64_t k = choices(run), tokens = run.batch.rows(run.program.domain(x_));
        const float* const ids = idx_ >= 0 ? run.rows(idx_) : nullptr;
        const auto expert = [&](int64_t i) { return ids ? static_cast<int64_t>(ids[i]) : i % k; };
        Groups& g = *groups_;
        g.ends.assign(weight_->count(), 0);
        for (int64_t i = 0; i < tokens * k; ++i) {
            if (ids && !(ids[i] >= 0 && ids[i] < float(weight_->count())))
                throw std::runtime_error("expert id outside the experts");
            ++g.ends[expert(i)];
        }
        for (int64_t e = 0, at = 0; e < weight_->count(); ++e) at += std::exchange(g.ends[e], at);
        g.pairs.resize(tokens * k);
        for (int64_t i = 0; i < tokens * k; ++i) g.pairs[g.ends[expert(i)]++] = i;
        g.list.clear();
        g.most = 0;
        shared_ = tokens == 1 && !own_input(run);  // every expert gets the same row: prepare it once
        size_t size = 64;
        for (int64_t e = 0, at = 0; e < weight_->count(); ++e)
            for (; at < g.ends[e]; at += g.list.back().n) {
                const int64_t n = std::min(kTile, g.ends[e] - at);
                g.list.push_back({e, n, g.pairs.data() + at, nullptr});
                g.most = std::max(g.most, n);
                size += bytes(n);
            }
        if (g.acts.size() < size) g.acts.resize(size);
        uint8_t* room = g.acts.data() + (64 - reinterpret_cast<uintptr_t>(g.acts.data()) % 64) % 64;
        for (Group& group : g.list) group.acts = shared_ ? room : std::exchange(room, room + bytes(group.n));
        return {static_cast<uint32_t>(shared_ ? 1 : g.list.size())};
    }
    void work(Run& run, uint32_t first, uint32_t last, unsigned thread) override {
        const int64_t k = choices(run), columns = weight_->columns();
        const auto row = [&](int64_t pair) { return run.rows(x_) + (own_input(run) ? pair : pair / k) * columns; };
        for (uint32_t i = first; i < last; ++i) {
            const Group& group = groups_->list[i];
            const float* x = row(group.pairs[0]);
            if (group.n > 1) {
                float* const rows = run.scratch(thread, group.n * columns);
                for (int64_t j = 0; j < group.n; ++j) std::copy_n(row(group.pairs[j]), columns, rows + j * columns);
                x = rows;
            }
            run.program.isa().prepare(format_, x, columns, group.n, columns, 0, group.n, group.acts);
        }
    }

private:
    int64_t choices(const Run& run) const { return idx_ >= 0 ? run.program.width(idx_) : weight_->count(); }
    bool own_input(const Run& run) const { return run.program.width(x_) != weight_->columns(); }  // [T, k, I], not [T, I]
    size_t bytes(int64_t n) const { return (kernels::acts_bytes(format_, n, weight_->columns()) + 63) / 64 * 64; }

    int x_, idx_;
    std::shared_ptr<const Weight> weight_;
    kernels::Acts format_;
    std::shared_ptr<Groups> groups_;
    bool shared_ = false;
};

// Gate and up of the same experts are one step.
class ExpertProducts : public Instruction {
public:
    ExpertProducts(kernels::Acts format, std::shared_ptr<Groups> groups) : format_(format), groups_(std::move(groups)) {}
    void append(int out, std::shared_ptr<const Weight> weight) {
        writes.push_back(out);
        weights_.push_back(std::move(weight));
    }
    Step plan(Run& run) override {
        grid_.begin(run, groups_->most, static_cast<int64_t>(groups_->list.size()));
        for (const auto& weight : weights_) grid_.matrix(weight->matrix());
        return grid_.step();
    }
    void work(Run& run, uint32_t first, uint32_t last, unsigned thread) override {
        grid_.visit(first, last, [&](int64_t tile, int64_t part, int64_t r0, int64_t r1) {
            const Group& group = groups_->list[tile];
            const int64_t n = weights_[part]->rows(), rows = r1 - r0;
            float* const out = run.rows(writes[part]);
            float* const y = group.n > 1 ? run.scratch(thread, group.n * rows) - r0 : out + group.pairs[0] * n;
            run.program.isa().gemm(weights_[part]->matrix(group.expert), format_, group.acts, group.n, y,
                                   group.n > 1 ? rows : n, r0, r1);
            for (int64_t i = 0; group.n > 1 && i < group.n; ++i)
                std::copy_n(y + i * rows + r0, rows, out + group.pairs[i] * n + r0);
        });
    }

private:
    kernels::Acts format_;
    std::shared_ptr<Groups> groups_;
    std::vector<std::shared_ptr<const Weight>> weights_;  // of `writes`
    Grid grid_;
};

kernels::Acts common_format(const Program& program, int acts, const std::vector<const Weight*>& weights) {
    if (!program.is_acts(acts)) throw std::invalid_argument("product: the input must be prepared");
    for (const Weight* w : weights)
        if (kernels::acts_format(w->type(), program.exact()) != program.format(acts) || w->count() != 1)
            throw std::invalid_argument("product: the input is prepared for another type of weights");
    return program.format(acts);
}

}  // namespace

void Program::products(int acts, std::vector<Product> products, Adapters adapters, int x) {
    std::vector<const Weight*> weights;
    std::vector<int64_t> rows;
    for (const Product& p : products) {
        if (p.weight->columns() != width(acts) || p.weight->rows() != width(p.out) || domain(p.out) != domain(acts) ||
            (p.bias && static_cast<int64_t>(p.bias->size()) != p.weight->rows()) ||
            (p.residual >= 0 &&
             (width(p.residual) != width(p.out) || domain(p.residual) != domain(acts) || is_acts(p.residual))))
            throw std::invalid_argument("product: operands do not fit together");
        weights.push_back(p.weight.get());
        rows.push_back(p.weight->rows());
    }
    if (weights.empty()) throw std::invalid_argument("product: no matrix given");
    const kernels::Acts format = common_format(*this, acts, weights);
    for (const Product& p : products) uses(p.weight);
    auto terms = adapter_terms(std::move(adapters), x, acts, rows);
    add(std::make_unique<Products>(*this, acts, std::move(products), format, std::move(terms)));
}

void Program::glu_products(int acts, std::shared_ptr<const Weight> gate, std::shared_ptr<const Weight> up, int gate_out,
                           int up_out, int out, Act act, Adapters adapters, int x) {
    if (gate->columns() != width(acts) || up->columns() != width(acts) || gate->rows() != up->rows() ||
        gate->rows() != width(out) || domain(out) != domain(acts))
        throw std::invalid_argument("gated product: operands do not fit together");
    for (int v : {gate_out, up_out})
        if (v >= 0 && (width(v) != width(out) || domain(v) != domain(out)))
            throw std::invalid_argument("gated product: kept values do not fit");
    const kernels::Acts format = common_format(*this, acts, {gate.get(), up.get()});
    uses(gate);
    uses(up);
    auto terms = adapter_terms(std::move(adapters), x, acts, {gate->rows(), up->rows()});
    add(std::make_unique<GluProducts>(*this, acts, format, std::move(gate), std::move(up), gate_out, up_out, out, act,
                                      std::move(terms)));
}

void Program::expert_product(int x, int idx, std::shared_ptr<const Weight> weight, int out) {
    const int64_t k = idx >= 0 ? width(idx) : weight->count();
    if ((width(x) != weight->columns() && width(x) != k * weight->columns()) || width(out) != k * weight->rows() ||
        domain(out) != domain(x) || is_acts(x) || (idx >= 0 && (domain(x) != domain(idx) || is_acts(idx))))
        throw std::invalid_argument("expert product: operands do not fit together");
    const kernels::Acts format = kernels::acts_format(weight->type(), exact_);
    uses(weight);
    // Gate and up of the same experts read the same rows. These are gathered and prepared once, and multiplied in the
    // step of the first. No step between the two writes an input of the second.
    std::shared_ptr<void>& known = gathered_[{x, idx, int64_t(format), weight->count()}];
    if (!known) {
        auto groups = std::make_shared<Groups>();
        add(std::make_unique<ExpertGather>(x, idx, weight, format, groups));
        auto products = std::make_unique<ExpertProducts>(format, groups);
        groups->products = products.get();
        add(std::move(products));
        known = std::move(groups);
    }
    std::static_pointer_cast<Groups>(known)->products->append(out, std::move(weight));
}

}  // namespace assay
