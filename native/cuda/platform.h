// The machine interface of the kernels: intrinsics and PTX, written once for a GPU and once for the host (shim.h).
//
// Everything else under native/cuda is plain C++ over these functions. The same sources run on a GPU (compiled by
// NVRTC) and under the shim (compiled by the host's compiler, with the threads of a block as coroutines). Only this
// file and warpgroup.h contain PTX. The compiler neither contracts multiply and add nor flushes subnormals; every fused
// operation is written `fma`.
#pragma once

// compute-sanitizer's racecheck does not follow an order that passes through two barriers. In that build every reader
// of a ring slot arrives on its mbarrier itself (docs/lab/gpu-measured.md).
#ifdef ASSAY_RACECHECK
constexpr bool kRacecheck = true;
#else
constexpr bool kRacecheck = false;
#endif
constexpr int kLeavers = kRacecheck ? 64 : 1;  // arrivals that free a ring slot

#ifdef ASSAY_SHIM
#include "shim.h"
#else

typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long long int64_t;
typedef unsigned long long uint64_t;

#define DEVICE __device__ __forceinline__
#define OUTLINED __device__ __noinline__
// With ASSAY_SOME, only kernels for which WANT_name is defined as `~, 1` are compiled; another one is a template that
// nothing instantiates (engines/cuda/sources.py).
#ifdef ASSAY_SOME
#define SECOND_OF(a, b, ...) b
#define WANTED_OF(...) SECOND_OF(__VA_ARGS__)
#define PASTED_OF(a, b) a##b
#define PASTED(a, b) PASTED_OF(a, b)
#define ENTRY_0 template <int UNUSED> __global__
#define ENTRY_1 extern "C" __global__
#define ENTRY(name) PASTED(ENTRY_, WANTED_OF(WANT_##name, 0, 0))
#else
#define ENTRY(name) extern "C" __global__
#endif
#define KERNEL(name, Args, threads) ENTRY(name) void __launch_bounds__(threads) name(const __grid_constant__ Args a)
// `threads`: most threads of a block; `blocks`: resident blocks of a multiprocessor that registers must suffice for.
#define CROWDED(name, Args, threads, blocks) \
    ENTRY(name) void __launch_bounds__(threads, blocks) name(const __grid_constant__ Args a)
// Cooperative launch: all blocks are resident at the same time, one a multiprocessor.
#define TOGETHER(name, Args, threads) CROWDED(name, Args, threads, 1)
#define SHARED uint8_t* const shared = shared_memory
#define NEEDS_SHARED(bytes)  // the shim checks it
#define CONSTANT __device__ const

extern __shared__ __align__(1024) uint8_t shared_memory[];

DEVICE int thread() { return threadIdx.x; }
DEVICE int threads() { return blockDim.x; }
// x, opaque to the compiler: values computed from it cannot be hoisted above this point, so they hold no registers
// earlier.
DEVICE int opaque(int x) {
    asm volatile("" : "+r"(x));
    return x;
}
DEVICE int lane() { return threadIdx.x & 31; }
DEVICE int block_x() { return blockIdx.x; }
DEVICE int block_y() { return blockIdx.y; }
DEVICE int block_z() { return blockIdx.z; }
DEVICE int grid_x() { return gridDim.x; }
DEVICE int grid_y() { return gridDim.y; }
DEVICE void sync_block() { __syncthreads(); }
DEVICE void sync_warp() { __syncwarp(); }
// Named barrier of `count` threads of a block; id: 1 to 15.
DEVICE void sync_some(int id, int count) { asm volatile("bar.sync %0, %1;" :: "r"(id), "r"(count) : "memory"); }
// arrive without waiting
DEVICE void arrive_some(int id, int count) { asm volatile("bar.arrive %0, %1;" :: "r"(id), "r"(count) : "memory"); }
DEVICE bool any_lane(bool x) { return __any_sync(~0u, x); }
DEVICE void fence() { __threadfence(); }

