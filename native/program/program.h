// A program: the steps of one forward pass, compiled once from a graph, run on any batch.
//
// Values are float32 matrices. The domain of a value says what its rows are: the tokens of the batch, the tokens whose
// logits are wanted, the keys of each sequence, the scores (head, token, key), or the sequences. Steps read and write
// values; memory is planned from their order. A value that a trace keeps is bound to memory of the caller ("external").
// The step that computes it writes it there, so tracing changes only the address.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/kernels.h"
#include "kernels/rowops.h"
#include "loader.h"
#include "memory.h"
#include "pool.h"

namespace assay {

enum class Domain : int { tokens, outputs, keys, scores, sequences };
constexpr int kDomains = 5;

using Floats = std::shared_ptr<const std::vector<float>>;

inline void fits(bool ok, const char* op) {
    if (!ok) throw std::invalid_argument(std::string(op) + ": operands do not fit together");
}

// ---- weights --------------------------------------------------------------------------------------------------------
// `count` matrices of one shape (experts; 1 otherwise), mapped from the file until a task of the loader has interleaved
// them into own memory.
class Weight {
public:
    // pack: interleave. mapped: data is a mapped file, whose pages are released after packing
    Weight(std::shared_ptr<Loader> loader, const uint8_t* data, uint32_t type, int64_t count, int64_t rows,
           int64_t columns, bool pack, bool mapped);
    ~Weight();
    Weight(const Weight&) = delete;
    Weight& operator=(const Weight&) = delete;
    Loader& loader() const { return *loader_; }
    void ready() const {  // wait until it is packed, if it will be
        if (task_) loader_->wait(*task_);
    }
    kernels::Matrix matrix(int64_t i = 0) const;
    kernels::Type type() const { return type_; }
    int64_t count() const { return count_; }
    int64_t rows() const { return rows_; }
    int64_t columns() const { return columns_; }
    bool packed() const { return state_.load(std::memory_order_acquire) == kPacked; }
    size_t bytes() const;  // of own memory, also while it is being filled

private:
    enum State { kMapped, kLoading, kPacked };
    void pack(bool mapped);

    std::shared_ptr<Loader> loader_;
    std::shared_ptr<Loader::Task> task_;
    std::atomic<State> state_{kMapped};
    kernels::Type type_;
    int64_t count_, rows_, columns_;
    size_t stride_, packed_stride_ = 0;  // bytes from one matrix to the next
    const uint8_t* mapped_;
    std::shared_ptr<uint8_t> own_;
};

// ---- a batch --------------------------------------------------------------------------------------------------------
struct Chunk {
    int32_t first, n_tokens;   // its rows in the batch
    int32_t start;             // cache slot of its first token
    // a page table of `n_table` entries for each group of the cache: covers start + n_tokens slots
    const int32_t* pages;
    int32_t n_table;
    int32_t n_outputs;  // its last n_outputs tokens give logits
    int32_t first_output = 0;  // filled in by Program::run
    int32_t first_key = 0;
    int64_t first_score = 0;  // sum over earlier chunks of n_tokens * n_keys
    bool regular = true;  // every key's position is its slot, so the mask is a range
    const float* state_from = nullptr;  // its state before this step; null at the start of a sequence, which is zero
    float* state_to = nullptr;          // and after; may be the same memory
    int32_t first_stop = 0, n_stops = 1;  // its entries in Batch::stops
    int32_t n_keys() const { return start + n_tokens; }
    const int32_t* table(int group) const { return pages + int64_t(group) * n_table; }
};

// A place where the state of a chunk is kept: after `n_tokens` more of its tokens.
struct StateStop {
    int32_t n_tokens;
    float* to;
};

struct Batch {
    int32_t n_tokens = 0;
    const int32_t* tokens = nullptr;
    const int32_t* positions = nullptr;
    std::vector<Chunk> chunks;
    std::vector<StateStop> stops;       // of all chunks, where the graph keeps state; the last of a chunk is its state_to
    std::vector<float*> externals;      // in the order of Program::external
    std::vector<int64_t> capacity;      // floats in each
    int32_t n_outputs = 0, n_keys = 0;  // filled in by Program::run
    int64_t n_scores = 0;
    std::vector<int32_t> output_rows, key_positions, chunk_of;

