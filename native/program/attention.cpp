// Attention over the paged cache: scores, softmax and weighted values in one pass over the keys.
//
// Keys are taken in blocks of 256, at multiples of 256 whatever the batch. Inside a block the softmax has two passes;
// blocks are merged in ascending order. So a query's result depends on its keys alone, and the long context of a single
// token can still be spread over all threads, block by block.
#include <algorithm>
#include <stdexcept>

#include "program.h"

namespace assay {
namespace {

// most query rows (tokens x heads of a group) that share the conversion of a page of keys
constexpr int kTileRows = 32;
constexpr int kPagesPerBlock = kBlock / kPage;

// Query rows [first, first + count) of a chunk for one key/value head; row r is token r / group, head r % group of that
// group. A task does blocks [from, to). With `partial` it does one block and stores its (m, l, acc) there.
struct Task {
    const Chunk* chunk;
    int head, first, count, from, to;
    int64_t partial = -1;
};

// The shape of the values: their own pool, or columns of the keys, as many as the result has.
PageShape values_of(const Program& program, const Attention& a) {
    PageShape shape = program.cache().shapes()[a.v_pool];
    if (a.v_pool == a.k_pool)
        shape = {shape.type, false, shape.heads, static_cast<int>(program.width(a.out) / a.n_head)};
    return shape;
}

class AttentionStep : public Instruction {
public:
    AttentionStep(const Program& program, const Attention& a)
        : a_(a),
          domain_(program.domain(a.q)),
          k_(program.cache().shapes()[a.k_pool]),
          v_(values_of(program, a)),
          group_(a.n_head / k_.heads),
          traced_(a.kq >= 0 || a.capped >= 0 || a.soft_max >= 0) {
        reads = {a.q};
        if (a.last >= 0) reads.push_back(a.last);
        writes = {a.out};
        for (int v : {a.kq, a.capped, a.soft_max})
            if (v >= 0) writes.push_back(v);
    }

    Step plan(Run& run) override {
        tasks_.clear();
        const int threads = static_cast<int>(run.program.pool().threads());
        int tiles = 0, most_rows = 0;
        for (const Chunk& c : run.batch.chunks) {
            most_rows = std::max(most_rows, n_rows(c));
            tiles += k_.heads * ((n_rows(c) + kTileRows - 1) / kTileRows);
        }
        // Few tiles (decoding): spread the blocks of keys over the threads; if there are too few blocks, spread the
        // rows.
        const bool split = !traced_ && tiles < 4 * threads;
        const int rows = tiles < threads ? std::max(1, most_rows * tiles / threads) : kTileRows;
        int64_t room = 0;
        for (const Chunk& c : run.batch.chunks)
            for (int head = 0; head < k_.heads; ++head)
                for (int first = 0; first < n_rows(c); first += std::min(rows, kTileRows))
                    push(run, c, head, first, std::min({rows, kTileRows, n_rows(c) - first}), split, room);
        if (static_cast<int64_t>(partials_.size()) < room) partials_.resize(room);
        return {static_cast<uint32_t>(tasks_.size())};
    }

    void work(Run& run, uint32_t first, uint32_t last, unsigned thread) override {
        for (uint32_t i = first; i < last; ++i) attend(run, tasks_[i], thread);
    }

