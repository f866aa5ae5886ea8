// Products for many tokens on a matrix unit. Included after expand.h by an instruction set that has one. V has:
//   base()                  the table of the vectors beside it: fewer tokens, floats, packing
//   matrix_from             tokens from which the unit is faster
//   chunk                   blocks of 32 along k that are expanded at once
//   Block                   32 columns of prepared activations of Block::tokens tokens: set(token, integers, quantised)
//   Session                 lives while a thread uses the unit
//   dot_loop, dot_ops       the unit's peak (kernels.h)
//   Session::product<Tile>  total[t][r] (+)= over `blocks` blocks, for the R rows of a tile and whole groups of tokens
//
// Float operations and their order are those of panel.h; only the exact integer sums differ in origin.

#include "quantise.h"

void prepare_tokens(Acts format, const float* x, int64_t ldx, int64_t m, int64_t k, int64_t begin, int64_t end,
                    void* dst) {
    if (format != Acts::Q8 || m < V::matrix_from) return V::base().prepare(format, x, ldx, m, k, begin, end, dst);
    using Block = V::Block;
    const auto row = [&](int64_t t) { return static_cast<Block*>(dst) + t / Block::tokens * (k / 32); };
    int8_t q[32];
    for (int64_t t = begin; t < end; t++)
        for (int64_t b = 0; b < k / 32; b++) {
            const Quantised block = quantise(x + t * ldx + 32 * b, q);
            row(t)[b].set(int(t % Block::tokens), q, block);
        }
    if (end != m) return;
    __builtin_memset(q, 0, sizeof q);  // zeros: computing on garbage beside the last tokens could be slow
    for (int64_t t = m; t < round_up(m, Block::tokens); t++)
        for (int64_t b = 0; b < k / 32; b++) row(t)[b].set(int(t % Block::tokens), q, Quantised{});
}

constexpr int64_t BATCH = 128;  // tokens that use an expanded panel before the next one is expanded

thread_local struct {
    alignas(64) uint8_t tile[V::chunk * AnyTile::unit_bytes];
    alignas(64) float total[BATCH][R];  // a panel's totals, contiguous: rows of `out` may share few cache sets
} scratch;

void multiply(const Matrix& w, Acts format, const void* acts, int64_t m, float* out, int64_t ldo, int64_t begin,
              int64_t end) {
    if (format != Acts::Q8 || m < V::matrix_from) return V::base().gemm(w, format, acts, m, out, ldo, begin, end);
    using Block = V::Block;
    uint8_t* const room = scratch.tile;
    float(*const total)[R] = scratch.total;
    typename V::Session session;
    const auto panel = [&](const Matrix& panels, const Rows& rows, int64_t t0, int64_t tokens) {
        expand_panels(panels, rows.first, rows.first + 1, V::chunk, room,
                      [&](auto tile, int64_t b, int64_t blocks, const Rows&, Ahead next) {
                          const int64_t stride = w.k / 32;
                          const Block* a = static_cast<const Block*>(acts) + t0 / Block::tokens * stride + b;
                          session.template product<decltype(tile)>(
                              room, blocks, a, stride, (tokens + Block::tokens - 1) / Block::tokens, b > 0, total, next);
                      });
        for (int64_t t = 0; t < tokens; t++)
            __builtin_memcpy(out + (t0 + t) * ldo + rows.first + rows.from(), total[t] + rows.from(),
                             size_t(rows.to() - rows.from()) * sizeof(float));
    };
    with_packed(packer, w, begin, end, [&](const Matrix& panels, int64_t from, int64_t to) {
        for (int64_t t = 0; t < m; t += BATCH)
            each_panel(from, to, [&](const Rows& rows) { panel(panels, rows, t, m - t < BATCH ? m - t : BATCH); });
    });
}

Isa matrix_isa(const char* name) {
    Isa table = V::base();
    table.name = name;
    table.prepare = prepare_tokens;
    table.gemm = multiply;
    table.dot_loop = V::dot_loop;
    table.dot_ops = V::dot_ops;
    return table;
}
