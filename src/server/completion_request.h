// The body of POST /v1/completions.
#pragma once

#include <string>
#include <vector>

#include "base/error.h"
#include "server/generation_fields.h"

namespace sub8::server {

inline constexpr int64_t kDefaultCompletionTokens = 16;  // OpenAI's
inline constexpr size_t kMaxPrompts = 1024;
inline constexpr int64_t kMaxChoicesPerRequest = 2048;

struct CompletionRequest {
  GenerationFields fields;
  // One entry per prompt. `text` is what echo shows.
  struct Prompt {
    std::string text;
    std::vector<int32_t> ids;
  };
  std::vector<Prompt> prompts;
  bool echo = false;
  int logprobs = -1;         // -1: none, else the number of alternatives
  int prompt_logprobs = -1;  // likewise, as a member of each choice
};

// Checks and tokenises; slow for long prompts.
Result<CompletionRequest> parse_completion_request(BodyReader& body, const ServedModel& model,
                                                   const engine::EngineInfo& info);

}  // namespace sub8::server
