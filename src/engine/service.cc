#include "engine/service.h"

#include <algorithm>
#include <condition_variable>
#include <iterator>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"

namespace sub8::engine {
namespace {

// How often constraints are asked again while nothing else is to be done.
constexpr std::chrono::milliseconds kHeldInterval{1};

// What the engine thread has to do for one request before the next step.
struct Command {
  enum class Kind : uint8_t { kSubmit, kCancel, kResume };
  Kind kind;
  RequestId id;
  Request request;
};

}  // namespace

// Shared by the service, its thread and all streams. Lock order: none holds two of its mutexes.
struct Service::State {
  class Stream;
  class Reader;

  std::unique_ptr<Engine> engine;  // the engine thread's; gone when that has ended
  EngineInfo info;
  ServiceOptions options;

  std::mutex mutex;               // guards what follows, up to join_mutex
  std::condition_variable work;   // for the engine thread
  std::condition_variable ended;  // for drain()
  std::vector<Command> commands;
  std::unordered_map<RequestId, std::shared_ptr<Stream>> streams;
  RequestId next_id = 1;
  int choices = 0;  // of the requests in `streams`
  bool draining = false;
  bool stopping = false;
  Status health;
  Stats stats;

  std::mutex join_mutex;
  std::thread thread;

  void command(Command::Kind kind, RequestId id);
  void loop();
  bool take_commands(std::vector<Command>& out);
  void apply(std::vector<Command>& todo, std::vector<TokenEvent>& events);
  void dispatch(std::vector<TokenEvent>& events);
  void hand_over(Stream& stream, std::vector<TokenEvent>& events, size_t begin, size_t end);
  void finish(RequestId id);
};

// The queue between the engine thread and one reader.
class Service::State::Stream {
 public:
  Stream(RequestId id, int n, size_t capacity, std::function<void()> on_ready)
      : id_(id), n_(n), capacity_(capacity), on_ready_(std::move(on_ready)) {}

  RequestId id() const { return id_; }
  int choices() const { return n_; }

  // Engine thread. True: the reader is behind, the request must pause.
  bool push(std::vector<TokenEvent>& events, size_t begin, size_t end) {
    bool wake = false;
    bool full = false;
    {
      const std::lock_guard lock(mutex_);
      wake = unread_.empty();
      for (size_t i = begin; i < end; ++i) {
        ended_ |= events[i].summary.has_value();
        unread_.push_back(std::move(events[i]));
      }
      full = !ended_ && !paused_ && unread_.size() >= capacity_;
      paused_ |= full;
    }
    readable_.notify_one();
    if (wake) {
      const std::lock_guard lock(ready_mutex_);
      if (on_ready_) on_ready_();
    }
    return full;
  }

  // Reader. True: the request was paused and may go on.
  bool take(std::vector<TokenEvent>& out, bool& more) {
    const std::lock_guard lock(mutex_);
    return take_locked(out, more);
  }
  bool wait(std::vector<TokenEvent>& out, bool& more, std::chrono::milliseconds timeout) {
    std::unique_lock lock(mutex_);
    readable_.wait_for(lock, timeout, [&] { return !unread_.empty() || ended_; });
    return take_locked(out, more);
  }

  // No call of on_ready starts or runs on any more.
  void detach() {
    const std::lock_guard lock(ready_mutex_);
    on_ready_ = nullptr;
  }

 private:
  bool take_locked(std::vector<TokenEvent>& out, bool& more) {
    more = !ended_ || !unread_.empty();
    std::move(unread_.begin(), unread_.end(), std::back_inserter(out));
    unread_.clear();
    return std::exchange(paused_, false);
  }

  const RequestId id_;
  const int n_;
  const size_t capacity_;
  std::mutex mutex_;
  std::condition_variable readable_;
  std::vector<TokenEvent> unread_;
  bool ended_ = false;   // the last event is in unread_ or was taken
  bool paused_ = false;  // push() said so and no take() followed
  std::mutex ready_mutex_;
  std::function<void()> on_ready_;
};

// What submit() returns: the reader's hold on a stream.
class Service::State::Reader final : public RequestStream {
 public:
  Reader(std::shared_ptr<State> state, std::shared_ptr<Stream> stream)
      : state_(std::move(state)), stream_(std::move(stream)) {}
  ~Reader() override {
    stream_->detach();
    cancel();
  }
  RequestId id() const override { return stream_->id(); }
  bool poll(std::vector<TokenEvent>& out) override {
    bool more = false;
    if (stream_->take(out, more)) state_->command(Command::Kind::kResume, id());
    return more;
  }
  bool wait(std::vector<TokenEvent>& out, std::chrono::milliseconds timeout) override {
    bool more = false;
    if (stream_->wait(out, more, timeout)) state_->command(Command::Kind::kResume, id());
    return more;
  }
  void cancel() override { state_->command(Command::Kind::kCancel, id()); }

