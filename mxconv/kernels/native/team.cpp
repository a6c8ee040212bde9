#include "team.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace mxconv {

namespace {

constexpr int kSpins = 256;        // at a barrier, a few microseconds; then others get the processor, perhaps ours
constexpr int kIdleSpins = 20000;  // between calls, before sleeping: about 200 microseconds

inline void pause() {
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

// Spin until `done()`; with more threads than processors somebody else may need ours.
template <class Done>
void spin(Done done) {
    for (int spins = 0; !done(); ++spins) {
        if (spins < kSpins) {
            pause();
        } else {
            std::this_thread::yield();
        }
    }
}

}  // namespace

Team::Team(int num_threads) : num_threads_(num_threads) {
    for (int thread = 1; thread < num_threads; ++thread) threads_.emplace_back([this, thread] { serve(thread); });
}

Team::~Team() {
    {
        std::lock_guard lock(mutex_);
        closing_ = true;
        round_.fetch_add(1);
    }
    wake_.notify_all();
    for (auto& thread : threads_) thread.join();
}

void Team::run(const std::function<void(int)>& work) {
    std::lock_guard one_at_a_time(callers_);
    if (num_threads_ == 1) return work(0);
    running_.store(num_threads_ - 1);
    {
        std::lock_guard lock(mutex_);
        work_ = &work;
        round_.fetch_add(1);
    }
    wake_.notify_all();
    work(0);
    spin([this] { return running_.load(std::memory_order_acquire) == 0; });
}

void Team::barrier() {
    if (num_threads_ == 1) return;
    const uint64_t phase = phase_.load(std::memory_order_relaxed);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) == num_threads_ - 1) {
        arrived_.store(0, std::memory_order_relaxed);
        phase_.store(phase + 1, std::memory_order_release);
        return;
    }
    spin([&] { return phase_.load(std::memory_order_acquire) != phase; });
}

void Team::serve(int thread) {
    for (uint64_t seen = 0;; ++seen) {
        for (int spins = 0; spins < kIdleSpins && round_.load(std::memory_order_acquire) == seen; ++spins) pause();
        {
            std::unique_lock lock(mutex_);
            wake_.wait(lock, [&] { return round_.load() != seen; });
        }
        if (closing_) return;
        (*work_)(thread);
        running_.fetch_sub(1, std::memory_order_release);
    }
}

}  // namespace mxconv
