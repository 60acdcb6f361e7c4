// The mma.sync m16n8k16 atom. Per warp its fragment maps of A and D are those of wgmma
// (sm90a/map.h): the map of one warp's 16 rows.
#pragma once

#include "arch/cuda/ptx/mma.cuh"
#include "format/placement.h"

namespace sub8::arch::sm80 {

template <format::Half Type, int Tokens>
struct MmaAtom {
  static constexpr int kAccumulators = Tokens / 2;
  static_assert(Tokens == 8 || Tokens % 16 == 0);

  // Activations lie as sm90a::b_swizzle places them: rows of 128 bytes (64 k), 16-byte chunk c of
  // row r at chunk c ^ (r & 7). One matrix load covers 32 k of 8 tokens or 16 k of 16 tokens; what
  // a lane adds to the tile's address for the first of them:
  __device__ static uint32_t lane_row(int lane) {
    const uint32_t r = static_cast<uint32_t>(lane) % 8;
    return Tokens == 8 ? r : r + 8 * (static_cast<uint32_t>(lane) / 16);
  }
  __device__ static uint32_t lane_chunk(int lane) {
    const uint32_t matrix = static_cast<uint32_t>(lane) / 8;
    return Tokens == 8 ? matrix : matrix & 1;
  }
  __device__ static uint32_t lane_offset(int lane) {
    const uint32_t row = lane_row(lane);
    return row * 128 + ((lane_chunk(lane) ^ (row & 7)) << 4);
  }
  // B fragments of kStepsPerLoad steps of 16 k from step `k` on; `at`: address of a tile (aligned
  // to 1024) plus lane_offset; `tile`: distance of another tile.
  static constexpr int kStepsPerLoad = Tokens == 8 ? 2 : 1;
  __device__ static void load_tokens(uint32_t at, uint32_t tile, int k,
                                     uint32_t (&b)[kStepsPerLoad][Tokens / 8][2]) {
    if constexpr (Tokens == 8) {
      uint32_t r[4];
      ptx::load_matrices((at ^ (k << 5)) + tile, r);
      b[0][0][0] = r[0], b[0][0][1] = r[1];
      b[1][0][0] = r[2], b[1][0][1] = r[3];
    } else {
#pragma unroll
      for (int n = 0; n < Tokens / 8; n += 2) {
        uint32_t r[4];
        ptx::load_matrices((at ^ (k << 5)) + tile + n * 1024, r);
        b[0][n][0] = r[0], b[0][n][1] = r[1];
        b[0][n + 1][0] = r[2], b[0][n + 1][1] = r[3];
      }
    }
  }
  __device__ static void mma(float (&d)[kAccumulators], const uint32_t (&a)[4],
                             const uint32_t (&b)[Tokens / 8][2]) {
#pragma unroll
    for (int n = 0; n < Tokens / 8; ++n) ptx::mma_m16n8k16<Type>(d + 4 * n, a, b[n][0], b[n][1]);
  }
};

}  // namespace sub8::arch::sm80
