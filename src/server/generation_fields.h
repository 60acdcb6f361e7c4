// The members that /v1/completions and /v1/chat/completions have in common.
#pragma once

#include <optional>
#include <string>

#include "base/error.h"
#include "engine/engine.h"
#include "engine/request.h"
#include "server/body_reader.h"
#include "server/grammar.h"
#include "server/served_model.h"

namespace sub8::server {

inline constexpr size_t kMaxStopStrings = 64;
inline constexpr size_t kMaxIdList = 1 << 20;

struct GenerationFields {
  std::string model;        // the name to answer with
  engine::Request request;  // everything but the prompt
  bool stream = false;
  bool include_usage = false;     // stream: a last chunk with the usage
  bool continuous_usage = false;  // stream: usage in every chunk
  bool return_token_ids = false;
  std::optional<int64_t> truncate_prompt_tokens;
  std::optional<GrammarSpec> grammar;
};

// Reads and checks them; `model` supplies the sampling defaults, `info` the vocabulary and modes.
Result<GenerationFields> read_generation_fields(BodyReader& body, const ServedModel& model,
                                                const engine::EngineInfo& info);

}  // namespace sub8::server
