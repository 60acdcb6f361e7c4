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

// The largest logit; NaN if any is NaN. Lanes, so that it can run in vector registers.
float max_or_nan(std::span<const float> logits) {
  constexpr size_t kLanes = 16;
  float max[kLanes];
  bool nan[kLanes] = {};
  std::fill_n(max, kLanes, kMinusInfinity);
  size_t i = 0;
  for (; i + kLanes <= logits.size(); i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) {
      const float value = logits[i + lane];
      max[lane] = value > max[lane] ? value : max[lane];
      nan[lane] |= value != value;
    }
  }
  for (; i < logits.size(); ++i) {
    max[0] = logits[i] > max[0] ? logits[i] : max[0];
    nan[0] |= logits[i] != logits[i];
  }
  if (std::find(nan, nan + kLanes, true) != nan + kLanes)
    return std::numeric_limits<float>::quiet_NaN();
  return *std::max_element(max, max + kLanes);
}

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
  counts_answer_ = params_.repetition_penalty != 1.0 || params_.presence_penalty != 0 ||
                   params_.frequency_penalty != 0;
  if (params_.repetition_penalty != 1.0) {
    for (const int32_t id : prompt) ++prompt_counts_[id];
  }
}

TokenLogprob token_logprob(std::span<const float> logits, int32_t token, int top) {
  TokenLogprob out;
  out.id = token;
  const double normaliser = log_sum_exp(logits, *std::max_element(logits.begin(), logits.end()));
  const auto logprob = [&](int32_t id) {
    return static_cast<float>(logits[static_cast<size_t>(id)] - normaliser);
  };
  out.logprob = logprob(token);
  // The best so far, best first: `top` is small.
  const auto wanted = std::min(static_cast<size_t>(top), logits.size());
  std::vector<int32_t> best;
  for (size_t i = 0; wanted > 0 && i < logits.size(); ++i) {
    if (best.size() == wanted && !(logits[i] > logits[static_cast<size_t>(best.back())])) continue;
    if (best.size() == wanted) best.pop_back();
    const auto at = std::find_if(best.begin(), best.end(), [&](int32_t id) {
      return logits[i] > logits[static_cast<size_t>(id)];
    });
    best.insert(at, static_cast<int32_t>(i));
  }
  for (const int32_t id : best) out.top.emplace_back(id, logprob(id));
  return out;
}

// Whether anything changes the model's logits before temperature.
bool Sampler::adjusts(uint32_t index) const {
  return !params_.logit_bias.empty() || index < params_.min_tokens ||
         params_.repetition_penalty != 1.0 || params_.presence_penalty != 0 ||
         params_.frequency_penalty != 0;
}

void Sampler::adjust(std::vector<float>& logits, uint32_t index,
                     std::span<const uint32_t> allowed) const {
  const auto inside = [&](int32_t id) {
    return id >= 0 && static_cast<size_t>(id) < logits.size();
  };
  if (!allowed.empty()) {
    for (size_t i = 0; i < logits.size(); ++i) {
      if ((allowed[i / 32] >> (i % 32) & 1) == 0) logits[i] = kMinusInfinity;
    }
  }
  for (const auto& [id, bias] : params_.logit_bias) {
    if (inside(id)) logits[id] += bias;
  }
  if (index < params_.min_tokens) {
    for (const int32_t id : end_ids_) {
      if (inside(id)) logits[id] = kMinusInfinity;
    }
    for (const int32_t id : params_.stop_token_ids) {
      if (inside(id)) logits[id] = kMinusInfinity;
    }
  }
  if (params_.repetition_penalty != 1.0) {
    const auto penalty = static_cast<float>(params_.repetition_penalty);
    const auto repeat = [&](int32_t id) {
      if (inside(id)) logits[id] = logits[id] > 0 ? logits[id] / penalty : logits[id] * penalty;
    };
    for (const auto& [id, count] : prompt_counts_) repeat(id);
    for (const auto& [id, count] : answer_counts_) {
      if (!prompt_counts_.contains(id)) repeat(id);
    }
  }
  if (params_.presence_penalty != 0 || params_.frequency_penalty != 0) {
    for (const auto& [id, count] : answer_counts_) {
      if (inside(id)) {
        logits[id] -=
            static_cast<float>(params_.presence_penalty + params_.frequency_penalty * count);
      }
    }
  }
}

