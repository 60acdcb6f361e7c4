#include "server/http_message.h"

#include <array>
#include <random>

#include <fmt/format.h>

namespace sub8::server {

std::string_view HttpRequest::header(std::string_view name) const {
  for (const auto& [key, value] : headers) {
    if (key == name) return value;
  }
  return {};
}

std::string_view status_text(int status) {
  static constexpr std::array<std::pair<int, std::string_view>, 18> kTexts{{
      {200, "OK"},
      {204, "No Content"},
      {400, "Bad Request"},
      {401, "Unauthorized"},
      {403, "Forbidden"},
      {404, "Not Found"},
      {405, "Method Not Allowed"},
      {408, "Request Timeout"},
      {413, "Content Too Large"},
      {415, "Unsupported Media Type"},
      {429, "Too Many Requests"},
      {431, "Request Header Fields Too Large"},
      {499, "Client Closed Request"},
      {500, "Internal Server Error"},
      {501, "Not Implemented"},
      {503, "Service Unavailable"},
      {504, "Gateway Timeout"},
      {505, "HTTP Version Not Supported"},
  }};
  for (const auto& [code, text] : kTexts) {
    if (code == status) return text;
  }
  return "Unknown";
}

std::string format_head(const HttpResponse& response, Framing framing, bool keep_alive) {
  std::string out =
      fmt::format("HTTP/1.1 {} {}\r\n", response.status, status_text(response.status));
  const auto add = [&out](std::string_view name, std::string_view value) {
    out += name;
    out += ": ";
    for (const char c : value) out += static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? ' ' : c;
    out += "\r\n";
  };
  if (!response.content_type.empty()) add("Content-Type", response.content_type);
  for (const auto& [name, value] : response.headers) add(name, value);
  // 204 has no body and may not announce one.
  if (framing == Framing::kLength && response.status != 204)
    add("Content-Length", std::to_string(response.body.size()));
  if (framing == Framing::kChunked) add("Transfer-Encoding", "chunked");
  add("Connection", keep_alive ? "keep-alive" : "close");
  out += "\r\n";
  return out;
}

std::string format_chunk(std::string_view data) {
  return fmt::format("{:x}\r\n{}\r\n", data.size(), data);
}

std::string random_hex(int digits) {
  thread_local std::mt19937_64 random{std::random_device{}()};
  return fmt::format("{:016x}{:016x}", random(), random()).substr(0, static_cast<size_t>(digits));
}

std::string request_id(std::string_view given) {
  constexpr size_t kMaxLength = 64;
  constexpr std::string_view kAllowed =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
  const bool usable = !given.empty() && given.size() <= kMaxLength &&
                      given.find_first_not_of(kAllowed) == std::string_view::npos;
  return usable ? std::string(given) : random_hex(32);
}

bool equal_in_constant_time(std::string_view a, std::string_view b) {
  // The length is not secret; every byte of `a` is looked at in any case.
  unsigned difference = a.size() == b.size() ? 0 : 1;
  for (size_t i = 0; i < a.size(); ++i) {
    const char other = b.empty() ? '\0' : b[i % b.size()];
    difference |= static_cast<unsigned>(static_cast<unsigned char>(a[i] ^ other));
  }
  return difference == 0;
}

}  // namespace sub8::server
