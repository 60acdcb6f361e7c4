#include "study/logit_scores.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

namespace sub8::study {

RowSummary summarise(std::span<const float> logits) {
  RowSummary out;
  const auto bad =
      std::find_if(logits.begin(), logits.end(), [](float logit) { return !std::isfinite(logit); });
  if (bad != logits.end()) {
    out.not_finite = bad - logits.begin();
    return out;
  }
  for (size_t i = 1; i < logits.size(); ++i) {
    if (logits[i] > logits[static_cast<size_t>(out.top)]) out.top = static_cast<int64_t>(i);
  }
  const double max = logits[static_cast<size_t>(out.top)];
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - max);
  out.log_normaliser = max + std::log(sum);
  return out;
}

Status require_finite(std::span<const RowSummary> rows, std::string_view model, int64_t window,
                      int64_t first) {
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].not_finite < 0) continue;
    return corrupt_data(fmt::format(
        "{} gave a logit that is NaN or infinite for token {} at row {} of window {} (both from "
        "0): its weights or its configuration (rope, norm epsilon, scales) are out of range",
        model, rows[i].not_finite, first + static_cast<int64_t>(i), window));
  }
  return {};
}

double kl_divergence(std::span<const float> reference, const RowSummary& r,
                     std::span<const float> model, const RowSummary& m) {
  double out = 0;
  for (size_t i = 0; i < reference.size(); ++i) {
    const double log_p = static_cast<double>(reference[i]) - r.log_normaliser;
    const double log_q = static_cast<double>(model[i]) - m.log_normaliser;
    out += std::exp(log_p) * (log_p - log_q);
  }
  return std::max(out, 0.0);  // rounding of equal distributions
}

}  // namespace sub8::study
