#include "engine/sampling_params.h"

#include <cmath>

#include <fmt/format.h>

#include "text/utf8.h"

namespace sub8::engine {
namespace {

Status require_range(const char* field, double value, double low, double high) {
  if (std::isfinite(value) && value >= low && value <= high) return {};
  return invalid_argument(
      fmt::format("{} must be between {} and {}, got {}", field, low, high, value));
}

Status check_ids(const char* field, const std::vector<int32_t>& ids, int64_t vocab_size) {
  for (const int32_t id : ids) {
    if (id < 0 || id >= vocab_size)
      return invalid_argument(
          fmt::format("{}: {} is not a token id below {}", field, id, vocab_size));
  }
  return {};
}

}  // namespace

Status validate(const SamplingParams& p, int64_t vocab_size) {
  SUB8_RETURN_IF_ERROR(require_range("temperature", p.temperature, 0.0, 100.0));
  SUB8_RETURN_IF_ERROR(require_range("top_p", p.top_p, 0.0, 1.0));
  SUB8_RETURN_IF_ERROR(require_range("min_p", p.min_p, 0.0, 1.0));
  SUB8_RETURN_IF_ERROR(require_range("presence_penalty", p.presence_penalty, -2.0, 2.0));
  SUB8_RETURN_IF_ERROR(require_range("frequency_penalty", p.frequency_penalty, -2.0, 2.0));
  if (!std::isfinite(p.repetition_penalty) || p.repetition_penalty <= 0) {
    return invalid_argument(
        fmt::format("repetition_penalty must be above 0, got {}", p.repetition_penalty));
  }
  if (p.top_k < -1)
    return invalid_argument(
        fmt::format("top_k must be -1 or 0 (off) or positive, got {}", p.top_k));
  if (p.max_tokens && *p.max_tokens < 0) {
    return invalid_argument(fmt::format("max_tokens must not be negative, got {}", *p.max_tokens));
  }
  if (p.min_tokens < 0 || (p.max_tokens && p.min_tokens > *p.max_tokens)) {
    return invalid_argument(
        fmt::format("min_tokens must be between 0 and max_tokens, got {}", p.min_tokens));
  }
  if (p.top_logprobs < -1 || p.top_logprobs > kMaxTopLogprobs) {
    return invalid_argument(fmt::format("top_logprobs must be between 0 and {}, got {}",
                                        kMaxTopLogprobs, p.top_logprobs));
  }
  for (const std::string& stop : p.stop) {
    if (stop.empty()) return invalid_argument("a stop string must not be empty");
    SUB8_RETURN_IF_ERROR(check_utf8(stop, "a stop string"));
  }
  SUB8_RETURN_IF_ERROR(check_ids("stop_token_ids", p.stop_token_ids, vocab_size));
  SUB8_RETURN_IF_ERROR(check_ids("allowed_token_ids", p.allowed_token_ids, vocab_size));
  for (const std::vector<int32_t>& run : p.banned_runs) {
    if (run.empty()) return invalid_argument("banned_runs: a run must have at least one token");
    SUB8_RETURN_IF_ERROR(check_ids("banned_runs", run, vocab_size));
  }
  for (const auto& [id, bias] : p.logit_bias) {
    if (id < 0 || id >= vocab_size) {
      return invalid_argument(
          fmt::format("logit_bias: {} is not a token id below {}", id, vocab_size));
    }
    SUB8_RETURN_IF_ERROR(require_range("logit_bias", bias, -100.0, 100.0));
  }
  return {};
}

}  // namespace sub8::engine
