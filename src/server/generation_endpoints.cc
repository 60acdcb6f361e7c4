// POST /v1/completions and /v1/chat/completions.
#include <algorithm>
#include <optional>

#include <fmt/format.h>

#include "server/api.h"
#include "server/api_error.h"
#include "server/chat_request.h"
#include "server/completion_request.h"

namespace sub8::server {
namespace {

// A request that no amount of waiting could serve.
Status check_fits(const engine::Request& request, const engine::EngineInfo& info) {
  const auto prompt = static_cast<int64_t>(request.prompt.size());
  if (prompt == 0) return invalid_argument("the prompt is empty: it has no tokens");
  if (prompt >= info.max_model_len && request.sampling.max_tokens.value_or(1) > 0) {
    return invalid_argument(
        fmt::format("the prompt has {} tokens, but the context holds {} together with the answer; "
                    "shorten it, or start the server with a larger --max-model-len",
                    prompt, info.max_model_len));
  }
  const int64_t answer = request.sampling.max_tokens.value_or(info.max_model_len);
  const int64_t tokens = std::min(info.max_model_len, prompt + std::max<int64_t>(answer, 0));
  const int64_t capacity = int64_t{info.kv_pages} * info.page_tokens;
  if (info.page_tokens > 0 && tokens > capacity) {
    return invalid_argument(
        fmt::format("prompt and answer of up to {} tokens do not fit into KV memory for {} tokens; "
                    "lower max_tokens, or start the server with a larger --kv-memory",
                    tokens, capacity));
  }
  return {};
}

void log_result(const Api& api, const GenerationResult& r) {
  api.log->info(
      "generation id={} prompt_tokens={} cached_tokens={} completion_tokens={} queue_ms={:.1f} "
      "ttft_ms={:.1f} ms={:.1f} finish={}",
      r.request_id, r.prompt_tokens, r.cached_tokens, r.completion_tokens, to_ms(r.queue_seconds),
      to_ms(r.first_token_seconds), to_ms(r.seconds), engine::finish_reason_name(r.finish));
}

// One request of a client on its way to the engine.
struct Submission {
  std::shared_ptr<Exchange> exchange;
  std::vector<engine::Request> requests;
  std::unique_ptr<Reply> reply;
  bool stream = false;
  std::optional<GrammarSpec> grammar;
};

void submit(const Api& api, Submission& work) {
  GenerationOptions options;
  options.stream = work.stream;
  options.on_result = [&api](const GenerationResult& result) { log_result(api, result); };
  generate(work.exchange, api.backend, std::move(work.requests), std::move(work.reply),
           std::move(options));
}

// On a thread for grammars. Whoever has left by now costs nothing.
void compile_and_submit(const Api& api, Submission& work) {
  if (work.exchange->closed()) return;
  const Result<ConstraintFactory> constraint = api.grammars->compile(*work.grammar);
  if (!constraint.ok()) return work.exchange->respond(error_response(constraint.error()));
  if (work.exchange->closed()) return;
  for (engine::Request& request : work.requests) request.constraint = *constraint;
  submit(api, work);
}

// Submits `requests`, with a grammar once it is compiled; the first error answers for all.
// `prompt_member` is where the body has the prompt.
void run(const Api& api, const std::shared_ptr<Exchange>& exchange, const GenerationFields& fields,
         std::vector<engine::Request> requests, std::unique_ptr<Reply> reply,
         std::string_view prompt_member) {
  for (engine::Request& request : requests) {
    const Status fits = check_fits(request, api.backend.info());
    if (!fits.ok()) return exchange->respond(error_response(fits.error(), prompt_member));
  }
  const auto work = std::make_shared<Submission>(
      Submission{exchange, std::move(requests), std::move(reply), fields.stream, fields.grammar});
  if (!work->grammar) return submit(api, *work);
  if (api.grammars == nullptr)
    return exchange->respond(error_response(invalid_argument(api.grammars_missing)));
  if (std::optional<ConstraintFactory> known = api.grammars->find(*work->grammar)) {
    for (engine::Request& request : work->requests) request.constraint = *known;
    return submit(api, *work);
  }
  const bool queued = api.grammar_queue.post(
      [&api, work] { run_guarded(*work->exchange, [&] { compile_and_submit(api, *work); }); });
  if (!queued) {
    exchange->respond(
        error_response(429, "too many grammars wait to be compiled; try again later"));
  }
}

void handle_completion(const Api& api, const std::shared_ptr<Exchange>& exchange) {
  const Result<boost::json::value> json = parse_body(exchange->request().body);
  if (!json.ok()) return exchange->respond(error_response(json.error()));
  Result<BodyReader> body = BodyReader::open(*json);
  if (!body.ok()) return exchange->respond(error_response(body.error()));
  Result<CompletionRequest> request =
      parse_completion_request(*body, api.model, api.backend.info());
  if (!request.ok()) return exchange->respond(error_response(request.error(), body->param()));
  log_unknown_members(api, *body);
  std::vector<engine::Request> requests;
  for (const CompletionRequest::Prompt& prompt : request->prompts) {
    requests.push_back(request->fields.request);
    requests.back().prompt = prompt.ids;
  }
  const GenerationFields fields = request->fields;
  auto reply =
      make_completion_reply(api.model, std::move(*request), "cmpl-" + exchange->request().id);
  run(api, exchange, fields, std::move(requests), std::move(reply), "prompt");
}

void handle_chat(const Api& api, const std::shared_ptr<Exchange>& exchange) {
  const Result<boost::json::value> json = parse_body(exchange->request().body);
  if (!json.ok()) return exchange->respond(error_response(json.error()));
  Result<BodyReader> body = BodyReader::open(*json);
  if (!body.ok()) return exchange->respond(error_response(body.error()));
  Result<ChatRequest> request =
      parse_chat_request(*body, api.model, api.backend.info(), api.tool_family);
  if (!request.ok()) return exchange->respond(error_response(request.error(), body->param()));
  log_unknown_members(api, *body);
  std::vector<engine::Request> requests(1, request->fields.request);
  requests[0].prompt = request->ids;
  const GenerationFields fields = request->fields;
  auto reply =
      make_chat_reply(api.model, std::move(*request), "chatcmpl-" + exchange->request().id);
  run(api, exchange, fields, std::move(requests), std::move(reply), "messages");
}

}  // namespace

void add_generation_routes(const Api& api, Router& router) {
  router.add({.method = "POST", .path = "/v1/completions", .handler = [&api](auto exchange) {
                handle_completion(api, exchange);
              }});
  router.add({.method = "POST", .path = "/v1/chat/completions", .handler = [&api](auto exchange) {
                handle_chat(api, exchange);
              }});
}

}  // namespace sub8::server
