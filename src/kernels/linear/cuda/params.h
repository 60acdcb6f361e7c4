// What a ring kernel is told at run time: plain C++, shared by host and device.
#pragma once

#include <cstdint>

namespace sub8::kernels::linear {

enum class OutputType : uint32_t { kF32, kF16, kBF16 };

// Aligned as CUtensorMap; its bytes are filled by the host.
struct alignas(64) TensorMap {
  uint64_t words[16];
};

struct RingParams {
  TensorMap x;  // activations [M, K], boxes of 128 bytes of k x tile_m (or tile_m / cluster) rows
  const uint8_t* weights;
  const float* multipliers;   // per output channel
  const float* token_scales;  // per row of X, or null
  const float* bias;          // per output channel, or null
  const void* residual;       // [rows of Y, N], type of y, or null; added last
  void* y;
  float* partials;     // [workers][rows of a worker's tile][tokens]
  uint32_t* counters;  // [workers][16 rows of a worker's tile], zero between launches
  int64_t ldy;         // elements between rows of Y
  int64_t ld_residual;
  int32_t m;             // rows of X
  int32_t n;             // output channels
  int32_t row_tiles;     // along N, in units of cluster * 256 rows
  int32_t weight_tiles;  // row tiles of 256 that the packed weight has
  int32_t token_tiles;   // along M
  int32_t k_pieces;      // along K, as packed
  int32_t k_stages;      // along K
  // The stages are divided among clusters (or CTAs): the first `longer_workers` take one more.
  int32_t workers;
  int32_t stages_per_worker;
  int32_t longer_workers;
  uint32_t piece_bytes;
  OutputType output;
  uint32_t fold;    // rows 2i and 2i+1 of X are added
  uint32_t stages;  // ring slots
  // Block scales of 32 and more elements.
  uint32_t scale_pairs;  // row pairs per word of scales: 1 or 2
  uint32_t scale_mask;   // 8-bit kernels: 2^shift of a scale byte
  uint32_t scale_base;
  const uint32_t* scale_modes;  // 8-bit kernels: per packed row tile, pack::ScaleMode
};

// Of sliced_kernel.cuh. The line of work that RingParams divides is that of the first rest_tiles
// row tiles; the others are dealt out whole.
struct SlicedParams {
  RingParams ring;
  // The packed weight's parts (16-, 8- and 4-byte vectors, scales), as boxes of a tile's rows and a
  // stage's k.
  TensorMap parts[4];
  int32_t rest_tiles;
  uint32_t x_pitch;  // bytes from one box of activations to the next: 2 to 16 rows of 128
};

}  // namespace sub8::kernels::linear
