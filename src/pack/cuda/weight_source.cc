#include "pack/cuda/weight_source.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "format/bits.h"
#include "format/element.h"

namespace sub8::pack {
namespace {

std::string at(int64_t row, int64_t group) {
  return "row " + std::to_string(row) + ", group " + std::to_string(group);
}

}  // namespace

WeightSource::WeightSource(const StoredMatrix& weight)
    : weight_(weight),
      row_bytes_(weight.format.row_bytes(weight.cols)),
      groups_(weight.format.groups(weight.cols)) {}

uint32_t WeightSource::code(int64_t row, int64_t k) const {
  return format::unpack_code(weight_.codes.data() + row * row_bytes_, row_bytes_, k,
                             weight_.format.element.bits());
}

bool WeightSource::group_is_zero(int64_t row, int64_t group) const {
  const uint32_t magnitude = weight_.format.element.sign_bit() - 1;
  const int64_t end = std::min<int64_t>(weight_.cols, (group + 1) * weight_.format.group);
  for (int64_t k = group * weight_.format.group; k < end; ++k) {
    if ((code(row, k) & magnitude) != 0) return false;
  }
  return true;
}

Status WeightSource::check_codes(int64_t row) const {
  if (!weight_.format.element.has_nan()) return {};
  for (int64_t k = 0; k < weight_.cols; ++k) {
    if (weight_.format.element.is_nonfinite(code(row, k)))
      return corrupt_data("weight code at row " + std::to_string(row) + ", column " +
                          std::to_string(k) + " is NaN or infinite");
  }
  return {};
}

Status WeightSource::check_e4m3_scales(int64_t row) const {
  for (int64_t g = 0; g < groups_; ++g) {
    const uint8_t byte = scale(row, g);
    if (byte >= 0x7f)
      return corrupt_data("block scale at " + at(row, g) + " is " +
                          ((byte & 0x7f) == 0x7f ? "NaN" : "negative") + " (byte " +
                          std::to_string(byte) + "); a positive E4M3 was expected");
  }
  return {};
}

Result<ExponentRange> WeightSource::exponent_range(int64_t row) const {
  ExponentRange out;
  for (int64_t g = 0; g < groups_; ++g) {
    const uint8_t byte = scale(row, g);
    if (byte == 255) return corrupt_data("block scale at " + at(row, g) + " is NaN (byte 255)");
    if (group_is_zero(row, g)) continue;
    out.lowest = std::min<int>(out.lowest, byte);
    out.highest = std::max<int>(out.highest, byte);
  }
  return out;
}

Result<float> WeightSource::multiplier(int64_t row, int power) const {
  double outer = 1;
  const format::OuterScale kind = weight_.format.outer_scale;
  if (kind == format::OuterScale::kTensor) outer = weight_.outer_scales[0];
  if (kind == format::OuterScale::kChannel) outer = weight_.outer_scales[static_cast<size_t>(row)];
  const double multiplier = std::ldexp(outer, power);
  if (!std::isfinite(outer))
    return corrupt_data("outer scale of row " + std::to_string(row) + " is not finite");
  if (static_cast<double>(static_cast<float>(multiplier)) != multiplier)
    return unsupported("outer scale " + std::to_string(outer) + " of row " + std::to_string(row) +
                       " times 2^" + std::to_string(power) + " is not an FP32 number");
  return static_cast<float>(multiplier);
}

uint8_t e5m3_code(uint8_t e4m3) {
  const float s = format::decode_element(format::kE4M3, e4m3);
  if (s == 0) return 0;
  const uint32_t bits = format::float_bits(s);
  const int exponent = static_cast<int>(bits >> 23) - 127;
  return static_cast<uint8_t>(((exponent + 22) << 3) | ((bits >> 20) & 7));
}

}  // namespace sub8::pack