// `max` is the largest of the logits, and finite.
int32_t Sampler::choose(std::span<const float> logits, float max, uint32_t index,
                        std::vector<SamplerScratch::Candidate>& candidates) const {
  using Candidate = SamplerScratch::Candidate;
  if (params_.temperature < kGreedyTemperature || params_.top_k == 1)
    return static_cast<int32_t>(std::find(logits.begin(), logits.end(), max) - logits.begin());

  const auto inverse_temperature = static_cast<float>(1.0 / params_.temperature);
  // Tokens that survive min_p: p >= min_p * p_max, that is, (logit - max) / T >= log(min_p).
  const float floor =
      params_.min_p > 0 ? static_cast<float>(std::log(params_.min_p)) : kMinusInfinity;
  candidates.clear();
  for (size_t i = 0; i < logits.size(); ++i) {
    const float scaled = (logits[i] - max) * inverse_temperature;
    if (scaled >= floor && scaled != kMinusInfinity)
      candidates.push_back({scaled, static_cast<int32_t>(i)});
  }
  const auto order = [](const Candidate& a, const Candidate& b) {
    return before(a.logit, a.id, b.logit, b.id);
  };
  if (params_.top_k > 0 && static_cast<size_t>(params_.top_k) < candidates.size()) {
    const auto middle = candidates.begin() + params_.top_k;
    std::nth_element(candidates.begin(), middle, candidates.end(), order);
    candidates.erase(middle, candidates.end());
  }
  double total = 0;
  const bool nucleus = params_.top_p < 1.0;
  if (nucleus)
    std::sort(candidates.begin(), candidates.end(), order);
  else
    std::sort(candidates.begin(), candidates.end(),
              [](const Candidate& a, const Candidate& b) { return a.id < b.id; });
  for (Candidate& c : candidates) {
    c.logit = std::exp(c.logit);  // from here on a weight
    total += c.logit;
  }
  if (nucleus) {
    // The smallest leading set whose mass reaches top_p.
    const double wanted = params_.top_p * total;
    double mass = 0;
    size_t keep = 0;
    while (keep < candidates.size() && (keep == 0 || mass < wanted))
      mass += candidates[keep++].logit;
    candidates.resize(keep);
    total = mass;
  }
  const double target = philox_uniform(*params_.seed, choice_, index, 0) * total;
  double mass = 0;
  for (const Candidate& c : candidates) {
    mass += c.logit;
    if (mass > target) return c.id;
  }
  return candidates.back().id;
}

Result<TokenLogprob> Sampler::sample(std::span<const float> logits, uint32_t index,
                                     SamplerScratch& scratch, std::span<const uint32_t> allowed) {
  float max = max_or_nan(logits);
  if (std::isnan(max)) {
    const auto at = std::find_if(logits.begin(), logits.end(), [](float x) { return x != x; });
    return internal_error(
        fmt::format("the model gave a NaN logit for token {}", at - logits.begin()));
  }
  if (!std::isfinite(max)) return internal_error("the model gave no finite logit");

  std::span<const float> adjusted = logits;
  if (!allowed.empty() || adjusts(index)) {
    scratch.logits.assign(logits.begin(), logits.end());
    adjust(scratch.logits, index, allowed);
    adjusted = scratch.logits;
    max = max_or_nan(adjusted);
    if (max == kMinusInfinity) {
      return invalid_argument(
          "no token is left to sample: the allowed tokens, logit_bias and min_tokens exclude each "
          "other");
    }
  }
  const int32_t id = choose(adjusted, max, index, scratch.candidates);
  if (counts_answer_) ++answer_counts_[id];
  if (params_.top_logprobs >= 0) return token_logprob(logits, id, params_.top_logprobs);
  TokenLogprob out;
  out.id = id;
  return out;
}

}  // namespace sub8::engine
