// Intervals over windows: against the formula where one exists, and what pairing buys.
#include "study/bootstrap.h"

#include <cmath>
#include <random>

#include <gtest/gtest.h>

namespace sub8::study {
namespace {

constexpr auto kField = &WindowScore::kl_divergence;

std::vector<WindowScore> windows_of(const std::vector<double>& means, int64_t scored = 10) {
  std::vector<WindowScore> out;
  for (const double mean : means) {
    WindowScore w;
    w.kl_divergence = mean * static_cast<double>(scored);
    w.scored = scored;
    out.push_back(w);
  }
  return out;
}

TEST(Bootstrap, OfManyWindowsIsTheNormalInterval) {
  std::mt19937_64 random(3);
  std::normal_distribution<double> normal(5, 2);
  std::vector<double> means(400);
  double sum = 0, squares = 0;
  for (double& m : means) {
    m = normal(random);
    sum += m;
    squares += m * m;
  }
  const double n = 400, mean = sum / n;
  const double error = std::sqrt((squares / n - mean * mean) / n);
  const auto got = mean_interval(windows_of(means), kField, {});
  ASSERT_TRUE(got.has_value());
  EXPECT_NEAR(got->estimate, mean, 1e-9);
  EXPECT_NEAR(got->low, mean - 1.96 * error, 0.12 * error);
  EXPECT_NEAR(got->high, mean + 1.96 * error, 0.12 * error);
  const auto narrow = mean_interval(windows_of(means), kField, {.confidence = 0.5});
  EXPECT_NEAR(narrow->high, mean + 0.674 * error, 0.12 * error);
}

// Two windows have three different resamples: both, or one of them twice (1/4 each).
TEST(Bootstrap, OfTwoWindowsIsTheirRange) {
  const auto got = mean_interval(windows_of({1, 3}), kField, {});
  EXPECT_EQ(got->estimate, 2);
  EXPECT_EQ(got->low, 1);
  EXPECT_EQ(got->high, 3);
  const auto half = mean_interval(windows_of({1, 3}), kField, {.confidence = 0.3});
  EXPECT_EQ(half->low, 2);
  EXPECT_EQ(half->high, 2);
}

TEST(Bootstrap, PairingTakesOutWhatWindowsShare) {
  std::mt19937_64 random(5);
  std::uniform_real_distribution<double> hard(0, 100);
  std::uniform_real_distribution<double> small(0, 0.02);
  std::vector<double> a, b;
  for (int i = 0; i < 30; ++i) {
    const double shared = hard(random);
    a.push_back(shared + 0.1 + small(random));
    b.push_back(shared);
  }
  const auto difference = difference_interval(windows_of(a), windows_of(b), kField, {});
  EXPECT_GT(difference->low, 0.1);
  EXPECT_LT(difference->high, 0.12);
  const auto back = difference_interval(windows_of(b), windows_of(a), kField, {});
  EXPECT_NEAR(back->low, -difference->high, 1e-3);
  const auto same = difference_interval(windows_of(a), windows_of(a), kField, {});
  EXPECT_EQ(same->low, 0);
  EXPECT_EQ(same->high, 0);
}

TEST(Bootstrap, WindowsCountByTheirTokens) {
  auto windows = windows_of({1, 1}, 10);
  windows[1] = {};
  windows[1].kl_divergence = 90;
  windows[1].scored = 30;
  EXPECT_DOUBLE_EQ(mean_interval(windows, kField, {})->estimate, 100.0 / 40);
}

TEST(Bootstrap, TheSeedDecides) {
  const auto windows = windows_of({1, 2, 4, 8, 16, 32, 64});
  const auto a = mean_interval(windows, kField, {.resamples = 200});
  const auto b = mean_interval(windows, kField, {.resamples = 200});
  const auto c = mean_interval(windows, kField, {.resamples = 200, .seed = 43});
  EXPECT_EQ(a->low, b->low);
  EXPECT_EQ(a->high, b->high);
  EXPECT_TRUE(a->low != c->low || a->high != c->high);
}

TEST(Bootstrap, OneWindowSaysNothing) {
  EXPECT_FALSE(mean_interval(windows_of({1}), kField, {}).has_value());
  EXPECT_FALSE(difference_interval({}, {}, kField, {}).has_value());
}

}  // namespace
}  // namespace sub8::study
