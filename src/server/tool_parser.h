// Finds tool calls in what a model writes. Every family of models has its own notation; see
// docs/server.md.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace sub8::server {

enum class ToolFamily {
  kNone,      // calls stay text
  kHermes,    // <tool_call>{"name": ..., "arguments": {...}}</tool_call>; Qwen, Hermes
  kLlama3,    // {"name": ..., "parameters": {...}}, optionally behind <|python_tag|>
  kMistral,   // [TOOL_CALLS][{"name": ..., "arguments": {...}}] or [TOOL_CALLS]name{...}
  kPythonic,  // [name(key=value, ...), ...]; Llama 3.2, Llama 4
};

// "none", "hermes", "llama3", "mistral", "pythonic".
std::string_view tool_family_name(ToolFamily family);
// An error that lists the names.
Result<ToolFamily> parse_tool_family(std::string_view name);
// The family that a chat template writes; kNone when it shows none.
ToolFamily detect_tool_family(std::string_view chat_template);
// True when the text must keep its special tokens for calls to be seen.
bool marks_calls_with_special_tokens(ToolFamily family);

struct ToolCall {
  std::string name;
  std::string arguments;  // JSON text of an object
};

struct ToolDelta {
  std::string content;          // text for the user
  std::vector<ToolCall> calls;  // complete ones
};

// One per answer. The text that is no call comes out as content, whole and in order. A call comes
// out when it is complete. What looks like a call and is none comes out as content at the end.
class ToolParser {
 public:
  virtual ~ToolParser() = default;
  virtual ToolDelta push(std::string_view text) = 0;
  virtual ToolDelta finish() = 0;
};

// Never null; for kNone, all is content.
std::unique_ptr<ToolParser> make_tool_parser(ToolFamily family);

// One JSON object {"name", "arguments" or "parameters"} as a call; nothing if it is none.
std::optional<ToolCall> tool_call_from_json(std::string_view text);
// The same for an array of them.
std::optional<std::vector<ToolCall>> tool_calls_from_json_array(std::string_view text);
// [f(a=1), g(b="x")]; nothing if the text is anything else.
std::optional<std::vector<ToolCall>> tool_calls_from_python(std::string_view text);
// The length of the JSON object or array that `text` begins with; 0 when it is not complete.
size_t json_extent(std::string_view text);

}  // namespace sub8::server
