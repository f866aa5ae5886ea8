// Coroutines for shim.h. Together with all kernels, compiled for the host, it is one shared library that the tests
// load.
//
//   c++ -O2 -std=c++20 -ffp-contract=off -shared -fPIC -DASSAY_SHIM shim.cpp -o shim.so
//
// With -fsanitize=address,undefined an access past the end of an allocation or of shared memory is an error. So is an
// access of a launch to program memory outside the values it was given (shim_guard).
#include "abi.h"

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

// 0: threads and blocks run in order. Otherwise a seed of unfavourable conditions: memory holds other garbage, warps
// lag, threads and blocks run in another order. Asynchronous work is done only when it is waited for: copies if bit 0
// of the seed is set, tensor-core products if bit 1 is.
static int weather;
extern "C" void shim_weather(int seed) { weather = seed; }

static void fill(void* at, size_t bytes) {
    constexpr uint32_t garbage[] = {0xa5a5a5a5u, 0xffffffffu, 0x7bff7bffu, 0x7c007c00u, 0x3f803c00u};  // NaN, large, infinite, 1
    const uint32_t word = garbage[weather % 5];
    for (size_t i = 0; i < bytes / 4; i++) static_cast<uint32_t*>(at)[i] = word;
    std::memcpy(static_cast<uint8_t*>(at) + bytes / 4 * 4, &word, bytes % 4);
}

extern "C" void* shim_alloc(size_t bytes) {
    void* at = nullptr;
    if (posix_memalign(&at, 256, bytes)) return nullptr;
    fill(at, bytes);
    return at;
}
extern "C" void shim_free(void* at) { std::free(at); }

// Forbid or allow kernels to access this memory; without the sanitizer, do nothing.
extern "C" void shim_guard(void* at, size_t bytes, int closed) {
#if defined(__SANITIZE_ADDRESS__)
    if (closed) ASAN_POISON_MEMORY_REGION(at, bytes);
    else ASAN_UNPOISON_MEMORY_REGION(at, bytes);
#else
    (void)at, (void)bytes, (void)closed;
#endif
}

// Lines "Struct size" and "Struct.field offset" for the structs of abi.h, as this compiler lays them out.
extern "C" const char* shim_abi() {
    using namespace assay;
    static const std::string report = [] {
        std::string text;
        const auto add = [&](const char* name, size_t n) { text += std::string(name) + " " + std::to_string(n) + "\n"; };
#define SIZE(name, size) add(#name, sizeof(name));
#define OFFSET(name, member, offset) add(#name "." #member, __builtin_offsetof(name, member));
        ABI_STRUCTS(SIZE)
        ABI_FIELDS(OFFSET)
#undef SIZE
#undef OFFSET
        return text;
    }();
    return report.c_str();
}

