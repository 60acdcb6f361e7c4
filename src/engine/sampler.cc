#include "engine/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include <fmt/format.h>

#include "base/check.h"
#include "engine/philox.h"
#include "kernels/sample/logits.h"

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

using Candidate = SamplerScratch::Candidate;

bool before(const Candidate& a, const Candidate& b) {
  return a.scaled != b.scaled ? a.scaled > b.scaled : a.id < b.id;
}

// Tokens with scaled[i] >= floor into `out`, ids ascending; never those of -infinity.
void gather(std::span<const float> scaled, float floor, std::vector<Candidate>& out) {
  constexpr size_t kPiece = 32;
  out.clear();
  for (size_t begin = 0; begin < scaled.size(); begin += kPiece) {
    const size_t end = std::min(begin + kPiece, scaled.size());
    bool any = false;
    for (size_t i = begin; i < end; ++i) any |= scaled[i] >= floor;
    for (size_t i = begin; any && i < end; ++i) {
      if (scaled[i] >= floor && scaled[i] != kMinusInfinity)
        out.push_back({scaled[i], static_cast<int32_t>(i)});
    }
  }
}

// Sums of pieces of a row of weights: a draw need not walk through all of it.
class Mass {
 public:
  Mass(std::span<const float> weights, std::vector<double>& sums) : weights_(weights), sums_(sums) {
    sums_.clear();
    for (size_t begin = 0; begin < weights.size(); begin += kPiece) {
      const size_t end = std::min(begin + kPiece, weights.size());
      double lanes[kLanes] = {};
      for (size_t i = begin; i < end; ++i) lanes[(i - begin) % kLanes] += weights[i];
      sums_.push_back(0);
      for (const double lane : lanes) sums_.back() += lane;
      total_ += sums_.back();
    }
  }
  double total() const { return total_; }

  // The index at which the running sum passes share * total, share in [0, 1).
  int32_t pick(double share) const {
    double left = share * total_;
    size_t piece = 0;
    while (piece + 1 < sums_.size() && left >= sums_[piece]) left -= sums_[piece++];
    size_t last = 0;  // the last token with any weight, should rounding run past the end
    for (size_t i = 0; i < weights_.size(); ++i) {
      if (i < piece * kPiece) i = piece * kPiece;
      if (weights_[i] <= 0) continue;
      last = i;
      left -= weights_[i];
      if (left < 0) break;
    }
    return static_cast<int32_t>(last);
  }

 private:
  static constexpr size_t kPiece = 512;
  static constexpr size_t kLanes = 8;
  std::span<const float> weights_;
  std::vector<double>& sums_;
  double total_ = 0;
};

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

TokenLogprob token_logprob(CpuPath path, std::span<const float> logits, int32_t token, int top) {
  TokenLogprob out;
  out.id = token;
  const double normaliser =
      kernels::log_sum_exp(path, logits.data(), static_cast<int64_t>(logits.size()));
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
                        SamplerScratch& scratch) const {
  if (params_.temperature < kGreedyTemperature || params_.top_k == 1)
    return static_cast<int32_t>(std::find(logits.begin(), logits.end(), max) - logits.begin());
  const auto inverse_temperature = static_cast<float>(1.0 / params_.temperature);
  scratch.scaled.resize(logits.size());
  for (size_t i = 0; i < logits.size(); ++i)
    scratch.scaled[i] = (logits[i] - max) * inverse_temperature;
  const double share = philox_uniform(*params_.seed, choice_, index, 0);
  const bool top_k = params_.top_k > 0 && params_.top_k < static_cast<int64_t>(logits.size());
  if (top_k || params_.min_p > 0) {
    list_candidates(top_k ? static_cast<size_t>(params_.top_k) : logits.size(), scratch);
    return draw_listed(share, scratch);
  }
  exponentials(scratch);
  const Mass mass(scratch.weights, scratch.sums);
  return params_.top_p < 1.0 ? draw_nucleus(share, mass.total(), scratch) : mass.pick(share);
}

