// One client connection: reads a request, hands it to its handler, writes the reply, and again.
// Everything but respond() runs on the connection's strand. Included by connection.cc and
// http_server.cc alone, since Asio is slow to compile.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/thread_pool.hpp>

#include "server/config.h"
#include "server/http_server.h"
#include "server/router.h"

namespace sub8::server {

class Connection;

// What all connections of a server share.
struct ConnectionContext {
  ConnectionContext(ServerConfig server_config, Router server_router, AccessLog log)
      : config(std::move(server_config)),
        router(std::move(server_router)),
        policy(config, router),
        access_log(std::move(log)),
        io(config.io_threads),
        workers(static_cast<size_t>(config.worker_threads)) {}

  const ServerConfig config;
  const Router router;
  const AccessPolicy policy;
  const AccessLog access_log;
  std::atomic<bool> draining{false};
  std::atomic<size_t> inflight_body_bytes{0};
  std::atomic<int> active_requests{0};

  // Open connections, for drain and stop.
  std::mutex mutex;
  std::set<Connection*> connections;

  // Last, so that what their queues still hold is destroyed while the rest is there.
  boost::asio::io_context io;
  boost::asio::thread_pool workers;
};

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  using Strand = boost::asio::strand<boost::asio::io_context::executor_type>;
  using Socket = boost::asio::basic_stream_socket<boost::asio::ip::tcp, Strand>;

  // Adds itself to the context's connections until it is destroyed.
  Connection(ConnectionContext& context, Socket socket);
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  void start();
  // Answers with 503 at once: too many connections.
  void start_refusing();
  // Closes if no request is under way. Any thread.
  void close_if_idle();
  // Any thread.
  void close();

 private:
  class RequestExchange;
  struct Parser;  // hides Beast
  using Timer = boost::asio::basic_waitable_timer<
      std::chrono::steady_clock, boost::asio::wait_traits<std::chrono::steady_clock>, Strand>;

  // Reading.
  void read_request();
  void on_header(boost::system::error_code error);
  void on_body(boost::system::error_code error);
  void read_body();
  bool reserve_body_bytes();
  void dispatch();
  void watch_peer();
  void on_read_error(boost::system::error_code error);

  // Replying; RequestExchange calls these on the strand.
  void send_response(HttpResponse response);
  void start_stream(HttpResponse head);
  void write_stream(std::string_view data);
  void finish_reply();
  void refuse(HttpResponse response);
  void queue_head(HttpResponse& head, Framing framing);
  bool congested() const;

  // Writing.
  void flush();
  void on_written(boost::system::error_code error, size_t bytes);
  void reply_complete();
  void linger();
  void drain_input(size_t limit);

  void begin_request(HttpRequest request);
  void end_request(int status);
  void abort_connection();
  void arm(Timer& timer, std::chrono::milliseconds timeout, void (Connection::*expired)());
  void on_read_timeout();
  void on_write_timeout();
  void on_silence();
  void on_request_timeout();

  ConnectionContext& context_;
  Strand strand_;
  Socket socket_;
  Timer read_timer_;
  Timer write_timer_;
  Timer request_timer_;
  std::unique_ptr<Parser> parser_;
  std::string client_;

  std::shared_ptr<RequestExchange> exchange_;  // the request under way
  std::chrono::steady_clock::time_point started_{};
  size_t reserved_bytes_ = 0;
  int status_ = 0;
  uint64_t sent_bytes_ = 0;

  std::string out_;      // not yet handed to the socket
  std::string writing_;  // being written, from written_ on
  size_t written_ = 0;
  bool write_pending_ = false;
  bool read_pending_ = false;
  bool head_only_ = false;
  bool keep_alive_ = false;
  bool chunked_ = false;
  bool streaming_ = false;
  bool reply_ended_ = false;  // all of the reply is in out_ and writing_
  bool closed_ = false;
  bool lingering_ = false;
  bool read_timed_out_ = false;
};

}  // namespace sub8::server
