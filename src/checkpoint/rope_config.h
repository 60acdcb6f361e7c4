// Reading of rope settings, shared by the readers of config.json and its sections.
#pragma once

#include <string>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "checkpoint/model_config.h"

namespace sub8::checkpoint {

struct RopePair {
  RopeConfig full;
  RopeConfig local;
};

// Reads rope_parameters (transformers v5; flat or one object per layer type), rope_scaling and
// rope_theta (v4), rope_local_base_freq (Gemma3). `max_positions` fills an absent original length;
// `head_dim` is for checks. Unknown keys are added to `warnings`.
Result<RopePair> read_rope(const JsonRef& config, Architecture architecture, double default_theta,
                           int64_t max_positions, std::vector<std::string>& warnings);

}  // namespace sub8::checkpoint
