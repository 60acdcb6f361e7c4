// Linear layers with x-bit weights and 16-bit (or f32) activations: Y[M,N] = X[M,K] W[N,K]^T.
//
// Numerics. Products are exact; sums are FP32 in a fixed order that depends on the weight's format,
// shape and path only: never on M, on the other rows, on threads. Per output:
//   "fma" order (scalar, AVX2, AVX-512: the same bits on all three):
//     no block scales:  s = fma(w[k], x[k], s), k ascending
//     block scales:     s as above over one group, then t = fma(scale[g], s, t), g ascending
//     AVX-512 with bf16 activations takes subnormal operands and sums of that order as zero.
//     FP4 rows (kE2M1): the same sums over q*s, where a group's sum over q is exact in integers;
//     the bits are those of bf16 rows of q*s, subnormals excepted (docs/formats/packed_cpu.md).
//   "tile" order (AMX, prompt rows): arch/cpu/scalar/tile.h, 32 values of K a step.
//   y = s * outer_scale (once), then + bias, then + y where accumulating; each rounded.
// w is the element (for AMX: element times block scale) up to a power of two that is taken out
// exactly. Sums whose magnitude leaves 2^-126 .. 2^127 lose what FP32 loses.
//
// Example:
//   AlignedBuffer<std::byte> work = ...uninitialized(linear_workspace_bytes(w, m_max,
//   pool.size())); linear({.x = x, .x_type = ActivationType::kBF16, .x_stride = k, .m = m, .w = &w,
//   .y = y,
//           .y_stride = n}, pool, work.span());
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/thread_pool.h"
#include "pack/linear_cpu.h"

namespace sub8 {

// kE2M1: rows in the weight's own block format (nvfp4 or mxfp4), codes and scale bytes as
// kernels/quantize_act writes them; their alpha is the caller's (LinearArgs::raw_sums).
enum class ActivationType : uint8_t { kBF16, kF16, kF32, kE2M1 };

// Rows at positions inside the prompt, and generated rows. Where the path has kernels of different
// order for them (AMX), the class decides, not M.
enum class RowClass : uint8_t { kPrompt, kGenerated };

struct LinearArgs {
  const void* x = nullptr;  // [m][x_stride] of x_type; null allowed if m == 0
  ActivationType x_type = ActivationType::kBF16;
  int64_t x_stride = 0;               // elements between rows, >= K; kE2M1: bytes, >= ceil(K/2)
  const uint8_t* x_scales = nullptr;  // kE2M1: [m][x_scale_stride], E4M3 or E8M0 as the weight's
  int64_t x_scale_stride = 0;         // >= the weight's groups
  int64_t m = 0;                      // >= 0
  const PackedMatrix* w = nullptr;
  float* y = nullptr;  // [m][y_stride]; may not overlap x
  int64_t y_stride = 0;
  const float* bias = nullptr;  // [N] or null
  bool accumulate = false;      // y += instead of y =
  RowClass row_class = RowClass::kPrompt;
  // The sums themselves: outer scales are not applied. For callers whose activations have scales of
  // their own (kernels/quantize_act: fold). No bias then.
  bool raw_sums = false;
};

// Bytes that `linear` needs for up to m_max rows on a pool of `threads`. Any workspace that is
// large enough (and 64-byte aligned) serves any weight.
size_t linear_workspace_bytes(const PackedMatrix& w, int64_t m_max, int threads);

// Writes rows [0, m) and columns [0, N) of y, nothing else. Allocates nothing. The arguments are
// ours: wrong sizes end the process (SUB8_CHECK). The weight must have been packed for a path that
// this machine has.
void linear(const LinearArgs& args, ThreadPool& pool, std::span<std::byte> workspace);

// What runs, e.g. "linear_e3m2_bf16_avx2_1x32": weights, activations, path, rows x channels of a
// register block.
std::string linear_kernel_id(const PackedMatrix& w, int64_t m,
                             ActivationType x_type = ActivationType::kBF16,
                             RowClass row_class = RowClass::kPrompt);

// Equal ids: equal bits for equal rows, whatever M, threads, or (fma order) path.
uint64_t linear_order_id(const PackedMatrix& w, ActivationType x_type, RowClass row_class);

// Whether rows of this class can be kE2M1: nvfp4 and mxfp4 weights, except where AMX tiles take
// them (those multiply bf16 rows of q*s exactly, without a step per block).
bool linear_takes_e2m1(const PackedMatrix& w, RowClass row_class);

// Whether the weight's path has a kernel for this machine: w.path is available.
bool linear_available(const PackedMatrix& w);

// For measurements: loops over registers with the products of a path, `steps` times the returned
// number of multiply-adds. `x_type` kE2M1: of bytes; else of what bf16 rows are multiplied by.
int64_t linear_peak_loop(CpuPath path, ActivationType x_type, int64_t steps);

// The oracle: double precision, its own decoding of the storage form (reference.cc shares no code
// with format, pack or the kernels). Y and `magnitude` are [m][N], dense; magnitude receives
// sum |w * x| (scales included) + |bias|, from which error bounds follow; null allowed.
void linear_reference(const StoredMatrix& w, const double* x, int64_t m, const float* bias,
                      double* y, double* magnitude);

}  // namespace sub8
