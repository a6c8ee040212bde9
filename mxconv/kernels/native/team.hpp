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

// Pieces 0..count - 1 of some work. Each thread has an equal run of them, which it takes from the front, so that it reads
// memory in order; whoever is done takes from the back of somebody else's.
class Pieces {
  public:
    explicit Pieces(int num_threads) : taken_(static_cast<size_t>(num_threads)) { reset(); }

    void reset() {
        for (Taken& taken : taken_) taken.ends.store(0, std::memory_order_relaxed);
    }

    // The next piece for this thread, or -1 when all are taken.
    int64_t take(int64_t count, int thread) {
        const auto num_threads = static_cast<int>(taken_.size());
        for (int turn = 0; turn < num_threads; ++turn) {
            const int owner = (thread + turn) % num_threads;
            const int64_t begin = count * owner / num_threads, end = count * (owner + 1) / num_threads;
            std::atomic<uint64_t>& ends = taken_[static_cast<size_t>(owner)].ends;
            uint64_t both = ends.load(std::memory_order_relaxed);
            for (;;) {
                const auto front = static_cast<int64_t>(both & 0xFFFFFFFF), back = static_cast<int64_t>(both >> 32);
                if (begin + front + back >= end) break;
                const uint64_t more = turn == 0 ? both + 1 : both + (uint64_t{1} << 32);
                if (ends.compare_exchange_weak(both, more, std::memory_order_relaxed)) {
                    return turn == 0 ? begin + front : end - 1 - back;
                }
            }
        }
        return -1;
    }

  private:
    struct alignas(64) Taken {
        std::atomic<uint64_t> ends{0};  // pieces taken from the front, and from the back in the upper half

        Taken() = default;
        Taken(Taken&&) noexcept {}  // for std::vector, before anything is taken
    };

    std::vector<Taken> taken_;
};

}  // namespace mxconv
