#include "kernels/linear/emulated.h"

#include "kernels/linear/cpu/tables.h"

namespace sub8 {

void linear_emulated(const LinearArgs& args, ThreadPool& pool, std::span<std::byte> workspace) {
  linear_cpu::run_linear(args, pool, workspace,
                         {&linear_cpu::kEmulatedAvx512Kernels, &linear_cpu::kEmulatedAmxKernel});
}

}  // namespace sub8
