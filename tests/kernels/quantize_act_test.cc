// Quantise-and-extend against a plain program with tables of its own: every byte, every layout,
// every tail.
#include "kernels/quantize_act/quantize_act.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "format/bits.h"
#include "format/dtype.h"

namespace sub8::kernels {
namespace {

using format::ActivationFormat;

// ---- The plain program: tables of values, nearest by comparison, scales by their definition
// ------

std::vector<float> e2m1_table() { return {0, 0.5f, 1, 1.5f, 2, 3, 4, 6}; }
std::vector<float> e4m3_table() {
  std::vector<float> out;
  for (int code = 0; code <= 0x7e; ++code) {
    const int field = code >> 3;
    const int fraction = code & 7;
    out.push_back(field == 0 ? std::ldexp(static_cast<float>(fraction), -9)
                             : std::ldexp(static_cast<float>(8 + fraction), field - 10));
  }
  return out;
}

// The code nearest to x in a table of magnitudes; ties to the even code; saturating.
uint8_t nearest(const std::vector<float>& table, float x, int bits) {
  const double magnitude =
      std::min(std::fabs(static_cast<double>(x)), static_cast<double>(table.back()));
  size_t best = 0;
  for (size_t c = 1; c < table.size(); ++c) {
    const double now = std::fabs(magnitude - table[c]);
    const double before = std::fabs(magnitude - table[best]);
    if (now < before || (now == before && c % 2 == 0)) best = c;
  }
  return static_cast<uint8_t>(best | (std::signbit(x) ? size_t{1} << (bits - 1) : 0));
}
float value_of(const std::vector<float>& table, uint8_t code, int bits) {
  const auto mask = static_cast<uint8_t>((1u << (bits - 1)) - 1);
  const float v = table[code & mask];
  return (code >> (bits - 1) & 1) != 0 ? -v : v;
}

struct Row {
  std::vector<uint8_t> codes, scales;
  std::vector<float> values;  // q*s without alpha
  std::vector<float> approximation;
};

// `rule` even: the smallest power of two 2^e such that amax, rounded to the element's mantissa, is
// at most 2^(e + 1) times its largest power of two.
int mx_exponent(float amax, int mantissa_bits, int top) {
  int e = 0;
  const float fraction = std::frexp(amax, &e) * 2;  // [1, 2)
  e -= 1;
  const double unit = std::ldexp(1.0, -mantissa_bits);
  if (std::floor(static_cast<double>(fraction) / unit + 0.5) * unit >= 2) ++e;
  return std::max(-127, std::min(127, e - top));
}

Row plain(ActivationFormat f, const std::vector<float>& x, float alpha) {
  const bool fp4 = f == ActivationFormat::kNvfp4 || f == ActivationFormat::kMxfp4;
  const std::vector<float> elements = fp4 ? e2m1_table() : e4m3_table();
  const int bits = fp4 ? 4 : 8;
  const size_t block = f == ActivationFormat::kNvfp4 ? 16 : f == ActivationFormat::kFp8 ? 0 : 32;
  Row out;
  for (size_t begin = 0; begin < x.size();) {
    const size_t end = block == 0 ? x.size() : std::min(x.size(), begin + block);
    float amax = 0;
    for (size_t i = begin; i < end; ++i) amax = std::max(amax, std::fabs(x[i]));
    float scale = 1, inverse = 0, divisor = 0;
    uint8_t byte = 0;
    if (f == ActivationFormat::kNvfp4) {
      if (alpha != 0 && amax != 0) {
        byte = std::max<uint8_t>(1, nearest(e4m3_table(), amax / (6.0f * alpha), 8));
        scale = e4m3_table()[byte];
        divisor = alpha * scale;
        inverse = 1.0f / divisor;
      }
    } else if (f == ActivationFormat::kFp8) {
      divisor = alpha;
      if (alpha != 0) inverse = 1.0f / alpha;
    } else if (amax != 0) {
      const int e = mx_exponent(amax, fp4 ? 1 : 3, fp4 ? 2 : 8);
      byte = static_cast<uint8_t>(e + 127);
      scale = divisor = std::ldexp(1.0f, e);
      inverse = std::ldexp(1.0f, -e);
    }
    for (size_t i = begin; i < end; ++i) {
      const uint8_t code = inverse == 0 ? 0 : nearest(elements, x[i] * inverse, bits);
      out.codes.push_back(code);
      out.values.push_back(value_of(elements, code, bits) * scale);
      out.approximation.push_back(value_of(elements, code, bits) * divisor);
    }
    if (block != 0) out.scales.push_back(byte);
    begin = end;
  }
  return out;
}

float plain_alpha(ActivationFormat f, const std::vector<float>& x) {
  float amax = 0;
  for (const float v : x) amax = std::max(amax, std::fabs(v));
  const float alpha = f == ActivationFormat::kNvfp4 ? amax / 2688.0f
                      : f == ActivationFormat::kFp8 ? amax / 448.0f
                                                    : 1.0f;
  return f != ActivationFormat::kMxfp4 && f != ActivationFormat::kMxfp8 &&
                 alpha < std::ldexp(1.0f, -117)
             ? 0.0f
             : alpha;
}

// ---- Inputs ------------------------------------------------------------------------------------

struct Input {
  int64_t m, k;
  std::vector<uint16_t> bits;
  std::vector<float> row(int64_t i) const {
    std::vector<float> out;
    for (int64_t j = 0; j < k; ++j) out.push_back(format::bf16_to_float(bits[i * k + j]));
    return out;
  }
};

// Rows of different character: ordinary, outliers, zeros with both signs, tiny, huge, one value.
Input make_input(int64_t m, int64_t k, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  Input out{m, k, {}};
  for (int64_t i = 0; i < m; ++i) {
    const int kind = static_cast<int>((i + seed) % 6);
    for (int64_t j = 0; j < k; ++j) {
      float v = normal(random);
      if (kind == 1 && j % 13 == 5) v *= 300;
      if (kind == 2) v = j % 2 == 0 ? 0.0f : -0.0f;
      if (kind == 3) v *= std::ldexp(1.0f, -120);
      if (kind == 4) v *= std::ldexp(1.0f, 110);
      if (kind == 5) v = j == k / 2 ? v : 0.0f;
      out.bits.push_back(format::float_to_bf16(v));
    }
  }
  return out;
}

constexpr ActivationFormat kFormats[] = {ActivationFormat::kNvfp4, ActivationFormat::kMxfp4,
                                         ActivationFormat::kMxfp8, ActivationFormat::kFp8};

// A destination filled with a pattern, so that what was not written shows.
struct Destination {
  std::vector<uint8_t> codes, scales;
  std::vector<uint16_t> values;
  QuantizedRows rows;
  int64_t code_stride, scale_stride, cols;

