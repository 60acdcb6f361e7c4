// Linear layers on quantised rows: quantize_act, raw sums, fold, against sums in double over the
// values that codes and scales stand for.
#include <cmath>

#include <gtest/gtest.h>

#include "kernels/quantize_act/quantize_act.h"
#include "linear_testing.h"
#include "tensor/decode.h"

namespace sub8::testing {
namespace {

using format::ActivationFormat;
using kernels::QuantizedLayout;

struct Case {
  ActivationFormat activations;
  format::WeightFormat weights;
};
std::vector<Case> cases() {
  return {{ActivationFormat::kNvfp4, format::nvfp4_format()},
          {ActivationFormat::kMxfp4, format::mx_format(format::kE2M1)},
          {ActivationFormat::kFp8, format::nvfp4_format()},
          {ActivationFormat::kMxfp8, format::mx_format(format::kE2M1)},
          {ActivationFormat::kFp8, format::channel_format(format::kE3M2)},
          {ActivationFormat::kFp8, format::group_format(format::kE2M1, 32)},
          {ActivationFormat::kMxfp8, format::mx_format(format::kE3M2)}};
}

struct Quantized {
  int64_t rows = 0, cols = 0;
  std::vector<uint16_t> values;
  std::vector<float> alpha;
};

Quantized quantize(const kernels::ActivationRule& rule, const std::vector<uint16_t>& x, int64_t m,
                   int64_t k, QuantizedLayout layout, bool residue,
                   std::span<const uint8_t> selected = {}) {
  ThreadPool pool(2);
  Quantized out;
  out.rows = kernels::quantized_rows(layout, m);
  out.cols = kernels::quantized_cols(layout, rule.format, k, selected);
  out.values.resize(out.rows * out.cols);
  out.alpha.resize(m);
  std::vector<std::byte> work(kernels::quantize_act_workspace_bytes(k, pool.size()));
  kernels::QuantizeActArgs args;
  args.rule = rule;
  args.x = x.data();
  args.x_stride = k;
  args.m = m;
  args.k = k;
  args.layout = layout;
  args.residue = residue;
  args.selected = selected;
  args.out.values = out.values.data();
  args.out.value_stride = out.cols;
  args.alpha = out.alpha.data();
  kernels::quantize_act(args, pool, work);
  return out;
}

// Raw sums, added to `onto` where that is not empty.
std::vector<float> multiply(const PathUnderTest& path, const StoredMatrix& w, const Quantized& x,
                            RowClass row_class = RowClass::kPrompt,
                            const std::vector<float>& onto = {}) {
  ThreadPool pool(2);
  const StoredMatrix* parts[] = {&w};
  auto packed = pack_linear(parts, path.path, pool);
  EXPECT_TRUE(packed.ok());
  std::vector<float> raw = onto;
  raw.resize(x.rows * w.rows);
  auto work =
      AlignedBuffer<std::byte>::uninitialized(linear_workspace_bytes(*packed, x.rows, pool.size()));
  LinearArgs args;
  args.x = x.values.data();
  args.x_stride = x.cols;
  args.m = x.rows;
  args.w = &*packed;
  args.y = raw.data();
  args.y_stride = w.rows;
  args.row_class = row_class;
  args.raw_sums = true;
  args.accumulate = !onto.empty();
  (path.emulated ? linear_emulated : linear)(args, pool, work->span());
  return raw;
}

std::vector<float> folded(const std::vector<float>& raw, const Quantized& x, const StoredMatrix& w,
                          QuantizedLayout layout, int64_t m) {
  ThreadPool pool(2);
  std::vector<float> outer(w.rows, 1.0f);
  for (int64_t n = 0; n < w.rows; ++n) {
    if (!w.outer_scales.empty())
      outer[n] = w.outer_scales[w.outer_scales.size() == 1 ? 0 : static_cast<size_t>(n)];
  }
  std::vector<float> y(m * w.rows);
  kernels::fold({.raw = raw.data(),
                 .raw_stride = w.rows,
                 .layout = layout,
                 .m = m,
                 .n = w.rows,
                 .alpha = x.alpha.data(),
                 .outer = outer.data(),
                 .y = y.data(),
                 .y_stride = w.rows},
                pool);
  return y;
}

// Sums in double of (values * alpha) times decoded weights, over the rows that belong together.
void reference(const Quantized& x, const StoredMatrix& w, QuantizedLayout layout, int64_t m,
               std::vector<double>& y, std::vector<double>& bound) {
  std::vector<float> weights(w.rows * w.cols);
  decode_rows(w, 0, w.rows, weights);
  y.assign(m * w.rows, 0);
  bound.assign(m * w.rows, 0);
  for (int64_t i = 0; i < m; ++i) {
    const int64_t first = layout == QuantizedLayout::kRowPair ? 2 * i : i;
    const int64_t count = layout == QuantizedLayout::kRowPair ? 2 : 1;
    for (int64_t n = 0; n < w.rows; ++n) {
      double sum = 0, magnitude = 0;
      for (int64_t r = first; r < first + count; ++r) {
        for (int64_t k = 0; k < w.cols; ++k) {
          const double product =
              static_cast<double>(format::bf16_to_float(x.values[r * x.cols + k])) * x.alpha[i] *
              weights[n * w.cols + k];
          sum += product;
          magnitude += std::fabs(product);
        }
      }
      y[i * w.rows + n] = sum;
      // K additions, the fold's sum, two scale products; decode_rows rounds twice per weight.
      bound[i * w.rows + n] = magnitude * static_cast<double>(w.cols + 8) * std::ldexp(1.0, -24) +
                              std::ldexp(1.0, -126);
    }
  }
}

TEST(QuantizedLinear, EqualsDoubleSumsWithinTheBound) {
  for (const Case& c : cases()) {
    for (const int64_t k : {48, 160}) {
      const int64_t m = 5;
      const int64_t n = 37;
      const auto w = random_matrix(c.weights, n, k, 11);
      const Activations x = random_activations(m, k, 12);
      for (const QuantizedLayout layout : {QuantizedLayout::kRows, QuantizedLayout::kRowPair}) {
        const Quantized q = quantize({.format = c.activations}, x.bf16, m, k, layout,
                                     layout == QuantizedLayout::kRowPair);
        std::vector<double> want, bound;
        reference(q, w->m, layout, m, want, bound);
        for (const PathUnderTest& path : paths_under_test()) {
          const std::vector<float> y = folded(multiply(path, w->m, q), q, w->m, layout, m);
          const auto fault = first_mismatch(y.data(), n, want, bound, m, n);
          EXPECT_FALSE(fault) << c.weights.name() << " " << path.name() << ": " << *fault;
        }
      }
    }
  }
}

// Raw sums lack the outer scales and nothing else.
TEST(QuantizedLinear, RawSumsTimesOuterScaleAreTheLayersOutput) {
  ThreadPool pool(2);
  const int64_t m = 3;
  const int64_t n = 33;
  const int64_t k = 64;
  const Activations x = random_activations(m, k, 5);
  for (const Case& c : cases()) {
    const auto w = random_matrix(c.weights, n, k, 6);
    const StoredMatrix* parts[] = {&w->m};
    auto packed = pack_linear(parts, CpuPath::kScalar, pool);
    ASSERT_TRUE(packed.ok());
    auto work =
        AlignedBuffer<std::byte>::uninitialized(linear_workspace_bytes(*packed, m, pool.size()));
    std::vector<float> raw(m * n), y(m * n);
    LinearArgs args;
    args.x = x.bf16.data();
    args.x_stride = k;
    args.m = m;
    args.w = &*packed;
    args.y = y.data();
    args.y_stride = n;
    linear(args, pool, work->span());
    args.y = raw.data();
    args.raw_sums = true;
    linear(args, pool, work->span());
    for (int64_t i = 0; i < m * n; ++i) {
      const float outer = packed->outer_scales.empty() ? 1.0f : packed->outer_scales.data()[i % n];
      ASSERT_EQ(raw[i] * outer, y[i]) << c.weights.name();
    }
  }
}

// Two copies of a matrix beside each other along K.
std::shared_ptr<OwnedMatrix> extended(const OwnedMatrix& w) {
  auto out = std::make_shared<OwnedMatrix>();
  out->m = w.m;
  out->m.cols = 2 * w.m.cols;
  const int64_t bytes = w.m.format.row_bytes(w.m.cols);
  const int64_t groups = w.m.format.groups(w.m.cols);
  for (int64_t n = 0; n < w.m.rows; ++n) {
    for (int copy = 0; copy < 2; ++copy) {
      out->codes.insert(out->codes.end(), w.codes.begin() + n * bytes,
                        w.codes.begin() + (n + 1) * bytes);
      out->scales.insert(out->scales.end(), w.scales.begin() + n * groups,
                         w.scales.begin() + (n + 1) * groups);
    }
  }
  out->m.codes = out->codes;
  out->m.block_scales = out->scales;
  return out;
}

TEST(QuantizedLinear, FullKExtIsMExt) {
  const int64_t m = 6;
  const int64_t n = 40;
  const int64_t k = 64;
  const std::vector<uint8_t> all(k / 8, 0xff);
  for (const Case& c : cases()) {
    if (format::activation_element(c.activations) != format::kE2M1) continue;
    for (const Values values : {Values::kGrid, Values::kRandom}) {
      const auto w = random_matrix(c.weights, n, k, 21, values);
      const auto twice = extended(*w);
      // Grid: whole numbers up to 6, a 6 in every block and a static alpha of 1, so that every
      // block scale of the base is 1 and all partial sums fit FP32.
      Activations x = random_activations(m, k, 22);
      kernels::ActivationRule rule{.format = c.activations};
      if (values == Values::kGrid) {
        rule.alpha_source = kernels::AlphaSource::kStatic;
        rule.static_alpha = 1.0f;
        for (int64_t i = 0; i < m * k; ++i)
          x.bf16[i] =
              format::float_to_bf16(i % 16 == 3 ? 6.0f : static_cast<float>(i * 7 % 13 - 6));
      }
      const Quantized pair = quantize(rule, x.bf16, m, k, QuantizedLayout::kRowPair, true);
      const Quantized wide = quantize(rule, x.bf16, m, k, QuantizedLayout::kKExtended, true, all);
      ASSERT_EQ(wide.cols, 2 * k);
      std::vector<double> want, bound;
      reference(pair, w->m, QuantizedLayout::kRowPair, m, want, bound);
      for (const PathUnderTest& path : paths_under_test()) {
        const auto a = folded(multiply(path, w->m, pair), pair, w->m, QuantizedLayout::kRowPair, m);
        const auto b =
            folded(multiply(path, twice->m, wide), wide, twice->m, QuantizedLayout::kKExtended, m);
        if (values == Values::kGrid) {
          EXPECT_EQ(a, b) << c.weights.name() << " " << path.name();
          int residues = 0;
          for (int64_t i = 0; i < m * k; ++i)
            residues += pair.values[i / k * 2 * k + k + i % k] != 0;
          EXPECT_GT(residues, m * k / 20) << "the grid leaves no residue: nothing was tested";
        } else {
          const auto fault = first_mismatch(b.data(), n, want, bound, m, n);
          EXPECT_FALSE(fault) << c.weights.name() << " " << path.name() << ": " << *fault;
        }
      }
    }
  }
}

// As the CPU runs K-Ext: the extension is a product of its own whose raw sums are added to the
// base's. With all channels selected this is M-Ext's fold, operation for operation.
TEST(QuantizedLinear, FullKExtInTwoProductsIsMExtToTheBit) {
  const int64_t m = 6;
  const int64_t n = 40;
  const int64_t k = 64;
  const std::vector<uint8_t> all(k / 8, 0xff);
  ThreadPool pool(2);
  for (const Case& c : cases()) {
    if (format::activation_element(c.activations) != format::kE2M1) continue;
    const auto w = random_matrix(c.weights, n, k, 41);
    const Activations x = random_activations(m, k, 42);
    const kernels::ActivationRule rule{.format = c.activations};
    const Quantized pair = quantize(rule, x.bf16, m, k, QuantizedLayout::kRowPair, true);
    Quantized base{m, k, std::vector<uint16_t>(m * k), std::vector<float>(m)};
    Quantized second = base;
    std::vector<std::byte> work(kernels::quantize_act_workspace_bytes(k, pool.size()));
    kernels::QuantizeActArgs args;
    args.rule = rule;
    args.x = x.bf16.data();
    args.x_stride = args.k = k;
    args.m = m;
    args.residue = true;
    args.selected = all;
    args.out.values = base.values.data();
    args.second.values = second.values.data();
    args.out.value_stride = args.second.value_stride = k;
    args.alpha = base.alpha.data();
    kernels::quantize_act(args, pool, work);
    for (const PathUnderTest& path : paths_under_test()) {
      const auto raw = multiply(path, w->m, second, RowClass::kPrompt, multiply(path, w->m, base));
      EXPECT_EQ(folded(raw, base, w->m, QuantizedLayout::kRows, m),
                folded(multiply(path, w->m, pair), pair, w->m, QuantizedLayout::kRowPair, m))
          << c.weights.name() << " " << path.name();
    }
  }
}

// The layouts of rows and residues as codes and block scales, multiplied as bytes: raw sums have
// the bits of the same rows as values.
TEST(QuantizedLinear, EveryLayoutAsCodesHasTheBitsOfItsValues) {
  const int64_t m = 11;
  const int64_t n = 45;
  ThreadPool pool(2);
  for (const Case& c : cases()) {
    if (format::activation_element(c.activations) != format::kE2M1) continue;
    for (const int64_t k : {96, 88}) {
      const auto selected = std::vector<uint8_t>(k / 8, 0x1a);
      const Activations x = random_activations(m, k, 51);
      for (const QuantizedLayout layout : {QuantizedLayout::kRows, QuantizedLayout::kRowPair,
                                           QuantizedLayout::kTile8, QuantizedLayout::kKExtended}) {
        const bool extended = layout == QuantizedLayout::kKExtended;
        const Quantized values = quantize(
            {.format = c.activations}, x.bf16, m, k, layout, layout != QuantizedLayout::kRows,
            extended ? std::span<const uint8_t>(selected) : std::span<const uint8_t>());
        const int64_t groups = c.weights.groups(values.cols);
        const int64_t stride = (values.cols + 1) / 2;
        std::vector<uint8_t> codes(values.rows * stride), scales(values.rows * groups);
        std::vector<float> alpha(m);
        std::vector<std::byte> work(kernels::quantize_act_workspace_bytes(k, pool.size()));
        kernels::QuantizeActArgs args;
        args.rule.format = c.activations;
        args.x = x.bf16.data();
        args.x_stride = args.k = k;
        args.m = m;
        args.layout = layout;
        args.residue = layout != QuantizedLayout::kRows;
        if (extended) args.selected = selected;
        args.out = {codes.data(), stride, scales.data(), groups, nullptr, 0};
        args.alpha = alpha.data();
        kernels::quantize_act(args, pool, work);
        EXPECT_EQ(alpha, values.alpha);
        const auto w = random_matrix(c.weights, n, values.cols, 52);
        const StoredMatrix* parts[] = {&w->m};
        for (const PathUnderTest& path : paths_under_test()) {
          auto packed = pack_linear(parts, path.path, pool);
          ASSERT_TRUE(packed.ok());
          const RowClass row_class = RowClass::kGenerated;  // AMX has no byte kernel for others
          ASSERT_TRUE(linear_takes_e2m1(*packed, row_class));
          std::vector<float> raw(values.rows * n);
          auto workspace = AlignedBuffer<std::byte>::uninitialized(
              linear_workspace_bytes(*packed, values.rows, pool.size()));
          LinearArgs product;
          product.x_type = ActivationType::kE2M1;
          product.x = codes.data();
          product.x_stride = stride;
          product.x_scales = scales.data();
          product.x_scale_stride = groups;
          product.m = values.rows;
          product.w = &*packed;
          product.y = raw.data();
          product.y_stride = n;
          product.row_class = row_class;
          product.raw_sums = true;
          (path.emulated ? linear_emulated : linear)(product, pool, workspace->span());
          EXPECT_EQ(raw, multiply(path, w->m, values, row_class))
              << c.weights.name() << " " << path.name() << " layout " << static_cast<int>(layout);
        }
      }
    }
  }
}

// A row's bits do not depend on how many rows there are.
TEST(QuantizedLinear, RowsDoNotDependOnEachOther) {
  const int64_t m = 9;
  const int64_t n = 40;
  const int64_t k = 96;
  const Activations x = random_activations(m, k, 31);
  for (const Case& c : cases()) {
    const auto w = random_matrix(c.weights, n, k, 32);
    for (const PathUnderTest& path : paths_under_test()) {
      const auto layout = QuantizedLayout::kRowPair;
      const Quantized all = quantize({.format = c.activations}, x.bf16, m, k, layout, true);
      const auto want = folded(multiply(path, w->m, all), all, w->m, layout, m);
      for (const int64_t row : {int64_t{0}, m - 1}) {
        const std::vector<uint16_t> one(x.bf16.begin() + row * k, x.bf16.begin() + (row + 1) * k);
        const Quantized alone = quantize({.format = c.activations}, one, 1, k, layout, true);
        const auto got = folded(multiply(path, w->m, alone), alone, w->m, layout, 1);
        EXPECT_EQ(got, std::vector<float>(want.begin() + row * n, want.begin() + (row + 1) * n))
            << c.weights.name() << " " << path.name();
      }
    }
  }
}

}  // namespace
}  // namespace sub8::testing
