// The engine's threads, in the form the public API wants them (tessera_executor).
//
// A decode step runs some hundred parallel regions of a few microseconds each, so workers wait by spinning for about
// 50 microseconds before they sleep. Tasks are handed out by an atomic counter; results never depend on who ran what.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "tessera/tessera.h"

namespace tessera {

class ThreadPool {
 public:
  // num_threads >= 1, the calling thread included.
  explicit ThreadPool(int32_t num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int32_t num_threads() const { return executor_.num_threads; }
  // Valid as long as the pool; one parallel region at a time.
  const tessera_executor* executor() const { return &executor_; }

  using Task = void (*)(void* arg, int64_t index, int32_t thread);
  void parallel_for(int64_t num_tasks, Task task, void* arg);

 private:
  void worker(int32_t thread);
  void run_tasks(int32_t thread);

  tessera_executor executor_{};
  std::vector<std::thread> workers_;

  // One region. Written by parallel_for before `epoch_` is raised, read by workers after they saw it.
  Task task_ = nullptr;
  void* arg_ = nullptr;
  int64_t num_tasks_ = 0;
  alignas(64) std::atomic<int64_t> next_task_{0};
  alignas(64) std::atomic<int32_t> workers_done_{0};
  alignas(64) std::atomic<uint32_t> epoch_{0};
  std::atomic<bool> stop_{false};
};

}  // namespace tessera
