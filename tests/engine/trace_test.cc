// Random traces over the fake model: arrivals, cancels, slow readers, page exhaustion, preemption,
// prefix hits. After every step the pages add up; at the end each request has got exactly what it
// gets alone.
#include <algorithm>
#include <map>
#include <random>

#include <gtest/gtest.h>

#include "engine/philox.h"
#include "fake_runner.h"

namespace sub8::engine {
namespace {

using testing::fake_tokenizer;
using testing::FakeClock;
using testing::FakeOptions;
using testing::FakeRunner;

struct ChoiceResult {
  std::vector<int32_t> tokens;
  std::vector<std::pair<int32_t, float>> top;  // first alternatives
  std::string text;
  FinishReason finish = FinishReason::kRunning;
  std::string stop;
  std::optional<int32_t> stop_token;

  bool operator==(const ChoiceResult&) const = default;
};

struct RequestResult {
  std::map<uint32_t, ChoiceResult> choices;
  std::vector<int32_t> prompt_tokens;
  std::vector<float> prompt_logprobs;
  std::optional<RequestSummary> summary;
};

void collect(const std::vector<TokenEvent>& events, std::map<RequestId, RequestResult>& out) {
  for (const TokenEvent& event : events) {
    RequestResult& r = out[event.id];
    ASSERT_FALSE(r.summary.has_value()) << "an event after the summary";
    ChoiceResult& c = r.choices[event.choice];
    ASSERT_EQ(c.finish, FinishReason::kRunning) << "an event after the end of a choice";
    if (event.token) {
      c.tokens.push_back(event.token->id);
      for (const auto& top : event.token->top) c.top.push_back(top);
    }
    for (const TokenLogprob& p : event.prompt_logprobs) {
      ASSERT_EQ(event.choice, 0u);
      ASSERT_TRUE(c.tokens.empty()) << "a prompt's logprobs after the first token";
      r.prompt_tokens.push_back(p.id);
      r.prompt_logprobs.push_back(p.logprob);
    }
    c.text += event.text;
    c.finish = event.finish;
    c.stop = event.stop;
    c.stop_token = event.stop_token;
    if (event.summary) r.summary = event.summary;
  }
}

EngineOptions engine_options(FakeClock& clock, int64_t max_batch_tokens, int max_sequences) {
  EngineOptions out;
  out.max_model_len = 256;
  out.max_batch_tokens = max_batch_tokens;
  out.max_sequences = max_sequences;
  out.clock = [&clock] { return clock.now; };
  return out;
}

// Forbids two thirds of the tokens at each place, which ones depends on the text so far; its
// answers come late, up to `late` questions after they were asked for.
class LateConstraint final : public TokenConstraint {
 public:
  LateConstraint(uint32_t late, uint32_t seed) : late_(late), random_(seed) { ask(); }
  Result<bool> ready(std::chrono::microseconds) override {
    if (missing_ == 0) return true;
    --missing_;
    return false;
  }
  Status restrict_next(std::span<uint32_t> allowed) override {
    EXPECT_EQ(missing_, 0u) << "asked before it was ready";
    for (uint32_t token = 0; token < 160; ++token) {
      if ((token + text_) % 3 != 0) allowed[token / 32] &= ~(uint32_t{1} << token % 32);
    }
    return {};
  }
  Status accept(int32_t token) override {
    EXPECT_EQ((static_cast<uint32_t>(token) + text_) % 3, 0u);
    text_ = text_ * 31 + static_cast<uint32_t>(token);
    ask();
    return {};
  }

 private:
  void ask() { missing_ = late_ == 0 || random_() % 2 == 0 ? 0 : random_() % (late_ + 1); }

