// A Linear weight in storage form: logical codes and scales in row order, independent of any
// kernel.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "format/weight_format.h"

namespace sub8 {

// Y[M,N] = X[M,K] W[N,K]^T: rows = N output channels, cols = K input channels.
// The spans point into `owner` (a mapped file or a buffer); `codes` and `block_scales` may be
// unaligned in memory.
struct StoredMatrix {
  format::WeightFormat format;
  int64_t rows = 0;
  int64_t cols = 0;
  std::span<const uint8_t> codes;  // rows * format.row_bytes(cols): packed codes, or dense values
  std::span<const uint8_t> block_scales;  // rows * format.groups(cols), row order
  std::vector<float>
      outer_scales;  // 0, 1 or `rows` multipliers, as format.outer_scale says. Where a fused file
                     // holds several tensor scales, the format is kChannel and each row has its own
  std::shared_ptr<const void> owner;
};

}  // namespace sub8
