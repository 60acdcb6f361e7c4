// Epilogue: from raw FP32 sums to Y. Switches are run-time values.
//
// y = sum * fl(token_scale * multiplier) [+ bias] [+ residual], in that order, then the output
// cast. With fold the sums of rows 2i and 2i+1 are added first; they lie in one thread
// (d_coordinate).
#pragma once

#include "arch/cuda/ptx/arith.cuh"
#include "arch/cuda/ptx/copy.cuh"
#include "kernels/linear/cuda/params.h"

namespace sub8::kernels::linear {

__device__ __forceinline__ float half_to_float(OutputType type, uint16_t bits) {
  return type == OutputType::kF16 ? format::f16_to_float(bits) : format::bf16_to_float(bits);
}

__device__ __forceinline__ float read_value(const void* base, OutputType type, int64_t index) {
  if (type == OutputType::kF32) return static_cast<const float*>(base)[index];
  return half_to_float(type, static_cast<const uint16_t*>(base)[index]);
}

__device__ __forceinline__ uint32_t round_two(OutputType type, float low, float high) {
  return type == OutputType::kF16 ? ptx::round_pair<format::Half::kF16>(low, high)
                                  : ptx::round_pair<format::Half::kBF16>(low, high);
}

// One output channel and its factors.
struct Channel {
  int32_t n;
  float multiplier;
  float bias;
};

__device__ __forceinline__ Channel make_channel(const RingParams& p, int32_t n) {
  const bool inside = n < p.n;
  return {n, inside ? p.multipliers[n] : 0.0f, inside && p.bias != nullptr ? p.bias[n] : 0.0f};
}
// Brings what make_channel reads near: it is needed at a tile's end, and registers are few until
// then.
__device__ __forceinline__ void prefetch_channel(const RingParams& p, int32_t n) {
  if (n >= p.n) return;
  ptx::prefetch_l2(p.multipliers + n);
  if (p.bias != nullptr) ptx::prefetch_l2(p.bias + n);
}

__device__ __forceinline__ float finish(const RingParams& p, const Channel& c, int32_t row,
                                        float token_scale, float sum) {
  float y = __fmul_rn(sum, __fmul_rn(token_scale, c.multiplier));
  if (p.bias != nullptr) y = __fadd_rn(y, c.bias);
  if (p.residual != nullptr)
    y = __fadd_rn(y, read_value(p.residual, p.output, row * p.ld_residual + c.n));
  return y;
}

__device__ __forceinline__ void store_one(const RingParams& p, int32_t row, int32_t n, float y) {
  const int64_t index = row * p.ldy + n;
  if (p.output == OutputType::kF32) {
    static_cast<float*>(p.y)[index] = y;
  } else {
    static_cast<uint16_t*>(p.y)[index] = static_cast<uint16_t>(round_two(p.output, y, 0.0f));
  }
}

// Any combination of switches, one value at a time. Rare, so small rather than fast: unrolled, it
// would make up three quarters of the kernel's code.
template <int Tokens>
__device__ __forceinline__ void write_general(const RingParams& p, Channel low, Channel high,
                                              int32_t m0, const float* d) {
  const int l = threadIdx.x % 4;
#pragma unroll 1
  for (int i = 0; i < Tokens / 2; ++i) {
    const int32_t row = m0 + 8 * (i / 4) + 2 * l + (i & 1);
    const Channel& c = (i & 2) != 0 ? high : low;
    if (row >= p.m || c.n >= p.n) continue;
    if (p.fold != 0) {
      if ((i & 1) != 0) continue;
      const float scale = p.token_scales != nullptr ? p.token_scales[row / 2] : 1.0f;
      store_one(p, row / 2, c.n, finish(p, c, row / 2, scale, __fadd_rn(d[i], d[i + 1])));
    } else {
      const float scale = p.token_scales != nullptr ? p.token_scales[row] : 1.0f;
      store_one(p, row, c.n, finish(p, c, row, scale, d[i]));
    }
  }
}

// Writes the accumulators of one warp's 16 channels (g and g + 8 of them: `channels`) by Tokens
// rows. All lanes take part.
template <int Tokens>
__device__ void write_tile(const RingParams& p, const Channel (&channels)[2], int32_t m0,
                           const float (&d)[Tokens / 2]) {
  const int g = threadIdx.x % 32 / 4;
  const int l = threadIdx.x % 4;
  const Channel& low = channels[0];
  const Channel& high = channels[1];
  const bool general = p.fold != 0 || p.token_scales != nullptr || p.residual != nullptr ||
                       p.output == OutputType::kF32 || (p.ldy & 1) != 0 || (p.n & 1) != 0 ||
                       (reinterpret_cast<uintptr_t>(p.y) & 3) != 0;
  if (general) {
    float copy[Tokens / 2];
#pragma unroll
    for (int i = 0; i < Tokens / 2; ++i) copy[i] = d[i];
    write_general<Tokens>(p, low, high, m0, copy);
    return;
  }
  // Pairs of channels as one 32-bit store: after the transposition lane (g, l) holds token 8j + g,
  // channels 2l and 2l + 1 of each eight.
  const int32_t n = low.n - g + 2 * l;
  const bool write_low = n < p.n;
  const bool write_high = n + 8 < p.n;
  uint16_t* out = static_cast<uint16_t*>(p.y) + (m0 + g) * p.ldy + n;
#pragma unroll
  for (int j = 0; j < Tokens / 8; ++j) {
    if (m0 + 8 * j >= p.m) break;
    float y[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const Channel& c = i < 2 ? low : high;
      y[i] = __fmul_rn(d[4 * j + i], c.multiplier);
      if (p.bias != nullptr) y[i] = __fadd_rn(y[i], c.bias);
    }
    const uint32_t first = ptx::transpose_8x8(round_two(p.output, y[0], y[1]));
    const uint32_t second = ptx::transpose_8x8(round_two(p.output, y[2], y[3]));
    if (m0 + 8 * j + g < p.m) {
      if (write_low) *reinterpret_cast<uint32_t*>(out) = first;
      if (write_high) *reinterpret_cast<uint32_t*>(out + 8) = second;
    }
    out += 8 * p.ldy;
  }
}

}  // namespace sub8::kernels::linear
