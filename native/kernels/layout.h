// Interleaved layouts of quantised rows. Included once per instruction set, after its vector type V.
//
// A panel is R = V::L * V::PV consecutive rows. Weights lie in vectors of V::L rows x 4 columns ("groups" of 4 along k:
// lane r, byte j of group g is weight [r, 4 g + j]), so that one 4-byte group of activations, broadcast, meets L rows
// at once and no lane is ever added to another. Per half block (16 columns = 4 groups) and vector v of the panel:
//
//   kind   vectors
//   N8     4 a half block: one byte a weight
//   N4*    2 a half block: vector p has group p in its low nibbles, p + 2 in its high ones
//          V::paired: 4 a half block for 2 L rows: vector g has group g, rows 0..3 in its low nibbles, 4..7 in its high
//   N6     3 a half block: groups 0..2 in bits 2..7; group 3's pairs of bits, high first, in bits 0..1
//   N5     5 a block: groups 0..4 in bits 3..7; in bits 0..2 of vectors A..E: group 5 = A:3 B:2 (low bits), 6 = C:3
//   D:2,
//          7 = E:3, bit 2 of B, bit 2 of D
//   N3     1 a half block: bits 2 g are the low bits of group g; 1 a block before: bit 4 h + g is the third bit
//   N2     1 a half block: bits 2 g are group g
//
// Scales precede the quants: R f16 (and R f16 minima) per block of 32; or per super-block of 256 R f16 d, R f16 dmin,
// then a scale (and a minimum) byte per sub-block and row, V::scale_bias added. The codes are V's choice (signed or
// offset). Included inside an anonymous namespace: nothing here may be shared between translation units with different
// flags.

enum ScaleKind { SF16, SBF16 };

constexpr int L = V::L, PV = V::PV, R = L * PV, VB = 4 * L;  // rows a vector, vectors and rows a panel, vector bytes

constexpr int kind_half_bytes(Kind k) {  // bytes of a half block, one vector column
    return VB * (k == N8 ? 4 : k == N3 || k == N2 ? 1 : k == N6 ? 3 : k == N5 ? 0 : 2);
}
constexpr int kind_head_bytes(Kind k) { return k == N5 ? 5 * VB : k == N3 ? VB : 0; }  // of a block, before its halves
constexpr int kind_block_bytes(Kind k) { return PV * (2 * kind_half_bytes(k) + kind_head_bytes(k)); }

// Super: blocks of 256 with integer sub-scales; Sub16: a scale per 16; Min: has minima; Centre: subtracted from the
// codes and put into the minimum instead (five bits unpack cheaper when signed).
template <Type TYPE, Kind KIND, bool SUPER, bool SUB16, bool MIN, ScaleKind SCALE = SF16, int CENTRE = 0>
struct Layout {
    static constexpr Type type = TYPE;
    static constexpr Kind kind = KIND;
    static constexpr bool is_tile = false, super = SUPER, sub16 = SUB16, min = MIN;
    static constexpr int centre = CENTRE;
    static constexpr int bits = V::template bits<KIND>, offset = V::template offset<KIND>;
    static constexpr int multiple = V::template multiple<KIND>;  // unpacked: multiple * q + offset
    static constexpr int unit_blocks = SUPER ? 8 : 1, subs = SUB16 ? 16 : 8;
    static constexpr bool packed_min = TYPE == Type::Q2_K;  // scale and minimum share a byte
    static constexpr int d_at = 0, dmin_at = 2 * R, sc_at = MIN ? 4 * R : 2 * R;
    static constexpr int mn_at = sc_at + subs * R;
    static constexpr int quants_at = !SUPER ? sc_at : MIN && !packed_min ? mn_at + subs * R : mn_at;
    static constexpr int unit_bytes = quants_at + unit_blocks * kind_block_bytes(KIND);

    static INLINE const uint8_t* block_quants(const uint8_t* unit, int j) {
        return unit + quants_at + j * kind_block_bytes(KIND);
    }
    template <int H>
    static INLINE void quants(const uint8_t* unit, int j, int v, V::Q w[4]) {
        const uint8_t* block = block_quants(unit, j);
        if constexpr (V::template paired<KIND>) return V::template unpack_pairs<KIND>(block + 4 * VB * H, v, w);
        const uint8_t* half = block + PV * kind_head_bytes(KIND) + (H * PV + v) * kind_half_bytes(KIND);
        V::template unpack<KIND, H>(half, block + v * kind_head_bytes(KIND), w);
    }

