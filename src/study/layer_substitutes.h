// The linear layers of a model as units that get one format, and their weights in other formats, as
// the quantiser would write them, ready to take the place of the model's own.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "checkpoint/residue.h"
#include "checkpoint/weight_source.h"
#include "model/model.h"
#include "quantize/layer_plan.h"
#include "study/calibrate.h"

namespace sub8::study {

// Linear layers that get one option: q/k/v, gate/up, or one alone.
struct LayerGroup {
  std::vector<std::string> modules;  // in the model's order
  std::vector<int64_t> rows;         // of each
  int64_t cols = 0;
  int64_t weights = 0;
  int64_t original_bytes = 0;  // as kept by the quantiser

  const std::string& name() const { return modules.front(); }
};

// All linear layers inside the model's layers (not the head), fused ones together, in the model's
// order. unsupported where a weight is not stored in floating point.
Result<std::vector<LayerGroup>> layer_groups(const checkpoint::WeightSource& source);

// The operation of program.body that computes a group, all its modules and no others.
Result<size_t> find_operation(const model::Program& program, const LayerGroup& group);

struct SubstituteOptions {
  // Opens the model's files again; a format's weights are quantised from a source of their own.
  std::function<Result<std::unique_ptr<checkpoint::WeightSource>>()> open;
  quantize::RowRules rules;
};

class LayerSubstitutes {
 public:
  // `source` has the floating-point weights that `model` was loaded from; channels are selected by
  // the model's activations over `samples`. All must outlive this.
  LayerSubstitutes(model::Model& model, const checkpoint::WeightSource& source,
                   std::span<const Sample> samples, SubstituteOptions options)
      : model_(model), source_(source), samples_(samples), options_(std::move(options)) {}

  // The weights of operation `op` of program().body in a format. The first option with a ratio
  // between 0 and 1 runs the model over the samples.
  Result<model::LinearSubstitute> make(size_t op, const quantize::LayerOption& option);

 private:
  Result<const checkpoint::WeightSource*> quantized(const format::WeightFormat& format);
  Result<std::vector<uint8_t>> masks(const std::string& module, float ratio);

  model::Model& model_;
  const checkpoint::WeightSource& source_;
  std::span<const Sample> samples_;
  SubstituteOptions options_;
  std::map<std::string, std::unique_ptr<checkpoint::WeightSource>> quantized_;  // by format
  std::map<std::string, checkpoint::ResidueModule> calibrated_;                 // by module
};

}  // namespace sub8::study
