#include "kernels/elementwise/kernels.h"
#include "kernels/simd/vec.h"

namespace sub8::kernels::SUB8_SIMD_NAMESPACE {
namespace {

void add_row(float* x, const float* y, int64_t n) {
  for_vectors(n, [&](int64_t i, int lanes) {
    const Vec sum = add(load_piece<F32Element>(x + i, lanes), load_piece<F32Element>(y + i, lanes));
    store_piece<F32Element>(x + i, sum, lanes);
  });
}

void convert_row(const float* x, int64_t n, void* out, bool bf16) {
  for_vectors(n, [&](int64_t i, int lanes) {
    const Vec v = load_piece<F32Element>(x + i, lanes);
    if (bf16) {
      store_piece<Bf16Element>(static_cast<uint16_t*>(out) + i, v, lanes);
    } else {
      store_piece<F32Element>(static_cast<float*>(out) + i, v, lanes);
    }
  });
}

}  // namespace

const ElementwiseKernels kElementwise = {add_row, convert_row};

}  // namespace sub8::kernels::SUB8_SIMD_NAMESPACE
