#include "server/connection.h"

#include <boost/asio/post.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <fmt/format.h>

#include "base/check.h"
#include "server/api_error.h"

namespace sub8::server {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using boost::system::error_code;

namespace {

constexpr size_t kReadBytes = 4096;
constexpr size_t kMaxPipelinedBytes = size_t{64} << 10;
constexpr size_t kMaxLingerBytes = size_t{4} << 20;
constexpr std::chrono::milliseconds kLingerTime{2000};

int status_of(const error_code& error) {
  if (error == http::error::header_limit || error == http::error::buffer_overflow) return 431;
  if (error == http::error::body_limit) return 413;
  if (error == http::error::bad_version) return 505;
  return 400;
}

// Whether the body's end is where every reader of this header sees it (RFC 9112, 6.1 and 6.3): a
// coding other than chunked would leave the body to be read as a next request.
bool knows_transfer_coding(const http::request<http::string_body>& message) {
  const auto [begin, end] = message.equal_range(http::field::transfer_encoding);
  if (begin == end) return true;
  return message.version() >= 11 && std::next(begin) == end &&
         beast::iequals(begin->value(), "chunked");
}

bool is_parse_error(const error_code& error) {
  return error.category() == http::make_error_code(http::error::bad_method).category() &&
         error != http::error::end_of_stream && error != http::error::partial_message;
}

}  // namespace

struct Connection::Parser {
  explicit Parser(size_t max_buffer) : buffer(max_buffer) {}
  beast::flat_buffer buffer;
  std::optional<http::request_parser<http::string_body>> message;
};

// The handler's view of one request. Outlives it when a worker still holds it.
class Connection::RequestExchange final
    : public Exchange,
      public std::enable_shared_from_this<Connection::RequestExchange> {
 public:
  RequestExchange(std::shared_ptr<Connection> connection, HttpRequest request)
      : connection_(std::move(connection)), request_(std::move(request)) {}

  HttpRequest& request() override { return request_; }
  PostFunction poster() const override {
    return [strand = connection_->strand_](std::function<void()> run) {
      asio::post(strand, std::move(run));
    };
  }
  void respond(HttpResponse response) override {
    asio::post(connection_->strand_,
               [self = shared_from_this(), response = std::move(response)]() mutable {
                 if (self->current()) self->connection_->send_response(std::move(response));
               });
  }
  void set_callbacks(Callbacks callbacks) override {
    if (current()) callbacks_ = std::move(callbacks);
  }
  void start(HttpResponse head) override {
    if (current()) connection_->start_stream(std::move(head));
  }
  void write(std::string_view data) override {
    if (current()) connection_->write_stream(data);
  }
  void finish() override {
    if (current()) connection_->finish_reply();
  }
  bool congested() const override { return current() && connection_->congested(); }
  bool closed() const override { return over_.load(); }

  Callbacks take_callbacks() { return std::exchange(callbacks_, {}); }
  const Callbacks& callbacks() const { return callbacks_; }
  void end() { over_.store(true); }

 private:
  bool current() const { return !over_.load(); }
  std::shared_ptr<Connection> connection_;
  HttpRequest request_;
  Callbacks callbacks_;
  std::atomic<bool> over_{false};
};

Connection::Connection(ConnectionContext& context, Socket socket)
    : context_(context),
      strand_(socket.get_executor()),
      socket_(std::move(socket)),
      read_timer_(strand_),
      write_timer_(strand_),
      request_timer_(strand_),
      parser_(std::make_unique<Parser>(context.config.max_header_bytes + kMaxPipelinedBytes)) {
  error_code ignored;
  const auto peer = socket_.remote_endpoint(ignored);
  if (!ignored) client_ = peer.address().to_string(ignored);
  socket_.set_option(asio::ip::tcp::no_delay(true), ignored);
  socket_.set_option(asio::socket_base::keep_alive(true), ignored);
  // What the kernel holds for a slow reader is bounded too; left alone it grows to megabytes.
  socket_.set_option(
      asio::socket_base::send_buffer_size(static_cast<int>(context.config.max_unsent_bytes)),
      ignored);
  const std::lock_guard lock(context_.mutex);
  context_.connections.insert(this);
}

Connection::~Connection() {
  const std::lock_guard lock(context_.mutex);
  context_.connections.erase(this);
}

void Connection::start() {
  asio::post(strand_, [self = shared_from_this()] { self->read_request(); });
}

void Connection::start_refusing() {
  asio::post(strand_, [self = shared_from_this()] {
    HttpRequest request;
    request.id = request_id({});
    self->begin_request(std::move(request));
    self->refuse(error_response(503, "too many connections; try again later"));
  });
}

void Connection::close_if_idle() {
  asio::post(strand_, [self = shared_from_this()] {
    if (self->exchange_ == nullptr && !self->lingering_) self->abort_connection();
  });
}

void Connection::close() {
  asio::post(strand_, [self = shared_from_this()] { self->abort_connection(); });
}

void Connection::arm(Timer& timer, std::chrono::milliseconds timeout,
                     void (Connection::*expired)()) {
  timer.expires_after(timeout);
  timer.async_wait([self = shared_from_this(), &timer, expired](const error_code& error) {
    // A wait that was due when the timer was set anew comes here without an error.
    if (error || self->closed_ || timer.expiry() > std::chrono::steady_clock::now()) return;
    (self.get()->*expired)();
  });
}

void Connection::read_request() {
  if (closed_) return;
  if (context_.draining && parser_->buffer.size() == 0) return abort_connection();
  parser_->message.emplace();
  parser_->message->header_limit(context_.config.max_header_bytes);
  parser_->message->body_limit(context_.config.max_body_bytes);
  arm(read_timer_, context_.config.idle_timeout, &Connection::on_read_timeout);
  http::async_read_header(
      socket_, parser_->buffer, *parser_->message,
      [self = shared_from_this()](const error_code& error, size_t) { self->on_header(error); });
}

void Connection::on_read_timeout() {
  if (lingering_) return abort_connection();
  read_timed_out_ = true;
  error_code ignored;
  socket_.cancel(ignored);
}

void Connection::on_read_error(error_code error) {
  if (closed_) return;
  const bool got_some = parser_->message && parser_->message->got_some();
  const bool timed_out = read_timed_out_ && got_some;
  if (!timed_out && !is_parse_error(error)) return abort_connection();
  if (exchange_ == nullptr) {
    HttpRequest request;
    request.id = request_id({});
    begin_request(std::move(request));
  }
  if (timed_out) return refuse(error_response(408, "the request did not arrive in time"));
  const int status = status_of(error);
  std::string message = "this is not a valid HTTP request: " + error.message();
  if (status == 413) {
    message = fmt::format("the body is larger than the limit of {} bytes",
                          context_.config.max_body_bytes);
  } else if (status == 431) {
    message = fmt::format("the header is larger than the limit of {} bytes",
                          context_.config.max_header_bytes);
  }
  refuse(error_response(status, message));
}

void Connection::begin_request(HttpRequest request) {
  exchange_ = std::make_shared<RequestExchange>(shared_from_this(), std::move(request));
  started_ = std::chrono::steady_clock::now();
  status_ = 0;
  sent_bytes_ = 0;
  keep_alive_ = head_only_ = chunked_ = streaming_ = reply_ended_ = false;
  ++context_.active_requests;
}

void Connection::on_header(error_code error) {
  if (error) return on_read_error(error);
  if (closed_) return;
  const auto& message = parser_->message->get();
  HttpRequest request;
  request.method = std::string(message.method_string());
  const std::string_view target(message.target().data(), message.target().size());
  request.path = std::string(target.substr(0, target.find('?')));
  for (const auto& field : message) {
    std::string name(field.name_string());
    for (char& c : name) c = static_cast<char>(c >= 'A' && c <= 'Z' ? c + ('a' - 'A') : c);
    request.headers.emplace_back(std::move(name), std::string(field.value()));
  }
  request.id = request_id(request.header("x-request-id"));
  const bool wants_continue = request.header("expect") == "100-continue";
  begin_request(std::move(request));
  arm(request_timer_, context_.config.request_timeout, &Connection::on_request_timeout);
  chunked_ = message.version() >= 11;
  head_only_ = exchange_->request().method == "HEAD";
  keep_alive_ = parser_->message->keep_alive() && !context_.draining;
  if (!knows_transfer_coding(message)) {
    keep_alive_ = false;
    return refuse(error_response(501, "the only Transfer-Encoding that is read here is 'chunked'"));
  }
  // RFC 9112, 3.2: who reads another one than a proxy did would answer for another site.
  const auto hosts = message.count(http::field::host);
  if (hosts > 1 || (hosts == 0 && message.version() >= 11)) {
    keep_alive_ = false;
    return refuse(error_response(
        400, fmt::format("the request has {} Host headers, HTTP/1.1 asks for exactly one", hosts)));
  }
  if (context_.draining) return refuse(error_response(503, "the server is shutting down"));
  if (auto refusal = context_.policy.refuse(exchange_->request()))
    return refuse(std::move(*refusal));
  if (!reserve_body_bytes()) {
    return refuse(error_response(503, "too much request data is under way; try again later"));
  }
  if (wants_continue) {
    out_ += "HTTP/1.1 100 Continue\r\n\r\n";
    flush();
  }
  read_body();
}

// Claims memory for the body, all of the limit where its length is not known.
bool Connection::reserve_body_bytes() {
  const auto length = parser_->message->content_length();
  const bool none = parser_->message->is_done();
  const size_t wanted = none ? 0 : length ? *length : context_.config.max_body_bytes;
  if (context_.inflight_body_bytes.fetch_add(wanted) + wanted >
          context_.config.max_inflight_body_bytes &&
      wanted > 0) {
    context_.inflight_body_bytes -= wanted;
    return false;
  }
  reserved_bytes_ = wanted;
  return true;
}

void Connection::read_body() {
  if (parser_->message->is_done()) return on_body({});
  arm(read_timer_, context_.config.body_timeout, &Connection::on_read_timeout);
  http::async_read(
      socket_, parser_->buffer, *parser_->message,
      [self = shared_from_this()](const error_code& error, size_t) { self->on_body(error); });
}

void Connection::on_body(error_code error) {
  if (error) {
    keep_alive_ = false;
    return on_read_error(error);
  }
  if (closed_) return;
  read_timer_.cancel();
  exchange_->request().body = std::move(parser_->message->get().body());
  dispatch();
}

void Connection::dispatch() {
  const HttpRequest& request = exchange_->request();
  const Route* route = context_.router.find(request.method, request.path);
  SUB8_CHECK(route != nullptr);  // the policy has seen it
  auto run = [exchange = exchange_, route] {
    if (exchange->closed()) return;
    run_guarded(*exchange, [&] { route->handler(exchange); });
  };
  if (route->quick) {
    run();
  } else {
    asio::post(context_.workers, std::move(run));
  }
  watch_peer();
}

// Reads ahead while the reply is under way, to notice when the client leaves.
void Connection::watch_peer() {
  if (closed_ || read_pending_ || parser_->buffer.size() >= kMaxPipelinedBytes) return;
  read_pending_ = true;
  socket_.async_read_some(parser_->buffer.prepare(kReadBytes),
                          [self = shared_from_this()](const error_code& error, size_t bytes) {
                            self->read_pending_ = false;
                            if (self->closed_) return;
                            self->parser_->buffer.commit(bytes);
                            // An end that was seen once is not reported again: a further read
                            // would never return.
                            if (error && error != asio::error::operation_aborted)
                              return self->abort_connection();
                            if (self->lingering_) return self->drain_input(kMaxLingerBytes);
                            if (self->exchange_ == nullptr) return self->read_request();
                            if (!error) self->watch_peer();
                          });
}

void Connection::queue_head(HttpResponse& head, Framing framing) {
  context_.policy.add_cors_headers(exchange_->request().header("origin"), head);
  head.headers.emplace_back("X-Request-Id", exchange_->request().id);
  status_ = head.status;
  out_ += format_head(head, framing, keep_alive_);
}

void Connection::send_response(HttpResponse response) {
  if (streaming_ || reply_ended_) return;
  queue_head(response, Framing::kLength);
  if (!head_only_) out_ += response.body;
  reply_ended_ = true;
  flush();
}

// Answers without having read the body; what is still to come cannot be told from a next request.
void Connection::refuse(HttpResponse response) {
  if (!parser_->message || !parser_->message->is_done()) keep_alive_ = false;
  send_response(std::move(response));
}

void Connection::start_stream(HttpResponse head) {
  if (streaming_ || reply_ended_) return;
  streaming_ = true;
  if (!chunked_) keep_alive_ = false;
  queue_head(head, chunked_ ? Framing::kChunked : Framing::kClose);
  flush();
}

void Connection::write_stream(std::string_view data) {
  if (!streaming_ || reply_ended_ || data.empty()) return;
  if (chunked_) {
    out_ += format_chunk(data);
  } else {
    out_ += data;
  }
  flush();
}

void Connection::finish_reply() {
  if (!streaming_ || reply_ended_) return;
  if (chunked_) out_ += "0\r\n\r\n";
  reply_ended_ = true;
  flush();
}

bool Connection::congested() const {
  return out_.size() + writing_.size() - written_ > context_.config.max_unsent_bytes;
}

void Connection::flush() {
  if (closed_ || write_pending_) return;
  if (written_ == writing_.size()) {
    writing_.clear();
    written_ = 0;
    if (out_.empty()) {
      write_timer_.cancel();
      if (reply_ended_) {
        reply_complete();
      } else if (streaming_) {
        arm(write_timer_, context_.config.ping_interval, &Connection::on_silence);
      }
      return;
    }
    std::swap(writing_, out_);
  }
  write_pending_ = true;
  arm(write_timer_, context_.config.write_timeout, &Connection::on_write_timeout);
  socket_.async_write_some(asio::buffer(writing_.data() + written_, writing_.size() - written_),
                           [self = shared_from_this()](const error_code& error, size_t bytes) {
                             self->on_written(error, bytes);
                           });
}

void Connection::on_written(error_code error, size_t bytes) {
  write_pending_ = false;
  if (closed_) return;
  if (error) return abort_connection();
  const bool was_congested = congested();
  written_ += bytes;
  sent_bytes_ += bytes;
  if (was_congested && !congested() && exchange_ != nullptr && exchange_->callbacks().writable) {
    // A copy: the call may end the reply and drop the callbacks.
    const std::function<void()> writable = exchange_->callbacks().writable;
    writable();
  }
  flush();
}

void Connection::on_write_timeout() { abort_connection(); }

// Keeps proxies from giving up during a long prompt, and finds clients that vanished.
void Connection::on_silence() { write_stream(": waiting\n\n"); }

void Connection::on_request_timeout() {
  if (exchange_ == nullptr) return;
  if (streaming_ || reply_ended_) return abort_connection();
  keep_alive_ = false;
  const auto callbacks = exchange_->take_callbacks();
  send_response(error_response(
      504, fmt::format("the request took longer than the limit of {} s",
                       std::chrono::duration<double>(context_.config.request_timeout).count())));
  if (callbacks.closed) callbacks.closed();
}

void Connection::reply_complete() {
  if (exchange_ == nullptr) return;  // only an interim reply was written
  end_request(status_);
  if (!keep_alive_) return linger();
  if (read_pending_) {
    error_code ignored;
    socket_.cancel(ignored);  // watch_peer() goes on with the next request
  } else {
    read_request();
  }
}

void Connection::end_request(int status) {
  request_timer_.cancel();
  context_.inflight_body_bytes -= std::exchange(reserved_bytes_, 0);
  const auto exchange = std::exchange(exchange_, nullptr);
  exchange->end();
  const Exchange::Callbacks callbacks = exchange->take_callbacks();
  if (context_.access_log) {
    const HttpRequest& request = exchange->request();
    context_.access_log(
        {request.id, request.method, request.path, client_, status,
         std::chrono::duration<double>(std::chrono::steady_clock::now() - started_).count(),
         sent_bytes_});
  }
  // Last: whoever waits for this number may look at the log and the streams next.
  if (closed_ && callbacks.closed) callbacks.closed();
  --context_.active_requests;
}

void Connection::abort_connection() {
  if (closed_) return;
  closed_ = true;
  read_timer_.cancel();
  write_timer_.cancel();
  request_timer_.cancel();
  error_code ignored;
  socket_.close(ignored);
  if (exchange_ != nullptr) end_request(499);
}

// Closes so that the client can still read the reply: unread input would make the kernel reset the
// connection.
void Connection::linger() {
  if (closed_) return;
  lingering_ = true;
  error_code ignored;
  socket_.shutdown(asio::ip::tcp::socket::shutdown_send, ignored);
  arm(read_timer_, kLingerTime, &Connection::on_read_timeout);
  if (!read_pending_) drain_input(kMaxLingerBytes);
}

void Connection::drain_input(size_t limit) {
  if (limit == 0) return abort_connection();
  parser_->buffer.clear();
  socket_.async_read_some(parser_->buffer.prepare(kReadBytes),
                          [self = shared_from_this(), limit](const error_code& error, size_t n) {
                            if (error) return self->abort_connection();
                            self->drain_input(limit - std::min(limit, n));
                          });
}

}  // namespace sub8::server
