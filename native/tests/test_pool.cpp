// Stress test of the thread pool: short and long steps, jobs without a pause between them, units that throw, callers
// that stop early. Run it under ThreadSanitizer (`make sanitize`).
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <thread>
#include <vector>

#include "program/pool.h"

using namespace assay;

namespace {

void expect(bool right, const char* what) {
    if (right) return;
    std::fprintf(stderr, "test_pool: %s\n", what);
    std::exit(1);
}

// Sums plain memory in steps of changing width: a step reads the results of the one before.
class Sums : public Job {
public:
    Sums(int steps, uint32_t width, int faulty = -1) : steps_(steps), faulty_(faulty), from_(width, 1), to_(width) {}
    Step next(unsigned) override {
        if (done_ == steps_) return {};
        if (done_++) std::swap(from_, to_);
        return {uint32_t(from_.size()), done_ % 2 == 0};
    }
    void work(uint32_t first, uint32_t last, unsigned) override {
        if (done_ == faulty_) throw std::runtime_error("a unit fails");
        for (uint32_t i = first; i < last; ++i) to_[i] = from_[i] + from_[(i + 1) % from_.size()];
    }
    uint64_t result() const { return to_[0]; }

private:
    int steps_, faulty_, done_ = 0;
    std::vector<uint64_t> from_, to_;
};

void steps_follow_each_other(Pool& pool) {
    for (uint32_t width : {1u, 2u, 7u, 64u, 1000u}) {
        Sums job(12, width);
        expect(pool.run(job), "a job was not finished");
        expect(job.result() == 1u << 12, "a step read what was not yet written");
    }
}

void a_fault_is_thrown_and_the_team_lives(Pool& pool) {
    Sums job(10, 100, 5);
    bool thrown = false;
    try {
        pool.run(job);
    } catch (const std::runtime_error&) {
        thrown = true;
    }
    expect(thrown, "what a unit threw was lost");
    steps_follow_each_other(pool);
}

void a_caller_gives_up(Pool& pool) {
    Sums job(1 << 30, 64);
    expect(!pool.run(job, [] { return false; }), "a job went on after its caller gave up");
    steps_follow_each_other(pool);
}

void callers_from_many_threads(Pool& pool) {
    std::vector<std::thread> callers;
    for (int i = 0; i < 4; ++i)
        callers.emplace_back([&pool] {
            for (int n = 0; n < 20; ++n) {
                std::vector<uint32_t> seen(333);
                parallel_for(pool, 333, 5, [&](uint32_t first, uint32_t last) {
                    for (uint32_t k = first; k < last; ++k) seen[k]++;
                });
                for (uint32_t count : seen) expect(count == 1, "an item was done twice or not at all");
            }
        });
    for (std::thread& caller : callers) caller.join();
}

}  // namespace

int main() {
    for (unsigned threads : {1u, 2u, 3u, 8u}) {
        for (int round = 0; round < 20; ++round) {
            Pool pool(threads);
            steps_follow_each_other(pool);
            a_fault_is_thrown_and_the_team_lives(pool);
            callers_from_many_threads(pool);
        }
        Pool pool(threads);
        a_caller_gives_up(pool);
    }
    std::puts("test_pool: right");
    return 0;
}
