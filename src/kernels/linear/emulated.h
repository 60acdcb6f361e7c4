// For tests (library kernels_linear_emulated): linear() with the twins over plain arrays of the
// AVX-512 and AMX kernels in the place of the real ones. Same layouts, same order.
#pragma once

#include "kernels/linear/cpu/kernel.h"
#include "kernels/linear/op.h"

namespace sub8 {

void linear_emulated(const LinearArgs& args, ThreadPool& pool, std::span<std::byte> workspace);

namespace linear_cpu {

// What the paths kAvx512 and kAmx run.
struct WideKernels {
  const Kernels* avx512 = nullptr;
  const TileFn* amx = nullptr;
};

void run_linear(const LinearArgs& args, ThreadPool& pool, std::span<std::byte> workspace,
                const WideKernels& wide);

}  // namespace linear_cpu
}  // namespace sub8
