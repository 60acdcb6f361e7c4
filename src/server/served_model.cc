#include "server/served_model.h"

#include <algorithm>

#include <fmt/format.h>

#include "text/utf8.h"

namespace sub8::server {
namespace {

namespace json = boost::json;

std::string_view trim(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n";
  const size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpace) - begin + 1);
}

}  // namespace

bool ServedModel::has_name(std::string_view name) const {
  return std::find(names.begin(), names.end(), name) != names.end();
}

Result<std::string> render_chat(const ServedModel& model, const ChatPrompt& chat) {
  if (model.chat_template == nullptr) {
    return invalid_argument(
        "the model has no chat template: send text to /v1/completions, or start the server with "
        "--chat-template FILE");
  }
  ChatInput input;
  input.messages = chat.messages;
  input.tools = chat.tools;
  input.documents = chat.documents;
  input.kwargs = chat.template_kwargs;
  input.add_generation_prompt = chat.add_generation_prompt && !chat.continue_final_message;
  input.now = local_time_now();
  const SpecialIds& ids = model.tokenizer->special_ids();
  const auto text_of = [&](std::optional<int32_t> id) -> std::optional<std::string> {
    if (!id) return std::nullopt;
    return model.tokenizer->token_bytes(*id);
  };
  input.bos_token = text_of(ids.bos);
  input.eos_token = text_of(ids.eos);
  if (ids.unk) input.special_tokens.emplace_back("unk_token", *text_of(ids.unk));
  if (ids.pad) input.special_tokens.emplace_back("pad_token", *text_of(ids.pad));
  Result<std::string> rendered = model.chat_template->render(input);
  if (!rendered.ok()) return Error{ErrorCode::kInvalidArgument, rendered.error().message};
  if (!chat.continue_final_message) return rendered;
  // Cut behind the last message's text, as transformers does.
  const json::value* content = chat.messages.back().as_object().if_contains("content");
  if (content == nullptr || !content->is_string()) {
    return invalid_argument(
        "continue_final_message: the last message has no text content to go on with");
  }
  const std::string_view last = trim(content->get_string());
  const size_t at = rendered->rfind(last);
  if (last.empty() || at == std::string::npos) {
    return invalid_argument(
        "continue_final_message: the chat template changed or left out the last message");
  }
  // The template may have trimmed the text; what it kept of trailing space stays.
  std::string out = rendered->substr(0, at + last.size());
  const std::string_view whole = content->get_string();
  const std::string_view tail = whole.substr(whole.find(last) + last.size());
  if (rendered->compare(at + last.size(), tail.size(), tail) == 0) out += tail;
  return out;
}

size_t longest_prompt_bytes(const Tokenizer& tokenizer, int64_t max_model_len) {
  size_t longest = 1;
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id)
    longest = std::max(longest, tokenizer.token_bytes(id).size());
  return longest * static_cast<size_t>(std::max<int64_t>(max_model_len, 0));
}

Status check_prompt_bytes(const ServedModel& model, std::string_view text) {
  if (model.max_prompt_bytes == 0 || text.size() <= model.max_prompt_bytes) return {};
  return invalid_argument(
      fmt::format("the prompt has {} bytes, but the context of {} tokens holds {} at most; shorten "
                  "it, or start the server with a larger --max-model-len",
                  text.size(), model.max_model_len, model.max_prompt_bytes));
}

Result<std::vector<int32_t>> encode_prompt(const Tokenizer& tokenizer, std::string_view text,
                                           bool add_special_tokens) {
  SUB8_ASSIGN_OR_RETURN(std::vector<int32_t> ids,
                        tokenizer.encode(text, {.add_special_tokens = add_special_tokens}));
  const std::vector<int32_t> prefix = tokenizer.prefix_ids();
  if (add_special_tokens && prefix.size() == 1 && ids.size() >= 2 && ids[0] == prefix[0] &&
      ids[1] == prefix[0]) {
    ids.erase(ids.begin());
  }
  return ids;
}

std::string token_text(const Tokenizer& tokenizer, int32_t id) {
  std::string out;
  append_lossy_utf8(tokenizer.token_bytes(id), &out);
  return out;
}

std::string token_key(const Tokenizer& tokenizer, int32_t id) {
  std::string bytes = tokenizer.token_bytes(id);
  if (find_invalid_utf8(bytes) == std::string_view::npos) return bytes;
  std::string out = "bytes:";
  for (const char c : bytes) out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
  return out;
}

}  // namespace sub8::server
