#include "quantize/row_quantizer.h"

#include <algorithm>
#include <array>
#include <string>

#include "format/block.h"

namespace sub8::quantize {
namespace {

using format::BlockScale;
using format::ElementCoder;
using format::ElementFormat;
using format::OuterScale;
using format::WeightFormat;

constexpr int64_t kLanes = 8;

double lane_sum(const std::array<double, kLanes>& lanes) {
  double sum = 0;
  for (const double lane : lanes) sum += lane;
  return sum;
}

// Squared error of x at divisor d, in units of d^2 times d^2.
double squared_error(const ElementCoder& coder, const float* x, int64_t count, float d) {
  std::array<double, kLanes> lanes{};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int64_t j = 0; j < kLanes; ++j) {
      const float t = x[i + j] / d;
      const auto e = static_cast<double>(t - coder.round(t));
      lanes[static_cast<size_t>(j)] += e * e;
    }
  }
  for (int64_t j = 0; i < count; ++i, ++j) {
    const float t = x[i] / d;
    const auto e = static_cast<double>(t - coder.round(t));
    lanes[static_cast<size_t>(j)] += e * e;
  }
  return lane_sum(lanes) * static_cast<double>(d) * static_cast<double>(d);
}

// The candidate with the smallest error; candidates come largest first, so a tie keeps the larger.
class Best {
 public:
  template <class Candidate>
  void offer(double error, Candidate candidate) {
    if (found_ && !(error < error_)) return;
    found_ = true;
    error_ = error;
    value_ = static_cast<double>(candidate);
  }
  double value() const { return value_; }

 private:
  bool found_ = false;
  double error_ = 0;
  double value_ = 0;
};

float search_channel_scale(ElementFormat f, std::span<const float> x, float d_amax) {
  const ElementCoder coder(f);
  Best best;
  for (int i = 48; i >= 16; --i) {
    const float d = d_amax * (static_cast<float>(i) / 32.0F);
    if (d < format::power_of_two(-126)) break;
    best.offer(squared_error(coder, x.data(), static_cast<int64_t>(x.size()), d), d);
  }
  return static_cast<float>(best.value());
}

// E4M3 scale byte of one group or block; `ratio` is what the amax rule would encode.
uint8_t search_e4m3_scale(ElementFormat f, const float* x, int64_t count, float outer,
                          float ratio) {
  const ElementCoder coder(f);
  const int high = format::e4m3_scale_code(ratio * 1.5F);
  const int low = format::e4m3_scale_code(ratio * 0.5F);
  Best best;
  for (int byte = high; byte >= low; --byte) {
    const float d = format::block_divisor(outer, static_cast<uint8_t>(byte));
    best.offer(squared_error(coder, x, count, d), byte);
  }
  return static_cast<uint8_t>(best.value());
}

uint8_t search_mx_scale(ElementFormat f, const float* x, int64_t count, int byte) {
  const ElementCoder coder(f);
  Best best;
  for (int candidate = std::min(byte + 1, 254); candidate >= std::max(byte - 1, 0); --candidate) {
    const float d = format::decode_e8m0(static_cast<uint8_t>(candidate));
    best.offer(squared_error(coder, x, count, d), candidate);
  }
  return static_cast<uint8_t>(best.value());
}

// One block under the search; the counterparts of format/block.h's quantize_* functions.
uint8_t search_block(const WeightFormat& format, const RowRules& rules, const float* x,
                     int64_t count, float outer, uint8_t* codes) {
  const ElementFormat f = format.element;
  const float amax = format::abs_max(x, count);
  const bool mx = format.block_scale == BlockScale::kE8M0;
  if (amax == 0.0F || outer == 0.0F) {
    format::zero_codes(codes, count);
    return mx ? uint8_t{0} : format::kE4M3One;
  }
  uint8_t scale = 0;
  float d = 0;
  if (mx) {
    scale = search_mx_scale(f, x, count, format::mx_scale_code(f, amax, rules.block.mx));
    d = format::decode_e8m0(scale);
  } else {
    scale = search_e4m3_scale(f, x, count, outer, amax / (f.max_value() * outer));
    d = format::block_divisor(outer, scale);
  }
  format::encode_divided(ElementCoder(f), x, count, d, codes);
  return scale;
}

}  // namespace

