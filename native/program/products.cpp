// Matrix products: a group of matrices that read one input, gate and up with their activation, experts.
//
// A unit is a block of rows of one matrix for one tile of tokens; no unit waits for another, and what follows a
// product row by row (bias, residual, activation) is done while its block is still in the cache.
#include <algorithm>
#include <stdexcept>

#include "program.h"

namespace assay {
namespace {

// Rows of a unit: about this many bytes of weights when a few tokens stream them; when many tokens share them, few
// enough rows that a single tile of tokens gives every thread its part.
constexpr int64_t kUnitBytes = 16384, kFewTokens = 8, kManyRows = 64, kTileRows = 32;

int64_t unit_rows(const kernels::Matrix& w, int64_t tokens, int64_t panel) {
    const int64_t bytes = std::max<int64_t>(1, kernels::row_bytes(w.type, w.k));
    const int64_t rows = tokens <= kFewTokens ? kUnitBytes / bytes : tokens <= kTile ? kTileRows : kManyRows;
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
        parts.clear();
        tokens = run.batch.rows(domain);
        panel = run.program.isa().panel_rows;
        tiles = (tokens + kTile - 1) / kTile;
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
    Products(Program& program, int acts, std::vector<Product> products, kernels::Acts format)
        : acts_(acts), format_(format), products_(std::move(products)), domain_(program.domain(acts)) {
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
    Domain domain_;
    Grid grid_;
};

class GluProducts : public Instruction {
public:
    GluProducts(Program& program, int acts, kernels::Acts format, std::shared_ptr<const Weight> gate,
                std::shared_ptr<const Weight> up, int gate_out, int up_out, int out, Act act)
        : acts_(acts),
          gate_out_(gate_out),
          up_out_(up_out),
          out_(out),
          format_(format),
          act_(act),
          gate_(std::move(gate)),
          up_(std::move(up)),
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
            // The block of gate and of up: where a trace wants it, or [m][rows] of scratch (column r0 first).
            const auto block = [&](const Weight& w, int kept, float* scratch) -> std::pair<const float*, int64_t> {
                float* out = kept >= 0 ? run.row(kept, tile * kTile) : scratch - r0;
                const int64_t ld = kept >= 0 ? n : rows;
                run.program.isa().gemm(w.matrix(), format_, run.acts(acts_, tile), m, out, ld, r0, r1);
                return {out + r0, ld};
            };
            const auto [g, ldg] = block(*gate_, gate_out_, room);
            const auto [u, ldu] = block(*up_, up_out_, room + rows * m);
            for (int64_t t = 0; t < m; ++t)
                run.program.ops().glu(act_, g + t * ldg, u + t * ldu, run.row(out_, tile * kTile + t) + r0, rows);
        });
    }

private:
    int acts_, gate_out_, up_out_, out_;
    kernels::Acts format_;
    Act act_;
    std::shared_ptr<const Weight> gate_, up_;
    Domain domain_;
    Grid grid_;
};

// ---- experts --------------------------------------------------------------------------------------------------------
// The rows that go to one expert, at most a tile of them. Without a choice, part j of a row goes to expert j.
struct Group {
    int64_t expert;
    std::vector<int64_t> pairs;  // token * k + choice
    std::vector<uint8_t> acts;
    uint8_t* aligned() { return acts.data() + (64 - reinterpret_cast<uintptr_t>(acts.data()) % 64) % 64; }
};
using Groups = std::vector<Group>;

class ExpertGather : public Instruction {
public:
    ExpertGather(int x, int idx, std::shared_ptr<const Weight> weight, kernels::Acts format,
                 std::shared_ptr<Groups> groups)
        : x_(x), idx_(idx), weight_(std::move(weight)), format_(format), groups_(std::move(groups)) {
        reads = {x};
        if (idx >= 0) reads.push_back(idx);
    }
    Step plan(Run& run) override {
        const int64_t k = choices(run), pairs = run.batch.rows(run.program.domain(x_)) * k;
        std::vector<std::vector<int64_t>> by_expert(weight_->count());
        for (int64_t i = 0; i < pairs; ++i) {
            const float id = idx_ >= 0 ? run.rows(idx_)[i] : static_cast<float>(i % k);
            if (!(id >= 0 && id < float(weight_->count()))) throw std::runtime_error("expert id outside the experts");
            by_expert[static_cast<size_t>(id)].push_back(i);
        }
        groups_->clear();
        for (int64_t e = 0; e < weight_->count(); ++e)
            for (size_t at = 0; at < by_expert[e].size(); at += kTile) {
                const auto begin = by_expert[e].begin() + at;
                const size_t n = std::min<size_t>(kTile, by_expert[e].size() - at);
                groups_->push_back({e, {begin, begin + n}, {}});
            }
        return {static_cast<uint32_t>(groups_->size())};
    }
    void work(Run& run, uint32_t first, uint32_t last, unsigned thread) override {
        const int64_t k = choices(run), columns = weight_->columns();
        const bool own_input = run.program.width(x_) != columns;  // [T, k, I] rather than [T, I]
        for (uint32_t g = first; g < last; ++g) {
            Group& group = (*groups_)[g];
            const int64_t m = static_cast<int64_t>(group.pairs.size());
            float* x = run.scratch(thread, m * columns);
            for (int64_t i = 0; i < m; ++i)
                std::copy_n(run.rows(x_) + (own_input ? group.pairs[i] : group.pairs[i] / k) * columns, columns,
                            x + i * columns);
            group.acts.resize(kernels::acts_bytes(format_, m, columns) + 64);
            run.program.isa().prepare(format_, x, columns, m, columns, 0, m, group.aligned());
        }
    }

private:
    int64_t choices(const Run& run) const { return idx_ >= 0 ? run.program.width(idx_) : weight_->count(); }

