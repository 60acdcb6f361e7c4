// Compiled with the AVX-512 flags: no standard library, no shared inline functions here.
#include "arch/cpu/avx512/vec.h"
#include "kernels/linear/cpu/kernel.h"
#include "kernels/linear/cpu/tables.h"
#include "pack/placement.h"

namespace sub8::linear_cpu {
namespace {
#include "kernels/linear/cpu/gemm.inc"
}  // namespace

const Kernels kAvx512Kernels = make_kernels<avx512::Vec>();

}  // namespace sub8::linear_cpu
