#include "server/grammar_queue.h"

#include <utility>

namespace sub8::server {

GrammarQueue::GrammarQueue(size_t max_waiting)
    : max_waiting_(max_waiting), thread_([this] { run(); }) {}

GrammarQueue::~GrammarQueue() { stop(); }

bool GrammarQueue::post(std::function<void()> task) {
  {
    const std::lock_guard lock(mutex_);
    if (stopping_ || waiting_.size() >= max_waiting_) return false;
    waiting_.push_back(std::move(task));
  }
  changed_.notify_one();
  return true;
}

bool GrammarQueue::drop(std::chrono::milliseconds timeout) {
  std::deque<std::function<void()>> dropped;  // destroyed without the lock
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    dropped.swap(waiting_);
  }
  changed_.notify_all();
  dropped.clear();
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, timeout, [this] { return !running_; });
}

void GrammarQueue::stop() {
  drop({});
  if (thread_.joinable()) thread_.join();
}

void GrammarQueue::run() {
  while (true) {
    std::function<void()> task;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return stopping_ || !waiting_.empty(); });
      if (stopping_) return;
      task = std::move(waiting_.front());
      waiting_.pop_front();
      running_ = true;
    }
    task();
    task = nullptr;  // what it holds goes before anyone is told
    {
      const std::lock_guard lock(mutex_);
      running_ = false;
    }
    changed_.notify_all();
  }
}

}  // namespace sub8::server
