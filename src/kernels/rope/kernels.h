// Head kernel of the rotation. No STL here.
#pragma once

#include <cstdint>

#include "kernels/simd/table.h"

namespace sub8::kernels {

struct RopeKernels {
  // x [2 * half], in place; cos and sin [half].
  void (*rotate)(float* x, const float* cos, const float* sin, int64_t half);
};
SUB8_KERNEL_TABLE(RopeKernels, kRope)

}  // namespace sub8::kernels
