// Compiled with -mavx2 -mfma -mf16c: no standard library, no shared inline functions here.
#include "arch/cpu/avx2/vec.h"
#include "kernels/linear/cpu/kernel.h"
#include "kernels/linear/cpu/tables.h"
#include "pack/placement.h"

namespace sub8::linear_cpu {
namespace {
#include "kernels/linear/cpu/gemm.inc"
}  // namespace

const Kernels kAvx2Kernels = make_kernels<avx2::Vec>();

}  // namespace sub8::linear_cpu
