#include "load/client.h"

#include <optional>
#include <string_view>

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http.hpp>
#include <fmt/format.h>

#include "base/json.h"
#include "load/event_stream.h"

namespace sub8::load {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using asio::ip::tcp;
using boost::system::error_code;

namespace {

constexpr uint32_t kMaxHeaderBytes = 64 << 10;
constexpr size_t kMaxEventBytes = 4 << 20;
constexpr size_t kMaxErrorBytes = 64 << 10;
constexpr size_t kShownErrorBytes = 300;
constexpr size_t kMaxReplyBytes = 16 << 20;
constexpr int64_t kMaxEvents = 1 << 20;  // of one answer
constexpr int64_t kMaxTokens = int64_t{1} << 31;
constexpr int kMaxDepth = 32;

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// What a server wrote, cut to a line that can be shown.
std::string shown(std::string_view text) {
  std::string out(text.substr(0, kShownErrorBytes));
  for (char& c : out) {
    if (static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) >= 0x7f) c = ' ';
  }
  return out;
}

// The error's message where the text has OpenAI's shape, else the text.
std::string error_message(std::string_view text) {
  const auto parsed = parse_json(text, "reply", kMaxDepth);
  if (!parsed.ok()) return shown(text);
  const JsonRef root(*parsed, "reply");
  if (const auto error = root.find("error")) {
    if (const auto message = error->find("message"); message && message->is_string())
      return shown(*message->as_string());
  }
  return shown(text);
}

// Reads the events of one answer.
class Answer {
 public:
  explicit Answer(Sample& sample) : sample_(sample) {}

  bool done() const { return done_; }

  // False: a failure was noted.
  bool push(std::string_view bytes) {
    const double now = seconds_since(sample_.start);
    events_.clear();
    if (Status status = stream_.push(bytes, events_); !status.ok())
      return fail(Failure::kBrokenStream, status.error().message);
    for (const std::string& event : events_) {
      if (++count_ > kMaxEvents) {
        return fail(Failure::kBrokenStream,
                    fmt::format("the stream has more than {} events", kMaxEvents));
      }
      if (event == "[DONE]") {
        done_ = true;
        return true;
      }
      if (!take(event, now)) return false;
    }
    return true;
  }

  // The connection's end.
  bool finish() {
    if (!done_) return fail(Failure::kBrokenStream, "the stream ended before [DONE]");
    if (choices_ == 0) return fail(Failure::kBrokenStream, "the stream held no answer");
    if (!sample_.counted_by_server) sample_.output_tokens = choices_;
    return true;
  }

 private:
  bool fail(Failure failure, std::string message) {
    sample_.failure = failure;
    sample_.message = std::move(message);
    sample_.seconds = seconds_since(sample_.start);
    return false;
  }

  bool take(const std::string& event, double now) {
    const auto parsed = parse_json(event, "event", kMaxDepth);
    if (!parsed.ok() || !parsed->is_object())
      return fail(Failure::kBrokenStream, "an event is no JSON object: " + shown(event));
    const JsonRef root(*parsed, "event");
    if (root.find("error")) return fail(Failure::kServerError, error_message(event));
    const auto choices = root.find("choices");
    if (choices && choices->is_array() && !choices->value().get_array().empty()) {
      if (choices_++ == 0) {
        sample_.first_token_seconds = now;
      } else {
        sample_.gaps.push_back(now - sample_.seconds);
      }
      sample_.seconds = now;
    }
    return take_usage(root);
  }

  bool take_usage(const JsonRef& root) {
    const auto usage = root.find("usage");
    if (!usage) return true;
    const auto prompt = usage->get_int("prompt_tokens", -1, -1, kMaxTokens);
    const auto output = usage->get_int("completion_tokens", 0, 0, kMaxTokens);
    if (!prompt.ok() || !output.ok())
      return fail(Failure::kBrokenStream, "the usage makes no sense");
    sample_.prompt_tokens = *prompt;
    sample_.output_tokens = *output;
    sample_.counted_by_server = usage->find("completion_tokens").has_value();
    return true;
  }

  Sample& sample_;
  EventStream stream_{kMaxEventBytes};
  std::vector<std::string> events_;
  int64_t count_ = 0;  // of events
  int64_t choices_ = 0;
  bool done_ = false;
};

http::request<http::string_body> make_request(const Target& target, http::verb verb,
                                              const std::string& path) {
  http::request<http::string_body> out{verb, target.base + path, 11};
  out.set(http::field::host, target.authority());
  out.set(http::field::user_agent, "sub8-bench");
  out.set(http::field::accept, verb == http::verb::post ? "text/event-stream" : "application/json");
  out.set(http::field::connection, "close");
  if (!target.api_key.empty()) out.set(http::field::authorization, "Bearer " + target.api_key);
  return out;
}

// Completion of an asynchronous operation whose error is wanted as a value.
auto into(error_code& error) { return asio::redirect_error(asio::use_awaitable, error); }

Failure failure_of(const error_code& error, Failure otherwise) {
  return error == beast::error::timeout ? Failure::kTimeout : otherwise;
}

// A connection whose operations all end at the request's deadline.
struct Link {
  explicit Link(const asio::any_io_executor& executor) : stream(executor) {}

  asio::awaitable<error_code> open(const Target& target) {
    error_code error;
    deadline = std::chrono::steady_clock::now() +
               std::chrono::milliseconds(
                   static_cast<int64_t>(std::max(1.0, target.timeout_seconds * 1000)));
    stream.expires_at(deadline);
    tcp::resolver resolver(stream.get_executor());
    const auto found =
        co_await resolver.async_resolve(target.host, std::to_string(target.port), into(error));
    if (error) co_return error;
    co_await stream.async_connect(found, into(error));
    if (error) co_return error;
    error_code ignored;
    stream.socket().set_option(tcp::no_delay(true), ignored);
    co_return error_code();
  }