DEVICE float fma(float a, float b, float c) { return __fmaf_rn(a, b, c); }
DEVICE double fma(double a, double b, double c) { return __fma_rn(a, b, c); }
DEVICE float most(float a, float b) { return fmaxf(a, b); }  // neither is a NaN
DEVICE float square_root(float x) { return __fsqrt_rn(x); }
// a / b, correctly rounded like the compiler's division, but without its range checks: |a| and |b| must be between
// 2^-60 and 2^100. The reciprocal of b can be prepared before a is known.
struct Divisor {
    float b, r;
    DEVICE Divisor(float b) : b(b) {
        asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(b));
        r = __fmaf_rn(r, __fmaf_rn(-b, r, 1.0f), r);
    }
    DEVICE float under(float a) const {
        const float q = __fmul_rn(a, r);
        return __fmaf_rn(r, __fmaf_rn(-b, q, a), q);
    }
};
DEVICE float divide_near(float a, float b) { return Divisor(b).under(a); }
DEVICE float reciprocal_near(float b) { return Divisor(b).r; }
// Square root with the same rounding and without range checks: x must be between 2^-100 and 2^100.
DEVICE float square_root_near(float x) {
    float r;
    asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    const float y = __fmul_rn(x, r);
    return __fmaf_rn(__fmaf_rn(-y, y, x), __fmul_rn(r, 0.5f), y);
}
DEVICE uint32_t bits(float x) { return __float_as_uint(x); }
DEVICE float as_float(uint32_t x) { return __uint_as_float(x); }
DEVICE int dp4a(int a, int b, int c) { return __dp4a(a, b, c); }
DEVICE int dp4a(uint32_t a, int b, int c) {  // unsigned bytes of a by signed bytes of b
    int d;
    asm("dp4a.u32.s32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}
DEVICE int dp2a(uint32_t a, int b, int c) {  // two signed 16-bit values of a by the low two signed bytes of b
    int d;
    asm("dp2a.lo.s32.s32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}
DEVICE void prefetch(const void* p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p)); }  // 128 bytes to the second-level cache
DEVICE uint32_t permute(uint32_t a, uint32_t b, uint32_t selector) { return __byte_perm(a, b, selector); }
// The same, for selectors whose top bit may be set: it repeats the sign of the byte.
DEVICE uint32_t permute_signed(uint32_t a, uint32_t b, uint32_t selector) {
    uint32_t d;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(selector));
    return d;
}

DEVICE float shuffle(float x, int from) { return __shfl_sync(~0u, x, from); }
DEVICE int shuffle(int x, int from) { return __shfl_sync(~0u, x, from); }
DEVICE float shuffle_xor(float x, int mask) { return __shfl_xor_sync(~0u, x, mask); }
DEVICE int shuffle_xor(int x, int mask) { return __shfl_xor_sync(~0u, x, mask); }
DEVICE float shuffle_down(float x, int by) { return __shfl_down_sync(~0u, x, by); }
DEVICE uint32_t reduce_max(uint32_t x) { return __reduce_max_sync(~0u, x); }
DEVICE int reduce_add(int x) { return __reduce_add_sync(~0u, x); }
DEVICE uint32_t reduce_min(uint32_t x) { return __reduce_min_sync(~0u, x); }
DEVICE int fetch_add(int* p, int x) { return atomicAdd(p, x); }
DEVICE uint32_t lanes_where(bool x) { return __ballot_sync(~0u, x); }  // a bit per lane
DEVICE int count_bits(uint32_t x) { return __popc(x); }

DEVICE float half_to_float(uint16_t h) {
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h));
    return f;
}
DEVICE uint16_t half_nearest(float f) {  // f is finite and in range
    uint16_t h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(f));
    return h;
}

