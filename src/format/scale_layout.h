// Where block scales lie for matrix units that read them as tiles of 128 rows by 4 blocks.
//
// sub8 stores scales linear, [rows][blocks]; kernels with block-scaled matrix instructions, and
// other engines' FP4 products, take them in this order. Rows are padded to 128, blocks of a row to
// 4; what is padding is zero.
//
// Source: CUTLASS's scale-factor atom for block-scaled tcgen05.mma (Sm1xxBlockScaledConfig).
#pragma once

#include <cstdint>

#include "format/platform.h"

namespace sub8::format {

inline constexpr int kScaleTileRows = 128;
inline constexpr int kScaleTileBlocks = 4;

// Bytes of a matrix' scales in that order.
SUB8_HD constexpr int64_t swizzled_scale_bytes(int64_t rows, int64_t blocks) {
  const int64_t row_tiles = (rows + kScaleTileRows - 1) / kScaleTileRows;
  const int64_t block_tiles = (blocks + kScaleTileBlocks - 1) / kScaleTileBlocks;
  return row_tiles * block_tiles * kScaleTileRows * kScaleTileBlocks;
}

// Byte offset of the scale of block `block` of row `row`; `blocks` per row.
SUB8_HD constexpr int64_t swizzled_scale_offset(int64_t row, int64_t block, int64_t blocks) {
  const int64_t block_tiles = (blocks + kScaleTileBlocks - 1) / kScaleTileBlocks;
  const int64_t tile = row / kScaleTileRows * block_tiles + block / kScaleTileBlocks;
  // Inside a tile of 512 bytes: 32 lines of 16 bytes; rows r, r + 32, r + 64, r + 96 share a line.
  return tile * (kScaleTileRows * kScaleTileBlocks) + row % 32 * 16 +
         row % kScaleTileRows / 32 * kScaleTileBlocks + block % kScaleTileBlocks;
}

}  // namespace sub8::format
