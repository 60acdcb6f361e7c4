#include "engine/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <random>

#include <gtest/gtest.h>

#include "engine/philox.h"

namespace sub8::engine {
namespace {

const std::vector<float> kLogits = {1.0f, 3.0f, 2.0f, 3.0f, -1.0f, 0.5f};
SamplerScratch scratch;

TokenLogprob sample(SamplingParams params, std::vector<float> logits = kLogits,
                    uint32_t index = 0) {
  if (!params.seed) params.seed = 42;
  Sampler sampler(params, {}, {});
  return sampler.sample(logits, index, scratch).value();
}

std::map<int32_t, double> frequencies(SamplingParams params, int draws,
                                      std::vector<float> logits = kLogits) {
  std::map<int32_t, double> out;
  params.seed = 7;
  Sampler sampler(params, {}, {});
  for (int i = 0; i < draws; ++i)
    out[sampler.sample(logits, static_cast<uint32_t>(i), scratch).value().id] += 1.0 / draws;
  return out;
}

TEST(Philox, KnownAnswers) {
  // From the authors' test vectors (Random123 kat_vectors).
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}),
            (std::array<uint32_t, 4>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox4x32({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
            (std::array<uint32_t, 4>{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (std::array<uint32_t, 4>{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Sampler, GreedyTakesTheLowestIdAmongEqualLogits) {
  EXPECT_EQ(sample({.temperature = 0}).id, 1);
  EXPECT_EQ(sample({.temperature = 1, .top_k = 1}).id, 1);
  EXPECT_EQ(sample({.temperature = 1, .top_p = 0}).id, 1);
}

TEST(Sampler, LogitsThatAreNoNumbersAreTheModelsFault) {
  const float inf = std::numeric_limits<float>::infinity();
  const std::pair<std::vector<float>, const char*> cases[] = {
      {{1, 2, NAN, 3}, "a logit of nan for token 2"},
      {{1, inf, 2}, "a logit of inf for token 1"},
      {{-inf, -inf}, "no finite logit"}};
  for (const auto& [logits, part] : cases) {
    Sampler sampler({.temperature = 1, .seed = 1}, {}, {});
    const auto got = sampler.sample(logits, 0, scratch);
    ASSERT_FALSE(got.ok()) << part;
    EXPECT_EQ(got.error().code, ErrorCode::kCorruptData);
    EXPECT_NE(got.error().message.find(part), std::string::npos) << got.error().message;
    EXPECT_NE(got.error().message.find("out of range"), std::string::npos);
  }
}

TEST(Sampler, DrawsFollowTheSoftmax) {
  const auto got = frequencies({.temperature = 1.0}, 40000);
  double total = 0;
  for (const float logit : kLogits) total += std::exp(logit);
  for (size_t i = 0; i < kLogits.size(); ++i) {
    const double p = std::exp(kLogits[i]) / total;
    EXPECT_NEAR(got.count(i) ? got.at(i) : 0, p, 5 * std::sqrt(p * (1 - p) / 40000)) << i;
  }
}

TEST(Sampler, FiltersKeepWhatTheyShould) {
  EXPECT_EQ(frequencies({.top_k = 2}, 2000).size(), 2u);
  EXPECT_EQ(frequencies({.top_k = -1}, 20000).size(), 6u);
  EXPECT_EQ(frequencies({.top_k = 100}, 20000).size(), 6u);
  EXPECT_EQ(frequencies({.top_p = 1e-9}, 100).size(), 1u);
  EXPECT_EQ(frequencies({.top_p = 0.5}, 2000).size(), 2u);
  EXPECT_EQ(frequencies({.min_p = 1.0}, 2000).size(), 2u);  // both maxima
  EXPECT_EQ(frequencies({.min_p = 0.3}, 2000).size(), 3u);  // e^-1 = 0.37
  EXPECT_EQ(frequencies({.temperature = 0.01}, 2000).size(), 2u);
}

// The same draw from the definition: everything sorted, everything in double. Returns the places of
// `token` in the cumulative distribution of what survives, in the order in which it is walked: ids
// ascending without filters, else by rank.
std::pair<double, double> place_of(int32_t token, const std::vector<float>& logits,
                                   const SamplingParams& p) {
  std::vector<int32_t> ids;
  for (size_t i = 0; i < logits.size(); ++i) ids.push_back(static_cast<int32_t>(i));
  std::stable_sort(ids.begin(), ids.end(), [&](int32_t a, int32_t b) {
    return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)];
  });
  const double max = logits[static_cast<size_t>(ids[0])];
  const auto weight = [&](int32_t id) {
    return std::exp((logits[static_cast<size_t>(id)] - max) / p.temperature);
  };
  const bool top_k = p.top_k > 0 && static_cast<size_t>(p.top_k) < ids.size();
  while (weight(ids.back()) < p.min_p) ids.pop_back();
  if (top_k) ids.resize(std::min(ids.size(), static_cast<size_t>(p.top_k)));
  double total = 0, mass = 0;
  for (const int32_t id : ids) total += weight(id);
  if (p.top_p < 1) {
    size_t keep = 0;
    while (keep < ids.size() && (keep == 0 || mass < p.top_p * total - 1e-6 * total))
      mass += weight(ids[keep++]);
    ids.resize(keep);
  }
  if (!top_k && p.min_p <= 0 && p.top_p >= 1) std::sort(ids.begin(), ids.end());
  mass = 0;
  for (const int32_t id : ids) mass += weight(id);
  double below = 0;
  for (const int32_t id : ids) {
    const double above = below + weight(id) / mass;
    if (id == token) return {below, above};
    below = above;
  }
  return {2, 2};  // filtered out
}

TEST(Sampler, DrawsAreThoseOfTheDefinition) {
  std::mt19937 random(3);
  int checked = 0;
  for (int round = 0; round < 300; ++round) {
    const auto size = static_cast<size_t>(1 + random() % 5000);
    std::normal_distribution<float> normal(0, 0.5f + static_cast<float>(random() % 5));
    std::vector<float> logits(size);
    for (float& x : logits) {
      x = normal(random);
      if (random() % 7 == 0) x = std::round(x);  // equal ones
      if (random() % 9 == 0) x = -std::numeric_limits<float>::infinity();
    }
    logits[random() % size] = 1;
    SamplingParams p;
    p.seed = random();
    p.temperature = std::exp(static_cast<double>(random() % 100) / 25 - 2);
    if (random() % 2 == 0) p.top_k = static_cast<int64_t>(random() % (size + 10));
    if (random() % 2 == 0) p.top_p = static_cast<double>(random() % 1001) / 1000;
    if (random() % 3 == 0) p.min_p = std::pow(10, -static_cast<double>(random() % 8));
    if (p.top_k == 1) continue;
    scratch.path = available_cpu_paths()[random() % available_cpu_paths().size()];
    Sampler sampler(p, {}, {});
    const auto index = static_cast<uint32_t>(random() % 100);
    const int32_t token = sampler.sample(logits, index, scratch).value().id;
    const auto [below, above] = place_of(token, logits, p);
    const double share = philox_uniform(*p.seed, 0, index, 0);
    // A token at the very edge of a filter may be in or out by rounding.
    const bool right = share >= below - 1e-4 && share <= above + 1e-4;
    EXPECT_TRUE(right) << "size " << size << " T " << p.temperature << " k " << p.top_k << " p "
                       << p.top_p << " min_p " << p.min_p << ": token " << token << " at " << below
                       << " .. " << above << ", drawn " << share;
    ++checked;
  }
  EXPECT_GT(checked, 200);
}

TEST(Sampler, PenaltiesBiasAndMinTokens) {
  SamplingParams params{.temperature = 0, .logit_bias = {{4, 100.0f}}, .seed = 1};
  EXPECT_EQ(sample(params).id, 4);
  params = {.temperature = 0, .presence_penalty = 2.0, .seed = 1};
  Sampler presence(params, {}, {});
  EXPECT_EQ(presence.sample(kLogits, 0, scratch)->id, 1);
  EXPECT_EQ(presence.sample(kLogits, 1, scratch)->id, 3);
  EXPECT_EQ(presence.sample(kLogits, 2, scratch)->id, 2);
  params = {.temperature = 0, .repetition_penalty = 2.0, .seed = 1};
  const std::vector<int32_t> prompt = {1, 1, 3};
  Sampler repetition(params, prompt, {});
  EXPECT_EQ(repetition.sample(kLogits, 0, scratch)->id, 2);
  params = {.temperature = 0, .seed = 1, .min_tokens = 1};
  Sampler minimum(params, {}, {1, 3});
  EXPECT_EQ(minimum.sample(kLogits, 0, scratch)->id, 2);
  EXPECT_EQ(minimum.sample(kLogits, 1, scratch)->id, 1);
}

TEST(Sampler, OnlyAllowedTokensAreSampled) {
  Sampler greedy({.temperature = 0, .seed = 1}, {}, {});
  const uint32_t allowed[] = {0b110101};
  EXPECT_EQ(greedy.sample(kLogits, 0, scratch, allowed)->id, 2);
  const uint32_t none[] = {0};
  const auto refused = greedy.sample(kLogits, 1, scratch, none);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
  EXPECT_NE(refused.error().message.find("the grammar"), std::string::npos);
  // Log-probabilities stay those of the model.
  Sampler scored({.temperature = 0, .seed = 1, .top_logprobs = 1}, {}, {});
  const TokenLogprob token = scored.sample(kLogits, 0, scratch, allowed).value();
  EXPECT_EQ(token.id, 2);
  EXPECT_EQ(token.top[0].first, 1);
  EXPECT_LT(token.logprob, token.top[0].second);
}

TEST(Sampler, ChoicesDrawDifferently) {
  const SamplingParams params{.temperature = 1, .seed = 42};
  std::vector<std::vector<int32_t>> drawn(2);
  for (uint32_t choice = 0; choice < 2; ++choice) {
    Sampler sampler(params, {}, {}, choice);
    for (uint32_t i = 0; i < 50; ++i)
      drawn[choice].push_back(sampler.sample(kLogits, i, scratch)->id);
  }
  EXPECT_NE(drawn[0], drawn[1]);
}

TEST(Sampler, SeedAndIndexDecideAlone) {
  const SamplingParams params{.temperature = 0.8, .seed = 42};
  Sampler a(params, {}, {});
  std::vector<int32_t> first;
  for (uint32_t i = 0; i < 50; ++i) first.push_back(a.sample(kLogits, i, scratch)->id);
  Sampler b(params, {}, {});
  Sampler noise({.temperature = 1, .seed = 3}, {}, {});
  for (uint32_t i = 0; i < 50; ++i) {
    (void)noise.sample(kLogits, i, scratch);
    EXPECT_EQ(b.sample(kLogits, i, scratch)->id, first[i]);
  }
  Sampler c({.temperature = 0.8, .seed = 43}, {}, {});
  std::vector<int32_t> other;
  for (uint32_t i = 0; i < 50; ++i) other.push_back(c.sample(kLogits, i, scratch)->id);
  EXPECT_NE(first, other);
}

TEST(Sampler, LogprobsAreOfTheModel) {
  const TokenLogprob token = sample({.temperature = 0, .top_logprobs = 3});
  double total = 0;
  for (const float logit : kLogits) total += std::exp(logit);
  EXPECT_NEAR(token.logprob, 3 - std::log(total), 1e-6);
  ASSERT_EQ(token.top.size(), 3u);
  EXPECT_EQ(token.top[0].first, 1);
  EXPECT_EQ(token.top[1].first, 3);
  EXPECT_EQ(token.top[2].first, 2);
  EXPECT_TRUE(sample({.temperature = 0, .top_logprobs = 0}).top.empty());
}

TEST(Sampler, BadLogitsAreErrors) {
  Sampler sampler({.seed = 1}, {}, {});
  EXPECT_FALSE(sampler.sample(std::vector<float>{1.0f, NAN}, 0, scratch).ok());
  const float inf = std::numeric_limits<float>::infinity();
  EXPECT_FALSE(sampler.sample(std::vector<float>{-inf, -inf}, 0, scratch).ok());
  EXPECT_EQ(sampler.sample(std::vector<float>{-inf, 0.0f}, 0, scratch)->id, 1);
}

TEST(SamplingParams, RangesAreChecked) {
  const auto bad = [](SamplingParams params) {
    const Status status = validate(params, 100);
    return !status.ok() && status.error().code == ErrorCode::kInvalidArgument;
  };
  EXPECT_TRUE(validate({}, 100).ok());
  for (const int64_t top_k : {0, -1, 1, 100, 101})
    EXPECT_TRUE(validate({.top_k = top_k}, 100).ok());
  EXPECT_TRUE(bad({.top_k = -2}));
  EXPECT_TRUE(bad({.temperature = -1}));
  EXPECT_TRUE(bad({.temperature = NAN}));
  EXPECT_TRUE(bad({.top_p = 1.5}));
  EXPECT_TRUE(bad({.min_p = 1.1}));
  EXPECT_TRUE(bad({.repetition_penalty = 0}));
  EXPECT_TRUE(bad({.logit_bias = {{100, 1.0f}}}));
  EXPECT_TRUE(bad({.max_tokens = -1}));
  EXPECT_TRUE(bad({.stop = {""}}));
  EXPECT_TRUE(bad({.stop = {"a\xff"}}));
  EXPECT_TRUE(bad({.stop_token_ids = {-1}}));
  EXPECT_TRUE(bad({.top_logprobs = 21}));
}

}  // namespace
}  // namespace sub8::engine
