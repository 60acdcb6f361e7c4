// Row kernels of the activation functions. No STL here.
#pragma once

#include <cstdint>

#include "kernels/activation/names.h"
#include "kernels/simd/table.h"

namespace sub8::kernels {

struct ActivationKernels {
  // out[i] = f(x[i]) * up[i]; up null: no factor.
  void (*activate)(Activation f, const float* x, const float* up, int64_t n, void* out, bool bf16);
};
SUB8_KERNEL_TABLE(ActivationKernels, kActivation)

// Elementary functions over arrays, for their own tests.
struct MathKernels {
  void (*exp)(const float* x, int64_t n, float* out);
  void (*tanh)(const float* x, int64_t n, float* out);
};
SUB8_KERNEL_TABLE(MathKernels, kMath)

}  // namespace sub8::kernels
