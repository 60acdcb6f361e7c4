// What quantised operators make of real activations: linear layers and attention, one by one, on
// inputs captured from the original model.
//
// Every variant gets the same inputs, so errors do not pile up from layer to layer. Squared errors
// and energies are summed before they are divided (ResServe C.2): per layer, and pooled over all.
// Linear layers are compared with FP32 products of the same bf16 inputs and the exact weights,
// without biases. Attention has two references: FP32 attention over the same decoded KV cache, and
// FP32 attention over K and V as they were, in bf16.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "checkpoint/weight_source.h"
#include "format/block.h"
#include "model/model.h"

namespace sub8::study {

struct SquaredError {
  double error = 0;   // sum (y - y_ref)^2
  double energy = 0;  // sum y_ref^2
  double nmse() const { return energy > 0 ? error / energy : 0; }
  void add(const SquaredError& other) {
    error += other.error;
    energy += other.energy;
  }
};

// One way to run an operator, over all layers.
struct OperatorError {
  std::string variant;              // "nvfp4 residue", "nvfp4 residue 0.25" (K-Ext), "resattn", ...
  std::vector<std::string> layers;  // names
  std::vector<SquaredError> per_layer;           // attention: against the same KV cache
  std::vector<SquaredError> per_layer_original;  // attention only: against bf16 K and V
  SquaredError pooled() const;
  SquaredError pooled_original() const;
};

// How many block scales are 0 (all-zero blocks) or subnormal in E4M3 (below 2^-6: their relative
// precision is reduced).
struct ScaleShares {
  std::string what;  // "nvfp4 activations", "their residue", "nvfp4 K", ...
  int64_t zero = 0;
  int64_t subnormal = 0;
  int64_t total = 0;
};

struct OperatorReport {
  std::vector<OperatorError> linear;
  std::vector<OperatorError> attention;
  std::vector<ScaleShares> scales;
};

// Weights to measure linear layers with, and the exponent rule of MX activations beside them.
struct OperatorWeights {
  std::string name;
  const checkpoint::WeightSource* source = nullptr;
  format::MxRule mx_rule = format::MxRule::kEven;
};

struct OperatorOptions {
  int64_t window = 512;  // tokens per window, attention's context
  int64_t windows = 1;
  int64_t linear_rows = 128;  // per linear layer; the first rows of the text
  // Windows behind the measured ones; K-Ext takes the channels with the largest mean |x| there.
  int64_t calibration_windows = 4;
  std::function<void(int64_t done, int64_t total, const std::string& layer)> progress;
};

// `original` runs with bf16 activations and a bf16 KV cache; `exact` is its source. Model needs
// max_rows >= window and pages for one window. KV scales are those of `exact`, else 1.
Result<OperatorReport> operator_errors(model::Model& original,
                                       const checkpoint::WeightSource& exact,
                                       std::span<const OperatorWeights> weights,
                                       std::span<const int32_t> tokens,
                                       const OperatorOptions& options);

}  // namespace sub8::study
