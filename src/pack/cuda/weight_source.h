// A weight in storage form as the CUDA packers read it: codes by row and column, and checks of what
// must not be packed.
#pragma once

#include <cstdint>

#include "base/error.h"
#include "tensor/stored_matrix.h"

namespace sub8::pack {

// The lowest and highest E8M0 bytes of a row, among groups with a code that is not zero.
struct ExponentRange {
  int lowest = 255;
  int highest = -1;
  bool empty() const { return highest < 0; }
  int spread() const { return empty() ? 0 : highest - lowest; }
  // What the row's exponents are counted from.
  int reference() const { return empty() ? 127 : highest; }
};

class WeightSource {
 public:
  explicit WeightSource(const StoredMatrix& weight);

  const StoredMatrix& matrix() const { return weight_; }
  int64_t row_bytes() const { return row_bytes_; }
  int64_t groups() const { return groups_; }  // of a row
  uint32_t code(int64_t row, int64_t k) const;
  uint8_t scale(int64_t row, int64_t group) const {
    return weight_.block_scales[row * groups_ + group];
  }
  // Whether all codes of a group are zero.
  bool group_is_zero(int64_t row, int64_t group) const;

  // Errors name row and column or group.
  Status check_codes(int64_t row) const;        // no NaN, no infinity
  Status check_e4m3_scales(int64_t row) const;  // no NaN, none negative
  Result<ExponentRange> exponent_range(int64_t row) const;
  // The row's outer scale times 2^power; an error where that is no FP32 number.
  Result<float> multiplier(int64_t row, int power) const;

 private:
  const StoredMatrix& weight_;
  int64_t row_bytes_;
  int64_t groups_;
};

// An E4M3 scale as (e + 22) << 3 | mantissa for 2^e * (1 + mantissa/8); 0 for zero.
uint8_t e5m3_code(uint8_t e4m3);

}  // namespace sub8::pack
