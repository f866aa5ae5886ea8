// A persistent thread pool that works through jobs.
//
// A job is a sequence of steps; a step is a number of independent units. A thread claims neighbouring units of its own
// part in order, so that its core reads a matrix as one stream. Then it steals from the end of another thread's part. A
// step is over when its units are done; threads wait for units, never for a thread. So a thread that is descheduled
// outside a unit delays no step. Which thread does a unit never changes a bit, because a unit's result does not depend
// on the thread. All threads use one instruction set and the default floating-point environment, whatever the caller's
// is.
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

// Description of the step that `Job::next` has moved to.
struct Step {
    uint32_t units = 0;  // 0: the job is over
    bool singly = true;  // claimed one by one in order (long units), or by parts in shrinking runs (short ones)
};

class Job {
public:
    virtual ~Job() = default;
    // Move to the next step. Called by one thread at a time, when all units of the previous step are done. A step of a
    // single unit is best run right here, without synchronisation.
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

    // Run the job to its end; the caller is thread 0 of the pool. `poll`, if given, is called by the caller about every
    // 50 ms. If it returns false, the job is abandoned between two units and `run` returns false. An exception of a
    // unit ends the job and is rethrown here.
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
    struct alignas(64) Part {  // sequence number of the step << 32 | first << 16 | end of the unclaimed units
        std::atomic<uint64_t> word{0};
    };
    std::vector<Part> parts_;
    alignas(64) std::atomic<uint64_t> word_{0};     // sequence number of the step << 32 | its parts; 0: the job is over
    alignas(64) std::atomic<uint32_t> pending_{0};  // ticks not done yet
    alignas(64) std::atomic<uint32_t> sleepers_{0};
    std::atomic<bool> cancelled_{false}, stop_{false};
    Job* job_ = nullptr;
    std::exception_ptr error_;
    std::mutex failing_;
    Step step_;
    uint32_t tick_ = 1;  // units that are claimed as one, so that 16 bits can count the ticks of a step
    std::mutex sleep_, one_at_a_time_;
    std::condition_variable wake_;
    std::vector<std::thread> workers_;
};

// Split `count` items into pieces of at least `least` and run `body(first, last)` on the pool.
void parallel_for(Pool& pool, uint32_t count, uint32_t least, const std::function<void(uint32_t, uint32_t)>& body);

}  // namespace assay
