// Chooses the next token of one sequence from its logits.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/cpu.h"
#include "base/error.h"
#include "engine/request.h"
#include "engine/sampling_params.h"

namespace sub8::engine {

// Working memory of sample(): one per thread, kept between calls.
struct SamplerScratch {
  struct Candidate {
    float scaled;
    int32_t id;
  };
  CpuPath path = CpuPath::kScalar;  // of the exponentials
  std::vector<float> logits;        // adjusted, where anything is to be adjusted
  std::vector<float> scaled;        // (logit - max) / temperature
  std::vector<float> weights;       // their exponentials
  std::vector<double> sums;
  std::vector<Candidate> candidates;
  std::vector<uint32_t> allowed;  // for callers that have a TokenConstraint
};

// Order, as in vLLM: allowed tokens, bias, minimum length, penalties, temperature, min_p, top_k,
// top_p. Equal
// logits rank by token id. At least one token always survives. State is this sequence's own: a
// neighbour cannot change a result.
class Sampler {
 public:
  // `params` must be valid and have a seed. `end_ids` are not sampled before min_tokens.
  // `choice`: which of the request's parallel answers.
  Sampler(SamplingParams params, std::span<const int32_t> prompt, std::vector<int32_t> end_ids,
          uint32_t choice = 0);

  // The token for position `index` of the answer (0 for the first). `allowed`: one bit per token as
  // in TokenConstraint; empty: all. Logits that are NaN, or all -infinity, are an error, and so is
  // a request that leaves no token.
  Result<TokenLogprob> sample(std::span<const float> logits, uint32_t index,
                              SamplerScratch& scratch, std::span<const uint32_t> allowed = {});

  const SamplingParams& params() const { return params_; }

 private:
  bool adjusts(uint32_t index) const;
  void adjust(std::vector<float>& logits, uint32_t index, std::span<const uint32_t> allowed) const;
  int32_t choose(std::span<const float> logits, float max, uint32_t index,
                 SamplerScratch& scratch) const;
  void list_candidates(size_t count, SamplerScratch& scratch) const;
  int32_t draw_listed(double share, SamplerScratch& scratch) const;
  int32_t draw_nucleus(double share, double total, SamplerScratch& scratch) const;
  static void exponentials(SamplerScratch& scratch);

  SamplingParams params_;
  std::vector<int32_t> end_ids_;
  uint32_t choice_;
  bool counts_answer_ = false;  // some penalty asks for it
  std::unordered_map<int32_t, int32_t> answer_counts_;
  std::unordered_map<int32_t, int32_t>
      prompt_counts_;  // filled only when repetition_penalty is in use
};

// Log-probability of `token` under softmax(logits), and the `top` most likely tokens (0: none).
TokenLogprob token_logprob(CpuPath path, std::span<const float> logits, int32_t token, int top);

// A seed from the operating system for requests without one.
uint64_t draw_seed();

}  // namespace sub8::engine
