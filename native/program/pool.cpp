#include "pool.h"

#include <algorithm>
#include <cfenv>
#include <chrono>
#include <utility>

namespace assay {
namespace {

// Spin time before a waiting thread sleeps. Short, so that it soon yields its core to the thread that delays the work.
// Long enough that two threads in the middle of a step never sleep: a step of a small model takes 5 to 50 microseconds.
constexpr int kSpins = 3000;
constexpr auto kPoll = std::chrono::milliseconds(50);

inline void relax() {
#if defined(__aarch64__)
    asm volatile("isb" ::: "memory");
#elif defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

// Round to nearest, keep subnormals: some libraries change these modes for the whole process.
class DefaultFloats {
public:
    DefaultFloats() {
        std::fegetenv(&before_);
        std::fesetenv(FE_DFL_ENV);
    }
    ~DefaultFloats() { std::fesetenv(&before_); }

private:
    std::fenv_t before_;
};

}  // namespace

Pool::Pool(unsigned threads, const kernels::Isa& isa) : threads_(std::max(1u, threads)), isa_(isa), parts_(threads_) {
    for (unsigned i = 1; i < threads_; ++i) workers_.emplace_back([this, i] { worker(i); });
}

Pool::~Pool() {
    {
        std::lock_guard lock(sleep_);
        stop_ = true;
    }
    wake_.notify_all();
    for (auto& thread : workers_) thread.join();
}

// Publish the word first. While a part is missing the step cannot end, so these writes cannot overlap those of the next
// step. A thread that sees the word before its part waits for the part.
void Pool::publish(uint64_t ticks) {
    const uint64_t sequence = ((word_.load(std::memory_order_relaxed) >> 32) + 1) << 32;
    const uint64_t parts = ticks == 0 ? 0 : step_.singly ? 1 : threads_;
    // The last access to the job: after it the caller may return, and another job may begin.
    word_.store(sequence | parts, std::memory_order_seq_cst);
    for (uint64_t i = 0; i < parts; ++i)
        parts_[i].word.store(sequence | (ticks * i / parts) << 16 | ticks * (i + 1) / parts, std::memory_order_release);
    if (sleepers_.load(std::memory_order_seq_cst)) {
        { std::lock_guard lock(sleep_); }  // a sleeper between its check and its wait holds the lock
        wake_.notify_all();
    }
}

void Pool::fail() {
    std::lock_guard lock(failing_);
    if (!error_) error_ = std::current_exception();
    cancelled_ = true;
}

void Pool::advance(unsigned thread) {
    step_ = {};
    try {
        if (!cancelled_.load(std::memory_order_relaxed)) step_ = job_->next(thread);
    } catch (...) {
        fail();
    }
    tick_ = step_.units / 0xffff + 1;
    const uint32_t ticks = (step_.units + tick_ - 1) / tick_;
    pending_.store(ticks, std::memory_order_relaxed);
    publish(ticks);
}

// The claim succeeds only on the word it was read from. So a thread that slept through the end of a step or job cannot
// claim a unit of the next. While it holds a unit, the step cannot end.
bool Pool::claim_and_work(unsigned thread) {
    const uint64_t word = word_.load(std::memory_order_acquire);
    const uint32_t parts = static_cast<uint32_t>(word);
    for (uint32_t i = 0; i < parts; ++i) {
        const uint32_t at = (thread + i) % parts;
        std::atomic<uint64_t>& part = parts_[at].word;
        for (uint64_t claim = part.load(std::memory_order_acquire);;) {
            if (claim >> 32 != word >> 32) {  // the part is not published yet, or the step is over
                if (word_.load(std::memory_order_acquire) != word) return true;
                relax();
                claim = part.load(std::memory_order_acquire);
                continue;
            }
            const uint32_t begin = claim >> 16 & 0xffff, left = (claim & 0xffff) - begin;
            if (left == 0) break;
            const bool in_order = parts == 1 || at == thread;
            // Runs shrink, so that all threads finish together.
            const uint32_t take = parts == 1 && threads_ > 1 ? 1 : std::max(1u, left / 2);
            const uint64_t rest = in_order ? claim + (uint64_t(take) << 16) : claim - take;
            if (!part.compare_exchange_weak(claim, rest, std::memory_order_acq_rel, std::memory_order_acquire))
                continue;
            const uint32_t first = (in_order ? begin : begin + left - take) * tick_;
            try {
                if (!cancelled_.load(std::memory_order_relaxed))
                    job_->work(first, std::min(step_.units, first + take * tick_), thread);
            } catch (...) {
                fail();
            }
            if (pending_.fetch_sub(take, std::memory_order_acq_rel) == take) advance(thread);
            return true;
        }
    }
    return false;
}

void Pool::wait_for_change(uint64_t seen, bool caller) {
    for (int i = 0; i < kSpins; ++i) {
        if (word_.load(std::memory_order_relaxed) != seen) return;
        relax();
    }
    std::unique_lock lock(sleep_);
    sleepers_.fetch_add(1, std::memory_order_seq_cst);
    const auto changed = [&] { return word_.load(std::memory_order_seq_cst) != seen || stop_; };
    if (caller)
        wake_.wait_for(lock, kPoll, changed);
    else
        wake_.wait(lock, changed);
    sleepers_.fetch_sub(1, std::memory_order_relaxed);
}

void Pool::worker(unsigned thread) {
    const DefaultFloats floats;
    while (!stop_.load(std::memory_order_relaxed)) {
        const uint64_t seen = word_.load(std::memory_order_acquire);
        if (!claim_and_work(thread)) wait_for_change(seen, false);
    }
}

bool Pool::run(Job& job, const std::function<bool()>& poll) {
    std::lock_guard turn(one_at_a_time_);
    const DefaultFloats floats;
    job_ = &job;
    cancelled_ = false;
    error_ = nullptr;
    advance(0);
    auto asked = std::chrono::steady_clock::now();
    for (uint64_t seen; static_cast<uint32_t>(seen = word_.load(std::memory_order_acquire));) {
        if (!claim_and_work(0)) wait_for_change(seen, true);
        if (poll && !cancelled_ && std::chrono::steady_clock::now() - asked > kPoll) {
            if (!poll()) cancelled_ = true;
            asked = std::chrono::steady_clock::now();
        }
    }
    if (error_) std::rethrow_exception(error_);
    return !cancelled_;
}

namespace {

class Loop : public Job {
public:
    Loop(uint32_t count, const std::function<void(uint32_t, uint32_t)>& body) : count_(count), body_(body) {}
    Step next(unsigned) override { return std::exchange(started_, true) ? Step{} : Step{count_}; }
    void work(uint32_t first, uint32_t last, unsigned) override { body_(first, last); }

private:
    uint32_t count_;
    bool started_ = false;
    const std::function<void(uint32_t, uint32_t)>& body_;
};

}  // namespace

void parallel_for(Pool& pool, uint32_t count, uint32_t least, const std::function<void(uint32_t, uint32_t)>& body) {
    const uint32_t pieces = (count + least - 1) / least;
    if (pieces <= 1) {
        if (count) body(0, count);
        return;
    }
    const std::function<void(uint32_t, uint32_t)> piece = [&](uint32_t first, uint32_t last) {
        body(first * least, std::min(count, last * least));
    };
    Loop loop(pieces, piece);
    pool.run(loop);
}

}  // namespace assay
