#include "program.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <stdexcept>

namespace assay {
namespace {

std::invalid_argument fault(const std::string& what) { return std::invalid_argument(what); }

// Consecutive row steps of one domain: each unit takes some rows through all of them.
class RowSteps : public Instruction {
public:
    explicit RowSteps(std::vector<RowOp> ops) : ops_(std::move(ops)) {
        for (const RowOp& op : ops_) {
            reads.insert(reads.end(), op.reads.begin(), op.reads.end());
            writes.insert(writes.end(), op.writes.begin(), op.writes.end());
            cost_ += op.cost;
        }
    }
    Step plan(Run& run) override {
        rows_ = run.batch.rows(ops_[0].domain);
        per_unit_ = std::max<int64_t>(1, kFloatsPerUnit / std::max<int64_t>(1, cost_));
        return {static_cast<uint32_t>((rows_ + per_unit_ - 1) / per_unit_), false};
    }
    void work(Run& run, uint32_t first, uint32_t last, unsigned) override {
        for (const RowOp& op : ops_) op.run(run, first * per_unit_, std::min(rows_, last * per_unit_));
    }

private:
    static constexpr int64_t kFloatsPerUnit = 16384;
    std::vector<RowOp> ops_;
    int64_t cost_ = 0, rows_ = 0, per_unit_ = 1;
};

}  // namespace

// ---- weights --------------------------------------------------------------------------------------------------------

Weight::Weight(std::shared_ptr<Loader> loader, const uint8_t* data, uint32_t type, int64_t count, int64_t rows,
               int64_t columns, bool pack, bool mapped)
    : loader_(std::move(loader)),
      type_(static_cast<kernels::Type>(type)),
      count_(count),
      rows_(rows),
      columns_(columns),
      mapped_(data) {
    if (!kernels::supported(type_)) throw fault("ggml type " + std::to_string(type) + " has no kernel");
    const int64_t block = kernels::block_size(type_);
    if (count < 1 || rows < 1 || columns < 1 || columns % block)
        throw fault("matrix of " + std::to_string(rows) + " x " + std::to_string(columns) +
                    " does not divide into blocks of " + std::to_string(block));
    stride_ = kernels::row_bytes(type_, columns) * rows;
    if (!pack || !kernels::packable(type_)) return;
    packed_stride_ = (loader_->pool().isa().packed_bytes(type_, rows, columns) + 63) / 64 * 64;
    own_ = loader_->take(packed_stride_ * count);
    state_ = kLoading;
    const bool cold = mapped && !resident_mapped(data, stride_ * count);
    if (cold)
        expect_mapped(data, stride_ * count);
    else if (mapped)
        loader_->will_read(data, stride_ * count);
    task_ = loader_->add([this, mapped] { this->pack(mapped); });
    // The disk decides how long this takes. Wait, so that a caller can report how much has been read.
    if (cold) ready();
}

Weight::~Weight() {
    if (task_) loader_->drop(task_);
}

void Weight::pack(bool mapped) {
    Pool& pool = loader_->pool();
    const kernels::Isa& isa = pool.isa();
    const int64_t panel = isa.panel_rows;
    const uint32_t panels = static_cast<uint32_t>((rows_ + panel - 1) / panel);
    const uint32_t least =
        static_cast<uint32_t>(std::max<size_t>(1, (size_t(1) << 19) / (panel * kernels::row_bytes(type_, columns_))));
    std::atomic<bool> odd{false};
    for (int64_t i = 0; i < count_ && !odd; ++i) {
        uint8_t* to = own_.get() + i * packed_stride_;
        loader_->provide(to, packed_stride_);
        parallel_for(pool, panels, least, [&](uint32_t first, uint32_t last) {
            const int64_t begin = first * panel, end = std::min(rows_, last * panel);
            const uint8_t* from = mapped_ + i * stride_;
            if (type_ == kernels::Type::F16 &&
                !kernels::finite_halves(from + 2 * begin * columns_, (end - begin) * columns_))
                odd = true;
            isa.pack(type_, from, rows_, columns_, begin, end, to);
        });
    }
    if (odd) {  // a weight is NaN or infinite: read it in place, value by value
        state_.store(kMapped, std::memory_order_release);
        return own_.reset();
    }
    if (mapped) forget_mapped(mapped_, stride_ * count_);
    state_.store(kPacked, std::memory_order_release);
}

kernels::Matrix Weight::matrix(int64_t i) const {
    if (packed()) return {type_, true, rows_, columns_, own_.get() + i * packed_stride_};
    return {type_, false, rows_, columns_, mapped_ + i * stride_};
}

size_t Weight::bytes() const {
    return state_.load(std::memory_order_acquire) == kMapped ? 0 : packed_stride_ * size_t(count_);
}

// ---- cache ----------------------------------------------------------------------------------------------------------

Cache::Cache(std::vector<Group> groups, std::vector<PageShape> pools, std::vector<int> group_of)
    : groups_(std::move(groups)), shapes_(std::move(pools)), group_of_(std::move(group_of)) {
    if (groups_.empty() || groups_[0].window || group_of_.size() != shapes_.size())
        throw fault("cache: pools and groups do not fit together");
    for (size_t i = 0; i < shapes_.size(); ++i) {
        const PageShape& s = shapes_[i];
        if (s.heads < 1 || s.dim < 1) throw fault("cache heads must have at least one value");
        if (s.type == KvType::q8_0 && s.dim % 32)
            throw fault("a q8_0 cache needs heads of a multiple of 32 values (found " + std::to_string(s.dim) + ")");
        if (group_of_[i] < 0 || group_of_[i] >= static_cast<int>(groups_.size())) throw fault("cache: no such group");
        size_t& end = groups_[group_of_[i]].page_bytes;
        offsets_.push_back(end);
        end += s.page_bytes();
    }
    groups_[0].page_bytes += sizeof(int32_t) * kPage;
    for (Group& g : groups_) {
        if (g.n_pages < 1 || g.window < 0) throw fault("a cache needs at least one page");
        g.pages = Pages(g.page_bytes * g.n_pages, "key/value cache of " + std::to_string(g.n_pages) + " pages");
    }
}

void Cache::copy_page(int32_t source, int32_t to, int group) {
    if (group < 0 || group >= static_cast<int>(groups_.size())) throw fault("cache: no such group");
    const Group& g = groups_[group];
    for (int32_t page : {source, to})
        if (page < 0 || page >= g.n_pages)
            throw fault("cache: no page " + std::to_string(page) + " of " + std::to_string(g.n_pages));
    if (source == to) return;
    std::lock_guard turn(busy);
    std::memcpy(g.pages.data() + to * g.page_bytes, g.pages.data() + source * g.page_bytes, g.page_bytes);
}

void Cache::add_states(int slots, int64_t floats) {
    if (slots < 1 || floats < 1) throw fault("cache: a state needs slots and values");
    states_ = Pages(size_t(slots) * floats * sizeof(float), "state of " + std::to_string(slots) + " sequences");
    state_slots_ = slots;
    state_floats_ = floats;
}

float* Cache::state(int32_t slot) const {
    if (slot < 0 || slot >= state_slots_)
        throw fault("cache: no state slot " + std::to_string(slot) + " of " + std::to_string(state_slots_));
    return reinterpret_cast<float*>(states_.data()) + slot * state_floats_;
}

void Cache::copy_state(int32_t source, int32_t to) {
    const float* from = state(source);
    float* at = state(to);
    if (source == to) return;
    std::lock_guard turn(busy);
    std::memcpy(at, from, state_floats_ * sizeof(float));
}

// ---- building -------------------------------------------------------------------------------------------------------

Program::Program(std::shared_ptr<Pool> pool, std::shared_ptr<Cache> cache, bool exact)
    : pool_(std::move(pool)), cache_(std::move(cache)), ops_(*pool_->isa().rows), exact_(exact) {
    scratch_.resize(pool_->threads());
}
Program::~Program() = default;

int Program::value(int64_t width, Domain domain) {
    if (width < 1) throw fault("a value needs at least one column");
    values_.push_back({width, domain});
    return static_cast<int>(values_.size()) - 1;
}

int Program::external(int64_t width, Domain domain) {
    const int v = value(width, domain);
    values_[v].external = n_externals_++;
    return v;
}

int Program::acts(int64_t width, Domain domain, kernels::Acts format) {
    const int v = value(width, domain);
    values_[v].is_acts = true;
    values_[v].format = format;
    return v;
}

void Program::row(RowOp op) {
    for (int v : op.reads)
        if (is_acts(v)) throw fault("a row step cannot read prepared activations");
    for (int v : op.writes)
        if (is_acts(v) != op.prepares) throw fault("a row step cannot write prepared activations");
    if (!pending_.empty() && pending_[0].domain != op.domain) flush();
    pending_.push_back(std::move(op));
}

void Program::flush() {
    if (pending_.empty()) return;
    code_.push_back(std::make_unique<RowSteps>(std::move(pending_)));
    pending_.clear();
}

void Program::add(std::unique_ptr<Instruction> instruction) {
    for (int v : instruction->writes)
        if (is_acts(v)) throw fault("only `prepare` writes prepared activations");
    flush();
    code_.push_back(std::move(instruction));
}

// ---- running --------------------------------------------------------------------------------------------------------

size_t Program::bytes(const Value& v, int64_t rows) const {
    if (!v.is_acts) return sizeof(float) * v.width * rows;
    if (rows <= kTile) return kernels::acts_bytes(v.format, rows, v.width);
    return (rows + kTile - 1) / kTile * kernels::acts_bytes(v.format, kTile, v.width);
}

// The pages of a group, from page `first` of a chunk on.
void Program::check_pages(const Chunk& c, int group, int32_t first) const {
    const int32_t *table = c.table(group), n_pages = cache_->groups()[group].n_pages;
    for (int32_t p = first; p * kPage < c.n_keys(); ++p)
        if (table[p] < 0 || table[p] >= n_pages)
            throw fault("batch: page outside the cache (found " + std::to_string(table[p]) + ", expected 0 to " +
                        std::to_string(n_pages - 1) + ")");
}

// First page that a chunk may read. Pages outside the window of its first token were evicted, so they count only if
// masks are not ranges or all keys are wanted.
void Program::check_windows(const Batch& batch) const {
    const bool all = std::any_of(values_.begin(), values_.end(), [](const Value& v) {
        return v.domain == Domain::keys || v.domain == Domain::scores;
    });
    for (const Chunk& c : batch.chunks)
        for (int g = 1; g < static_cast<int>(cache_->groups().size()); ++g) {
            const int32_t window = cache_->groups()[g].window;
            check_pages(c, g, all || !c.regular ? 0 : std::max(0, c.start - window + 1) / kPage);
        }
}

// Check here, once, everything that later indexes memory.
void Program::check(Batch& batch) const {
    if (batch.n_tokens < 1 || batch.chunks.empty()) throw fault("batch: no tokens");
    for (int32_t i = 0; i < batch.n_tokens; ++i)
        if (batch.tokens[i] < 0 || batch.tokens[i] >= n_vocab)
            throw fault("batch: token id outside the vocabulary (found " + std::to_string(batch.tokens[i]) + ")");
    if (n_positions < INT32_MAX)
        for (int32_t i = 0; i < batch.n_tokens; ++i)
            if (batch.positions[i] < 0 || batch.positions[i] >= n_positions)
                throw fault("batch: position outside the table (found " + std::to_string(batch.positions[i]) + ")");
    batch.chunk_of.resize(batch.n_tokens);
    int64_t row = 0, keys = 0;
    for (Chunk& c : batch.chunks) {
        if (c.n_tokens < 1 || c.first != row || row + c.n_tokens > batch.n_tokens || c.start < 0 || c.n_outputs < 0 ||
            c.n_outputs > c.n_tokens)
            throw fault("batch: chunks do not fit the tokens");
        check_pages(c, 0, 0);
        c.first_output = batch.n_outputs;
        c.first_key = static_cast<int32_t>(keys);
        c.first_score = batch.n_scores;
        batch.n_outputs += c.n_outputs;
        keys += c.n_keys();
        batch.n_scores += int64_t(c.n_tokens) * c.n_keys();
        if (keys > INT32_MAX) throw fault("batch: too many keys");
        std::fill_n(batch.chunk_of.begin() + row, c.n_tokens, static_cast<int32_t>(&c - batch.chunks.data()));
        row += c.n_tokens;
    }
    if (row != batch.n_tokens) throw fault("batch: chunks do not cover the tokens");
    batch.n_keys = static_cast<int32_t>(keys);
    if (cache_->state_slots())
        for (const Chunk& c : batch.chunks)
            if (!c.state_to) throw fault("batch: a chunk has no state slot");
    if (static_cast<int>(batch.externals.size()) != n_externals_)
        throw fault("batch: " + std::to_string(n_externals_) + " result arrays expected, " +
                    std::to_string(batch.externals.size()) + " given");
    for (const Value& v : values_)
        if (v.external >= 0 && batch.capacity[v.external] < v.width * batch.rows(v.domain))
            throw fault("batch: a result array is too small");
}

namespace {

// Store the positions of the new keys; then determine for each chunk whether its mask is a plain range.
void place_positions(Batch& batch, const Cache& cache) {
    for (const Chunk& c : batch.chunks)
        for (int32_t i = 0; i < c.n_tokens; ++i) {
            const int32_t slot = c.start + i;
            cache.positions(c.pages[slot / kPage])[slot % kPage] = batch.positions[c.first + i];
        }
    batch.key_positions.resize(batch.n_keys);
    batch.output_rows.resize(batch.n_outputs);
    for (Chunk& c : batch.chunks) {
        int32_t* keys = batch.key_positions.data() + c.first_key;
        bool regular = true;
        for (int32_t s = 0; s < c.n_keys(); ++s) {
            keys[s] = cache.positions(c.pages[s / kPage])[s % kPage];
            regular &= keys[s] == s;
        }
        c.regular = regular;
        for (int32_t i = 0; i < c.n_outputs; ++i)
            batch.output_rows[c.first_output + i] = c.first + c.n_tokens - c.n_outputs + i;
    }
}

}  // namespace

namespace {

struct FirstStep {
    explicit FirstStep(Loader& loader) : loader(loader) {}
    ~FirstStep() { loader.end_first_step(); }
    Loader& loader;
};

}  // namespace

// Place values with overlapping lifetimes in disjoint memory: first fit, in order of birth.
void Program::plan(const Batch& batch) {
    bool enough = true;
    for (int d = 0; d < kDomains; ++d) enough &= batch.rows(Domain(d)) <= planned_[d];
    if (enough) return;
    int64_t old[kDomains];
    std::copy_n(planned_, kDomains, old);
    bool used[kDomains] = {};
    for (const Value& v : values_) used[int(v.domain)] |= v.external < 0;
    for (int d = 0; d < kDomains; ++d)
        planned_[d] =
            used[d] ? std::max<int64_t>(old[d], std::bit_ceil(uint64_t(std::max<int64_t>(1, batch.rows(Domain(d))))))
                    : INT64_MAX;

    const size_t n = values_.size();
    std::vector<int> born(n, INT32_MAX), dies(n, -1);
    for (int i = 0; i < static_cast<int>(code_.size()); ++i)
        for (const auto* list : {&code_[i]->reads, &code_[i]->writes})
            for (int v : *list) {
                born[v] = std::min(born[v], i);
                dies[v] = std::max(dies[v], i);
            }
    struct Span {
        size_t begin, end;
        int dies;
    };
    std::vector<int> order;
    for (size_t v = 0; v < n; ++v)
        if (dies[v] >= 0 && values_[v].external < 0) order.push_back(static_cast<int>(v));
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return born[a] < born[b]; });
    std::vector<Span> live;  // sorted by begin
    size_t total = 0;
    for (int v : order) {
        std::erase_if(live, [&](const Span& s) { return s.dies < born[v]; });
        const size_t size = (bytes(values_[v], planned_[int(values_[v].domain)]) + 63) / 64 * 64;
        size_t at = 0;
        auto where = live.begin();
        for (; where != live.end() && where->begin < at + size; ++where) at = std::max(at, where->end);
        values_[v].offset = at;
        live.insert(where, {at, at + size, dies[v]});
        total = std::max(total, at + size);
    }
    if (total > arena_.size()) {
        arena_ = Pages();
        arena_ = Pages(total, "activations of a step of " + std::to_string(batch.n_tokens) + " tokens");
    }
}

