// Chat templates: a small Jinja interpreter with the semantics that Hugging Face's
// `apply_chat_template` gives them.
//
// The reference is Python's jinja2 with ImmutableSandboxedEnvironment, trim_blocks, lstrip_blocks,
// the loopcontrols extension, `generation` blocks, transformers' `tojson`, `raise_exception` and
// `strftime_now`. Values print as Python's str() prints them. What the reference refuses is an
// error here; beyond it, these are refused by name: include, import, from, extends, block and
// autoescape statements, `self`, the filters random, pprint, urlize, xmlattr, wordwrap, striptags
// and filesizeformat, `lipsum`, and integers beyond 64 bits.
//
// Templates come with models, so they are untrusted: every rendering runs under TemplateLimits and
// ends with an Error (resource_exhausted) when one is exceeded. Errors name the template, the line
// and what was expected.
//
// Example:
//   SUB8_ASSIGN_OR_RETURN(ChatTemplate chat, ChatTemplate::parse(source, "chat_template.jinja"));
//   ChatInput input;
//   input.messages = {{{"role", "user"}, {"content", "Hello"}}};
//   input.add_generation_prompt = true;
//   SUB8_ASSIGN_OR_RETURN(std::string prompt, chat.render(input));
#pragma once

#include <cstdint>
#include <ctime>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <boost/json.hpp>

#include "base/error.h"

namespace sub8 {

struct TemplateLimits {
  uint64_t max_steps = 20'000'000;                   // evaluated nodes and elements visited
  uint64_t max_bytes = uint64_t{64} << 20;           // of the output, and of any one string
  uint64_t max_created_bytes = uint64_t{512} << 20;  // all strings, lists and dicts made on the way
  int max_depth = 400;          // nested evaluation: expressions, statements, macro calls
  int max_value_depth = 100;    // lists in lists in ...
  int64_t max_range = 100'000;  // elements of range(), jinja2's own limit
};

struct ChatInput {
  // Objects with role, content (a string, null, or a list of parts), tool_calls, ... They reach the
  // template as they are.
  boost::json::array messages;
  std::optional<boost::json::value> tools;      // absent: None, as transformers passes it
  std::optional<boost::json::value> documents;  // likewise
  bool add_generation_prompt = false;
  // Set only those that the tokenizer has: an absent one is undefined in the template.
  std::optional<std::string> bos_token;
  std::optional<std::string> eos_token;
  // Further special tokens by name: unk_token, pad_token, ...
  std::vector<std::pair<std::string, std::string>> special_tokens;
  // Further variables, e.g. {"enable_thinking": false}; they override all of the above.
  boost::json::object kwargs;
  // Local time as strftime_now() shows it.
  std::tm now{};
};

// The local time now, for ChatInput::now.
std::tm local_time_now();

class ChatTemplate {
 public:
  // `name` stands for the template in errors.
  static Result<ChatTemplate> parse(std::string_view source, std::string_view name);

  // The prompt. Thread-safe: any number of renderings may run at once.
  Result<std::string> render(const ChatInput& input, const TemplateLimits& limits = {}) const;

  struct Parsed;  // private to the implementation

 private:
  explicit ChatTemplate(std::shared_ptr<const Parsed> parsed) : parsed_(std::move(parsed)) {}
  std::shared_ptr<const Parsed> parsed_;
};

}  // namespace sub8
