// The host's implementation of platform.h: the threads of a block are coroutines that switch at barriers, and the lanes
// of a warp exchange values through memory.
//
// It finds wrong indices and wrong bits on any machine, in seconds. With a seed (shim_weather) it also finds kernels
// that are right only for one order of threads and copies.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define DEVICE inline
#define OUTLINED inline
#define SHARED uint8_t* const shared = shim::state.shared
// A launch must have at least the bytes of shared memory that the kernel's formula in abi.h gives.
#define NEEDS_SHARED(bytes) shim::needs_shared(bytes)
#define CONSTANT static const
#define KERNEL(name, Args, most_threads) KERNEL_OF(name, Args, most_threads, false)
#define KERNEL_OF(name, Args, most_threads, together)                                 \
    static void body_##name(const Args& a);                                           \
    extern "C" int shim_threads_##name() { return most_threads; }                     \
    extern "C" int shim_args_##name() { return int(sizeof(Args)); }                   \
    extern "C" void shim_##name(const int* grid, int count, int bytes, const void* a) { \
        shim::launch(grid, count, bytes, most_threads, together, [=] { body_##name(*static_cast<const Args*>(a)); }); \
    }                                                                                 \
    static void body_##name(const Args& a)

#define CROWDED(name, Args, most_threads, blocks) KERNEL(name, Args, most_threads)
#define TEAM (32 * kWalkWarps)  // walk.cu and its variants share one value here
#define TOGETHER(name, Args, most_threads) KERNEL_OF(name, Args, most_threads, true)

// Aligned as on a GPU, where a misaligned access faults; the sanitizing build reports it.
struct alignas(16) uint4 { uint32_t x, y, z, w; };
struct alignas(8) uint2 { uint32_t x, y; };
struct alignas(16) int4 { int32_t x, y, z, w; };
struct alignas(8) float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };

namespace shim {

struct State {
    int thread = 0, threads = 0, block[3] = {}, grid[3] = {}, shared_bytes = 0;
    uint8_t* shared = nullptr;
    uint32_t* slots = nullptr;  // exchange memory of this thread's warp: two sets of 32 x 16 words
    int* exchanged = nullptr;  // exchanges of this thread's warp so far; the two sets alternate
};
extern State state;

void run_blocks(const int* grid, int threads, int shared_bytes, int most_threads, bool together, void (*body)(void*), void* context);
void needs_shared(int bytes);
void barrier_block();
void pause();  // let other threads run
void barrier_warp();
void barrier_some(int id, int count, bool wait = true);
// 16 words of each lane of this thread's warp. An exchange is: write, barrier, read, `exchanged`. The next exchange
// uses the other set, so it cannot overwrite a word that a slower lane has yet to read.
inline uint32_t* warp_slots(int lane) { return state.slots + ((*state.exchanged & 1) * 32 + lane) * 16; }
inline void exchanged() { ++*state.exchanged; }

// Asynchronous work that a thread commits in groups. It is done at once or, with a seed, only when the thread waits for
// it.
struct Work {
    void (*run)(const Work&);
    void* to;
    const void *a, *b;
    int n, group;
};
struct Queue {
    std::vector<Work> work;
    int sent = 0;
    bool late() const;
    void add(Work one);
    void send() { sent++; }
    void finish(int left);  // all groups but the last `left`
};
Queue& copies();  // of the running thread
Queue& products();
// A bulk copy that completes on an mbarrier. `land` does a delayed copy to this mbarrier, if there is one.
void bulk(void* to, const void* from, int bytes, uint64_t* arrival, int count = 1, int64_t step = 0);
bool land(uint64_t* arrival);
inline void arrive(uint64_t* place) {  // make_places describes the counts
    if ((*place >> 32 & 0xffff) < *place >> 48) *place += uint64_t(1) << 32;
    else *place = (*place & ~(uint64_t(0xffff) << 32)) + 1;
}

template <class F>
void launch(const int* grid, int threads, int shared_bytes, int most_threads, bool together, F body) {
    run_blocks(grid, threads, shared_bytes, most_threads, together, [](void* f) { (*static_cast<F*>(f))(); }, &body);
}

template <class T>
T exchange(T x, int from) {
    static_assert(sizeof(T) == 4);
    std::memcpy(warp_slots(state.thread & 31), &x, 4);
    barrier_warp();
    T y;
    std::memcpy(&y, warp_slots(from & 31), 4);
    exchanged();
    return y;
}

// The values of all 32 lanes combined by `combine`, which must not depend on the order.
template <class T, class F>
T combine_lanes(T x, F combine) {
    static_assert(sizeof(T) == 4);
    std::memcpy(warp_slots(state.thread & 31), &x, 4);
    barrier_warp();
    T found = x;
    for (int i = 0; i < 32; i++) {
        if (i == (state.thread & 31)) continue;
        T y;
        std::memcpy(&y, warp_slots(i), 4);
        found = combine(found, y);
    }
    exchanged();
    return found;
}

}  // namespace shim