std::string_view scale_method_name(ScaleMethod method) {
  return method == ScaleMethod::kAmax ? "amax" : "mse";
}

Result<ScaleMethod> parse_scale_method(std::string_view name) {
  if (name == "amax") return ScaleMethod::kAmax;
  if (name == "mse") return ScaleMethod::kMse;
  return invalid_argument("unknown scale method '" + std::string(name) + "'; known: amax, mse");
}

std::string_view mx_rule_name(format::MxRule rule) {
  return rule == format::MxRule::kEven ? "even" : rule == format::MxRule::kCeil ? "ceil" : "floor";
}

Result<format::MxRule> parse_mx_rule(std::string_view name) {
  if (name == "even") return format::MxRule::kEven;
  if (name == "ceil") return format::MxRule::kCeil;
  if (name == "floor") return format::MxRule::kFloor;
  return invalid_argument("unknown MX exponent rule '" + std::string(name) +
                          "'; known: even, ceil, floor");
}

float quantize_row(const WeightFormat& format, const RowRules& rules, std::span<const float> x,
                   float alpha, std::span<uint8_t> codes, std::span<uint8_t> block_scales) {
  const auto count = static_cast<int64_t>(x.size());
  float outer = alpha;
  if (format.outer_scale != OuterScale::kTensor) {
    outer = format::choose_outer_scale(format, format::abs_max(x.data(), count));
  }
  if (rules.scale == ScaleMethod::kAmax) {
    format::quantize_row(format, rules.block, x, outer, codes, block_scales);
  } else if (format.block_scale == BlockScale::kNone) {
    if (outer != 0.0F) outer = search_channel_scale(format.element, x, outer);
    format::quantize_row(format, rules.block, x, outer, codes, block_scales);
  } else {
    for (int64_t g = 0, begin = 0; begin < count; ++g, begin += format.group) {
      const int64_t size = std::min<int64_t>(format.group, count - begin);
      block_scales[static_cast<size_t>(g)] =
          search_block(format, rules, x.data() + begin, size, outer, codes.data() + begin);
    }
  }
  return format::stored_outer_scale(outer);
}

RowError measure_row(const WeightFormat& format, std::span<const float> x, float outer,
                     std::span<const uint8_t> codes, std::span<const uint8_t> block_scales) {
  std::array<float, 256> table{};
  for (uint32_t code = 0; code < format.element.code_count(); ++code) {
    table[code] = format::decode_element(format.element, code);
  }
  const auto count = static_cast<int64_t>(x.size());
  const int64_t group = format.group == 0 ? count : format.group;
  std::array<double, kLanes> error{};
  std::array<double, kLanes> energy{};
  for (int64_t g = 0, begin = 0; begin < count; ++g, begin += group) {
    float d = outer;
    if (format.block_scale == BlockScale::kE4M3) {
      d = format::block_divisor(outer, block_scales[static_cast<size_t>(g)]);
    } else if (format.block_scale == BlockScale::kE8M0) {
      d = format::decode_e8m0(block_scales[static_cast<size_t>(g)]);
    }
    const int64_t end = std::min(begin + group, count);
    for (int64_t k = begin; k < end; ++k) {
      const auto lane = static_cast<size_t>(k % kLanes);
      const float value = table[codes[static_cast<size_t>(k)]] * d;
      const double v = x[static_cast<size_t>(k)];
      const double e = static_cast<double>(value) - v;
      error[lane] += e * e;
      energy[lane] += v * v;
    }
  }
  return {lane_sum(error), lane_sum(energy)};
}

}  // namespace sub8::quantize
