#include "kernels/rope/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>

#include "base/check.h"
#include "kernels/rope/kernels.h"

namespace sub8::kernels {
namespace {

constexpr double kTau = 2.0 * std::numbers::pi;

Error bad_field(std::string_view field, double got, std::string_view want) {
  return invalid_argument("rope parameters: " + std::string(field) + " is " + std::to_string(got) +
                          "; expected " + std::string(want));
}

Status check_parameters(const RopeParameters& p) {
  if (p.dims < 2 || p.dims % 2 != 0)
    return bad_field("the number of rotated dimensions", p.dims, "an even number of at least 2");
  if (!(p.theta > 1.0) || !std::isfinite(p.theta))
    return bad_field("rope_theta", p.theta, "a finite number above 1");
  if (!(p.attention_factor > 0.0) || !std::isfinite(p.attention_factor))
    return bad_field("attention_factor", p.attention_factor, "a positive number");
  if (p.type == RopeType::kDefault) return {};
  if (!(p.factor >= 1.0) || !std::isfinite(p.factor))
    return bad_field("factor", p.factor, "a finite number of at least 1");
  if (p.type == RopeType::kLinear) return {};
  if (!(p.original_max_position_embeddings >= 1.0) ||
      !std::isfinite(p.original_max_position_embeddings)) {
    return bad_field("original_max_position_embeddings", p.original_max_position_embeddings,
                     "the context length before scaling");
  }
  if (p.type == RopeType::kLlama3) {
    if (!(p.low_freq_factor > 0.0) || !std::isfinite(p.low_freq_factor))
      return bad_field("low_freq_factor", p.low_freq_factor, "a positive number");
    if (!(p.high_freq_factor > p.low_freq_factor) || !std::isfinite(p.high_freq_factor))
      return bad_field("high_freq_factor", p.high_freq_factor, "more than low_freq_factor");
    return {};
  }
  if (!(p.beta_slow > 0.0) || !std::isfinite(p.beta_slow))
    return bad_field("beta_slow", p.beta_slow, "a positive number");
  if (!(p.beta_fast >= p.beta_slow) || !std::isfinite(p.beta_fast))
    return bad_field("beta_fast", p.beta_fast, "at least beta_slow");
  return {};
}

// Long wavelengths are stretched by `factor`, short ones kept, those between blended.
float llama3_frequency(const RopeParameters& p, float f) {
  const auto factor = static_cast<float>(p.factor);
  const auto original = static_cast<float>(p.original_max_position_embeddings);
  const auto low = static_cast<float>(p.low_freq_factor);
  const double longest_kept = p.original_max_position_embeddings / p.high_freq_factor;
  const double shortest_scaled = p.original_max_position_embeddings / p.low_freq_factor;
  const float wavelength = static_cast<float>(kTau) / f;
  if (wavelength < static_cast<float>(longest_kept)) return f;
  if (wavelength > static_cast<float>(shortest_scaled)) return f / factor;
  const float blend =
      (original / wavelength - low) / static_cast<float>(p.high_freq_factor - p.low_freq_factor);
  return (1.0f - blend) * f / factor + blend * f;
}

// The pair indices between which YaRN goes from "kept" to "stretched".
struct YarnRange {
  double low;
  double high;
};

YarnRange yarn_range(const RopeParameters& p) {
  const auto dim_of = [&](double rotations) {
    return p.dims * std::log(p.original_max_position_embeddings / (rotations * kTau)) /
           (2.0 * std::log(p.theta));
  };
  double low = dim_of(p.beta_fast);
  double high = dim_of(p.beta_slow);
  if (p.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(p.dims - 1));
  if (low == high) high += 0.001;
  return {low, high};
}

// `power` is theta^(2i/dims).
float yarn_frequency(const RopeParameters& p, const YarnRange& range, int i, float power) {
  const float ramp = std::clamp((static_cast<float>(i) - static_cast<float>(range.low)) /
                                    static_cast<float>(range.high - range.low),
                                0.0f, 1.0f);
  const float kept = 1.0f - ramp;
  const float stretched = 1.0f / (static_cast<float>(p.factor) * power);
  return stretched * (1.0f - kept) + 1.0f / power * kept;
}

}  // namespace

Result<RopeFrequencies> rope_frequencies(const RopeParameters& p) {
  SUB8_RETURN_IF_ERROR(check_parameters(p));
  RopeFrequencies out;
  out.inverse.resize(static_cast<size_t>(p.dims / 2));
  const YarnRange range = p.type == RopeType::kYarn ? yarn_range(p) : YarnRange{0, 1};
  for (int i = 0; i < p.dims / 2; ++i) {
    // FP32 step by step, as transformers does it: the models were trained with these values.
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(p.dims);
    const auto power = static_cast<float>(std::pow(p.theta, double{exponent}));
    float f = 1.0f / power;
    switch (p.type) {
      case RopeType::kDefault:
        break;
      case RopeType::kLinear:
        f /= static_cast<float>(p.factor);
        break;
      case RopeType::kLlama3:
        f = llama3_frequency(p, f);
        break;
      case RopeType::kYarn:
        f = yarn_frequency(p, range, i, power);
        break;
    }
    out.inverse[static_cast<size_t>(i)] = f;
  }
  out.attention_factor = static_cast<float>(p.attention_factor);
  return out;
}

void fill_rope_table(const RopeFrequencies& frequencies, ThreadPool& pool,
                     std::span<const int32_t> positions, float* table) {
  const int64_t half = static_cast<int64_t>(frequencies.inverse.size());
  const float factor = frequencies.attention_factor;
  pool.for_ranges(static_cast<int64_t>(positions.size()), 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) {
      const float position = static_cast<float>(positions[r]);
      float* row = table + r * 2 * half;
      for (int64_t i = 0; i < half; ++i) {
        const float angle = position * frequencies.inverse[i];
        row[i] = static_cast<float>(std::cos(double{angle})) * factor;
        row[half + i] = static_cast<float>(std::sin(double{angle})) * factor;
      }
    }
  });
}

void apply_rope(CpuPath path, ThreadPool& pool, float* x, int64_t rows, int64_t stride, int heads,
                int head_dim, int dims, const float* table) {
  if (rows == 0) return;
  SUB8_CHECK_LE(dims, head_dim);
  SUB8_CHECK_GE(stride, int64_t{heads} * head_dim);
  const RopeKernels& kernels = SUB8_PICK_KERNELS(path, kRope);
  const int64_t half = dims / 2;
  pool.for_ranges(rows, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) {
      const float* cos = table + r * dims;
      for (int h = 0; h < heads; ++h)
        kernels.rotate(x + r * stride + int64_t{h} * head_dim, cos, cos + half, half);
    }
  });
}

}  // namespace sub8::kernels
