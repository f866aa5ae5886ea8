// Interleaved layouts of quantised rows. Included once per instruction set, after its vector type V.
//
// A panel is R = V::L * V::PV consecutive rows. Weights are in vectors of V::L rows x 4 columns ("groups" of 4 along k:
// lane r, byte j of group g is weight [r, 4 g + j]). One 4-byte group of activations, broadcast, then meets L rows at
// once, and no sum ever crosses lanes. Per half block (16 columns = 4 groups) and vector v of the panel:
//
//   kind   vectors
//   N8     4 a half block: one byte a weight
//   N4*    2 a half block: vector p has group p in its low nibbles, p + 2 in its high ones
//          V::paired: 4 a half block for 2 L rows: vector g has group g, rows 0..3 in its low nibbles, 4..7 in its high
//   N6     3 a half block: groups 0..2 in bits 2..7; group 3's pairs of bits, high first, in bits 0..1
//   N5     5 a block: groups 0..4 in bits 3..7; in bits 0..2 of vectors A..E: group 5 = A:3 B:2 (low bits), 6 = C:3
//   D:2,
//          7 = E:3, bit 2 of B, bit 2 of D
//   N3*    1 a half block: bits 2 g are the low bits of group g; 1 a block before: bit 4 h + g is the third bit
//   N2*    1 a half block: bits 2 g are group g
//          V::paired: 4 a block for 2 L rows: vector g has group g in its low nibbles, g + 4 in its high, each two rows
//
// Scales precede the quants: R f16 (and R f16 minima) per block of 32; or per super-block of 256 R f16 d, R f16 dmin,
// then a scale (and a minimum) byte per sub-block and row, V::scale_bias added. The codes are V's choice (signed or
// offset). Included inside an anonymous namespace: nothing here may be shared between translation units with different
// flags.

template <int N, class Function>
INLINE void unroll(Function f) {
    [&]<size_t... I>(std::index_sequence<I...>) __attribute__((always_inline)) {
        (f(std::integral_constant<int, int(I)>{}), ...);
    }
    (std::make_index_sequence<size_t(N)>{});
}
// f(0) to f(N - 1), unrolled by the compiler: one copy of f, where `unroll` makes N. For an index that need not be a
// constant.
template <int N, class Function>
INLINE void loop(Function f) {
#if defined(__aarch64__) || defined(__OPTIMIZE_SIZE__)
    unroll<N>(f);  // there, the lane of a register is a constant
#else
#pragma GCC unroll 8
    for (int i = 0; i < N; i++) f(i);
#endif
}

template <class T>
void put(uint8_t* at, T value) {
    __builtin_memcpy(at, &value, sizeof value);
}

constexpr int64_t round_up(int64_t x, int64_t to) { return (x + to - 1) / to * to; }
constexpr int64_t float_columns(int64_t k) { return round_up(k, 4); }  // of a panel of F32, F16 or BF16

enum ScaleKind { SF16, SBF16 };

constexpr int L = V::L, PV = V::PV, R = L * PV, VB = 4 * L;  // rows a vector, vectors and rows a panel, vector bytes

constexpr int kind_half_bytes(Kind k) {  // bytes of a half block, one vector column
    constexpr int vectors[9] = {0, 0, 1, 1, 2, 0, 3, 0, 4};
    return VB * vectors[kind_bits(k)];
}
constexpr int kind_head_bytes(Kind k) {  // of a block, before its halves
    return VB * (kind_bits(k) == 5 ? 5 : kind_bits(k) == 3 ? 1 : 0);
}
constexpr int kind_block_bytes(Kind k) { return PV * (2 * kind_half_bytes(k) + kind_head_bytes(k)); }

// Super: blocks of 256 with integer sub-scales. Sub16: a scale per 16. Min: has minima. Centre: subtracted from the
// codes and added to the minimum instead, because five bits unpack cheaper when signed. Subs: sub-scales of a
// super-block. Eighths: of the file's scale, which a sub-scale multiplies.
template <Type TYPE, Kind KIND, bool SUPER, bool SUB16, bool MIN, ScaleKind SCALE = SF16, int CENTRE = 0,
          int SUBS = SUB16 ? 16 : 8, int EIGHTHS = 8>
struct Layout {
    static constexpr Type type = TYPE;
    static constexpr Kind kind = KIND;
    static constexpr bool is_tile = false, by_rows = false, super = SUPER, sub16 = SUB16, min = MIN;
    static constexpr int centre = CENTRE, eighths = EIGHTHS;
    static constexpr int bits = V::template bits<KIND>, offset = V::template offset<KIND>;
    static constexpr int multiple = V::template multiple<KIND>;  // unpacked: multiple * q + offset
    static constexpr bool apart = TYPE == Type::NVFP4;  // each half block has an f16 scale of its own
    static constexpr bool pairs = TYPE == Type::NVFP4 || TYPE == Type::Q1_0 || TYPE == Type::Q2_0;
    static constexpr int unit_blocks = pairs ? 2 : SUPER ? 8 : 1;
    static constexpr int subs = SUBS;
    static constexpr bool packed_min = TYPE == Type::Q2_K;  // scale and minimum share a byte
    static constexpr int d_at = 0, dmin_at = 2 * R, sc_at = MIN ? 4 * R : 2 * R;
    static constexpr int mn_at = sc_at + subs * R;
    static constexpr int quants_at = apart                ? 4 * unit_blocks * R
                                     : !SUPER             ? sc_at
                                     : MIN && !packed_min ? mn_at + subs * R
                                                          : mn_at;
    static constexpr int unit_bytes = quants_at + unit_blocks * kind_block_bytes(KIND);

