#include "server/completion_request.h"

#include <fmt/format.h>

namespace sub8::server {
namespace {

namespace json = boost::json;
using Prompt = CompletionRequest::Prompt;

class PromptReader {
 public:
  PromptReader(BodyReader& body, const ServedModel& model, const engine::EngineInfo& info,
               bool add_special, bool truncated)
      : body_(body), model_(model), info_(info), add_special_(add_special), truncated_(truncated) {}

  Result<std::vector<Prompt>> read() {
    const json::value* prompt = body_.raw("prompt");
    if (prompt == nullptr) return body_.fail("prompt", "is missing");
    std::vector<Prompt> out;
    if (prompt->is_string()) {
      SUB8_ASSIGN_OR_RETURN(Prompt one, from_text(prompt->get_string()));
      out.push_back(std::move(one));
      return out;
    }
    if (!prompt->is_array()) return wrong_type();
    const json::array& array = prompt->get_array();
    if (array.empty()) return body_.fail("prompt", "the array is empty");
    if (array[0].is_number()) {
      SUB8_ASSIGN_OR_RETURN(Prompt one, from_ids(array));
      out.push_back(std::move(one));
      return out;
    }
    if (array.size() > kMaxPrompts) {
      return body_.fail("prompt", fmt::format("at most {} prompts are allowed, got {}", kMaxPrompts,
                                              array.size()));
    }
    for (const json::value& element : array) {
      if (element.is_string()) {
        SUB8_ASSIGN_OR_RETURN(Prompt one, from_text(element.get_string()));
        out.push_back(std::move(one));
      } else if (element.is_array()) {
        SUB8_ASSIGN_OR_RETURN(Prompt one, from_ids(element.get_array()));
        out.push_back(std::move(one));
      } else {
        return wrong_type();
      }
    }
    return out;
  }

 private:
  Error wrong_type() {
    return body_.fail("prompt",
                      "expected a string, an array of strings, an array of token ids, or an array "
                      "of arrays of token ids");
  }

  Result<Prompt> from_text(std::string_view text) {
    if (!truncated_) {
      const Status fits = check_prompt_bytes(model_, text);
      if (!fits.ok()) return body_.fail("prompt", fits.error().message);
    }
    Prompt out;
    out.text = std::string(text);
    Result<std::vector<int32_t>> ids = encode_prompt(*model_.tokenizer, text, add_special_);
    if (!ids.ok()) return body_.fail("prompt", ids.error().message);
    out.ids = std::move(ids).value();
    return out;
  }

  Result<Prompt> from_ids(const json::array& array) {
    Prompt out;
    for (const json::value& element : array) {
      if (!element.is_int64() || element.get_int64() < 0 ||
          element.get_int64() >= info_.vocab_size) {
        return body_.fail("prompt", fmt::format("element {} must be a token id from 0 to {}",
                                                out.ids.size(), info_.vocab_size - 1));
      }
      out.ids.push_back(static_cast<int32_t>(element.get_int64()));
    }
    out.text = model_.tokenizer->decode(out.ids, false);
    return out;
  }

  BodyReader& body_;
  const ServedModel& model_;
  const engine::EngineInfo& info_;
  bool add_special_;
  bool truncated_;  // to the last tokens, however long the text is
};

}  // namespace

Result<CompletionRequest> parse_completion_request(BodyReader& body, const ServedModel& model,
                                                   const engine::EngineInfo& info) {
  CompletionRequest out;
  SUB8_ASSIGN_OR_RETURN(out.fields, read_generation_fields(body, model, info));
  engine::Request& request = out.fields.request;
  SUB8_ASSIGN_OR_RETURN(const auto echo, body.boolean("echo"));
  out.echo = echo.value_or(false);
  SUB8_ASSIGN_OR_RETURN(const auto logprobs, body.integer("logprobs", 0, engine::kMaxTopLogprobs));
  if (logprobs) out.logprobs = static_cast<int>(*logprobs);
  SUB8_ASSIGN_OR_RETURN(const auto prompt_logprobs,
                        body.integer("prompt_logprobs", -1, engine::kMaxTopLogprobs));
  if (prompt_logprobs) out.prompt_logprobs = static_cast<int>(*prompt_logprobs);
  if (out.prompt_logprobs >= 0 && out.fields.stream)
    return body.fail("prompt_logprobs", "is not available in streams");
  SUB8_RETURN_IF_ERROR(body.refuse("suffix", "is not supported"));
  request.sampling.top_logprobs = out.logprobs;
  request.prompt_logprobs = std::max(out.prompt_logprobs, out.echo ? out.logprobs : -1);

  // Without generated tokens there must be something of the prompt to give back.
  const int64_t least = out.echo || request.prompt_logprobs >= 0 ? 0 : 1;
  SUB8_ASSIGN_OR_RETURN(const auto max_tokens, body.integer("max_tokens", least, INT32_MAX));
  request.sampling.max_tokens = max_tokens.value_or(kDefaultCompletionTokens);
  if (request.sampling.min_tokens > *request.sampling.max_tokens)
    return body.fail("min_tokens", "is larger than max_tokens");
  if (*request.sampling.max_tokens == 0 && request.prompt_logprobs < 0)
    return body.fail("max_tokens", "0 needs echo together with logprobs, or prompt_logprobs");

  SUB8_ASSIGN_OR_RETURN(const auto add_special, body.boolean("add_special_tokens"));
  PromptReader reader(body, model, info, add_special.value_or(true),
                      out.fields.truncate_prompt_tokens.has_value());
  SUB8_ASSIGN_OR_RETURN(out.prompts, reader.read());
  const auto choices = static_cast<int64_t>(out.prompts.size()) * request.n;
  if (choices > kMaxChoicesPerRequest) {
    return body.fail("n", fmt::format("{} prompts with n = {} make more than {} choices",
                                      out.prompts.size(), request.n, kMaxChoicesPerRequest));
  }
  if (const auto keep = out.fields.truncate_prompt_tokens) {
    for (Prompt& prompt : out.prompts) {
      const auto size = static_cast<int64_t>(prompt.ids.size());
      if (size > *keep) prompt.ids.erase(prompt.ids.begin(), prompt.ids.end() - *keep);
    }
  }
  return out;
}

}  // namespace sub8::server
