#include "server/fake_backend.h"

#include "text/utf8.h"

namespace sub8::server::testing {
namespace {

constexpr size_t kEventCapacity = 256;
constexpr int kBurst = 16;

}  // namespace

class FakeBackend::Stream final : public engine::RequestStream {
 public:
  Stream(engine::RequestId id, std::shared_ptr<Shared> shared, std::atomic<int>& cancelled)
      : id_(id), shared_(std::move(shared)), cancelled_(cancelled) {}
  ~Stream() override {
    const std::lock_guard lock(shared_->mutex);
    if (!shared_->ended && !shared_->cancelled) ++cancelled_;
    shared_->cancelled = true;
    shared_->on_ready = {};
  }
  engine::RequestId id() const override { return id_; }
  bool poll(std::vector<engine::TokenEvent>& out) override {
    const std::lock_guard lock(shared_->mutex);
    if (shared_->delivered) return false;
    for (auto& event : shared_->events) {
      if (event.summary) shared_->delivered = true;
      out.push_back(std::move(event));
    }
    shared_->events.clear();
    return true;
  }
  bool wait(std::vector<engine::TokenEvent>& out, std::chrono::milliseconds) override {
    return poll(out);
  }
  void cancel() override {
    const std::lock_guard lock(shared_->mutex);
    shared_->cancelled = true;
  }

 private:
  engine::RequestId id_;
  std::shared_ptr<Shared> shared_;
  std::atomic<int>& cancelled_;
};

Result<std::unique_ptr<engine::RequestStream>> FakeBackend::submit(engine::Request request,
                                                                   std::function<void()> on_ready) {
  const std::lock_guard lock(mutex_);
  if (!health_.ok()) return health_.error();
  if (request.prompt.empty()) return invalid_argument("the prompt is empty: it has no tokens");
  last_ = request;
  auto active = std::make_shared<Active>();
  active->id = next_id_++;
  active->request = std::move(request);
  active->shared = std::make_shared<Shared>();
  active->shared->on_ready = std::move(on_ready);
  active->summary.prompt_tokens = static_cast<int64_t>(active->request.prompt.size());
  active->summary.cached_tokens = 1;
  active->summary.arrival = std::chrono::steady_clock::now();
  active->summary.seed = active->request.sampling.seed.value_or(7);
  for (int i = 0; i < active->request.n; ++i)
    active->choices.emplace_back(active->request.sampling.stop);
  active_.push_back(active);
  changed_.notify_all();
  return std::unique_ptr<engine::RequestStream>(
      std::make_unique<Stream>(active->id, active->shared, cancelled_));
}

void FakeBackend::run() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    if (active_.empty() || script_.hold) {
      changed_.wait(lock);
      continue;
    }
    const auto delay = script_.delay;
    // Without a delay, several steps at once: a busy machine would take long between them.
    for (int i = 0; i < (delay.count() > 0 ? 1 : kBurst); ++i) {
      for (const auto& active : std::deque<std::shared_ptr<Active>>(active_)) {
        if (!active->over()) step(*active);
      }
    }
    std::erase_if(active_, [](const auto& active) {
      const std::lock_guard inner(active->shared->mutex);
      return active->shared->ended || active->shared->cancelled;
    });
    lock.unlock();
    if (delay.count() > 0)
      std::this_thread::sleep_for(delay);
    else
      std::this_thread::yield();
    lock.lock();
  }
}

void FakeBackend::push(Active& active, engine::TokenEvent event, FakeBackend& self) {
  const std::lock_guard lock(active.shared->mutex);
  if (active.shared->cancelled) return;
  if (event.summary) active.shared->ended = true;
  active.shared->events.push_back(std::move(event));
  self.max_unread_ =
      std::max<int>(self.max_unread_, static_cast<int>(active.shared->events.size()));
  if (active.shared->events.size() == 1 && active.shared->on_ready) active.shared->on_ready();
}

