// A persistent team of threads that walks through jobs together.
//
// A job is a sequence of steps; a step is a number of independent units. A thread claims units of its own part of them,
// neighbours in order, so that its core reads a matrix as one stream; then from the end of another's part. A step is
// over when its units are done: nobody waits for a *thread*, only for work. A thread that the system has taken off its
// core outside a unit delays nobody.
// Which thread does which unit never changes a bit, because a unit's result does not depend on it; and all of them
// compute with one instruction set and in the default floating point environment, whatever the caller's is.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "kernels/kernels.h"

namespace assay {

// What `Job::next` says about the step it has moved to.
struct Step {
    uint32_t units = 0;  // 0: the job is over
    bool singly = true;  // claimed one by one in order (long units), or by parts in shrinking runs (short ones)
};

class Job {
public:
    virtual ~Job() = default;
    // Move to the next step. Called by one thread at a time, when all units of the previous step are done.
    // Steps of a single unit are best run right here: they then cost no synchronisation.
    virtual Step next(unsigned thread) = 0;
    // Do units [first, last) of the current step.
    virtual void work(uint32_t first, uint32_t last, unsigned thread) = 0;
};

class Pool {
public:
    explicit Pool(unsigned threads, const kernels::Isa& isa = kernels::find_isa());
    ~Pool();
    Pool(const Pool&) = delete;
    Pool& operator=(const Pool&) = delete;

    unsigned threads() const { return threads_; }
    const kernels::Isa& isa() const { return isa_; }

    // Run the job to its end; the caller is thread 0 of the team. `poll`, if given, is called by the caller
    // about every 50 ms; when it answers false the job is abandoned between two units and `run` gives false.
    // What a unit throws ends the job and is thrown again here.
    bool run(Job& job, const std::function<bool()>& poll = {});

private:
    void worker(unsigned thread);
    bool claim_and_work(unsigned thread);
    void advance(unsigned thread);
    void publish(uint64_t ticks);
    void fail();
    void wait_for_change(uint64_t seen, bool caller);

    const unsigned threads_;
    const kernels::Isa& isa_;
    struct alignas(64) Part {  // sequence number of the step << 32 | first << 16 | end of what is not yet claimed
        std::atomic<uint64_t> word{0};
    };
    std::vector<Part> parts_;
    alignas(64) std::atomic<uint64_t> word_{0};     // sequence number of the step << 32 | its parts; 0: the job is over
    alignas(64) std::atomic<uint32_t> pending_{0};  // ticks not yet done
    alignas(64) std::atomic<uint32_t> sleepers_{0};
    std::atomic<bool> cancelled_{false}, stop_{false};
    Job* job_ = nullptr;
    std::exception_ptr error_;
    std::mutex failing_;
    Step step_;
    uint32_t tick_ = 1;  // units that are claimed as one, so that all ticks of a step can be counted in 16 bits
    std::mutex sleep_, one_at_a_time_;
    std::condition_variable wake_;
    std::vector<std::thread> workers_;
};

// Splits `count` items into pieces of at least `least` and runs `body(first, last)` on the team.
void parallel_for(Pool& pool, uint32_t count, uint32_t least, const std::function<void(uint32_t, uint32_t)>& body);

}  // namespace assay
