// Chooses the next token of one sequence from its logits.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/error.h"
#include "engine/request.h"
#include "engine/sampling_params.h"

namespace sub8::engine {

// Order, as in vLLM: bias, minimum length, penalties, temperature, min_p, top_k, top_p. Equal
// logits rank by token id. At least one token always survives. State is this sequence's own: a
// neighbour cannot change a result.
class Sampler {
 public:
  // `params` must be valid and have a seed. `end_ids` are not sampled before min_tokens.
  // `choice`: which of the request's parallel answers.
  Sampler(SamplingParams params, std::span<const int32_t> prompt, std::vector<int32_t> end_ids,
          uint32_t choice = 0);

  // The token for position `index` of the answer (0 for the first). Logits that are NaN, or all
  // -infinity, are an error.
  Result<TokenLogprob> sample(std::span<const float> logits, uint32_t index);

  const SamplingParams& params() const { return params_; }

 private:
  struct Candidate {
    float logit;
    int32_t id;
  };
  void apply_penalties(uint32_t index);
  int32_t choose(uint32_t index);

  SamplingParams params_;
  std::vector<int32_t> end_ids_;
  uint32_t choice_;
  std::unordered_map<int32_t, int32_t> answer_counts_;
  std::unordered_map<int32_t, int32_t>
      prompt_counts_;  // filled only when repetition_penalty is in use
  std::vector<float> logits_;
  std::vector<Candidate> candidates_;
};

// A seed from the operating system for requests without one.
uint64_t draw_seed();

}  // namespace sub8::engine