    // ---- the merge that follows a split ----
    Step plan_merge() {
        merges_.clear();
        for (size_t i = 0; i < tasks_.size(); ++i)
            if (tasks_[i].partial >= 0 && (i == 0 || !same_rows(tasks_[i - 1], tasks_[i]))) merges_.push_back(i);
        return {static_cast<uint32_t>(merges_.empty() ? 0 : merges_.size() > 64 ? merges_.size() : 1)};
    }
    void merge(Run& run, uint32_t first, uint32_t last) {
        if (merges_.size() <= 64) first = 0, last = static_cast<uint32_t>(merges_.size());
        for (uint32_t i = first; i < last; ++i) {
            size_t at = merges_[i];
            const Task& task = tasks_[at];
            float* state = partials_.data() + task.partial;
            for (++at; at < tasks_.size() && same_rows(task, tasks_[at]); ++at)
                fold(run.program.ops(), state, partials_.data() + tasks_[at].partial, task.count);
            sink(run.program.ops(), task, state);
            finish(run, task, state);
        }
    }

private:
    int n_queries(const Chunk& c) const { return domain_ == Domain::outputs ? c.n_outputs : c.n_tokens; }
    int n_rows(const Chunk& c) const { return n_queries(c) * group_; }
    int slot(const Chunk& c, int row) const { return c.n_keys() - n_queries(c) + row / group_; }
    // The last slot that the query in `slot` sees, where it is given; else -1.
    int last(Run& run, const Chunk& c, int slot) const {
        if (a_.last < 0) return -1;
        return std::clamp(static_cast<int>(run.row(a_.last, c.first + slot - c.start)[0]), slot, c.n_keys() - 1);
    }
    // The end of the keys that a query sees, if key positions are slots.
    int to(Run& run, const Chunk& c, int slot) const {
        const int seen = last(run, c, slot);
        return seen < 0 ? a_.mask.to(slot, c.n_keys()) : seen + 1;
    }
    // The end of the keys that some of these query rows sees.
    int end_of(Run& run, const Chunk& c, int first, int count) const {
        if (traced_ || !c.regular) return c.n_keys();
        int end = to(run, c, slot(c, first + count - 1));
        for (int r = 0; a_.last >= 0 && r < count; ++r) end = std::max(end, to(run, c, slot(c, first + r)));
        return end;
    }
    int head_of(const Task& t, int row) const { return t.head * group_ + row % group_; }
    int64_t query_row(const Chunk& c, int row) const {
        return (domain_ == Domain::outputs ? c.first_output : c.first) + row / group_;
    }
    static bool same_rows(const Task& a, const Task& b) {
        return a.chunk == b.chunk && a.head == b.head && a.first == b.first && b.partial >= 0;
    }
    int64_t state_size(int rows) const {
        return int64_t(rows) * (2 + v_.stride());
    }  // m[rows], l[rows], acc[rows][stride]

    void push(Run& run, const Chunk& c, int head, int first, int count, bool split, int64_t& room) {
        const bool whole = traced_ || !c.regular;
        const int end = end_of(run, c, first, count);
        const int begin = whole ? 0 : a_.mask.from(slot(c, first));
        const int from = begin / kBlock, to = (end + kBlock - 1) / kBlock;
        if (!split || to - from < 2) {
            tasks_.push_back({&c, head, first, count, from, to});
            return;
        }
        for (int block = from; block < to; ++block) {
            tasks_.push_back({&c, head, first, count, block, block + 1, room});
            room += state_size(count);
        }
    }

    void fold(const RowOps& ops, float* state, const float* other, int rows) const {
        const int64_t stride = v_.stride();
        for (int r = 0; r < rows; ++r)
            ops.attn_merge(state + r, state + rows + r, state + 2 * rows + r * stride, other[r], other[rows + r],
                           other + 2 * rows + r * stride, stride);
    }

    // An attention sink is one more block after all keys, with one score and no value.
    void sink(const RowOps& ops, const Task& t, float* state) const {
        if (!a_.mask.sinks) return;
        const std::vector<float> nothing(v_.stride());
        for (int r = 0; r < t.count; ++r)
            ops.attn_merge(state + r, state + t.count + r, state + 2 * t.count + int64_t(r) * v_.stride(),
                           (*a_.mask.sinks)[head_of(t, t.first + r)], 1.0f, nothing.data(), v_.stride());
    }

    void finish(Run& run, const Task& t, const float* state) const {
        for (int r = 0; r < t.count; ++r) {
            const int row = t.first + r;
            float* out = run.row(a_.out, query_row(*t.chunk, row)) + int64_t(head_of(t, row)) * v_.dim;
            run.program.ops().scale(state + 2 * t.count + int64_t(r) * v_.stride(), 1.0f / state[t.count + r], out,
                                    v_.dim);
        }
    }

