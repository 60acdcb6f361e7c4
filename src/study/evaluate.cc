#include "study/evaluate.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include <fmt/format.h>

#include "base/check.h"
#include "base/interrupt.h"
#include "kvcache/page_pool.h"
#include "study/logit_scores.h"

namespace sub8::study {
namespace {

// The rows of one window as a batch. Every model has pages 0.. to itself.
class WindowBatch {
 public:
  WindowBatch(int64_t window, RowClass rows) : rows_(rows) {
    pages_.resize(static_cast<size_t>((window + kvcache::kPageTokens - 1) / kvcache::kPageTokens));
    std::iota(pages_.begin(), pages_.end(), 0);
    for (int64_t i = 0; i < window; ++i) {
      positions_.push_back(static_cast<int32_t>(i));
      slots_.push_back(i);
      attention_.push_back({pages_.data(), static_cast<int32_t>(i)});
    }
  }
  model::Batch batch(std::span<const int32_t> tokens) const {
    return {tokens, positions_, slots_, attention_,
            rows_ == RowClass::kPrompt ? static_cast<int64_t>(tokens.size()) : 0};
  }

 private:
  RowClass rows_;
  std::vector<int32_t> pages_;
  std::vector<int32_t> positions_;
  std::vector<int64_t> slots_;
  std::vector<kernels::AttentionRow> attention_;
};

double mean(const std::vector<WindowScore>& windows, double WindowScore::*field) {
  double sum = 0;
  int64_t scored = 0;
  for (const WindowScore& w : windows) {
    sum += w.*field;
    scored += w.scored;
  }
  return scored == 0 ? 0 : sum / static_cast<double>(scored);
}

double standard_error(const std::vector<WindowScore>& windows, double WindowScore::*field) {
  if (windows.size() < 2) return 0;
  const double average = mean(windows, field);
  double sum = 0;
  for (const WindowScore& w : windows) {
    const double d = w.*field / static_cast<double>(w.scored) - average;
    sum += d * d;
  }
  const auto n = static_cast<double>(windows.size());
  return std::sqrt(sum / (n - 1) / n);
}

// Scores rows [first, first + count) of the window that all models have just run.
Status score_rows(std::span<model::Model* const> subjects, model::Model* reference,
                  std::span<const int32_t> tokens, int64_t window, int64_t first, int64_t count,
                  ThreadPool& pool, std::vector<WindowScore>& scores) {
  std::vector<int32_t> rows(static_cast<size_t>(count));
  std::iota(rows.begin(), rows.end(), static_cast<int32_t>(first));
  std::vector<RowSummary> reference_rows(rows.size());
  std::span<const float> reference_logits;
  size_t vocab = 0;
  if (reference != nullptr) {
    SUB8_ASSIGN_OR_RETURN(reference_logits, reference->logits(rows));
    vocab = static_cast<size_t>(reference->config().vocab_size);
    pool.for_ranges(count, 1, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i)
        reference_rows[i] = summarise(reference_logits.subspan(i * vocab, vocab));
    });
    SUB8_RETURN_IF_ERROR(require_finite(reference_rows, "the reference", window, first));
  }
  std::vector<RowSummary> subject_rows(rows.size());
  std::vector<WindowScore> row_scores(rows.size());
  for (size_t s = 0; s < subjects.size(); ++s) {
    SUB8_ASSIGN_OR_RETURN(const std::span<const float> logits, subjects[s]->logits(rows));
    vocab = static_cast<size_t>(subjects[s]->config().vocab_size);
    pool.for_ranges(count, 1, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) {
        const auto row = logits.subspan(static_cast<size_t>(i) * vocab, vocab);
        RowSummary& summary = subject_rows[static_cast<size_t>(i)];
        summary = summarise(row);
        if (summary.not_finite >= 0) continue;
        WindowScore& score = row_scores[static_cast<size_t>(i)];
        score = {};
        score.negative_log_likelihood =
            summary.log_normaliser -
            row[static_cast<size_t>(tokens[static_cast<size_t>(first + i + 1)])];
        score.scored = 1;
        if (reference == nullptr) continue;
        const auto& r = reference_rows[static_cast<size_t>(i)];
        score.kl_divergence = kl_divergence(
            reference_logits.subspan(static_cast<size_t>(i) * vocab, vocab), r, row, summary);
        score.same_top = r.top == summary.top ? 1 : 0;
      }
    });
    SUB8_RETURN_IF_ERROR(require_finite(
        subject_rows,
        subjects.size() == 1 ? "the model" : fmt::format("model {} of {}", s + 1, subjects.size()),
        window, first));
    for (const WindowScore& row : row_scores) {
      scores[s].negative_log_likelihood += row.negative_log_likelihood;
      scores[s].kl_divergence += row.kl_divergence;
      scores[s].same_top += row.same_top;
      scores[s].scored += row.scored;
    }
  }
  return {};
}

}  // namespace

