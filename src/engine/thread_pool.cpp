#include "engine/thread_pool.h"

#include <chrono>

namespace tessera {
namespace {

inline void cpu_relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Waits until `condition()` holds: spins first, then yields the core so that more threads than cores still progress.
template <class Condition>
void spin_until(Condition condition) {
  for (int32_t i = 0; !condition(); ++i) {
    if (i < 2000) {
      cpu_relax();
    } else {
      std::this_thread::yield();
    }
  }
}

}  // namespace

ThreadPool::ThreadPool(int32_t num_threads) {
  executor_.context = this;
  executor_.num_threads = num_threads < 1 ? 1 : num_threads;
  executor_.parallel_for = [](void* context, int64_t n, Task task, void* arg) {
    static_cast<ThreadPool*>(context)->parallel_for(n, task, arg);
  };
  workers_.reserve(static_cast<size_t>(executor_.num_threads - 1));
  for (int32_t t = 1; t < executor_.num_threads; ++t) {
    workers_.emplace_back([this, t] { worker(t); });
  }
}

ThreadPool::~ThreadPool() {
  stop_.store(true, std::memory_order_relaxed);
  epoch_.fetch_add(1, std::memory_order_release);
  epoch_.notify_all();
  for (std::thread& w : workers_) {
    w.join();
  }
}

void ThreadPool::parallel_for(int64_t num_tasks, Task task, void* arg) {
  if (num_tasks <= 1 || workers_.empty()) {
    for (int64_t i = 0; i < num_tasks; ++i) {
      task(arg, i, 0);
    }
    return;
  }
  task_ = task;
  arg_ = arg;
  num_tasks_ = num_tasks;
  next_task_.store(0, std::memory_order_relaxed);
  workers_done_.store(0, std::memory_order_relaxed);
  epoch_.fetch_add(1, std::memory_order_release);
  epoch_.notify_all();
  run_tasks(0);
  // Every worker reports, also one that found no task left: only then may the region's fields be reused.
  spin_until([this] { return workers_done_.load(std::memory_order_acquire) == static_cast<int32_t>(workers_.size()); });
}

void ThreadPool::run_tasks(int32_t thread) {
  while (true) {
    const int64_t i = next_task_.fetch_add(1, std::memory_order_relaxed);
    if (i >= num_tasks_) {
      return;
    }
    task_(arg_, i, thread);
  }
}

void ThreadPool::worker(int32_t thread) {
  uint32_t seen = 0;
  while (true) {
    // About 50 us of spinning bridges the gaps inside a decode step; after that sleep in the kernel.
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::microseconds(50);
    for (int32_t i = 0; epoch_.load(std::memory_order_acquire) == seen; ++i) {
      if (i % 64 == 63 && std::chrono::steady_clock::now() > deadline) {
        epoch_.wait(seen, std::memory_order_acquire);
        break;
      }
      cpu_relax();
    }
    seen = epoch_.load(std::memory_order_acquire);
    if (stop_.load(std::memory_order_relaxed)) {
      return;
    }
    run_tasks(thread);
    workers_done_.fetch_add(1, std::memory_order_release);
  }
}

}  // namespace tessera
