#include "server/api_error.h"

#include <exception>
#include <new>

#include "text/utf8.h"

namespace sub8::server {
namespace json = boost::json;

int http_status(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
    case ErrorCode::kCorruptData:
    case ErrorCode::kUnsupported:
      return 400;
    case ErrorCode::kNotFound:
      return 404;
    case ErrorCode::kResourceExhausted:
      return 429;
    case ErrorCode::kCancelled:
    case ErrorCode::kDeviceLost:
      return 503;
    case ErrorCode::kInternal:
      return 500;
  }
  return 500;
}

std::string_view error_type(int status) {
  switch (status) {
    case 401:
    case 403:
      return "authentication_error";
    case 404:
      return "not_found_error";
    case 429:
      return "rate_limit_error";
    default:
      return status >= 500 ? "server_error" : "invalid_request_error";
  }
}

json::object error_body(int status, std::string_view message, std::string_view param) {
  std::string clean;
  append_lossy_utf8(message, &clean);
  json::object error{
      {"message", clean}, {"type", error_type(status)}, {"param", nullptr}, {"code", status}};
  if (!param.empty()) error["param"] = param;
  return {{"error", std::move(error)}};
}

HttpResponse error_response(int status, std::string_view message, std::string_view param) {
  HttpResponse out;
  out.status = status;
  out.body = json::serialize(error_body(status, message, param));
  if (status == 401) out.headers.emplace_back("WWW-Authenticate", "Bearer");
  if (status == 429 || status == 503) out.headers.emplace_back("Retry-After", "1");
  return out;
}

HttpResponse error_response(const Error& error, std::string_view param) {
  return error_response(http_status(error.code), error.message, param);
}

void run_guarded(Exchange& exchange, const std::function<void()>& run) {
  try {
    run();
  } catch (const std::bad_alloc&) {
    exchange.respond(error_response(503, "out of memory"));
  } catch (const std::exception& failure) {
    exchange.respond(error_response(500, failure.what()));
  }
}

HttpResponse json_response(const json::value& body) {
  HttpResponse out;
  out.body = json::serialize(body);
  return out;
}

}  // namespace sub8::server