  uint32_t late_;
  std::mt19937 random_;
  uint32_t missing_ = 0;
  uint32_t text_ = 0;
};

void constrain(Request& request, uint32_t late, uint32_t seed) {
  request.constraint = [late, seed](uint32_t choice) -> Result<std::unique_ptr<TokenConstraint>> {
    return std::unique_ptr<TokenConstraint>(std::make_unique<LateConstraint>(late, seed + choice));
  };
}

// The request alone, in large chunks, with pages to spare and without prefix cache.
RequestResult solo(Request request, bool one_order) {
  if (request.constraint) constrain(request, 0, 0);
  FakeClock clock;
  EngineOptions options = engine_options(clock, 256, 1);
  options.prefix_cache = false;
  FakeOptions fake;
  fake.max_rows = 256;
  fake.one_order = one_order;
  fake.max_logit_rows = 256;
  Engine engine(std::make_unique<FakeRunner>(fake), fake_tokenizer(), {7}, options);
  EXPECT_TRUE(engine.submit(request).ok());
  std::map<RequestId, RequestResult> out;
  std::vector<TokenEvent> events;
  while (!engine.idle()) {
    events.clear();
    EXPECT_TRUE(engine.step(events).ok());
    collect(events, out);
    clock.advance(std::chrono::milliseconds(1));
  }
  return out.begin()->second;
}

using Random = std::mt19937;
int64_t pick(Random& random, int64_t low, int64_t high) {
  return low + static_cast<int64_t>(random() % static_cast<uint64_t>(high - low + 1));
}

// Prompts come from few stems, so that they share prefixes of all lengths.
Request random_request(Random& random) {
  Request out;
  Random stem(static_cast<uint32_t>(pick(random, 0, 2)));
  const int64_t common = pick(random, 0, 100);
  for (int64_t i = 0; i < common; ++i) out.prompt.push_back(static_cast<int32_t>(stem() % 160));
  const int64_t own = pick(random, common == 0 ? 1 : 0, 40);
  for (int64_t i = 0; i < own; ++i) out.prompt.push_back(static_cast<int32_t>(random() % 160));
  SamplingParams& s = out.sampling;
  s.seed = random();
  s.temperature = random() % 3 == 0 ? 0.0 : 1.0;
  s.max_tokens = pick(random, 1, random() % 4 == 0 ? 110 : 20);
  s.ignore_eos = random() % 3 == 0;
  s.top_logprobs = random() % 4 == 0 ? 2 : -1;
  if (random() % 5 == 0) s.stop = {std::string(1, static_cast<char>('a' + random() % 26))};
  if (random() % 5 == 0) s.stop_token_ids = {static_cast<int32_t>(random() % 160)};
  if (random() % 6 == 0) s.frequency_penalty = 1.5;
  if (random() % 6 == 0) s.repetition_penalty = 1.3;
  if (random() % 6 == 0) s.min_tokens = std::min<int64_t>(*s.max_tokens, pick(random, 1, 10));
  if (random() % 5 == 0) out.n = static_cast<int>(pick(random, 2, 4));
  if (random() % 5 == 0) out.prompt_logprobs = static_cast<int>(pick(random, 0, 2));
  if (out.prompt_logprobs >= 0 && random() % 4 == 0) {
    s.max_tokens = 0;
    s.min_tokens = 0;
  }
  if (random() % 8 == 0) out.cache_salt = "salt";
  out.priority = static_cast<int>(pick(random, -1, 1));
  if (random() % 3 == 0) out.mode = model::ExecutionMode::kPlain;
  return out;
}

struct Trace {
  int requests = 40;
  int32_t pages = 24;
  int64_t max_batch_tokens = 24;
  int max_sequences = 4;
  bool prefix_cache = true;
  bool one_order = false;
  bool long_answers = false;  // to short prompts: pages run out while decoding
  int cancel_one_in = 0;      // steps; 0: never
  int pause_one_in = 0;
  uint32_t late = 0;  // most questions before a constraint's answer; 0: no constraints
};

// Runs the trace and returns the engine's counters.
Stats run_trace(const Trace& trace, uint32_t seed) {
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  Random random(seed);
  FakeClock clock;
  EngineOptions options = engine_options(clock, trace.max_batch_tokens, trace.max_sequences);
  options.prefix_cache = trace.prefix_cache;
  FakeOptions fake;
  fake.kv_pages = trace.pages;
  fake.one_order = trace.one_order;
  Engine engine(std::make_unique<FakeRunner>(fake), fake_tokenizer(), {7}, options);
  std::map<RequestId, Request> requests;
  std::map<RequestId, RequestResult> results;
  std::set<RequestId> cancelled, paused;
  std::vector<TokenEvent> events;
  const auto any = [&] {
    return std::next(requests.begin(), pick(random, 0, static_cast<int64_t>(requests.size()) - 1))
        ->first;
  };
  int64_t steps = 0;
  while (static_cast<int>(requests.size()) < trace.requests || !engine.idle()) {
    EXPECT_LT(++steps, 20000) << "no progress";
    if (steps >= 20000) break;
    events.clear();
    if (static_cast<int>(requests.size()) < trace.requests && random() % 3 == 0) {
      Request request = random_request(random);
      if (trace.long_answers) {
        request.prompt.resize(std::min<size_t>(request.prompt.size(), 9));
        request.sampling.max_tokens = pick(random, 90, 150);
        request.sampling.ignore_eos = true;
        request.sampling.stop_token_ids.clear();
      }
      if (trace.late > 0 && random() % 2 == 0)
        constrain(request, trace.late, static_cast<uint32_t>(random()));
      const auto id = engine.submit(request);
      EXPECT_TRUE(id.ok()) << (id.ok() ? "" : id.error().message);
      requests[*id] = std::move(request);
    }
    if (trace.cancel_one_in > 0 && !requests.empty() && pick(random, 1, trace.cancel_one_in) == 1) {
      const RequestId id = any();
      const int32_t used = engine.stats().kv_pages_used;
      engine.cancel(id, events);
      EXPECT_LE(engine.stats().kv_pages_used, used);
      if (!events.empty()) cancelled.insert(id);
      engine.cancel(id, events);
    }
    if (trace.pause_one_in > 0 && !requests.empty() && pick(random, 1, trace.pause_one_in) == 1) {
      const RequestId id = any();
      if (!paused.insert(id).second) {
        paused.erase(id);
        engine.resume(id);
      } else {
        engine.pause(id);
      }
    }
    if (!engine.has_work() && !paused.empty()) {
      for (const RequestId id : paused) engine.resume(id);
      paused.clear();
    }
    const int64_t rows_before = engine.stats().computed_rows;
    const bool work = engine.has_work();
    const Status status = engine.step(events);
    EXPECT_TRUE(status.ok()) << (status.ok() ? "" : status.error().message);
    EXPECT_TRUE(engine.check_invariants()) << "after step " << steps;
    const Stats& stats = engine.stats();
    EXPECT_EQ(stats.kv_pages_free + stats.kv_pages_cached + stats.kv_pages_used, trace.pages);
    EXPECT_LE(stats.running, trace.max_sequences);
    if (work && stats.paused == 0 && !engine.holds()) {
      EXPECT_GT(stats.computed_rows, rows_before);
    }
    for (const TokenEvent& event : events) {
      EXPECT_TRUE(!paused.contains(event.id) || event.finish == FinishReason::kCancelled);
    }
    collect(events, results);
    if (::testing::Test::HasFailure()) break;
    clock.advance(std::chrono::milliseconds(pick(random, 1, 50)));
  }
  const Stats stats = engine.stats();
  EXPECT_EQ(stats.kv_pages_used, 0);
  EXPECT_EQ(stats.running + stats.waiting, 0);
  for (const auto& [id, request] : requests) {
    SCOPED_TRACE(::testing::Message() << "request " << id);
    if (::testing::Test::HasFailure()) break;
    const RequestResult& got = results[id];
    const RequestResult want = solo(request, trace.one_order);
    EXPECT_TRUE(got.summary.has_value());
    if (!got.summary) continue;
    int64_t tokens = 0;
    for (const auto& [index, choice] : want.choices) {
      const auto it = got.choices.find(index);
      EXPECT_TRUE(it != got.choices.end());
      if (it == got.choices.end()) continue;
      tokens += static_cast<int64_t>(it->second.tokens.size());
      if (cancelled.contains(id) && it->second.finish == FinishReason::kCancelled) {
        EXPECT_LE(it->second.tokens.size(), choice.tokens.size());
        EXPECT_TRUE(
            std::equal(it->second.tokens.begin(), it->second.tokens.end(), choice.tokens.begin()));
      } else {
        EXPECT_EQ(it->second.tokens, choice.tokens) << "choice " << index;
        EXPECT_TRUE(it->second == choice)
            << "choice " << index << ": '" << it->second.text << "', alone '" << choice.text << "'";
      }
    }
    EXPECT_EQ(got.summary->completion_tokens, tokens);
    if (!cancelled.contains(id)) {
      EXPECT_EQ(got.prompt_tokens, want.prompt_tokens);
      EXPECT_EQ(got.prompt_logprobs, want.prompt_logprobs);
      if (request.prompt_logprobs >= 0) {
        EXPECT_EQ(got.prompt_tokens,
                  std::vector<int32_t>(request.prompt.begin() + 1, request.prompt.end()));
      }
    }
  }
  return stats;
}

// Key = seed, counter = (choice, token index, 0, 0), 24 bits: what design and documentation
// promise.
TEST(EngineDraws, DependOnSeedChoiceAndTokenIndex) {
  FakeClock clock;
  FakeOptions fake;
  fake.flat_logits = true;
  Engine engine(std::make_unique<FakeRunner>(fake), fake_tokenizer(), {},
                engine_options(clock, 8, 2));
  Request request;
  request.prompt.assign(11, 3);
  request.n = 3;
  request.sampling.seed = 0x123456789abcdef;
  request.sampling.max_tokens = 40;
  ASSERT_TRUE(engine.submit(request).ok());
  std::map<RequestId, RequestResult> results;
  std::vector<TokenEvent> events;
  while (!engine.idle()) {
    events.clear();
    ASSERT_TRUE(engine.step(events).ok());
    collect(events, results);
  }
  for (const auto& [choice, result] : results.begin()->second.choices) {
    ASSERT_EQ(result.tokens.size(), 40u);
    for (uint32_t i = 0; i < 40; ++i) {
      const double share = philox_uniform(*request.sampling.seed, choice, i, 0);
      EXPECT_EQ(result.tokens[i],
                static_cast<int32_t>(share * static_cast<double>(fake.vocab_size)));
    }
  }
}

TEST(EngineOrder, PriorityCountsInSecondsOfArrival) {
  FakeClock clock;
  Engine engine(std::make_unique<FakeRunner>(FakeOptions{}), fake_tokenizer(), {},
                engine_options(clock, 8, 1));
  const auto submit = [&](int priority, int32_t token) {
    Request request;
    request.prompt.assign(3, token);
    request.priority = priority;
    request.sampling.max_tokens = 2;
    return engine.submit(std::move(request)).value();
  };
  std::vector<TokenEvent> events;
  const RequestId first = submit(0, 1);
  ASSERT_TRUE(engine.step(events).ok());  // it runs, whatever comes
  const RequestId later = submit(5, 2);
  clock.advance(std::chrono::seconds(1));
  const RequestId sooner = submit(0, 3);
  const RequestId urgent = submit(-2, 4);
  clock.advance(std::chrono::seconds(5));
  const RequestId last = submit(0, 5);  // has waited less than the patient one
  std::vector<RequestId> order;
  while (!engine.idle()) {
    ASSERT_TRUE(engine.step(events).ok());
  }
  for (const TokenEvent& event : events) {
    if (event.summary) order.push_back(event.id);
  }
  EXPECT_EQ(order, (std::vector<RequestId>{first, urgent, sooner, later, last}));
}

TEST(EngineStats, CountersAndTimesAreThoseOfTheClock) {
  FakeClock clock;
  Engine engine(std::make_unique<FakeRunner>(FakeOptions{}), fake_tokenizer(), {},
                engine_options(clock, 64, 4));
  Request request;
  request.prompt.assign(40, 3);
  request.sampling.max_tokens = 4;
  std::vector<TokenEvent> events;
  for (int round = 0; round < 2; ++round) {
    events.clear();
    ASSERT_TRUE(engine.submit(request).ok());
    clock.advance(std::chrono::seconds(2));
    ASSERT_TRUE(engine.step(events).ok());
    for (int i = 0; i < 3; ++i) {
      clock.advance(std::chrono::milliseconds(500));
      ASSERT_TRUE(engine.step(events).ok());
    }
    ASSERT_EQ(events.size(), 4u);
    ASSERT_TRUE(events.back().summary.has_value());
    const RequestSummary& s = *events.back().summary;
    EXPECT_EQ(s.first_token - s.arrival, std::chrono::seconds(2));
    EXPECT_EQ(s.finished - s.first_token, std::chrono::milliseconds(1500));
    EXPECT_EQ(s.cached_tokens, round == 0 ? 0 : 32);
    EXPECT_EQ(s.prompt_tokens, 40);
    EXPECT_EQ(s.completion_tokens, 4);
  }
  const Stats& stats = engine.stats();
  EXPECT_DOUBLE_EQ(stats.time_to_first_token.sum, 4);
  EXPECT_DOUBLE_EQ(stats.queue_time.sum, 4);
  EXPECT_DOUBLE_EQ(stats.inter_token_latency.sum, 3);
  EXPECT_DOUBLE_EQ(stats.time_per_output_token.sum, 1);
  EXPECT_DOUBLE_EQ(stats.e2e_latency.sum, 7);
  EXPECT_DOUBLE_EQ(stats.decode_time.sum, 3);
  EXPECT_EQ(stats.prompt_tokens, 80);
  EXPECT_EQ(stats.cached_prompt_tokens, 32);
  EXPECT_EQ(stats.generation_tokens, 8);
  EXPECT_EQ(stats.prefix_cache_queries, 80);
  EXPECT_EQ(stats.prefix_cache_hits, 32);
  EXPECT_EQ(stats.computed_rows, 40 + 8 + 6);
  EXPECT_EQ(stats.steps, 8);
  EXPECT_EQ(stats.finished[static_cast<size_t>(FinishReason::kLength)], 2);
  EXPECT_EQ(stats.request_prompt_tokens.sum, 80);
  // Observations lie in the right bucket: 2 s in (1, 2.5].
  const Histogram& h = stats.time_to_first_token;
  for (size_t i = 0; i < h.bounds.size(); ++i) EXPECT_EQ(h.counts[i], h.bounds[i] == 2.5 ? 2 : 0);
}

TEST(EngineTrace, PlentyOfPages) {
  Stats stats(1);
  for (uint32_t seed = 0; seed < 6; ++seed) stats = run_trace({.pages = 200}, seed);
  EXPECT_EQ(stats.preemptions, 0);
  EXPECT_GT(stats.prefix_cache_hits, 0);
}

TEST(EngineTrace, PagesRunOut) {
  int64_t preemptions = 0;
  for (uint32_t seed = 100; seed < 115; ++seed) {
    preemptions += run_trace({.pages = static_cast<int32_t>(9 + seed % 6),
                              .max_sequences = 9,
                              .long_answers = seed % 2 == 0},
                             seed)
                       .preemptions;
  }
  EXPECT_GT(preemptions, 20);
}

TEST(EngineTrace, CancelsAndSlowReaders) {
  int64_t cancelled = 0;
  for (uint32_t seed = 200; seed < 215; ++seed) {
    const Stats stats = run_trace(
        {.pages = static_cast<int32_t>(9 + seed % 9), .cancel_one_in = 20, .pause_one_in = 5},
        seed);
    cancelled += stats.finished[static_cast<size_t>(FinishReason::kCancelled)];
  }
  EXPECT_GT(cancelled, 20);
}

TEST(EngineTrace, LateConstraints) {
  int64_t preemptions = 0;
  for (uint32_t seed = 600; seed < 620; ++seed) {
    preemptions += run_trace({.pages = static_cast<int32_t>(9 + seed % 12),
                              .max_sequences = static_cast<int>(1 + seed % 8),
                              .one_order = seed % 3 == 0,
                              .long_answers = seed % 4 == 0,
                              .cancel_one_in = seed % 2 == 0 ? 30 : 0,
                              .pause_one_in = seed % 2 == 1 ? 9 : 0,
                              .late = 1 + seed % 7},
                             seed)
                       .preemptions;
  }
  EXPECT_GT(preemptions, 20);
}

TEST(EngineTrace, OneOrderForAllRows) {
  for (uint32_t seed = 300; seed < 306; ++seed) {
    run_trace({.pages = static_cast<int32_t>(9 + seed % 20), .one_order = true, .pause_one_in = 9},
              seed);
  }
}

TEST(EngineTrace, WithoutPrefixCache) {
  for (uint32_t seed = 400; seed < 406; ++seed) {
    const Stats stats = run_trace({.pages = 12, .prefix_cache = false, .cancel_one_in = 30}, seed);
    EXPECT_EQ(stats.prefix_cache_queries, 0);
    EXPECT_EQ(stats.kv_pages_cached, 0);
  }
}

TEST(EngineTrace, SmallestAndLargestSteps) {
  for (uint32_t seed = 500; seed < 503; ++seed) {
    run_trace({.pages = 10, .max_batch_tokens = 1, .max_sequences = 1}, seed);
    run_trace({.pages = 40, .max_batch_tokens = 64, .max_sequences = 16}, seed);
    run_trace({.pages = 16, .max_batch_tokens = 6, .max_sequences = 6, .pause_one_in = 6}, seed);
  }
}

}  // namespace
}  // namespace sub8::engine
