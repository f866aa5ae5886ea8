// Warpgroup products on tensor cores: d = d + a b for 64 rows x 8 J tokens over 16 columns of 16-bit floats (`Type`).
// Four warps accumulate in float32, and all four call these functions together.
//
// A warp has 16 of the rows, in registers as `mma` fragments. b is in shared memory, [8 J tokens][64 columns], with the
// 16-byte pieces of token t at place (piece ^ t % 8). From sm_90 on `wgmma` runs asynchronously: `a`, `d` and b must
// not be touched until `products_done<N>` has waited for all but the last N committed groups. `products_over` waits for
// all and returns the sums; without it the compiler may read them too early (tests/engines/test_cuda_code.py). Part of
// platform.h.
#pragma once

// Types of the 16-bit operands.
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

// The products of one thread, each summed in ascending order in double. The inner loop goes over tokens, because their
// sums do not depend on one another: the compiler vectorises it.
template <int J, class Type>
__attribute__((optimize("O3"))) DEVICE void multiply_now(const shim::Work& w) {
    const auto value = [](uint16_t h) { return Type::brain ? as_float(uint32_t(h) << 16) : half_to_float(h); };
    auto& d = *static_cast<float (*)[J][4]>(w.to);
    const auto& a = *static_cast<const uint32_t (*)[4]>(w.a);
    const uint8_t* const b = static_cast<const uint8_t*>(w.b);
    const int k = w.n, me = lane(), g = me / 4, t = me % 4;
    for (int i = 0; i < 4; i++) shim::warp_slots(me)[i] = a[i];
    sync_warp();
    double x[2][16], y[16][2 * J], sums[2][2 * J];
    for (int i = 0; i < 32; i++)
        x[i / 16][i % 16] = value(uint16_t(shim::warp_slots(4 * g + i % 8 / 2)[i % 16 / 8 * 2 + i / 16] >> 16 * (i % 2)));
    shim::exchanged();
    for (int n = 0; n < 2 * J; n++) {
        const int token = n / 2 * 8 + 2 * t + n % 2;
        for (int piece = 0; piece < 2; piece++) {
            const uint16_t* const from = reinterpret_cast<const uint16_t*>(b + token * 128 + ((2 * k + piece) ^ token % 8) * 16);
            for (int i = 0; i < 8; i++) y[8 * piece + i][n] = value(from[i]);
        }
        sums[0][n] = d[n / 2][n % 2], sums[1][n] = d[n / 2][2 + n % 2];
    }
    for (int row = 0; row < 2; row++)
        for (int i = 0; i < 16; i++)
            for (int n = 0; n < 2 * J; n++) sums[row][n] += x[row][i] * y[i][n];
    for (int n = 0; n < 2 * J; n++) d[n / 2][n % 2] = float(sums[0][n]), d[n / 2][2 + n % 2] = float(sums[1][n]);
    sync_warp();
}
template <int J, class Type = AsHalf>
DEVICE void multiply_rows(float (&d)[J][4], const uint32_t (&a)[4], const uint8_t* b, int k) {
    shim::products().add({multiply_now<J, Type>, &d, &a, b, k, 0});
}
#elif defined(__CUDA_ARCH_FEAT_SM90_ALL)
// orders register writes before the products
DEVICE void products_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
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
// Make this thread's writes to shared memory visible to `multiply_rows`.
DEVICE void fence_copies() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

constexpr int kPieceLanes = 1;  // arrivals of a `copy_strips` on an mbarrier of `make_places`
// A block of three warpgroups has 168 registers a thread. The producer group gives most of its registers to the two
// consumer groups. All warps of a group call these together.
DEVICE void fewer_registers() { asm volatile("setmaxnreg.dec.sync.aligned.u32 40;"); }
DEVICE void more_registers() { asm volatile("setmaxnreg.inc.sync.aligned.u32 232;"); }

// Descriptor of b: 1024 bytes from eight tokens to the next, 128-byte swizzle; the other word is the address.
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
