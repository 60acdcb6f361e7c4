// What the operator decides about the server. Everything has a default that is safe on a machine
// of one's own: loopback, no cross-origin access, bounded memory per client.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace sub8::server {

struct ServerConfig {
  std::string host = "127.0.0.1";  // an address, or a name that resolves to one
  uint16_t port = 8000;            // 0: any free one, see Server::port()
  int io_threads = 2;              // connections and streams
  int worker_threads = 2;          // parsing, templates, tokenising

  // Accepted as `Authorization: Bearer KEY`. Empty: no keys asked for.
  std::vector<std::string> api_keys;
  // Origins that browsers may call from; "*" is any. Empty: no cross-origin access.
  std::vector<std::string> cors_origins;

  // Limits. A request beyond one gets 413, 431, 408 or 503 and the connection ends.
  size_t max_connections = 1024;
  uint32_t max_header_bytes = 32 << 10;
  size_t max_body_bytes = size_t{32} << 20;
  size_t max_inflight_body_bytes = size_t{256} << 20;  // of all requests together
  // Unread bytes of one reply at which its choices are paused, see engine::ServiceOptions.
  size_t max_unsent_bytes = size_t{64} << 10;

  std::chrono::milliseconds idle_timeout{75'000};   // for the next request's header to be complete
  std::chrono::milliseconds body_timeout{60'000};   // for the body, after its header
  std::chrono::milliseconds write_timeout{60'000};  // without a byte taken by the reader
  std::chrono::milliseconds ping_interval{15'000};  // SSE comment when a stream has been silent
  std::chrono::milliseconds request_timeout{3'600'000};  // from the first byte to the last
};

}  // namespace sub8::server
