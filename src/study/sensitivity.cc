#include "study/sensitivity.h"

#include <algorithm>
#include <map>
#include <numeric>

#include <fmt/format.h>

#include "base/check.h"
#include "base/interrupt.h"
#include "kvcache/page_pool.h"
#include "study/logit_scores.h"

namespace sub8::study {
namespace {

using checkpoint::WeightSource;
using quantize::LayerOption;

// Some samples as one batch, each with KV pages of its own.
class SampleBatch {
 public:
  SampleBatch(std::span<const Sample> samples, int64_t first_page) {
    const auto length = static_cast<int64_t>(samples[0].size());
    const int64_t pages = (length + kvcache::kPageTokens - 1) / kvcache::kPageTokens;
    tables_.resize(samples.size());
    for (size_t s = 0; s < samples.size(); ++s) {
      tables_[s].resize(static_cast<size_t>(pages));
      const int64_t page = first_page + static_cast<int64_t>(s) * pages;
      std::iota(tables_[s].begin(), tables_[s].end(), static_cast<int32_t>(page));
      for (int64_t i = 0; i < length; ++i) {
        tokens_.push_back(samples[s][static_cast<size_t>(i)]);
        positions_.push_back(static_cast<int32_t>(i));
        slots_.push_back(page * kvcache::kPageTokens + i);
        attention_.push_back({tables_[s].data(), static_cast<int32_t>(i)});
      }
    }
  }
  SampleBatch(const SampleBatch&) = delete;
  SampleBatch& operator=(const SampleBatch&) = delete;
  SampleBatch(SampleBatch&&) = default;

  model::Batch batch() const {
    return {tokens_, positions_, slots_, attention_, static_cast<int64_t>(tokens_.size())};
  }
  int64_t rows() const { return static_cast<int64_t>(tokens_.size()); }

 private:
  std::vector<std::vector<int32_t>> tables_;  // moved with their storage: attention_ points into it
  std::vector<int32_t> tokens_, positions_;
  std::vector<int64_t> slots_;
  std::vector<kernels::AttentionRow> attention_;
};

class Meter {
 public:
  Meter(model::Model& model, const WeightSource& source, std::span<const Sample> samples,
        const SubstituteOptions& how)
      : model_(model), substitutes_(model, source, samples, how) {
    const auto length = static_cast<int64_t>(samples[0].size());
    const int64_t pages = (length + kvcache::kPageTokens - 1) / kvcache::kPageTokens;
    const auto per_batch = static_cast<size_t>(model.options().max_rows / length);
    SUB8_CHECK_GE(per_batch, size_t{1});
    SUB8_CHECK_GE(int64_t{model.options().kv_pages}, pages * static_cast<int64_t>(samples.size()));
    for (size_t first = 0; first < samples.size(); first += per_batch) {
      const auto part = samples.subspan(first, std::min(per_batch, samples.size() - first));
      for (const Sample& sample : part) SUB8_CHECK_EQ(sample.size(), samples[0].size());
      batches_.emplace_back(part, static_cast<int64_t>(first) * pages);
    }
  }

  // Runs the model as it is; keeps its logits, and the state before the first operation.
  Status run_reference() {
    for (const SampleBatch& batch : batches_) {
      const auto index = static_cast<int64_t>(reference_.size());
      SUB8_RETURN_IF_ERROR(check_interrupt());
      SUB8_RETURN_IF_ERROR(model_.forward(batch.batch()));
      std::vector<float>& logits = reference_.emplace_back();
      std::vector<RowSummary>& rows = reference_rows_.emplace_back();
      SUB8_RETURN_IF_ERROR(each_block(
          batch, [&](std::span<const float> block, int64_t first, int64_t count) -> Status {
            logits.insert(logits.end(), block.begin(), block.end());
            rows.resize(static_cast<size_t>(first + count));
            const std::span here = std::span(rows).subspan(static_cast<size_t>(first));
            summarise_block(block, here);
            return require_finite(here, "the model as it is", index, first);
          }));
      SUB8_RETURN_IF_ERROR(model_.run_body(batch.batch(), 0, 0));
      states_.push_back(model_.save());
    }
    return {};
  }

  // Moves all batches on to just before `op`, with the model's own weights.
  Status advance(size_t op) {
    for (size_t b = 0; b < batches_.size(); ++b) {
      model_.restore(states_[b]);
      SUB8_RETURN_IF_ERROR(model_.run_body(batches_[b].batch(), at_, op));
      states_[b] = model_.save();
    }
    at_ = op;
    return {};
  }

  // Mean KL divergence over all rows with `op` in another form.
  Result<double> measure(size_t op, const LayerGroup& group, const LayerOption& option) {
    SUB8_ASSIGN_OR_RETURN(const model::LinearSubstitute substitute, substitutes_.make(op, option));
    model_.substitute_linear(op, &substitute);
    Result<double> out = run_substituted(group, option);
    model_.substitute_linear(op, nullptr);
    return out;
  }

