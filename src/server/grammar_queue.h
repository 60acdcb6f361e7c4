// Threads that wait for grammars to be compiled: some that take long hold up other grammars, never
// the workers that plain requests need.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace sub8::server {

class GrammarQueue {
 public:
  // At most `max_running` tasks run at once, and `max_waiting` wait beside them.
  GrammarQueue(int max_running, size_t max_waiting);
  ~GrammarQueue();
  GrammarQueue(const GrammarQueue&) = delete;
  GrammarQueue& operator=(const GrammarQueue&) = delete;

  // Runs `task`, which must not throw, after those before it began. False where too many wait or
  // stop() was called. Any thread.
  bool post(std::function<void()> task);
  // Drops what waits, waits for what runs, and takes nothing more. Idempotent.
  void stop();

 private:
  void run();

  const size_t max_waiting_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> waiting_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;  // last: they use the rest
};

}  // namespace sub8::server