  // The stream's own timer ends operations that wait. While a server never lets one wait, this
  // does.
  bool late() const { return std::chrono::steady_clock::now() >= deadline; }

  beast::tcp_stream stream;
  beast::flat_buffer buffer;
  std::chrono::steady_clock::time_point deadline;
};

using ReplyParser = http::response_parser<http::string_body>;

asio::awaitable<error_code> exchange_head(Link& link, http::request<http::string_body>& request,
                                          std::optional<ReplyParser>& parser) {
  error_code error;
  co_await http::async_write(link.stream, request, into(error));
  // A server may refuse before it has read the body: its reply counts then.
  do {
    if (link.late()) co_return beast::error::timeout;
    parser.emplace();
    parser->header_limit(kMaxHeaderBytes);
    parser->body_limit(boost::none);
    error = {};
    co_await http::async_read_header(link.stream, link.buffer, *parser, into(error));
    // 100 Continue and its like come before the reply.
  } while (!error && parser->get().result_int() / 100 == 1);
  co_return error;
}

// The rest of the body, up to `limit` bytes; what came until an error where there is one.
asio::awaitable<error_code> read_rest(Link& link, ReplyParser& parser, size_t limit) {
  error_code error;
  while (!parser.is_done() && parser.get().body().size() < limit) {
    if (link.late()) co_return beast::error::timeout;
    co_await http::async_read_some(link.stream, link.buffer, parser, into(error));
    if (error) co_return error;
  }
  co_return error_code();
}

asio::awaitable<void> read_answer(Link& link, ReplyParser& parser, Sample& sample) {
  Answer answer(sample);
  parser.eager(false);  // an eager parser waits for more as long as the body is not complete
  while (true) {
    std::string& body = parser.get().body();
    if (!body.empty()) {
      if (!answer.push(body)) co_return;
      body.clear();
    }
    if (answer.done() || parser.is_done()) break;
    error_code error;
    if (link.late()) {
      error = beast::error::timeout;
    } else {
      co_await http::async_read_some(link.stream, link.buffer, parser, into(error));
    }
    if (error) {
      sample.failure = failure_of(error, Failure::kBrokenStream);
      sample.message = "while reading the stream: " + error.message();
      sample.seconds = seconds_since(sample.start);
      co_return;
    }
  }
  answer.finish();
}

}  // namespace

const char* failure_name(Failure failure) {
  constexpr const char* kNames[kFailures] = {"none",      "connect",      "timeout",      "status",
                                             "no_stream", "server_error", "broken_stream"};
  return kNames[static_cast<size_t>(failure)];
}

asio::awaitable<Sample> ask(const Target& target, const std::string& body) {
  Sample sample;
  sample.start = std::chrono::steady_clock::now();
  const auto fail = [&](Failure failure, std::string message) {
    sample.failure = failure;
    sample.message = std::move(message);
    sample.seconds = seconds_since(sample.start);
  };
  Link link(co_await asio::this_coro::executor);
  if (const error_code error = co_await link.open(target)) {
    fail(failure_of(error, Failure::kConnect),
         fmt::format("connecting to {}: {}", target.authority(), error.message()));
    co_return sample;
  }
  auto request =
      make_request(target, http::verb::post,
                   target.endpoint == Endpoint::kChat ? "/v1/chat/completions" : "/v1/completions");
  request.set(http::field::content_type, "application/json");
  request.body() = body;
  request.prepare_payload();
  std::optional<ReplyParser> reply;
  if (const error_code error = co_await exchange_head(link, request, reply)) {
    fail(failure_of(error, Failure::kBrokenStream), "waiting for the reply: " + error.message());
    co_return sample;
  }
  ReplyParser& parser = *reply;
  const auto& head = parser.get();
  if (head.result_int() != 200) {
    co_await read_rest(link, parser, kMaxErrorBytes);
    fail(Failure::kStatus,
         fmt::format("{}: {}", head.result_int(), error_message(parser.get().body())));
    co_return sample;
  }
  const std::string_view type(head[http::field::content_type]);
  if (!type.starts_with("text/event-stream")) {
    fail(Failure::kNoStream, fmt::format("the reply is '{}', not an event stream", shown(type)));
    co_return sample;
  }
  co_await read_answer(link, parser, sample);
  co_return sample;
}

asio::awaitable<Fetched> fetch(const Target& target, const std::string& path) {
  Link link(co_await asio::this_coro::executor);
  if (const error_code error = co_await link.open(target)) {
    co_return Fetched{
        not_found(fmt::format("connecting to {}: {}", target.authority(), error.message())), {}};
  }
  auto request = make_request(target, http::verb::get, path);
  std::optional<ReplyParser> parser;
  error_code error = co_await exchange_head(link, request, parser);
  if (!error) error = co_await read_rest(link, *parser, kMaxReplyBytes);
  if (error) {
    co_return Fetched{corrupt_data(fmt::format("GET {}: {}", path, error.message())), {}};
  }
  const auto& reply = parser->get();
  if (reply.result_int() != 200) {
    co_return Fetched{invalid_argument(fmt::format("GET {}: {}: {}", path, reply.result_int(),
                                                   error_message(reply.body()))),
                      {}};
  }
  co_return Fetched{{}, reply.body()};
}

}  // namespace sub8::load
