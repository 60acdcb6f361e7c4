// What a Linear weight is stored as: element codec plus scales. One description for files, packers
// and kernels.
//
// value[n][k] = element(code[n][k]) * block_scale[n][k / group] * outer_scale
//   block_scale   none, E4M3 (positive) or E8M0 bytes, one per `group` elements along K; a last
//                 group may be short
//   outer_scale   none, one FP32 for the tensor, or one FP32 per output channel n
// "dense" weights are F32, F16 or BF16 without scales.
//
// | name                 | element | block scale  | outer scale |
// | e3m2, e2m2, ...      | eXmY    | none         | channel     |
// | e2m1:g32 (g64, g128) | eXmY, Y <= 3 | E4M3 per g | channel   |
// | nvfp4                | e2m1    | E4M3 per 16  | tensor      |
// | mxfp4                | e2m1    | E8M0 per 32  | none        |
// | mxfp6_e3m2, mxfp6_e2m3, mxfp8 | e3m2, e2m3, e4m3 | E8M0 per 32 | none |
// | f32, f16, bf16       | dense   |              |             |
// Other combinations occur in foreign files (FP8 per tensor; e2m1 with E4M3 per 32) and have names
// of the same grammar: "e4m3:tensor", "e2m1:e4m3g32:tensor".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/error.h"
#include "format/bits.h"
#include "format/dtype.h"
#include "format/element.h"

namespace sub8::format {

enum class BlockScale : uint8_t { kNone, kE4M3, kE8M0 };
enum class OuterScale : uint8_t { kNone, kTensor, kChannel };

struct WeightFormat {
  bool dense = true;
  DType dtype = DType::kBF16;  // dense only: F32, F16 or BF16
  ElementFormat element{};     // coded only
  BlockScale block_scale = BlockScale::kNone;
  int group = 0;  // elements per block scale; 0 without block scales
  OuterScale outer_scale = OuterScale::kNone;

  bool operator==(const WeightFormat&) const = default;

  // Bytes of one row of K elements (codes or dense values).
  int64_t row_bytes(int64_t cols) const {
    return dense ? cols * static_cast<int64_t>(dtype_bytes(dtype))
                 : packed_row_bytes(cols, element.bits());
  }
  // Block scales per row.
  int64_t groups(int64_t cols) const { return group == 0 ? 0 : (cols + group - 1) / group; }
  // Bytes of codes and scales of an [rows, cols] matrix.
  int64_t storage_bytes(int64_t rows, int64_t cols) const;
  // Canonical name; parse_weight_format(name()) gives the same format.
  std::string name() const;
};

constexpr WeightFormat dense_format(DType dtype) {
  return {true, dtype, {}, BlockScale::kNone, 0, OuterScale::kNone};
}
constexpr WeightFormat channel_format(ElementFormat e) {
  return {false, DType::kU8, e, BlockScale::kNone, 0, OuterScale::kChannel};
}
constexpr WeightFormat group_format(ElementFormat e, int group) {
  return {false, DType::kU8, e, BlockScale::kE4M3, group, OuterScale::kChannel};
}
constexpr WeightFormat nvfp4_format() {
  return {false, DType::kU8, kE2M1, BlockScale::kE4M3, 16, OuterScale::kTensor};
}
constexpr WeightFormat mx_format(ElementFormat e) {
  return {false, DType::kU8, e, BlockScale::kE8M0, 32, OuterScale::kNone};
}

// Names as in the table; an error lists what exists. Combinations that no kernel could run exactly
// (":gN" with more than 3 mantissa bits) are refused with the reason.
Result<WeightFormat> parse_weight_format(std::string_view name);

}  // namespace sub8::format
