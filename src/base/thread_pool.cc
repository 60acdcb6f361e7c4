#include "base/thread_pool.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>
#include <string>

#include <sched.h>

#include "base/check.h"

namespace sub8 {
namespace {

// Long enough to bridge the serial work between two operations of a forward pass, short enough not
// to burn a core.
constexpr auto kSpin = std::chrono::microseconds(200);

void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Spins until changed() or the spin time is over; returns whether it changed.
template <class F>
bool spin_until(F&& changed) {
  const auto deadline = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int i = 0; i < 64; ++i) {
      if (changed()) return true;
      pause_cpu();
    }
  } while (std::chrono::steady_clock::now() < deadline);
  return changed();
}

// CPUs that the cgroup allows (version 2, then 1); 0 when there is no limit.
double cgroup_cpus() {
  if (std::ifstream file("/sys/fs/cgroup/cpu.max"); file) {
    std::string quota;
    double period = 0;
    if (file >> quota >> period && quota != "max" && period > 0)
      return std::atof(quota.c_str()) / period;
    return 0;
  }
  std::ifstream quota_file("/sys/fs/cgroup/cpu/cpu.cfs_quota_us");
  std::ifstream period_file("/sys/fs/cgroup/cpu/cpu.cfs_period_us");
  double quota = 0;
  double period = 0;
  if (quota_file >> quota && period_file >> period && quota > 0 && period > 0)
    return quota / period;
  return 0;
}

}  // namespace

int ThreadPool::default_threads() {
  cpu_set_t set;
  CPU_ZERO(&set);
  int cpus = sched_getaffinity(0, sizeof(set), &set) == 0
                 ? CPU_COUNT(&set)
                 : static_cast<int>(std::thread::hardware_concurrency());
  if (const double limit = cgroup_cpus(); limit > 0) {
    cpus = std::min(cpus, std::max(1, static_cast<int>(std::ceil(limit))));
  }
  return std::max(1, cpus);
}

ThreadPool::ThreadPool(int threads) {
  SUB8_CHECK_GE(threads, 1);
  claims_ = std::make_unique<Claim[]>(static_cast<size_t>(threads));
  workers_.reserve(static_cast<size_t>(threads - 1));
  for (int part = 1; part < threads; ++part) workers_.emplace_back([this, part] { worker(part); });
}

ThreadPool::~ThreadPool() {
  stop_ = true;
  generation_.fetch_add(1, std::memory_order_release);
  generation_.notify_all();
  for (std::thread& thread : workers_) thread.join();
}

// Runs the thread's own part of the job, then every other that is still free. A job cannot end
// before all its parts were taken, and each claim steps from job - 1 to job once: a thread that
// comes late finds nothing, and call_ and context_ are the job's for as long as a part runs.
void ThreadPool::take_parts(uint32_t job, int own) {
  const int parts = size();
  for (int i = 0; i < parts; ++i) {
    const int part = (own + i) % parts;
    std::atomic<uint32_t>& claim = claims_[static_cast<size_t>(part)].job;
    uint32_t before = job - 1;
    if (claim.load(std::memory_order_relaxed) != before ||
        !claim.compare_exchange_strong(before, job, std::memory_order_acquire))
      continue;
    call_(context_, part, parts);
    if (pending_.fetch_sub(1, std::memory_order_acq_rel) == 1) pending_.notify_all();
  }
}

void ThreadPool::run_erased(Call call, void* context) {
  const int parts = size();
  if (parts == 1) {
    call(context, 0, 1);
    return;
  }
  call_ = call;
  context_ = context;
  pending_.store(parts, std::memory_order_relaxed);
  const uint32_t job = generation_.fetch_add(1, std::memory_order_release) + 1;
  generation_.notify_all();
  take_parts(job, 0);
  while (!spin_until([this] { return pending_.load(std::memory_order_acquire) == 0; })) {
    const int left = pending_.load(std::memory_order_acquire);
    if (left != 0) pending_.wait(left, std::memory_order_acquire);
  }
}

void ThreadPool::worker(int part) {
  uint32_t seen = 0;
  while (true) {
    if (!spin_until([&] { return generation_.load(std::memory_order_acquire) != seen; })) {
      generation_.wait(seen, std::memory_order_acquire);
      if (generation_.load(std::memory_order_acquire) == seen) continue;
    }
    seen = generation_.load(std::memory_order_acquire);
    if (stop_) return;
    take_parts(seen, part);
  }
}

}  // namespace sub8
