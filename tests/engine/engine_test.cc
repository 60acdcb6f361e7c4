// The engine over a real two-layer model: what a request produces depends on it alone.
#include "engine/engine.h"

#include <filesystem>
#include <map>
#include <random>

#include <gtest/gtest.h>

#include "base/cpu.h"
#include "engine/bundle.h"

namespace sub8::engine {
namespace {

// The real two-layer model on one path; a small pool of pages where a test wants them to run out.
struct Config {
  CpuPath path = CpuPath::kScalar;
  int max_sequences = 4;
  int64_t max_model_len = 128;
  int64_t max_batch_tokens = 24;
  int32_t kv_pages = 16;
  bool prefix_cache = true;
  bool reuse_generated = false;
  int threads = 1;
};

struct Fixture {
  explicit Fixture(int threads) : pool(threads) {}
  ThreadPool pool;
  Bundle bundle;
  std::unique_ptr<Engine> engine;
};

std::unique_ptr<Fixture> make(const Config& config = {}) {
  auto out = std::make_unique<Fixture>(config.threads);
  auto source =
      checkpoint::open_checkpoint(std::filesystem::path(SUB8_TEST_DATA) / "models/llama-chat");
  EXPECT_TRUE(source.ok()) << (source.ok() ? "" : source.error().message);
  auto bundle = make_bundle(std::move(source).value());
  EXPECT_TRUE(bundle.ok()) << (bundle.ok() ? "" : bundle.error().message);
  out->bundle = std::move(bundle).value();
  model::ModelOptions model;
  model.path = config.path;
  model.max_rows = config.max_batch_tokens;
  model.max_logit_rows = 3;
  model.max_context = config.max_model_len;
  model.kv_pages = config.kv_pages;
  auto loaded = model::Model::load(*out->bundle.source, model, out->pool);
  EXPECT_TRUE(loaded.ok()) << (loaded.ok() ? "" : loaded.error().message);
  EngineOptions options;
  options.max_model_len = config.max_model_len;
  options.max_batch_tokens = config.max_batch_tokens;
  options.max_sequences = config.max_sequences;
  options.prefix_cache = config.prefix_cache;
  options.reuse_generated = config.reuse_generated;
  out->engine = std::make_unique<Engine>(make_model_runner(std::move(loaded).value()),
                                         *out->bundle.tokenizer, out->bundle.end_ids, options);
  return out;
}

// Prompts of several pages with common beginnings, greedy and drawn, some with all that a request
// may ask for.
Request request(int kind, int64_t max_tokens = 20) {
  Request out;
  std::mt19937 stem(static_cast<uint32_t>(kind % 2));
  std::mt19937 own(static_cast<uint32_t>(kind));
  const int common = kind % 4 == 3 ? 0 : 40;
  for (int i = 0; i < common; ++i) out.prompt.push_back(static_cast<int32_t>(stem() % 270));
  const int length = 3 + kind * 7 % 40;
  for (int i = 0; i < length; ++i) out.prompt.push_back(static_cast<int32_t>(own() % 270));
  out.sampling.temperature = kind % 3 == 0 ? 0.0 : 0.9;
  out.sampling.seed = static_cast<uint64_t>(kind);
  out.sampling.max_tokens = max_tokens;
  out.sampling.ignore_eos = true;
  out.sampling.top_logprobs = 2;
  if (kind % 5 == 1) out.n = 3;
  if (kind % 5 == 2) out.prompt_logprobs = 1;
  if (kind % 5 == 3) out.sampling.repetition_penalty = 1.2;
  return out;
}

struct Outcome {
  std::vector<int32_t> tokens;
  std::vector<std::pair<int32_t, float>> top;  // of the answer's tokens, to the bit
  std::vector<float> prompt_logprobs;
  std::string text;
  FinishReason finish = FinishReason::kRunning;
  std::string stop;