// f16x2: two halves in a word.
DEVICE uint32_t add_halves(uint32_t a, uint32_t b) {
    uint32_t d;
    asm("add.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
    return d;
}
DEVICE uint32_t fma_halves(uint32_t a, uint32_t b, uint32_t c) {
    uint32_t d;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}

DEVICE uint32_t masked_or(uint32_t x, uint32_t mask, uint32_t more) {  // one lop3; the compiler emits two instructions
    uint32_t d;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(d) : "r"(x), "r"(mask), "r"(more));
    return d;
}
DEVICE uint32_t low_twice(uint32_t x) {
    uint32_t d;
    asm("{.reg .b16 l, h; mov.b32 {l, h}, %1; mov.b32 %0, {l, l};}" : "=r"(d) : "r"(x));
    return d;
}
DEVICE uint32_t high_twice(uint32_t x) {
    uint32_t d;
    asm("{.reg .b16 l, h; mov.b32 {l, h}, %1; mov.b32 %0, {h, h};}" : "=r"(d) : "r"(x));
    return d;
}
DEVICE uint32_t two_halves(float low, float high) {  // both finite and in range
    uint32_t d;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low));
    return d;
}
DEVICE float power_of_two(float x) {  // error about 2 ulp
    float y;
    asm("ex2.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// Prefetch the kernel's arguments: the first access to each cache line of the constant bank is slow, so it happens
// before the kernel waits for its predecessor.
template <class Args>
DEVICE void touch(const Args& a) {
    uint32_t all = 0;
#pragma unroll
    for (int i = 0; i < int(sizeof(Args)); i += 64) all ^= reinterpret_cast<const uint32_t*>(&a)[i / 4];
    asm volatile("{\n\t.reg .pred p;\n\tsetp.eq.u32 p, %0, 0x7fb1c3d5;\n\t@p nanosleep.u32 0;\n\t}" :: "r"(all));
}

// Weights are read once: do not allocate them in L1, where they would evict activations.
DEVICE uint4 load_stream(const uint4* p) {
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
    return v;
}
DEVICE uint32_t load_stream(const uint32_t* p) {
    uint32_t v;
    asm volatile("ld.global.nc.L1::no_allocate.u32 %0, [%1];" : "=r"(v) : "l"(p));
    return v;
}
DEVICE uint32_t load_once(const uint32_t* p) {  // evict-first in L2, like copy_once
    uint32_t v;
#if __CUDA_ARCH__ >= 900
    uint64_t policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    asm volatile("ld.global.L1::no_allocate.L2::cache_hint.u32 %0, [%1], %2;" : "=r"(v) : "l"(p), "l"(policy));
#else
    v = *p;
#endif
    return v;
}
// Relaxed loads at GPU scope: the value may just have been written by another block.
DEVICE float load_fresh(const float* p) {
    float v;
    asm volatile("ld.relaxed.gpu.global.f32 %0, [%1];" : "=f"(v) : "l"(p) : "memory");
    return v;
}

DEVICE uint4 load_fresh4(const void* p) {
    uint4 v;
    asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p) : "memory");
    return v;
}
// Acquire a counter of rows that other blocks have written; the rows may then be read by loads, or by bulk copies after
// `copies_may_begin`.
DEVICE int load_acquire(const int* p) {
    int v;
    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}
DEVICE void copies_may_begin() {
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.proxy.async;" ::: "memory");
#endif
}
// Values that other blocks spin-wait for. Memory holds `kNotYet` before; no result has these bits.
constexpr uint32_t kNotYet = 0xffffffffu;
DEVICE void store_fresh(uint32_t* p, uint32_t v) { asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" :: "l"(p), "r"(v) : "memory"); }
DEVICE void store_fresh(float* p, float y) {
    store_fresh(reinterpret_cast<uint32_t*>(p), __float_as_uint(y) == kNotYet ? 0x7fffffffu : __float_as_uint(y));
}
// Spin limit: trap if the awaited value never arrives.
struct Patience {
    uint32_t left = 1u << 23;
    DEVICE void lose() {
        if (--left == 0) __trap();
    }
};

// Asynchronous copy of 16 bytes from global to shared memory. `copies_done<N>` waits for all groups but the last N.
DEVICE void copy_async(void* to, const void* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"
                 :: "r"(static_cast<uint32_t>(__cvta_generic_to_shared(to))), "l"(from) : "memory");
}
// The same with an evict-first hint: data that is read once does not evict the rest of L2.
DEVICE void copy_once(void* to, const void* from) {
#if __CUDA_ARCH__ >= 900
    uint64_t policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;"
                 :: "r"(static_cast<uint32_t>(__cvta_generic_to_shared(to))), "l"(from), "l"(policy) : "memory");
