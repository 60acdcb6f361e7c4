// Token ids in model files against the model's vocabulary.
#pragma once

#include <string>

#include "base/error.h"
#include "checkpoint/model_config.h"

namespace sub8::checkpoint {

// kCorruptData, naming `key` in `source`, for an id of `vocab_size` or more.
Status check_token_id(const std::string& source, const char* key, int64_t id, int64_t vocab_size);
// The same for every id that an answer begins with or ends at.
Status check_token_ids(const std::string& source, const GenerationConfig& config,
                       int64_t vocab_size);

}  // namespace sub8::checkpoint