    int64_t rows(Domain d) const {
        const int64_t counts[kDomains] = {n_tokens, n_outputs, n_keys, n_scores, static_cast<int64_t>(chunks.size())};
        return counts[int(d)];
    }
};

// ---- cache ----------------------------------------------------------------------------------------------------------
// Layers with the same window form a group with its own pages. A page of a group, 32 positions, is contiguous and has a
// part for each of the group's cache nodes ("pools"). Group 0 has no window, and its pages end with the positions.
class Cache {
public:
    struct Group {
        int window, n_pages;  // window: positions that a query sees, including its own; 0: all
        size_t page_bytes = 0;
        Pages pages{};
    };
    Cache(std::vector<Group> groups, std::vector<PageShape> pools, std::vector<int> group_of);
    const std::vector<Group>& groups() const { return groups_; }
    const std::vector<PageShape>& shapes() const { return shapes_; }
    int group_of(int pool) const { return group_of_[pool]; }
    uint8_t* page(int pool, int32_t page) const {
        const Group& g = groups_[group_of_[pool]];
        return g.pages.data() + page * g.page_bytes + offsets_[pool];
    }
    // Address of a pool in the i-th page of a chunk.
    uint8_t* page(int pool, const Chunk& c, int i) const { return page(pool, c.table(group_of_[pool])[i]); }
    // The position each key was written with.
    int32_t* positions(int32_t page) const {
        return reinterpret_cast<int32_t*>(groups_[0].pages.data() + (page + 1) * groups_[0].page_bytes) - kPage;
    }
    void copy_page(int32_t source, int32_t to, int group);
    // State slots: `floats` float32 values for each sequence, whatever its length. Untouched slots cost no memory.
    void add_states(int slots, int64_t floats);
    int state_slots() const { return state_slots_; }
    int64_t state_floats() const { return state_floats_; }
    float* state(int32_t slot) const;  // throws if there is no such slot
    void copy_state(int32_t source, int32_t to);
    std::mutex busy;  // held by the program that runs

private:
    std::vector<Group> groups_;
    std::vector<PageShape> shapes_;
    std::vector<int> group_of_;    // of each pool
    std::vector<size_t> offsets_;  // of each pool in a page of its group
    Pages states_;
    int state_slots_ = 0;
    int64_t state_floats_ = 0;
};

// ---- steps ----------------------------------------------------------------------------------------------------------
class Run;

class Instruction {
public:
    virtual ~Instruction() = default;
    virtual Step plan(Run& run) = 0;  // number of units for this batch; called by one thread
    virtual void work(Run& run, uint32_t first, uint32_t last, unsigned thread) = 0;
    std::vector<int> reads, writes;  // values
};

// An operation on each row alone: rows [first, last) of `domain`. Consecutive ones of one domain run together.
struct RowOp {
    Domain domain;
    int64_t cost;  // floats touched per row, to choose how many rows make a unit
    std::vector<int> reads, writes;
    std::function<void(Run&, int64_t first, int64_t last)> run;
    bool prepares = false;  // writes prepared activations; all other row steps write plain rows
};

// A LoRA adapter of a product: + s * factor * B (A x) where s is not 0.
struct Adapter {
    int scale;  // a value [rows, 1]: s of each row
    float factor;
    int64_t rank;
    Floats pair;  // A [rank][columns of x], then B's transpose [rank][rows of W]
};

using Adapters = std::vector<std::vector<Adapter>>;  // of each product, in order; or empty
class AdapterTerms;

// One product of a shared input: out = W x (+ adapters) (+ bias) (+ residual).
struct Product {
    std::shared_ptr<const Weight> weight;
    int out;
    Floats bias;  // or null
    int residual = -1;
};

// Which keys are masked for a query, by their positions, and the biases of visible scores.
struct Mask {
    float scale = 1;
    int window = 0, chunk = 0;
    bool causal = true;
    Floats sinks;  // an extra score of each head, or null
    Floats slopes;  // of each head: minus slope * |distance|, or null

