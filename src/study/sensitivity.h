// How much each layer's options hurt: KL divergence between the output distributions of the model
// as it is and of the model with one layer (or a group that is computed together) in another form,
// all others as they are.
//
// Source: ResServe appendix E.1, the KL option. Its gradient-weighted score needs a backward pass
// and is left out.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>

#include "base/error.h"
#include "checkpoint/weight_source.h"
#include "model/model.h"
#include "study/layer_substitutes.h"
#include "study/sensitivity_cache.h"

namespace sub8::study {

struct SensitivityOptions {
  SubstituteOptions substitutes;
  // Called after each measured option.
  std::function<void(int64_t done, int64_t total, std::string_view what)> progress;
};

// Measures what the cache lacks of groups x options (those without a format count as 0) and keeps
// it there, saved after each group. The model has ModelOptions::substitution, bf16 activations, the
// mode residue where options have 4-bit activations (else weight-only), rows for at least one
// sample, and KV pages for all of them. Samples have equal lengths. Memory: the reference's logits
// of all samples. Errors: logits that are not finite (option and layer are named), `cancelled`.
Status measure_sensitivity(model::Model& model, const checkpoint::WeightSource& source,
                           std::span<const LayerGroup> groups,
                           std::span<const quantize::LayerOption> options,
                           std::span<const Sample> samples, const SensitivityOptions& how,
                           SensitivityCache& cache);

}  // namespace sub8::study
