// The plan file: which format and which prefill ratio each linear layer of one model gets. `sub8
// plan` writes it, `sub8 quantize --plan` executes it. Keys: docs/planner.md.
//
// A plan belongs to the model it was made for: names and shapes of all weights and a sample of
// their values are in it, and any other model is refused.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "checkpoint/fingerprint.h"
#include "checkpoint/weight_source.h"
#include "quantize/recipe.h"

namespace sub8::quantize {

inline constexpr int64_t kLayerPlanVersion = 1;
// The name of "stays as it is", where others have a format's.
inline constexpr std::string_view kOriginalName = "original";

// What one layer becomes. Nothing for `format`: it stays as it is.
struct LayerOption {
  std::optional<format::WeightFormat> format;
  // Share of the channels whose residue prompt rows get; other than 0 for nvfp4 and mxfp4 only.
  float prefill_ratio = 0;

  bool operator==(const LayerOption&) const = default;
  std::string name() const;  // "original", "e3m2", "nvfp4+0.25"
};

// Modules that are computed together (q/k/v, gate/up) or one of its own.
struct PlannedLayer {
  std::vector<std::string> modules;
  LayerOption option;
  double kl_divergence = 0;  // measured with this layer alone in that option; nats per token
};

// The text that sensitivity was measured on.
struct PlanSample {
  std::string text;  // a name, not a path of this machine
  int64_t windows = 0;
  int64_t window = 0;  // tokens
  uint64_t seed = 0;
};

struct PlanBudget {
  std::string kind;  // "storage-bits", "compute-bits", "bytes", "latency-us"
  double limit = 0;
};

// What the plan costs, in all kinds that were known.
struct PlanCost {
  double storage_bits = 0;
  double compute_bits = 0;
  int64_t bytes = 0;
  std::optional<double> latency_us;
};

struct LayerPlan {
  std::string version;  // of the program that wrote it
  std::string model_name;
  checkpoint::ModelFingerprint model;
  bool residue = false;  // for --mode residue; else weight-only
  RowRules rules;        // of all quantised weights
  PlanSample sample;
  std::vector<PlanBudget> budgets;
  double kl_divergence = 0;  // predicted: the sum over the layers
  PlanCost cost;
  std::vector<PlannedLayer> layers;

  // Whether a layer's ratio lies between 0 and 1, so that channels must be selected.
  bool selects_channels() const;
};

std::string layer_plan_json(const LayerPlan& plan);
// Errors name `source` and the place in it: other versions, unknown formats, ratios that do not
// exist or belong to no 4-bit format, numbers that are not finite, modules that come twice.
Result<LayerPlan> parse_layer_plan(std::string_view text, std::string_view source);
Result<LayerPlan> read_layer_plan(const std::filesystem::path& path);

// Whether the plan is for this model: fingerprints, and every Linear weight of the layers in one
// entry, fused ones in the same.
Status check_layer_plan(const LayerPlan& plan, const checkpoint::WeightSource& source);

// The recipe's formats and rules are the plan's from now on.
void apply_layer_plan(const LayerPlan& plan, Recipe& recipe);

}  // namespace sub8::quantize
