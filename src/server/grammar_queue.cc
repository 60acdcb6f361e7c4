#include "server/grammar_queue.h"

#include <utility>

namespace sub8::server {

GrammarQueue::GrammarQueue(int max_running, size_t max_waiting) : max_waiting_(max_waiting) {
  for (int i = 0; i < max_running; ++i) threads_.emplace_back([this] { run(); });
}

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

void GrammarQueue::stop() {
  std::deque<std::function<void()>> dropped;  // destroyed without the lock
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    dropped.swap(waiting_);
  }
  changed_.notify_all();
  dropped.clear();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
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
    }
    task();
  }
}

}  // namespace sub8::server
