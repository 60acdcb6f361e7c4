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

__device__ __forceinline__ float token_scale(const RingParams& p, int32_t row, int32_t rows) {
  return p.token_scales != nullptr && row < rows ? p.token_scales[row] : 1.0f;
}
// A value of a tile without residual.
__device__ __forceinline__ float scale_and_bias(const RingParams& p, const Channel& c,
                                                float token_scale, float sum) {
  const float y = __fmul_rn(sum, __fmul_rn(token_scale, c.multiplier));
  return p.bias != nullptr ? __fadd_rn(y, c.bias) : y;
}

// Pairs of channels as one 32-bit store: after a transposition of 8 channels x 8 columns, lane
// (g, l) holds column g, channels 2l and 2l + 1 of each eight.
struct PairStore {
  uint16_t* out;  // of this lane's channels in row 0
  bool low, high;

  __device__ PairStore(const RingParams& p, const Channel& first) {
    const int g = threadIdx.x % 32 / 4;
    const int l = threadIdx.x % 4;
    const int32_t n = first.n - g + 2 * l;
    out = static_cast<uint16_t*>(p.y) + n;
    low = n < p.n, high = n + 8 < p.n;
  }
  // y: columns 2l and 2l + 1 of channel g, then of g + 8.
  __device__ void write(const RingParams& p, const float (&y)[4], int32_t row, int32_t rows) const {
    const uint32_t first = ptx::transpose_8x8(round_two(p.output, y[0], y[1]));
    const uint32_t second = ptx::transpose_8x8(round_two(p.output, y[2], y[3]));
    if (row >= rows) return;
    if (low) *reinterpret_cast<uint32_t*>(out + row * p.ldy) = first;
    if (high) *reinterpret_cast<uint32_t*>(out + row * p.ldy + 8) = second;
  }
};

template <int Tokens>
__device__ __forceinline__ void write_pairs(const RingParams& p, const Channel (&channels)[2],
                                            int32_t m0, const float (&d)[Tokens / 2]) {
  const int g = threadIdx.x % 32 / 4;
  const int l = threadIdx.x % 4;
  const PairStore store(p, channels[0]);
#pragma unroll
  for (int j = 0; j < Tokens / 8; ++j) {
    const int32_t row = m0 + 8 * j;
    if (row >= p.m) break;
    const float scales[2] = {token_scale(p, row + 2 * l, p.m),
                             token_scale(p, row + 2 * l + 1, p.m)};
    float y[4];
#pragma unroll
    for (int i = 0; i < 4; ++i)
      y[i] = scale_and_bias(p, channels[i / 2], scales[i % 2], d[4 * j + i]);
    store.write(p, y, row + g, p.m);
  }
}

// The same with fold. Sixteen rows of X give eight of Y: column 2l is row l of the first four,
// column 2l + 1 row l of the others.
template <int Tokens>
__device__ __forceinline__ void write_folded_pairs(const RingParams& p,
                                                   const Channel (&channels)[2], int32_t m0,
                                                   const float (&d)[Tokens / 2]) {
  const int g = threadIdx.x % 32 / 4;
  const int l = threadIdx.x % 4;
  const PairStore store(p, channels[0]);
  const int32_t rows = p.m / 2;
#pragma unroll
  for (int j = 0; j < Tokens / 8; j += 2) {
    const int32_t row = m0 / 2 + 4 * j;
    if (row >= rows) break;
    const float scales[2] = {token_scale(p, row + l, rows), token_scale(p, row + 4 + l, rows)};
    float y[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float* pair = d + 4 * (j + i % 2) + i / 2 * 2;
      y[i] = scale_and_bias(p, channels[i / 2], scales[i % 2], __fadd_rn(pair[0], pair[1]));
    }
    store.write(p, y, row + 4 * (g % 2) + g / 2, rows);
  }
}

// Writes the accumulators of one warp's 16 channels (g and g + 8 of them: `channels`) by Tokens
// rows. All lanes take part.
template <int Tokens>
__device__ void write_tile(const RingParams& p, const Channel (&channels)[2], int32_t m0,
                           const float (&d)[Tokens / 2]) {
  const bool general = (p.fold != 0 && Tokens % 16 != 0) || p.residual != nullptr ||
                       p.output == OutputType::kF32 || (p.ldy & 1) != 0 || (p.n & 1) != 0 ||
                       (reinterpret_cast<uintptr_t>(p.y) & 3) != 0;
  if (general) {
    float copy[Tokens / 2];
#pragma unroll
    for (int i = 0; i < Tokens / 2; ++i) copy[i] = d[i];
    write_general<Tokens>(p, channels[0], channels[1], m0, copy);
  } else if (p.fold == 0) {
    write_pairs<Tokens>(p, channels, m0, d);
  } else if constexpr (Tokens % 16 == 0) {
    write_folded_pairs<Tokens>(p, channels, m0, d);
  }
}

}  // namespace sub8::kernels::linear