inline int thread() { return shim::state.thread; }
inline int opaque(int x) { return x; }
inline int threads() { return shim::state.threads; }
inline int lane() { return shim::state.thread & 31; }
inline int block_x() { return shim::state.block[0]; }
inline int block_y() { return shim::state.block[1]; }
inline int block_z() { return shim::state.block[2]; }
inline int grid_x() { return shim::state.grid[0]; }
inline int grid_y() { return shim::state.grid[1]; }
inline void sync_block() { shim::barrier_block(); }
inline void sync_warp() { shim::barrier_warp(); }
inline void sync_some(int id, int count) { shim::barrier_some(id, count); }
inline void arrive_some(int id, int count) { shim::barrier_some(id, count, false); }
inline bool any_lane(bool x) {
    return shim::combine_lanes(int(x), [](int a, int b) { return a | b; });
}
inline void fence() {}

inline float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
inline double fma(double a, double b, double c) { return __builtin_fma(a, b, c); }
inline float most(float a, float b) { return a < b ? b : a; }
inline float square_root(float x) { return std::sqrt(x); }
struct Divisor {
    float b;
    Divisor(float b) : b(b) {}
    float under(float a) const { return a / b; }
};
inline float reciprocal_near(float b) { return 1.0f / b; }
inline float square_root_near(float x) { return std::sqrt(x); }
inline float divide_near(float a, float b) { return a / b; }
inline uint32_t bits(float x) { return __builtin_bit_cast(uint32_t, x); }
inline float as_float(uint32_t x) { return __builtin_bit_cast(float, x); }
inline int dp4a(int a, int b, int c) {
    for (int i = 0; i < 4; i++) c += int8_t(uint32_t(a) >> 8 * i) * int8_t(uint32_t(b) >> 8 * i);
    return c;
}
inline int dp4a(uint32_t a, int b, int c) {
    for (int i = 0; i < 4; i++) c += int(a >> 8 * i & 255) * int8_t(uint32_t(b) >> 8 * i);
    return c;
}
inline int dp2a(uint32_t a, int b, int c) {
    for (int i = 0; i < 2; i++) c += int16_t(a >> 16 * i) * int8_t(uint32_t(b) >> 8 * i);
    return c;
}
inline void prefetch(const void*) {}
inline uint32_t permute(uint32_t a, uint32_t b, uint32_t selector) {
    const uint64_t bytes = uint64_t(b) << 32 | a;
    uint32_t r = 0;
    for (int i = 0; i < 4; i++) {
        const uint32_t s = selector >> 4 * i & 15;
        uint32_t byte = uint32_t(bytes >> 8 * (s & 7)) & 255;
        if (s & 8) byte = byte & 128 ? 255 : 0;
        r |= byte << 8 * i;
    }
    return r;
}
inline uint32_t permute_signed(uint32_t a, uint32_t b, uint32_t selector) { return permute(a, b, selector); }

inline float shuffle(float x, int from) { return shim::exchange(x, from); }
inline int shuffle(int x, int from) { return shim::exchange(x, from); }
inline float shuffle_xor(float x, int mask) { return shim::exchange(x, lane() ^ mask); }
inline int shuffle_xor(int x, int mask) { return shim::exchange(x, lane() ^ mask); }
inline float shuffle_down(float x, int by) { return shim::exchange(x, lane() + by < 32 ? lane() + by : lane()); }
inline uint32_t reduce_max(uint32_t x) {
    return shim::combine_lanes(x, [](uint32_t a, uint32_t b) { return a > b ? a : b; });
}
inline int reduce_add(int x) {
    return shim::combine_lanes(x, [](int a, int b) { return int(uint32_t(a) + uint32_t(b)); });
}
inline uint32_t reduce_min(uint32_t x) { return ~reduce_max(~x); }
inline uint32_t lanes_where(bool x) { return uint32_t(reduce_add(int(uint32_t(x) << lane()))); }
inline int count_bits(uint32_t x) { return __builtin_popcount(x); }
inline int fetch_add(int* p, int x) {
    const int old = *p;
    *p += x;
    return old;
}

