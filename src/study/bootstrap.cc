#include "study/bootstrap.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "base/check.h"
#include "engine/philox.h"

namespace sub8::study {
namespace {

// Sums over one window.
struct WindowSum {
  double value = 0;
  double scored = 0;
};

double mean_of(std::span<const WindowSum> windows) {
  double value = 0;
  double scored = 0;
  for (const WindowSum& w : windows) {
    value += w.value;
    scored += w.scored;
  }
  return scored == 0 ? 0 : value / scored;
}

Interval interval(std::span<const WindowSum> windows, const BootstrapOptions& options) {
  SUB8_CHECK_GE(options.resamples, 1);
  SUB8_CHECK(options.confidence > 0 && options.confidence < 1);
  const std::array<uint32_t, 2> key = {static_cast<uint32_t>(options.seed),
                                       static_cast<uint32_t>(options.seed >> 32)};
  std::vector<WindowSum> drawn(windows.size());
  std::vector<double> means;
  means.reserve(static_cast<size_t>(options.resamples));
  for (int r = 0; r < options.resamples; ++r) {
    for (size_t i = 0; i < drawn.size(); ++i) {
      const auto words =
          engine::philox4x32({static_cast<uint32_t>(i), static_cast<uint32_t>(r), 0, 0}, key);
      // The high half of word * count: the bias is below count / 2^32.
      const uint64_t place = (uint64_t{words[0]} * windows.size()) >> 32;
      drawn[i] = windows[place];
    }
    means.push_back(mean_of(drawn));
  }
  std::sort(means.begin(), means.end());
  const double tail = (1 - options.confidence) / 2;
  const auto last = static_cast<double>(means.size() - 1);
  return {mean_of(windows), means[static_cast<size_t>(std::floor(tail * last))],
          means[static_cast<size_t>(std::ceil((1 - tail) * last))]};
}

}  // namespace

std::optional<Interval> mean_interval(std::span<const WindowScore> windows,
                                      double WindowScore::*field, const BootstrapOptions& options) {
  if (windows.size() < 2) return std::nullopt;
  std::vector<WindowSum> sums;
  for (const WindowScore& w : windows) sums.push_back({w.*field, static_cast<double>(w.scored)});
  return interval(sums, options);
}

std::optional<Interval> difference_interval(std::span<const WindowScore> a,
                                            std::span<const WindowScore> b,
                                            double WindowScore::*field,
                                            const BootstrapOptions& options) {
  SUB8_CHECK_EQ(a.size(), b.size());
  if (a.size() < 2) return std::nullopt;
  std::vector<WindowSum> sums;
  for (size_t i = 0; i < a.size(); ++i) {
    SUB8_CHECK_EQ(a[i].scored, b[i].scored);
    sums.push_back({a[i].*field - b[i].*field, static_cast<double>(a[i].scored)});
  }
  return interval(sums, options);
}

}  // namespace sub8::study