    int x_, idx_;
    std::shared_ptr<const Weight> weight_;
    kernels::Acts format_;
    std::shared_ptr<Groups> groups_;
};

class ExpertProducts : public Instruction {
public:
    ExpertProducts(int out, std::shared_ptr<const Weight> weight, kernels::Acts format, std::shared_ptr<Groups> groups)
        : out_(out), weight_(std::move(weight)), format_(format), groups_(std::move(groups)) {
        writes = {out};
    }
    Step plan(Run&) override {
        blocks_ = (weight_->rows() + kManyRows - 1) / kManyRows;
        bool many = false;
        for (const Group& group : *groups_) many |= static_cast<int64_t>(group.pairs.size()) > kFewTokens;
        return {static_cast<uint32_t>(blocks_ * groups_->size()), many};
    }
    void work(Run& run, uint32_t first, uint32_t last, unsigned thread) override {
        const int64_t n = weight_->rows();
        for (uint32_t u = first; u < last; ++u) {
            Group& group = (*groups_)[u / blocks_];
            const int64_t m = static_cast<int64_t>(group.pairs.size());
            const int64_t r0 = u % blocks_ * kManyRows, r1 = std::min(n, r0 + kManyRows), rows = r1 - r0;
            float* y = run.scratch(thread, m * rows);
            run.program.isa().gemm(weight_->matrix(group.expert), format_, group.aligned(), m, y - r0, rows, r0, r1);
            for (int64_t i = 0; i < m; ++i) std::copy_n(y + i * rows, rows, run.rows(out_) + group.pairs[i] * n + r0);
        }
    }

private:
    int out_;
    std::shared_ptr<const Weight> weight_;
    kernels::Acts format_;
    std::shared_ptr<Groups> groups_;
    int64_t blocks_ = 0;
};

kernels::Acts common_format(const Program& program, int acts, const std::vector<const Weight*>& weights) {
    if (!program.is_acts(acts)) throw std::invalid_argument("product: the input must be prepared");
    for (const Weight* w : weights)
        if (kernels::acts_format(w->matrix().type, program.exact()) != program.format(acts) || w->count() != 1)
            throw std::invalid_argument("product: the input is prepared for another type of weights");
    return program.format(acts);
}

}  // namespace

void Program::products(int acts, std::vector<Product> products) {
    std::vector<const Weight*> weights;
    for (const Product& p : products) {
        if (p.weight->columns() != width(acts) || p.weight->rows() != width(p.out) || domain(p.out) != domain(acts) ||
            (p.bias && static_cast<int64_t>(p.bias->size()) != p.weight->rows()) ||
            (p.residual >= 0 &&
             (width(p.residual) != width(p.out) || domain(p.residual) != domain(acts) || is_acts(p.residual))))
            throw std::invalid_argument("product: operands do not fit together");
        weights.push_back(p.weight.get());
    }
    if (weights.empty()) throw std::invalid_argument("product: no matrix given");
    const kernels::Acts format = common_format(*this, acts, weights);
    add(std::make_unique<Products>(*this, acts, std::move(products), format));
}

void Program::glu_products(int acts, std::shared_ptr<const Weight> gate, std::shared_ptr<const Weight> up, int gate_out,
                           int up_out, int out, Act act) {
    if (gate->columns() != width(acts) || up->columns() != width(acts) || gate->rows() != up->rows() ||
        gate->rows() != width(out) || domain(out) != domain(acts))
        throw std::invalid_argument("gated product: operands do not fit together");
    for (int v : {gate_out, up_out})
        if (v >= 0 && (width(v) != width(out) || domain(v) != domain(out)))
            throw std::invalid_argument("gated product: kept values do not fit");
    const kernels::Acts format = common_format(*this, acts, {gate.get(), up.get()});
    add(std::make_unique<GluProducts>(*this, acts, format, std::move(gate), std::move(up), gate_out, up_out, out, act));
}

void Program::expert_product(int x, int idx, std::shared_ptr<const Weight> weight, int out) {
    const int64_t k = idx >= 0 ? width(idx) : weight->count();
    if ((width(x) != weight->columns() && width(x) != k * weight->columns()) || width(out) != k * weight->rows() ||
        domain(out) != domain(x) || is_acts(x) || (idx >= 0 && (domain(x) != domain(idx) || is_acts(idx))))
        throw std::invalid_argument("expert product: operands do not fit together");
    const kernels::Acts format = kernels::acts_format(weight->matrix().type, exact_);
    // Gate and up of the same experts read the same rows: gathered and prepared once.
    std::shared_ptr<void>& known = gathered_[{x, idx, int64_t(format), weight->count()}];
    const bool fresh = !known;
    if (fresh) known = std::make_shared<Groups>();
    auto groups = std::static_pointer_cast<Groups>(known);
    if (fresh) add(std::make_unique<ExpertGather>(x, idx, weight, format, groups));
    add(std::make_unique<ExpertProducts>(out, std::move(weight), format, std::move(groups)));
}

}  // namespace assay
