#include "kernels/sample/kernels.h"
#include "kernels/simd/math.h"
#include "kernels/simd/vec.h"

namespace sub8::kernels::SUB8_SIMD_NAMESPACE {
namespace {

float max_of(const float* x, int64_t n) {
  Vec best = set1(-__builtin_inff());
  for_vectors(n, [&](int64_t i, int lanes) {
    const Vec v = keep_lanes(load_piece<F32Element>(x + i, lanes), 0, lanes, -__builtin_inff());
    best = max(v, best);  // the second operand survives a NaN in the first
  });
  return reduce_max(best);
}

double exp_sum(const float* x, int64_t n, float shift, float* out) {
  const Vec offset = set1(shift);
  double sum = 0;
  for_vectors(n, [&](int64_t i, int lanes) {
    const Vec v = load_piece<F32Element>(x + i, lanes);
    const Vec e = keep_lanes(exp(sub(v, offset)), 0, lanes, 0.0f);
    sum += reduce_add_double(e);
    if (out != nullptr) store_piece<F32Element>(out + i, e, lanes);
  });
  return sum;
}

}  // namespace

const LogitKernels kLogits = {max_of, exp_sum};

}  // namespace sub8::kernels::SUB8_SIMD_NAMESPACE
