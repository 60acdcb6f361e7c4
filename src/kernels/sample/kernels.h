// Kernels over one row of logits. No STL here.
#pragma once

#include <cstdint>

#include "kernels/simd/table.h"

namespace sub8::kernels {

struct LogitKernels {
  // The greatest value; NaN is skipped; -inf if there is nothing else.
  float (*max)(const float* x, int64_t n);
  // Sum of exp(x[i] - shift) in double; out[i] gets the terms unless out is null.
  double (*exp_sum)(const float* x, int64_t n, float shift, float* out);
};
SUB8_KERNEL_TABLE(LogitKernels, kLogits)

}  // namespace sub8::kernels