  Destination(ActivationFormat f, int64_t count, int64_t columns) : cols(columns) {
    const int bits = format::activation_element(f).bits();
    const int block = format::activation_block(f);
    code_stride = format::packed_row_bytes(columns, bits) + 3;
    scale_stride = block == 0 ? 0 : (columns + block - 1) / block + 1;
    codes.assign(static_cast<size_t>(count * code_stride), 0xa5);
    scales.assign(static_cast<size_t>(count * scale_stride), 0xa5);
    values.assign(static_cast<size_t>(count * (columns + 1)), 0x7fc1);
    rows.codes = codes.data();
    rows.code_stride = code_stride;
    rows.scales = scales.data();
    rows.scale_stride = scale_stride;
  }
  QuantizedRows value_rows() {
    QuantizedRows out;
    out.values = values.data();
    out.value_stride = cols + 1;
    return out;
  }
};

void expect_row(ActivationFormat f, const Destination& got, int64_t row, const Row& want,
                const std::string& where) {
  const int bits = format::activation_element(f).bits();
  std::vector<uint8_t> packed(format::packed_row_bytes(got.cols, bits));
  format::pack_codes(want.codes.data(), got.cols, bits, packed.data());
  for (size_t i = 0; i < packed.size(); ++i)
    ASSERT_EQ(got.codes[row * got.code_stride + i], packed[i]) << where << " code byte " << i;
  for (size_t i = 0; i < want.scales.size(); ++i)
    ASSERT_EQ(got.scales[row * got.scale_stride + i], want.scales[i]) << where << " scale " << i;
  for (int64_t i = 0; i < got.cols; ++i) {
    const float v = format::bf16_to_float(got.values[row * (got.cols + 1) + i]);
    ASSERT_EQ(v, want.values[i]) << where << " value " << i;
  }
  ASSERT_EQ(got.codes[row * got.code_stride + static_cast<int64_t>(packed.size())], 0xa5) << where;
  ASSERT_EQ(got.values[row * (got.cols + 1) + got.cols], 0x7fc1) << where;
}

// Runs into codes and into values, on one path.
void run_path(QuantizeActArgs args, Destination& out, Destination* second,
              std::vector<float>& alpha) {
  ThreadPool pool(3);
  std::vector<std::byte> work(quantize_act_workspace_bytes(args.k, pool.size()));
  alpha.assign(args.m, NAN);
  args.alpha = alpha.data();
  args.out = out.rows;
  if (second != nullptr) args.second = second->rows;
  quantize_act(args, pool, work);
  args.out = out.value_rows();
  if (second != nullptr) args.second = second->value_rows();
  quantize_act(args, pool, work);
}

// The same on every path of this machine: all write the same bytes. (The scalar one's are left.)
void run(QuantizeActArgs args, Destination& out, Destination* second, std::vector<float>& alpha) {
  std::vector<CpuPath> paths = available_cpu_paths();
  std::reverse(paths.begin(), paths.end());
  std::vector<std::vector<uint8_t>> bytes;
  std::vector<std::vector<uint16_t>> values;
  for (const CpuPath path : paths) {
    args.path = path;
    run_path(args, out, second, alpha);
    for (const Destination* d :
         {static_cast<const Destination*>(&out), static_cast<const Destination*>(second)}) {
      if (d == nullptr) continue;
      bytes.push_back(d->codes);
      bytes.push_back(d->scales);
      values.push_back(d->values);
    }
  }
  const size_t each = bytes.size() / paths.size();
  for (size_t i = each; i < bytes.size(); ++i)
    ASSERT_EQ(bytes[i], bytes[i % each]) << cpu_path_name(paths[i / each]);
  for (size_t i = each / 2; i < values.size(); ++i)
    ASSERT_EQ(values[i], values[i % (each / 2)]) << cpu_path_name(paths[i / (each / 2)]);
}

std::vector<float> residue_of(const std::vector<float>& x, const Row& base) {
  std::vector<float> out;
  for (size_t i = 0; i < x.size(); ++i) out.push_back(x[i] - base.approximation[i]);
  return out;
}

TEST(QuantizeAct, EveryLayoutEqualsThePlainProgram) {
  for (const ActivationFormat f : kFormats) {
    for (const int64_t k : {1, 15, 16, 17, 31, 32, 33, 64, 100}) {
      for (const int64_t m : {1, 2, 7, 8, 9}) {
        const Input in = make_input(m, k, static_cast<uint32_t>(k * 31 + m));
        for (const QuantizedLayout layout :
             {QuantizedLayout::kRows, QuantizedLayout::kRowPair, QuantizedLayout::kTile8}) {
          QuantizeActArgs args;
          args.rule.format = f;
          args.x = in.bits.data();
          args.x_stride = k;
          args.m = m;
          args.k = k;
          args.layout = layout;
          args.residue = true;
          Destination out(f, quantized_rows(layout, m), k);
          Destination second(f, m, k);
          std::vector<float> alpha;
          run(args, out, layout == QuantizedLayout::kRows ? &second : nullptr, alpha);
          for (int64_t i = 0; i < m; ++i) {
            const std::vector<float> x = in.row(i);
            const std::string where = "format " + std::to_string(static_cast<int>(f)) + " k " +
                                      std::to_string(k) + " row " + std::to_string(i);
            ASSERT_EQ(alpha[i], plain_alpha(f, x)) << where;
            const Row base = plain(f, x, alpha[i]);
            const Row residue = plain(f, residue_of(x, base), alpha[i]);
            if (layout == QuantizedLayout::kRows) {
              expect_row(f, out, i, base, where);
              expect_row(f, second, i, residue, where + " residue");
            } else if (layout == QuantizedLayout::kRowPair) {
              expect_row(f, out, 2 * i, base, where);
              expect_row(f, out, 2 * i + 1, residue, where + " residue");
            } else {
              expect_row(f, out, i / 8 * 16 + i % 8, base, where);
              expect_row(f, out, i / 8 * 16 + i % 8 + 8, residue, where + " residue");
            }
          }
          if (layout == QuantizedLayout::kTile8) {
            const Row zero = plain(f, std::vector<float>(k, 0.0f), 1.0f);
            for (int64_t i = m; i < (m + 7) / 8 * 8; ++i) {
              expect_row(f, out, i / 8 * 16 + i % 8, zero, "padding");
              expect_row(f, out, i / 8 * 16 + i % 8 + 8, zero, "padding");
            }
          }
        }
      }
    }
  }
}

// Bits drawn at random, rules and alphas of every kind, against format/activation.h block by block.
TEST(QuantizeAct, EveryPathEqualsTheFormatsBlocks) {
  std::mt19937 random(5);
  const int64_t k = 200;
  for (int round = 0; round < 400; ++round) {
    const bool nvfp4 = round % 2 == 0;
    QuantizeActArgs args;
    args.rule.format = nvfp4 ? ActivationFormat::kNvfp4 : ActivationFormat::kMxfp4;
    args.rule.mx_rule = static_cast<format::MxRule>(round / 2 % 3);
    if (round % 5 == 0) {  // down to alphas whose divisors are subnormal, up to saturated scales
      args.rule.alpha_source = AlphaSource::kStatic;
      args.rule.static_alpha = std::ldexp(1.0f + static_cast<float>(random() % 100) / 100,
                                          static_cast<int>(random() % 260) - 140);
    }
    std::vector<uint16_t> x(k);
    for (uint16_t& bits : x) {
      bits = static_cast<uint16_t>(random());
      if (round % 3 != 0)  // near each other, so that codes of all sizes occur
        bits = static_cast<uint16_t>((bits & 0x83ffu) + 0x3c00u + (round % 7 == 0 ? 0x3800u : 0u));
      if ((bits & 0x7f80u) >= 0x7e80u) bits = 0;  // finite, below 2^127
    }
    args.x = x.data();
    args.x_stride = args.k = k;
    args.m = 1;
    args.layout = QuantizedLayout::kRowPair;
    args.residue = true;
    Destination out(args.rule.format, 2, k);
    std::vector<float> alpha;
    run(args, out, nullptr, alpha);
    std::vector<float> row;
    for (const uint16_t bits : x) row.push_back(format::bf16_to_float(bits));
    const int block = format::activation_block(args.rule.format);
    for (int64_t begin = 0, b = 0; begin < k; begin += block, ++b) {
      const int64_t count = std::min<int64_t>(block, k - begin);
      for (int64_t r = 0; r < 2; ++r) {  // the base, then its residue
        uint8_t codes[32] = {};
        const uint8_t scale = format::quantize_activation_block(
            args.rule.format, args.rule.mx_rule, &row[begin], count, alpha[0], codes);
        ASSERT_EQ(out.scales[r * out.scale_stride + b], scale) << "round " << round;
        for (int64_t i = 0; i < count; ++i) {
          const uint8_t pair = out.codes[r * out.code_stride + (begin + i) / 2];
          ASSERT_EQ(pair >> ((begin + i) % 2 * 4) & 15, codes[i])
              << "round " << round << " row " << r << " element " << begin + i;
        }
        format::residue_block(args.rule.format, &row[begin], codes, count, scale, alpha[0],
                              &row[begin]);
      }
    }
  }
}

TEST(QuantizeAct, ExtendedRowsHoldTheSelectedResidues) {
  for (const ActivationFormat f : kFormats) {
    for (const int population : {1, 2, 4, 8}) {
      for (const int64_t k : {8, 16, 20, 33, 64, 104}) {
        const int64_t m = 5;
        const Input in = make_input(m, k, static_cast<uint32_t>(k + population));
        std::vector<uint8_t> masks((k + 7) / 8);
        for (size_t g = 0; g < masks.size(); ++g) {
          // `population` bits, rotated; a short last group also selects channels that do not exist.
          const unsigned ones = (1u << population) - 1;
          const unsigned turn = static_cast<unsigned>(g) % 8;
          masks[g] = static_cast<uint8_t>(ones << turn | ones >> (8 - turn));
        }
        const int block = std::max(1, format::activation_block(f));
        const int64_t start = (k + block - 1) / block * block;
        QuantizeActArgs args;
        args.rule.format = f;
        args.x = in.bits.data();
        args.x_stride = k;
        args.m = m;
        args.k = k;
        args.layout = QuantizedLayout::kKExtended;
        args.residue = true;
        args.selected = masks;
        const int64_t cols = quantized_cols(args.layout, f, k, masks);
        ASSERT_EQ(cols, start + static_cast<int64_t>(masks.size()) * population);
        Destination out(f, m, cols);
        std::vector<float> alpha;
        run(args, out, nullptr, alpha);
        for (int64_t i = 0; i < m; ++i) {
          const std::vector<float> x = in.row(i);
          Row want = plain(f, x, alpha[i]);
          const std::vector<float> r = residue_of(x, want);
          std::vector<float> selected;
          for (int64_t c = 0; c < static_cast<int64_t>(masks.size()) * 8; ++c) {
            if ((masks[c / 8] >> (c % 8) & 1) != 0) selected.push_back(c < k ? r[c] : 0.0f);
          }
          const Row extension = plain(f, selected, alpha[i]);
          want.codes.resize(start, 0);
          want.values.resize(start, 0.0f);
          want.codes.insert(want.codes.end(), extension.codes.begin(), extension.codes.end());
          want.values.insert(want.values.end(), extension.values.begin(), extension.values.end());
          want.scales.insert(want.scales.end(), extension.scales.begin(), extension.scales.end());
          expect_row(f, out, i, want, "extended row " + std::to_string(i));
        }
      }
    }
  }
}

TEST(QuantizeAct, StaticAlphaSaturatesAndTheResidueTakesTheRest) {
  const Input in = make_input(6, 48, 6);
  QuantizeActArgs args;
  args.x = in.bits.data();
  args.x_stride = 48;
  args.m = 6;
  args.k = 48;
  args.layout = QuantizedLayout::kRowPair;
  args.residue = true;
  args.rule.alpha_source = AlphaSource::kStatic;
  args.rule.static_alpha = std::ldexp(1.0f, -20);  // 448 * 6 * 2^-20 is far below most values
  Destination out(ActivationFormat::kNvfp4, 12, 48);
  std::vector<float> alpha;
  run(args, out, nullptr, alpha);
  for (int64_t i = 0; i < 6; ++i) {
    ASSERT_EQ(alpha[i], args.rule.static_alpha);
    const Row base = plain(ActivationFormat::kNvfp4, in.row(i), alpha[i]);
    expect_row(ActivationFormat::kNvfp4, out, 2 * i, base, "base");
    expect_row(ActivationFormat::kNvfp4, out, 2 * i + 1,
               plain(ActivationFormat::kNvfp4, residue_of(in.row(i), base), alpha[i]), "residue");
  }
}

TEST(QuantizeAct, TensorAlphaIsTheLargestRowsAndRowAlphaIsTheRowsOwn) {
  const Input in = make_input(4, 32, 0);
  QuantizeActArgs args;
  args.x = in.bits.data();
  args.x_stride = 32;
  args.m = 4;
  args.k = 32;
  args.rule.alpha_source = AlphaSource::kTensor;
  Destination out(ActivationFormat::kNvfp4, 4, 32);
  std::vector<float> alpha;
  run(args, out, nullptr, alpha);
  float most = 0;
  for (int64_t i = 0; i < 4; ++i)
    most = std::max(most, plain_alpha(ActivationFormat::kNvfp4, in.row(i)));
  for (const float a : alpha) EXPECT_EQ(a, most);
}

// Both rows of a pair are found, in every layout, and each operation happens once and in order.
TEST(Fold, AddsPairsThenScalesThenAddsTheBias) {
  ThreadPool pool(2);
  const int64_t m = 11;
  const int64_t n = 5;
  for (const QuantizedLayout layout :
       {QuantizedLayout::kRows, QuantizedLayout::kRowPair, QuantizedLayout::kTile8}) {
    const int64_t rows = quantized_rows(layout, m);
    std::vector<float> raw(rows * (n + 1)), alpha(m), outer(n), bias(n), y(m * n, 7.0f);
    for (size_t i = 0; i < raw.size(); ++i) raw[i] = 1.0f / static_cast<float>(i + 3);
    for (int64_t i = 0; i < m; ++i) alpha[i] = 1.0f / static_cast<float>(3 * i + 7);
    for (int64_t j = 0; j < n; ++j) {
      outer[j] = 1.0f / static_cast<float>(j + 11);
      bias[j] = 0.3f * static_cast<float>(j);
    }
    for (const bool accumulate : {false, true}) {
      std::fill(y.begin(), y.end(), 7.0f);
      fold({.raw = raw.data(),
            .raw_stride = n + 1,
            .layout = layout,
            .m = m,
            .n = n,
            .alpha = alpha.data(),
            .outer = outer.data(),
            .bias = bias.data(),
            .accumulate = accumulate,
            .y = y.data(),
            .y_stride = n},
           pool);
      for (int64_t i = 0; i < m; ++i) {
        const int64_t base = layout == QuantizedLayout::kRows      ? i
                             : layout == QuantizedLayout::kRowPair ? 2 * i
                                                                   : i / 8 * 16 + i % 8;
        const int64_t step = layout == QuantizedLayout::kRowPair ? 1 : 8;
        for (int64_t j = 0; j < n; ++j) {
          float sum = raw[base * (n + 1) + j];
          if (layout != QuantizedLayout::kRows) sum += raw[(base + step) * (n + 1) + j];
          const float scale = alpha[i] * outer[j];
          float want = sum * scale;
          want += bias[j];
          if (accumulate) want = 7.0f + want;
          ASSERT_EQ(y[i * n + j], want) << i << " " << j;
        }
      }
    }
  }
}

}  // namespace
}  // namespace sub8::kernels
