#include "server/http_server.h"

#include <thread>
#include <vector>

#include <boost/asio/post.hpp>
#include <fmt/format.h>

#include "server/connection.h"

namespace sub8::server {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

namespace {

constexpr int kBacklog = 1024;
// Connections beyond the limit that are told so; still more are closed without a word.
constexpr size_t kMaxRefusing = 64;
constexpr std::chrono::milliseconds kAcceptPause{100};
constexpr std::chrono::milliseconds kPollInterval{5};
constexpr std::chrono::seconds kStopTimeout{5};

}  // namespace

struct HttpServer::Impl {
  Impl(ServerConfig config, Router router, AccessLog log)
      : context(std::move(config), std::move(router), std::move(log)),
        acceptor(asio::make_strand(context.io)),
        pause(acceptor.get_executor()) {}

  Status bind();
  void accept();
  void accepted(const error_code& error, Connection::Socket socket);
  std::vector<std::shared_ptr<Connection>> open_connections();

  ConnectionContext context;
  asio::basic_socket_acceptor<tcp, Connection::Strand> acceptor;
  asio::basic_waitable_timer<std::chrono::steady_clock,
                             asio::wait_traits<std::chrono::steady_clock>, Connection::Strand>
      pause;
  std::vector<std::thread> threads;
  uint16_t port = 0;
  bool stopped = false;
};

Status HttpServer::Impl::bind() {
  const ServerConfig& config = context.config;
  const std::string where = fmt::format("{}:{}", config.host, config.port);
  error_code error;
  const auto found =
      tcp::resolver(context.io).resolve(config.host, std::to_string(config.port), error);
  if (error || found.empty()) {
    return invalid_argument(
        fmt::format("--host {}: no such address ({}); use 127.0.0.1, 0.0.0.0 "
                    "or a name that resolves",
                    config.host, error.message()));
  }
  const tcp::endpoint endpoint = found.begin()->endpoint();
  acceptor.open(endpoint.protocol(), error);
  if (!error) acceptor.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) acceptor.bind(endpoint, error);
  if (!error) acceptor.listen(kBacklog, error);
  if (error) {
    return invalid_argument(
        fmt::format("could not listen on {}: {}; choose another --port or "
                    "--host",
                    where, error.message()));
  }
  port = acceptor.local_endpoint(error).port();
  return {};
}

void HttpServer::Impl::accept() {
  acceptor.async_accept(asio::make_strand(context.io),
                        [this](const error_code& error, Connection::Socket socket) {
                          accepted(error, std::move(socket));
                        });
}

void HttpServer::Impl::accepted(const error_code& error, Connection::Socket socket) {
  if (!acceptor.is_open()) return;
  if (error) {
    // Out of file descriptors, most likely: waiting lets some of them go.
    pause.expires_after(kAcceptPause);
    pause.async_wait([this](const error_code& aborted) {
      if (!aborted && acceptor.is_open()) accept();
    });
    return;
  }
  size_t open = 0;
  {
    const std::lock_guard lock(context.mutex);
    open = context.connections.size();
  }
  if (open < context.config.max_connections) {
    std::make_shared<Connection>(context, std::move(socket))->start();
  } else if (open < context.config.max_connections + kMaxRefusing) {
    std::make_shared<Connection>(context, std::move(socket))->start_refusing();
  }
  accept();
}

std::vector<std::shared_ptr<Connection>> HttpServer::Impl::open_connections() {
  std::vector<std::shared_ptr<Connection>> out;
  const std::lock_guard lock(context.mutex);
  for (Connection* connection : context.connections) {
    if (auto shared = connection->weak_from_this().lock()) out.push_back(std::move(shared));
  }
  return out;
}

HttpServer::HttpServer(ServerConfig config, Router router, AccessLog access_log)
    : impl_(std::make_unique<Impl>(std::move(config), std::move(router), std::move(access_log))) {}

HttpServer::~HttpServer() { stop(); }

Status HttpServer::start() {
  SUB8_RETURN_IF_ERROR(impl_->bind());
  impl_->accept();
  for (int i = 0; i < impl_->context.config.io_threads; ++i) {
    impl_->threads.emplace_back([this] { impl_->context.io.run(); });
  }
  return {};
}

uint16_t HttpServer::port() const { return impl_->port; }

void HttpServer::begin_drain() {
  impl_->context.draining = true;
  asio::post(impl_->acceptor.get_executor(), [impl = impl_.get()] {
    error_code ignored;
    impl->acceptor.close(ignored);
    impl->pause.cancel();
  });
  for (const auto& connection : impl_->open_connections()) connection->close_if_idle();
}

bool HttpServer::wait_idle(std::chrono::milliseconds timeout) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  while (impl_->context.active_requests > 0) {
    if (std::chrono::steady_clock::now() >= deadline) return false;
    std::this_thread::sleep_for(kPollInterval);
  }
  return true;
}

void HttpServer::stop() {
  if (std::exchange(impl_->stopped, true)) return;
  begin_drain();
  // Connections run their own end, so that streams are dropped while everything they use is there.
  const auto deadline = std::chrono::steady_clock::now() + kStopTimeout;
  while (open_connections() > 0 && std::chrono::steady_clock::now() < deadline &&
         !impl_->threads.empty()) {
    for (const auto& connection : impl_->open_connections()) connection->close();
    std::this_thread::sleep_for(kPollInterval);
  }
  impl_->context.workers.join();
  impl_->context.io.stop();
  for (std::thread& thread : impl_->threads) thread.join();
  impl_->threads.clear();
}

int HttpServer::open_connections() const {
  const std::lock_guard lock(impl_->context.mutex);
  return static_cast<int>(impl_->context.connections.size());
}

}  // namespace sub8::server