    void attend(Run& run, const Task& t, unsigned thread) {
        const Chunk& c = *t.chunk;
        const RowOps& ops = run.program.ops();
        const Cache& cache = run.program.cache();
        const int rows = t.count;
        const size_t work = attn_scratch(rows, k_, v_), size = state_size(rows);
        float* room = run.scratch(thread, work + 2 * size);
        float *state = t.partial >= 0 ? partials_.data() + t.partial : room + work, *other = room + work + size;

        const float* q[kTileRows];
        int from[kTileRows], ends[kTileRows], slots[kTileRows];
        const uint8_t *k[kPagesPerBlock], *v[kPagesPerBlock], *hidden[kTileRows];
        float *kq[kTileRows], *bias[kTileRows];
        std::vector<uint8_t> masks;
        std::vector<float> biases;
        std::vector<float> raw;  // scores of all keys, for a trace
        const int64_t n_keys = c.n_keys();
        if (traced_) raw.resize(rows * n_keys);
        if (!c.regular) masks.resize(size_t(rows) * kBlock);
        if (a_.mask.slopes) biases.resize(size_t(rows) * kBlock);
        for (int r = 0; r < rows; ++r) {
            const int row = t.first + r;
            q[r] = run.row(a_.q, query_row(c, row)) + int64_t(head_of(t, row)) * k_.dim;
            slots[r] = slot(c, row);
        }
        // Keys that some row may see.
        const bool whole = traced_ || !c.regular;
        const int end = end_of(run, c, t.first, rows);
        for (int block = t.from; block < t.to; ++block) {
            const int base = block * kBlock, keys = std::min(kBlock, end - base);
            // Pages outside the first row's window were evicted and may belong to another sequence: they are not read.
            const int behind = whole ? 0 : std::max(0, a_.mask.from(slots[0]) - base) / kPage;
            for (int p = behind; p * kPage < keys; ++p) {
                const int at = block * kPagesPerBlock + p;
                k[p] = cache.page(a_.k_pool, c, at) + t.head * k_.head_bytes();
                v[p] = cache.page(a_.v_pool, c, at) + t.head * v_.head_bytes();
            }
            for (int r = 0; r < rows; ++r) {
                from[r] = std::max(0, a_.mask.from(slots[r]) - base);
                ends[r] = std::clamp(to(run, c, slots[r]) - base, 0, keys);
                if (traced_) kq[r] = raw.data() + r * n_keys + base;
                if (!c.regular) hidden[r] = hide(run, c, slots[r], base, keys, masks.data() + size_t(r) * kBlock);
                if (a_.mask.slopes) {
                    bias[r] = biases.data() + size_t(r) * kBlock;
                    lean(run, c, head_of(t, t.first + r), slots[r], base, keys, bias[r]);
                }
            }
            float* into = block == t.from ? state : other;
            ops.attend({k_, v_, a_.v_pool == a_.k_pool ? a_.v_first : -1, a_.mask.scale, a_.cap, rows, keys, behind, q, k, v,
                        from, ends, c.regular ? nullptr : hidden, a_.mask.slopes ? bias : nullptr, into, into + rows,
                        into + 2 * rows, traced_ ? kq : nullptr, room});
            if (into == other) fold(ops, state, other, rows);
        }
        if (t.partial < 0) sink(ops, t, state);
        if (traced_) trace(run, t, state, raw, slots);
        if (t.partial < 0) finish(run, t, state);
    }

    // Which keys of a block are masked for the query in `slot`, by the positions they were written with.
    const uint8_t* hide(Run& run, const Chunk& c, int slot, int base, int keys, uint8_t* mask) const {
        const int32_t* at = run.batch.key_positions.data() + c.first_key;
        const int seen = last(run, c, slot);
        for (int j = 0; j < keys; ++j) mask[j] = a_.mask.hides(at[slot], at[base + j], base + j, seen);
        return mask;
    }

    // ALiBi: the bias of a head's slope for the scores of a block.
    void lean(Run& run, const Chunk& c, int head, int slot, int base, int keys, float* bias) const {
        const int32_t* at = run.batch.key_positions.data() + c.first_key;
        for (int j = 0; j < keys; ++j) bias[j] = a_.mask.bias(head, at[slot], at[base + j]);
    }

