#include "server/server.h"

#include <fmt/format.h>
#include <spdlog/sinks/null_sink.h>

#include "server/api.h"
#include "server/http_server.h"
#include "text/utf8.h"

namespace sub8::server {
namespace {

constexpr int kMaxCompiledGrammars = 4;  // at once
constexpr size_t kMaxWaitingGrammars = 16;

}  // namespace

double to_ms(double seconds) { return seconds * 1000; }

void log_unknown_members(const Api& api, const BodyReader& body) {
  constexpr size_t kMaxNames = 256;
  constexpr size_t kMaxLength = 64;
  for (std::string name : body.unknown()) {
    if (name.size() > kMaxLength) name.resize(kMaxLength);
    for (char& c : name) c = static_cast<unsigned char>(c) < 0x21 || c == 0x7f ? '?' : c;
    const std::lock_guard lock(api.ignored.mutex);
    if (api.ignored.names.size() >= kMaxNames || !api.ignored.names.insert(name).second) continue;
    api.log->info("ignored_member name={}", name);
  }
}

struct Server::Impl {
  Impl(ServedModel served, Backend& backend, ServerOptions options)
      : model(std::move(served)),
        metrics(backend, model.names.front(), std::move(options.dropped_log_lines)),
        api{model,
            backend,
            metrics,
            options.grammars,
            grammar_queue,
            std::move(options.grammars_missing),
            options.tool_family,
            std::move(options.version),
            options.log != nullptr ? std::move(options.log)
                                   : std::make_shared<spdlog::logger>(
                                         "none", std::make_shared<spdlog::sinks::null_sink_mt>()),
            ignored} {
    model.max_prompt_bytes = longest_prompt_bytes(*model.tokenizer, model.max_model_len);
    add_generation_routes(api, router);
    add_model_routes(api, router);
    add_tokenize_routes(api, router);
    add_static_routes(api, router);
  }

  void record(const AccessRecord& r) {
    metrics.count(r, router.has_path(r.path));
    // The path is the client's: what is not printable would forge log lines.
    std::string path;
    for (const char c : r.path) path += c > 0x20 && c < 0x7f ? c : '?';
    api.log->info("request id={} client={} method={} path={} status={} ms={:.1f} bytes={}", r.id,
                  r.client, r.method.empty() ? "-" : r.method, path.empty() ? "-" : path, r.status,
                  to_ms(r.seconds), r.sent_bytes);
  }

  ServedModel model;
  Metrics metrics;
  IgnoredNames ignored;
  GrammarQueue grammar_queue{kMaxCompiledGrammars, kMaxWaitingGrammars};
  Api api;
  Router router;
  std::unique_ptr<HttpServer> http;  // last: its threads use the rest
};

Server::Server(ServerConfig config, ServedModel model, Backend& backend, ServerOptions options)
    : impl_(std::make_unique<Impl>(std::move(model), backend, std::move(options))) {
  impl_->http = std::make_unique<HttpServer>(
      std::move(config), impl_->router, [impl = impl_.get()](const auto& r) { impl->record(r); });
}

Server::~Server() { stop(); }

Status Server::start() { return impl_->http->start(); }
uint16_t Server::port() const { return impl_->http->port(); }
void Server::begin_drain() { impl_->http->begin_drain(); }
bool Server::wait_idle(std::chrono::milliseconds timeout) {
  return impl_->http->wait_idle(timeout);
}
void Server::stop() {
  if (impl_->api.grammars != nullptr) impl_->api.grammars->stop();
  impl_->grammar_queue.stop();  // its tasks hold connections, which http's end waits for
  impl_->http->stop();
}
int Server::open_connections() const { return impl_->http->open_connections(); }

std::vector<std::string> Server::routes() const {
  std::vector<std::string> out;
  for (const Route& route : impl_->router.routes()) out.push_back(route.method + " " + route.path);
  return out;
}

}  // namespace sub8::server
