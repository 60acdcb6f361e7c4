// A pool with static partitions: part i of a job always runs the same share, whatever thread
// executes it, so results never depend on scheduling. Workers spin for a short while between jobs
// (a decode step is hundreds of jobs of tens of microseconds) and then sleep. A thread that is done
// with its own part takes those that nobody has begun: on a busy machine a job does not wait for
// threads that the system has not let run.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <type_traits>
#include <vector>

namespace sub8 {

class ThreadPool {
 public:
  // threads >= 1 counts the calling thread. The pool is not re-entrant: one job at a time, from one
  // caller at a time.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls f(part, parts) for every part in [0, size()), the caller's thread included; returns when
  // all are done. f must not throw.
  template <class F>
  void run(F&& f) {
    using Fn = std::remove_reference_t<F>;
    run_erased(
        [](void* context, int part, int parts) { (*static_cast<Fn*>(context))(part, parts); },
        const_cast<void*>(static_cast<const void*>(&f)));
  }

  // Splits [0, count) into size() contiguous ranges and calls f(begin, end, part) for every range
  // that is not empty. Range limits are multiples of `grain` (the last one excepted).
  template <class F>
  void for_ranges(int64_t count, int64_t grain, F&& f) {
    if (count <= 0) return;
    const int64_t units = (count + grain - 1) / grain;
    if (units == 1 || size() == 1) {
      f(int64_t{0}, count, 0);
      return;
    }
    run([&](int part, int parts) {
      const int64_t begin = units * part / parts * grain;
      const int64_t limit = units * (part + 1) / parts * grain;
      const int64_t end = limit < count ? limit : count;
      if (begin < end) f(begin, end, part);
    });
  }

  // The number of threads to use unless told otherwise: CPU affinity and cgroup quota, at least 1.
  static int default_threads();

 private:
  using Call = void (*)(void* context, int part, int parts);
  void run_erased(Call call, void* context);
  void worker(int part);
  void take_parts(uint32_t job, int own);

  struct alignas(64) Claim {
    std::atomic<uint32_t> job{0};  // the last one whose part this was taken
  };

  std::vector<std::thread> workers_;
  std::unique_ptr<Claim[]> claims_;  // one for each part
  Call call_ = nullptr;
  void* context_ = nullptr;
  std::atomic<bool> stop_{false};
  alignas(64) std::atomic<uint32_t> generation_{0};  // the current job's number
  alignas(64) std::atomic<int> pending_{0};
};

}  // namespace sub8
