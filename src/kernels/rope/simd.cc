#include "kernels/rope/kernels.h"
#include "kernels/simd/vec.h"

namespace sub8::kernels::SUB8_SIMD_NAMESPACE {
namespace {

// Products are rounded before the sum, as in the formula x * cos + rotated(x) * sin.
void rotate(float* x, const float* cos, const float* sin, int64_t half) {
  for_vectors(half, [&](int64_t i, int lanes) {
    const Vec a = load_piece<F32Element>(x + i, lanes);
    const Vec b = load_piece<F32Element>(x + half + i, lanes);
    const Vec c = load_piece<F32Element>(cos + i, lanes);
    const Vec s = load_piece<F32Element>(sin + i, lanes);
    store_piece<F32Element>(x + i, sub(mul(a, c), mul(b, s)), lanes);
    store_piece<F32Element>(x + half + i, add(mul(b, c), mul(a, s)), lanes);
  });
}

}  // namespace

const RopeKernels kRope = {rotate};

}  // namespace sub8::kernels::SUB8_SIMD_NAMESPACE