#else
    copy_async(to, from);
#endif
}
DEVICE void copy_async4(void* to, const void* from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;"
                 :: "r"(static_cast<uint32_t>(__cvta_generic_to_shared(to))), "l"(from) : "memory");
}
DEVICE void copy_async8(void* to, const void* from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8;"
                 :: "r"(static_cast<uint32_t>(__cvta_generic_to_shared(to))), "l"(from) : "memory");
}
DEVICE void copy_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int LEFT>
DEVICE void copies_done() {
    asm volatile("cp.async.wait_group %0;" :: "n"(LEFT) : "memory");
}

// Asynchronous copy of whole 16-byte vectors by a warp: `copy_piece` starts it, `piece_here` waits for it. A
// destination has an mbarrier (`Arrival`) in shared memory, initialised by its warp. `phase` is the number of earlier
// fills, modulo 2. From sm_90 on one lane issues a bulk copy.
typedef uint64_t Arrival;
DEVICE uint32_t shared_address(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }
DEVICE void make_arrivals(Arrival* first, int count) {
    for (int i = threadIdx.x & 31; i < count; i += 32)
#if __CUDA_ARCH__ >= 900
        asm volatile("mbarrier.init.shared.b64 [%0], 1;\n\tfence.mbarrier_init.release.cluster;"
#else
        asm volatile("mbarrier.init.shared.b64 [%0], 32;"
#endif
                     :: "r"(shared_address(first + i)) : "memory");
    __syncwarp();
}
// mbarriers of ring slots that another warp fills. Consumer warps arrive when they have used a slot, and the producer
// waits with `piece_here`. One lane arrives for its warp or, where two warps share a slot, for both, after a barrier.
DEVICE void make_places(Arrival* first, int count, int leavers = 1) {
    for (int i = threadIdx.x & 31; i < count; i += 32)
        asm volatile("mbarrier.init.shared.b64 [%0], %1;"
#if __CUDA_ARCH__ >= 900
                     "\n\tfence.mbarrier_init.release.cluster;"
#endif
                     :: "r"(shared_address(first + i)), "r"(leavers) : "memory");
    __syncwarp();
}
DEVICE void leave_place(Arrival* place, bool by_two = false) {
    const auto leave = [&] { asm volatile("mbarrier.arrive.shared.b64 _, [%0];" :: "r"(shared_address(place)) : "memory"); };
    if (!kRacecheck && (threadIdx.x & 31) == 0) leave();
    for (int times = by_two ? 1 : 2; kRacecheck && times; times--) leave();
}
DEVICE void copy_piece(void* to, const void* from, int bytes, Arrival* arrival) {
#if __CUDA_ARCH__ >= 900
    if ((threadIdx.x & 31) == 0) {
        asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" :: "r"(shared_address(arrival)), "r"(bytes) : "memory");
        uint64_t policy;  // evict-first: weights are read once
        asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;"
                     :: "r"(shared_address(to)), "l"(from), "r"(bytes), "r"(shared_address(arrival)), "l"(policy) : "memory");
    }
#else
    for (int i = (threadIdx.x & 31) * 16; i < bytes; i += 512)
        copy_async(static_cast<uint8_t*>(to) + i, static_cast<const uint8_t*>(from) + i);
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" :: "r"(shared_address(arrival)) : "memory");
#endif
}
// `count` strips of `bytes`, `step` bytes apart in memory, packed into shared memory. Without a hint: other blocks read
// them as well.
DEVICE void copy_strips(void* to, const void* from, int bytes, int count, int64_t step, Arrival* arrival) {
#if __CUDA_ARCH__ >= 900
    if ((threadIdx.x & 31) == 0) {
        asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" :: "r"(shared_address(arrival)), "r"(bytes * count) : "memory");
        for (int i = 0; i < count; i++)
            asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                         :: "r"(shared_address(to) + i * bytes), "l"(static_cast<const uint8_t*>(from) + i * step), "r"(bytes),
                            "r"(shared_address(arrival)) : "memory");
    }