// The `count` most likely of the tokens that survive min_p, most likely first.
void Sampler::list_candidates(size_t count, SamplerScratch& scratch) const {
  // p >= min_p * p_max, that is, (logit - max) / T >= log(min_p).
  const float floor =
      params_.min_p > 0 ? static_cast<float>(std::log(params_.min_p)) : kMinusInfinity;
  std::vector<Candidate>& candidates = scratch.candidates;
  candidates.clear();
  // Usually they are close to the first.
  for (float depth = 8; candidates.size() < count && -depth > floor && depth < 1000; depth *= 4)
    gather(scratch.scaled, -depth, candidates);
  if (candidates.size() < count) gather(scratch.scaled, floor, candidates);
  if (candidates.size() > count) {
    std::nth_element(candidates.begin(), candidates.begin() + static_cast<std::ptrdiff_t>(count),
                     candidates.end(), before);
    candidates.resize(count);
  }
  std::sort(candidates.begin(), candidates.end(), before);
}

// Draws among the candidates, less what top_p leaves out.
int32_t Sampler::draw_listed(double share, SamplerScratch& scratch) const {
  const std::vector<Candidate>& candidates = scratch.candidates;
  double total = 0;
  scratch.weights.clear();
  for (const Candidate& c : candidates) {
    scratch.weights.push_back(std::exp(c.scaled));
    total += scratch.weights.back();
  }
  double mass = 0;
  size_t keep = 0;
  while (keep < candidates.size() && (keep == 0 || mass < params_.top_p * total))
    mass += scratch.weights[keep++];
  double left = share * mass;
  for (size_t rank = 0; rank + 1 < keep; ++rank) {
    left -= scratch.weights[rank];
    if (left < 0) return candidates[rank].id;
  }
  return candidates[keep - 1].id;
}

// Draws among the smallest leading set whose mass reaches top_p of `total`, the mass of all
// weights.
int32_t Sampler::draw_nucleus(double share, double total, SamplerScratch& scratch) const {
  std::vector<Candidate>& candidates = scratch.candidates;
  const auto weight = [&](size_t rank) -> double {
    return scratch.weights[static_cast<size_t>(candidates[rank].id)];
  };
  const double wanted = params_.top_p * total;
  double mass = 0;
  size_t keep = 0;
  for (float depth = 4; keep == 0 || (mass < wanted && depth < 1000); depth *= 2) {
    gather(scratch.scaled, -depth, candidates);
    std::sort(candidates.begin(), candidates.end(), before);
    mass = 0;
    keep = 0;
    while (keep < candidates.size() && (keep == 0 || mass < wanted)) mass += weight(keep++);
  }
  double left = share * mass;
  for (size_t rank = 0; rank + 1 < keep; ++rank) {
    left -= weight(rank);
    if (left < 0) return candidates[rank].id;
  }
  return candidates[keep - 1].id;
}

// weights = exp(scaled)
void Sampler::exponentials(SamplerScratch& scratch) {
  scratch.weights.resize(scratch.scaled.size());
  kernels::exp_shifted(scratch.path, scratch.scaled.data(),
                       static_cast<int64_t>(scratch.scaled.size()), scratch.weights.data());
}

Result<TokenLogprob> Sampler::sample(std::span<const float> logits, uint32_t index,
                                     SamplerScratch& scratch, std::span<const uint32_t> allowed) {
  float max = max_or_nan(logits);
  if (!std::isfinite(max)) {
    const auto at = std::find_if(logits.begin(), logits.end(),
                                 [](float x) { return !std::isfinite(x) && x != kMinusInfinity; });
    return corrupt_data(fmt::format(
        "the model gave {}: its weights or its configuration (rope, norm epsilon, scales) are out "
        "of range; check the files, and `sub8 inspect` what they say",
        at == logits.end() ? "no finite logit"
                           : fmt::format("a logit of {} for token {}", *at, at - logits.begin())));
  }

  std::span<const float> adjusted = logits;
  if (!allowed.empty() || adjusts(index)) {
    scratch.logits.assign(logits.begin(), logits.end());
    adjust(scratch.logits, index, allowed);
    adjusted = scratch.logits;
    max = max_or_nan(adjusted);
    if (max == kMinusInfinity) {
      return invalid_argument(
          fmt::format("no token is left to sample: {}the allowed tokens, bad words, logit_bias and "
                      "min_tokens exclude each other",
                      allowed.empty() ? "" : "the grammar, "));
    }
  }
  const int32_t id = choose(adjusted, max, index, scratch);
  if (counts_answer_) ++answer_counts_[id];
  if (params_.top_logprobs >= 0)
    return token_logprob(scratch.path, logits, id, params_.top_logprobs);
  TokenLogprob out;
  out.id = id;
  return out;
}

}  // namespace sub8::engine
