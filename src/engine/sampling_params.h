// What a request may say about sampling and stopping, and its validation. Field meanings follow the
// OpenAI API and vLLM.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"

namespace sub8::engine {

inline constexpr int kMaxTopLogprobs = 20;

struct SamplingParams {
  double temperature = 1.0;         // 0 = greedy
  int64_t top_k = 0;                // 0 and -1 = off
  double top_p = 1.0;               // 0 keeps the most likely token only
  double min_p = 0.0;               // relative to the most likely token
  double repetition_penalty = 1.0;  // over prompt and answer, > 0
  double presence_penalty = 0.0;    // over the answer, -2..2
  double frequency_penalty = 0.0;   // over the answer, -2..2
  std::vector<std::pair<int32_t, float>> logit_bias;
  std::vector<int32_t> allowed_token_ids;  // nothing else is sampled; empty: no limit
  // Answers never contain one of these runs of tokens.
  std::vector<std::vector<int32_t>> banned_runs;
  std::optional<uint64_t> seed;  // drawn when absent

  std::optional<int64_t> max_tokens;  // absent: up to the context limit
  // End tokens and stop tokens are not sampled, stop strings not looked for, before.
  int64_t min_tokens = 0;
  std::vector<std::string> stop;   // the answer ends before the first of them
  bool include_stop_text = false;  // ... or behind it
  std::vector<int32_t> stop_token_ids;
  bool ignore_eos = false;

  int top_logprobs = -1;  // -1: none; 0: the chosen token's; n: and the n most likely
};

// Checks every range; `vocab_size` limits token ids. The message names the field, the range and the
// value.
Status validate(const SamplingParams& params, int64_t vocab_size);

}  // namespace sub8::engine
