#include "server/log_queue.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <climits>
#include <utility>

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

namespace sub8::server {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int kPollMs = 50;
constexpr std::chrono::seconds kLastWrites{1};

}  // namespace

LogQueue::LogQueue(int descriptor, size_t max_bytes)
    : descriptor_(descriptor), max_bytes_(max_bytes), writer_([this] { run(); }) {}

LogQueue::~LogQueue() {
  {
    const std::lock_guard lock(queue_mutex_);
    stopping_ = true;
  }
  filled_.notify_one();
  writer_.join();
}

void LogQueue::sink_it_(const spdlog::details::log_msg& message) {
  spdlog::memory_buf_t formatted;
  formatter_->format(message, formatted);
  {
    const std::lock_guard lock(queue_mutex_);
    if (bytes_ + formatted.size() > max_bytes_) {
      ++dropped_;
      return;
    }
    lines_.emplace_back(formatted.data(), formatted.size());
    bytes_ += formatted.size();
  }
  filled_.notify_one();
}

// A pipe that polls as writable takes PIPE_BUF bytes without blocking, so no write can hang, also
// where the descriptor is shared and must stay in blocking mode. False: nothing can be written any
// more, or the time after the stop is over.
bool LogQueue::write(std::string_view text) {
  Clock::time_point deadline = Clock::time_point::max();
  while (!text.empty()) {
    if (stopping_ && deadline == Clock::time_point::max()) deadline = Clock::now() + kLastWrites;
    if (Clock::now() > deadline) return false;
    pollfd wait{descriptor_, POLLOUT, 0};
    const int ready = ::poll(&wait, 1, kPollMs);
    if (ready == 0 || (ready < 0 && errno == EINTR)) continue;
    if (ready < 0) return false;
    const ssize_t n =
        ::write(descriptor_, text.data(), std::min(text.size(), static_cast<size_t>(PIPE_BUF)));
    if (n > 0) {
      text.remove_prefix(static_cast<size_t>(n));
    } else if (n < 0 && errno != EINTR && errno != EAGAIN) {
      return false;
    }
  }
  return true;
}

void LogQueue::run() {
  uint64_t reported = 0;
  std::deque<std::string> batch;
  while (true) {
    {
      std::unique_lock lock(queue_mutex_);
      filled_.wait(lock, [this] { return stopping_ || !lines_.empty(); });
      if (lines_.empty()) return;
      batch.clear();
      std::swap(batch, lines_);
    }
    for (size_t i = 0; i < batch.size(); ++i) {
      const bool written = write(batch[i]);
      if (!written) ++dropped_;
      {
        const std::lock_guard lock(queue_mutex_);
        bytes_ -= batch[i].size();
      }
      if (!written && stopping_) {
        dropped_ += batch.size() - i - 1;
        return;
      }
    }
    if (const uint64_t dropped = dropped_;
        dropped > reported &&
        write(fmt::format("level=warning event=log_dropped lines={}\n", dropped - reported)))
      reported = dropped;
  }
}

}  // namespace sub8::server
