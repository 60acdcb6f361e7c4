// Figures from samples: percentiles, rates, failures; as JSON (docs/bench_serve.md).
#pragma once

#include <map>
#include <string>
#include <vector>

#include <boost/json.hpp>

#include "load/driver.h"

namespace sub8::load {

// Of no values: all zero, count 0.
struct Distribution {
  int64_t count = 0;
  double mean = 0, min = 0, p50 = 0, p90 = 0, p95 = 0, p99 = 0, max = 0;
};
// Percentiles by linear interpolation between the closest ranks, as numpy's default.
Distribution distribution(std::vector<double> values);

struct FailureGroup {
  int64_t count = 0;
  std::string example;  // the first one's message
};

struct Report {
  int64_t requests = 0;
  int64_t completed = 0;
  std::map<std::string, FailureGroup> failures;  // by failure_name
  int64_t wrong_length = 0;  // completed with another number of tokens than was asked for
  int64_t uncounted = 0;     // completed without a usage: events were counted as tokens
  double seconds = 0;
  double wait_seconds = 0;
  int peak = 0;
  int64_t prompt_tokens = 0, output_tokens = 0;  // of the completed ones
  Distribution first_token, token, gap, total;   // TTFT, TPOT, ITL, E2E; seconds

  double requests_per_second() const;
  double output_tokens_per_second() const;
  double tokens_per_second() const;  // prompt and output
};

Report summarize(const RunResult& run, const Workload& workload);
boost::json::object to_json(const Report& report);

}  // namespace sub8::load
