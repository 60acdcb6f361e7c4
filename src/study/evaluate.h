// Perplexity of a model over text, and its distance from a reference model, window by window.
//
// Definitions (docs/evaluation.md): the text is tokenised once, without special tokens, and cut
// into consecutive windows of N tokens; the remainder is dropped. Inside a window every token but
// the first is scored with the window's earlier tokens as context. perplexity = exp(mean negative
// log-likelihood); KLD = KL(reference || model) in nats, mean over scored tokens; top-1 agreement =
// share of scored tokens for which both models rank the same token first (ties: the lower id).
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/error.h"
#include "model/model.h"

namespace sub8::study {

// Sums over one window, in double.
struct WindowScore {
  double negative_log_likelihood = 0;
  double kl_divergence = 0;
  int64_t same_top = 0;
  int64_t scored = 0;
};

struct Evaluation {
  std::vector<WindowScore> windows;

  int64_t scored() const;
  double mean_nll() const;       // nats per scored token
  double perplexity() const;     // exp(mean_nll()): infinite above some 709 nats
  double kl_divergence() const;  // mean; 0 without a reference
  double top1_agreement() const;
  // Standard error of the mean KL divergence and of the mean negative log-likelihood, windows as
  // samples.
  double kl_standard_error() const;
  double nll_standard_error() const;
};

struct EvaluateOptions {
  int64_t window = 512;
  int64_t max_windows = 0;  // 0: all
  // What the scored rows count as: generated rows are what decoding would compute.
  RowClass rows = RowClass::kPrompt;
  // Called after each window.
  std::function<void(int64_t done, int64_t total)> progress;
};

// Number of windows that would be scored.
int64_t window_count(int64_t tokens, const EvaluateOptions& options);
// An error when that is none.
Status check_length(int64_t tokens, const EvaluateOptions& options);

// Scores every model of `subjects` on the same windows; `reference` may be null. Each model needs
// max_rows >= window, max_context >= window and pages for one window. An error when the text is
// shorter than one window, kCorruptData when a model gives a logit that is NaN or infinite.
Result<std::vector<Evaluation>> evaluate(std::span<model::Model* const> subjects,
                                         model::Model* reference, std::span<const int32_t> tokens,
                                         const EvaluateOptions& options);

}  // namespace sub8::study