namespace shim {

State state;

namespace {

constexpr size_t kStack = 80 << 10;

// Pushes the callee-saved registers, stores the stack pointer in *from, and resumes the stack `to`. It jumps to the
// return address: most threads wait at the same place, so the processor predicts the jump, but not a `ret` to another
// stack.
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
    popq %rcx
    jmp *%rcx
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

// State of a thread that the scheduler reads. It waits until *waits differs from `seen`.
struct Pending {
    const int* waits;
    void* at;  // its stack pointer
    int seen;
};
constexpr int kReady = 1, kDone = 0;  // *waits of a thread that can run, and of one that has returned; seen is 0

struct Fiber {
    std::unique_ptr<uint8_t[]> stack;
    int exchanged = 0;
    Queue copies, products;
};
struct Bulk {
    void* to;
    const void* from;
    size_t bytes;
    uint64_t* arrival;
    int count;
    int64_t step;
};

struct Block {  // a block that is running
    std::unique_ptr<void, void (*)(void*)> memory{nullptr, shim_free};
    int memory_bytes = -1;
    int at[3] = {}, alive = 0, arrived = 0, turn = 0, warp_alive[32] = {}, some_arrived[16] = {}, some_turn[16] = {};
    std::vector<Fiber> fibers;
    std::vector<Pending> pending;
    std::vector<uint32_t> slots;
    std::vector<int> warp_arrived, warp_turn, order;
    std::vector<Bulk> bulk;
};
uint32_t chance() {  // pseudo-random bits
    static uint64_t x;
    x = x * 6364136223846793005u + 1442695040888963407u + uint64_t(weather);
    return uint32_t(x >> 33);
}

std::vector<Block> blocks;
Block* now;  // the block of the running thread
int turn_of;  // place of the running thread in the block's order
uint32_t lagging;  // warps that are left out of this round
void* scheduler;
void (*body)(void*);
void* context;
long idle;  // pauses since the last barrier of a block

// The registers and the innermost frame on the stack of the thread that runs next: the stacks of a block do not fit the
// first cache.
inline void prefetch(const void* stack) {
    for (int line = 0; line < 6; line++) __builtin_prefetch(static_cast<const uint8_t*>(stack) + 64 * line);
}

// Resume the next thread in the block's order that can run, or the scheduler at the end of the round. `from` receives
// the stack pointer of the caller.
void resume_next(void** from) {
    Block& block = *now;
    const int n = int(block.order.size());
    for (int k = turn_of + 1; k < n; k++) {
        const int i = block.order[size_t(k)];
        Pending& next = block.pending[size_t(i)];
        if (*next.waits == next.seen || lagging >> i / 32 & 1) continue;
        turn_of = k;
        state.thread = i;
        state.slots = block.slots.data() + i / 32 * 1024;
        state.exchanged = &block.fibers[size_t(i)].exchanged;
        next.waits = &kReady, next.seen = 0;
        if (k + 1 < n) prefetch(block.pending[size_t(block.order[size_t(k + 1)])].at);
        shim_switch(from, next.at);
        return;
    }
    shim_switch(from, scheduler);
}

void leave() { resume_next(&now->pending[size_t(state.thread)].at); }

void wait_on(const int* turn) {
    Pending& me = now->pending[size_t(state.thread)];
    me.waits = turn;
    me.seen = *turn;
    resume_next(&me.at);
}

void enter() {
    body(context);
    Block& block = *now;
    const int w = state.thread / 32;
    block.pending[size_t(state.thread)].waits = &kDone;
    block.alive--, block.warp_alive[w]--;
    if (block.warp_alive[w] && block.warp_arrived[size_t(w)] == block.warp_alive[w]) block.warp_arrived[size_t(w)] = 0, block.warp_turn[size_t(w)]++;
    if (block.alive && block.arrived == block.alive) block.arrived = 0, block.turn++;
    leave();
    std::abort();
}

void start(Fiber& fiber, Pending& pending, int i) {
    if (!fiber.stack) fiber.stack.reset(new uint8_t[kStack]);
    // Stacks begin at different offsets: at the same one they would compete for few sets of the CPU's cache.
    const size_t room = kStack - 64 - size_t(i % 64) * 192;
    void** top = reinterpret_cast<void**>((reinterpret_cast<uintptr_t>(fiber.stack.get()) + room) & ~uintptr_t(15));
#if defined(__x86_64__)
    *--top = nullptr;  // the stack is misaligned by 8 on entry to a function
    *--top = reinterpret_cast<void*>(enter);
    for (int i = 0; i < kSaved; i++) *--top = nullptr;
#else
    top -= kSaved;
    for (int i = 0; i < kSaved; i++) top[i] = nullptr;
    top[1] = reinterpret_cast<void*>(enter);  // x30
#endif
    pending = {&kReady, top, 0};
    fiber.exchanged = 0;
    for (Queue* queue : {&fiber.copies, &fiber.products}) queue->work.clear(), queue->sent = 0;
}

}  // namespace

// As on the GPU, barriers do not wait for a thread that has returned.
void barrier_block() {
    if (++now->arrived == now->alive) {
        now->arrived = 0;
        now->turn++, idle = 0;
        return;
    }
    wait_on(&now->turn);
}

void barrier_warp() {
    const int w = state.thread / 32;
    if (++now->warp_arrived[w] == now->warp_alive[w]) {
        now->warp_arrived[w] = 0;
        now->warp_turn[w]++;
        return;
    }
    wait_on(&now->warp_turn[w]);
}

void barrier_some(int id, int count, bool wait) {
    if (++now->some_arrived[id] == count) {
        now->some_arrived[id] = 0;
        now->some_turn[id]++, idle = 0;
        return;
    }
    if (wait) wait_on(&now->some_turn[id]);
}

void needs_shared(int bytes) {
    if (bytes <= state.shared_bytes) return;
    std::fprintf(stderr, "shim: a launch has %d bytes of shared memory, its kernel needs %d\n", state.shared_bytes, bytes);
    std::abort();
}

void pause() {
    if (++idle > 100'000'000) {
        std::fprintf(stderr, "shim: a spin-wait did not end\n");
        std::abort();
    }
    leave();
}

Queue& copies() { return now->fibers[state.thread].copies; }
Queue& products() { return now->fibers[state.thread].products; }
bool Queue::late() const { return weather & (this == &copies() ? 1 : 2); }
void Queue::add(Work one) {
    one.group = sent;
    if (late()) work.push_back(one);
    else one.run(one);
}
void Queue::finish(int left) {
    size_t n = 0;
    for (; n < work.size() && work[n].group < sent - left; n++) work[n].run(work[n]);
    work.erase(work.begin(), work.begin() + long(n));
}
void bulk(void* to, const void* from, int bytes, uint64_t* arrival, int count, int64_t step) {
    now->bulk.push_back({to, from, size_t(bytes), arrival, count, step});
    if (!(weather & 1)) land(arrival);
}
bool land(uint64_t* arrival) {
    for (size_t i = 0; i < now->bulk.size(); i++) {
        const Bulk one = now->bulk[i];
        if (one.arrival != arrival) continue;
        now->bulk.erase(now->bulk.begin() + long(i));
        for (int n = 0; n < one.count; n++)
            std::memcpy(static_cast<uint8_t*>(one.to) + size_t(n) * one.bytes, static_cast<const uint8_t*>(one.from) + n * one.step, one.bytes);
        arrive(arrival);
        return true;
    }
    return false;
}

namespace {

void begin(Block& block, int threads, int shared_bytes, const int* at) {
    if (block.memory_bytes == shared_bytes) {
        fill(block.memory.get(), size_t(shared_bytes));
    } else {
        block.memory.reset(shim_alloc(size_t(shared_bytes)));
        block.memory_bytes = shared_bytes;
    }
    block.fibers.resize(size_t(threads));
    block.pending.resize(size_t(threads));
    block.slots.resize(size_t(threads) * 32);
    std::memset(block.slots.data(), 0, block.slots.size() * sizeof block.slots[0]);
    block.warp_arrived.assign(size_t(threads / 32), 0);
    block.warp_turn.assign(size_t(threads / 32), 0);
    std::memcpy(block.at, at, sizeof block.at);
    block.alive = threads, block.arrived = 0;
    for (int w = 0; w < threads / 32; w++) block.warp_alive[w] = 32;
    block.bulk.clear();
    block.order.resize(size_t(threads));
    for (int i = 0; i < threads; i++) {
        start(block.fibers[size_t(i)], block.pending[size_t(i)], i);
        const int j = weather ? int(chance() % uint32_t(i + 1)) : i;
        block.order[size_t(i)] = block.order[size_t(j)], block.order[size_t(j)] = i;
    }
}

// A round: resume every runnable thread once, except those of warps that lag. A thread that waits resumes the next one
// itself. False: no thread can make progress.
bool advance(Block& block) {
    lagging = weather ? chance() & chance() : 0;
    now = &block;
    turn_of = -1;
    state.shared = static_cast<uint8_t*>(block.memory.get());
    std::memcpy(state.block, block.at, sizeof state.block);
    resume_next(&scheduler);
    return lagging || turn_of >= 0;
}

}  // namespace

void run_blocks(const int* grid, int threads, int shared_bytes, int most_threads, bool together, void (*f)(void*), void* c) {
    if (threads < 1 || threads > most_threads || threads % 32) {
        std::fprintf(stderr, "shim: %d threads a block, the kernel allows %d in warps of 32\n", threads, most_threads);
        std::abort();
    }
    body = f;
    context = c;
    idle = 0;
    state.threads = threads;
    state.shared_bytes = shared_bytes;
    std::memcpy(state.grid, grid, sizeof state.grid);
    const int count = grid[0] * grid[1] * grid[2], at_once = together ? count : 1;
    if (blocks.size() < size_t(at_once)) blocks.resize(size_t(at_once));
    for (int first = 0; first < count; first += at_once) {
        for (int i = 0; i < at_once; i++) {
            const int n = weather ? count - 1 - first - i : first + i, at[3] = {n % grid[0], n / grid[0] % grid[1], n / grid[0] / grid[1]};
            begin(blocks[size_t(i)], threads, shared_bytes, at);
        }
        for (bool alive = true; alive;) {
            bool moved = alive = false;
            for (int i = 0; i < at_once; i++) {
                moved |= advance(blocks[size_t(i)]);
                alive |= blocks[size_t(i)].alive > 0;
            }
            if (alive && !moved) {
                std::fprintf(stderr, "shim: deadlock: all threads of the blocks wait at barriers\n");
                std::abort();
            }
        }
    }
}

}  // namespace shim
