// Row kernels of the elementwise operations and of the activations' plumbing. No STL here.
#pragma once

#include <cstdint>

#include "kernels/simd/table.h"

namespace sub8::kernels {

struct ElementwiseKernels {
  void (*add)(float* x, const float* y, int64_t n);
  void (*convert)(const float* x, int64_t n, void* out, bool bf16);
};
SUB8_KERNEL_TABLE(ElementwiseKernels, kElementwise)

}  // namespace sub8::kernels
