// Accepts connections and runs handlers. Networking types stay in http_server.cc and connection.*.
//
// Threads: `io_threads` run all connections (each on a strand of its own), `worker_threads` run the
// handlers that are not quick. stop() or the destructor ends them.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "base/error.h"
#include "server/config.h"
#include "server/router.h"

namespace sub8::server {

// One finished request, for logs and metrics.
struct AccessRecord {
  std::string id;
  std::string method;
  std::string path;
  std::string client;  // address
  int status = 0;      // 499 when the client left before the reply was complete
  double seconds = 0;  // from the complete header to the last byte
  uint64_t sent_bytes = 0;
};
using AccessLog = std::function<void(const AccessRecord&)>;

class HttpServer {
 public:
  // `access_log` is called on the io threads.
  HttpServer(ServerConfig config, Router router, AccessLog access_log);
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  // Binds and starts the threads. The error names the address and what is in the way.
  Status start();
  // The port in use after start().
  uint16_t port() const;

  // No new connections; idle ones are closed, requests that arrive get 503, replies under way go
  // on. Returns at once.
  void begin_drain();
  // Waits until no request is under way; false at the deadline.
  bool wait_idle(std::chrono::milliseconds timeout);
  // Ends all connections and threads. Idempotent.
  void stop();

  int open_connections() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sub8::server