#if defined(__aarch64__)
inline float half_to_float(uint16_t h) { return __builtin_bit_cast(__fp16, h); }
#else
inline float half_to_float(uint16_t h) { return _cvtsh_ss(h); }
#endif
inline uint16_t half_nearest(float f) {
    const uint32_t a = bits(f) & 0x7fffffffu, sign = bits(f) >> 16 & 0x8000u;
    if (a > 0x7f800000u) return 0x7fff;
    if (a < 0x38800000u) return uint16_t(sign | (bits(as_float(a) + 0.5f) - 0x3f000000u));
    return uint16_t(sign | (((a + 0xfffu + (a >> 13 & 1u)) >> 13) - (112u << 10)));
}

inline uint32_t fma_halves(uint32_t a, uint32_t b, uint32_t c) {  // not exact to the last bit if c is far from a b
    uint32_t d = 0;
    for (int i = 0; i < 32; i += 16)
        d |= uint32_t(half_nearest(fma(half_to_float(uint16_t(a >> i)), half_to_float(uint16_t(b >> i)), half_to_float(uint16_t(c >> i))))) << i;
    return d;
}
inline uint32_t add_halves(uint32_t a, uint32_t b) { return fma_halves(a, 0x3c003c00u, b); }

inline uint32_t masked_or(uint32_t x, uint32_t mask, uint32_t more) { return (x & mask) | more; }
inline uint32_t low_twice(uint32_t x) { return (x & 0xffffu) * 0x10001u; }
inline uint32_t high_twice(uint32_t x) { return (x >> 16) * 0x10001u; }
inline uint32_t two_halves(float low, float high) { return half_nearest(low) | uint32_t(half_nearest(high)) << 16; }
inline float power_of_two(float x) { return std::exp2(x); }

template <class Args>
inline void touch(const Args&) {}
inline uint4 load_stream(const uint4* p) { return *p; }
inline uint32_t load_stream(const uint32_t* p) { return *p; }
inline uint32_t load_once(const uint32_t* p) { return *p; }
inline float load_fresh(const float* p) { return *p; }
inline uint4 load_fresh4(const void* p) { return *static_cast<const uint4*>(p); }
inline int load_acquire(const int* p) { return *p; }
inline void copies_may_begin() {}
constexpr uint32_t kNotYet = 0xffffffffu;
inline void store_fresh(uint32_t* p, uint32_t v) { *p = v; }
inline void store_fresh(float* p, float y) { *p = bits(y) == kNotYet ? as_float(0x7fffffffu) : y; }
struct Patience {
    void lose() { shim::pause(); }
};
namespace shim {
template <class T>
inline void copy_later(void* to, const void* from) {
    copies().add({[](const Work& w) { *static_cast<T*>(w.to) = *static_cast<const T*>(w.a); }, to, from, nullptr, 0, 0});
}
}  // namespace shim
inline void copy_async(void* to, const void* from) { shim::copy_later<uint4>(to, from); }
inline void copy_once(void* to, const void* from) { copy_async(to, from); }
inline void copy_async4(void* to, const void* from) { shim::copy_later<uint32_t>(to, from); }
inline void copy_async8(void* to, const void* from) { shim::copy_later<uint2>(to, from); }
inline void copy_group() { shim::copies().send(); }
template <int LEFT>
inline void copies_done() { shim::copies().finish(LEFT); }
typedef uint64_t Arrival;
inline void make_arrivals(Arrival* first, int count) {  // an Arrival counts the fills of its slot
    for (int i = lane(); i < count; i += 32) first[i] = 0;
    shim::barrier_warp();
}
// Bits 0 to 31: how often all consumer warps have left the slot. From bit 32: arrivals since then. From bit 48:
// arrivals needed, minus one.
inline void make_places(Arrival* first, int count, int leavers = 1) {
    for (int i = lane(); i < count; i += 32) first[i] = uint64_t(leavers - 1) << 48;
    shim::barrier_warp();
}
inline void leave_place(Arrival* place, bool = false) {
    if (lane() == 0) shim::arrive(place);
}
inline void copy_piece(void* to, const void* from, int bytes, Arrival* arrival) {
    if (lane() == 0) shim::bulk(to, from, bytes, arrival);
}
inline void copy_strips(void* to, const void* from, int bytes, int count, int64_t step, Arrival* arrival) {
    if (lane() == 0) shim::bulk(to, from, bytes, arrival, count, step);
}
inline void copy_by_lane(void* to, const void* from, int bytes, Arrival* place) { shim::bulk(to, from, bytes, place); }
inline void piece_here(Arrival* arrival, int phase) {
    while (int(*arrival & 1) == phase)
        if (!shim::land(arrival)) shim::pause();
}
inline void next_may_start() {}
inline void wait_for_previous() {}

