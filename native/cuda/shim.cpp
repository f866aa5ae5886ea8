// Coroutines for shim.h, and all kernels compiled for the host: one shared library that the tests load.
//
//   c++ -O2 -std=c++20 -ffp-contract=off -shared -fPIC -DASSAY_SHIM shim.cpp -o shim.so
//
// With -fsanitize=address,undefined every allocation ends where it says, shared memory too, and a launch may touch no
// other part of a program's memory than the values it was given (shim_guard).
#include "shim.h"

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

extern "C" void* shim_alloc(size_t bytes) {
    void* at = nullptr;
    if (posix_memalign(&at, 256, bytes)) return nullptr;
    std::memset(at, 0xa5, bytes);  // garbage, as on a GPU
    return at;
}
extern "C" void shim_free(void* at) { std::free(at); }

// Close or open memory to the kernels; nothing without the sanitizer.
extern "C" void shim_guard(void* at, size_t bytes, int closed) {
#if defined(__SANITIZE_ADDRESS__)
    if (closed) ASAN_POISON_MEMORY_REGION(at, bytes);
    else ASAN_UNPOISON_MEMORY_REGION(at, bytes);
#else
    (void)at, (void)bytes, (void)closed;
#endif
}

namespace shim {

State state;

namespace {

constexpr size_t kStack = 64 << 10;

// Saves the callee-saved registers on this stack, leaves its pointer in *from, and goes on where `to` was left.
extern "C" void shim_switch(void** from, void* to);
#if defined(__x86_64__)
asm(R"(
.globl shim_switch
shim_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
)");
constexpr int kSaved = 6;
#elif defined(__aarch64__)
asm(R"(
.globl shim_switch
shim_switch:
    stp x29, x30, [sp, #-160]!
    stp x19, x20, [sp, #16]
    stp x21, x22, [sp, #32]
    stp x23, x24, [sp, #48]
    stp x25, x26, [sp, #64]
    stp x27, x28, [sp, #80]
    stp d8, d9, [sp, #96]
    stp d10, d11, [sp, #112]
    stp d12, d13, [sp, #128]
    stp d14, d15, [sp, #144]
    mov x2, sp
    str x2, [x0]
    mov sp, x1
    ldp x19, x20, [sp, #16]
    ldp x21, x22, [sp, #32]
    ldp x23, x24, [sp, #48]
    ldp x25, x26, [sp, #64]
    ldp x27, x28, [sp, #80]
    ldp d8, d9, [sp, #96]
    ldp d10, d11, [sp, #112]
    ldp d12, d13, [sp, #128]
    ldp d14, d15, [sp, #144]
    ldp x29, x30, [sp], #160
    ret
)");
constexpr int kSaved = 20;
#else
#error "the shim has no context switch for this machine"
#endif

struct Fiber {
    std::unique_ptr<uint8_t[]> stack;
    void* at = nullptr;
    bool done = true;
    const int* waits = nullptr;  // until *waits differs from `seen`
    int seen = 0;
};

std::vector<Fiber> fibers;
std::vector<uint32_t> slots;
std::vector<int> warp_arrived, warp_turn;
int block_arrived, block_turn, alive, warp_alive[32], some_arrived[16], some_turn[16];
void* scheduler;
void (*body)(void*);
void* context;

void wait_on(const int* turn) {
    Fiber& me = fibers[state.thread];
    me.waits = turn;
    me.seen = *turn;
    shim_switch(&me.at, scheduler);
}

void enter() {
    body(context);
    Fiber& me = fibers[state.thread];
    me.done = true;
    shim_switch(&me.at, scheduler);
    std::abort();
}

void start(Fiber& fiber) {
    if (!fiber.stack) fiber.stack.reset(new uint8_t[kStack]);
    void** top = reinterpret_cast<void**>((reinterpret_cast<uintptr_t>(fiber.stack.get()) + kStack - 64) & ~uintptr_t(15));
#if defined(__x86_64__)
    *--top = nullptr;  // the stack is misaligned by 8 on entry to a function
    *--top = reinterpret_cast<void*>(enter);
    for (int i = 0; i < kSaved; i++) *--top = nullptr;
#else
    top -= kSaved;
    for (int i = 0; i < kSaved; i++) top[i] = nullptr;
    top[1] = reinterpret_cast<void*>(enter);  // x30
#endif
    fiber.at = top;
    fiber.done = false;
    fiber.waits = nullptr;
}

}  // namespace

// A thread that has returned is no longer waited for, as on the GPU.
void barrier_block() {
    if (++block_arrived == alive) {
        block_arrived = 0;
        block_turn++;
        return;
    }
    wait_on(&block_turn);
}

void barrier_warp() {
    const int w = state.thread / 32;
    if (++warp_arrived[w] == warp_alive[w]) {
        warp_arrived[w] = 0;
        warp_turn[w]++;
        return;
    }
    wait_on(&warp_turn[w]);
}

void barrier_some(int id, int count, bool wait) {
    if (++some_arrived[id] == count) {
        some_arrived[id] = 0;
        some_turn[id]++;
        return;
    }
    if (wait) wait_on(&some_turn[id]);
}

uint32_t* warp_slots(int of) { return slots.data() + (state.thread / 32 * 32 + of) * 16; }

void run_blocks(const int* grid, int threads, int shared_bytes, int most_threads, void (*f)(void*), void* c) {
    if (threads < 1 || threads > most_threads || threads % 32) {
        std::fprintf(stderr, "shim: %d threads a block, the kernel allows %d in warps of 32\n", threads, most_threads);
        std::abort();
    }
    body = f;
    context = c;
    if (fibers.size() < size_t(threads)) fibers.resize(threads);
    slots.assign(size_t(threads) * 16, 0);
    warp_arrived.assign(threads / 32, 0);
    warp_turn.assign(threads / 32, 0);
    const std::unique_ptr<void, void (*)(void*)> memory(shim_alloc(shared_bytes), shim_free);
    state.shared = static_cast<uint8_t*>(memory.get());
    state.threads = threads;
    std::memcpy(state.grid, grid, sizeof state.grid);
    for (int z = 0; z < grid[2]; z++)
        for (int y = 0; y < grid[1]; y++)
            for (int x = 0; x < grid[0]; x++) {
                state.block[0] = x, state.block[1] = y, state.block[2] = z;
                std::memset(state.shared, 0xa5, size_t(shared_bytes));
                for (int i = 0; i < threads; i++) start(fibers[i]);
                for (int w = 0; w < threads / 32; w++) warp_alive[w] = 32;
                alive = threads;
                block_arrived = 0;
                while (alive) {
                    bool moved = false;
                    for (int i = 0; i < threads; i++) {
                        Fiber& fiber = fibers[i];
                        if (fiber.done || (fiber.waits && *fiber.waits == fiber.seen)) continue;
                        state.thread = i;
                        fiber.waits = nullptr;
                        shim_switch(&scheduler, fiber.at);
                        moved = true;
                        if (!fiber.done) continue;
                        alive--, warp_alive[i / 32]--;
                        if (warp_alive[i / 32] && warp_arrived[i / 32] == warp_alive[i / 32]) warp_arrived[i / 32] = 0, warp_turn[i / 32]++;
                        if (alive && block_arrived == alive) block_arrived = 0, block_turn++;
                    }
                    if (!moved) {
                        std::fprintf(stderr, "shim: the threads of a block wait for each other\n");
                        std::abort();
                    }
                }
            }
}

}  // namespace shim

#include "kernels.cu"
