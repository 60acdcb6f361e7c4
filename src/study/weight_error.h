// How far a checkpoint's weights are from another's, matrix by matrix.
#pragma once

#include <string>
#include <vector>

#include "base/error.h"
#include "base/thread_pool.h"
#include "checkpoint/weight_source.h"

namespace sub8::study {

struct WeightError {
  std::string module;
  std::string format;
  double nmse = 0;  // sum (w - w_ref)^2 / sum w_ref^2, in double; 0/0 counts as 0
};

// For every matrix of `source` that is stored in another format than in `reference`.
Result<std::vector<WeightError>> weight_errors(const checkpoint::WeightSource& source,
                                               const checkpoint::WeightSource& reference,
                                               ThreadPool& pool);

}  // namespace sub8::study
