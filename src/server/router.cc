#include "server/router.h"

#include <algorithm>
#include <cctype>

#include <fmt/format.h>

#include "server/api_error.h"

namespace sub8::server {
namespace {

constexpr std::string_view kBearer = "Bearer ";

bool is_json(std::string_view content_type) {
  std::string type(content_type.substr(0, content_type.find(';')));
  while (!type.empty() && type.back() == ' ') type.pop_back();
  for (char& c : type) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return type == "application/json" ||
         (type.starts_with("application/") && type.ends_with("+json"));
}

}  // namespace

void Router::add(Route route) { routes_.push_back(std::move(route)); }

const Route* Router::find(std::string_view method, std::string_view path) const {
  if (method == "HEAD") method = "GET";
  for (const Route& route : routes_) {
    if (route.path == path && route.method == method) return &route;
  }
  return nullptr;
}

bool Router::has_path(std::string_view path) const {
  return std::any_of(routes_.begin(), routes_.end(),
                     [&](const Route& route) { return route.path == path; });
}

std::string Router::allowed_methods(std::string_view path) const {
  std::string out;
  for (const Route& route : routes_) {
    if (route.path == path) out += route.method + (route.method == "GET" ? ", HEAD, " : ", ");
  }
  return out + "OPTIONS";
}

bool AccessPolicy::origin_allowed(std::string_view origin) const {
  const auto& allowed = config_.cors_origins;
  return !origin.empty() && std::any_of(allowed.begin(), allowed.end(), [&](const auto& entry) {
    return entry == "*" || entry == origin;
  });
}

bool AccessPolicy::key_valid(const HttpRequest& request) const {
  const std::string_view given = request.header("authorization");
  if (!given.starts_with(kBearer)) return false;
  bool valid = false;
  // All keys are compared, whichever fits.
  for (const std::string& key : config_.api_keys)
    valid |= equal_in_constant_time(given.substr(kBearer.size()), key);
  return valid;
}

std::optional<HttpResponse> AccessPolicy::refuse(const HttpRequest& request) const {
  if (!router_.has_path(request.path)) {
    return error_response(
        404,
        fmt::format("there is nothing at {}; /openapi.json lists what there is", request.path));
  }
  if (request.method == "OPTIONS") {
    const std::string_view origin = request.header("origin");
    if (!origin.empty() && !origin_allowed(origin)) {
      return error_response(
          403, fmt::format("browsers may not call this server from {}; start it with --cors-origin "
                           "to allow that",
                           origin));
    }
    HttpResponse out;
    out.status = 204;
    out.content_type.clear();
    out.headers = {{"Allow", router_.allowed_methods(request.path)},
                   {"Access-Control-Allow-Methods", router_.allowed_methods(request.path)},
                   {"Access-Control-Allow-Headers", "Authorization, Content-Type, X-Request-Id"},
                   {"Access-Control-Max-Age", "600"}};
    return out;
  }
  const Route* route = router_.find(request.method, request.path);
  if (route == nullptr) {
    const std::string allowed = router_.allowed_methods(request.path);
    HttpResponse out = error_response(405, fmt::format("{} does not take {}; it takes {}",
                                                       request.path, request.method, allowed));
    out.headers.emplace_back("Allow", allowed);
    return out;
  }
  if (route->needs_key && !config_.api_keys.empty() && !key_valid(request)) {
    return error_response(
        401, request.header("authorization").empty()
                 ? "this server asks for an API key: send it as 'Authorization: Bearer KEY'"
                 : "the API key is not valid");
  }
  const std::string_view type = request.header("content-type");
  if (route->method == "POST" && !type.empty() && !is_json(type)) {
    return error_response(
        415,
        fmt::format("the body must be JSON with 'Content-Type: application/json', not '{}'", type));
  }
  return std::nullopt;
}

void AccessPolicy::add_cors_headers(std::string_view origin, HttpResponse& response) const {
  if (!origin_allowed(origin)) return;
  response.headers.emplace_back("Access-Control-Allow-Origin", origin);
  response.headers.emplace_back("Access-Control-Expose-Headers", "X-Request-Id");
  response.headers.emplace_back("Vary", "Origin");
}

}  // namespace sub8::server
