#include "kernels/sample/logits.h"

#include <cmath>
#include <limits>

#include "base/check.h"
#include "kernels/sample/kernels.h"

namespace sub8::kernels {

int64_t argmax(CpuPath path, const float* logits, int64_t n) {
  SUB8_CHECK_GE(n, 1);
  const float best = SUB8_PICK_KERNELS(path, kLogits).max(logits, n);
  for (int64_t i = 0; i < n; ++i) {
    if (logits[i] == best) return i;
  }
  return 0;  // nothing but NaN
}

double log_sum_exp(CpuPath path, const float* logits, int64_t n) {
  SUB8_CHECK_GE(n, 1);
  const LogitKernels& kernels = SUB8_PICK_KERNELS(path, kLogits);
  const float best = kernels.max(logits, n);
  if (std::isinf(best)) return best;
  return best + std::log(kernels.exp_sum(logits, n, best, nullptr));
}

double exp_shifted(CpuPath path, const float* logits, int64_t n, float* out) {
  SUB8_CHECK_GE(n, 1);
  const LogitKernels& kernels = SUB8_PICK_KERNELS(path, kLogits);
  return kernels.exp_sum(logits, n, kernels.max(logits, n), out);
}

}  // namespace sub8::kernels
