// The kernel tables that each translation unit defines.
#pragma once

#include "kernels/linear/cpu/kernel.h"

namespace sub8::linear_cpu {

extern const Kernels kScalarKernels;
extern const Kernels kAvx2Kernels;
extern const Kernels kAvx512Kernels;
extern const TileFn kAmxKernel;

// Twins over plain arrays with the lane and tile semantics of AVX-512 and AMX.
extern const Kernels kEmulatedAvx512Kernels;
extern const TileFn kEmulatedAmxKernel;

}  // namespace sub8::linear_cpu
