// What /metrics shows, under vLLM's names so that its dashboards work, plus sub8's own.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "server/backend.h"
#include "server/http_server.h"

namespace sub8::server {

class Metrics {
 public:
  // The backend must outlive this. `dropped_log_lines` may be empty.
  Metrics(const Backend& backend, std::string model_name,
          std::function<uint64_t()> dropped_log_lines);
  ~Metrics();

  // Counts a finished HTTP request. `known_path`: a path of the router; all others share a label.
  void count(const AccessRecord& record, bool known_path);

  // The Prometheus text format, of the state now.
  std::string text() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sub8::server
