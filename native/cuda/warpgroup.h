// 64 rows by 8 J tokens on tensor cores, by four warps: d = d + a b over 16 columns of 16-bit floats (`Type`), sums in float32. The warps of a
// group come together. A warp has 16 of the rows, in registers as `mma` has them; b lies in shared memory, [8 J tokens][64 columns],
// the 16-byte pieces of token t at place (piece ^ t % 8). From sm_90 on (`wgmma`) the product goes on behind the warps' back: `a`, `d` and
// b are left alone until `products_done<N>` says that all but the last N sent ones are over, and `products_over` says it of all and
// gives the sums: a compiler that is not told so may compute with them before (tests/engines/test_cuda_code.py). Part of platform.h.
#pragma once

// Types of the values of a product.
struct AsHalf {
    static constexpr bool brain = false;
};
struct AsBrain {
    static constexpr bool brain = true;
};

#ifdef ASSAY_SHIM
DEVICE void products_begin() {}
DEVICE void products_sent() { shim::products().send(); }
template <int LEFT>
DEVICE void products_done() { shim::products().finish(LEFT); }
template <int J>
DEVICE void products_over(float (&)[J][4]) { products_done<0>(); }
DEVICE void fence_copies() {}
DEVICE void fewer_registers() {}
DEVICE void more_registers() {}
constexpr int kPieceLanes = 1;

template <int J, class Type>
DEVICE void multiply_now(const shim::Work& w) {
    const auto value = [](uint16_t h) { return Type::brain ? as_float(uint32_t(h) << 16) : half_to_float(h); };
    auto& d = *static_cast<float (*)[J][4]>(w.to);
    const auto& a = *static_cast<const uint32_t (*)[4]>(w.a);
    const uint8_t* const b = static_cast<const uint8_t*>(w.b);
    const int k = w.n, me = lane(), g = me / 4, t = me % 4;
    for (int i = 0; i < 4; i++) shim::warp_slots(me)[i] = a[i];
    sync_warp();
    double x[2][16];
    for (int i = 0; i < 32; i++)
        x[i / 16][i % 16] = value(uint16_t(shim::warp_slots(4 * g + i % 8 / 2)[i % 16 / 8 * 2 + i / 16] >> 16 * (i % 2)));
    shim::exchanged();
    for (int n = 0; n < 2 * J; n++) {
        const int token = n / 2 * 8 + 2 * t + n % 2;
        double sums[2] = {d[n / 2][n % 2], d[n / 2][2 + n % 2]};
        for (int i = 0; i < 16; i++) {
            const double y = value(reinterpret_cast<const uint16_t*>(b + token * 128 + ((2 * k + i / 8) ^ token % 8) * 16)[i % 8]);
            sums[0] += x[0][i] * y;
            sums[1] += x[1][i] * y;
        }
        d[n / 2][n % 2] = float(sums[0]), d[n / 2][2 + n % 2] = float(sums[1]);
    }
    sync_warp();
}
template <int J, class Type = AsHalf>
DEVICE void multiply_rows(float (&d)[J][4], const uint32_t (&a)[4], const uint8_t* b, int k) {
    shim::products().add({multiply_now<J, Type>, &d, &a, b, k, 0});
}
#elif defined(__CUDA_ARCH_FEAT_SM90_ALL)
DEVICE void products_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }  // registers are as the products shall see them
DEVICE void products_sent() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int LEFT>
DEVICE void products_done() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(LEFT) : "memory");
}
template <int J>
DEVICE void products_over(float (&d)[J][4]) {
    products_done<0>();
#pragma unroll
    for (int j = 0; j < J; j++)
#pragma unroll
        for (int e = 0; e < 4; e++) asm volatile("" : "+f"(d[j][e]));
}
// What this thread has copied to shared memory, `multiply_rows` may read.
DEVICE void fence_copies() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

constexpr int kPieceLanes = 1;  // `copy_strips` into a place of `make_places`: how many leave it
// Of a block of three groups of four warps, 168 registers a thread: one that fetches leaves most of its own to the two that multiply. By whole groups.
DEVICE void fewer_registers() { asm volatile("setmaxnreg.dec.sync.aligned.u32 40;"); }
DEVICE void more_registers() { asm volatile("setmaxnreg.inc.sync.aligned.u32 232;"); }

// Of b: 1024 bytes from eight tokens to the next, pieces swapped within 128 bytes; the word before it says where it begins.
constexpr uint32_t kSwapped = 64u | 1u << 30;
#define TYPE AsHalf
#define NAME "f16"
#include "warpgroup_table.h"
#undef TYPE
#undef NAME
#define TYPE AsBrain
#define NAME "bf16"
#include "warpgroup_table.h"
#undef TYPE
#undef NAME
template <int J, class Type = AsHalf>
DEVICE void multiply_rows(float (&d)[J][4], const uint32_t (&a)[4], const uint8_t* b, int k) {
    multiply_rows_(Type{}, d, a, (shared_address(b) >> 4 | 1u << 16) + 2 * k);
}
#else
DEVICE void products_begin() {}
DEVICE void products_sent() {}
template <int LEFT>
DEVICE void products_done() {}
template <int J>
DEVICE void products_over(float (&)[J][4]) {}
DEVICE void fence_copies() {}
DEVICE void fewer_registers() {}
DEVICE void more_registers() {}
constexpr int kPieceLanes = __CUDA_ARCH__ >= 900 ? 1 : 32;

template <int J, class Type = AsHalf>
DEVICE void multiply_rows(float (&d)[J][4], const uint32_t (&a)[4], const uint8_t* b, int k) {
    const auto multiply = [&](float (&d)[4], uint32_t b0, uint32_t b1) {
        if constexpr (Type::brain) mma_bf16(d, a, b0, b1);
        else mma_f16(d, a, b0, b1);
    };
    const int token = lane() % 8 + lane() / 16 * 8 * (J > 1), piece = 2 * k + lane() / 8 % 2;
#pragma unroll
    for (int j = 0; j < J; j += 2) {
        uint32_t two[4];
        load_matrices(two, b + (8 * j + token) * 128 + (piece ^ token % 8) * 16);
        multiply(d[j], two[0], two[1]);
        if constexpr (J > 1) multiply(d[j + 1], two[2], two[3]);
    }
}
#endif
