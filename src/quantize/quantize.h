// The library behind `sub8 quantize IN OUT --weights FORMAT`: any weight source in, a quantised
// Hugging Face directory out.
//
// Weights stream through: besides the mapped source there is one chunk of output (about 32 MB) and
// a few rows per thread. The result appears whole or not at all, and its bytes depend on the source
// and the recipe only: not on threads, on SUB8_CPU, or on when it was made.
//
// Example:
//   auto source = checkpoint::open_checkpoint("SmolLM2-135M");
//   quantize::Recipe recipe{.weights = *format::parse_weight_format("e3m2")};
//   auto report = quantize::quantize_checkpoint(**source, recipe, {.directory = "out"}, pool, {});
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/thread_pool.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/weight_source.h"
#include "quantize/plan.h"
#include "quantize/recipe.h"

namespace sub8::quantize {

// A file that is copied into the output as it is: tokenizer.json and its companions.
struct ExtraFile {
  std::string name;  // without a path
  std::string content;
};

struct OutputOptions {
  std::filesystem::path directory;
  bool overwrite = false;
  bool dry_run = false;  // plan and sizes only: no weight is read, nothing is written
  std::vector<ExtraFile> extra_files;
  int64_t shard_bytes = checkpoint::SafetensorsWriter::kDefaultShardBytes;
  std::string source_name;    // for the provenance record: a name, not a path of this machine
  std::string version = "0";  // of the program
  // Adds to the finished directory before it appears under its name; an error leaves nothing.
  std::function<Status(const std::filesystem::path& directory)> complete;
};

struct Progress {
  int64_t done_bytes = 0;  // of the source's stored bytes
  int64_t total_bytes = 0;
  std::string_view module;  // being worked on
};
// Called from the thread that called quantize_checkpoint, after each chunk.
using ProgressFn = std::function<void(const Progress&)>;

struct LayerReport {
  std::string name;
  std::string source_type;  // "BF16", "Q4_1", ...
  std::string format;       // "e3m2", "bf16", ...
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t bytes = 0;  // codes and scales
  // sum (value - original)^2 / sum original^2 of a quantised weight; 0 for an all-zero one. Nothing
  // for kept weights and in a dry run.
  std::optional<double> nmse;
};

struct QuantizeReport {
  Layout layout = Layout::kSub8;    // as written
  std::vector<LayerReport> layers;  // matrices only
  SizeTable source;
  SizeTable output;
  int64_t file_bytes = 0;  // of the safetensors files; 0 in a dry run
  std::vector<std::string> warnings;
};

// Writes model.safetensors (or shards), config.json with quantization_config,
// generation_config.json, the extra files and sub8/provenance.json. Checks for NaN and infinity
// precede the encoding of each weight and name it with row and column. Errors of plan_quantization,
// of reading and of writing are passed on; `cancelled` after an interrupt (base/interrupt.h). After
// any error nothing is left.
Result<QuantizeReport> quantize_checkpoint(const checkpoint::WeightSource& source,
                                           const Recipe& recipe, const OutputOptions& options,
                                           ThreadPool& pool, const ProgressFn& progress);

// The tensor scale of each scale group of a plan, found as its weights come up.
class ScaleGroups {
 public:
  ScaleGroups(const checkpoint::WeightSource& source, const Plan& plan, const Recipe& recipe)
      : source_(source), plan_(plan), recipe_(recipe), alphas_(plan.scale_groups) {}

  // alpha of the weight's group, from the largest magnitude of all its members; 1 where the format
  // has no tensor scale; 0 where the group counts as zero.
  Result<float> alpha_of(const PlannedWeight& weight, ThreadPool& pool);

 private:
  const checkpoint::WeightSource& source_;
  const Plan& plan_;
  const Recipe& recipe_;
  std::vector<std::optional<float>> alphas_;
};

}  // namespace sub8::quantize