#else
    for (int n = 0; n < count; n++)
        for (int i = (threadIdx.x & 31) * 16; i < bytes; i += 512)
            copy_async(static_cast<uint8_t*>(to) + n * bytes + i, static_cast<const uint8_t*>(from) + n * step + i);
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" :: "r"(shared_address(arrival)) : "memory");
#endif
}
// The same by one lane, to a slot of `make_places`.
DEVICE void copy_by_lane(void* to, const void* from, int bytes, Arrival* place) {
#if __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" :: "r"(shared_address(place)), "r"(bytes) : "memory");
    uint64_t policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;"
                 :: "r"(shared_address(to)), "l"(from), "r"(bytes), "r"(shared_address(place)), "l"(policy) : "memory");
#else
    for (int i = 0; i < bytes; i += 16) copy_async(static_cast<uint8_t*>(to) + i, static_cast<const uint8_t*>(from) + i);
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" :: "r"(shared_address(place)) : "memory");
#endif
}
DEVICE void piece_here(Arrival* arrival, int phase) {
    uint32_t done;
    do {
        asm volatile("{\n\t.reg .pred p;\n\t"
#if __CUDA_ARCH__ >= 900
                     "mbarrier.try_wait.parity.shared.b64 p, [%1], %2;\n\t"
#else
                     "mbarrier.test_wait.parity.shared.b64 p, [%1], %2;\n\t"
#endif
                     "selp.u32 %0, 1, 0, p;\n\t}" : "=r"(done) : "r"(shared_address(arrival)), "r"(phase) : "memory");
    } while (!done);
}

// Programmatic dependent launch: `next_may_start` lets the following kernel begin work that does not depend on this
// one. `wait_for_previous` returns when all writes of earlier kernels are visible. GPUs before sm_90 run kernels one by
// one.
DEVICE void next_may_start() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
DEVICE void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// d = a b + start over int8, m16n8k32. With g = lane / 4 and t = lane % 4: a is 16 x 32 (row g: words a[0], a[2]; row g
// + 8: a[1], a[3]), b is 32 x 8. d[0], d[1] are row g, columns 2 t and 2 t + 1; d[2], d[3] are row g + 8.
DEVICE void mma_k32(int (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, int start) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%10,%10,%10};"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(start));
}
// m16n8k16: a0 is row g, a1 row g + 8.
DEVICE void mma_k16(int (&d)[4], uint32_t a0, uint32_t a1, uint32_t b, int start) {
    asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%7,%7,%7,%7};"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3]) : "r"(a0), "r"(a1), "r"(b), "r"(start));
}
// ldmatrix: four or two matrices of 8 rows x 16 bytes from shared memory. Lane l gives the address of row l % 8 of
// matrix l / 8, and gets word l % 4 of row l / 4 of each.
DEVICE void load_matrices(uint32_t (&d)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
                 : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(row))) : "memory");
}
DEVICE void load_matrices(uint32_t (&d)[2], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];"
                 : "=r"(d[0]), "=r"(d[1]) : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(row))) : "memory");
}
// ldmatrix.trans: four matrices of 8 x 8 halves, transposed. The lane gets halves l / 4 of rows 2 (l % 4) and the next.
DEVICE void load_matrices_turned(uint32_t (&d)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3]) : "r"(shared_address(row)) : "memory");
}
// d = a b + d over 16-bit floats, m16n8k16, accumulated in float32. a[0] and a[1] are rows g and g + 8, columns 2 t and
// 2 t + 1; a[2] and a[3] are the same from column 8 on; b0 and b1 likewise.
DEVICE void mma_f16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
DEVICE void mma_bf16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

#endif
