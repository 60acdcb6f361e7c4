// The model as the API shows it, and from request to tokens.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <boost/json.hpp>

#include "base/error.h"
#include "engine/sampling_params.h"
#include "text/chat_template/chat_template.h"
#include "text/tokenizer.h"

namespace sub8::server {

struct ServedModel {
  std::vector<std::string> names;        // what clients may call it; the first is used in replies
  std::string root;                      // where it was loaded from
  std::string recipe;                    // how its weights are stored: "e3m2, head e3m2"
  int64_t created = 0;                   // Unix time of the start
  const Tokenizer* tokenizer = nullptr;  // never null
  const ChatTemplate* chat_template = nullptr;  // null: no chat
  std::string chat_template_text;
  engine::SamplingParams defaults;  // for what a request leaves open
  int64_t max_model_len = 0;
  size_t max_prompt_bytes = 0;  // see longest_prompt_bytes(); 0: not limited

  bool has_name(std::string_view name) const;
};

// What a chat request says about its prompt, checked and in the form that templates expect:
// content is a string, the arguments of tool calls are objects.
struct ChatPrompt {
  boost::json::array messages;
  std::optional<boost::json::value> tools;
  std::optional<boost::json::value> documents;
  boost::json::object template_kwargs;
  bool add_generation_prompt = true;
  bool continue_final_message = false;  // the answer goes on where the last message ends
  bool add_special_tokens = false;
};

// The template's text for `chat`. What the template itself refuses is an invalid_argument.
Result<std::string> render_chat(const ServedModel& model, const ChatPrompt& chat);

// The context full of the tokenizer's longest token. Longer text is refused before it is tokenised,
// which takes seconds for tens of megabytes.
size_t longest_prompt_bytes(const Tokenizer& tokenizer, int64_t max_model_len);
// An invalid_argument where `text` is longer than that.
Status check_prompt_bytes(const ServedModel& model, std::string_view text);

// Tokenises; a begin token that the text already starts with is not added a second time.
Result<std::vector<int32_t>> encode_prompt(const Tokenizer& tokenizer, std::string_view text,
                                           bool add_special_tokens);

// The text of a token for logprobs: valid UTF-8, U+FFFD for a part of a character.
std::string token_text(const Tokenizer& tokenizer, int32_t id);
// The same, but a part of a character is spelt "bytes:\xe2\x82", so that different tokens stay
// different.
std::string token_key(const Tokenizer& tokenizer, int32_t id);

}  // namespace sub8::server