    // kq as computed; its capped form; exp(s - m) / l with the m and l that the values were weighed by.
    void trace(Run& run, const Task& t, const float* state, const std::vector<float>& raw, const int* slots) const {
        const Chunk& c = *t.chunk;
        const RowOps& ops = run.program.ops();
        const int64_t n_keys = c.n_keys();
        std::vector<uint8_t> mask(n_keys);
        const int32_t* keys_at = run.batch.key_positions.data() + c.first_key;
        for (int r = 0; r < t.count; ++r) {
            const int row = t.first + r;
            const float* x = raw.data() + r * n_keys;
            const int64_t head = head_of(t, row);
            const int64_t at = c.first_score * a_.n_head + (head * c.n_tokens + row / group_) * n_keys;
            if (a_.kq >= 0) std::copy_n(x, n_keys, run.rows(a_.kq) + at);
            std::vector<float> s(x, x + n_keys);
            if (a_.cap != 0) ops.softcap(s.data(), a_.cap, s.data(), n_keys);
            if (a_.capped >= 0) std::copy_n(s.data(), n_keys, run.rows(a_.capped) + at);
            if (a_.soft_max < 0) continue;
            hide(run, c, slots[r], 0, static_cast<int>(n_keys), mask.data());
            float* y = run.rows(a_.soft_max) + at;
            ops.scale(s.data(), a_.mask.scale, s.data(), n_keys);
            if (a_.mask.slopes)
                for (int64_t j = 0; j < n_keys; ++j)
                    s[j] += a_.mask.bias(static_cast<int>(head), keys_at[slots[r]], keys_at[j]);
            ops.exps(s.data(), state[r], y, n_keys);
            for (int64_t j = 0; j < n_keys; ++j) y[j] = mask[j] ? 0.0f : y[j] / state[t.count + r];
        }
    }

    Attention a_;
    Domain domain_;
    PageShape k_, v_;
    int group_;
    bool traced_;
    std::vector<Task> tasks_;
    std::vector<size_t> merges_;
    std::vector<float> partials_;
};

class AttentionMerge : public Instruction {
public:
    explicit AttentionMerge(AttentionStep& step) : step_(step) { writes = step.writes; }
    Step plan(Run&) override { return step_.plan_merge(); }
    void work(Run& run, uint32_t first, uint32_t last, unsigned) override { step_.merge(run, first, last); }

private:
    AttentionStep& step_;
};

}  // namespace

void Program::attention(const Attention& a) {
    const int n_pools = static_cast<int>(cache_->shapes().size());
    if (a.k_pool < 0 || a.v_pool < 0 || a.k_pool >= n_pools || a.v_pool >= n_pools)
        throw std::invalid_argument("attention: no such cache pool");
    const PageShape &k = cache_->shapes()[a.k_pool], &v = cache_->shapes()[a.v_pool];
    const bool shared = a.k_pool == a.v_pool;
    const int64_t dim = a.n_head > 0 ? width(a.out) / a.n_head : 0;  // width of a head's value
    if (!k.keys || (v.keys && !shared) || k.heads != v.heads || a.n_head < 1 || a.n_head % k.heads ||
        !a.mask.fits(a.n_head) || width(a.q) != int64_t(a.n_head) * k.dim || width(a.out) != a.n_head * dim ||
        dim < 1 || (shared ? a.v_first < 0 || a.v_first + dim > k.dim : dim != v.dim) || domain(a.q) != domain(a.out) ||
        is_acts(a.q) || (domain(a.q) != Domain::tokens && domain(a.q) != Domain::outputs))
        throw std::invalid_argument("attention: operands do not fit together");
    for (int pool : {a.k_pool, a.v_pool}) {
        const int window = cache_->groups()[cache_->group_of(pool)].window;
        if (window && (!a.mask.reach() || a.mask.reach() > window))
            throw std::invalid_argument("attention: sees further back than its cache keeps pages");
    }
    if (a.last >= 0 && (domain(a.last) != Domain::tokens || width(a.last) != 1 || !a.mask.causal))
        throw std::invalid_argument("attention: the last slots do not fit");
    for (int s : {a.kq, a.capped, a.soft_max})
        if (s >= 0 && (domain(s) != Domain::scores || width(s) != a.n_head || domain(a.q) != Domain::tokens))
            throw std::invalid_argument("attention: traced scores do not fit");
    auto step = std::make_unique<AttentionStep>(*this, a);
    auto merge = std::make_unique<AttentionMerge>(*step);
    add(std::move(step));
    add(std::move(merge));
}

}  // namespace assay
