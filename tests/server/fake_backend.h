// A backend without a model: it says a given text, token by token, on a thread of its own.
//
// A prompt is answered with `script`, cut into the pieces that a real engine would deliver: one
// token per event. Everything that the server could get wrong is observable: how many requests run,
// how many were cancelled, what was asked for.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "engine/stop_matcher.h"
#include "server/backend.h"
#include "text/tokenizer.h"

namespace sub8::server::testing {

struct Script {
  std::vector<int32_t> tokens;  // what the model "generates", before an end token
  int32_t end_token = 0;
  std::chrono::microseconds delay{0};  // per token
  int64_t fail_at = -1;                // index of the token that fails
  bool hold = false;                   // no token before release()
};

class FakeBackend final : public Backend {
 public:
  FakeBackend(const Tokenizer& tokenizer, Script script, engine::EngineInfo info)
      : tokenizer_(tokenizer), script_(std::move(script)), info_(std::move(info)) {
    thread_ = std::thread([this] { run(); });
  }
  ~FakeBackend() override {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  Result<std::unique_ptr<engine::RequestStream>> submit(engine::Request request,
                                                        std::function<void()> on_ready) override;
  engine::Stats stats() const override {
    const std::lock_guard lock(mutex_);
    engine::Stats out = stats_;
    out.running = static_cast<int>(active_.size());
    return out;
  }
  const engine::EngineInfo& info() const override { return info_; }
  Status health() const override {
    const std::lock_guard lock(mutex_);
    return health_;
  }

  void set_health(Status status) {
    const std::lock_guard lock(mutex_);
    health_ = std::move(status);
  }
  void set_script(Script script) {
    const std::lock_guard lock(mutex_);
    script_ = std::move(script);
  }
  void release() {
    const std::lock_guard lock(mutex_);
    script_.hold = false;
    changed_.notify_all();
  }
  int cancelled() const { return cancelled_; }
  int max_unread() const { return max_unread_; }
  engine::Request last_request() const {
    const std::lock_guard lock(mutex_);
    return last_;
  }

 private:
  struct Shared {
    std::mutex mutex;
    std::vector<engine::TokenEvent> events;
    bool ended = false;      // the summary is in events, or was taken
    bool delivered = false;  // the summary was taken
    bool cancelled = false;
    std::function<void()> on_ready;
  };
  struct Choice {
    explicit Choice(const std::vector<std::string>& stop) : stops(stop) {}
    engine::StopMatcher stops;
    std::string pending;  // bytes that are no whole character yet
    size_t at = 0;
    bool over = false;
  };
  struct Active {
    engine::RequestId id;
    engine::Request request;
    std::shared_ptr<Shared> shared;
    std::vector<Choice> choices;
    std::vector<std::unique_ptr<engine::TokenConstraint>> constraints;
    engine::RequestSummary summary;
    bool begun = false;
    bool over() const {
      return std::all_of(choices.begin(), choices.end(), [](const Choice& c) { return c.over; });
    }
  };
  class Stream;

  void run();
  void step(Active& active);
  engine::TokenEvent next(Active& active, uint32_t index);
  static void push(Active& active, engine::TokenEvent event, FakeBackend& self);

  const Tokenizer& tokenizer_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  Script script_;
  engine::EngineInfo info_;
  engine::Stats stats_;
  Status health_;
  engine::Request last_;
  engine::RequestId next_id_ = 1;
  std::deque<std::shared_ptr<Active>> active_;
  bool stopping_ = false;
  std::atomic<int> cancelled_{0};
  std::atomic<int> max_unread_{0};
  std::thread thread_;
};

}  // namespace sub8::server::testing
