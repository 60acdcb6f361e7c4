#include "format/row.h"

#include "base/check.h"

namespace sub8::format {
namespace {

bool is_grouped_channel(const WeightFormat& f) {
  return f.block_scale == BlockScale::kE4M3 && f.outer_scale == OuterScale::kChannel;
}

}  // namespace

Status check_quantizable(const WeightFormat& format) {
  if (format.dense) {
    return invalid_argument("'" + format.name() +
                            "' is no quantised format: weights stay as they are with --skip, and a "
                            "model runs unquantised as it is");
  }
  if (format == nvfp4_format()) return {};
  const WeightFormat channel = channel_format(format.element);
  if (format == channel || format == mx_format(format.element)) return {};
  if (is_grouped_channel(format) &&
      (format.group == 32 || format.group == 64 || format.group == 128))
    return {};
  return unsupported("weight format '" + format.name() +
                     "' occurs in other programs' files; sub8 reads it and does not write it. It "
                     "writes eXmY, eXmY:g32, :g64, :g128, nvfp4 and mx*");
}

float choose_outer_scale(const WeightFormat& format, float amax, bool four_over_six) {
  switch (format.outer_scale) {
    case OuterScale::kTensor:
      return four_over_six ? nvfp4_alpha_four_over_six(amax) : nvfp4_alpha(amax);
    case OuterScale::kChannel:
      return format.block_scale == BlockScale::kNone ? channel_scale(format.element, amax)
                                                     : grouped_channel_scale(format.element, amax);
    case OuterScale::kNone:
      break;
  }
  return 1.0f;
}

void quantize_row(const WeightFormat& format, const BlockRules& rules, std::span<const float> x,
                  float outer, std::span<uint8_t> codes, std::span<uint8_t> block_scales) {
  const auto count = static_cast<int64_t>(x.size());
  SUB8_CHECK_EQ(codes.size(), x.size());
  SUB8_CHECK_EQ(static_cast<int64_t>(block_scales.size()), format.groups(count));
  if (format.block_scale == BlockScale::kNone) {
    if (outer == 0.0f) return zero_codes(codes.data(), count);
    return encode_divided(ElementCoder(format.element), x.data(), count, outer, codes.data());
  }
  for (int64_t g = 0, begin = 0; begin < count; ++g, begin += format.group) {
    const int64_t size = count - begin < format.group ? count - begin : format.group;
    const float* block = x.data() + begin;
    uint8_t* out = codes.data() + begin;
    uint8_t& scale = block_scales[static_cast<size_t>(g)];
    if (format.block_scale == BlockScale::kE8M0) {
      scale = mx_quantize_block(format.element, block, size, rules.mx, out);
    } else if (format.outer_scale == OuterScale::kChannel) {
      scale = quantize_group(format.element, block, size, outer, out);
    } else {
      scale = nvfp4_quantize_weight_block(block, size, outer, rules.four_over_six, out);
    }
  }
}

}  // namespace sub8::format