bool Program::run(Batch& batch, const std::function<bool()>& poll) {
    std::lock_guard turn(cache_->busy);
    flush();
    check(batch);
    plan(batch);
    place_positions(batch, *cache_);
    check_windows(batch);
    Run run(*this, batch);
    if (!loading_.empty() && loading_[0]->loader().begin_first_step()) {
        const FirstStep first(loading_[0]->loader());
        return pool_->run(run, poll);
    }
    for (const auto& weight : loading_) weight->ready();
    loading_.clear();
    return pool_->run(run, poll);
}

float* Run::rows(int value) const {
    const Program::Value& v = program.values_[value];
    return v.external >= 0 ? batch.externals[v.external] : reinterpret_cast<float*>(program.arena_.data() + v.offset);
}

uint8_t* Run::acts(int value, int64_t tile) const {
    const Program::Value& v = program.values_[value];
    return program.arena_.data() + v.offset + (tile ? tile * kernels::acts_bytes(v.format, kTile, v.width) : 0);
}

float* Run::scratch(unsigned thread, size_t floats) {
    std::vector<float>& s = program.scratch_[thread];
    if (s.size() < floats) s.resize(floats);
    return s.data();
}

Step Run::next(unsigned thread) {
    while (at_ < program.code_.size()) {
        Instruction& instruction = *program.code_[at_++];
        const Step step = instruction.plan(*this);
        if (step.units > 1) return step;
        if (step.units == 1) instruction.work(*this, 0, 1, thread);
    }
    return {};
}

void Run::work(uint32_t first, uint32_t last, unsigned thread) {
    program.code_[at_ - 1]->work(*this, first, last, thread);
}

}  // namespace assay
