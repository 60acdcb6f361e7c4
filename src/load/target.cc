#include "load/target.h"

#include <charconv>

#include <fmt/format.h>

namespace sub8::load {

std::string Target::authority() const {
  const bool v6 = host.find(':') != std::string::npos;
  return fmt::format("{}{}{}:{}", v6 ? "[" : "", host, v6 ? "]" : "", port);
}

Result<Target> parse_target(std::string_view url) {
  const auto fail = [&](std::string_view why) {
    return invalid_argument(
        fmt::format("the server's address '{}' {}; write http://HOST:PORT", url, why));
  };
  constexpr std::string_view kScheme = "http://";
  if (url.starts_with("https://"))
    return unsupported(fmt::format("'{}': TLS is not supported; measure behind the proxy", url));
  if (!url.starts_with(kScheme)) return fail("does not begin with http://");
  for (const char c : url) {
    if (static_cast<unsigned char>(c) <= ' ' || static_cast<unsigned char>(c) >= 0x7f ||
        std::string_view("?#@\\\"").find(c) != std::string_view::npos)
      return fail("has a character that does not belong there");
  }
  Target out;
  const std::string_view rest = url.substr(kScheme.size());
  const size_t slash = std::min(rest.find('/'), rest.size());
  std::string_view authority = rest.substr(0, slash);
  std::string_view path = rest.substr(slash);
  while (path.ends_with('/')) path.remove_suffix(1);
  if (path.ends_with("/v1")) path.remove_suffix(3);
  out.base = path;
  std::string_view port;
  if (authority.starts_with('[')) {
    const size_t end = authority.find(']');
    if (end == std::string_view::npos) return fail("has no ']'");
    out.host = authority.substr(1, end - 1);
    authority.remove_prefix(end + 1);
    if (!authority.empty() && authority[0] != ':') return fail("has no ':' before the port");
    port = authority;
  } else {
    const size_t colon = std::min(authority.find(':'), authority.size());
    out.host = authority.substr(0, colon);
    port = authority.substr(colon);
  }
  if (out.host.empty()) return fail("names no host");
  if (!port.empty()) {
    port.remove_prefix(1);
    const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), out.port);
    if (error != std::errc() || end != port.data() + port.size() || out.port == 0)
      return fail("has no port from 1 to 65535");
  }
  return out;
}

}  // namespace sub8::load
