#include "engine/sampler.h"

#include <cmath>
#include <limits>
#include <map>

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
  EXPECT_TRUE(bad({.stop_token_ids = {-1}}));
  EXPECT_TRUE(bad({.top_logprobs = 21}));
}

}  // namespace
}  // namespace sub8::engine
