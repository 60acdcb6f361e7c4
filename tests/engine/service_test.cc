// The engine on its thread: streams, slow readers, cancels, failures, shutdown.
#include "engine/service.h"

#include <atomic>
#include <random>
#include <thread>

#include <gtest/gtest.h>

#include "fake_runner.h"

namespace sub8::engine {
namespace {

using namespace std::chrono_literals;
using testing::fake_tokenizer;
using testing::FakeOptions;
using testing::FakeRunner;

std::unique_ptr<Engine> make_engine(FakeOptions fake = {}, int64_t fail_at_step = -1) {
  EngineOptions options;
  options.max_model_len = 256;
  options.max_batch_tokens = 64;
  options.max_sequences = 8;
  auto runner = std::make_unique<FakeRunner>(fake);
  runner->fail_at_step = fail_at_step;
  return std::make_unique<Engine>(std::move(runner), fake_tokenizer(), std::vector<int32_t>{7},
                                  options);
}

Request request(int kind, int64_t max_tokens = 20) {
  Request out;
  for (int i = 0; i < 5 + kind % 60; ++i) out.prompt.push_back((kind * 31 + i * 7) % 160);
  out.sampling.seed = static_cast<uint64_t>(kind);
  out.sampling.max_tokens = max_tokens;
  out.sampling.ignore_eos = true;
  return out;
}

std::vector<int32_t> tokens_of(const std::vector<TokenEvent>& events) {
  std::vector<int32_t> out;
  for (const TokenEvent& event : events) {
    if (event.token) out.push_back(event.token->id);
  }
  return out;
}

// Everything a stream brings; fails the test instead of hanging.
std::vector<TokenEvent> read_all(RequestStream& stream) {
  std::vector<TokenEvent> out;
  const auto deadline = std::chrono::steady_clock::now() + 120s;
  while (stream.wait(out, 100ms)) {
    if (std::chrono::steady_clock::now() > deadline) {
      ADD_FAILURE() << "the stream does not end";
      break;
    }
  }
  return out;
}

std::vector<int32_t> solo(const Request& request) {
  Service service(make_engine(), {});
  return tokens_of(read_all(*service.submit(request).value()));
}

template <class F>
bool eventually(F&& condition) {
  for (int i = 0; i < 12000; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(10ms);
  }
  return false;
}

TEST(Service, ManyThreadsGetTheirOwnAnswers) {
  ThreadPool pool(3);
  Service service(make_engine({.kv_pages = 30, .pool = &pool}), {.event_capacity = 4});
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 6; ++thread) {
    threads.emplace_back([&, thread] {
      for (int round = 0; round < 5; ++round) {
        const Request r = request(thread * 5 + round);
        auto stream = service.submit(r);
        ASSERT_TRUE(stream.ok());
        const auto events = read_all(**stream);
        ASSERT_FALSE(events.empty());
        ASSERT_TRUE(events.back().summary.has_value());
        EXPECT_EQ(events.back().summary->completion_tokens, 20);
        EXPECT_EQ(tokens_of(events), solo(r)) << "thread " << thread << " round " << round;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(service.drain(60s));
  const Stats stats = service.stats();
  EXPECT_EQ(stats.kv_pages_used, 0);
  EXPECT_EQ(stats.finished[static_cast<size_t>(FinishReason::kLength)], 30);
  EXPECT_EQ(stats.generation_tokens, 600);
  EXPECT_EQ(stats.time_to_first_token.sum > 0, true);
}

// Readers that poll late, stop reading, cancel and vanish, on several threads at once.
TEST(Service, UnrulyReadersLeaveNothingBehind) {
  ThreadPool pool(2);
  Service service(make_engine({.kv_pages = 12, .pool = &pool}), {.event_capacity = 3});
  std::atomic<int> wakes{0};
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 5; ++thread) {
    threads.emplace_back([&, thread] {
      std::mt19937 random(static_cast<uint32_t>(thread));
      for (int round = 0; round < 25; ++round) {
        Request r = request(static_cast<int>(random() % 30), 1 + random() % 60);
        r.n = 1 + static_cast<int>(random() % 2);
        auto stream = service.submit(std::move(r), [&] { ++wakes; });
        ASSERT_TRUE(stream.ok());
        std::vector<TokenEvent> events;
        for (int reads = static_cast<int>(random() % 30); reads > 0; --reads) {
          if (!(*stream)->wait(events, std::chrono::milliseconds(random() % 3))) break;
          (void)service.stats();
        }
        if (random() % 3 == 0) (*stream)->cancel();
        if (random() % 3 != 0) continue;
        for (TokenEvent& event : read_all(**stream)) events.push_back(std::move(event));
        EXPECT_TRUE(events.back().summary.has_value());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(service.drain(60s));
  EXPECT_EQ(service.stats().kv_pages_used, 0);
  EXPECT_GT(wakes.load(), 0);
}

TEST(Service, ASlowReaderIsPausedAndLosesNothing) {
  Service service(make_engine(), {.event_capacity = 8});
  const Request slow_request = request(3, 200);
  auto slow = service.submit(slow_request).value();
  ASSERT_TRUE(eventually([&] { return service.stats().paused == 1; }));
  EXPECT_EQ(service.stats().running, 0);
  // Another request is served meanwhile.
  EXPECT_EQ(tokens_of(read_all(*service.submit(request(4)).value())), solo(request(4)));
  std::vector<TokenEvent> events;
  EXPECT_TRUE(slow->poll(events));
  EXPECT_EQ(events.size(), 8u);
  for (TokenEvent& event : read_all(*slow)) events.push_back(std::move(event));
  EXPECT_EQ(tokens_of(events), solo(slow_request));
}

TEST(Service, CancelAndDroppedStreamsFreeThePages) {
  Service service(make_engine(), {.event_capacity = 8});
  auto kept = service.submit(request(1, 200)).value();
  {
    auto dropped = service.submit(request(2, 200)).value();
    std::vector<TokenEvent> events;
    ASSERT_TRUE(dropped->wait(events, 60s));
  }
  kept->cancel();
  kept->cancel();
  const auto events = read_all(*kept);
  EXPECT_EQ(events.back().finish, FinishReason::kCancelled);
  ASSERT_TRUE(events.back().summary.has_value());
  EXPECT_TRUE(eventually([&] {
    const Stats stats = service.stats();
    return stats.kv_pages_used == 0 && stats.running + stats.waiting == 0;
  }));
  std::vector<TokenEvent> none;
  EXPECT_FALSE(kept->poll(none));
  EXPECT_TRUE(none.empty());
}

TEST(Service, ReadinessIsSignalledOncePerBatchAndNotAfterTheEnd) {
  Service service(make_engine(), {});
  std::atomic<int> calls{0};
  auto stream = service.submit(request(1, 100), [&] { ++calls; }).value();
  std::vector<TokenEvent> events;
  int polls = 0;
  while (true) {
    ASSERT_TRUE(eventually([&] { return calls.load() > polls; }));
    ++polls;
    if (!stream->poll(events) || events.back().summary) break;
  }
  EXPECT_EQ(tokens_of(events).size(), 100u);
  stream.reset();
  const int at_end = calls.load();
  EXPECT_LE(at_end, 101);
  std::this_thread::sleep_for(20ms);
  EXPECT_EQ(calls.load(), at_end);
}

TEST(Service, RefusalsAreNamed) {
  Service service(make_engine({.kv_pages = 6}), {.max_queued = 2});
  const auto code = [&](Request r) {
    const auto stream = service.submit(std::move(r));
    return stream.ok() ? std::string("ok") : std::string(error_code_name(stream.error().code));
  };
  EXPECT_EQ(code({}), "invalid_argument");
  Request r = request(1);
  r.prompt = {1000};
  EXPECT_EQ(code(r), "invalid_argument");
  r = request(1);
  r.prompt.assign(256, 1);
  EXPECT_EQ(code(r), "invalid_argument");
  r = request(1);
  r.n = 0;
  EXPECT_EQ(code(r), "invalid_argument");
  r = request(1);
  r.prompt_logprobs = 21;
  EXPECT_EQ(code(r), "invalid_argument");
  r = request(1);
  r.sampling.max_tokens = 0;
  EXPECT_EQ(code(r), "invalid_argument");
  r = request(1);
  r.priority = kMaxPriority + 1;
  EXPECT_EQ(code(r), "invalid_argument");
  r = request(1);
  r.mode = model::ExecutionMode::kResidue;
  EXPECT_EQ(code(r), "unsupported");
  EXPECT_EQ(code(request(1, 250)), "resource_exhausted");  // 8 pages
  r = request(1);
  r.n = 3;
  EXPECT_EQ(code(r), "resource_exhausted");  // the queue
  EXPECT_EQ(code(request(1)), "ok");
  EXPECT_TRUE(service.drain(60s));
  EXPECT_EQ(code(request(1)), "cancelled");
}

TEST(Service, AFailedEngineEndsAllAndSaysWhy) {
  Service service(make_engine({}, 5), {});
  auto a = service.submit(request(1, 100)).value();
  auto b = service.submit(request(2, 100)).value();
  for (RequestStream* stream : {a.get(), b.get()}) {
    const auto events = read_all(*stream);
    ASSERT_FALSE(events.empty());
    EXPECT_EQ(events.back().finish, FinishReason::kError);
    ASSERT_TRUE(events.back().error.has_value());
    EXPECT_EQ(events.back().error->code, ErrorCode::kInternal);
  }
  EXPECT_FALSE(service.health().ok());
  EXPECT_FALSE(service.submit(request(3)).ok());
}

TEST(Service, ShutdownEndsWhatRunsAndStreamsOutliveIt) {
  std::unique_ptr<RequestStream> a, b;
  {
    Service service(make_engine(), {.event_capacity = 8});
    a = service.submit(request(1, 200)).value();
    b = service.submit(request(2, 200)).value();
    EXPECT_FALSE(service.drain(0ms));
  }
  for (RequestStream* stream : {a.get(), b.get()}) {
    const auto events = read_all(*stream);
    ASSERT_FALSE(events.empty());
    EXPECT_TRUE(events.back().summary.has_value());
    EXPECT_EQ(events.back().finish, FinishReason::kCancelled);
  }
  a->cancel();
}

// Spells a fixed word, then an end token.
class Spelling final : public TokenConstraint {
 public:
  explicit Spelling(std::vector<int32_t> word) : word_(std::move(word)) {}
  Status restrict_next(std::span<uint32_t> allowed) override {
    std::fill(allowed.begin(), allowed.end(), 0);
    const auto token = static_cast<uint32_t>(at_ < word_.size() ? word_[at_] : 7);
    allowed[token / 32] |= uint32_t{1} << token % 32;
    return {};
  }
  Status accept(int32_t token) override {
    return at_ == word_.size() || token == word_[at_++]
               ? Status()
               : Status(internal_error("a token that was not allowed"));
  }

 private:
  std::vector<int32_t> word_;
  size_t at_ = 0;
};

TEST(Service, ConstraintsDecideWhatMayComeNext) {
  Service service(make_engine(), {});
  Request r = request(1, 100);
  r.sampling.ignore_eos = false;
  r.n = 2;
  r.constraint = [](uint32_t choice) -> Result<std::unique_ptr<TokenConstraint>> {
    return std::unique_ptr<TokenConstraint>(std::make_unique<Spelling>(
        std::vector<int32_t>{'a', 'b', static_cast<int32_t>('c' + choice)}));
  };
  std::string text[2];
  for (const TokenEvent& event : read_all(*service.submit(r).value())) {
    text[event.choice] += event.text;
    if (event.finish != FinishReason::kRunning) {
      EXPECT_EQ(event.finish, FinishReason::kStop);
    }
  }
  EXPECT_EQ(text[0], "abc");
  EXPECT_EQ(text[1], "abd");
  r.constraint = [](uint32_t) -> Result<std::unique_ptr<TokenConstraint>> {
    return invalid_argument("no such grammar");
  };
  const auto events = read_all(*service.submit(r).value());
  EXPECT_EQ(events.back().finish, FinishReason::kError);
  EXPECT_EQ(events.back().error->message, "no such grammar");
}

// Answers when it is told to.
class Switched final : public TokenConstraint {
 public:
  enum State { kLate, kReady, kBroken };
  explicit Switched(const std::atomic<State>& state) : state_(state) {}
  Result<bool> ready(std::chrono::microseconds timeout) override {
    if (state_ == kLate) std::this_thread::sleep_for(timeout);
    if (state_ == kBroken) return invalid_argument("the grammar is too slow");
    return state_ == kReady;
  }
  Status restrict_next(std::span<uint32_t>) override { return {}; }
  Status accept(int32_t) override { return {}; }

 private:
  const std::atomic<State>& state_;
};

Request switched(Request request, const std::atomic<Switched::State>& state) {
  request.constraint = [&state](uint32_t) -> Result<std::unique_ptr<TokenConstraint>> {
    return std::unique_ptr<TokenConstraint>(std::make_unique<Switched>(state));
  };
  return request;
}

TEST(Service, LateConstraintsHoldUpNobodyElse) {
  Service service(make_engine(), {});
  std::atomic<Switched::State> state{Switched::kLate};
  // As many as may run at once; one of them with several choices.
  std::vector<std::unique_ptr<RequestStream>> late;
  for (int i = 0; i < 8; ++i) {
    Request r = request(i);
    if (i == 0) r.n = 3;
    late.push_back(service.submit(switched(std::move(r), state)).value());
  }
  for (int i = 0; i < 3; ++i)
    EXPECT_EQ(tokens_of(read_all(*service.submit(request(70 + i)).value())), solo(request(70 + i)));
  // Those that wait are not run again and again meanwhile.
  const int64_t rows = service.stats().computed_rows;
  std::this_thread::sleep_for(50ms);
  EXPECT_EQ(service.stats().computed_rows, rows);
  EXPECT_EQ(service.stats().generation_tokens, 3 * 20);
  late[1]->cancel();
  EXPECT_EQ(read_all(*late[1]).back().finish, FinishReason::kCancelled);
  state = Switched::kReady;
  for (int i = 2; i < 8; ++i)
    EXPECT_EQ(tokens_of(read_all(*late[static_cast<size_t>(i)])), solo(request(i))) << i;
  EXPECT_EQ(read_all(*late[0]).back().summary->completion_tokens, 3 * 20);
}

TEST(Service, ConstraintsThatFailWhileTheyAreAwaitedEndTheirRequest) {
  Service service(make_engine(), {});
  std::atomic<Switched::State> state{Switched::kLate};
  Request r = request(1);
  r.n = 2;
  const auto stream = service.submit(switched(r, state)).value();
  std::this_thread::sleep_for(150ms);
  state = Switched::kBroken;
  const auto events = read_all(*stream);
  ASSERT_EQ(events.size(), 2u);
  for (const TokenEvent& event : events) {
    EXPECT_EQ(event.finish, FinishReason::kError);
    EXPECT_EQ(event.error->message, "the grammar is too slow");
  }
  EXPECT_TRUE(eventually([&] { return service.stats().kv_pages_used == 0; }));
  EXPECT_EQ(service.stats().running + service.stats().waiting, 0);
}

TEST(Service, ShutdownDoesNotWaitForConstraints) {
  std::atomic<Switched::State> state{Switched::kLate};
  auto service = std::make_unique<Service>(make_engine(), ServiceOptions{});
  const auto stream = service->submit(switched(request(1), state)).value();
  std::this_thread::sleep_for(50ms);
  service.reset();
  EXPECT_EQ(read_all(*stream).back().finish, FinishReason::kCancelled);
}

}  // namespace
}  // namespace sub8::engine
