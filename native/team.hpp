// Threads that are torch's own, and how they go through a step together.
#pragma once
#include <algorithm>
#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace holdover {

// `parallel` is GOMP_parallel of the OpenMP library that torch has loaded, so that no second pool
// spins beside the first. Without one, threads are started for each call.
struct Team {
  using Parallel = void (*)(void (*)(void*), void*, unsigned, unsigned);
  Parallel parallel;
  int threads;

  // Calls `body(thread)` on up to `n` threads; fewer may come, and late.
  template <class Body>
  void together(int n, Body body) const {
    struct Shared {
      Body& body;
      std::atomic<int> next_thread{0};
    } shared{body};
    auto work = [](void* at) {
      auto& s = *static_cast<Shared*>(at);
      s.body(s.next_thread++);
    };
    n = std::min(threads, n);
    if (n <= 1) return work(&shared);
    if (parallel) return parallel(work, &shared, unsigned(n), 0);
    std::vector<std::thread> others;
    for (int i = 1; i < n; ++i) others.emplace_back(work, &shared);
    work(&shared);
    for (auto& other : others) other.join();
  }

  // Calls `body(task, thread)` for every task.
  template <class Body>
  void run(int n_tasks, Body body) const {
    std::atomic<int> next{0};
    together(n_tasks, [&](int thread) {
      for (int task; (task = next++) < n_tasks;) body(task, thread);
    });
  }
};

// A stage is over when its tasks are done, not when every thread has come: one that the system has
// put aside holds up nobody, and finds on its return that all of it has been done.
class Stages {
  struct Stage {
    std::atomic<int> next{0}, done{0}, over{0};
  };
  std::unique_ptr<Stage[]> stages;

 public:
  explicit Stages(int n_stages) : stages(new Stage[n_stages]) {}

  // One thread's way through the stages. All threads walk through the same ones.
  struct Walk {
    Stages& all;
    int thread, at = 0;

    // `last` runs once, on the thread that finishes the stage, before anyone goes on.
    template <class Body, class Last>
    void stage(int n_tasks, Body body, Last last) {
      Stage& s = all.stages[at++];
      int n_mine = 0;
      for (int task; (task = s.next.fetch_add(1, std::memory_order_relaxed)) < n_tasks; ++n_mine) body(task);
      if (n_mine && s.done.fetch_add(n_mine, std::memory_order_acq_rel) + n_mine == n_tasks) {
        last();
        return s.over.store(1, std::memory_order_release);
      }
      for (int tries = 0; !s.over.load(std::memory_order_acquire); ++tries) wait(tries);
    }
  };

 private:
  static void wait(int tries) {
    constexpr int SPINS = 2000;  // some 50 us
    if (tries >= SPINS) return std::this_thread::yield();
#if defined(__x86_64__)
    _mm_pause();
#endif
  }
};

}  // namespace holdover
