// A thread team that stays together: the caller is thread 0, the others spin for a moment and then sleep between calls.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace mxconv {

class Team {
  public:
    explicit Team(int num_threads);
    ~Team();
    Team(const Team&) = delete;
    Team& operator=(const Team&) = delete;

    int size() const { return num_threads_; }

    // Call work(thread) on every thread and return when all have. Calls from several threads take turns.
    void run(const std::function<void(int)>& work);

    // Inside work: wait until every thread has come here. What was written before is seen after.
    void barrier();

  private:
    void serve(int thread);

    const int num_threads_;
    std::vector<std::thread> threads_;
    std::mutex callers_;
    std::mutex mutex_;
    std::condition_variable wake_;
    const std::function<void(int)>* work_ = nullptr;
    alignas(64) std::atomic<uint64_t> round_{0};  // counts calls of run
    alignas(64) std::atomic<int> running_{0};     // threads that still work
    alignas(64) std::atomic<int> arrived_{0};
    alignas(64) std::atomic<uint64_t> phase_{0};  // counts barriers
    std::atomic<bool> closing_{false};
};

// Pieces 0..count - 1, handed out one after another to whoever asks.
class Pieces {
  public:
    void reset() { next_.store(0, std::memory_order_relaxed); }
    int64_t take() { return next_.fetch_add(1, std::memory_order_relaxed); }

  private:
    alignas(64) std::atomic<int64_t> next_{0};
};

}  // namespace mxconv
