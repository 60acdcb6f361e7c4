#include "format/row.h"

#include <array>
#include <cstring>

#include "base/check.h"

namespace sub8::format {
namespace {

using DecodeTable = std::array<float, 256>;

DecodeTable decode_table(ElementFormat f) {
  DecodeTable table{};
  for (uint32_t code = 0; code < f.code_count(); ++code) table[code] = decode_element(f, code);
  return table;
}

// One table per element format, made at first use: index exponent_bits * 8 + mantissa_bits.
const DecodeTable& table_of(ElementFormat f) {
  static const auto tables = [] {
    std::array<DecodeTable, 64> out{};
    for (uint8_t e = 1; e <= 7; ++e) {
      for (uint8_t m = 0; m <= 6; ++m) {
        const ElementFormat format{e, m};
        if (format.valid()) out[e * 8u + m] = decode_table(format);
      }
    }
    return out;
  }();
  return tables[f.exponent_bits * 8u + f.mantissa_bits];
}

bool is_grouped_channel(const WeightFormat& f) {
  return f.block_scale == BlockScale::kE4M3 && f.outer_scale == OuterScale::kChannel;
}

float dense_value(DType type, const uint8_t* row, int64_t k) {
  if (type == DType::kF32) {
    float value;
    std::memcpy(&value, row + 4 * k, 4);
    return value;
  }
  uint16_t half;
  std::memcpy(&half, row + 2 * k, 2);
  return type == DType::kF16 ? f16_to_float(half) : bf16_to_float(half);
}

float block_scale_value(BlockScale kind, uint8_t byte) {
  return kind == BlockScale::kE4M3 ? decode_element(kE4M3, byte) : decode_e8m0(byte);
}

}  // namespace

Status check_quantizable(const WeightFormat& format) {
  if (format.dense) {
    return unsupported("weight format '" + format.name() + "' is not quantised");
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

void dequantize_row(const WeightFormat& format, std::span<const uint8_t> row,
                    std::span<const uint8_t> block_scales, float outer, std::span<float> out) {
  const auto count = static_cast<int64_t>(out.size());
  SUB8_CHECK_EQ(static_cast<int64_t>(row.size()), format.row_bytes(count));
  if (format.dense) {
    for (int64_t k = 0; k < count; ++k) out[k] = dense_value(format.dtype, row.data(), k);
    return;
  }
  SUB8_CHECK_EQ(static_cast<int64_t>(block_scales.size()), format.groups(count));
  const DecodeTable& table = table_of(format.element);
  const float outer_value = format.outer_scale == OuterScale::kNone ? 1.0f : outer;
  const int bits = format.element.bits();
  // Pieces of a multiple of 8 codes start at whole bytes whatever the width.
  constexpr int64_t kPiece = 64;
  std::array<uint8_t, kPiece> codes{};
  for (int64_t begin = 0; begin < count; begin += kPiece) {
    const int64_t size = count - begin < kPiece ? count - begin : kPiece;
    unpack_codes(row.data() + begin * bits / 8, size, bits, codes.data());
    for (int64_t k = 0; k < size;) {
      const int64_t column = begin + k;
      int64_t end = size;
      float d = outer_value;
      if (format.block_scale != BlockScale::kNone) {
        const int64_t g = column / format.group;
        d = mul_rn(outer_value, block_scale_value(format.block_scale, block_scales[g]));
        const int64_t group_end = (g + 1) * format.group - begin;
        end = group_end < size ? group_end : size;
      }
      for (; k < end; ++k) out[begin + k] = mul_rn(table[codes[k]], d);
    }
  }
}

int64_t find_nonfinite_code(const WeightFormat& format, std::span<const uint8_t> row,
                            int64_t count) {
  if (format.dense) {
    for (int64_t k = 0; k < count; ++k) {
      if (!__builtin_isfinite(dense_value(format.dtype, row.data(), k))) return k;
    }
    return -1;
  }
  if (!format.element.has_nan()) return -1;
  for (int64_t k = 0; k < count; ++k) {  // the formats with NaN have 8 bits
    if (format.element.is_nonfinite(row[static_cast<size_t>(k)])) return k;
  }
  return -1;
}

int64_t find_bad_block_scale(const WeightFormat& format, std::span<const uint8_t> block_scales) {
  for (size_t g = 0; g < block_scales.size(); ++g) {
    const uint8_t byte = block_scales[g];
    // Negative zero (0x80) is harmless; other negative scales are no scales.
    const bool bad =
        format.block_scale == BlockScale::kE8M0 ? byte == 255 : byte == 0x7f || byte > 0x80;
    if (bad) return static_cast<int64_t>(g);
  }
  return -1;
}

}  // namespace sub8::format
