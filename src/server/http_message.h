// HTTP requests and responses as the handlers see them, free of any networking type.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace sub8::server {

struct HttpRequest {
  std::string id;      // of this request, in logs and X-Request-Id: [A-Za-z0-9._-], at most 64
  std::string method;  // "GET", ...
  std::string path;    // without the query
  // Names in lower case.
  std::vector<std::pair<std::string, std::string>> headers;
  std::string body;

  // The first header of that (lower-case) name, or "".
  std::string_view header(std::string_view name) const;
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  std::vector<std::pair<std::string, std::string>> headers;
  std::string body;
};

// How the body's end is marked.
enum class Framing {
  kLength,   // Content-Length
  kChunked,  // HTTP/1.1 streams
  kClose,    // HTTP/1.0 streams
};

// "Too Many Requests"
std::string_view status_text(int status);

// Status line and headers with the empty line. Control characters in header values become spaces.
std::string format_head(const HttpResponse& response, Framing framing, bool keep_alive);

// One chunk of a chunked body; `data` must not be empty.
std::string format_chunk(std::string_view data);

// A request id from outside when it is well formed, else a new random one.
std::string request_id(std::string_view given);
// `digits` random hexadecimal digits, at most 32.
std::string random_hex(int digits);

// Compares without a timing that depends on where the texts differ.
bool equal_in_constant_time(std::string_view a, std::string_view b);

}  // namespace sub8::server
