// The engine over a real two-layer model: what a request produces depends on it alone.
#include "engine/engine.h"

#include <filesystem>
#include <map>
#include <random>

#include <gtest/gtest.h>

#include "engine/bundle.h"

namespace sub8::engine {
namespace {

struct Fixture {
  ThreadPool pool{2};
  Bundle bundle;
  std::unique_ptr<Engine> engine;
};

std::unique_ptr<Fixture> make(int max_sequences = 4, int64_t max_model_len = 128,
                              int64_t max_batch_tokens = 24) {
  auto out = std::make_unique<Fixture>();
  auto source =
      checkpoint::open_checkpoint(std::filesystem::path(SUB8_TEST_DATA) / "models/llama-chat");
  EXPECT_TRUE(source.ok()) << (source.ok() ? "" : source.error().message);
  auto bundle = make_bundle(std::move(source).value());
  EXPECT_TRUE(bundle.ok()) << (bundle.ok() ? "" : bundle.error().message);
  out->bundle = std::move(bundle).value();
  RunOptions options;
  options.max_model_len = max_model_len;
  options.max_sequences = max_sequences;
  options.max_batch_tokens = max_batch_tokens;
  auto engine = make_engine(out->bundle, options, out->pool);
  EXPECT_TRUE(engine.ok()) << (engine.ok() ? "" : engine.error().message);
  out->engine = std::move(engine).value();
  return out;
}

Request request(int kind, int64_t max_tokens = 20) {
  Request out;
  std::mt19937 random(static_cast<uint32_t>(kind));
  const int length = 3 + kind * 7 % 50;
  for (int i = 0; i < length; ++i) out.prompt.push_back(static_cast<int32_t>(random() % 270));
  out.sampling.temperature = kind % 3 == 0 ? 0.0 : 0.9;
  out.sampling.seed = static_cast<uint64_t>(kind);
  out.sampling.max_tokens = max_tokens;
  out.sampling.ignore_eos = true;
  return out;
}

struct Outcome {
  std::vector<int32_t> tokens;
  std::string text;
  FinishReason finish = FinishReason::kRunning;
  std::string stop;
};

void collect(const std::vector<TokenEvent>& events, std::map<RequestId, Outcome>& out) {
  for (const TokenEvent& event : events) {
    Outcome& o = out[event.id];
    EXPECT_EQ(o.finish, FinishReason::kRunning) << "an event after the end";
    if (event.token) o.tokens.push_back(event.token->id);
    o.text += event.text;
    o.finish = event.finish;
    o.stop = event.stop;
  }
}

std::map<RequestId, Outcome> drain(Engine& engine) {
  std::map<RequestId, Outcome> out;
  std::vector<TokenEvent> events;
  while (!engine.idle()) {
    events.clear();
    const Status status = engine.step(events);
    EXPECT_TRUE(status.ok()) << (status.ok() ? "" : status.error().message);
    if (!status.ok()) break;
    EXPECT_TRUE(engine.check_invariants());
    collect(events, out);
  }
  return out;
}

Outcome solo(Request r) {
  auto fixture = make(1);
  const auto id = fixture->engine->submit(std::move(r));
  EXPECT_TRUE(id.ok()) << (id.ok() ? "" : id.error().message);
  return drain(*fixture->engine)[*id];
}

TEST(Engine, ARequestDoesNotDependOnItsNeighbours) {
  auto fixture = make(4);
  std::map<RequestId, int> kinds;
  for (int kind = 0; kind < 9; ++kind) kinds[fixture->engine->submit(request(kind)).value()] = kind;
  const auto outcomes = drain(*fixture->engine);
  ASSERT_EQ(outcomes.size(), 9u);
  for (const auto& [id, outcome] : outcomes) {
    const Outcome want = solo(request(kinds[id]));
    EXPECT_EQ(outcome.tokens, want.tokens) << "request " << kinds[id];
    EXPECT_EQ(outcome.text, want.text);
    EXPECT_EQ(outcome.finish, FinishReason::kLength);
    EXPECT_EQ(outcome.tokens.size(), 20u);
  }
  EXPECT_EQ(fixture->engine->available_pages(), 4 * 4);
}

TEST(Engine, RandomArrivalsAndCancels) {
  auto fixture = make(3);
  Engine& engine = *fixture->engine;
  std::mt19937 random(5);
  std::map<RequestId, int> kinds;
  std::map<RequestId, Outcome> outcomes;
  std::vector<TokenEvent> events;
  int submitted = 0;
  while (submitted < 25 || !engine.idle()) {
    if (submitted < 25 && random() % 3 == 0) {
      kinds[engine.submit(request(submitted % 9, 1 + random() % 12)).value()] = submitted % 9;
      ++submitted;
    }
    if (random() % 11 == 0 && !kinds.empty()) {
      const RequestId id =
          std::next(kinds.begin(), static_cast<std::ptrdiff_t>(random() % kinds.size()))->first;
      engine.cancel(id);
      engine.cancel(id);
    }
    events.clear();
    ASSERT_TRUE(engine.step(events).ok());
    ASSERT_TRUE(engine.check_invariants());
    collect(events, outcomes);
  }
  EXPECT_EQ(engine.available_pages(), 3 * 4);
  for (const auto& [id, outcome] : outcomes) {
    const auto want = solo(request(kinds[id], 12)).tokens;
    ASSERT_LE(outcome.tokens.size(), want.size());
    EXPECT_TRUE(std::equal(outcome.tokens.begin(), outcome.tokens.end(), want.begin()));
  }
}

TEST(Engine, TheNextTurnReusesTheCacheAndChangesNothing) {
  auto fixture = make(1);
  Engine& engine = *fixture->engine;
  const RequestId first = engine.submit(request(4)).value();
  const Outcome answer = drain(engine)[first];
  Request next = request(4);
  next.prompt.insert(next.prompt.end(), answer.tokens.begin(), answer.tokens.end());
  next.prompt.push_back(17);
  const int64_t before = engine.stats().cached_prompt_tokens;
  const RequestId second = engine.submit(next).value();
  const Outcome reused = drain(engine)[second];
  EXPECT_GT(engine.stats().cached_prompt_tokens, before);
  EXPECT_EQ(reused.tokens, solo(next).tokens);
  // The same prompt again: all of it but the last token is cached.
  const RequestId third = engine.submit(request(4)).value();
  EXPECT_EQ(drain(engine)[third].tokens, answer.tokens);
}

TEST(Engine, LimitsAreNamed) {
  auto fixture = make(1, 64);
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
  const RequestId id = engine.submit(fits).value();
  const Outcome outcome = drain(engine)[id];
  EXPECT_EQ(outcome.finish, FinishReason::kContext);
  EXPECT_EQ(outcome.tokens.size(), 1u);
  // A short request straight after works.
  const RequestId next = engine.submit(request(1)).value();
  EXPECT_EQ(drain(engine)[next].tokens.size(), 20u);
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
  size_t at = 5;
  while (at < plain.text.size() && (static_cast<unsigned char>(plain.text[at]) & 0xc0) == 0x80)
    ++at;
  const std::string stop = plain.text.substr(at, 3);
  Request by_text = request(5);
  by_text.sampling.stop = {stop};
  const Outcome cut = solo(by_text);
  EXPECT_EQ(cut.finish, FinishReason::kStop);
  EXPECT_EQ(cut.stop, stop);
  EXPECT_EQ(cut.text, plain.text.substr(0, plain.text.find(stop)));
}

TEST(Engine, UnseededRequestsDiffer) {
  Request r = request(1, 20);
  r.sampling.seed.reset();
  r.sampling.temperature = 2.0;
  EXPECT_NE(solo(r).tokens, solo(r).tokens);
}

}  // namespace
}  // namespace sub8::engine
