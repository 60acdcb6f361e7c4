#include "kernels/attention/reference.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>

namespace sub8::kernels {
namespace {

constexpr double kUnit = 0x1p-24;  // half a unit in the last place of FP32

double fp32(double x) { return static_cast<float>(x); }

// ---- Elements, a second time -------------------------------------------------------------------

double e2m1(int code) {
  constexpr double kValues[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  return (code & 8) != 0 ? -kValues[code & 7] : kValues[code & 7];
}

double e4m3(int byte) {
  const int field = byte >> 3 & 15;
  const int fraction = byte & 7;
  if ((byte & 0x7f) == 0x7f) return NAN;
  const double value = field == 0 ? std::ldexp(fraction, -9) : std::ldexp(8 + fraction, field - 10);
  return (byte & 0x80) != 0 ? -value : value;
}

// The nearest multiple of `unit`, ties to even.
double to_multiple(double x, double unit) { return std::nearbyint(x / unit) * unit; }

double round_e4m3(double x) {
  if (std::isnan(x)) return x;
  const double magnitude = std::min(std::abs(x), 448.0);
  const int exponent = magnitude == 0 ? -6 : std::max(std::ilogb(magnitude), -6);
  return std::copysign(to_multiple(magnitude, std::ldexp(1.0, exponent - 3)), x);
}

double round_e2m1(double x) {
  const double magnitude = std::min(std::abs(x), 6.0);
  const double unit = magnitude < 2 ? 0.5 : magnitude < 4 ? 1 : 2;
  return std::copysign(to_multiple(magnitude, unit), x);
}

double round_bf16(double x) {  // of an FP32 value in the normal range, or zero
  return x == 0 ? 0 : to_multiple(x, std::ldexp(1.0, std::ilogb(x) - 7));
}

// ---- Pages -------------------------------------------------------------------------------------

struct Cached {
  double element = 0;  // without scales
  double scale = 1;    // of the block
};

// Element `column` of token `key`, head `kv_head`; `v` picks V.
Cached cached(const KvLayout& kv, const uint8_t* pages, const int32_t* page_table, bool v,
              int kv_head, int64_t key, int column) {
  const int64_t tokens = int64_t{kv.kv_heads} * 32;
  const int64_t bits = kv.type == KvType::kF32     ? 32
                       : kv.type == KvType::kBF16  ? 16
                       : kv.type == KvType::kNvfp4 ? 4
                                                   : 8;
  const int64_t blocks = kv.type == KvType::kNvfp4 ? (kv.head_dim + 15) / 16 : 0;
  const int64_t data = tokens * kv.head_dim * bits / 8;
  const int64_t part = data + tokens * blocks;
  const uint8_t* at = pages + (page_table[key / 32] * 2 + (v ? 1 : 0)) * part;
  const int64_t token = int64_t{kv_head} * 32 + key % 32;
  const int64_t element = token * kv.head_dim + column;
  if (bits == 4) {
    const int code = at[element / 2] >> (element % 2 * 4) & 15;
    return {e2m1(code), e4m3(at[data + token * blocks + column / 16])};
  }
  if (bits == 8) return {e4m3(at[element])};
  uint32_t raw = 0;
  std::memcpy(&raw, at + element * bits / 8, static_cast<size_t>(bits / 8));
  if (bits == 16) raw <<= 16;
  float value = 0;
  std::memcpy(&value, &raw, 4);
  return {value};
}

// What a cached element counts as: decoded, or, in the kinds that quantise queries, as stored and
// then without alpha.
double value_of(const AttentionShape& shape, const Cached& x, bool v) {
  if (shape.kv.type == KvType::kF32 || shape.kv.type == KvType::kBF16) return x.element;
  if (!quantises_queries(shape.kind))
    return fp32(x.element * fp32((v ? shape.kv_scales.v : shape.kv_scales.k) * x.scale));
  const bool to_e4m3 =
      v ? shape.kind != AttentionKind::kResAttnPv16 : shape.kind == AttentionKind::kFp8Query;
  return to_e4m3 ? round_e4m3(x.element * x.scale) : x.element * x.scale;
}

// The keys of one sequence and KV head, [keys, head_dim].
struct Head {
  std::vector<double> k, v;
};

Head read_head(const AttentionShape& shape, const uint8_t* pages, const int32_t* page_table,
               int kv_head, int64_t keys) {
  Head out;
  for (int64_t key = 0; key < keys; ++key) {
    for (int c = 0; c < shape.kv.head_dim; ++c) {
      for (const bool v : {false, true}) {
        (v ? out.v : out.k)
            .push_back(value_of(shape, cached(shape.kv, pages, page_table, v, kv_head, key, c), v));
      }
    }
  }
  return out;
}

// ---- Queries -----------------------------------------------------------------------------------

// One head of one token: the values that meet K, `terms` of them per column, and what a unit of
// them is worth.
struct Query {
  std::vector<double> terms[2];
  double alpha = 1;
};

void quantise(const std::vector<double>& x, bool fp8, double alpha, std::vector<double>& stored,
              std::vector<double>& left) {
  stored.assign(x.size(), 0.0);
  left = x;
  if (alpha == 0) return;
  const size_t block = fp8 ? x.size() : 16;
  for (size_t begin = 0; begin < x.size(); begin += block) {
    const size_t end = std::min(begin + block, x.size());
    double amax = 0;
    for (size_t i = begin; i < end; ++i) amax = std::max(amax, std::abs(x[i]));
    if (amax == 0) continue;
    const double s =
        fp8 ? 1.0 : std::max(round_e4m3(std::min(fp32(amax / fp32(6 * alpha)), 448.0)), 0x1p-9);
    const double d = fp32(alpha * s);
    const double inverse = fp32(1 / d);
    for (size_t i = begin; i < end; ++i) {
      const double scaled = fp32(x[i] * inverse);
      const double q = fp8 ? round_e4m3(scaled) : round_e2m1(scaled);
      stored[i] = q * s;
      left[i] = fp32(x[i] - fp32(q * d));
    }
  }
}

Query make_query(const AttentionShape& shape, const float* x) {
  std::vector<double> values;
  values.reserve(static_cast<size_t>(shape.kv.head_dim));
  for (int c = 0; c < shape.kv.head_dim; ++c)
    values.push_back(shape.round_q ? format::round_to_bf16(x[c]) : x[c]);
  Query out;
  if (shape.kind == AttentionKind::k16Bit) {
    out.terms[0] = values;
    return out;
  }
  const bool fp8 = shape.kind == AttentionKind::kFp8Query;
  double amax = 0;
  for (const double value : values) amax = std::max(amax, std::abs(value));
  out.alpha = fp32(amax / (fp8 ? 448 : 2688));
  if (out.alpha < 0x1p-117) out.alpha = 0;
  std::vector<double> left;
  quantise(values, fp8, out.alpha, out.terms[0], left);
  if (!fp8 && shape.kind != AttentionKind::kFp4Query) {
    std::vector<double> rest;
    quantise(left, fp8, out.alpha, out.terms[1], rest);
  }
  return out;
}

// ---- Scores ------------------------------------------------------------------------------------

struct Score {
  double value;
  double error;
};

Score score_of(const AttentionShape& shape, double dot, double magnitude, double factor) {
  const double error = (shape.kv.head_dim + 8) * kUnit * magnitude * std::abs(factor);
  const double s = dot * factor;
  if (shape.soft_cap == 0) return {s, error};
  const double cap = shape.soft_cap;
  return {cap * std::tanh(s / cap), error + 16 * kUnit * std::min(cap, std::abs(s))};
}

// Of the keys [first, last] with one head of one row.
std::vector<Score> scores_of(const AttentionShape& shape, const Head& head, const float* q,
                             int64_t first, int64_t last) {
  const Query query = make_query(shape, q);
  const auto d = static_cast<size_t>(shape.kv.head_dim);
  const double factor = quantises_queries(shape.kind)
                            ? query.alpha * shape.kv_scales.k * shape.scale
                            : double{shape.scale};
  std::vector<Score> out;
  for (int64_t key = first; key <= last; ++key) {
    const double* k = head.k.data() + static_cast<size_t>(key) * d;
    double dot = 0;
    double magnitude = 0;
    for (const auto& term : query.terms) {
      for (size_t c = 0; c < term.size(); ++c) {
        dot += term[c] * k[c];
        magnitude += std::abs(term[c] * k[c]);
      }
    }
    out.push_back(score_of(shape, dot, magnitude, factor));
  }
  return out;
}

// ---- Weights -----------------------------------------------------------------------------------

// What V is multiplied by, relative to exp(-top), and how far a kernel may be from it.
struct Weight {
  double value;
  double error;
};

double round_probability(AttentionKind kind, double p) {
  if (kind == AttentionKind::k16Bit) return p;
  const bool bf16 = kind == AttentionKind::kResAttnV8 || kind == AttentionKind::kResAttnPv16;
  return bf16 ? round_bf16(p) : round_e4m3(p * 256) / 256;
}

// A kernel's exponential is within `relative` of the exact one, so what it is rounded to lies
// between what the ends of that interval are rounded to.
Weight rounded_weight(AttentionKind kind, double p, double relative) {
  const double value = round_probability(kind, p);
  const double low = round_probability(kind, p * (1 - std::min(relative, 1.0)));
  const double high = round_probability(
      kind, std::min(p * (1 + relative), kind == AttentionKind::k16Bit ? INFINITY : 1.0));
  return {value, std::max(high - value, value - low)};
}

struct Softmax {
  std::vector<Weight> weights;  // times exp(split's maximum - top)
  double sum = 0;
  double sum_error = 0;  // relative
};

Softmax softmax_of(const AttentionShape& shape, const std::vector<Score>& scores, int64_t first,
                   const float* sink) {
  double top = sink != nullptr ? *sink : -INFINITY;
  for (const Score& s : scores) top = std::max(top, s.value);
  Softmax out;
  out.sum = sink != nullptr ? std::exp(*sink - top) : 0.0;
  for (size_t begin = 0; begin < scores.size();) {
    const int64_t split = (first + static_cast<int64_t>(begin)) / 512;
    const size_t end = std::min(scores.size(), static_cast<size_t>((split + 1) * 512 - first));
    double m = -INFINITY;
    double m_error = 0;
    for (size_t i = begin; i < end; ++i) {
      m = std::max(m, scores[i].value);
      m_error = std::max(m_error, scores[i].error);
    }
    // 16-bit: the maximum cancels, and is not rounded against.
    if (shape.kind == AttentionKind::k16Bit) m_error = 0;
    const double share = std::exp(m - top);
    for (size_t i = begin; i < end; ++i) {
      const double distance = top - scores[i].value;
      const double error = scores[i].error + m_error + (distance + 8) * kUnit;
      const double relative = std::min(error * std::exp(std::min(error, 50.0)), 1e30);
      const double p = std::exp(scores[i].value - m);
      const Weight w = rounded_weight(shape.kind, p, relative);
      const double m_relative = 2 * m_error + (top - m + 8) * kUnit;
      out.weights.push_back({w.value * share, (w.error + w.value * m_relative) * share});
      out.sum += p * share;
      out.sum_error += p * share * (relative + m_relative);
    }
    begin = end;
  }
  out.sum_error /= out.sum;
  return out;
}

}  // namespace

AttentionReference attention_reference(const AttentionShape& shape, const uint8_t* pages,
                                       InputRows q, std::span<const AttentionRow> rows) {
  const int d = shape.kv.head_dim;
  const int group = shape.heads / shape.kv.kv_heads;
  AttentionReference out;
  out.value.resize(rows.size() * static_cast<size_t>(shape.heads) * static_cast<size_t>(d));
  out.bound.resize(out.value.size());
  std::map<const int32_t*, int64_t> keys;  // of every sequence
  for (const AttentionRow& row : rows)
    keys[row.page_table] = std::max<int64_t>(keys[row.page_table], row.position + 1);
  const double alpha_v = quantises_queries(shape.kind) ? shape.kv_scales.v : 1.0;
  for (int h = 0; h < shape.heads; ++h) {
    std::map<const int32_t*, Head> heads;
    for (size_t r = 0; r < rows.size(); ++r) {
      const int32_t* table = rows[r].page_table;
      auto at = heads.find(table);
      if (at == heads.end())
        at = heads.emplace(table, read_head(shape, pages, table, h / group, keys[table])).first;
      const int64_t last = rows[r].position;
      const int64_t first = shape.window == 0 ? 0 : std::max<int64_t>(0, last - shape.window + 1);
      const float* query = q.data + static_cast<int64_t>(r) * q.stride + int64_t{h} * d;
      const Softmax softmax = softmax_of(shape, scores_of(shape, at->second, query, first, last),
                                         first, shape.sinks == nullptr ? nullptr : shape.sinks + h);
      const int64_t whole_splits = (last - first) / 512;
      const double splits = static_cast<double>(whole_splits) + 2;
      const double terms = static_cast<double>(std::min<int64_t>(last - first + 1, 512));
      const double chain = (terms + 16 * splits + 16) * kUnit;
      for (int c = 0; c < d; ++c) {
        double value = 0;
        double bound = 0;
        for (size_t i = 0; i < softmax.weights.size(); ++i) {
          const auto key = static_cast<size_t>(first) + i;
          const double v =
              at->second.v[key * static_cast<size_t>(d) + static_cast<size_t>(c)] * alpha_v;
          const Weight& w = softmax.weights[i];
          value += w.value * v;
          bound += (w.error + w.value * (softmax.sum_error + 2 * chain)) * std::abs(v);
        }
        const size_t place = (r * static_cast<size_t>(shape.heads) + static_cast<size_t>(h)) *
                                 static_cast<size_t>(d) +
                             static_cast<size_t>(c);
        out.value[place] = value / softmax.sum;
        out.bound[place] = bound / softmax.sum + 1e-36;
      }
    }
  }
  return out;
}

}  // namespace sub8::kernels