int64_t Evaluation::scored() const {
  int64_t out = 0;
  for (const WindowScore& w : windows) out += w.scored;
  return out;
}
double Evaluation::mean_nll() const { return mean(windows, &WindowScore::negative_log_likelihood); }
double Evaluation::perplexity() const { return std::exp(mean_nll()); }
double Evaluation::kl_divergence() const { return mean(windows, &WindowScore::kl_divergence); }
double Evaluation::top1_agreement() const {
  int64_t same = 0;
  for (const WindowScore& w : windows) same += w.same_top;
  return scored() == 0 ? 0 : static_cast<double>(same) / static_cast<double>(scored());
}
double Evaluation::kl_standard_error() const {
  return standard_error(windows, &WindowScore::kl_divergence);
}
double Evaluation::nll_standard_error() const {
  return standard_error(windows, &WindowScore::negative_log_likelihood);
}

int64_t window_count(int64_t tokens, const EvaluateOptions& options) {
  const int64_t all = tokens / options.window;
  return options.max_windows > 0 ? std::min(all, options.max_windows) : all;
}

Status check_length(int64_t tokens, const EvaluateOptions& options) {
  if (window_count(tokens, options) > 0) return {};
  return invalid_argument(fmt::format(
      "the text has {} tokens, fewer than one window of {}; give more text or a smaller --window",
      tokens, options.window));
}

Result<std::vector<Evaluation>> evaluate(std::span<model::Model* const> subjects,
                                         model::Model* reference, std::span<const int32_t> tokens,
                                         const EvaluateOptions& options) {
  if (options.window < 2)
    return invalid_argument(
        fmt::format("the window must have at least 2 tokens, got {}", options.window));
  const auto length = static_cast<int64_t>(tokens.size());
  SUB8_RETURN_IF_ERROR(check_length(length, options));
  const int64_t windows = window_count(length, options);
  std::vector<model::Model*> all(subjects.begin(), subjects.end());
  if (reference != nullptr) all.push_back(reference);
  int64_t block = options.window - 1;
  for (const model::Model* m : all) {
    SUB8_CHECK_GE(m->options().max_rows, options.window);
    block = std::min(block, m->options().max_logit_rows);
    if (reference != nullptr && m->config().vocab_size != reference->config().vocab_size) {
      return invalid_argument(fmt::format(
          "the reference has a vocabulary of {}, the model one of {}: they cannot be compared",
          reference->config().vocab_size, m->config().vocab_size));
    }
  }
  const WindowBatch layout(options.window, options.rows);
  std::vector<Evaluation> out(subjects.size());
  for (int64_t w = 0; w < windows; ++w) {
    SUB8_RETURN_IF_ERROR(check_interrupt());
    const auto window = tokens.subspan(static_cast<size_t>(w * options.window),
                                       static_cast<size_t>(options.window));
    for (model::Model* m : all) SUB8_RETURN_IF_ERROR(m->forward(layout.batch(window)));
    std::vector<WindowScore> scores(subjects.size());
    for (int64_t first = 0; first < options.window - 1; first += block) {
      const int64_t count = std::min(block, options.window - 1 - first);
      SUB8_RETURN_IF_ERROR(
          score_rows(subjects, reference, window, w, first, count, all.front()->pool(), scores));
    }
    for (size_t s = 0; s < subjects.size(); ++s) out[s].windows.push_back(scores[s]);
    if (options.progress) options.progress(w + 1, windows);
  }
  return out;
}

}  // namespace sub8::study
