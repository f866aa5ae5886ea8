// Row steps: operations on each token (or key, or score) alone. One function an operation; graph/ops.py has the
// formulas, and the arithmetic is float32.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <stdexcept>

#include "program.h"

namespace assay {
// y[t] = W[token[t]], or W[position[t]]
void Program::embed(std::shared_ptr<const Weight> table, bool by_position, int out) {
    fits(table->columns() == width(out) && domain(out) == Domain::tokens && table->count() == 1, "embed");
    int64_t& limit = by_position ? n_positions : n_vocab;
    limit = std::min(limit, table->rows());
    uses(table);
    row({Domain::tokens, width(out), {}, {out}, [=](Run& run, int64_t first, int64_t last) {
             const int32_t* at = by_position ? run.batch.positions : run.batch.tokens;
             for (int64_t i = first; i < last; ++i)
                 run.program.isa().decode_row(table->matrix(), at[i], run.row(out, i));
         }});
}

// Both norms work on each of `parts` equal parts of a row; weights are those of one part, or of the whole row.

// y = x / sqrt(mean(x^2) + eps) * w
void Program::rms_norm(int x, Floats w, float eps, int parts, int out) {
    const int64_t n = width(x), each = parts > 0 ? n / parts : 0;
    if (!w) w = std::make_shared<const std::vector<float>>(std::max<int64_t>(1, each), 1.0f);
    const int64_t size = static_cast<int64_t>(w->size()), step = size == each ? 0 : each;
    fits(parts > 0 && each * parts == n && (size == each || size == n) && width(out) == n && domain(x) == domain(out),
         "rms_norm");
    row({domain(x), 2 * n, {x}, {out}, [=](Run& run, int64_t first, int64_t last) {
             for (int64_t i = first; i < last; ++i)
                 for (int64_t part = 0; part < parts; ++part)
                     run.program.ops().rms_norm(run.row(x, i) + part * each, w->data() + part * step,
                                                run.row(out, i) + part * each, each, eps);
         }});
}

// y = (x - mean(x)) / sqrt(var(x) + eps) * w + b
void Program::layer_norm(int x, Floats w, Floats b, float eps, int parts, int out) {
    const int64_t n = width(x), each = parts > 0 ? n / parts : 0;
    const int64_t size = static_cast<int64_t>(w->size()), step = size == each ? 0 : each;
    fits(parts > 0 && each * parts == n && (size == each || size == n) && (!b || b->size() == w->size()) &&
             width(out) == n && domain(x) == domain(out),
         "layer_norm");
    row({domain(x), 4 * n, {x}, {out}, [=](Run& run, int64_t first, int64_t last) {
             for (int64_t i = first; i < last; ++i)
                 for (int64_t part = 0; part < parts; ++part)
                     run.program.ops().layer_norm(run.row(x, i) + part * each, w->data() + part * step,
                                                  b ? b->data() + part * step : nullptr, run.row(out, i) + part * each,
                                                  each, eps);
         }});
}

// y = x + b, b repeated along the row
void Program::bias(int x, Floats b, int out) {
    const int64_t n = width(x), each = static_cast<int64_t>(b->size());
    fits(each > 0 && n % each == 0 && width(out) == n && domain(x) == domain(out), "bias");
    row({domain(x), n, {x}, {out}, [=](Run& run, int64_t first, int64_t last) {
             for (int64_t i = first; i < last; ++i)
                 for (int64_t at = 0; at < n; at += each)
                     run.program.ops().add(run.row(x, i) + at, b->data(), run.row(out, i) + at, each);
         }});
}

// y = x * w, w repeated along the row
void Program::gain(int x, Floats w, int out) {
    const int64_t n = width(x), each = static_cast<int64_t>(w->size());
    fits(each > 0 && n % each == 0 && width(out) == n && domain(x) == domain(out), "mul_weight");
    row({domain(x), n, {x}, {out}, [=](Run& run, int64_t first, int64_t last) {
             for (int64_t i = first; i < last; ++i) {
                 const float* p = run.row(x, i);
                 float* y = run.row(out, i);
                 for (int64_t at = 0; at < n; at += each)
                     for (int64_t j = 0; j < each; ++j) y[at + j] = p[at + j] * (*w)[j];
             }
         }});
}

void Program::binary(const std::string& op, int a, int b, int out, Act act) {
    const int64_t n = width(out), m = width(b);
    using Body = std::function<void(const RowOps&, const float*, const float*, float*)>;
    Body body;
    bool ok = width(a) == n && domain(a) == domain(out) && domain(b) == domain(out);
    if (op == "add") {
        ok &= m == n;
        body = [=](const RowOps& ops, const float* p, const float* q, float* y) { ops.add(p, q, y, n); };
    } else if (op == "glu") {  // act(a) * b
        ok &= m == n;
        body = [=](const RowOps& ops, const float* p, const float* q, float* y) { ops.glu(act, p, q, y, n); };
    } else if (op == "div") {  // y[j] = a[j] / b
        ok &= m == 1;
        body = [=](const RowOps&, const float* p, const float* q, float* y) {
            for (int64_t j = 0; j < n; ++j) y[j] = p[j] / *q;
        };
    } else if (op == "mul") {  // y[j] = a[j] b[j], or one b for all
        ok &= m == n || m == 1;
        body = [=](const RowOps&, const float* p, const float* q, float* y) {
            for (int64_t j = 0; j < n; ++j) y[j] = p[j] * q[m == 1 ? 0 : j];
        };
    } else if (op == "gather") {  // y[j] = a[b[j]]
        const int64_t from = width(a);
        ok = m == n && domain(a) == domain(out) && domain(b) == domain(out);
        body = [=](const RowOps&, const float* p, const float* q, float* y) {
            for (int64_t j = 0; j < n; ++j) y[j] = p[std::clamp<int64_t>(static_cast<int64_t>(q[j]), 0, from - 1)];
        };
    } else if (op == "expert_scale") {  // y[j, o] = a[j, o] b[j]
        ok &= n % m == 0;
        body = [=](const RowOps& ops, const float* p, const float* q, float* y) {
            for (int64_t j = 0; j < m; ++j) ops.scale(p + j * (n / m), q[j], y + j * (n / m), n / m);
        };
    } else if (op == "expert_input") {  // y[j, i] = a[i] b[j]
        const int64_t each = width(a);
        ok = n == m * each && domain(a) == domain(out) && domain(b) == domain(out);
        body = [=](const RowOps& ops, const float* p, const float* q, float* y) {
            for (int64_t j = 0; j < m; ++j) ops.scale(p, q[j], y + j * each, each);
        };
    } else {
        throw std::invalid_argument(op + ": no such step");
    }
    fits(ok, op.c_str());
    row({domain(out), n, {a, b}, {out}, [=](Run& run, int64_t first, int64_t last) {
             for (int64_t i = first; i < last; ++i)
                 body(run.program.ops(), run.row(a, i), run.row(b, i), run.row(out, i));
         }});
}

void Program::unary(const std::string& op, int x, float argument, int out) {
    const int64_t n = width(x);
    using Body = std::function<void(const RowOps&, const float*, float*)>;
    Body body;
    int64_t wanted = n;
    if (op == "scale") {
        body = [=](const RowOps& ops, const float* p, float* y) { ops.scale(p, argument, y, n); };
    } else if (op == "softcap") {
        body = [=](const RowOps& ops, const float* p, float* y) { ops.softcap(p, argument, y, n); };
    } else if (op == "softmax") {
        body = [=](const RowOps& ops, const float* p, float* y) { ops.softmax(p, y, n); };
    } else if (op == "sigmoid") {  // 1 / (1 + exp(-x))
        body = [=](const RowOps& ops, const float* p, float* y) {
            for (int64_t j = 0; j < n; ++j) y[j] = -p[j];
            ops.exps(y, 0.0f, y, n);
            for (int64_t j = 0; j < n; ++j) y[j] = 1.0f / (1.0f + y[j]);
        };
    } else if (op == "softplus") {
        body = [=](const RowOps& ops, const float* p, float* y) { ops.softplus(p, y, n); };
    } else if (op == "exp") {
        body = [=](const RowOps& ops, const float* p, float* y) { ops.exps(p, 0.0f, y, n); };
    } else if (op == "add_scalar") {
        body = [=](const RowOps&, const float* p, float* y) {
            for (int64_t j = 0; j < n; ++j) y[j] = p[j] + argument;
        };
    } else if (op == "length") {
        wanted = 1;
        body = [=](const RowOps& ops, const float* p, float* y) { *y = std::sqrt(ops.dot(p, p, n)); };
    } else if (op == "sparse_gate") {
        fits(n > 1, "sparse_gate");
        body = [=](const RowOps& ops, const float* p, float* y) { ops.sparse_gate(p, argument, y, n); };
    } else if (op == "clamp_min") {
        body = [=](const RowOps&, const float* p, float* y) {
            for (int64_t j = 0; j < n; ++j) y[j] = p[j] < argument ? argument : p[j];
        };
    } else if (op == "row_sum") {
        wanted = 1;
        body = [=](const RowOps&, const float* p, float* y) { *y = std::accumulate(p, p + n, 0.0f); };
    } else if (op == "argsort") {  // largest first, NaN last, ties to the lower index; indices as floats
        fits(n < (1 << 24), "argsort");
        body = [=](const RowOps&, const float* p, float* y) {
            std::vector<int> order(n);
            std::iota(order.begin(), order.end(), 0);
            const auto key = [&](int i) { return std::isnan(p[i]) ? -INFINITY : p[i]; };
            std::stable_sort(order.begin(), order.end(), [&](int i, int j) {
                return key(i) > key(j) || (key(i) == key(j) && std::isnan(p[j]) && !std::isnan(p[i]));
            });
            std::copy(order.begin(), order.end(), y);
        };
    } else {
        throw std::invalid_argument(op + ": no such step");
    }
    fits(width(out) == wanted && domain(x) == domain(out), op.c_str());
    row({domain(x), n, {x}, {out}, [=](Run& run, int64_t first, int64_t last) {
             for (int64_t i = first; i < last; ++i) body(run.program.ops(), run.row(x, i), run.row(out, i));
         }});
}

// y = act(x)
void Program::act(int x, Act act, int out) {
    const int64_t n = width(x);
    fits(width(out) == n && domain(x) == domain(out), "act");
    const auto ones = std::make_shared<const std::vector<float>>(n, 1.0f);
    row({domain(x), 2 * n, {x}, {out}, [=](Run& run, int64_t first, int64_t last) {
             for (int64_t i = first; i < last; ++i)
                 run.program.ops().glu(act, run.row(x, i), ones->data(), run.row(out, i), n);
         }});
}

// y = act(first half of x) * second half, for each of `parts` equal parts of a row
void Program::glu_split(int x, Act act, int parts, int out) {
    const int64_t n = width(out), each = parts > 0 ? n / parts : 0;
    fits(parts > 0 && each * parts == n && width(x) == 2 * n && domain(x) == domain(out), "glu_split");
    row({domain(x), 2 * n, {x}, {out}, [=](Run& run, int64_t first, int64_t last) {
             for (int64_t i = first; i < last; ++i)
                 for (int64_t part = 0; part < parts; ++part) {
                     const float* p = run.row(x, i) + 2 * part * each;
                     run.program.ops().glu(act, p, p + each, run.row(out, i) + part * each, each);
                 }
         }});
}

// y = g / (1 + exp(-(alpha g))) * (v + 1), g = min(gate, limit), v = up within -limit .. limit
void Program::glu_oai(int gate, int up, float alpha, float limit, int out) {
    const int64_t n = width(out);
    fits(width(gate) == n && width(up) == n && domain(gate) == domain(out) && domain(up) == domain(out), "glu_oai");
    row({domain(out), 4 * n, {gate, up}, {out}, [=](Run& run, int64_t first, int64_t last) {
             for (int64_t i = first; i < last; ++i) {
                 const float *p = run.row(gate, i), *q = run.row(up, i);
                 float* y = run.row(out, i);
                 for (int64_t j = 0; j < n; ++j) y[j] = -(alpha * (p[j] > limit ? limit : p[j]));
                 run.program.ops().exps(y, 0.0f, y, n);
                 for (int64_t j = 0; j < n; ++j) {
                     const float g = p[j] > limit ? limit : p[j];
                     const float v = q[j] > limit ? limit : q[j] < -limit ? -limit : q[j];
                     y[j] = g / (1.0f + y[j]) * (v + 1.0f);
                 }
             }
         }});
}

// y = x within lo .. hi
void Program::clamp(int x, float lo, float hi, int out) {
    const int64_t n = width(x);
    fits(width(out) == n && domain(x) == domain(out), "clamp");
    row({domain(x), n, {x}, {out}, [=](Run& run, int64_t first, int64_t last) {
             for (int64_t i = first; i < last; ++i) {
                 const float* p = run.row(x, i);
                 float* y = run.row(out, i);
                 for (int64_t j = 0; j < n; ++j) y[j] = p[j] < lo ? lo : p[j] > hi ? hi : p[j];
             }
         }});
}

// [cos(pos f_i) * magnitude for all i | sin(pos f_i) * magnitude for all i]; angles in float64
void Program::rope_table(std::vector<double> frequencies, float magnitude, int out) {
    const int64_t half = static_cast<int64_t>(frequencies.size());
    const Domain d = domain(out);
    fits(half > 0 && width(out) == 2 * half && (d == Domain::tokens || d == Domain::keys), "rope_table");
    row({d, 64 * half, {}, {out}, [=](Run& run, int64_t first, int64_t last) {
             const int32_t* positions = d == Domain::tokens ? run.batch.positions : run.batch.key_positions.data();
             for (int64_t i = first; i < last; ++i) {
                 float* y = run.row(out, i);
                 run.program.ops().rope_table(frequencies.data(), static_cast<int>(half), positions[i], magnitude, y,
                                              y + half);
             }
         }});
}

// RoPE of each head's values [offset, offset + n_rot); other values are copied
void Program::rope(int x, int table, int heads, int offset, bool neox, int out) {
    const int64_t n = width(x), n_rot = width(table), dim = heads > 0 ? n / heads : 0;
    fits(heads > 0 && dim * heads == n && offset >= 0 && offset + n_rot <= dim && width(out) == n &&
             domain(x) == domain(out) && domain(table) == domain(x),
         "rope");
    row({domain(x), 2 * n, {x, table}, {out}, [=](Run& run, int64_t first, int64_t last) {
             for (int64_t i = first; i < last; ++i) {
                 const float *turn = run.row(table, i), *p = run.row(x, i);
                 float* y = run.row(out, i);
                 if (!offset) {
                     run.program.ops().rope(p, turn, turn + n_rot / 2, y, heads, static_cast<int>(dim),
                                            static_cast<int>(n_rot), neox);
                     continue;
                 }
                 for (int h = 0; h < heads; ++h, p += dim, y += dim) {
                     if (y != p) std::copy_n(p, offset, y);
                     run.program.ops().rope(p + offset, turn, turn + n_rot / 2, y + offset, 1,
                                            static_cast<int>(dim - offset), static_cast<int>(n_rot), neox);
                 }
             }
         }});
}

// Store this step's rows in their cache slots
void Program::cache_write(int x, int pool) {
    fits(pool >= 0 && pool < static_cast<int>(cache_->shapes().size()), "cache");
    const PageShape shape = cache_->shapes()[pool];
    fits(width(x) == int64_t(shape.heads) * shape.dim && domain(x) == Domain::tokens, "cache");
    row({Domain::tokens, 2 * width(x), {x}, {}, [=](Run& run, int64_t first, int64_t last) {
             for (int64_t i = first; i < last; ++i) {
                 const Chunk& c = run.batch.chunks[run.batch.chunk_of[i]];
                 const int32_t slot = c.start + static_cast<int32_t>(i) - c.first;
                 run.program.ops().page_write(shape, run.program.cache().page(pool, c, slot / kPage),
                                              slot % kPage, run.row(x, i));
             }
         }});
}

// All rows of each sequence, as the cache holds them
void Program::cache_read(int pool, int out) {
    fits(pool >= 0 && pool < static_cast<int>(cache_->shapes().size()), "cache");
    const PageShape shape = cache_->shapes()[pool];
    fits(width(out) == int64_t(shape.heads) * shape.dim && domain(out) == Domain::keys, "cache");
    row({Domain::keys, width(out), {}, {out}, [=](Run& run, int64_t first, int64_t last) {
             for (const Chunk& c : run.batch.chunks)
                 for (int64_t i = std::max<int64_t>(first, c.first_key);
                      i < std::min<int64_t>(last, c.first_key + c.n_keys()); ++i) {
                     const int64_t slot = i - c.first_key;
                     run.program.ops().page_read(shape, run.program.cache().page(pool, c, slot / kPage),
                                                 static_cast<int>(slot % kPage), run.row(out, i));
                 }
         }});
}

// The rows whose logits are wanted
void Program::output_rows(int x, int out) {
    fits(domain(x) == Domain::tokens && domain(out) == Domain::outputs && width(x) == width(out), "output_rows");
    row({Domain::outputs, width(x), {x}, {out}, [=](Run& run, int64_t first, int64_t last) {
             for (int64_t i = first; i < last; ++i)
                 std::copy_n(run.row(x, run.batch.output_rows[i]), run.program.width(x), run.row(out, i));
         }});
}

void Program::prepare(int x, int acts) {
    const int64_t n = width(x);
    fits(width(acts) == n && domain(x) == domain(acts) && is_acts(acts), "prepare");
    const kernels::Acts form = format(acts);
    row({domain(x),
         n,
         {x},
         {acts},
         [=](Run& run, int64_t first, int64_t last) {
             const int64_t rows = run.batch.rows(run.program.domain(x));
             for (int64_t at = first; at < last;) {
                 const int64_t tile = at / kTile, base = tile * kTile, end = std::min(last, base + kTile);
                 run.program.isa().prepare(form, run.row(x, base), n, std::min(kTile, rows - base), n, at - base,
                                           end - base, run.acts(acts, tile));
                 at = end;
             }
         },
         true});
}

// ---- scores, one operation at a time --------------------------------------------------------------------------------
namespace {

// A unit is one head of one chunk.
class HeadSteps : public Instruction {
public:
    using Body = std::function<void(Run&, const Chunk&, int head)>;
    HeadSteps(int heads, std::vector<int> reads_, int out, Body body) : heads_(heads), body_(std::move(body)) {
        reads = std::move(reads_);
        writes = {out};
    }
    Step plan(Run& run) override { return {static_cast<uint32_t>(heads_ * run.batch.chunks.size())}; }
    void work(Run& run, uint32_t first, uint32_t last, unsigned) override {
        for (uint32_t u = first; u < last; ++u) body_(run, run.batch.chunks[u / heads_], u % heads_);
    }

private:
    uint32_t heads_;
    Body body_;
};

// Row t of a head's scores [n_tokens][n_keys]
float* score_row(Run& run, int value, const Chunk& c, int head, int t) {
    const int64_t keys = c.n_keys();
    return run.rows(value) + c.first_score * run.program.width(value) + (int64_t(head) * c.n_tokens + t) * keys;
}

}  // namespace

// y[h, t, s] = q[t, h] . k[s, h / group], one chain
void Program::kq(int q, int k, int heads, int kv_heads, int out) {
    fits(heads > 0 && kv_heads > 0 && heads % kv_heads == 0 && width(q) % heads == 0 && width(k) % kv_heads == 0 &&
             width(q) / heads == width(k) / kv_heads && width(out) == heads && domain(q) == Domain::tokens &&
             domain(k) == Domain::keys && domain(out) == Domain::scores,
         "kq");
    fits(!is_acts(q) && !is_acts(k), "kq");
    const int64_t dim = width(q) / heads;
    add(std::make_unique<HeadSteps>(heads, std::vector{q, k}, out, [=](Run& run, const Chunk& c, int head) {
        const int64_t kv = head / (heads / kv_heads);
        for (int t = 0; t < c.n_tokens; ++t)
            for (int s = 0; s < c.n_keys(); ++s)
                score_row(run, out, c, head, t)[s] = run.program.ops().chain(
                    run.row(q, c.first + t) + head * dim, run.row(k, c.first_key + s) + kv * dim, dim);
    }));
}

// softmax over s of scale x[h, t, s] - slope[h] |distance| for visible keys; a sink is one more score
void Program::attn_softmax(int x, const Mask& mask, int out, int last) {
    const int heads = static_cast<int>(width(x));
    fits(domain(x) == Domain::scores && domain(out) == Domain::scores && width(x) == width(out) && !is_acts(x) &&
             mask.fits(heads) && (last < 0 || (domain(last) == Domain::tokens && width(last) == 1)),
         "attn_softmax");
    add(std::make_unique<HeadSteps>(heads, last < 0 ? std::vector{x} : std::vector{x, last}, out, [=](Run& run, const Chunk& c, int head) {
        const int32_t* at = run.batch.key_positions.data() + c.first_key;
        const int n = c.n_keys();
        std::vector<float> s(n + 1);
        for (int t = 0; t < c.n_tokens; ++t) {
            const int32_t query = run.batch.positions[c.first + t];
            const int seen = last < 0 ? -1 : static_cast<int>(run.row(last, c.first + t)[0]);
            const float* in = score_row(run, x, c, head, t);
            for (int j = 0; j < n; ++j) {
                s[j] = mask.hides(query, at[j], j, seen) ? -INFINITY : in[j] * mask.scale;
                if (mask.slopes) s[j] += mask.bias(head, query, at[j]);
            }
            if (mask.sinks) s[n] = (*mask.sinks)[head];
            run.program.ops().softmax(s.data(), s.data(), n + (mask.sinks ? 1 : 0));
            std::copy_n(s.data(), n, score_row(run, out, c, head, t));
        }
    }));
}

// y[t, h] = sum_s p[h, t, s] v[s, h / group], s ascending
void Program::kqv(int p, int v, int kv_heads, int out) {
    const int heads = static_cast<int>(width(p));
    fits(kv_heads > 0 && heads % kv_heads == 0 && width(v) % kv_heads == 0 &&
             width(out) == heads * (width(v) / kv_heads) && domain(p) == Domain::scores && domain(v) == Domain::keys &&
             domain(out) == Domain::tokens && !is_acts(p) && !is_acts(v),
         "kqv");
    const int64_t dim = width(v) / kv_heads;
    add(std::make_unique<HeadSteps>(heads, std::vector{p, v}, out, [=](Run& run, const Chunk& c, int head) {
        const int64_t kv = head / (heads / kv_heads);
        for (int t = 0; t < c.n_tokens; ++t) {
            float* y = run.row(out, c.first + t) + head * dim;
            std::fill_n(y, dim, 0.0f);
            for (int s = 0; s < c.n_keys(); ++s)
                run.program.ops().axpy(score_row(run, p, c, head, t)[s], run.row(v, c.first_key + s) + kv * dim, y,
                                       dim);
        }
    }));
}

}  // namespace assay
