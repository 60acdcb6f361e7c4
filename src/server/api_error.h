// Errors as clients of the OpenAI API expect them:
// {"error": {"message", "type", "param", "code"}} with an HTTP status.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include <boost/json.hpp>

#include "base/error.h"
#include "server/exchange.h"

namespace sub8::server {

// 400, 404, 429, 499, 500, 501 or 503 by code. Corrupt data is the client's: 400.
int http_status(ErrorCode code);

// "invalid_request_error", "authentication_error", "not_found_error", "rate_limit_error",
// "server_error", by status.
std::string_view error_type(int status);

// {"error": {...}}. Bytes of `message` that are no UTF-8 become U+FFFD; `param` may be empty.
boost::json::object error_body(int status, std::string_view message, std::string_view param = {});

HttpResponse error_response(int status, std::string_view message, std::string_view param = {});
HttpResponse error_response(const Error& error, std::string_view param = {});

// Runs `run`; what it throws becomes the answer.
void run_guarded(Exchange& exchange, const std::function<void()>& run);

HttpResponse json_response(const boost::json::value& body);

}  // namespace sub8::server
