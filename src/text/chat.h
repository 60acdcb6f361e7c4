// From a conversation to the prompt that a model continues.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "text/template.h"

namespace sub8 {

struct ChatTurn {
  std::string role;  // "user" or "assistant"
  std::string content;
};

// The text of `system` (when given) and `turns` in the model's own format, ending where the
// assistant's answer begins. `defaults` carries what does not change from turn to turn: special
// tokens, time, kwargs; its messages are replaced. The text holds the special tokens that the
// template writes, BOS among them: tokenize it without adding another.
//
// `chat` is null for a model without a chat template. There is no built-in format to fall back to
// (a wrong one degrades answers without a sign): that is an invalid_argument error which names
// `--raw`.
Result<std::string> chat_prompt(const ChatTemplate* chat, const std::optional<std::string>& system,
                                const std::vector<ChatTurn>& turns, ChatInput defaults);

}  // namespace sub8