 private:
  using UseBlock = std::function<Status(std::span<const float>, int64_t first, int64_t count)>;

  Status each_block(const SampleBatch& batch, const UseBlock& use) {
    const int64_t step = model_.options().max_logit_rows;
    for (int64_t first = 0; first < batch.rows(); first += step) {
      std::vector<int32_t> rows(static_cast<size_t>(std::min(step, batch.rows() - first)));
      std::iota(rows.begin(), rows.end(), static_cast<int32_t>(first));
      SUB8_ASSIGN_OR_RETURN(const std::span<const float> logits, model_.logits(rows));
      SUB8_RETURN_IF_ERROR(use(logits, first, static_cast<int64_t>(rows.size())));
    }
    return {};
  }

  void summarise_block(std::span<const float> block, std::span<RowSummary> rows) {
    const auto vocab = static_cast<size_t>(model_.config().vocab_size);
    model_.pool().for_ranges(
        static_cast<int64_t>(rows.size()), 1, [&](int64_t begin, int64_t end, int) {
          for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i)
            rows[i] = summarise(block.subspan(i * vocab, vocab));
        });
  }

  Result<double> run_substituted(const LayerGroup& group, const LayerOption& option) {
    const auto vocab = static_cast<size_t>(model_.config().vocab_size);
    double sum = 0;
    int64_t rows = 0;
    for (size_t b = 0; b < batches_.size(); ++b) {
      SUB8_RETURN_IF_ERROR(check_interrupt());
      model_.restore(states_[b]);
      SUB8_RETURN_IF_ERROR(model_.run_body(batches_[b].batch(), at_, model_.program().body.size()));
      const auto use = [&](std::span<const float> block, int64_t first, int64_t count) -> Status {
        std::vector<RowSummary> here(static_cast<size_t>(count));
        std::vector<double> divergences(here.size());
        summarise_block(block, here);
        SUB8_RETURN_IF_ERROR(require_finite(here,
                                            fmt::format("{} as {}", group.name(), option.name()),
                                            static_cast<int64_t>(b), first));
        model_.pool().for_ranges(count, 1, [&](int64_t begin, int64_t end, int) {
          for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
            const size_t row = static_cast<size_t>(first) + i;
            divergences[i] =
                kl_divergence(std::span(reference_[b]).subspan(row * vocab, vocab),
                              reference_rows_[b][row], block.subspan(i * vocab, vocab), here[i]);
          }
        });
        for (const double d : divergences) sum += d;
        return {};
      };
      SUB8_RETURN_IF_ERROR(each_block(batches_[b], use));
      rows += batches_[b].rows();
    }
    return sum / static_cast<double>(rows);
  }

  model::Model& model_;
  LayerSubstitutes substitutes_;
  std::vector<SampleBatch> batches_;
  std::vector<std::vector<float>> reference_;  // logits of each batch
  std::vector<std::vector<RowSummary>> reference_rows_;
  std::vector<model::ActivationState> states_;  // of each batch, before operation at_
  size_t at_ = 0;
};

}  // namespace

Status measure_sensitivity(model::Model& model, const WeightSource& source,
                           std::span<const LayerGroup> groups, std::span<const LayerOption> options,
                           std::span<const Sample> samples, const SensitivityOptions& how,
                           SensitivityCache& cache) {
  SUB8_CHECK(!samples.empty());
  struct Work {
    size_t op = 0;
    const LayerGroup* group = nullptr;
    std::vector<const LayerOption*> missing;
  };
  std::vector<Work> work;
  int64_t total = 0;
  for (const LayerGroup& group : groups) {
    Work here;
    here.group = &group;
    for (const LayerOption& option : options) {
      if (option.format && !cache.find(group.name(), option.name()))
        here.missing.push_back(&option);
    }
    if (here.missing.empty()) continue;
    SUB8_ASSIGN_OR_RETURN(here.op, find_operation(model.program(), group));
    total += static_cast<int64_t>(here.missing.size());
    work.push_back(std::move(here));
  }
  if (work.empty()) return {};
  std::sort(work.begin(), work.end(), [](const Work& a, const Work& b) { return a.op < b.op; });
  Meter meter(model, source, samples, how.substitutes);
  SUB8_RETURN_IF_ERROR(meter.run_reference());
  int64_t done = 0;
  for (const Work& here : work) {
    SUB8_RETURN_IF_ERROR(meter.advance(here.op));
    for (const LayerOption* option : here.missing) {
      SUB8_ASSIGN_OR_RETURN(const double kl, meter.measure(here.op, *here.group, *option));
      cache.set(here.group->name(), option->name(), kl);
      if (how.progress) how.progress(++done, total, here.group->name() + " as " + option->name());
    }
    SUB8_RETURN_IF_ERROR(cache.save());
  }
  return {};
}

}  // namespace sub8::study