    bool hides(int32_t query, int32_t key) const {
        const int64_t distance = int64_t(query) - key;
        if (causal ? distance < 0 || (window && distance >= window) : window && std::abs(distance) > window / 2)
            return true;
        return chunk && key < chunk_start(query);
    }
    // The same for a query that sees keys up to the slot `last`, some of them after its own: only what is far behind
    // is masked by position.
    bool hides(int32_t query, int32_t key, int slot, int last) const {
        if (last < 0) return hides(query, key);
        if (slot > last || (window && int64_t(query) - key >= window)) return true;
        return chunk && key < chunk_start(query);
    }
    // If key positions are 0, 1, 2, ..., n - 1, the query sees [from, to).
    int from(int query) const {
        const int behind = !window ? 0 : causal ? query - window + 1 : query - window / 2;
        return std::max({0, behind, chunk ? static_cast<int>(chunk_start(query)) : 0});
    }
    int to(int query, int n) const {
        return causal   ? query + 1
               : window ? static_cast<int>(std::min<int64_t>(n, int64_t(query) + window / 2 + 1))
                        : n;
    }
    float bias(int head, int32_t query, int32_t key) const {
        return -((*slopes)[head] * static_cast<float>(std::abs(int64_t(query) - key)));
    }
    // Distance from which on no query sees a key; 0: none.
    int reach() const {
        if (!causal) return 0;
        return window && chunk ? std::min(window, chunk) : std::max(window, chunk);
    }
    bool fits(int heads) const {
        return window >= 0 && chunk >= 0 && (!sinks || static_cast<int>(sinks->size()) == heads) &&
               (!slopes || static_cast<int>(slopes->size()) == heads);
    }

private:
    int64_t chunk_start(int32_t query) const {
        return (query >= 0 ? query / chunk : (query + 1) / chunk - 1) * int64_t(chunk);
    }
};

struct Attention {
    int q, out;
    int k_pool, v_pool;
    int n_head;
    float cap;
    Mask mask;
    int v_first = 0;  // if keys and values share a pool: the column of a key at which its value begins
    int kq = -1, capped = -1, soft_max = -1;  // external values for a trace, or -1
    int last = -1;  // a value [tokens, 1]: the last slot that each query sees; or -1: its own
};

// A recurrence over tokens: `heads` states of [rows][channels]; `groups` heads of keys.
struct Scan {
    int64_t heads, groups, channels, state;  // state: where it begins in a state slot, in floats
    float scale = 1;
};

class Program {
public:
    Program(std::shared_ptr<Pool> pool, std::shared_ptr<Cache> cache, bool exact);
    ~Program();

    // Values.
    int value(int64_t width, Domain domain);
    int external(int64_t width, Domain domain);  // memory of the caller, in this order
    int acts(int64_t width, Domain domain, kernels::Acts format);  // activations prepared for products
    int64_t width(int value) const { return values_.at(value).width; }
    Domain domain(int value) const { return values_.at(value).domain; }
    kernels::Acts format(int value) const { return values_.at(value).format; }
    bool is_acts(int value) const { return values_.at(value).is_acts; }

    // Steps, in order. Row steps: each is a function of a row (rows.cpp, heads.cpp and experts.cpp have the formulas).
    void embed(std::shared_ptr<const Weight> table, bool by_position, int out);
    void rms_norm(int x, Floats w, float eps, int parts, int out);              // w may be null
    void layer_norm(int x, Floats w, Floats b, float eps, int parts, int out);  // b may be null
    void bias(int x, Floats b, int out);
    void gain(int x, Floats w, int out);
    void binary(const std::string& op, int a, int b, int out,
                Act act);                                               // add, mul, glu, gather, div, expert_scale, ...
    void unary(const std::string& op, int x, float argument, int out);  // scale, softcap, softmax, argsort, ...
    void act(int x, Act act, int out);
    void glu_split(int x, Act act, int parts, int out);
    void glu_oai(int gate, int up, float alpha, float limit, int out);
    void clamp(int x, float lo, float hi, int out);
    void slice(int x, int64_t start, int parts, int out);
    void concat(int a, int b, int parts_a, int parts_b, int parts, int out);
    void pos_scale(int x, double beta, int64_t unit, int64_t offset, int out);
    void pool_rows(int x, const std::string& kind, int out);
    void group_mask(int x, int groups, int used, int out);
    void expert_rows(const std::string& op, int x, int idx, Floats rows, int out);  // expert_bias, expert_gain
    void expert_sum(int x, int out);
    void rope_table(std::vector<double> frequencies, float magnitude, int out);
    void rope(int x, int table, int heads, int offset, bool neox, int out);
    void cache_write(int x, int pool);
    void cache_read(int pool, int out);
    void output_rows(int x, int out);
    void prepare(int x, int acts);
    // Scores one operation at a time, for graphs that `attention` does not fit.
    void kq(int q, int k, int heads, int kv_heads, int out);
    void attn_softmax(int x, const Mask& mask, int out, int last = -1);  // last: as in Attention
    void kqv(int p, int v, int kv_heads, int out);
    // Layers that remember (recurrent.cpp). `state` is where a state begins in a state slot, in floats.
    void causal_conv(int x, Floats w, int64_t state, int out);
    void shift(int x, int64_t state, int out);
    void scan(const std::string& op, std::vector<int> in, Floats weight, const Scan& scan, int out);
    void show_state(const std::vector<std::pair<int64_t, int64_t>>& parts, bool is_after, int out);
    void rows_of_many(const std::string& op, std::vector<int> in, Floats w, std::vector<double> numbers, int out);
    // Products and attention.
    void row(RowOp op);
    // x: the plain rows of acts, which adapters read; -1 without adapters.
    void products(int acts, std::vector<Product> products, Adapters adapters = {}, int x = -1);
    // gate_out, up_out: values, or -1
    void glu_products(int acts, std::shared_ptr<const Weight> gate, std::shared_ptr<const Weight> up, int gate_out,
                      int up_out, int out, Act act, Adapters adapters = {}, int x = -1);
    void attention(const Attention& a);
    // idx -1: each of the weight's matrices takes its own part of a row.
    void expert_product(int x, int idx, std::shared_ptr<const Weight> weight, int out);
    void add(std::unique_ptr<Instruction> instruction);
    // A step reads this weight: every run but the loader's first step waits until it is packed.
    void uses(std::shared_ptr<const Weight> weight) { loading_.push_back(std::move(weight)); }

