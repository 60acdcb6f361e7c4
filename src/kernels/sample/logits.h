// Reductions over one row of logits. The filters and the draw are the engine's.
#pragma once

#include <cstdint>

#include "base/cpu.h"

namespace sub8::kernels {

// The lowest index of the greatest logit; NaN counts as less than everything. n >= 1.
int64_t argmax(CpuPath path, const float* logits, int64_t n);

// log(sum(exp(logits))): exponentials in FP32, summed in double. -inf for all -inf. n >= 1.
double log_sum_exp(CpuPath path, const float* logits, int64_t n);

// out[i] = exp(logits[i] - max) in FP32; returns the sum, in double. `out` may be `logits`.
double exp_shifted(CpuPath path, const float* logits, int64_t n, float* out);

}  // namespace sub8::kernels
