// POST /tokenize and /detokenize.
#include "server/api.h"
#include "server/api_error.h"
#include "server/chat_request.h"

namespace sub8::server {
namespace {

namespace json = boost::json;

// The model's name, where one is given, must be one of this server's.
Status check_model(const Api& api, BodyReader& body) {
  SUB8_ASSIGN_OR_RETURN(const auto name, body.string("model"));
  if (!name || name->empty() || api.model.has_name(*name)) return {};
  body.blame("model");
  return not_found("the model '" + *name + "' does not exist here");
}

// {prompt} or {messages}: {count, max_model_len, tokens, token_strs}.
Result<json::object> tokenize(const Api& api, BodyReader& body) {
  SUB8_RETURN_IF_ERROR(check_model(api, body));
  SUB8_ASSIGN_OR_RETURN(const auto prompt, body.string("prompt"));
  SUB8_ASSIGN_OR_RETURN(const auto strings, body.boolean("return_token_strs"));
  std::vector<int32_t> ids;
  if (prompt) {
    SUB8_ASSIGN_OR_RETURN(const auto special, body.boolean("add_special_tokens"));
    Result<std::vector<int32_t>> encoded =
        encode_prompt(*api.model.tokenizer, *prompt, special.value_or(true));
    if (!encoded.ok()) return body.fail("prompt", encoded.error().message);
    ids = std::move(encoded).value();
  } else if (body.raw("messages") != nullptr) {
    SUB8_ASSIGN_OR_RETURN(const ChatPrompt chat, read_chat_prompt(body));
    const Result<std::string> text = render_chat(api.model, chat);
    if (!text.ok()) return body.fail("messages", text.error().message);
    SUB8_ASSIGN_OR_RETURN(ids, encode_prompt(*api.model.tokenizer, *text, chat.add_special_tokens));
  } else {
    return body.fail("prompt", "is missing; give prompt or messages");
  }
  json::object out{{"count", ids.size()},
                   {"max_model_len", api.backend.info().max_model_len},
                   {"tokens", json::array(ids.begin(), ids.end())},
                   {"token_strs", nullptr}};
  if (strings.value_or(false)) {
    json::array list;
    for (const int32_t id : ids) list.emplace_back(api.model.tokenizer->token(id).value_or(""));
    out["token_strs"] = std::move(list);
  }
  return out;
}

Result<json::object> detokenize(const Api& api, BodyReader& body) {
  SUB8_RETURN_IF_ERROR(check_model(api, body));
  constexpr size_t kMaxTokens = size_t{1} << 24;
  if (body.raw("tokens") == nullptr) return body.fail("tokens", "is missing");
  SUB8_ASSIGN_OR_RETURN(const std::vector<int32_t> ids,
                        body.token_ids("tokens", kMaxTokens, api.backend.info().vocab_size));
  return json::object{{"prompt", api.model.tokenizer->decode(ids, false)}};
}

using Work = Result<json::object> (*)(const Api&, BodyReader&);

Handler handler(const Api& api, Work work) {
  return [&api, work](const std::shared_ptr<Exchange>& exchange) {
    const Result<json::value> value = parse_body(exchange->request().body);
    if (!value.ok()) return exchange->respond(error_response(value.error()));
    Result<BodyReader> body = BodyReader::open(*value);
    if (!body.ok()) return exchange->respond(error_response(body.error()));
    const Result<json::object> out = work(api, *body);
    if (!out.ok()) return exchange->respond(error_response(out.error(), body->param()));
    log_unknown_members(api, *body);
    exchange->respond(json_response(*out));
  };
}

}  // namespace

void add_tokenize_routes(const Api& api, Router& router) {
  router.add({.method = "POST", .path = "/tokenize", .handler = handler(api, tokenize)});
  router.add({.method = "POST", .path = "/detokenize", .handler = handler(api, detokenize)});
}

}  // namespace sub8::server
