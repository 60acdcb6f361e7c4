// The server under load: an OpenAI-compatible API at an http:// address.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/error.h"

namespace sub8::load {

enum class Endpoint : uint8_t { kCompletions, kChat };

struct Target {
  std::string host;  // without brackets
  uint16_t port = 80;
  std::string base;     // in front of "/v1/...": "" or "/path"
  std::string api_key;  // "": none
  Endpoint endpoint = Endpoint::kCompletions;
  std::string model;
  double timeout_seconds = 600;  // for a whole request

  std::string authority() const;  // for the Host header
};

// "http://HOST[:PORT][/PATH]". A path that ends in /v1 loses it: clients are often given that form.
Result<Target> parse_target(std::string_view url);

}  // namespace sub8::load
