// Which weights a model of a given configuration has, by canonical name and shape.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/model_config.h"
#include "checkpoint/weight_source.h"

namespace sub8::checkpoint {

struct ExpectedWeight {
  std::string name;  // module for matrices, tensor for vectors
  WeightKind kind = WeightKind::kVector;
  int64_t rows = 0;
  int64_t cols = 1;
};

// In the model's order: embeddings, layers, final norm, head. "lm_head" is left out where
// `tied_head`.
std::vector<ExpectedWeight> expected_weights(const ModelConfig& config, bool tied_head);

// "model.embed_tokens" or "model.decoder.embed_tokens".
std::string embedding_module(const ModelConfig& config);

}  // namespace sub8::checkpoint
