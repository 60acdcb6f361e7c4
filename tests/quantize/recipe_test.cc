#include "quantize/recipe.h"

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "quantize/fake_int.h"

namespace sub8::quantize {
namespace {

bool matches(const char* pattern, const char* name) {
  const auto parsed = NamePattern::parse(pattern);
  EXPECT_TRUE(parsed.ok()) << pattern;
  const auto hit = parsed->matches(name);
  EXPECT_TRUE(hit.ok());
  return *hit;
}

TEST(NamePattern, NamesWildcardsAndExpressions) {
  const char* name = "model.layers.1.mlp.down_proj";
  EXPECT_TRUE(matches("down_proj", name));
  EXPECT_TRUE(matches("mlp.down_proj", name));
  EXPECT_TRUE(matches(name, name));
  EXPECT_FALSE(matches("own_proj", name));
  EXPECT_FALSE(matches("mlp", name));
  EXPECT_TRUE(matches("model.layers.1.*", name));
  EXPECT_TRUE(matches("*.layers.?.mlp.*", name));
  EXPECT_FALSE(matches("model.layers.1.*", "model.layers.11.mlp.down_proj"));
  EXPECT_TRUE(matches("re:.*\\.(up|down)_proj", name));
  EXPECT_FALSE(matches("re:mlp", name));
  const auto bad = NamePattern::parse("re:(");
  ASSERT_FALSE(bad.ok());
  EXPECT_EQ(bad.error().code, ErrorCode::kInvalidArgument);
  EXPECT_FALSE(NamePattern::parse("").ok());
}

TEST(Recipe, NonsenseIsRefused) {
  Recipe recipe{.weights = *format::parse_weight_format("e3m2")};
  EXPECT_TRUE(check_recipe(recipe).ok());
  recipe.rules.block.four_over_six = true;
  EXPECT_FALSE(check_recipe(recipe).ok());
  recipe.rules.block.four_over_six = false;
  recipe.weights = *format::parse_weight_format("bf16");
  EXPECT_FALSE(check_recipe(recipe).ok());
  EXPECT_FALSE(parse_override("mlp").ok());
  EXPECT_TRUE(parse_override("mlp.down_proj=e3m3").ok());
}

double row_nmse(const char* name, ScaleMethod method, const std::vector<float>& x) {
  const format::WeightFormat f = *format::parse_weight_format(name);
  RowRules rules;
  rules.scale = method;
  std::vector<uint8_t> codes(x.size());
  std::vector<uint8_t> scales(static_cast<size_t>(f.groups(static_cast<int64_t>(x.size()))));
  const float alpha =
      format::choose_outer_scale(f, format::abs_max(x.data(), static_cast<int64_t>(x.size())));
  const float outer = quantize_row(f, rules, x, alpha, codes, scales);
  const RowError e = measure_row(f, x, outer, codes, scales);
  return e.error / e.energy;
}

TEST(ScaleSearch, NeverWorseThanAmaxAndOftenBetter) {
  std::mt19937 engine(5);
  std::normal_distribution<float> normal;
  for (const char* name : {"e2m1", "e3m2", "e2m1:g32", "nvfp4", "mxfp4", "e2m0", "e1m1"}) {
    int better = 0;
    for (int repeat = 0; repeat < 20; ++repeat) {
      std::vector<float> x(203);
      for (float& v : x) v = normal(engine);
      const double amax = row_nmse(name, ScaleMethod::kAmax, x);
      const double mse = row_nmse(name, ScaleMethod::kMse, x);
      EXPECT_LE(mse, amax * (1 + 1e-6)) << name;
      better += mse < amax * 0.9999;
    }
    // MX scales are powers of two: another one is seldom better.
    EXPECT_GE(better, std::string(name) == "mxfp4" ? 1 : 10) << name;
  }
}

TEST(FakeInt, RoundsSymmetrically) {
  std::vector<float> row = {7.0F, -7.0F, 2.5F, 3.5F, 0.4F, -0.6F, 0.0F};
  fake_quantize_row(*parse_fake_int("int4"), row);
  EXPECT_EQ(row, (std::vector<float>{7.0F, -7.0F, 2.0F, 4.0F, 0.0F, -1.0F, 0.0F}));
  EXPECT_EQ(parse_fake_int("int4:g128")->group, 128);
  EXPECT_FALSE(parse_fake_int("int9").ok());
  EXPECT_FALSE(parse_fake_int("int4:g7").ok());
}

}  // namespace
}  // namespace sub8::quantize
