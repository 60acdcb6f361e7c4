// Calibration: what the inputs of every linear layer look like over a body of text.
//
// Source: ResServe section 5.3 and appendix B.1 (1,024 samples of at most 2,048 tokens, seed 42;
// channels are ranked by their mean absolute activation).
//
// Example:
//   auto samples = text_samples(*bundle.tokenizer, text, options);
//   auto calibration = calibrate(*model, *samples, options);
//   calibration->modules.at("model.layers.0.mlp.down_proj").mean_abs
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "engine/bundle.h"
#include "model/model.h"
#include "text/tokenizer.h"

namespace sub8::study {

struct CalibrateOptions {
  int64_t samples = 1024;  // at most
  int64_t length = 2048;   // tokens of a sample, at most
  uint64_t seed = 42;      // chooses among more samples than wanted
  // Called after each sample.
  std::function<void(int64_t done, int64_t total)> progress;
};

// Token ids of one sample.
using Sample = std::vector<int32_t>;

// Consecutive windows of `length` tokens of a text, without special tokens; the remainder is
// dropped. Where there are more than `samples`, that many are drawn without replacement; they keep
// the text's order. An error for text that is no UTF-8, and for less than one window.
Result<std::vector<Sample>> text_samples(const Tokenizer& tokenizer, std::string_view text,
                                         const CalibrateOptions& options);

// One sample per line: a JSON string, {"text": ...} or {"prompt": ...} (as raw prompts are
// tokenised), or {"messages": [...]} (through the chat template), cut to `length` tokens. Lines are
// drawn as above; empty ones do not count. Errors name the line.
Result<std::vector<Sample>> jsonl_samples(const engine::Bundle& bundle, std::string_view jsonl,
                                          std::string_view source, const CalibrateOptions& options);

// Of one module's input, over all rows.
struct InputStatistics {
  std::vector<float> mean_abs;  // [K]: sums in double, in row order, rounded once at the end
  float amax = 0;
};

// The largest magnitudes of a layer's K (after rope) and V, in bf16.
struct KvAmax {
  float k = 0;
  float v = 0;
};

struct Calibration {
  std::map<std::string, InputStatistics, std::less<>> modules;
  std::vector<KvAmax> kv;  // by layer
  int64_t samples = 0;
  int64_t tokens = 0;
};

// A model as calibrate() wants it, for samples of up to `context` tokens: weight-only, pages for
// one sample. An error where the model has fewer positions.
Result<std::unique_ptr<model::Model>> load_for_calibration(const checkpoint::WeightSource& source,
                                                           int64_t context,
                                                           model::LoadProgressFn progress,
                                                           ThreadPool& pool);

// Runs the samples one after the other, each from position 0. The model computes with bf16
// activations, has max_context for the longest sample and KV pages for it; max_rows, threads and
// the instruction set's path with equal sums do not change the result. The head's input is looked
// at where the head has coded weights. Modules that share their input have equal statistics.
// Errors: activations that are not finite, `cancelled` after an interrupt.
// `watch`, where given, sees the same inputs of linear layers in the same pass.
Result<Calibration> calibrate(model::Model& model, std::span<const Sample> samples,
                              const CalibrateOptions& options, model::Observer* watch = nullptr);

}  // namespace sub8::study
