// Puts a server under load and collects what its clients see.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/error.h"
#include "load/sample.h"
#include "load/target.h"
#include "load/workload.h"

namespace sub8::load {

struct RunResult {
  std::vector<Sample> samples;  // in order of arrival
  double seconds = 0;           // from the first start to the last end
  double wait_seconds = 0;      // sum over requests: held back by the concurrency limit
  int peak = 0;                 // requests under way at once
};

// Called on the driver's thread: requests that are over, of how many.
using ProgressFn = std::function<void(int64_t done, int64_t total)>;

// The id of the first model that the server lists.
Result<std::string> discover_model(const Target& target);

// Warm-up, then the measured requests, on one thread. What servers do wrong is in the samples; an
// error is an interrupt, or a server that cannot tell how long a text is.
Result<RunResult> run_load(const Target& target, const Workload& workload,
                           const ProgressFn& progress);

}  // namespace sub8::load
