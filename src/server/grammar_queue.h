// A thread of its own for compiling grammars: one that takes long holds up other grammars, never
// the workers that plain requests need.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace sub8::server {

class GrammarQueue {
 public:
  // At most `max_waiting` tasks wait beside the one that runs.
  explicit GrammarQueue(size_t max_waiting);
  ~GrammarQueue();
  GrammarQueue(const GrammarQueue&) = delete;
  GrammarQueue& operator=(const GrammarQueue&) = delete;

  // Runs `task`, which must not throw, after those before it. False where too many wait or stop()
  // was called. Any thread.
  bool post(std::function<void()> task);
  // Drops what waits and takes nothing more; false where a task still runs after `timeout`.
  bool drop(std::chrono::milliseconds timeout);
  // drop() without a limit, and the end of the thread. Idempotent.
  void stop();

 private:
  void run();

  const size_t max_waiting_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> waiting_;
  bool running_ = false;
  bool stopping_ = false;
  std::thread thread_;  // last: uses the rest
};

}  // namespace sub8::server
