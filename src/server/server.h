// The OpenAI-compatible server over one model.
//
//   Server server(config, std::move(model), backend, std::move(options));
//   SUB8_RETURN_IF_ERROR(server.start());
//   ... server.begin_drain(); server.wait_idle(30s); server.stop();
//
// Destroy it before the backend.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include <spdlog/logger.h>

#include "base/error.h"
#include "server/backend.h"
#include "server/config.h"
#include "server/grammar.h"
#include "server/served_model.h"
#include "server/tool_parser.h"

namespace sub8::server {

struct ServerOptions {
  std::string version;
  ToolFamily tool_family = ToolFamily::kNone;
  GrammarCompiler* grammars = nullptr;  // null: structured output is refused
  std::string grammars_missing = "structured output is not available on this server";
  std::shared_ptr<spdlog::logger> log;          // null: none
  std::function<uint64_t()> dropped_log_lines;  // for the metrics; may be empty
};

class Server {
 public:
  Server(ServerConfig config, ServedModel model, Backend& backend, ServerOptions options);
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  // Contracts of HttpServer.
  Status start();
  uint16_t port() const;
  void begin_drain();
  bool wait_idle(std::chrono::milliseconds timeout);
  void stop();
  int open_connections() const;

  // "GET /health", in the order of the router's table.
  std::vector<std::string> routes() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sub8::server
