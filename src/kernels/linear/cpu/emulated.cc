// The emulated twins of the AVX-512 and AMX kernels, for tests on machines that lack them.
#include "arch/cpu/scalar/tile.h"
#include "arch/cpu/scalar/vec.h"
#include "kernels/linear/cpu/kernel.h"
#include "kernels/linear/cpu/tables.h"
#include "pack/placement.h"

namespace sub8::linear_cpu {
namespace {
#include "kernels/linear/cpu/gemm.inc"
#include "kernels/linear/cpu/tile_gemm.inc"
}  // namespace

const Kernels kEmulatedAvx512Kernels = make_kernels<scalar::Vec<64>>();
const TileFn kEmulatedAmxKernel = &tile_kernel<scalar::Vec<64>, scalar::Tiles>;

}  // namespace sub8::linear_cpu
