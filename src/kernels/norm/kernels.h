// Row kernels of the normalisations; one table per instruction set. No STL here (simd/vec.h).
#pragma once

#include <cstdint>

#include "kernels/simd/table.h"

namespace sub8::kernels {

struct NormKernels {
  // One row: x [n] -> out [n], f32 or bf16. x and an f32 out may be the same memory.
  void (*rms_norm)(const float* x, const float* weight, float eps, bool plus_one, int64_t n,
                   void* out, bool bf16);
  // bias may be null.
  void (*layer_norm)(const float* x, const float* weight, const float* bias, float eps, int64_t n,
                     void* out, bool bf16);
};
SUB8_KERNEL_TABLE(NormKernels, kNorm)

}  // namespace sub8::kernels
