// The scalar path: the same kernels over plain arrays, for any CPU.
#include "arch/cpu/scalar/vec.h"
#include "kernels/linear/cpu/kernel.h"
#include "kernels/linear/cpu/tables.h"
#include "pack/placement.h"

namespace sub8::linear_cpu {
namespace {
#include "kernels/linear/cpu/gemm.inc"
}  // namespace

const Kernels kScalarKernels = make_kernels<scalar::Vec<32>>();

}  // namespace sub8::linear_cpu
