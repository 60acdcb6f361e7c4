// What an engine counted, as one consistent snapshot. Names in comments are vLLM's metrics, to
// which the fields correspond one to one.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/request.h"

namespace sub8::engine {

// counts[i]: observations in (bounds[i-1], bounds[i]]; counts.back(): those above the last bound.
// Not cumulative.
struct Histogram {
  explicit Histogram(std::vector<double> upper_bounds = {})
      : bounds(std::move(upper_bounds)), counts(bounds.size() + 1) {}
  void observe(double value);

  std::vector<double> bounds;  // ascending
  std::vector<int64_t> counts;
  double sum = 0;
};

struct Stats {
  // `max_model_len` bounds the token histograms.
  explicit Stats(int64_t max_model_len = 0);

  // Gauges. Choices are counted, as vLLM does; one request with n = 3 counts three times.
  int running = 0;            // vllm:num_requests_running
  int waiting = 0;            // vllm:num_requests_waiting, those of the next line included
  int paused = 0;             // of them: the reader is behind, see ServiceOptions::event_capacity,
                              // or their constraint, see TokenConstraint::ready
  int32_t kv_pages = 0;       // all pages
  int32_t kv_pages_used = 0;  // owned by at least one choice
  int32_t kv_pages_cached = 0;  // owned by none, kept for their content; free for the taking
  int32_t kv_pages_free = 0;    // free + cached + used = all
  double kv_usage() const;      // vllm:kv_cache_usage_perc: used / all

  // Counters since start.
  int64_t steps = 0;
  int64_t prompt_tokens =
      0;  // vllm:prompt_tokens: of prompts whose first token came, cached or not
  int64_t cached_prompt_tokens = 0;  // vllm:prompt_tokens_cached: of those, found in the cache
  int64_t generation_tokens = 0;     // vllm:generation_tokens
  int64_t computed_rows = 0;         // rows run, those computed again after preemption included
  int64_t preemptions = 0;           // vllm:num_preemptions
  int64_t prefix_cache_queries = 0;  // vllm:prefix_cache_queries, in tokens
  int64_t prefix_cache_hits = 0;     // vllm:prefix_cache_hits, in tokens
  std::array<int64_t, kFinishReasons> finished{};  // vllm:request_success by FinishReason
  double prompt_seconds = 0;                       // steps that held prompt rows
  double decode_seconds = 0;                       // the other steps
  double model_seconds = 0;                        // of both: inside the model
  double sample_seconds = 0;                       // of both: from logits to tokens and text

  // Histograms, in seconds and tokens, with vLLM's bounds.
  Histogram time_to_first_token;    // vllm:time_to_first_token_seconds
  Histogram inter_token_latency;    // vllm:inter_token_latency_seconds
  Histogram time_per_output_token;  // vllm:request_time_per_output_token_seconds
  Histogram e2e_latency;            // vllm:e2e_request_latency_seconds
  Histogram queue_time;             // vllm:request_queue_time_seconds: arrival .. scheduled
  Histogram inference_time;         // vllm:request_inference_time_seconds: scheduled .. last token
  Histogram prefill_time;           // vllm:request_prefill_time_seconds: scheduled .. first token
  Histogram decode_time;            // vllm:request_decode_time_seconds: first .. last token
  Histogram request_prompt_tokens;  // vllm:request_prompt_tokens
  Histogram request_generation_tokens;  // vllm:request_generation_tokens
  Histogram iteration_tokens;           // vllm:iteration_tokens_total
  Histogram request_params_n;           // vllm:request_params_n
  Histogram request_params_max_tokens;  // vllm:request_params_max_tokens
};

}  // namespace sub8::engine
