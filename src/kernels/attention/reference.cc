#include "kernels/attention/reference.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace sub8::kernels {
namespace {

constexpr double kUnit = 0x1p-24;  // half a unit in the last place of FP32

// Element `column` of token `key`, head `kv_head`; `v` picks V.
double cached(const KvLayout& kv, const uint8_t* pages, const int32_t* page_table, bool v,
              int kv_head, int64_t key, int column) {
  const int64_t size = kv.type == KvType::kF32 ? 4 : 2;
  const int64_t per_part = int64_t{kv.kv_heads} * 32 * kv.head_dim;
  const int64_t element = (page_table[key / 32] * 2 + (v ? 1 : 0)) * per_part +
                          (int64_t{kv_head} * 32 + key % 32) * kv.head_dim + column;
  uint32_t bits = 0;
  std::memcpy(&bits, pages + element * size, static_cast<size_t>(size));
  if (size == 2) bits <<= 16;
  float value = 0;
  std::memcpy(&value, &bits, 4);
  return value;
}

struct Score {
  double value;
  double error;
};

Score score_of(const AttentionShape& shape, double dot, double magnitude) {
  const double scale = shape.scale;
  const double error = (shape.kv.head_dim + 3) * kUnit * magnitude * std::abs(scale);
  const double s = dot * scale;
  if (shape.soft_cap == 0) return {s, error};
  const double cap = shape.soft_cap;
  return {cap * std::tanh(s / cap), error + 16 * kUnit * std::min(cap, std::abs(s))};
}

}  // namespace

AttentionReference attention_reference(const AttentionShape& shape, const uint8_t* pages,
                                       InputRows q, std::span<const AttentionRow> rows) {
  const int d = shape.kv.head_dim;
  const int group = shape.heads / shape.kv.kv_heads;
  AttentionReference out;
  out.value.resize(rows.size() * static_cast<size_t>(shape.heads) * static_cast<size_t>(d));
  out.bound.resize(out.value.size());
  std::vector<Score> scores;
  for (size_t r = 0; r < rows.size(); ++r) {
    const int64_t last = rows[r].position;
    const int64_t first = shape.window == 0 ? 0 : std::max<int64_t>(0, last - shape.window + 1);
    for (int h = 0; h < shape.heads; ++h) {
      scores.clear();
      double top = shape.sinks != nullptr ? shape.sinks[h] : -INFINITY;
      for (int64_t key = first; key <= last; ++key) {
        double dot = 0;
        double magnitude = 0;
        for (int c = 0; c < d; ++c) {
          float x = q.data[static_cast<int64_t>(r) * q.stride + int64_t{h} * d + c];
          if (shape.round_q) x = format::round_to_bf16(x);
          const double term =
              x * cached(shape.kv, pages, rows[r].page_table, false, h / group, key, c);
          dot += term;
          magnitude += std::abs(term);
        }
        scores.push_back(score_of(shape, dot, magnitude));
        top = std::max(top, scores.back().value);
      }
      double sum = shape.sinks != nullptr ? std::exp(shape.sinks[h] - top) : 0.0;
      double mean_error = 0;  // of the weights, relative, averaged by weight
      std::vector<double> errors;
      for (Score& s : scores) {
        const double distance = top - s.value;
        const double relative = s.error + (distance + 8) * kUnit;
        s.value = std::exp(-distance);
        errors.push_back(std::min(relative * std::exp(std::min(relative, 50.0)), 1e30));
        sum += s.value;
        mean_error += s.value * errors.back();
      }
      mean_error /= sum;
      const int64_t whole_splits = (last - first) / 512;
      const double splits = static_cast<double>(whole_splits) + 2;
      const double terms = static_cast<double>(std::min<int64_t>(last - first + 1, 512));
      const double chain = (terms + 16 * splits + 16) * kUnit;
      for (int c = 0; c < d; ++c) {
        double value = 0;
        double bound = 0;
        for (size_t i = 0; i < scores.size(); ++i) {
          const double v = cached(shape.kv, pages, rows[r].page_table, true, h / group,
                                  first + static_cast<int64_t>(i), c);
          const double weight = scores[i].value / sum;
          value += weight * v;
          bound += weight * std::abs(v) * (errors[i] + mean_error + 2 * chain);
        }
        const size_t at = (r * static_cast<size_t>(shape.heads) + static_cast<size_t>(h)) *
                              static_cast<size_t>(d) +
                          static_cast<size_t>(c);
        out.value[at] = value;
        out.bound[at] = bound + 1e-36;
      }
    }
  }
  return out;
}

}  // namespace sub8::kernels