  bool operator==(const Outcome&) const = default;
};
using Outcomes = std::map<std::pair<RequestId, uint32_t>, Outcome>;  // by request and choice

void collect(const std::vector<TokenEvent>& events, Outcomes& out) {
  for (const TokenEvent& event : events) {
    Outcome& o = out[{event.id, event.choice}];
    EXPECT_EQ(o.finish, FinishReason::kRunning) << "an event after the end";
    if (event.token) {
      o.tokens.push_back(event.token->id);
      o.top.insert(o.top.end(), event.token->top.begin(), event.token->top.end());
    }
    for (const TokenLogprob& p : event.prompt_logprobs) o.prompt_logprobs.push_back(p.logprob);
    o.text += event.text;
    o.finish = event.finish;
    o.stop = event.stop;
  }
}

Outcomes drain(Engine& engine) {
  Outcomes out;
  std::vector<TokenEvent> events;
  while (!engine.idle()) {
    events.clear();
    const Status status = engine.step(events);
    EXPECT_TRUE(status.ok()) << (status.ok() ? "" : status.error().message);
    if (!status.ok()) break;
    EXPECT_TRUE(engine.check_invariants());
    collect(events, out);
  }
  EXPECT_EQ(engine.stats().kv_pages_used, 0);
  return out;
}

// The request alone: one step for the prompt, no prefix cache.
std::vector<Outcome> solo(Engine& engine, const Request& r) {
  const auto id = engine.submit(r);
  EXPECT_TRUE(id.ok()) << (id.ok() ? "" : id.error().message);
  std::vector<Outcome> out;
  for (auto& [key, outcome] : drain(engine)) out.push_back(std::move(outcome));
  return out;
}

std::unique_ptr<Fixture> make_solo(CpuPath path = CpuPath::kScalar) {
  return make({.path = path, .max_sequences = 1, .max_batch_tokens = 128, .prefix_cache = false});
}

Outcome solo(const Request& r) { return solo(*make_solo()->engine, r).front(); }

TEST(Engine, BannedRunsAndAllowedTokens) {
  Request r = request(3, 12);
  r.sampling.temperature = 0;
  const std::vector<int32_t> free = solo(r).tokens;
  // The last token of the run is excluded behind the others, and only there.
  Request banned = r;
  banned.sampling.banned_runs = {{free[2], free[3], free[4]}, {free[0], free[2], free[1]}};
  const std::vector<int32_t> got = solo(banned).tokens;
  EXPECT_TRUE(std::equal(free.begin(), free.begin() + 4, got.begin()));
  EXPECT_NE(got[4], free[4]);
  banned.sampling.banned_runs = {{free[0]}};
  const std::vector<int32_t> without = solo(banned).tokens;
  EXPECT_EQ(std::count(without.begin(), without.end(), free[0]), 0);
  Request allowed = r;
  allowed.sampling.allowed_token_ids = {5, 33, 270};
  for (const int32_t id : solo(allowed).tokens) EXPECT_TRUE(id == 5 || id == 33 || id == 270) << id;
  // Nothing left: this request fails, and says why.
  allowed.sampling.banned_runs = {{5}, {33}, {270}};
  EXPECT_EQ(solo(allowed).finish, FinishReason::kError);
  for (SamplingParams bad :
       {SamplingParams{.allowed_token_ids = {-1}}, SamplingParams{.banned_runs = {{}}},
        SamplingParams{.banned_runs = {{9999}}}})
    EXPECT_FALSE(validate(bad, 288).ok());
}

class EnginePaths : public ::testing::TestWithParam<CpuPath> {};

TEST_P(EnginePaths, ARequestDependsOnItselfAlone) {
  constexpr int kKinds = 10;
  std::vector<std::vector<Outcome>> want;
  {
    auto alone = make_solo(GetParam());
    for (int kind = 0; kind < kKinds; ++kind)
      want.push_back(solo(*alone->engine, request(kind, 40)));
  }
  struct Case {
    const char* name;
    Config config;
    int rounds;
  };
  const Case cases[] = {
      {"neighbours",
       {.max_sequences = 8, .max_batch_tokens = 128, .kv_pages = 40, .threads = 2},
       1},
      {"chunks of one row", {.max_sequences = 1, .max_batch_tokens = 1}, 1},
      {"odd chunks", {.max_sequences = 4, .max_batch_tokens = 7, .kv_pages = 40}, 1},
      {"a warm cache", {.max_sequences = 3, .max_batch_tokens = 24, .kv_pages = 64}, 2},
      {"no cache", {.max_sequences = 5, .kv_pages = 30, .prefix_cache = false}, 1},
      {"few pages", {.max_sequences = 6, .max_batch_tokens = 50, .kv_pages = 5}, 1},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    Config config = c.config;
    config.path = GetParam();
    auto fixture = make(config);
    Engine& engine = *fixture->engine;
    for (int round = 0; round < c.rounds; ++round) {
      std::map<RequestId, int> kinds;
      for (int kind = 0; kind < kKinds; ++kind)
        kinds[engine.submit(request(kind, 40)).value()] = kind;
      const Outcomes got = drain(engine);
      for (const auto& [key, outcome] : got) {
        const int kind = kinds.at(key.first);
        const Outcome& expected = want[static_cast<size_t>(kind)].at(key.second);
        EXPECT_EQ(outcome.tokens, expected.tokens) << "request " << kind << "/" << key.second;
        EXPECT_TRUE(outcome == expected) << "request " << kind << "/" << key.second;
      }
    }
    if (config.kv_pages == 5) {
      EXPECT_GT(engine.stats().preemptions, 0);
    }
    if (c.rounds == 2) {
      EXPECT_GT(engine.stats().prefix_cache_hits, 400);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Available, EnginePaths, ::testing::ValuesIn(available_cpu_paths()),
                         [](const auto& param) {
                           std::string name(cpu_path_name(param.param));
                           return name;
                         });

TEST(Engine, RandomArrivalsAndCancels) {
  auto fixture = make({.max_sequences = 3, .kv_pages = 8});
  auto alone = make_solo();
  Engine& engine = *fixture->engine;
  std::mt19937 random(5);
  std::map<RequestId, int> kinds;
  Outcomes outcomes;
  std::vector<TokenEvent> events;
  int submitted = 0;
  while (submitted < 25 || !engine.idle()) {
    events.clear();
    if (submitted < 25 && random() % 3 == 0) {
      kinds[engine.submit(request(submitted % 9, 1 + random() % 12)).value()] = submitted % 9;
      ++submitted;
    }
    if (random() % 11 == 0 && !kinds.empty()) {
      const RequestId id =
          std::next(kinds.begin(), static_cast<std::ptrdiff_t>(random() % kinds.size()))->first;
      engine.cancel(id, events);
      engine.cancel(id, events);
    }
    ASSERT_TRUE(engine.step(events).ok());
    ASSERT_TRUE(engine.check_invariants());
    collect(events, outcomes);
  }
  EXPECT_EQ(engine.stats().kv_pages_used, 0);
  std::map<int, std::vector<Outcome>> want;
  for (int kind = 0; kind < 9; ++kind) want[kind] = solo(*alone->engine, request(kind, 12));
  for (const auto& [key, outcome] : outcomes) {
    const auto& tokens = want[kinds[key.first]].at(key.second).tokens;
    ASSERT_LE(outcome.tokens.size(), tokens.size());
    EXPECT_TRUE(std::equal(outcome.tokens.begin(), outcome.tokens.end(), tokens.begin()));
  }
}

TEST(Engine, TheNextTurnReusesTheCacheAndChangesNothing) {
  for (const bool reuse_generated : {false, true}) {
    auto fixture = make({.max_sequences = 1, .reuse_generated = reuse_generated});
    Engine& engine = *fixture->engine;
    const Outcome answer = solo(engine, request(0, 40)).front();
    Request next = request(0);
    const auto first_prompt = static_cast<int64_t>(next.prompt.size());
    next.prompt.insert(next.prompt.end(), answer.tokens.begin(), answer.tokens.end());
    next.prompt.push_back(17);
    const int64_t before = engine.stats().prefix_cache_hits;
    const Outcome reused = solo(engine, next).front();
    // Full pages of the prompt; with reuse also of the answer (this path has one order anyway).
    EXPECT_GE(engine.stats().prefix_cache_hits - before, first_prompt / 32 * 32);
    EXPECT_EQ(reused.tokens, solo(next).tokens);
    EXPECT_EQ(solo(engine, request(0, 40)).front(), answer);
  }
}

TEST(Engine, ScoringOnlyNeedsNoAnswer) {
  auto fixture = make();
  Request r = request(2);
  r.sampling.max_tokens = 0;
  r.prompt_logprobs = 0;
  const Outcome scored = solo(*fixture->engine, r).front();
  EXPECT_EQ(scored.prompt_logprobs.size(), r.prompt.size() - 1);
  EXPECT_EQ(scored.finish, FinishReason::kLength);
  EXPECT_TRUE(scored.tokens.empty());
  r.prompt.assign(128, 3);  // the whole context
  EXPECT_EQ(solo(*fixture->engine, r).front().prompt_logprobs.size(), 127u);
  // A prompt's score of its next token is what sampling sees: the answer's own logprobs.
  Request first = request(0, 5);
  const Outcome answer = solo(first);
  r = first;
  r.prompt.insert(r.prompt.end(), answer.tokens.begin(), answer.tokens.end());
  r.sampling.max_tokens = 0;
  r.prompt_logprobs = 0;
  const Outcome again = solo(*fixture->engine, r).front();
  for (size_t i = 0; i < answer.tokens.size(); ++i) {
    EXPECT_NEAR(again.prompt_logprobs[first.prompt.size() - 1 + i], answer.top[2 * i].second, 1e-4);
  }
}

TEST(Engine, LimitsAreNamed) {
  auto fixture = make({.max_sequences = 1, .max_model_len = 64});
  Engine& engine = *fixture->engine;
  EXPECT_EQ(engine.submit({}).error().code, ErrorCode::kInvalidArgument);
  Request long_prompt;
  long_prompt.prompt.assign(64, 3);
  const auto refused = engine.submit(long_prompt);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("64"), std::string::npos) << refused.error().message;
  Request bad_token;
  bad_token.prompt = {100000};
  EXPECT_FALSE(engine.submit(bad_token).ok());
  Request fits;
  fits.prompt.assign(63, 3);
  fits.sampling.ignore_eos = true;
  const Outcome outcome = solo(engine, fits).front();
  EXPECT_EQ(outcome.finish, FinishReason::kContext);
  EXPECT_EQ(outcome.tokens.size(), 1u);
  // A short request straight after works.
  EXPECT_EQ(solo(engine, request(3)).front().tokens.size(), 20u);
}

TEST(Engine, StopTokensAndStopStrings) {
  const Outcome plain = solo(request(5));
  ASSERT_GE(plain.tokens.size(), 10u);
  Request by_token = request(5);
  by_token.sampling.stop_token_ids = {plain.tokens[6]};
  const Outcome stopped = solo(by_token);
  EXPECT_EQ(stopped.finish, FinishReason::kStop);
  EXPECT_EQ(stopped.tokens.back(), plain.tokens[6]);
  EXPECT_LE(stopped.tokens.size(), 7u);
  ASSERT_GE(plain.text.size(), 12u);
  // At least three bytes from inside the answer, whole characters.
  const auto boundary = [&](size_t at) {
    while (at < plain.text.size() && (static_cast<unsigned char>(plain.text[at]) & 0xc0) == 0x80)
      ++at;
    return at;
  };
  const size_t at = boundary(5);
  const std::string stop = plain.text.substr(at, boundary(at + 3) - at);
  Request by_text = request(5);
  by_text.sampling.stop = {stop};
  const Outcome cut = solo(by_text);
  EXPECT_EQ(cut.finish, FinishReason::kStop);
  EXPECT_EQ(cut.stop, stop);
  EXPECT_EQ(cut.text, plain.text.substr(0, plain.text.find(stop)));
}

TEST(Engine, UnseededRequestsDiffer) {
  Request r = request(4, 20);
  r.sampling.seed.reset();
  r.sampling.temperature = 2.0;
  EXPECT_NE(solo(r).tokens, solo(r).tokens);
}

}  // namespace
}  // namespace sub8::engine
