// Activations in 4 and 8 bits, and their residue: what design calls X^ and R^. Host and device.
//
//   x^ = q * d          base: codes q and block scale of the row's value x
//   r  = x - x^         in FP32, unscaled domain
//   r^ = q' * d'        the residue quantised by the same alpha, with block scales of its own
//
// | format | elements | block scale       | alpha (per row, per tensor, or static) | d       |
// | nvfp4  | e2m1     | E4M3 per 16       | amax / 2688                            | alpha*s |
// | mxfp4  | e2m1     | E8M0 per 32       | none (1)                               | 2^e     |
// | mxfp8  | e4m3     | E8M0 per 32       | none (1)                               | 2^e     |
// | fp8    | e4m3     | none              | amax / 448                             | alpha   |
//
// alpha == 0 means an all-zero row. A value "without alpha", q * s or q * 2^e or q, has at most
// eight significant bits, so bf16 holds it exactly (MXFP8 blocks whose maximum is below 2^-117
// excepted): a matrix kernel that reads bf16 rows computes W4A4 and W4A8 products exactly.
#pragma once

#include <cstdint>
#include <iterator>
#include <optional>
#include <string_view>

#include "format/block.h"

namespace sub8::format {

enum class ActivationFormat : uint8_t { kNvfp4, kMxfp4, kMxfp8, kFp8 };

// What an alpha is taken from, for the formats that have one.
enum class AlphaSource : uint8_t {
  kRow,     // each row's own amax
  kStatic,  // one given value, from calibration
  kTensor,  // the amax of all rows of a call: not batch-invariant, for comparison only
};
inline constexpr std::string_view kAlphaSourceNames[] = {"row", "static", "tensor"};
constexpr std::string_view alpha_source_name(AlphaSource source) {
  return kAlphaSourceNames[static_cast<size_t>(source)];
}
constexpr std::optional<AlphaSource> parse_alpha_source(std::string_view name) {
  for (size_t i = 0; i < std::size(kAlphaSourceNames); ++i) {
    if (name == kAlphaSourceNames[i]) return static_cast<AlphaSource>(i);
  }
  return std::nullopt;
}

SUB8_HD constexpr ElementFormat activation_element(ActivationFormat f) {
  return f == ActivationFormat::kNvfp4 || f == ActivationFormat::kMxfp4 ? kE2M1 : kE4M3;
}
// Elements that share a block scale; 0: the row has none.
SUB8_HD constexpr int activation_block(ActivationFormat f) {
  if (f == ActivationFormat::kFp8) return 0;
  return f == ActivationFormat::kNvfp4 ? kNvfp4Block : kMxBlock;
}
SUB8_HD constexpr bool has_alpha(ActivationFormat f) {
  return f == ActivationFormat::kNvfp4 || f == ActivationFormat::kFp8;
}
// From the largest magnitude of what shares it; 1 for formats without.
SUB8_HD constexpr float activation_alpha(ActivationFormat f, float amax) {
  if (f == ActivationFormat::kNvfp4) return nvfp4_alpha(amax);
  return f == ActivationFormat::kFp8 ? fp8_alpha(amax) : 1.0f;
}

// One block (nvfp4: up to 16 values, mx*: up to 32; fp8: any number). Returns the scale byte, 0 for
// a zero block; fp8 has none.
SUB8_HD constexpr uint8_t quantize_activation_block(ActivationFormat f, MxRule rule, const float* x,
                                                    int64_t count, float alpha, uint8_t* codes) {
  switch (f) {
    case ActivationFormat::kNvfp4:
      return nvfp4_quantize_activation_block(x, count, alpha, codes);
    case ActivationFormat::kFp8:
      fp8_quantize_row(x, count, alpha, codes);
      return 0;
    default:
      return mx_quantize_block(activation_element(f), x, count, rule, codes);
  }
}

// The block scale as a factor without alpha: s, 2^e, or 1.
SUB8_HD constexpr float activation_scale(ActivationFormat f, uint8_t scale) {
  if (f == ActivationFormat::kFp8) return 1.0f;
  return f == ActivationFormat::kNvfp4 ? decode_element(kE4M3, scale) : decode_e8m0(scale);
}

// d of a block. A zero block's codes are 0, so that its d does not matter.
SUB8_HD constexpr float activation_divisor(ActivationFormat f, uint8_t scale, float alpha) {
  return mul_rn(alpha, activation_scale(f, scale));
}

// r = x - q*d over a block.
SUB8_HD constexpr void residue_block(ActivationFormat f, const float* x, const uint8_t* codes,
                                     int64_t count, uint8_t scale, float alpha, float* residue) {
  const float d = activation_divisor(f, scale, alpha);
  const ElementFormat e = activation_element(f);
  for (int64_t i = 0; i < count; ++i)
    residue[i] = sub_rn(x[i], mul_rn(decode_element(e, codes[i]), d));
}

// ---- K-Ext: which channels are compensated -----------------------------------------------------

inline constexpr int kSelectGroup = 8;  // channels per mask byte: bit i of byte g is channel 8g + i

// Channels per group at ratio 0.125, 0.25, 0.5 or 1.
SUB8_HD constexpr int selected_per_group(float ratio) {
  return static_cast<int>(ratio * kSelectGroup);
}

// The mask of a group of `count` <= 8 channels: the `per_group` largest means, ties to the lower
// index. Channels that a short last group lacks have the mean -1, so that every group selects
// per_group. Means are finite and at least 0.
SUB8_HD constexpr uint8_t select_mask(const float* mean_abs, int64_t count, int per_group) {
  uint32_t mask = 0;
  for (int taken = 0; taken < per_group; ++taken) {
    int best = -1;
    float best_mean = 0;
    for (int i = 0; i < kSelectGroup; ++i) {
      if ((mask >> i & 1u) != 0) continue;
      const float mean = i < count ? mean_abs[i] : -1.0f;
      if (best >= 0 && !(mean > best_mean)) continue;
      best = i;
      best_mean = mean;
    }
    mask |= 1u << best;
  }
  return static_cast<uint8_t>(mask);
}

}  // namespace sub8::format
