// How sure a mean over windows is, and the difference of two configurations' means over the same
// windows: percentile intervals of the paired bootstrap.
//
// A resample draws as many windows as there are, with replacement; both configurations take the
// same ones, so that what a window has of its own (hard or easy text) cancels in the difference.
// Windows count by their scored tokens. Bounds are order statistics of the resampled values.
//
// Source: Efron and Tibshirani 1993, chapters 13 and 16.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "study/evaluate.h"

namespace sub8::study {

struct BootstrapOptions {
  int resamples = 10000;     // at least 1
  double confidence = 0.95;  // above 0, below 1
  uint64_t seed = 42;        // draws come from Philox alone: equal seeds, equal intervals
};

struct Interval {
  double estimate = 0;  // over the windows as they are
  double low = 0;
  double high = 0;
};

// Of the mean per scored token of `field` over the windows. Nothing for fewer than two.
std::optional<Interval> mean_interval(std::span<const WindowScore> windows,
                                      double WindowScore::*field, const BootstrapOptions& options);

// Of mean(a) - mean(b). The windows are the same ones in the same order, with equal numbers of
// scored tokens. Nothing for fewer than two. For log-perplexity take negative_log_likelihood.
std::optional<Interval> difference_interval(std::span<const WindowScore> a,
                                            std::span<const WindowScore> b,
                                            double WindowScore::*field,
                                            const BootstrapOptions& options);

}  // namespace sub8::study
