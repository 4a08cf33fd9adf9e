#include "engine/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <vector>

namespace tessera {
namespace {

struct Job {
  std::vector<std::atomic<int>> runs;
  std::atomic<int> bad_thread{0};
  int32_t threads;
};

void run_once_each(ThreadPool* pool, int64_t tasks) {
  Job job{std::vector<std::atomic<int>>(static_cast<size_t>(tasks)), {0}, pool->num_threads()};
  pool->parallel_for(
      tasks,
      [](void* arg, int64_t index, int32_t thread) {
        Job& j = *static_cast<Job*>(arg);
        j.runs[static_cast<size_t>(index)].fetch_add(1);
        if (thread < 0 || thread >= j.threads) {
          j.bad_thread.store(1);
        }
      },
      &job);
  for (const std::atomic<int>& r : job.runs) {
    ASSERT_EQ(r.load(), 1);
  }
  ASSERT_EQ(job.bad_thread.load(), 0);
}

TEST(ThreadPool, RunsEveryTaskOnceForAnyNumberOfThreads) {
  for (const int32_t threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.num_threads(), threads);
    for (const int64_t tasks : {0, 1, 2, 3, 7, 100, 1000}) {
      run_once_each(&pool, tasks);
    }
  }
}

TEST(ThreadPool, ManyShortRegionsInARowStaySeparate) {
  ThreadPool pool(4);
  for (int i = 0; i < 2000; ++i) {
    run_once_each(&pool, 5);
  }
}

TEST(ThreadPool, FewerThanOneThreadMeansOne) {
  ThreadPool pool(0);
  EXPECT_EQ(pool.num_threads(), 1);
  run_once_each(&pool, 10);
}

}  // namespace
}  // namespace tessera
