// GET /v1/models, /health, /version and /metrics.
#include "server/api.h"
#include "server/api_error.h"

namespace sub8::server {
namespace {

namespace json = boost::json;

json::object sampling_json(const engine::SamplingParams& p) {
  return {{"temperature", p.temperature},
          {"top_k", p.top_k},
          {"top_p", p.top_p},
          {"min_p", p.min_p},
          {"repetition_penalty", p.repetition_penalty},
          {"presence_penalty", p.presence_penalty},
          {"frequency_penalty", p.frequency_penalty}};
}

// Without the notes that follow it.
std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

json::object models_json(const Api& api) {
  const engine::EngineInfo& info = api.backend.info();
  json::array modes;
  for (const auto mode : info.modes) modes.emplace_back(model::execution_mode_name(mode));
  json::array data;
  for (const std::string& name : api.model.names) {
    data.push_back({{"id", name},
                    {"object", "model"},
                    {"created", api.model.created},
                    {"owned_by", "sub8"},
                    {"root", api.model.root},
                    {"parent", nullptr},
                    {"max_model_len", info.max_model_len},
                    {"permission", json::array()},
                    {"sub8",
                     {{"recipe", api.model.recipe},
                      {"mode", model::execution_mode_name(info.mode)},
                      {"mode_text", first_line(info.mode_text)},
                      {"modes", modes},
                      {"kv_type", info.kv_type},
                      {"attention", info.attention},
                      {"kv_token_bytes", info.kv_token_bytes()},
                      {"kv_bytes", info.kv_bytes},
                      {"kv_pages", info.kv_pages},
                      {"page_tokens", info.page_tokens},
                      {"max_sequences", info.max_sequences},
                      {"max_batch_tokens", info.max_batch_tokens},
                      {"prefix_cache", info.prefix_cache},
                      {"chat_template", api.model.chat_template != nullptr},
                      {"tool_family", tool_family_name(api.tool_family)},
                      {"structured_output", api.grammars != nullptr},
                      {"sampling_defaults", sampling_json(api.model.defaults)}}}});
  }
  return {{"object", "list"}, {"data", std::move(data)}};
}

HttpResponse health(const Api& api) {
  const Status status = api.backend.health();
  if (!status.ok()) return error_response(503, status.error().message);
  HttpResponse out;
  out.content_type.clear();
  return out;
}

HttpResponse metrics(const Api& api) {
  HttpResponse out;
  out.content_type = "text/plain; version=0.0.4; charset=utf-8";
  out.body = api.metrics.text();
  return out;
}

}  // namespace

void add_model_routes(const Api& api, Router& router) {
  router.add(
      {.method = "GET", .path = "/v1/models", .quick = true, .handler = [&api](auto exchange) {
         exchange->respond(json_response(models_json(api)));
       }});
  // Probes and scrapers come without keys.
  router.add({.method = "GET",
              .path = "/health",
              .needs_key = false,
              .quick = true,
              .handler = [&api](auto exchange) { exchange->respond(health(api)); }});
  router.add({.method = "GET",
              .path = "/version",
              .needs_key = false,
              .quick = true,
              .handler = [&api](auto exchange) {
                exchange->respond(json_response(json::object{{"version", api.version}}));
              }});
  router.add(
      {.method = "GET", .path = "/metrics", .needs_key = false, .handler = [&api](auto exchange) {
         exchange->respond(metrics(api));
       }});
}

}  // namespace sub8::server