    const kernels::Isa& isa() const { return pool_->isa(); }
    const RowOps& ops() const { return ops_; }
    Cache& cache() const { return *cache_; }
    Pool& pool() const { return *pool_; }
    bool exact() const { return exact_; }
    int64_t n_vocab = INT32_MAX;  // tokens must be below this
    int64_t n_positions = INT32_MAX;  // and positions below this

    // Run on a batch; false if `poll` returned false. Throws on anything outside the cache or the vocabulary.
    bool run(Batch& batch, const std::function<bool()>& poll);
    size_t arena_bytes() const { return arena_.size(); }

private:
    friend class Run;
    struct Value {
        int64_t width;
        Domain domain;
        bool is_acts = false;
        kernels::Acts format{};
        int external = -1;
        size_t offset = 0;
    };
    size_t bytes(const Value& value, int64_t rows) const;
    void flush();
    void check(Batch& batch) const;
    void check_pages(const Chunk& chunk, int group, int32_t first) const;
    void check_windows(const Batch& batch) const;
    // adapters.cpp: a step that computes A x, for the products that add B; null if none has adapters
    std::shared_ptr<AdapterTerms> adapter_terms(Adapters adapters, int x, int acts, const std::vector<int64_t>& rows);
    void check_state(int64_t offset, int64_t floats, const char* op) const;
    void plan(const Batch& batch);

    std::shared_ptr<Pool> pool_;
    std::shared_ptr<Cache> cache_;
    const RowOps& ops_;
    bool exact_;
    std::vector<Value> values_;
    int n_externals_ = 0;
    std::vector<std::unique_ptr<Instruction>> code_;
    std::map<std::array<int64_t, 4>, std::shared_ptr<void>> gathered_;  // by input, choice, format and experts
    std::vector<RowOp> pending_;  // row steps not yet joined into a step
    std::vector<std::shared_ptr<const Weight>> loading_;  // weights that may not be packed yet
    int64_t planned_[kDomains] = {-1, -1, -1, -1, -1};
    Pages arena_;
    std::vector<std::vector<float>> scratch_;  // one a thread
};

// Activations are prepared in tiles of this many tokens, so that a tile stays in L2.
constexpr int64_t kTile = 128;

class Run : public Job {
public:
    Run(Program& program, Batch& batch) : program(program), batch(batch) {}
    Step next(unsigned thread) override;
    void work(uint32_t first, uint32_t last, unsigned thread) override;

    float* rows(int value) const;  // row 0
    float* row(int value, int64_t i) const { return rows(value) + i * program.values_[value].width; }
    uint8_t* acts(int value, int64_t tile) const;
    float* scratch(unsigned thread, size_t floats);

    Program& program;
    Batch& batch;

private:
    size_t at_ = 0;
};

}  // namespace assay
