#include "engine/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include <fmt/format.h>

#include "base/check.h"
#include "engine/philox.h"

namespace sub8::engine {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
// Below this a temperature means greedy, as in vLLM.
constexpr double kGreedyTemperature = 1e-5;

double log_sum_exp(std::span<const float> logits, float max) {
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - max);
  return static_cast<double>(max) + std::log(sum);
}

bool before(float a_logit, int32_t a_id, float b_logit, int32_t b_id) {
  return a_logit != b_logit ? a_logit > b_logit : a_id < b_id;
}

}  // namespace

uint64_t draw_seed() {
  std::random_device device;
  return (uint64_t{device()} << 32) | device();
}

Sampler::Sampler(SamplingParams params, std::span<const int32_t> prompt,
                 std::vector<int32_t> end_ids, uint32_t choice)
    : params_(std::move(params)), end_ids_(std::move(end_ids)), choice_(choice) {
  SUB8_CHECK(params_.seed.has_value());
  if (params_.repetition_penalty != 1.0) {
    for (const int32_t id : prompt) ++prompt_counts_[id];
  }
}

void Sampler::apply_penalties(uint32_t index) {
  const auto inside = [&](int32_t id) {
    return id >= 0 && static_cast<size_t>(id) < logits_.size();
  };
  for (const auto& [id, bias] : params_.logit_bias) {
    if (inside(id)) logits_[id] += bias;
  }
  if (index < params_.min_tokens) {
    for (const int32_t id : end_ids_) {
      if (inside(id)) logits_[id] = kMinusInfinity;
    }
    for (const int32_t id : params_.stop_token_ids) {
      if (inside(id)) logits_[id] = kMinusInfinity;
    }
  }
  if (params_.repetition_penalty != 1.0) {
    const auto penalty = static_cast<float>(params_.repetition_penalty);
    const auto repeat = [&](int32_t id) {
      if (inside(id)) logits_[id] = logits_[id] > 0 ? logits_[id] / penalty : logits_[id] * penalty;
    };
    for (const auto& [id, count] : prompt_counts_) repeat(id);
    for (const auto& [id, count] : answer_counts_) {
      if (!prompt_counts_.contains(id)) repeat(id);
    }
  }
  if (params_.presence_penalty != 0 || params_.frequency_penalty != 0) {
    for (const auto& [id, count] : answer_counts_) {
      if (inside(id)) {
        logits_[id] -=
            static_cast<float>(params_.presence_penalty + params_.frequency_penalty * count);
      }
    }
  }
}

// Samples from logits_; at least one of them is finite.
int32_t Sampler::choose(uint32_t index) {
  size_t best = 0;
  for (size_t i = 1; i < logits_.size(); ++i) {
    if (logits_[i] > logits_[best]) best = i;
  }
  if (params_.temperature < kGreedyTemperature || params_.top_k == 1)
    return static_cast<int32_t>(best);

  const float max = logits_[best];
  const auto inverse_temperature = static_cast<float>(1.0 / params_.temperature);
  // Tokens that survive min_p: p >= min_p * p_max, that is, (logit - max) / T >= log(min_p).
  const float floor =
      params_.min_p > 0 ? static_cast<float>(std::log(params_.min_p)) : kMinusInfinity;
  candidates_.clear();
  for (size_t i = 0; i < logits_.size(); ++i) {
    const float scaled = (logits_[i] - max) * inverse_temperature;
    if (scaled >= floor && scaled != kMinusInfinity)
      candidates_.push_back({scaled, static_cast<int32_t>(i)});
  }
  const auto order = [](const Candidate& a, const Candidate& b) {
    return before(a.logit, a.id, b.logit, b.id);
  };
  if (params_.top_k > 0 && static_cast<size_t>(params_.top_k) < candidates_.size()) {
    const auto middle = candidates_.begin() + params_.top_k;
    std::nth_element(candidates_.begin(), middle, candidates_.end(), order);
    candidates_.erase(middle, candidates_.end());
  }
  double total = 0;
  const bool nucleus = params_.top_p < 1.0;
  if (nucleus)
    std::sort(candidates_.begin(), candidates_.end(), order);
  else
    std::sort(candidates_.begin(), candidates_.end(),
              [](const Candidate& a, const Candidate& b) { return a.id < b.id; });
  for (Candidate& c : candidates_) {
    c.logit = std::exp(c.logit);  // from here on a weight
    total += c.logit;
  }
  if (nucleus) {
    // The smallest leading set whose mass reaches top_p.
    const double wanted = params_.top_p * total;
    double mass = 0;
    size_t keep = 0;
    while (keep < candidates_.size() && (keep == 0 || mass < wanted))
      mass += candidates_[keep++].logit;
    candidates_.resize(keep);
    total = mass;
  }
  const double target = philox_uniform(*params_.seed, choice_, index, 0) * total;
  double mass = 0;
  for (const Candidate& c : candidates_) {
    mass += c.logit;
    if (mass > target) return c.id;
  }
  return candidates_.back().id;
}

Result<TokenLogprob> Sampler::sample(std::span<const float> logits, uint32_t index) {
  logits_.assign(logits.begin(), logits.end());
  float max = kMinusInfinity;
  for (size_t i = 0; i < logits_.size(); ++i) {
    if (std::isnan(logits_[i]))
      return internal_error(fmt::format("the model gave a NaN logit for token {}", i));
    max = std::max(max, logits_[i]);
  }
  if (!std::isfinite(max)) return internal_error("the model gave no finite logit");

  TokenLogprob out;
  apply_penalties(index);
  if (*std::max_element(logits_.begin(), logits_.end()) == kMinusInfinity) {
    return invalid_argument("logit_bias and min_tokens leave no token to sample");
  }
  out.id = choose(index);
  ++answer_counts_[out.id];
  if (params_.top_logprobs >= 0) {
    const double normaliser = log_sum_exp(logits, max);
    out.logprob = static_cast<float>(logits[out.id] - normaliser);
    candidates_.clear();
    for (size_t i = 0; i < logits.size(); ++i)
      candidates_.push_back({logits[i], static_cast<int32_t>(i)});
    const auto count = std::min<size_t>(params_.top_logprobs, candidates_.size());
    std::partial_sort(candidates_.begin(), candidates_.begin() + count, candidates_.end(),
                      [](const Candidate& a, const Candidate& b) {
                        return before(a.logit, a.id, b.logit, b.id);
                      });
    for (size_t i = 0; i < count; ++i) {
      out.top.emplace_back(candidates_[i].id,
                           static_cast<float>(candidates_[i].logit - normaliser));
    }
  }
  return out;
}

}  // namespace sub8::engine