    static INLINE const uint8_t* block_quants(const uint8_t* unit, int j) {
        return unit + quants_at + j * kind_block_bytes(KIND);
    }
    template <int H>
    static INLINE void quants(const uint8_t* unit, int j, int v, V::Q w[4]) {
        const uint8_t* block = block_quants(unit, j);
        if constexpr (V::template paired<KIND>) return V::template unpack_pairs<KIND, H>(block, v, w);
        const uint8_t* half = block + PV * kind_head_bytes(KIND) + (H * PV + v) * kind_half_bytes(KIND);
        V::template unpack<KIND, H>(half, block + v * kind_head_bytes(KIND), w);
    }

    // The scale of a unit, and the scales of its block j (half h if sub16) for the whole panel.
    struct Head {
        typename V::Factor d[PV], m[PV];
        typename V::F one[PV];  // for types without sub-scales
        explicit INLINE Head(const uint8_t* unit) {
            if constexpr (SUBS == 0)
                for (int v = 0; v < PV; v++) one[v] = V::f16(unit + d_at + 2 * L * v);
            else if constexpr (SUPER)
                for (int v = 0; v < PV; v++) {
                    const typename V::F block = V::f16(unit + d_at + 2 * L * v);
                    d[v] = V::template factor<bias>(EIGHTHS == 8 ? block : V::mul(block, V::set(EIGHTHS / 8.0f)));
                    if constexpr (MIN) m[v] = V::template factor<bias>(V::neg(V::f16(unit + dmin_at + 2 * L * v)));
                }
        }
    };
    static constexpr int sub(int j, int h) { return SUBS == 16 ? 2 * j + h : j; }
    static constexpr int bias = packed_min ? 0 : V::scale_bias;
    static INLINE void scales(const Head& head, const uint8_t* unit, int j, int h, V::F (&d)[PV]) {
        if constexpr (SUBS == 0)
            for (int v = 0; v < PV; v++) d[v] = head.one[v];
        else if constexpr (SUPER)
            V::template times<packed_min ? LOW4 : BYTE>(head.d, unit + sc_at + sub(j, h) * R, d);
        else
            for (int v = 0; v < PV; v++) {
                const uint8_t* at = unit + (apart ? (2 * j + h) * 2 * R : 0) + 2 * L * v;
                d[v] = SCALE == SBF16 ? V::bf16(at) : V::f16(at);
            }
    }
    // Minima of the centred codes; raw: of the codes of the file.
    static INLINE void minima(const Head& head, const uint8_t* unit, int j, int h, const V::F (&d)[PV], V::F (&m)[PV],
                              bool raw = false) {
        if constexpr (SUPER)
            V::template times<packed_min ? HIGH4 : BYTE>(head.m, unit + (packed_min ? sc_at : mn_at) + sub(j, h) * R,
                                                         m);
        else
            for (int v = 0; v < PV; v++) m[v] = V::f16(unit + dmin_at + 2 * L * v);
        if (CENTRE != 0 && !raw)
            for (int v = 0; v < PV; v++) m[v] = V::fma(V::set(float(CENTRE)), d[v], m[v]);
    }
};

// Offset of columns 4 i .. 4 i + 3 of row r among the bytes of a tile's block.
constexpr int tile_at(int r, int i) {
    return V::order == HALVES    ? ((i / 4 * PV + r / L) * 4 + i % 4) * VB + r % L * 4
           : V::order == VECTORS ? (r / L * 8 + i) * VB + r % L * 4
                                 : (i / 2 * R / 2 + r / 2) * 16 + r % 2 * 8 + i % 2 * 4;
}
// Offset of half h, 16 columns, of vector v.
INLINE void store_tile(uint8_t* quants, int h, int v, const V::Q (&w)[4]) {
    if constexpr (V::order == PAIRS)
        for (int g = 0; g < 4; g += 2)
            V::store_pairs(quants + tile_at(L * v, 4 * h + g), quants + tile_at(L * v + 2, 4 * h + g), w[g], w[g + 1]);
    else
        for (int g = 0; g < 4; g++) V::store_bytes(quants + tile_at(L * v, 4 * h + g), w[g]);
}

