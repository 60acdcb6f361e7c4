// Which handler answers which path, and what is asked of a client before it runs.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/config.h"
#include "server/exchange.h"

namespace sub8::server {

using Handler = std::function<void(std::shared_ptr<Exchange>)>;

struct Route {
  std::string method;  // "GET" or "POST"; a GET route answers HEAD too
  std::string path;
  bool needs_key = true;
  // A quick handler runs between the reads and writes of all connections and may not wait; the
  // others run on a worker thread.
  bool quick = false;
  Handler handler;
};

class Router {
 public:
  void add(Route route);
  // Null when there is no such path, or none for that method.
  const Route* find(std::string_view method, std::string_view path) const;
  bool has_path(std::string_view path) const;
  // "GET, HEAD, OPTIONS" for an existing path.
  std::string allowed_methods(std::string_view path) const;
  const std::vector<Route>& routes() const { return routes_; }

 private:
  std::vector<Route> routes_;
};

// What can be decided from the header alone, before a body is read.
class AccessPolicy {
 public:
  // Both must outlive this.
  AccessPolicy(const ServerConfig& config, const Router& router)
      : config_(config), router_(router) {}

  // The answer to a request that gets no further: no such path (404), wrong method (405), no valid
  // key (401), a body that is not JSON (415), or a CORS preflight (204, or 403).
  std::optional<HttpResponse> refuse(const HttpRequest& request) const;

  // Headers that tell a browser of an allowed origin that it may read the reply.
  void add_cors_headers(std::string_view origin, HttpResponse& response) const;

 private:
  bool origin_allowed(std::string_view origin) const;
  bool key_valid(const HttpRequest& request) const;
  const ServerConfig& config_;
  const Router& router_;
};

}  // namespace sub8::server
