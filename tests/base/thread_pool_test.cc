#include "base/thread_pool.h"

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace sub8 {
namespace {

TEST(ThreadPool, EveryPartRunsOnceInEveryJob) {
  for (int threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    ASSERT_EQ(pool.size(), threads);
    std::vector<std::atomic<int>> counts(threads);
    for (int job = 0; job < 2000; ++job) {
      pool.run([&](int part, int parts) {
        EXPECT_EQ(parts, threads);
        counts[part].fetch_add(1, std::memory_order_relaxed);
      });
    }
    for (auto& count : counts) EXPECT_EQ(count.load(), 2000);
  }
}

TEST(ThreadPool, WorkersWakeAfterSleeping) {
  ThreadPool pool(4);
  for (int i = 0; i < 5; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    std::atomic<int> sum{0};
    pool.run([&](int part, int) { sum += part; });
    EXPECT_EQ(sum.load(), 6);
  }
}

TEST(ThreadPool, SlowPartsAreWaitedFor) {
  ThreadPool pool(3);
  std::atomic<int> done{0};
  pool.run([&](int part, int) {
    std::this_thread::sleep_for(std::chrono::milliseconds(3 * part));
    done += 1;
  });
  EXPECT_EQ(done.load(), 3);
}

TEST(ThreadPool, RangesCoverEverythingOnceWithGrain) {
  for (int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    for (int64_t count : {0, 1, 7, 8, 9, 64, 1000}) {
      std::vector<std::atomic<int>> seen(static_cast<size_t>(count));
      pool.for_ranges(count, 8, [&](int64_t begin, int64_t end, int) {
        EXPECT_EQ(begin % 8, 0);
        EXPECT_TRUE(end % 8 == 0 || end == count);
        for (int64_t i = begin; i < end; ++i) seen[static_cast<size_t>(i)] += 1;
      });
      for (auto& s : seen) EXPECT_EQ(s.load(), 1);
    }
  }
}

TEST(ThreadPool, DefaultIsAtLeastOne) { EXPECT_GE(ThreadPool::default_threads(), 1); }

}  // namespace
}  // namespace sub8
