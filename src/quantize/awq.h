// AWQ: input channel k of a layer's weight is multiplied by s[k] before it is quantised, so that
// channels with large activations lose less, and the layer's input is divided by s[k].
//
// Source: Lin et al., "AWQ: Activation-aware Weight Quantization" (2024), section 3.2. The division
// costs nothing at run time, since it goes into what makes the input:
//
// clang-format off
// | layers that read the input | divided                             | exact, since
// | q/k/v, gate/up, fc1        | the norm's weight (and bias)        | its output is linear in them
// | o_proj, out_proj           | rows of v_proj (and its bias)       | attention is linear in V; query heads of one KV head share scales
// | down_proj                  | rows of up_proj (and its bias)      | f(gate) * up is linear in up
// | fc2 after ReLU             | rows of fc1 (and its bias)          | ReLU(x/s) = ReLU(x)/s
// clang-format on
//
// Other inputs (fc2 after GELU, the output head) stay as they are. A folded norm weight is a bf16
// number: s is moved to the nearest value with which it is, so that files in bf16 hold the same
// model. The scales that were used lie in sub8/awq.safetensors: whoever needs the original weights
// as the quantised layers see them applies them again.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "checkpoint/weight_source.h"

namespace sub8::quantize {

// An input that can be scaled.
struct AwqSite {
  std::vector<std::string> readers;  // all modules that read it
  std::string norm;                  // the tensor that makes it, "...layernorm.weight"; or:
  std::string producer;              // the module whose rows make it
  // Rows of the producer, by input channel; several channels may come from one row.
  std::vector<int64_t> rows;
  int64_t channels = 0;

  const std::string& name() const { return readers[0]; }
};

// Scales by AwqSite::name(); sites without an entry stay as they are.
using AwqScales = std::map<std::string, std::vector<float>, std::less<>>;

// What folding does to each weight of a model.
class AwqFold {
 public:
  // The sites of a model; nothing is scaled yet. The source must outlive the fold.
  static Result<AwqFold> create(const checkpoint::WeightSource& source);

  const std::vector<AwqSite>& sites() const { return sites_; }

  // The scales nearest to `wanted` (all positive) that can be folded; equal for channels that one
  // row makes.
  Result<std::vector<float>> foldable(const AwqSite& site, std::span<const float> wanted) const;

  // Folds `scales` of a site; ones that are not foldable() are replaced by such. Errors: a number
  // of scales other than `channels`, scales that are not finite and positive.
  Status set(const AwqSite& site, std::span<const float> scales);

  // The multiplier of each column and the divisor of each row of a module; null: all 1.
  const std::vector<float>* columns(std::string_view module) const;
  const std::vector<float>* row_divisors(std::string_view module) const;
  // Row `row` of a module becomes x[k] / divisor * column[k].
  void apply(std::string_view module, int64_t row, std::span<float> x) const;
  // A norm weight or bias after folding; null: as it is.
  const std::vector<float>* vector(std::string_view name) const;

  const AwqScales& scales() const { return scales_; }

 private:
  explicit AwqFold(const checkpoint::WeightSource& source) : source_(&source) {}
  Status fold_norm(const AwqSite& site, const std::vector<float>& scales);
  Status fold_producer(const AwqSite& site, const std::vector<float>& scales);

  const checkpoint::WeightSource* source_;
  std::vector<AwqSite> sites_;
  AwqScales scales_;
  std::map<std::string, std::vector<float>, std::less<>> columns_, divisors_, vectors_;
};

// The source with `scales` folded in: scaled matrices come as dense f32, everything else as it was.
// Static activation scales of scaled layers are left out, since the activations are other ones.
// Errors: sites that the model does not have, and those of AwqFold::set.
Result<std::unique_ptr<checkpoint::WeightSource>> fold_awq(
    std::unique_ptr<checkpoint::WeightSource> source, const AwqScales& scales);

// ---- sub8/awq.safetensors ----------------------------------------------------------------------

// What the scales were searched on; a record for people.
struct AwqRecord {
  AwqScales scales;
  std::string text;  // a name, not a path
  int64_t samples = 0;
  int64_t tokens = 0;
};

// Writes the record into the folder sub8/ of a directory that is still being made.
Status write_awq(const std::filesystem::path& model_directory, const AwqRecord& record);
// The record beside a model; nothing where there is none. Errors name file and tensor: scales that
// are not finite and positive, other types, unknown versions.
Result<std::optional<AwqRecord>> read_awq(const std::filesystem::path& model_directory);

}  // namespace sub8::quantize
