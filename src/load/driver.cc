#include "load/driver.h"

#include <algorithm>
#include <exception>
#include <memory>
#include <optional>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <fmt/format.h>

#include "base/interrupt.h"
#include "base/json.h"
#include "load/client.h"

namespace sub8::load {

namespace asio = boost::asio;
using Clock = std::chrono::steady_clock;

namespace {

constexpr std::chrono::milliseconds kInterruptPoll{100};

// Runs a coroutine to its end, or until an interrupt.
template <class T>
Result<T> complete(asio::io_context& io, asio::awaitable<T> work) {
  std::optional<T> out;
  std::exception_ptr thrown;
  asio::co_spawn(io, std::move(work), [&](const std::exception_ptr& error, T value) {
    thrown = error;
    if (!error) out = std::move(value);
    io.stop();
  });
  while (!out && !thrown) {
    SUB8_RETURN_IF_ERROR(check_interrupt());
    io.run_for(kInterruptPoll);
  }
  io.restart();
  if (thrown) std::rethrow_exception(thrown);
  return std::move(*out);
}

// One phase: `count` requests from number `first` on.
class Phase {
 public:
  Phase(asio::io_context& io, const Target& target, const Workload& workload, const WordRate& words,
        int64_t first, int64_t count)
      : io_(io),
        target_(target),
        workload_(workload),
        words_(words),
        first_(first),
        count_(count),
        slot_free_(io),
        ended_(io) {
    result_.samples.resize(static_cast<size_t>(count));
  }

  int64_t done() const { return done_; }

  asio::awaitable<RunResult> run() {
    const std::vector<double> arrivals =
        arrival_seconds(workload_, count_, static_cast<uint64_t>(first_));
    asio::steady_timer arrival(io_);
    start_ = Clock::now();
    for (int64_t i = 0; i < count_; ++i) {
      const auto due =
          start_ + std::chrono::duration_cast<Clock::duration>(
                       std::chrono::duration<double>(arrivals[static_cast<size_t>(i)]));
      if (due > Clock::now()) {
        arrival.expires_at(due);
        co_await wait(arrival);
      }
      const auto ready = Clock::now();
      while (workload_.concurrency > 0 && under_way_ >= workload_.concurrency) {
        slot_free_.expires_at(Clock::time_point::max());
        co_await wait(slot_free_);
      }
      if (workload_.rate > 0)
        result_.wait_seconds += std::chrono::duration<double>(Clock::now() - ready).count();
      result_.peak = std::max(result_.peak, ++under_way_);
      asio::co_spawn(io_, request(i), [this](const std::exception_ptr& error) { over(error); });
    }
    while (done_ < count_) {
      ended_.expires_at(Clock::time_point::max());
      co_await wait(ended_);
    }
    if (thrown_) std::rethrow_exception(thrown_);
    for (const Sample& sample : result_.samples) {
      const auto end = sample.start + std::chrono::duration_cast<Clock::duration>(
                                          std::chrono::duration<double>(sample.seconds));
      result_.seconds =
          std::max(result_.seconds, std::chrono::duration<double>(end - start_).count());
    }
    co_return std::move(result_);
  }

 private:
  // Until the time is up or somebody cancels.
  static asio::awaitable<void> wait(asio::steady_timer& timer) {
    boost::system::error_code ignored;
    co_await timer.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
  }

  asio::awaitable<void> request(int64_t i) {
    const std::string body = request_body(workload_, target_, first_ + i, words_);
    result_.samples[static_cast<size_t>(i)] = co_await ask(target_, body);
  }

  void over(const std::exception_ptr& error) {
    if (error) thrown_ = error;
    --under_way_;
    ++done_;
    slot_free_.cancel();
    ended_.cancel();
  }

  asio::io_context& io_;
  const Target& target_;
  const Workload& workload_;
  const WordRate& words_;
  const int64_t first_;
  const int64_t count_;
  asio::steady_timer slot_free_;
  asio::steady_timer ended_;
  Clock::time_point start_;
  int under_way_ = 0;
  int64_t done_ = 0;
  std::exception_ptr thrown_;
  RunResult result_;
};

Result<WordRate> measure_words(asio::io_context& io, const Target& target,
                               const Workload& workload) {
  constexpr int64_t kShort = 2;
  constexpr int64_t kLong = 12;
  int64_t tokens[2] = {0, 0};
  for (int i = 0; i < 2; ++i) {
    const std::string body = probe_body(workload, target, i == 0 ? kShort : kLong);
    SUB8_ASSIGN_OR_RETURN(const Sample sample, complete(io, ask(target, body)));
    if (!sample.ok()) {
      return invalid_argument(fmt::format("the server refuses a first, short request: {}: {}",
                                          failure_name(sample.failure), sample.message));
    }
    tokens[i] = sample.prompt_tokens;
  }
  if (tokens[0] < 1 || tokens[1] <= tokens[0]) {
    return unsupported(
        "the server's usage does not say how many tokens a text has; use --prompts ids, which need "
        "no counting");
  }
  WordRate out;
  out.per_word = static_cast<double>(tokens[1] - tokens[0]) / static_cast<double>(kLong - kShort);
  out.overhead = static_cast<double>(tokens[0]) - out.per_word * static_cast<double>(kShort);
  return out;
}

}  // namespace

Result<std::string> discover_model(const Target& target) {
  asio::io_context io(1);
  SUB8_ASSIGN_OR_RETURN(const Fetched reply, complete(io, fetch(target, "/v1/models")));
  SUB8_RETURN_IF_ERROR(reply.status);
  SUB8_ASSIGN_OR_RETURN(const auto parsed, parse_json(reply.body, "/v1/models"));
  SUB8_ASSIGN_OR_RETURN(const JsonRef data, JsonRef(parsed, "/v1/models").at("data"));
  SUB8_ASSIGN_OR_RETURN(const auto models, data.elements());
  if (models.empty()) return not_found("/v1/models lists no model; give one with --model");
  SUB8_ASSIGN_OR_RETURN(const JsonRef id, models.front().at("id"));
  return id.as_string();
}

Result<RunResult> run_load(const Target& target, const Workload& workload,
                           const ProgressFn& progress) {
  asio::io_context io(1);
  WordRate words;
  if (workload.kind == PromptKind::kText) {
    SUB8_ASSIGN_OR_RETURN(words, measure_words(io, target, workload));
  }
  const int64_t total = workload.warmup + workload.requests;
  Phase warmup(io, target, workload, words, 0, workload.warmup);
  Phase measured(io, target, workload, words, workload.warmup, workload.requests);
  asio::steady_timer tick(io);
  std::function<void()> report = [&] {
    tick.expires_after(kInterruptPoll);
    tick.async_wait([&](boost::system::error_code error) {
      if (error) return;
      if (progress) progress(warmup.done() + measured.done(), total);
      report();
    });
  };
  report();
  if (workload.warmup > 0) {
    SUB8_ASSIGN_OR_RETURN([[maybe_unused]] const RunResult dropped, complete(io, warmup.run()));
  }
  return complete(io, measured.run());
}

}  // namespace sub8::load
