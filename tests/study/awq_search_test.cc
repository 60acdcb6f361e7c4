// The search for AWQ scales against the plainest computation of the same error.
#include "study/awq_search.h"

#include <cmath>
#include <filesystem>

#include "format/dtype.h"
#include "model/harness.h"
#include "quantize/load_source.h"

namespace sub8::study {
namespace {

using checkpoint::WeightSource;
using model::testing::fixture;
using model::testing::ids_of;
using quantize::AwqScales;
using quantize::AwqSite;

std::unique_ptr<WeightSource> base() {
  return checkpoint::open_checkpoint(fixture("exports/base")).value();
}

struct Found {
  AwqSearch search;
  std::map<std::string, std::vector<float>> rows;  // captured, by site
};

class AwqSearches : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override { recipe_.weights = *format::parse_weight_format(GetParam()); }

  Found search(int threads = 2, int64_t max_rows = 24) {
    ThreadPool pool(threads);
    const auto source = base();
    const auto plan = quantize::plan_quantization(*source, recipe_).value();
    RowCapture capture(60, max_rows);
    const std::vector<Sample> samples = {ids_of(60)};
    auto model = load_for_calibration(*source, 60, {}, pool).value();
    const auto calibration = calibrate(*model, samples, {.length = 60}, &capture).value();
    Found out;
    auto got = search_awq(*source, plan, recipe_, calibration, capture, {}, pool);
    EXPECT_TRUE(got.ok()) << got.error().message;
    out.search = std::move(got).value();
    for (const AwqSiteReport& site : out.search.sites) {
      for (const uint16_t bits : capture.rows_of(site.name))
        out.rows[site.name].push_back(format::bf16_to_float(bits));
    }
    return out;
  }

  // Folds, quantises and unfolds the whole model, then multiplies, in double.
  double plain_error(const AwqScales& scales, const AwqSite& site, const std::vector<float>& x) {
    const auto original = base();
    quantize::AwqFold fold = quantize::AwqFold::create(*original).value();
    for (const AwqSite& other : fold.sites()) {
      const auto found = scales.find(other.name());
      if (found != scales.end()) {
        EXPECT_TRUE(fold.set(other, found->second).ok());
      }
    }
    auto quantized =
        quantize::quantize_at_load(quantize::fold_awq(base(), scales).value(), recipe_, 1).value();
    double sum = 0;
    for (const std::string& reader : site.readers) {
      const checkpoint::WeightInfo& info = *original->find(reader);
      std::vector<float> w(static_cast<size_t>(info.rows * info.cols)), q(w.size());
      EXPECT_TRUE(original->decode_rows(reader, 0, info.rows, w).ok());
      EXPECT_TRUE(quantized->decode_rows(reader, 0, info.rows, q).ok());
      const auto* columns = fold.columns(reader);
      const auto* divisors = fold.row_divisors(reader);
      for (size_t first = 0; first < x.size(); first += static_cast<size_t>(info.cols)) {
        for (int64_t n = 0; n < info.rows; ++n) {
          double y = 0;
          for (int64_t k = 0; k < info.cols; ++k) {
            const auto at = static_cast<size_t>(n * info.cols + k);
            double value = q[at];
            if (columns != nullptr) value /= (*columns)[static_cast<size_t>(k)];
            if (divisors != nullptr) value *= (*divisors)[static_cast<size_t>(n)];
            y += static_cast<double>(x[first + static_cast<size_t>(k)]) *
                 (value - static_cast<double>(w[at]));
          }
          sum += y * y;
        }
      }
    }
    return sum;
  }

  quantize::Recipe recipe_;
};

TEST_P(AwqSearches, TakesTheScalesWithTheLeastError) {
  const Found found = search();
  const auto source = base();
  const quantize::AwqFold fold = quantize::AwqFold::create(*source).value();
  ASSERT_EQ(found.search.sites.size(), fold.sites().size());
  AwqScales before;  // of the sites that came earlier
  int scaled = 0;
  for (size_t i = 0; i < fold.sites().size(); ++i) {
    const AwqSite& site = fold.sites()[i];
    const AwqSiteReport& report = found.search.sites[i];
    SCOPED_TRACE(site.name());
    ASSERT_EQ(report.name, site.name());
    EXPECT_EQ(report.skipped, "");
    const std::vector<float>& x = found.rows.at(site.name());
    EXPECT_EQ(static_cast<int64_t>(x.size()), 24 * site.channels);
    const double plain = plain_error(before, site, x);
    const auto chosen = found.search.scales.find(site.name());
    ASSERT_EQ(chosen != found.search.scales.end(), report.exponent > 0);
    if (report.exponent == 0) {
      EXPECT_EQ(report.error, 1.0);
      continue;
    }
    ++scaled;
    AwqScales with = before;
    with[site.name()] = chosen->second;
    const double here = plain_error(with, site, x);
    EXPECT_LT(here, plain) << site.name();
    EXPECT_NEAR(here / plain, report.error, 2e-3 * report.error) << site.name();
    // Neighbours on the grid are no better.
    for (const float power : {-1.0f, 1.0f}) {
      const double exponent = report.exponent + static_cast<double>(power) / kAwqGrid;
      if (exponent >= 1 - 0.5 / kAwqGrid) continue;
      std::vector<float> other = chosen->second;
      for (float& s : other) s = std::pow(s, static_cast<float>(exponent / report.exponent));
      with[site.name()] = other;
      EXPECT_GT(plain_error(with, site, x), 0.98 * here) << site.name();
    }
    before[site.name()] = chosen->second;
  }
  EXPECT_GT(scaled, 0);
}

TEST_P(AwqSearches, ThreadsDoNotChangeABit) {
  const Found one = search(1);
  const Found three = search(3);
  EXPECT_EQ(one.search.scales, three.search.scales);
  for (size_t i = 0; i < one.search.sites.size(); ++i)
    EXPECT_EQ(one.search.sites[i].error, three.search.sites[i].error);
}

TEST_P(AwqSearches, WhatStaysIn16BitsIsLeftAlone) {
  recipe_.skip.push_back(quantize::NamePattern::parse("v_proj").value());
  const Found found = search();
  for (const AwqSiteReport& site : found.search.sites) {
    const bool touched = site.name.ends_with("q_proj") || site.name.ends_with("o_proj");
    EXPECT_EQ(site.skipped.find("v_proj is not quantised") != std::string::npos, touched)
        << site.name;
    if (touched) {
      EXPECT_FALSE(found.search.scales.contains(site.name));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, AwqSearches,
                         ::testing::Values("nvfp4", "mxfp4", "e2m1", "e2m2:g32"),
                         [](const auto& p) {
                           std::string name = p.param;
                           std::replace(name.begin(), name.end(), ':', '_');
                           return name;
                         });

TEST(RowCapture, SpreadsItsRows) {
  model::LinearOp op;
  op.name = "a";
  op.modules = {"a"};
  op.in.cols = 1;
  RowCapture capture(100, 10);
  std::vector<uint16_t> x(100);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<uint16_t>(i);
  capture.linear_input(op, x.data(), 1, 37);
  capture.linear_input(op, x.data() + 37, 1, 63);
  const auto rows = capture.rows_of("a");
  ASSERT_EQ(rows.size(), 10u);
  for (size_t i = 0; i < rows.size(); ++i) EXPECT_EQ(rows[i], 10 * i);
  EXPECT_TRUE(capture.rows_of("b").empty());
}

}  // namespace
}  // namespace sub8::study
