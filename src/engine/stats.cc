#include "engine/stats.h"

#include <algorithm>

namespace sub8::engine {
namespace {

const std::vector<double> kFirstTokenSeconds = {.001, .005, .01, .02, .04, .06, .08, .1,
                                                .25,  .5,   .75, 1,   2.5, 5,   7.5, 10,
                                                20,   40,   80,  160, 640, 2560};
const std::vector<double> kTokenSeconds = {.01, .025, .05, .075, .1,  .15, .2, .3, .4, .5,
                                           .75, 1,    2.5, 5,    7.5, 10,  20, 40, 80};
const std::vector<double> kRequestSeconds = {.3, .5, .8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
                                             30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680};

// 1, 2, 5, 10, 20, 50, ... up to `max`.
std::vector<double> decades(double max) {
  std::vector<double> out;
  for (double decade = 1; decade <= max; decade *= 10) {
    for (const double digit : {1, 2, 5}) {
      if (digit * decade <= max) out.push_back(digit * decade);
    }
  }
  return out;
}

}  // namespace

void Histogram::observe(double value) {
  const auto it = std::lower_bound(bounds.begin(), bounds.end(), value);
  ++counts[static_cast<size_t>(it - bounds.begin())];
  sum += value;
}

Stats::Stats(int64_t max_model_len)
    : time_to_first_token(kFirstTokenSeconds),
      inter_token_latency(kTokenSeconds),
      time_per_output_token(kTokenSeconds),
      e2e_latency(kRequestSeconds),
      queue_time(kRequestSeconds),
      inference_time(kRequestSeconds),
      prefill_time(kRequestSeconds),
      decode_time(kRequestSeconds),
      request_prompt_tokens(decades(static_cast<double>(max_model_len))),
      request_generation_tokens(decades(static_cast<double>(max_model_len))),
      iteration_tokens({1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384}),
      request_params_n({1, 2, 5, 10, 20}),
      request_params_max_tokens(decades(static_cast<double>(max_model_len))) {}

double Stats::kv_usage() const {
  return kv_pages > 0 ? static_cast<double>(kv_pages_used) / kv_pages : 0;
}

}  // namespace sub8::engine
