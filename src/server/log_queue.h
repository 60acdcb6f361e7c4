// A log sink that never makes its callers wait: lines go into a bounded queue, a thread writes
// them. When nobody takes them (a pipe whose reader has stopped) the queue fills up and further
// lines are dropped and counted; once writing goes on, a line says how many.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <thread>

#include <spdlog/sinks/base_sink.h>

namespace sub8::server {

class LogQueue final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  // Writes to `descriptor`, which stays the caller's and is left in the mode it is in.
  LogQueue(int descriptor, size_t max_bytes);
  // Gives what is queued one second to be written, and drops the rest.
  ~LogQueue() override;

  // Lines that were not and will not be written.
  uint64_t dropped() const { return dropped_; }

 protected:
  void sink_it_(const spdlog::details::log_msg& message) override;
  void flush_() override {}  // the thread writes as soon as it can

 private:
  void run();
  bool write(std::string_view text);

  const int descriptor_;
  const size_t max_bytes_;
  std::atomic<uint64_t> dropped_{0};
  std::atomic<bool> stopping_{false};
  std::mutex queue_mutex_;
  std::condition_variable filled_;
  std::deque<std::string> lines_;
  size_t bytes_ = 0;
  std::thread writer_;
};

}  // namespace sub8::server
