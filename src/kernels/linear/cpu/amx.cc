// Compiled with the AVX-512 and AMX flags: no standard library, no shared inline functions here.
#include "arch/cpu/amx/tile.h"
#include "arch/cpu/avx512/vec.h"
#include "kernels/linear/cpu/kernel.h"
#include "kernels/linear/cpu/tables.h"
#include "pack/placement.h"

namespace sub8::linear_cpu {
namespace {
#include "kernels/linear/cpu/gemm.inc"
#include "kernels/linear/cpu/tile_gemm.inc"
}  // namespace

const TileFn kAmxKernel = &tile_kernel<avx512::Vec, amx::Tiles>;

}  // namespace sub8::linear_cpu
