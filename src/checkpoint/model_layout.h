// Which weights a model of a given configuration has, by canonical name and shape.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
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

// "model.layers." or "model.decoder.layers.": a layer's number follows.
std::string layer_prefix(const ModelConfig& config);

// An error where `name`, a tensor that no expected weight uses, lies inside the decoder's layers:
// `prefix` and a number begin it. The model would compute something else without it, be it a layer
// behind the last of `config` or a part that this architecture does not have. Position tables,
// which are computed, may be there. `where` names the tensor in the message.
Status check_unused_in_layers(std::string_view name, std::string_view prefix,
                              const ModelConfig& config, const std::string& where);

// "model.embed_tokens" or "model.decoder.embed_tokens".
std::string embedding_module(const ModelConfig& config);

}  // namespace sub8::checkpoint
