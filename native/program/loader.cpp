#include "loader.h"

#include <algorithm>

namespace assay {

Loader::~Loader() {
    {
        std::lock_guard lock(mutex_);
        stop_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable()) thread_.join();
}

std::shared_ptr<Loader::Task> Loader::add(std::function<void()> work) {
    auto task = std::make_shared<Task>();
    task->work = std::move(work);
    std::lock_guard lock(mutex_);
    tasks_.push_back(task);
    if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
    changed_.notify_all();
    return task;
}

void Loader::will_read(const uint8_t* data, size_t bytes) {
    std::lock_guard lock(mutex_);
    if (!held_ && !begun_) ranges_.emplace_back(data, bytes);
}

void Loader::map_ranges(std::unique_lock<std::mutex>& lock) {
    while (!held_ && !begun_ && !stop_ && !ranges_.empty()) {
        auto [data, bytes] = ranges_.front();
        ranges_.pop_front();
        lock.unlock();
        map_some(data, bytes);
        lock.lock();
        if (bytes) ranges_.emplace_front(data, bytes);
    }
    ranges_.clear();
}

// The thread waits for a second of rest before the first task: loading has ended, and no step has come.
void Loader::run() {
    std::unique_lock lock(mutex_);
    for (size_t seen = 0; !begun_ && !stop_ && (seen != tasks_.size() || !ranges_.empty());) {
        map_ranges(lock);
        seen = tasks_.size();
        changed_.wait_for(lock, kIdle, [&] { return begun_ || stop_ || (!held_ && !ranges_.empty()); });
        if (held_) seen = 0;
    }
    begun_ = true;
    for (;;) {
        changed_.wait(lock, [&] { return stop_ || (!held_ && !tasks_.empty()); });
        if (stop_) return;
        const std::shared_ptr<Task> task = tasks_.front();
        working_ = true;
        lock.unlock();
        try {
            task->work();
        } catch (...) {
            task->error = std::current_exception();
        }
        task->work = nullptr;
        lock.lock();
        working_ = false;
        tasks_.pop_front();
        task->done.store(true, std::memory_order_release);
        changed_.notify_all();
    }
}

void Loader::wait(const Task& task) {
    if (!task.done.load(std::memory_order_acquire)) {
        std::unique_lock lock(mutex_);
        begun_ = true;
        changed_.notify_all();
        changed_.wait(lock, [&] { return task.done.load(std::memory_order_relaxed); });
    }
    if (task.error) std::rethrow_exception(task.error);
}

void Loader::drop(const std::shared_ptr<Task>& task) {
    std::unique_lock lock(mutex_);
    const auto found = std::find(tasks_.begin(), tasks_.end(), task);
    if (found == tasks_.end()) return;
    if (found == tasks_.begin() && working_)
        changed_.wait(lock, [&] { return task->done.load(std::memory_order_relaxed); });
    else
        tasks_.erase(found);
}

bool Loader::begin_first_step() {
    std::unique_lock lock(mutex_);
    if (!first_) return false;
    first_ = false;
    held_ = true;
    changed_.wait(lock, [&] { return !working_; });
    return true;
}

void Loader::end_first_step() {
    {
        std::lock_guard lock(mutex_);
        held_ = false;
        begun_ = true;
    }
    changed_.notify_all();
}

void Loader::provide(uint8_t* from, size_t bytes) {
    constexpr uintptr_t huge = Pages::kHuge;
    const uintptr_t begin = (reinterpret_cast<uintptr_t>(from) + huge - 1) / huge * huge;
    const uintptr_t end = reinterpret_cast<uintptr_t>(from) + bytes;
    if (begin >= end) return;
    parallel_for(*pool_, static_cast<uint32_t>((end - begin + huge - 1) / huge), 1, [&](uint32_t first, uint32_t last) {
        for (uint32_t i = first; i < last; ++i) *reinterpret_cast<volatile uint8_t*>(begin + i * huge) = 0;
    });
}

}  // namespace assay
