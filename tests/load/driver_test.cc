// The generator against scripted servers: what they do wrong must end up in the samples, in time.
#include "load/driver.h"

#include <atomic>
#include <cstring>
#include <functional>
#include <thread>

#include <arpa/inet.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

namespace sub8::load {
namespace {

using namespace std::chrono_literals;

// Accepts connections, reads one request on each, and lets `script` write the reply.
class ScriptedServer {
 public:
  using Script = std::function<void(int fd, const std::string& request)>;

  explicit ScriptedServer(Script script) : script_(std::move(script)) {
    listener_ = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::bind(listener_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    EXPECT_EQ(::listen(listener_, 64), 0);
    socklen_t size = sizeof(address);
    ::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(address.sin_port);
    acceptor_ = std::thread([this] { accept(); });
  }
  ~ScriptedServer() {
    stop_ = true;
    acceptor_.join();
    for (std::thread& thread : clients_) thread.join();
    ::close(listener_);
  }

  Target target() const {
    Target out;
    out.host = "127.0.0.1";
    out.port = port_;
    out.model = "m";
    out.timeout_seconds = 10;
    return out;
  }
  int served() const { return served_; }

 private:
  void accept() {
    while (!stop_) {
      pollfd wait{listener_, POLLIN, 0};
      if (::poll(&wait, 1, 10) <= 0) continue;
      const int fd = ::accept(listener_, nullptr, nullptr);
      if (fd < 0) continue;
      clients_.emplace_back([this, fd] {
        script_(fd, read_request(fd));
        ++served_;
        ::close(fd);
      });
    }
  }
  static std::string read_request(int fd) {
    std::string out;
    char piece[4096];
    while (true) {
      const size_t head = out.find("\r\n\r\n");
      if (head != std::string::npos) {
        const size_t at = out.find("Content-Length: ");
        const size_t length = at == std::string::npos ? 0 : std::stoul(out.substr(at + 16));
        if (out.size() >= head + 4 + length) return out;
      }
      const ssize_t n = ::recv(fd, piece, sizeof(piece), 0);
      if (n <= 0) return out;
      out.append(piece, static_cast<size_t>(n));
    }
  }

  Script script_;
  int listener_ = -1;
  uint16_t port_ = 0;
  std::atomic<bool> stop_{false};
  std::atomic<int> served_{0};
  std::thread acceptor_;
  std::vector<std::thread> clients_;
};

void send_text(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = ::send(fd, text.data(), text.size(), MSG_NOSIGNAL);
    if (n <= 0) return;
    text.remove_prefix(static_cast<size_t>(n));
  }
}

constexpr std::string_view kStreamHead =
    "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n";
const std::string kToken = "data: {\"choices\":[{\"text\":\"a\"}]}\n\n";
const std::string kUsage =
    "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":4,\"completion_tokens\":3}}\n\n";
const std::string kDone = "data: [DONE]\n\n";

Workload few(int64_t requests) {
  Workload out;
  out.requests = requests;
  out.concurrency = 1;
  out.input_tokens = 4;
  out.output_tokens = 3;
  return out;
}

Sample only_sample(const ScriptedServer& server, double timeout_seconds = 10) {
  Target target = server.target();
  target.timeout_seconds = timeout_seconds;
  auto run = run_load(target, few(1), {});
  EXPECT_TRUE(run.ok());
  return run.ok() ? run->samples.at(0) : Sample{};
}

TEST(Driver, TimesAreThoseOfTheEvents) {
  const ScriptedServer server([](int fd, const std::string& request) {
    EXPECT_NE(request.find("POST /v1/completions HTTP/1.1\r\n"), std::string::npos);
    EXPECT_NE(request.find("Content-Type: application/json\r\n"), std::string::npos);
    send_text(fd, kStreamHead);
    send_text(fd, ": waiting\n\n");
    for (const auto pause : {60ms, 120ms, 30ms}) {
      std::this_thread::sleep_for(pause);
      send_text(fd, kToken);
    }
    send_text(fd, kUsage + kDone);
  });
  const Sample s = only_sample(server);
  ASSERT_TRUE(s.ok()) << s.message;
  EXPECT_GE(s.first_token_seconds, 0.060);
  ASSERT_EQ(s.gaps.size(), 2u);
  EXPECT_GE(s.gaps[0], 0.110);
  EXPECT_GE(s.gaps[1], 0.020);
  EXPECT_LT(s.gaps[1], s.gaps[0]);
  EXPECT_NEAR(s.seconds, s.first_token_seconds + s.gaps[0] + s.gaps[1], 1e-9);
  EXPECT_EQ(s.output_tokens, 3);
  EXPECT_EQ(s.prompt_tokens, 4);
  EXPECT_NEAR(s.token_seconds(), (s.gaps[0] + s.gaps[1]) / 2, 1e-9);
}

TEST(Driver, ChunkedStreamsWithoutUsageAreCountedByEvents) {
  const ScriptedServer server([](int fd, const std::string&) {
    send_text(fd,
              "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
              "Transfer-Encoding: chunked\r\n\r\n");
    // Chunks that end inside of events.
    const std::string body = kToken + kToken + kDone;
    for (size_t at = 0; at < body.size(); at += 7) {
      const std::string piece = body.substr(at, 7);
      send_text(fd, fmt::format("{:x}\r\n{}\r\n", piece.size(), piece));
    }
    send_text(fd, "0\r\n\r\n");
  });
  const Sample s = only_sample(server);
  ASSERT_TRUE(s.ok()) << s.message;
  EXPECT_EQ(s.output_tokens, 2);
  EXPECT_FALSE(s.counted_by_server);
}

struct Fault {
  const char* name;
  std::string reply;
  Failure failure;
  const char* message;  // a part of it
};

TEST(Driver, FaultsOfServersAreNamed) {
  const std::string ok(kStreamHead);
  const Fault faults[] = {
      {"closed at once", "", Failure::kBrokenStream, "end of stream"},
      {"not HTTP", "SSH-2.0-x\r\n\r\n", Failure::kBrokenStream, "waiting for the reply"},
      {"endless header", "HTTP/1.1 200 OK\r\nA: " + std::string(1 << 20, 'x'),
       Failure::kBrokenStream, "header limit"},
      {"refused",
       "HTTP/1.1 429 Too Many Requests\r\nConnection: close\r\n\r\n"
       "{\"error\": {\"message\": \"come back later\\u0007!\"}}",
       Failure::kStatus, "429: come back later !"},
      {"refused without JSON", "HTTP/1.1 502 Bad Gateway\r\nContent-Length: 3\r\n\r\nbad",
       Failure::kStatus, "502: bad"},
      {"refused, endless body",
       "HTTP/1.1 500 X\r\nConnection: close\r\n\r\n" + std::string(1 << 20, 'x'), Failure::kStatus,
       "500: xxx"},
      {"no stream",
       "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}",
       Failure::kNoStream, "application/json"},
      {"no JSON", ok + "data: {\"choices\":\n\n", Failure::kBrokenStream, "no JSON object"},
      {"no object", ok + "data: 5\n\n", Failure::kBrokenStream, "no JSON object"},
      {"error event", ok + kToken + "data: {\"error\":{\"message\":\"out of pages\"}}\n\n" + kDone,
       Failure::kServerError, "out of pages"},
      {"no end", ok + kToken, Failure::kBrokenStream, "before [DONE]"},
      {"nothing", ok + kDone, Failure::kBrokenStream, "no answer"},
      {"mad usage", ok + kToken + "data: {\"choices\":[],\"usage\":{\"completion_tokens\":-5}}\n\n",
       Failure::kBrokenStream, "usage"},
      {"huge event", ok + "data: " + std::string(5 << 20, 'x'), Failure::kBrokenStream, "larger"},
      {"bad chunk",
       "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: "
       "chunked\r\n\r\nzz\r\n",
       Failure::kBrokenStream, "while reading"},
      {"deep JSON", ok + "data: " + std::string(100000, '[') + "\n\n", Failure::kBrokenStream,
       "no JSON object"},
  };
  for (const Fault& fault : faults) {
    const ScriptedServer server([&](int fd, const std::string&) { send_text(fd, fault.reply); });
    const Sample s = only_sample(server);
    EXPECT_EQ(s.failure, fault.failure) << fault.name << ": " << s.message;
    EXPECT_NE(s.message.find(fault.message), std::string::npos) << fault.name << ": " << s.message;
  }
}

TEST(Driver, SilentServersRunIntoTheTimeLimit) {
  const ScriptedServer silent([](int fd, const std::string&) {
    char c = 0;
    [[maybe_unused]] const ssize_t n = ::recv(fd, &c, 1, 0);  // until the client gives up
  });
  const ScriptedServer trickle([](int fd, const std::string&) {
    send_text(fd, kStreamHead);
    for (int i = 0; i < 100; ++i) {
      send_text(fd, ": still here\n\n");
      std::this_thread::sleep_for(10ms);
    }
  });
  for (const ScriptedServer* server : {&silent, &trickle}) {
    const Sample s = only_sample(*server, 0.2);
    EXPECT_EQ(s.failure, Failure::kTimeout) << s.message;
    EXPECT_GE(s.seconds, 0.19);
  }
}

TEST(Driver, ServersThatNeverPauseRunIntoTheTimeLimit) {
  std::string many;
  while (many.size() < (1 << 20)) many += kToken;
  std::string interim;
  while (interim.size() < (1 << 20)) interim += "HTTP/1.1 100 Continue\r\n\r\n";
  for (const std::string& text : {many, interim}) {
    const ScriptedServer server([&](int fd, const std::string&) {
      if (text.starts_with("data")) send_text(fd, kStreamHead);
      const auto end = std::chrono::steady_clock::now() + 3s;
      while (std::chrono::steady_clock::now() < end) send_text(fd, text);
    });
    const Sample s = only_sample(server, 0.3);
    EXPECT_EQ(s.failure, Failure::kTimeout) << s.message;
    EXPECT_LT(s.seconds, 2);
  }
}

TEST(Driver, EventsOfOneAnswerAreLimited) {
  const ScriptedServer server([](int fd, const std::string&) {
    send_text(fd, kStreamHead);
    std::string many;
    for (int i = 0; i < 4096; ++i) many += "data: {}\n\n";
    for (int i = 0; i < 300; ++i) send_text(fd, many);
    send_text(fd, kToken + kDone);
  });
  const Sample s = only_sample(server, 60);
  EXPECT_EQ(s.failure, Failure::kBrokenStream);
  EXPECT_NE(s.message.find("events"), std::string::npos) << s.message;
}

TEST(Driver, InterimRepliesAreSkipped) {
  const ScriptedServer server([](int fd, const std::string&) {
    send_text(fd, "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n");
    send_text(fd, std::string(kStreamHead) + kToken + kUsage + kDone);
  });
  const Sample s = only_sample(server);
  EXPECT_TRUE(s.ok()) << s.message;
}

TEST(Driver, NobodyListens) {
  Target target;
  {
    const ScriptedServer gone([](int, const std::string&) {});
    target = gone.target();
  }
  auto run = run_load(target, few(3), {});
  ASSERT_TRUE(run.ok());
  for (const Sample& s : run->samples) EXPECT_EQ(s.failure, Failure::kConnect) << s.message;
  EXPECT_FALSE(discover_model(target).ok());
}

TEST(Driver, ConcurrencyIsHeldAndWarmupIsNotCounted) {
  std::atomic<int> busy = 0;
  std::atomic<int> most = 0;
  const ScriptedServer server([&](int fd, const std::string&) {
    const int now = ++busy;
    for (int seen = most; seen < now && !most.compare_exchange_weak(seen, now);) {
    }
    std::this_thread::sleep_for(20ms);
    --busy;  // before the reply: the next request may come as soon as the client has it
    send_text(fd, std::string(kStreamHead) + kToken + kUsage + kDone);
  });
  Workload w = few(20);
  w.concurrency = 4;
  w.warmup = 6;
  int64_t last = 0;
  auto run = run_load(server.target(), w, [&](int64_t done, int64_t total) {
    last = done;
    EXPECT_EQ(total, 26);
  });
  ASSERT_TRUE(run.ok());
  EXPECT_EQ(run->samples.size(), 20u);
  EXPECT_EQ(run->peak, 4);
  EXPECT_EQ(most, 4);
  EXPECT_GE(run->seconds, 5 * 0.020);
  EXPECT_LE(last, 26);
}

TEST(Driver, OpenLoopDoesNotWaitForAnswers) {
  const ScriptedServer server([](int fd, const std::string&) {
    std::this_thread::sleep_for(300ms);
    send_text(fd, std::string(kStreamHead) + kToken + kUsage + kDone);
  });
  Workload w = few(20);
  w.concurrency = 0;
  w.rate = 200;
  auto run = run_load(server.target(), w, {});
  ASSERT_TRUE(run.ok());
  EXPECT_GT(run->peak, 10);
  w.concurrency = 2;
  run = run_load(server.target(), w, {});
  ASSERT_TRUE(run.ok());
  EXPECT_EQ(run->peak, 2);
  EXPECT_GT(run->wait_seconds, 1);
}

TEST(Driver, TextsAreMadeToLength) {
  // A server where every word is two tokens and the template adds five.
  const ScriptedServer server([](int fd, const std::string& request) {
    const size_t at = request.find("\"prompt\":\"");
    const std::string text = request.substr(at + 10, request.find('"', at + 10) - at - 10);
    const auto words = 1 + std::count(text.begin(), text.end(), ' ');
    send_text(fd, std::string(kStreamHead) + kToken +
                      fmt::format("data: {{\"choices\":[],\"usage\":{{\"prompt_tokens\":{},"
                                  "\"completion_tokens\":3}}}}\n\n",
                                  2 * words + 5) +
                      kDone);
  });
  Workload w = few(3);
  w.kind = PromptKind::kText;
  w.input_tokens = 205;
  auto run = run_load(server.target(), w, {});
  ASSERT_TRUE(run.ok());
  for (const Sample& s : run->samples) EXPECT_EQ(s.prompt_tokens, 205);
  const ScriptedServer mute(
      [](int fd, const std::string&) { send_text(fd, std::string(kStreamHead) + kToken + kDone); });
  run = run_load(mute.target(), w, {});
  ASSERT_FALSE(run.ok());
  EXPECT_NE(run.error().message.find("--prompts ids"), std::string::npos);
}

TEST(Driver, FirstModelIsFound) {
  const auto answer = [](const std::string& body) {
    const ScriptedServer server([&](int fd, const std::string& request) {
      EXPECT_TRUE(request.starts_with("GET /v1/models "));
      send_text(fd,
                fmt::format("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{}", body.size(), body));
    });
    return discover_model(server.target());
  };
  const auto found = answer("{\"data\":[{\"id\":\"first\"},{\"id\":\"second\"}]}");
  ASSERT_TRUE(found.ok());
  EXPECT_EQ(*found, "first");
  for (const char* bad : {"", "[]", "{\"data\":[]}", "{\"data\":[{}]}", "{\"data\":[{\"id\":7}]}"})
    EXPECT_FALSE(answer(bad).ok()) << bad;
}

}  // namespace
}  // namespace sub8::load
