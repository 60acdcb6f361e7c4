// What rows of logits say: their first choice, their normaliser, and how far two of them are apart.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "base/error.h"

namespace sub8::study {

// One row of logits as log-probabilities would need it: the maximum's place and the normaliser.
struct RowSummary {
  int64_t top = 0;  // ties: the lower id
  double log_normaliser = 0;
  int64_t not_finite = -1;  // the first token whose logit is NaN or infinite; -1: none
};
RowSummary summarise(std::span<const float> logits);

// An error that names model, window, row and token of the first value that is not finite. `first`
// is the window's row of rows[0].
Status require_finite(std::span<const RowSummary> rows, std::string_view model, int64_t window,
                      int64_t first);

// KL(reference || model) of one row in nats, in double; at least 0.
double kl_divergence(std::span<const float> reference, const RowSummary& r,
                     std::span<const float> model, const RowSummary& m);

}  // namespace sub8::study
