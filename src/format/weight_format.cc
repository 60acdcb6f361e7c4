#include "format/weight_format.h"

#include <algorithm>
#include <charconv>
#include <vector>

namespace sub8::format {
namespace {

constexpr std::string_view kKnown =
    "eXmY with 3 to 8 bits (e3m2, e2m3, e2m2, e3m1, e2m1, e3m3, e4m3, ...), eXmY:g32, :g64 or "
    ":g128, nvfp4, mxfp4, "
    "mxfp6_e3m2, mxfp6_e2m3, mxfp8, bf16, f16, f32";

std::string element_name(ElementFormat e) {
  return "e" + std::to_string(e.exponent_bits) + "m" + std::to_string(e.mantissa_bits);
}

// "eXmY" with single digits.
bool parse_element(std::string_view text, ElementFormat& out) {
  const auto digit = [](char c) { return c >= '0' && c <= '9'; };
  if (text.size() != 4 || text[0] != 'e' || text[2] != 'm' || !digit(text[1]) || !digit(text[3]))
    return false;
  out = {static_cast<uint8_t>(text[1] - '0'), static_cast<uint8_t>(text[3] - '0')};
  return true;
}

// Of the short spelling ":gN".
bool is_group_size(int group) { return group == 32 || group == 64 || group == 128; }

bool parse_group(std::string_view text, int& out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  return error == std::errc() && end == text.data() + text.size();
}

}  // namespace

int64_t WeightFormat::storage_bytes(int64_t rows, int64_t cols) const {
  const int64_t outer = outer_scale == OuterScale::kChannel  ? 4 * rows
                        : outer_scale == OuterScale::kTensor ? 4
                                                             : 0;
  return rows * (row_bytes(cols) + groups(cols)) + outer;
}

std::string WeightFormat::name() const {
  if (dense) {
    switch (dtype) {
      case DType::kF32:
        return "f32";
      case DType::kF16:
        return "f16";
      default:
        return "bf16";
    }
  }
  if (*this == nvfp4_format()) return "nvfp4";
  if (*this == mx_format(kE2M1)) return "mxfp4";
  if (*this == mx_format(kE3M2)) return "mxfp6_e3m2";
  if (*this == mx_format(kE2M3)) return "mxfp6_e2m3";
  if (*this == mx_format(kE4M3)) return "mxfp8";
  std::string out = element_name(element);
  if (block_scale == BlockScale::kE4M3 && outer_scale == OuterScale::kChannel) {
    return out + (is_group_size(group) ? ":g" : ":e4m3g") + std::to_string(group);
  }
  if (block_scale != BlockScale::kNone) {
    out += (block_scale == BlockScale::kE4M3 ? ":e4m3g" : ":e8m0g") + std::to_string(group);
  }
  if (outer_scale == OuterScale::kTensor) out += ":tensor";
  if (outer_scale == OuterScale::kChannel && block_scale == BlockScale::kE8M0) out += ":channel";
  if (outer_scale == OuterScale::kNone && block_scale != BlockScale::kE8M0) out += ":none";
  return out;
}

Result<WeightFormat> parse_weight_format(std::string_view name) {
  const std::string quoted = "'" + std::string(name) + "'";
  if (name == "f32") return dense_format(DType::kF32);
  if (name == "f16") return dense_format(DType::kF16);
  if (name == "bf16") return dense_format(DType::kBF16);
  if (name == "nvfp4") return nvfp4_format();
  if (name == "mxfp4") return mx_format(kE2M1);
  if (name == "mxfp6_e3m2") return mx_format(kE3M2);
  if (name == "mxfp6_e2m3") return mx_format(kE2M3);
  if (name == "mxfp8") return mx_format(kE4M3);
  if (name == "mxfp6")
    return invalid_argument("weight format 'mxfp6' is ambiguous; say mxfp6_e3m2 or mxfp6_e2m3");

  std::vector<std::string_view> parts;
  for (size_t begin = 0; begin <= name.size();) {
    const size_t end = std::min(name.find(':', begin), name.size());
    parts.push_back(name.substr(begin, end - begin));
    begin = end + 1;
  }
  WeightFormat out = channel_format({});
  if (!parse_element(parts[0], out.element)) {
    return invalid_argument("unknown weight format " + quoted + "; known: " + std::string(kKnown));
  }
  if (!out.element.valid()) {
    return invalid_argument(
        "weight format " + quoted + ": " + std::to_string(out.element.bits()) + " bits with " +
        std::to_string(out.element.exponent_bits) +
        " exponent bits; an element needs a sign, at least 1 exponent bit, and 3 to 8 bits in all");
  }
  bool has_block = false;
  bool has_outer = false;
  for (size_t i = 1; i < parts.size(); ++i) {
    const std::string_view part = parts[i];
    const bool outer = part == "tensor" || part == "channel" || part == "none";
    if (has_outer || (has_block && !outer)) {
      return invalid_argument("weight format " + quoted + ": '" + std::string(part) +
                              "' follows another scale of its kind; one group scale, then one of "
                              "tensor, channel and none, is all that a format has");
    }
    (outer ? has_outer : has_block) = true;
    if (outer) {
      out.outer_scale = part == "tensor"    ? OuterScale::kTensor
                        : part == "channel" ? OuterScale::kChannel
                                            : OuterScale::kNone;
      continue;
    }
    int group = 0;
    if (part.starts_with("g") && parse_group(part.substr(1), group)) {
      if (!is_group_size(group)) {
        return invalid_argument("weight format " + quoted + ": the group must be 32, 64 or 128");
      }
      out.block_scale = BlockScale::kE4M3;
    } else if (part.starts_with("e4m3g") && parse_group(part.substr(5), group) && group >= 1 &&
               group <= 65536) {
      out.block_scale = BlockScale::kE4M3;
    } else if (part.starts_with("e8m0g") && parse_group(part.substr(5), group) && group >= 1 &&
               group <= 65536) {
      out.block_scale = BlockScale::kE8M0;
      out.outer_scale = OuterScale::kNone;
    } else {
      return invalid_argument("unknown weight format " + quoted +
                              "; known: " + std::string(kKnown));
    }
    out.group = group;
  }
  if (out.block_scale == BlockScale::kE4M3 && out.element.mantissa_bits > 3) {
    return invalid_argument(
        "weight format " + quoted +
        ": group scales need at most 3 mantissa bits, so that code times scale is exact in bf16");
  }
  return out;
}

}  // namespace sub8::format
