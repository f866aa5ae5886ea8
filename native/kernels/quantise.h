// 32 values as int8 with one scale (docs/reference/arithmetic.md). Included once per instruction set, inside its namespace.

struct Quantised {
    float d;
    int32_t sum[2];  // sum of the integers of each half
};

inline __attribute__((always_inline)) Quantised quantise(const float* x, int8_t* q) {
    uint32_t bits[32], top = 0;
    __builtin_memcpy(bits, x, sizeof bits);
    for (int i = 0; i < 32; i++) {
        const uint32_t a = bits[i] & 0x7fffffff;  // ordered like |x|, NaN above all
        top = a > top ? a : top;
    }
    const float most = __builtin_bit_cast(float, top);
    if (!(most >= 0x1p-120f && most < __builtin_inff())) {  // zero or subnormal, infinite or NaN
        __builtin_memset(q, 0, 32);
        return {most < 1 ? 0.0f : __builtin_nanf(""), {0, 0}};
    }
    const float inverse = 127.0f / most;
    Quantised block{most / 127.0f, {0, 0}};
    for (int h = 0; h < 2; h++)
        for (int i = 16 * h; i < 16 * h + 16; i++) {
            const float rounded = x[i] * inverse + 12582912.0f;  // 1.5 * 2^23: the integer appears in the low bits
            const int32_t v = int32_t(__builtin_bit_cast(uint32_t, rounded) - 0x4b400000u);
            q[i] = int8_t(v);
            block.sum[h] += v;
        }
    return block;
}
