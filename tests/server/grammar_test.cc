// Grammars that take long to compile: who waits, who does not, and what is left undone.
#include <atomic>
#include <condition_variable>
#include <future>
#include <mutex>

#include "server/server_fixture.h"

namespace sub8::server::testing {
namespace {

using namespace std::chrono_literals;

constexpr int kAtOnce = 4;    // that are compiled
constexpr int kWaiting = 16;  // beside them

// Compiles nothing, and not before release(). What was compiled is known.
class SlowGrammars final : public GrammarCompiler {
 public:
  Result<ConstraintFactory> compile(const GrammarSpec&) override {
    std::unique_lock lock(mutex_);
    ++started_;
    changed_.notify_all();
    changed_.wait(lock, [this] { return open_ || stopped_; });
    if (!open_) return cancelled("stopped");
    return ConstraintFactory();
  }
  std::optional<ConstraintFactory> find(const GrammarSpec& spec) override {
    if (spec.text == "known") return ConstraintFactory();
    return std::nullopt;
  }
  void stop() override {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    changed_.notify_all();
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
  bool stopped_ = false;
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
  for (int i = 0; i < 2 * kAtOnce; ++i) slow.push_back(ask());
  ASSERT_TRUE(grammars_.wait_started(kAtOnce));
  auto plain = std::async(std::launch::async, [&] {
    return post("/v1/completions", {{"prompt", "a"}}).status;
  });
  EXPECT_EQ(plain.wait_for(5s), std::future_status::ready);
  EXPECT_EQ(plain.get(), 200);
  // Nor do those whose grammar is known.
  EXPECT_EQ(post("/v1/completions", {{"prompt", "a"}, {"regex", "known"}}).status, 200);
  EXPECT_EQ(grammars_.started(), kAtOnce);
  grammars_.release();
  for (const auto& client : slow) EXPECT_EQ(client->read_reply().status, 200);
}

TEST_F(GrammarTest, TooManyThatWaitAreRefused) {
  start_with();
  constexpr int kMore = 4;
  std::vector<std::unique_ptr<HttpClient>> first;
  for (int i = 0; i < kAtOnce; ++i) first.push_back(ask());
  ASSERT_TRUE(grammars_.wait_started(kAtOnce));
  std::vector<std::future<Reply>> rest;
  for (int i = 0; i < kWaiting + kMore; ++i) {
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
  for (const auto& client : first) EXPECT_EQ(client->read_reply().status, 200);
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
  std::vector<std::unique_ptr<HttpClient>> first;
  for (int i = 0; i < kAtOnce; ++i) first.push_back(ask());
  ASSERT_TRUE(grammars_.wait_started(kAtOnce));
  auto timed_out = ask();
  auto left = ask();
  for (const auto& client : first) EXPECT_EQ(client->read_reply().status, 504);
  EXPECT_EQ(timed_out->read_reply().status, 504);
  left->close();
  ASSERT_TRUE(server_->wait_idle(5s));
  grammars_.release();
  // One more, behind them in the queue.
  EXPECT_EQ(ask()->read_reply().status, 200);
  EXPECT_EQ(grammars_.started(), kAtOnce + 1);
}

TEST_F(GrammarTest, StoppingDropsWhatWaitsAndEndsWhatRuns) {
  start_with();
  std::vector<std::unique_ptr<HttpClient>> clients;
  for (int i = 0; i < kAtOnce + 2; ++i) clients.push_back(ask());
  ASSERT_TRUE(grammars_.wait_started(kAtOnce));
  EXPECT_FALSE(server_->wait_idle(200ms));
  auto stopped = std::async(std::launch::async, [&] { server_->stop(); });
  EXPECT_EQ(stopped.wait_for(3s), std::future_status::ready);
  EXPECT_EQ(grammars_.started(), kAtOnce);
}

}  // namespace
}  // namespace sub8::server::testing
