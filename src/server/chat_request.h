// The body of POST /v1/chat/completions.
#pragma once

#include <string>
#include <vector>

#include "base/error.h"
#include "server/generation_fields.h"
#include "server/tool_parser.h"

namespace sub8::server {

enum class ToolChoice {
  kNone,      // no tools, or none wanted: the answer is text
  kAuto,      // the model decides; its text is searched for calls
  kRequired,  // a grammar makes it call at least one
  kNamed,     // a grammar makes it write the arguments of one function
};

struct ChatRequest {
  GenerationFields fields;
  ChatPrompt prompt;
  std::vector<int32_t> ids;  // the prompt, tokenised
  bool logprobs = false;
  ToolChoice tool_choice = ToolChoice::kNone;
  std::string tool_name;            // kNamed
  bool parallel_tool_calls = true;  // else only the first call is given back
  ToolFamily tool_family = ToolFamily::kNone;
};

// Reads the members that make the prompt; /tokenize has them too.
Result<ChatPrompt> read_chat_prompt(BodyReader& body);

// Checks, renders and tokenises; slow for long conversations. `family`: how this model writes tool
// calls.
Result<ChatRequest> parse_chat_request(BodyReader& body, const ServedModel& model,
                                       const engine::EngineInfo& info, ToolFamily family);

}  // namespace sub8::server
