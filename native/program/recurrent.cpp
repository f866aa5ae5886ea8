// Steps of layers that remember, and the row steps that such layers need. graph/recurrent_ops.py has the formulas,
// docs/reference/arithmetic.md their bits. A state is float32, one for each sequence, in the cache's state slots.
#include <algorithm>
#include <cstring>
#include <numeric>
#include <stdexcept>

#include "program.h"

namespace assay {
namespace {

constexpr int kRowsPerUnit = 32;       // 16 KB of a state whose rows have 128 channels: they stay in L1
constexpr int kChannelsPerUnit = 256;  // of a convolution

// The part of a chunk's state that begins `offset` floats after the beginning of its slot.
const float* before(const Chunk& c, int64_t offset) { return c.state_from ? c.state_from + offset : nullptr; }
float* after(const Chunk& c, int64_t offset) { return c.state_to + offset; }

// A unit is one part of one chunk's state. A chunk whose state is kept at several of its tokens is taken in pieces, one
// after the other: each begins with the state that the one before has left.
class StateSteps : public Instruction {
public:
    using Body = std::function<void(Run&, const Chunk&, int part, unsigned thread)>;
    StateSteps(int parts, std::vector<int> reads_, int out, Body body, bool in_pieces = true)
        : parts_(static_cast<uint32_t>(parts)), body_(std::move(body)), in_pieces_(in_pieces) {
        reads = std::move(reads_);
        writes = {out};
    }
    Step plan(Run& run) override { return {static_cast<uint32_t>(parts_ * run.batch.chunks.size())}; }
    void work(Run& run, uint32_t first, uint32_t last, unsigned thread) override {
        for (uint32_t u = first; u < last; ++u) {
            const Chunk& c = run.batch.chunks[u / parts_];
            const int part = static_cast<int>(u % parts_);
            if (c.n_stops == 1 || !in_pieces_) {
                body_(run, c, part, thread);
                continue;
            }
            Chunk piece = c;
            for (int32_t i = c.first_stop; i < c.first_stop + c.n_stops; ++i) {
                const StateStop& stop = run.batch.stops[i];
                piece.n_tokens = stop.n_tokens, piece.state_to = stop.to;
                body_(run, piece, part, thread);
                piece.first += stop.n_tokens, piece.state_from = stop.to;
            }
        }
    }

private:
    uint32_t parts_;
    Body body_;
    bool in_pieces_;
};

int blocks_of(int64_t count, int each) { return static_cast<int>((count + each - 1) / each); }

// The rows of a value for the tokens of a chunk, from column `at` on.
TokenRows rows_of(Run& run, int value, const Chunk& c, int64_t at) {
    return {run.row(value, c.first) + at, static_cast<size_t>(run.program.width(value))};
}

}  // namespace

void Program::check_state(int64_t offset, int64_t floats, const char* op) const {
    if (offset < 0 || floats < 1 || offset + floats > cache_->state_floats())
        throw std::invalid_argument(std::string(op) + ": its state lies outside the state slots");
}

// y[t, c] = sum over taps of w[c, k] x[t - K + 1 + k, c]
void Program::causal_conv(int x, Floats w, int64_t state, int out) {
    const int64_t channels = width(x), taps = static_cast<int64_t>(w->size()) / channels;
    fits(taps >= 2 && taps <= kMaxTaps && taps * channels == static_cast<int64_t>(w->size()) &&
             width(out) == channels && domain(x) == Domain::tokens && domain(out) == Domain::tokens && !is_acts(x),
         "causal_conv");
    check_state(state, channels * (taps - 1), "causal_conv");
    std::vector<float> turned(w->size());
    for (int64_t c = 0; c < channels; ++c)
        for (int64_t k = 0; k < taps; ++k) turned[k * channels + c] = (*w)[c * taps + k];
    const Floats kernel = std::make_shared<const std::vector<float>>(std::move(turned));
    add(std::make_unique<StateSteps>(
        blocks_of(channels, kChannelsPerUnit), std::vector{x}, out, [=](Run& run, const Chunk& c, int part, unsigned) {
            const int64_t first = int64_t(part) * kChannelsPerUnit, at = state + first * (taps - 1);
            const int n = static_cast<int>(std::min<int64_t>(kChannelsPerUnit, channels - first));
            run.program.ops().causal_conv({c.n_tokens, n, static_cast<int>(taps), run.row(x, c.first) + first,
                                           size_t(channels), kernel->data() + first, size_t(channels), before(c, at),
                                           after(c, at), run.row(out, c.first) + first, size_t(channels)});
        }));
}

// y[t] = x[t - 1]; the state is the last row
void Program::shift(int x, int64_t state, int out) {
    const int64_t n = width(x);
    fits(width(out) == n && domain(x) == Domain::tokens && domain(out) == Domain::tokens && !is_acts(x), "shift");
    check_state(state, n, "shift");
    add(std::make_unique<StateSteps>(1, std::vector{x}, out, [=](Run& run, const Chunk& c, int, unsigned) {
        if (const float* old = before(c, state))
            std::copy_n(old, n, run.row(out, c.first));
        else
            std::fill_n(run.row(out, c.first), n, 0.0f);
        std::copy_n(run.row(x, c.first), n * (c.n_tokens - 1), run.row(out, c.first) + n);
        std::copy_n(run.row(x, c.first + c.n_tokens - 1), n, after(c, state));
    }));
}

// The scans: delta_rule, ssm_scan, wkv6, wkv7. `heads` states of [rows][channels]; see graph/recurrent_ops.py.
void Program::scan(const std::string& op, std::vector<int> in, Floats weight, const Scan& s, int out) {
    const int64_t heads = s.heads, rows = heads > 0 ? width(out) / heads : 0, channels = s.channels;
    bool ok = heads > 0 && s.groups > 0 && channels > 0 && rows > 0 && heads % s.groups == 0 &&
              width(out) == heads * rows && domain(out) == Domain::tokens;
    for (int v : in) ok &= domain(v) == Domain::tokens && !is_acts(v);
    const auto wide = [&](size_t i, int64_t n) { return i < in.size() && width(in[i]) == n; };
    const int64_t weights = weight ? static_cast<int64_t>(weight->size()) : 0;
    void (*RowOps::*kernel)(const ScanBlock&) = nullptr;
    if (op == "delta_rule") {
        kernel = &RowOps::delta_rule;
        ok &= in.size() == 5 && wide(0, s.groups * channels) && wide(1, s.groups * channels) && wide(2, heads * rows) &&
              (wide(3, heads) || wide(3, heads * channels)) && wide(4, heads);
    } else if (op == "ssm_scan") {
        kernel = &RowOps::ssm_scan;
        ok &= in.size() == 4 && wide(0, heads * rows) && wide(1, heads) && wide(2, s.groups * channels) &&
              wide(3, s.groups * channels) && (weights == heads || weights == heads * channels);
    } else if (op == "wkv6" || op == "wkv7") {
        kernel = op == "wkv6" ? &RowOps::wkv6 : &RowOps::wkv7;
        ok &= in.size() == (op == "wkv6" ? 4u : 6u) && rows == channels && weights == (op == "wkv6" ? heads * rows : 0);
        for (size_t i = 0; i < in.size(); ++i) ok &= wide(i, heads * rows);
    } else {
        throw std::invalid_argument(op + ": no such scan");
    }
    fits(ok, op.c_str());
    check_state(s.state, heads * rows * channels, op.c_str());

    // ssm_scan takes the rows of several heads in one unit, because a head of Mamba-1 is a single row. They must belong
    // to one group. The other scans take rows of one head.
    const bool is_scan = op == "ssm_scan", columns = op == "wkv6";
    const int64_t span = is_scan ? heads / s.groups * rows : rows;  // rows that share B and C, or q and k
    const int per_span = blocks_of(span, kRowsPerUnit);
    const int parts = per_span * static_cast<int>(heads * rows / span);
    const bool decays = is_scan ? weights != heads : op == "delta_rule" && !wide(3, heads);
    const std::vector<int> reads = in;
    add(std::make_unique<StateSteps>(parts, reads, out, [=](Run& run, const Chunk& c, int part, unsigned thread) {
        const int64_t which = part / per_span, from = int64_t(part % per_span) * kRowsPerUnit;
        const int n = static_cast<int>(std::min<int64_t>(kRowsPerUnit, span - from));
        const int64_t first = which * span + from;  // row of all heads
        const int64_t at = s.state + (columns ? which * rows * channels + from : first * channels);
        ScanBlock b{};
        b.tokens = c.n_tokens, b.width = static_cast<int>(channels), b.rows = n;
        b.first = is_scan ? static_cast<int>(first) : 0;
        b.head_rows = static_cast<int>(rows), b.per_channel = decays, b.scale = s.scale;
        b.from = before(c, at), b.to = after(c, at);
        b.scratch = run.scratch(thread, scan_scratch(kRowsPerUnit, static_cast<int>(channels)));
        b.out = rows_of(run, out, c, is_scan ? 0 : first);
        if (is_scan) {
            b.weight = weight->data();
            for (int i = 0; i < 2; ++i) b.in[i] = rows_of(run, in[i], c, 0);
            for (int i = 2; i < 4; ++i) b.in[i] = rows_of(run, in[i], c, which * channels);
        } else if (kernel == &RowOps::delta_rule) {
            const int64_t key = which % s.groups * channels;
            b.in[0] = rows_of(run, in[0], c, key), b.in[1] = rows_of(run, in[1], c, key);
            b.in[2] = rows_of(run, in[2], c, first), b.in[4] = rows_of(run, in[4], c, which);
            b.in[3] = rows_of(run, in[3], c, decays ? which * channels : which);
        } else {
            for (size_t i = 0; i < in.size(); ++i)  // v has a value for each row, the others one for each channel
                b.in[i] = rows_of(run, in[i], c, which * channels + (i == 3 ? from : 0));
            b.weight = weight ? weight->data() + which * channels : nullptr;
        }
        (run.program.ops().*kernel)(b);
    }));
}

// The states of one or more nodes before or after this step, side by side: one row for each sequence
void Program::show_state(const std::vector<std::pair<int64_t, int64_t>>& parts, bool is_after, int out) {
    int64_t total = 0;
    for (const auto& [offset, floats] : parts) {
        check_state(offset, floats, "state");
        total += floats;
    }
    fits(width(out) == total && domain(out) == Domain::sequences, "state");
    flush();  // a state is complete when the step before has ended
    const auto copy = [=](Run& run, const Chunk& c, int, unsigned) {
        float* y = run.row(out, &c - run.batch.chunks.data());
        for (const auto& [offset, floats] : parts) {
            const float* s = is_after ? after(c, offset) : before(c, offset);
            if (s)
                std::copy_n(s, floats, y);
            else
                std::fill_n(y, floats, 0.0f);
            y += floats;
        }
    };
    add(std::make_unique<StateSteps>(1, std::vector<int>{}, out, copy, false));
}

// ---- row steps ------------------------------------------------------------------------------------------------------
// `in` are the graph's operands in order, `w` its weight or null, `numbers` its attributes.
void Program::rows_of_many(const std::string& op, std::vector<int> in, Floats w, std::vector<double> numbers, int out) {
    const int64_t n = width(out), size = w ? static_cast<int64_t>(w->size()) : 0;
    using Body = std::function<void(const RowOps&, const float* const*, float*)>;
    Body body;
    const auto number = [&](size_t i) { return i < numbers.size() ? numbers[i] : 0.0; };
    const auto same = [&](size_t count) {
        return in.size() == count && std::all_of(in.begin(), in.end(), [&](int v) { return width(v) == n; });
    };
    bool ok = !in.empty();
    int64_t cost = 2 * n;  // floats touched per row
    if (op == "l2_norm") {  // eps, parts, floor
        const int64_t parts = static_cast<int64_t>(number(1)), each = parts > 0 ? n / parts : 0;
        const float eps = static_cast<float>(number(0));
        const bool floor = number(2) != 0;
        ok &= same(1) && parts > 0 && each * parts == n;
        body = [=](const RowOps& ops, const float* const* x, float* y) {
            for (int64_t p = 0; p < parts; ++p) ops.l2_norm(x[0] + p * each, y + p * each, each, eps, floor);
        };
    } else if (op == "xielu") {  // a, b, beta, eps
        const Xielu f{float(number(0)), float(number(1)), float(number(2)), float(number(3))};
        ok &= same(1) && numbers.size() == 4;
        body = [=](const RowOps& ops, const float* const* x, float* y) { ops.xielu(x[0], f, y, n); };
    } else if (op == "repeat_heads") {  // heads of x, heads of y
        const int64_t from = static_cast<int64_t>(number(0)), to = static_cast<int64_t>(number(1));
        const int64_t each = from > 0 ? width(in[0]) / from : 0;
        ok &= in.size() == 1 && from > 0 && to % from == 0 && each * from == width(in[0]) && each * to == n;
        body = [=](const RowOps&, const float* const* x, float* y) {
            for (int64_t h = 0; h < to; ++h) std::copy_n(x[0] + h / (to / from) * each, each, y + h * each);
        };
    } else if (op == "join") {
        std::vector<int64_t> widths;
        for (int v : in) widths.push_back(width(v));
        ok &= std::accumulate(widths.begin(), widths.end(), int64_t(0)) == n;
        body = [=](const RowOps&, const float* const* x, float* y) {
            for (size_t i = 0; i < widths.size(); ++i) y = std::copy_n(x[i], widths[i], y);
        };
    } else if (op == "head_gain") {
        ok &= same(1) && size > 0 && n % size == 0;
        body = [=](const RowOps& ops, const float* const* x, float* y) {
            for (int64_t h = 0, each = n / size; h < size; ++h) ops.scale(x[0] + h * each, (*w)[h], y + h * each, each);
        };
    } else if (op == "add_gain") {
        ok &= same(2) && size > 0 && n % size == 0;
        body = [=](const RowOps& ops, const float* const* x, float* y) {
            std::copy_n(x[0], n, y);
            for (int64_t h = 0, each = n / size; h < size; ++h) ops.axpy((*w)[h], x[1] + h * each, y + h * each, each);
        };
    } else if (op == "lerp") {
        ok &= same(3);
        body = [=](const RowOps& ops, const float* const* x, float* y) { ops.lerp(x[0], x[1], x[2], y, n); };
    } else if (op == "lerp_row") {
        ok &= same(2) && size == n;
        body = [=](const RowOps& ops, const float* const* x, float* y) { ops.lerp(x[0], x[1], w->data(), y, n); };
    } else if (op == "mix_streams") {  // streams
        const int64_t streams = static_cast<int64_t>(number(0)), each = streams > 0 ? n / streams : 0;
        ok &= in.size() == 2 && streams > 0 && each * streams == n && width(in[0]) == n &&
              width(in[1]) == streams * streams;
        body = [=](const RowOps& ops, const float* const* x, float* y) {
            for (int64_t i = 0; i < streams; ++i) {
                float* z = y + i * each;
                std::fill_n(z, each, 0.0f);
                for (int64_t j = 0; j < streams; ++j) ops.axpy(x[1][i * streams + j], x[0] + j * each, z, each);
                ops.add(x[0] + i * each, z, z, each);
            }
        };
    } else if (op == "add_to_streams") {  // streams, first
        const int64_t streams = static_cast<int64_t>(number(0)), each = streams > 0 ? n / streams : 0;
        const int64_t from = static_cast<int64_t>(number(1));
        const bool scaled = in.size() == 3;
        ok &= (scaled || in.size() == 2) && streams > 0 && each * streams == n && width(in[0]) == n &&
              width(in[1]) == each && (!scaled || width(in[2]) == streams) && from >= 0;
        body = [=](const RowOps& ops, const float* const* x, float* y) {
            std::copy_n(x[0], n, y);
            for (int64_t i = from; i < streams; ++i)
                if (scaled)
                    ops.axpy(x[2][i], x[1], y + i * each, each);
                else
                    ops.add(y + i * each, x[1], y + i * each, each);
        };
    } else if (op == "head_bonus") {  // heads
        const int64_t heads = static_cast<int64_t>(number(0)), each = heads > 0 ? n / heads : 0;
        ok &= same(4) && heads > 0 && each * heads == n && size == n;
        body = [=](const RowOps& ops, const float* const* x, float* y) {
            std::vector<float> both(each);
            for (int64_t h = 0; h < heads; ++h) {
                const int64_t at = h * each;
                for (int64_t j = 0; j < each; ++j) both[j] = x[1][at + j] * x[2][at + j];
                const float s = ops.dot(both.data(), w->data() + at, each);
                std::copy_n(x[0] + at, each, y + at);
                ops.axpy(s, x[3] + at, y + at, each);
            }
        };
    } else {
        throw std::invalid_argument(op + ": no such step");
    }
    for (int v : in) ok &= domain(v) == domain(out);
    fits(ok, op.c_str());
    const std::vector<int> reads = in;
    row({domain(out), cost, reads, {out}, [=](Run& run, int64_t first, int64_t last) {
             const float* x[8];
             for (int64_t i = first; i < last; ++i) {
                 for (size_t j = 0; j < in.size(); ++j) x[j] = run.row(in[j], i);
                 body(run.program.ops(), x, run.row(out, i));
             }
         }});
}

}  // namespace assay