// Plain bytes and float scales: panels are expanded to these when many tokens share them. Matrix units take signed
// codes, so one type of tile serves many types of weights.
template <Kind KIND>
constexpr int tile_offset = V::order == HALVES ? V::template offset<KIND> : 0;
template <bool SUB16, bool MIN, int BITS, int OFFSET, int MULTIPLE>
struct Tile {
    static constexpr Kind kind = N8;
    static constexpr bool is_tile = true, by_rows = false, sub16 = SUB16, min = MIN;
    static constexpr int bits = BITS, offset = OFFSET, multiple = MULTIPLE, unit_blocks = 1, centre = 0;
    static constexpr int vectors = (SUB16 ? 2 : 1) * (MIN ? 2 : 1) + V::tile_bias;
    static constexpr int quants_at = 4 * R * vectors, unit_bytes = quants_at + 32 * R;
    static constexpr int scale_at(int h) { return 4 * R * h; }
    static constexpr int min_at(int h) { return 4 * R * ((SUB16 ? 2 : 1) + h); }
    static constexpr int bias_at = 4 * R * (vectors - 1);  // if V::tile_bias: V::bias times the first scale

    template <int H>
    static INLINE void quants(const uint8_t* unit, int, int v, V::Q w[4]) {
        for (int g = 0; g < 4; g++) w[g] = V::bytes(unit + quants_at + tile_at(L * v, 4 * H + g));
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
// The same with a row's 32 bytes together, in the file's order: nothing is transposed or packed. For a single token,
// which uses each weight once; the sum of a row crosses lanes, and is exact.
template <bool SUB16, bool MIN>
struct RowTile : Tile<SUB16, MIN, 8, 0, 1> {
    static constexpr bool by_rows = true;
};
template <class F>
using TileOf = Tile<F::sub16, F::min, F::bits, tile_offset<F::kind>, F::multiple>;

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
using Q8_1 = Layout<Type::Q8_1, N8, false, true, false>;
using IQ3_XXS = Layout<Type::IQ3_XXS, N4X, true, true, false, SF16, 0, 8, 2>;
using IQ3_S = Layout<Type::IQ3_S, N4O, true, true, false, SF16, 0, 8>;
using IQ2_XXS = Layout<Type::IQ2_XXS, N3P, true, true, false, SF16, 0, 8, 1>;
using IQ2_XS = Layout<Type::IQ2_XS, N3P, true, true, false, SF16, 0, 16, 1>;
using IQ2_S = Layout<Type::IQ2_S, N3P, true, true, false, SF16, 0, 16, 1>;
using IQ1_S = Layout<Type::IQ1_S, N3T, true, true, false, SF16, 0, 8, 1>;
using IQ1_M = Layout<Type::IQ1_M, N3T, true, true, false, SF16, 0, 16, 1>;
using NVFP4 = Layout<Type::NVFP4, N4M, false, true, false>;
using Q1_0 = Layout<Type::Q1_0, N2T, true, false, false, SF16, 0, 0>;
using Q2_0 = Layout<Type::Q2_0, N2T, true, false, false, SF16, 0, 0>;
using TQ1_0 = Layout<Type::TQ1_0, N2T, true, false, false, SF16, 0, 0>;
using TQ2_0 = Layout<Type::TQ2_0, N2T, true, false, false, SF16, 0, 0>;

// Two types may differ in the file alone: the layout of whichever comes first stands for both where nothing is packed.
template <class F>
struct Packed {
    using Same = F;
};
template <>
struct Packed<IQ2_S> {
    using Same = IQ2_XS;
};
template <>
struct Packed<TQ1_0> {
    using Same = TQ2_0;
};
template <>
struct Packed<Q1_0> {
    using Same = Q2_0;
};

constexpr bool is_float(Type type) { return type == Type::F32 || type == Type::F16 || type == Type::BF16; }

// Types that products read in place, if V::reads_rows: packing a panel first takes longer than its product. Floats for
// any number of tokens, the quantised types for a single one.
constexpr bool rows_are_faster(Type type) {
    return type != Type::IQ4_NL && type != Type::IQ4_XS && type != Type::MXFP4 && type != Type::NVFP4;
}
constexpr bool in_place(Type type, Acts format, int64_t m) {
    return V::reads_rows && (is_float(type) || (format == Acts::Q8 && m == 1 && rows_are_faster(type)));
}

// Call f with a value of the layout of this type. False for types without a layout: floats, and Q8_K.
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
        case Type::Q8_1: f(Q8_1{}); return true;
        case Type::IQ3_XXS: f(IQ3_XXS{}); return true;
        case Type::IQ3_S: f(IQ3_S{}); return true;
        case Type::IQ2_XXS: f(IQ2_XXS{}); return true;
        case Type::IQ2_XS: f(IQ2_XS{}); return true;
        case Type::IQ2_S: f(IQ2_S{}); return true;
        case Type::IQ1_S: f(IQ1_S{}); return true;
        case Type::IQ1_M: f(IQ1_M{}); return true;
        case Type::NVFP4: f(NVFP4{}); return true;
        case Type::Q1_0: f(Q1_0{}); return true;
        case Type::Q2_0: f(Q2_0{}); return true;
        case Type::TQ1_0: f(TQ1_0{}); return true;
        case Type::TQ2_0: f(TQ2_0{}); return true;
        default: return false;
    }
}