    // What a unit's scales have in common, and the scales of its block j (half h where sub16) for the whole panel.
    struct Head {
        typename V::Factor d[PV], m[PV];
        explicit INLINE Head(const uint8_t* unit) {
            if constexpr (SUPER)
                for (int v = 0; v < PV; v++) {
                    d[v] = V::template factor<bias>(V::f16(unit + d_at + 2 * L * v));
                    if constexpr (MIN) m[v] = V::template factor<bias>(V::neg(V::f16(unit + dmin_at + 2 * L * v)));
                }
        }
    };
    static constexpr int bias = packed_min ? 0 : V::scale_bias;
    static INLINE void scales(const Head& head, const uint8_t* unit, int j, int h, V::F (&d)[PV]) {
        if constexpr (SUPER)
            V::template times<packed_min ? LOW4 : BYTE>(head.d, unit + sc_at + (SUB16 ? 2 * j + h : j) * R, d);
        else
            for (int v = 0; v < PV; v++) d[v] = SCALE == SBF16 ? V::bf16(unit + 2 * L * v) : V::f16(unit + 2 * L * v);
    }
    // Minima belonging to the centred codes; raw: to the codes of the file.
    static INLINE void minima(const Head& head, const uint8_t* unit, int j, int h, const V::F (&d)[PV], V::F (&m)[PV],
                              bool raw = false) {
        if constexpr (SUPER)
            V::template times<packed_min ? HIGH4 : BYTE>(
                head.m, unit + (packed_min ? sc_at : mn_at) + (SUB16 ? 2 * j + h : j) * R, m);
        else
            for (int v = 0; v < PV; v++) m[v] = V::f16(unit + dmin_at + 2 * L * v);
        if (CENTRE != 0 && !raw)
            for (int v = 0; v < PV; v++) m[v] = V::fma(V::set(float(CENTRE)), d[v], m[v]);
    }
};

// Plain bytes and float scales: what panels are expanded to when many tokens share them.
template <bool SUB16, bool MIN, int BITS, int OFFSET, int MULTIPLE>
struct Tile {
    static constexpr Kind kind = N8;
    static constexpr bool is_tile = true, sub16 = SUB16, min = MIN;
    static constexpr int bits = BITS, offset = OFFSET, multiple = MULTIPLE, unit_blocks = 1, centre = 0;
    static constexpr int vectors = (SUB16 ? 2 : 1) * (MIN ? 2 : 1) + V::tile_bias;
    static constexpr int quants_at = 4 * R * vectors, unit_bytes = quants_at + 32 * R;
    static constexpr int scale_at(int h) { return 4 * R * h; }
    static constexpr int min_at(int h) { return 4 * R * ((SUB16 ? 2 : 1) + h); }
    static constexpr int bias_at = 4 * R * (vectors - 1);  // where V::tile_bias: V::bias times the first scale

    template <int H>
    static INLINE void quants(const uint8_t* unit, int, int v, V::Q w[4]) {
        const uint8_t* at = unit + quants_at + (H * PV + v) * 4 * VB;
        for (int g = 0; g < 4; g++) w[g] = V::bytes(at + g * VB);
    }
    struct Head {
        explicit INLINE Head(const uint8_t*) {}
    };
    static INLINE void scales(const Head&, const uint8_t* unit, int, int h, V::F (&d)[PV]) {
        for (int v = 0; v < PV; v++) d[v] = V::load(reinterpret_cast<const float*>(unit + scale_at(h)) + L * v);
    }
    static INLINE void minima(const Head&, const uint8_t* unit, int, int h, const V::F (&)[PV], V::F (&m)[PV]) {
        for (int v = 0; v < PV; v++) m[v] = V::load(reinterpret_cast<const float*>(unit + min_at(h)) + L * v);
    }
};
template <class F>
using TileOf = Tile<F::sub16, F::min, F::bits, F::offset, F::multiple>;

using Q4_0 = Layout<Type::Q4_0, N4S, false, false, false>;
using Q4_1 = Layout<Type::Q4_1, N4U, false, false, true>;
using Q5_0 = Layout<Type::Q5_0, N5, false, false, false>;
using Q5_1 = Layout<Type::Q5_1, N5, false, false, true, SF16, 16>;
using Q8_0 = Layout<Type::Q8_0, N8, false, false, false>;
using IQ4_NL = Layout<Type::IQ4_NL, N4I, false, false, false>;
using MXFP4 = Layout<Type::MXFP4, N4M, false, false, false, SBF16>;
using Q2_K = Layout<Type::Q2_K, N2, true, true, true>;
using Q3_K = Layout<Type::Q3_K, N3, true, true, false>;
using Q4_K = Layout<Type::Q4_K, N4U, true, false, true>;
using Q5_K = Layout<Type::Q5_K, N5, true, false, true, SF16, 16>;
using Q6_K = Layout<Type::Q6_K, N6, true, true, false>;
using IQ4_XS = Layout<Type::IQ4_XS, N4I, true, false, false>;

// Call f with a value of the layout of this type; false for types without one.
template <class Function>
bool with_layout(Type type, Function f) {
    switch (type) {
        case Type::Q4_0: f(Q4_0{}); return true;
        case Type::Q4_1: f(Q4_1{}); return true;
        case Type::Q5_0: f(Q5_0{}); return true;
        case Type::Q5_1: f(Q5_1{}); return true;
        case Type::Q8_0: f(Q8_0{}); return true;
        case Type::IQ4_NL: f(IQ4_NL{}); return true;
        case Type::MXFP4: f(MXFP4{}); return true;
        case Type::Q2_K: f(Q2_K{}); return true;
        case Type::Q3_K: f(Q3_K{}); return true;
        case Type::Q4_K: f(Q4_K{}); return true;
        case Type::Q5_K: f(Q5_K{}); return true;
        case Type::Q6_K: f(Q6_K{}); return true;
        case Type::IQ4_XS: f(IQ4_XS{}); return true;
        default: return false;
    }
}
