// Grammars that take long to compile: who waits, who does not, and what is left undone.
#include <atomic>
#include <condition_variable>
#include <future>
#include <mutex>

#include "server/server_fixture.h"

namespace sub8::server::testing {
namespace {

using namespace std::chrono_literals;

// Compiles nothing, and not before release().
class SlowGrammars final : public GrammarCompiler {
 public:
  Result<ConstraintFactory> compile(const GrammarSpec&) override {
    std::unique_lock lock(mutex_);
    ++started_;
    changed_.notify_all();
    changed_.wait(lock, [this] { return open_; });
    return ConstraintFactory();
  }
  void release() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }
  int started() const {
    const std::lock_guard lock(mutex_);
    return started_;
  }
  bool wait_started(int count) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, 10s, [&] { return started_ >= count; });
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  int started_ = 0;
  bool open_ = false;
};

constexpr const char* kWithGrammar = R"({"prompt": "a", "regex": "x"})";

class GrammarTest : public ServerTest {
 protected:
  void start_with(ServerConfig config = {}) {
    ServerOptions options;
    options.grammars = &grammars_;
    start("ok", std::move(config), std::move(options));
  }
  void TearDown() override { grammars_.release(); }
  std::unique_ptr<HttpClient> ask() const {
    auto client = std::make_unique<HttpClient>(server_->port());
    client->send(HttpClient::post_text("/v1/completions", kWithGrammar));
    return client;
  }
  SlowGrammars grammars_;
};

TEST_F(GrammarTest, PlainRequestsDoNotWaitForGrammars) {
  start_with();
  std::vector<std::unique_ptr<HttpClient>> slow;
  for (int i = 0; i < 4; ++i) slow.push_back(ask());
  ASSERT_TRUE(grammars_.wait_started(1));
  auto plain = std::async(std::launch::async, [&] {
    return post("/v1/completions", {{"prompt", "a"}}).status;
  });
  EXPECT_EQ(plain.wait_for(5s), std::future_status::ready);
  grammars_.release();
  EXPECT_EQ(plain.get(), 200);
  for (const auto& client : slow) EXPECT_EQ(client->read_reply().status, 200);
}

TEST_F(GrammarTest, TooManyThatWaitAreRefused) {
  start_with();
  constexpr int kAtOnce = 17;  // one that runs, and 16 that wait
  constexpr int kMore = 4;
  auto first = ask();
  ASSERT_TRUE(grammars_.wait_started(1));
  std::vector<std::future<Reply>> rest;
  for (int i = 1; i < kAtOnce + kMore; ++i) {
    rest.push_back(std::async(std::launch::async, [&] {
      return HttpClient(server_->port()).post("/v1/completions", kWithGrammar);
    }));
  }
  // Nothing is compiled yet: whoever has an answer was refused.
  const auto answered = [&] {
    return std::count_if(rest.begin(), rest.end(), [](const auto& reply) {
      return reply.wait_for(0s) == std::future_status::ready;
    });
  };
  const auto deadline = std::chrono::steady_clock::now() + 10s;
  while (answered() < kMore && std::chrono::steady_clock::now() < deadline)
    std::this_thread::sleep_for(5ms);
  EXPECT_EQ(answered(), kMore);
  grammars_.release();
  EXPECT_EQ(first->read_reply().status, 200);
  int refused = 0;
  for (auto& future : rest) {
    const Reply reply = future.get();
    if (reply.status == 200) continue;
    ++refused;
    EXPECT_EQ(reply.status, 429) << reply.body;
    EXPECT_EQ(reply.headers.count("retry-after"), 1u);
  }
  EXPECT_EQ(refused, kMore);
}

TEST_F(GrammarTest, NothingIsCompiledForWhoHasLeftOrRanOutOfTime) {
  ServerConfig config;
  config.request_timeout = 300ms;
  start_with(std::move(config));
  auto first = ask();
  ASSERT_TRUE(grammars_.wait_started(1));
  auto timed_out = ask();
  auto left = ask();
  EXPECT_EQ(first->read_reply().status, 504);
  EXPECT_EQ(timed_out->read_reply().status, 504);
  left->close();
  ASSERT_TRUE(server_->wait_idle(5s));
  grammars_.release();
  // One more, behind them in the queue.
  EXPECT_EQ(ask()->read_reply().status, 200);
  EXPECT_EQ(grammars_.started(), 2);
}

TEST_F(GrammarTest, StoppingDropsWhatWaits) {
  start_with();
  auto first = ask();
  ASSERT_TRUE(grammars_.wait_started(1));
  auto second = ask();
  EXPECT_FALSE(server_->wait_idle(200ms));
  EXPECT_FALSE(server_->drop_grammars(50ms));
  auto stopped = std::async(std::launch::async, [&] { server_->stop(); });
  EXPECT_EQ(stopped.wait_for(100ms), std::future_status::timeout);  // for the one that runs
  grammars_.release();
  EXPECT_EQ(stopped.wait_for(3s), std::future_status::ready);
  stopped.get();
  EXPECT_EQ(grammars_.started(), 1);
}

}  // namespace
}  // namespace sub8::server::testing