void FakeBackend::step(Active& active) {
  {
    const std::lock_guard lock(active.shared->mutex);
    if (active.shared->cancelled || active.shared->events.size() >= kEventCapacity) return;
  }
  if (!active.begun) {
    active.begun = true;
    active.summary.scheduled = std::chrono::steady_clock::now();
    for (uint32_t i = 0; active.request.constraint && i < active.choices.size(); ++i)
      active.constraints.push_back(active.request.constraint(i).value());
    if (active.request.prompt_logprobs >= 0) {
      engine::TokenEvent event;
      event.id = active.id;
      for (size_t i = 1; i < active.request.prompt.size(); ++i) {
        event.prompt_logprobs.push_back({active.request.prompt[i], -0.5f, {}});
        for (int k = 0; k < active.request.prompt_logprobs; ++k)
          event.prompt_logprobs.back().top.emplace_back(k, -0.25f);
      }
      push(active, std::move(event), *this);
    }
  }
  for (uint32_t i = 0; i < active.choices.size(); ++i) {
    if (active.choices[i].over) continue;
    engine::TokenEvent event = next(active, i);
    if (event.token) {
      ++active.summary.completion_tokens;
      ++stats_.generation_tokens;
      if (active.summary.first_token == engine::TimePoint{})
        active.summary.first_token = std::chrono::steady_clock::now();
    }
    active.choices[i].over = event.finish != engine::FinishReason::kRunning;
    if (active.choices[i].over) ++stats_.finished[static_cast<size_t>(event.finish)];
    if (active.over()) {
      active.summary.finished = std::chrono::steady_clock::now();
      event.summary = active.summary;
    }
    push(active, std::move(event), *this);
  }
}

// The next token of the script as the engine would report it.
engine::TokenEvent FakeBackend::next(Active& active, uint32_t index) {
  Choice& choice = active.choices[index];
  const engine::SamplingParams& p = active.request.sampling;
  engine::TokenEvent event;
  event.id = active.id;
  event.choice = index;
  if (p.max_tokens && *p.max_tokens == 0) {
    event.finish = engine::FinishReason::kLength;
    return event;
  }
  if (static_cast<int64_t>(choice.at) == script_.fail_at) {
    event.finish = engine::FinishReason::kError;
    event.error = corrupt_data("the fake model failed");  // as from a model with NaN logits
    return event;
  }
  const bool wrap = p.ignore_eos && !script_.tokens.empty();
  const bool ended = choice.at >= script_.tokens.size() && !wrap;
  const int32_t id = ended ? script_.end_token : script_.tokens[choice.at % script_.tokens.size()];
  ++choice.at;
  event.token = engine::TokenLogprob{id, -std::numeric_limits<float>::infinity(), {}};
  for (int k = 0; k < p.top_logprobs; ++k) event.token->top.emplace_back(id + k, -1.0f - float(k));
  if (ended) {
    event.finish = engine::FinishReason::kStop;
  } else {
    choice.pending += tokenizer_.token_bytes(id);
    const size_t tail = incomplete_utf8_tail(choice.pending);
    std::string text;
    append_lossy_utf8(std::string_view(choice.pending).substr(0, choice.pending.size() - tail),
                      &text);
    choice.pending.erase(0, choice.pending.size() - tail);
    event.text = choice.stops.push(text);
    if (choice.stops.matched()) {
      event.finish = engine::FinishReason::kStop;
      event.stop = choice.stops.match();
      return event;
    }
    if (p.max_tokens && static_cast<int64_t>(choice.at) >= *p.max_tokens)
      event.finish = engine::FinishReason::kLength;
  }
  if (event.finish != engine::FinishReason::kRunning) {
    std::string rest;
    append_lossy_utf8(choice.pending, &rest);
    event.text += choice.stops.push(rest);
    event.text += choice.stops.finish();
  }
  return event;
}

}  // namespace sub8::server::testing