 private:
  std::shared_ptr<State> state_;
  std::shared_ptr<Stream> stream_;
};

// For requests that are not over; nothing otherwise.
void Service::State::command(Command::Kind kind, RequestId id) {
  {
    const std::lock_guard lock(mutex);
    if (stopping || !streams.contains(id)) return;
    commands.push_back({kind, id, {}});
  }
  work.notify_one();
}

// Waits until there is something to do. False: the service stops.
bool Service::State::take_commands(std::vector<Command>& out) {
  const bool busy = engine->has_work() && (engine->stepped() || !engine->holds());
  std::unique_lock lock(mutex);
  if (!busy) {
    stats = engine->stats();  // dispatch() may have paused somebody since
    const auto told = [&] { return stopping || !commands.empty(); };
    if (engine->holds()) {
      work.wait_for(lock, kHeldInterval, told);
    } else {
      work.wait(lock, told);
    }
  }
  out.clear();
  std::swap(out, commands);
  return !stopping;
}

void Service::State::apply(std::vector<Command>& todo, std::vector<TokenEvent>& events) {
  for (Command& c : todo) {
    switch (c.kind) {
      case Command::Kind::kSubmit:
        engine->enqueue(c.id, std::move(c.request));
        break;
      case Command::Kind::kCancel:
        engine->cancel(c.id, events);
        break;
      case Command::Kind::kResume:
        engine->resume(c.id);
        break;
    }
  }
}

void Service::State::finish(RequestId id) {
  {
    const std::lock_guard lock(mutex);
    const auto it = streams.find(id);
    choices -= it->second->choices();
    streams.erase(it);
  }
  ended.notify_all();
}

void Service::State::hand_over(Stream& stream, std::vector<TokenEvent>& events, size_t begin,
                               size_t end) {
  const bool last = events[end - 1].summary.has_value();
  const RequestId id = stream.id();
  if (last) finish(id);
  if (stream.push(events, begin, end)) engine->pause(id);
}

// Brings every event to its stream, those of one request together.
void Service::State::dispatch(std::vector<TokenEvent>& events) {
  {
    const std::lock_guard lock(mutex);
    stats = engine->stats();
  }
  std::stable_sort(events.begin(), events.end(),
                   [](const TokenEvent& a, const TokenEvent& b) { return a.id < b.id; });
  for (size_t begin = 0; begin < events.size();) {
    size_t end = begin + 1;
    while (end < events.size() && events[end].id == events[begin].id) ++end;
    std::shared_ptr<Stream> stream;
    {
      const std::lock_guard lock(mutex);
      stream = streams.at(events[begin].id);
    }
    hand_over(*stream, events, begin, end);
    begin = end;
  }
  events.clear();
}

void Service::State::loop() {
  std::vector<Command> todo;
  std::vector<TokenEvent> events;
  while (take_commands(todo)) {
    apply(todo, events);
    Status status = engine->has_work() ? engine->step(events) : Status();
    dispatch(events);
    if (status.ok()) continue;
    {
      const std::lock_guard lock(mutex);
      health = status;
      // Refused from now on; those that came during the step end with the others.
      todo.clear();
      std::swap(todo, commands);
    }
    apply(todo, events);
    engine->end_all(&status.error(), events);
    dispatch(events);
  }
  apply(todo, events);
  engine->end_all(nullptr, events);
  dispatch(events);
  engine.reset();
}

Service::Service(std::unique_ptr<Engine> engine, const ServiceOptions& options)
    : state_(std::make_shared<State>()) {
  SUB8_CHECK(options.event_capacity > 0 && options.max_queued > 0);
  state_->engine = std::move(engine);
  state_->info = state_->engine->info();
  state_->options = options;
  state_->stats = state_->engine->stats();
  state_->thread = std::thread([state = state_.get()] { state->loop(); });
}

Service::~Service() { shutdown(); }

Result<std::unique_ptr<RequestStream>> Service::submit(Request request,
                                                       std::function<void()> on_ready) {
  State& s = *state_;
  SUB8_RETURN_IF_ERROR(check_request(request, s.info));
  const int n = request.n;
  std::shared_ptr<State::Stream> stream;
  {
    const std::lock_guard lock(s.mutex);
    if (!s.health.ok()) return s.health.error();
    if (s.draining) return cancelled("the engine is shutting down: it takes no new requests");
    if (s.choices + n > s.options.max_queued) {
      return resource_exhausted(fmt::format(
          "{} answers are under way or wait, {} more are over the limit of {}; try again later",
          s.choices, n, s.options.max_queued));
    }
    const RequestId id = s.next_id++;
    stream = std::make_shared<State::Stream>(id, n, static_cast<size_t>(s.options.event_capacity),
                                             std::move(on_ready));
    s.choices += n;
    s.streams.emplace(id, stream);
    s.commands.push_back({Command::Kind::kSubmit, id, std::move(request)});
  }
  s.work.notify_one();
  return std::unique_ptr<RequestStream>(std::make_unique<State::Reader>(state_, std::move(stream)));
}

Stats Service::stats() const {
  const std::lock_guard lock(state_->mutex);
  return state_->stats;
}

const EngineInfo& Service::info() const { return state_->info; }

Status Service::health() const {
  const std::lock_guard lock(state_->mutex);
  return state_->health;
}

bool Service::drain(std::chrono::milliseconds timeout) {
  std::unique_lock lock(state_->mutex);
  state_->draining = true;
  return state_->ended.wait_for(lock, timeout, [&] { return state_->streams.empty(); });
}

void Service::shutdown() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->draining = true;
    state_->stopping = true;
  }
  state_->work.notify_one();
  const std::lock_guard lock(state_->join_mutex);
  if (state_->thread.joinable()) state_->thread.join();
}

}  // namespace sub8::engine