namespace shim {
template <int WORDS>  // words of 4 columns: 8 a row of a (k = 32) or 4 (k = 16)
__attribute__((optimize("O3"))) inline void multiply(int (&d)[4], const uint32_t* a, const uint32_t* b) {
    const int me = lane(), g = me / 4, t = me % 4, halves = WORDS / 4;
    for (int i = 0; i < 2 * halves; i++) warp_slots(me)[i] = a[i];
    for (int i = 0; i < halves; i++) warp_slots(me)[8 + i] = b[i];
    barrier_warp();
    int8_t x[2][4 * WORDS], y[2][4 * WORDS];
    for (int i = 0; i < 2; i++)
        for (int w = 0; w < WORDS; w++) {  // word w of row g (+ 8) lies in lane 4 g + w % 4
            std::memcpy(x[i] + 4 * w, &warp_slots(4 * g + w % 4)[2 * (w / 4) + i], 4);
            std::memcpy(y[i] + 4 * w, &warp_slots(4 * (2 * t + i) + w % 4)[8 + w / 4], 4);
        }
    for (int i = 0; i < 4; i++)
        for (int k = 0; k < 4 * WORDS; k++) d[i] += x[i / 2][k] * y[i % 2][k];
    exchanged();
}
}  // namespace shim
inline void mma_k32(int (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, int start) {
    const uint32_t b[2] = {b0, b1};
    for (int& x : d) x = start;
    shim::multiply<8>(d, a, b);
}
inline void mma_k16(int (&d)[4], uint32_t a0, uint32_t a1, uint32_t b, int start) {
    const uint32_t a[2] = {a0, a1};
    for (int& x : d) x = start;
    shim::multiply<4>(d, a, &b);
}
template <int N>
inline void load_matrices(uint32_t (&d)[N], const void* row) {
    std::memcpy(shim::warp_slots(lane()), &row, sizeof row);
    shim::barrier_warp();
    for (int i = 0; i < N; i++) {
        const uint32_t* from;
        std::memcpy(&from, shim::warp_slots(8 * i + lane() / 4), sizeof from);
        d[i] = from[lane() % 4];
    }
    shim::exchanged();
}

inline void load_matrices_turned(uint32_t (&d)[4], const void* row) {
    std::memcpy(shim::warp_slots(lane()), &row, sizeof row);
    shim::barrier_warp();
    for (int i = 0; i < 4; i++) {
        d[i] = 0;
        for (int e = 0; e < 2; e++) {
            const uint16_t* from;
            std::memcpy(&from, shim::warp_slots(8 * i + lane() % 4 * 2 + e), sizeof from);
            d[i] |= uint32_t(from[lane() / 4]) << 16 * e;
        }
    }
    shim::exchanged();
}

namespace shim {
// The shim's own order of summation: exact products, ascending, in double.
template <class ToFloat>
__attribute__((optimize("O3"))) inline void multiply_floats(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, ToFloat value) {
    const int me = lane(), g = me / 4, t = me % 4;
    for (int i = 0; i < 12; i++) {  // as floats: a's 8, then b's 4
        const uint32_t pair = i < 8 ? a[i / 2] : i < 10 ? b0 : b1;
        warp_slots(me)[i] = bits(value(uint16_t(pair >> 16 * (i % 2))));
    }
    barrier_warp();
    double x[16][2], y[16][2], sums[4] = {d[0], d[1], d[2], d[3]};
    for (int i = 0; i < 2; i++)
        for (int k = 0; k < 16; k++) {
            x[k][i] = as_float(warp_slots(4 * g + k % 8 / 2)[k / 8 * 4 + i * 2 + k % 2]);
            y[k][i] = as_float(warp_slots(4 * (2 * t + i) + k % 8 / 2)[8 + k / 8 * 2 + k % 2]);
        }
    for (int k = 0; k < 16; k++)
        for (int i = 0; i < 4; i++) sums[i] += x[k][i / 2] * y[k][i % 2];
    for (int i = 0; i < 4; i++) d[i] = float(sums[i]);
    exchanged();
}
}  // namespace shim
inline void mma_f16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    shim::multiply_floats(d, a, b0, b1, [](uint16_t h) { return half_to_float(h); });
}
inline void mma_bf16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    shim::multiply_floats(d, a, b0, b1, [](uint16_t h) { return as_float(uint32_t(h) << 16); });
}
