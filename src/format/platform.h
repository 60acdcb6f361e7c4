// What lets the arithmetic of src/format run on a CPU and on a GPU with the same result.
#pragma once

#if defined(__CUDACC__)
#define SUB8_HD __host__ __device__
#else
#define SUB8_HD
#endif

namespace sub8::format {

// FP32 product, sum and difference, each rounded on its own. Host code is built with
// -ffp-contract=off; nvcc would fuse a product and a following sum, which these forbid. Use them
// wherever both occur in one expression.
SUB8_HD constexpr float mul_rn(float a, float b) {
#if defined(__CUDA_ARCH__)
  if (!__builtin_is_constant_evaluated()) return __fmul_rn(a, b);
#endif
  return a * b;
}
SUB8_HD constexpr float add_rn(float a, float b) {
#if defined(__CUDA_ARCH__)
  if (!__builtin_is_constant_evaluated()) return __fadd_rn(a, b);
#endif
  return a + b;
}
SUB8_HD constexpr float sub_rn(float a, float b) { return add_rn(a, -b); }

}  // namespace sub8::format
