// The wire: keep-alive, framing, limits, time-outs, slow and vanished clients, draining.
#include <fmt/format.h>

#include "server/server_fixture.h"

namespace sub8::server::testing {
namespace {

using namespace std::chrono_literals;
using ConnectionTest = ServerTest;

const std::string kLong = R"({"prompt": "x", "max_tokens": 1000000, "ignore_eos": true)";

TEST_F(ConnectionTest, KeepAliveAndPipelining) {
  start("abc");
  HttpClient client(server_->port());
  for (int i = 0; i < 3; ++i) {
    const Reply reply = client.post("/v1/completions", R"({"prompt": "x"})");
    EXPECT_EQ(reply.status, 200);
    EXPECT_EQ(reply.headers.at("connection"), "keep-alive");
  }
  const std::string one = HttpClient::post_text("/v1/completions", R"({"prompt": "x"})");
  client.send(one + one + "GET /health HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_EQ(client.read_reply().status, 200);
  EXPECT_EQ(client.read_reply().status, 200);
  EXPECT_EQ(client.read_reply().status, 200);
  EXPECT_EQ(client.get("/health", "Connection: close\r\n").status, 200);
  EXPECT_TRUE(client.at_end());
}

TEST_F(ConnectionTest, ClosedConnectionsGoAtOnce) {
  start("abc");
  const auto begin = std::chrono::steady_clock::now();
  for (const char* path : {"/health", "/nothing"}) {
    HttpClient client(server_->port());
    client.get(path, "Connection: close\r\n");
    EXPECT_TRUE(client.at_end());
    client.close();
    const auto deadline = std::chrono::steady_clock::now() + 10s;
    while (server_->open_connections() > 0 && std::chrono::steady_clock::now() < deadline)
      std::this_thread::sleep_for(1ms);
  }
  // Not after the time that a client gets to close its side.
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 1900ms);
}

TEST_F(ConnectionTest, RequestIdsAreEchoedAndNeverInjected) {
  start("abc");
  HttpClient client(server_->port());
  const Reply given =
      client.post("/v1/completions", R"({"prompt": "x"})", "X-Request-Id: my-id.1\r\n");
  EXPECT_EQ(given.headers.at("x-request-id"), "my-id.1");
  EXPECT_EQ(json::parse(given.body).at("id"), "cmpl-my-id.1");
  const Reply odd = client.get("/health", "X-Request-Id: a b\"c\r\n");
  EXPECT_EQ(odd.headers.at("x-request-id").size(), 32u);
}

// Behind a proxy that knows the coding, what follows would be the body of the same request.
TEST_F(ConnectionTest, UnknownTransferCodingsEndTheConnection) {
  start("abc");
  for (const char* coding :
       {"xchunked", "gzip, chunked", "chunked, gzip", "identity", "",
        "chunked\r\nTransfer-Encoding: x", "x\r\nTransfer-Encoding: chunked"}) {
    HttpClient client(server_->port());
    client.send(
        fmt::format("POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: "
                    "application/json\r\nTransfer-Encoding: {}\r\n\r\n"
                    "GET /health HTTP/1.1\r\nHost: x\r\n\r\n",
                    coding));
    const Reply reply = client.read_reply();
    EXPECT_TRUE(reply.status == 501 || reply.status == 400) << coding << ": " << reply.status;
    EXPECT_EQ(reply.headers.at("connection"), "close") << coding;
    EXPECT_TRUE(client.at_end()) << coding;
  }
}

TEST_F(ConnectionTest, ExactlyOneHostInHttp11) {
  start("abc");
  const auto status = [&](const std::string& head) {
    HttpClient client(server_->port());
    client.send(head + "\r\n");
    const Reply reply = client.read_reply();
    if (reply.status == 400) {
      EXPECT_EQ(reply.headers.at("connection"), "close") << head;
      EXPECT_NE(reply.body.find("Host"), std::string::npos) << reply.body;
    }
    return reply.status;
  };
  EXPECT_EQ(status("GET /health HTTP/1.1\r\n"), 400);
  EXPECT_EQ(status("GET /health HTTP/1.1\r\nHost: a\r\nHost: a\r\n"), 400);
  EXPECT_EQ(status("GET /health HTTP/1.1\r\nHost: a\r\nX: y\r\nhost: b\r\n"), 400);
  EXPECT_EQ(status("GET /health HTTP/1.0\r\nHost: a\r\nHost: a\r\n"), 400);
  EXPECT_EQ(status("GET /health HTTP/1.1\r\nHost:\r\n"), 200);
  EXPECT_EQ(status("GET /health HTTP/1.0\r\n"), 200);
}

TEST_F(ConnectionTest, ChunkedRequestBody) {
  start("abc");
  HttpClient client(server_->port());
  client.send(
      "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
      "Transfer-Encoding: chunked\r\n\r\n8\r\n{\"prompt\r\n6\r\n\":\"x\"}\r\n0\r\n\r\n");
  EXPECT_EQ(client.read_reply().status, 200);
  EXPECT_EQ(client.get("/health").status, 200);
}

TEST_F(ConnectionTest, ExpectContinue) {
  start("abc");
  HttpClient client(server_->port());
  client.send(
      "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
      "Expect: 100-continue\r\nContent-Length: 15\r\n\r\n");
  EXPECT_EQ(client.read_reply().status, 100);
  client.send(R"({"prompt": "x"})");
  EXPECT_EQ(client.read_reply().status, 200);
}

TEST_F(ConnectionTest, Http10StreamsUntilTheConnectionCloses) {
  start("abc");
  HttpClient client(server_->port());
  const std::string body = R"({"prompt": "x", "stream": true})";
  client.send(fmt::format(
      "POST /v1/completions HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: "
      "{}\r\n\r\n{}",
      body.size(), body));
  const Reply reply = client.read_reply();
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(reply.headers.count("transfer-encoding"), 0u);
  EXPECT_TRUE(reply.body.ends_with("data: [DONE]\n\n")) << reply.body;
}

TEST_F(ConnectionTest, MalformedRequests) {
  start("abc");
  for (const char* text :
       {"\xff\xfe\r\n\r\n", "GET\r\n\r\n", "GET / HTTP/9.9\r\n\r\n",
        "GET / HTTP/1.1\r\nbad header\r\n\r\n",
        "POST /v1/completions HTTP/1.1\r\nContent-Length: x\r\n\r\n",
        "POST /v1/completions HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab"}) {
    HttpClient client(server_->port());
    client.send(text);
    const Reply reply = client.read_reply();
    EXPECT_GE(reply.status, 400) << text;
    EXPECT_LT(reply.status, 506) << text;
    EXPECT_NO_THROW(json::parse(reply.body)) << reply.body;
    EXPECT_TRUE(client.at_end());
  }
  EXPECT_EQ(HttpClient(server_->port()).get("/\xff\xfe").status, 404);
  EXPECT_EQ(HttpClient(server_->port()).get("/health").status, 200);
}

TEST_F(ConnectionTest, HeaderAndBodyLimits) {
  ServerConfig config;
  config.max_header_bytes = 4096;
  config.max_body_bytes = 10'000;
  start("abc", config);
  HttpClient header(server_->port());
  header.send("GET /health HTTP/1.1\r\nX: " + std::string(10'000, 'y') + "\r\n\r\n");
  EXPECT_EQ(header.read_reply().status, 431);
  HttpClient announced(server_->port());
  announced.send(
      "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100000000\r\n\r\n{\"prompt\"");
  const Reply refused = announced.read_reply();
  EXPECT_EQ(refused.status, 413);
  EXPECT_NE(refused.body.find("10000 bytes"), std::string::npos);
  HttpClient chunked(server_->port());
  chunked.send(
      "POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n4e20\r\n" +
      std::string(20'000, ' ') + "\r\n");
  EXPECT_EQ(chunked.read_reply().status, 413);
  EXPECT_EQ(HttpClient(server_->port()).post("/v1/completions", R"({"prompt": "x"})").status, 200);
}

TEST_F(ConnectionTest, BodiesOfAllRequestsTogetherAreBounded) {
  ServerConfig config;
  config.max_body_bytes = 10'000;
  config.max_inflight_body_bytes = 15'000;
  start("abc", config);
  HttpClient first(server_->port());
  first.send(
      "POST /v1/completions HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: "
      "10000\r\n\r\n");
  EXPECT_EQ(first.read_reply().status, 100);
  HttpClient second(server_->port());
  EXPECT_EQ(second.post("/v1/completions", std::string(10'000, ' ')).status, 503);
  first.close();
  const auto deadline = std::chrono::steady_clock::now() + 5s;
  int status = 503;
  while (status == 503 && std::chrono::steady_clock::now() < deadline)
    status = HttpClient(server_->port()).post("/v1/completions", std::string(10'000, ' ')).status;
  EXPECT_EQ(status, 400);
}

TEST_F(ConnectionTest, TimeOuts) {
  ServerConfig config;
  config.idle_timeout = 150ms;
  config.body_timeout = 150ms;
  start("abc", config);
  HttpClient idle(server_->port());
  EXPECT_TRUE(idle.at_end());
  HttpClient header(server_->port());
  header.send("GET /health HTTP/1.1\r\nX-Slow: ");
  EXPECT_EQ(header.read_reply().status, 408);
  HttpClient body(server_->port());
  body.send("POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n{");
  EXPECT_EQ(body.read_reply().status, 408);
  EXPECT_TRUE(body.at_end());
}

TEST_F(ConnectionTest, RequestsMayNotTakeForEver) {
  ServerConfig config;
  config.request_timeout = 200ms;
  start("abc", config);
  set_answer("abc", 5ms);
  const Reply whole = HttpClient(server_->port()).post("/v1/completions", kLong + "}");
  EXPECT_EQ(whole.status, 504);
  EXPECT_TRUE(backend_idle());
  const Reply streamed =
      HttpClient(server_->port()).post("/v1/completions", kLong + R"(, "stream": true})");
  EXPECT_EQ(streamed.status, 200);
  EXPECT_EQ(streamed.body.find("[DONE]"), std::string::npos);
  EXPECT_TRUE(backend_idle());
  EXPECT_EQ(backend_->cancelled(), 2);
}

TEST_F(ConnectionTest, ClientsThatLeaveAreCancelled) {
  start("abc");
  set_answer("abc", 2ms);
  for (const bool streaming : {false, true}) {
    HttpClient client(server_->port());
    client.send(HttpClient::post_text(
        "/v1/completions", kLong + fmt::format(R"(, "stream": {}, "n": 3}})", streaming)));
    if (streaming) {
      client.read_some(100);
    } else {
      while (backend_->stats().running == 0) std::this_thread::sleep_for(1ms);
    }
    client.close();
    EXPECT_TRUE(backend_idle()) << streaming;
  }
  EXPECT_EQ(backend_->cancelled(), 2);
}

TEST_F(ConnectionTest, SlowReadersPauseTheirOwnRequestOnly) {
  ServerConfig config;
  config.max_unsent_bytes = 8 << 10;
  start("abc", config);
  HttpClient slow(server_->port());
  slow.set_receive_buffer(32 << 10);
  slow.send(HttpClient::post_text("/v1/completions",
                                  R"({"prompt": "x", "max_tokens": 5000, "ignore_eos": true, )"
                                  R"("stream": true})"));
  slow.read_some(1);
  // The engine's side fills up to its capacity and no further.
  const auto deadline = std::chrono::steady_clock::now() + 10s;
  while (backend_->max_unread() < 256 && std::chrono::steady_clock::now() < deadline)
    std::this_thread::sleep_for(1ms);
  EXPECT_EQ(backend_->max_unread(), 256);
  EXPECT_EQ(HttpClient(server_->port()).post("/v1/completions", R"({"prompt": "x"})").status, 200);
  // It gets everything in the end.
  std::string tail;
  while (tail.find("[DONE]") == std::string::npos) {
    const std::string more = slow.read_some(1 << 16);
    ASSERT_FALSE(more.empty());
    tail = (tail + more).substr(tail.size() > 64 ? tail.size() - 64 : 0);
  }
}

TEST_F(ConnectionTest, ReadersThatTakeNothingAreDropped) {
  ServerConfig config;
  config.write_timeout = 300ms;
  config.max_unsent_bytes = 8 << 10;
  start("abc", config);
  HttpClient stuck(server_->port());
  stuck.send(HttpClient::post_text("/v1/completions", kLong + R"(, "stream": true})"));
  const auto deadline = std::chrono::steady_clock::now() + 15s;
  while (backend_->cancelled() == 0 && std::chrono::steady_clock::now() < deadline)
    std::this_thread::sleep_for(5ms);
  EXPECT_EQ(backend_->cancelled(), 1);
}

TEST_F(ConnectionTest, SilentStreamsGetComments) {
  ServerConfig config;
  config.ping_interval = 50ms;
  start("abc", config);
  Script script;
  script.tokens = ids("abc");
  script.hold = true;
  backend_->set_script(script);
  HttpClient client(server_->port());
  client.send(HttpClient::post_text("/v1/completions", R"({"prompt": "x", "stream": true})"));
  std::string got;
  while (got.find(": waiting\n\n") == std::string::npos) {
    const std::string more = client.read_some(1000);
    ASSERT_FALSE(more.empty());
    got += more;
  }
  EXPECT_EQ(got.find("data:"), std::string::npos);
  backend_->release();
  while (got.find("[DONE]") == std::string::npos) {
    const std::string more = client.read_some(1000);
    ASSERT_FALSE(more.empty());
    got += more;
  }
}

TEST_F(ConnectionTest, ConnectionsAreBounded) {
  ServerConfig config;
  config.max_connections = 2;
  start("abc", config);
  HttpClient first(server_->port());
  HttpClient second(server_->port());
  EXPECT_EQ(first.get("/health").status, 200);
  EXPECT_EQ(second.get("/health").status, 200);
  HttpClient third(server_->port());
  const Reply refused = third.read_reply();
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(refused.headers.at("retry-after"), "1");
  first.close();
  third.close();
  const auto deadline = std::chrono::steady_clock::now() + 5s;
  while (server_->open_connections() > 1 && std::chrono::steady_clock::now() < deadline)
    std::this_thread::sleep_for(2ms);
  EXPECT_EQ(HttpClient(server_->port()).get("/health").status, 200);
}

TEST_F(ConnectionTest, DrainLetsRepliesFinish) {
  start("abc");
  set_answer(std::string(60, 'x'), 5ms);
  HttpClient busy(server_->port());
  HttpClient idle(server_->port());
  EXPECT_EQ(idle.get("/health").status, 200);
  busy.send(HttpClient::post_text("/v1/completions",
                                  R"({"prompt": "x", "max_tokens": 60, "stream": true})"));
  busy.read_some(1);
  server_->begin_drain();
  EXPECT_TRUE(idle.at_end());
  EXPECT_FALSE(server_->wait_idle(10ms));
  EXPECT_THROW(HttpClient(server_->port()), std::runtime_error);
  std::string got;
  while (got.find("[DONE]") == std::string::npos) {
    const std::string more = busy.read_some(1 << 14);
    ASSERT_FALSE(more.empty()) << got;
    got += more;
  }
  EXPECT_TRUE(server_->wait_idle(5s));
  EXPECT_EQ(backend_->cancelled(), 0);
  server_->stop();
  EXPECT_EQ(server_->open_connections(), 0);
}

TEST_F(ConnectionTest, StopCancelsWhatRuns) {
  start("abc");
  set_answer("abc", 2ms);
  HttpClient client(server_->port());
  client.send(HttpClient::post_text("/v1/completions", kLong + R"(, "stream": true})"));
  client.read_some(1);
  server_->stop();
  EXPECT_EQ(server_->open_connections(), 0);
  EXPECT_TRUE(backend_idle());
  EXPECT_EQ(backend_->cancelled(), 1);
}

TEST_F(ConnectionTest, ManyShortRequestsAtOnce) {
  start("abc");
  std::atomic<int> good{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 50; ++i) {
        HttpClient client(server_->port());
        const bool streaming = (i + t) % 2 == 0;
        client.send(HttpClient::post_text(
            "/v1/completions", fmt::format(R"({{"prompt": "x", "stream": {}}})", streaming)));
        if (i % 10 == 9) continue;  // leaves at once
        const Reply reply = client.read_reply();
        good += reply.status == 200 && (!streaming || reply.body.ends_with("[DONE]\n\n")) ? 1 : 0;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(good, 8 * 45);
  EXPECT_TRUE(backend_idle());
}

TEST_F(ConnectionTest, APortInUseIsNamed) {
  start("abc");
  ServedModel model;
  model.names = {"tiny"};
  model.tokenizer = tokenizer_.get();
  ServerConfig config;
  config.port = server_->port();
  Server second(config, std::move(model), *backend_, {});
  const Status status = second.start();
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.error().message.find(std::to_string(config.port)), std::string::npos);
}

}  // namespace
}  // namespace sub8::server::testing
