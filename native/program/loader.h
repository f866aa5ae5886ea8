// Packs weights in the background, between steps.
//
// A step can read a weight before it is packed: the kernels then pack a panel at a time into their own cache. This costs
// as much as packing, but no memory, which a system may take longer to provide than the whole prompt takes. So the first
// step after loading does not wait. Packing begins when it is over, or when a second has passed without one; every later
// step waits for the weights that it reads.
//
// Contract: the work of a task runs on the pool, one task after another. `wait` returns when the task is done and
// rethrows what it threw. `drop` forgets a task that has not begun, or waits for it; afterwards nothing reads the task's
// memory.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "memory.h"
#include "pool.h"

namespace assay {

class Loader {
public:
    struct Task {
        std::function<void()> work;
        std::atomic<bool> done{false};
        std::exception_ptr error;
    };

    explicit Loader(std::shared_ptr<Pool> pool) : pool_(std::move(pool)) {}
    ~Loader();
    Loader(const Loader&) = delete;
    Loader& operator=(const Loader&) = delete;

    Pool& pool() const { return *pool_; }
    std::shared_ptr<uint8_t> take(size_t bytes) { return arena_.take(bytes, "weights"); }
    std::shared_ptr<Task> add(std::function<void()> work);
    // The first step will read this range of a mapped file, which is in the page cache: the loader's thread enters it
    // into the page table until that step begins. The range may be unmapped meanwhile.
    void will_read(const uint8_t* data, size_t bytes);
    void wait(const Task& task);
    void drop(const std::shared_ptr<Task>& task);

    // The first step: true once. Until `end_first_step` no task runs, and those not done do not run in its way.
    bool begin_first_step();
    void end_first_step();

    // Have the system provide [from, from + bytes): the threads touch different huge pages. Two threads that first touch
    // one huge page at the same time would both clear 2 MB.
    void provide(uint8_t* from, size_t bytes);

private:
    static constexpr auto kIdle = std::chrono::seconds(1);
    void run();
    void map_ranges(std::unique_lock<std::mutex>& lock);

    std::shared_ptr<Pool> pool_;
    Arena arena_;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<std::shared_ptr<Task>> tasks_;
    std::deque<std::pair<const uint8_t*, size_t>> ranges_;  // to be mapped
    bool working_ = false;             // on the first of the tasks
    bool first_ = true, held_ = false; // the first step is still to come; it runs
    bool begun_ = false, stop_ = false;
    std::thread thread_;
};

}  // namespace assay
