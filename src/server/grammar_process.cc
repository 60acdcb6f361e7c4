#include "server/grammar_process.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <utility>

#include <fmt/format.h>
#include <poll.h>

namespace sub8::server {
namespace {

using namespace std::chrono_literals;
using grammar::Header;
using grammar::Kind;

constexpr auto kCheckInterval = 50ms;  // of who waits for a compilation

}  // namespace

// One text of one request. The engine drives it.
class GrammarProcess::Constraint final : public engine::TokenConstraint {
 public:
  Constraint(std::shared_ptr<GrammarProcess> process, int64_t id)
      : process_(std::move(process)), id_(id) {}
  ~Constraint() override {
    const std::lock_guard lock(process_->mutex_);
    if (process_->answers_.erase(id_) > 0) process_->ask(Kind::kClose, id_, 0);
  }

  Result<bool> ready(std::chrono::microseconds timeout) override {
    return process_->ready(id_, timeout);
  }

  Status restrict_next(std::span<uint32_t> allowed) override {
    const std::lock_guard lock(process_->mutex_);
    const Answer& answer = process_->answers_.at(id_);
    if (!answer.there() || answer.words.size() != allowed.size()) {
      return internal_error(fmt::format("a mask of {} words for {} words of vocabulary",
                                        answer.there() ? answer.words.size() : 0, allowed.size()));
    }
    std::transform(allowed.begin(), allowed.end(), answer.words.begin(), allowed.begin(),
                   std::bit_and());
    return {};
  }

  Status accept(int32_t token) override {
    const std::lock_guard lock(process_->mutex_);
    ++process_->answers_.at(id_).awaited;
    process_->ask(Kind::kAccept, id_, static_cast<uint32_t>(token));
    return {};
  }

 private:
  std::shared_ptr<GrammarProcess> process_;
  int64_t id_;
};

GrammarProcess::GrammarProcess(std::shared_ptr<GrammarHost> host, GrammarHost::Child child,
                               std::chrono::milliseconds timeout)
    : host_(std::move(host)),
      id_(child.id),
      timeout_(timeout),
      socket_(std::move(child.socket)),
      progress_(Clock::now()) {}

GrammarProcess::~GrammarProcess() { host_->kill(id_); }

void GrammarProcess::ask(Kind kind, int64_t id, uint32_t value) {
  if (failed_) return;
  if (kind != Kind::kClose && awaited_++ == 0) progress_ = Clock::now();
  unsent_.push_back({kind, value, id});
  flush();
}

void GrammarProcess::flush() {
  while (!failed_ && !unsent_.empty()) {
    const grammar::Sent sent = grammar::send_message(socket_.get(), unsent_.front(), {}, false);
    // A closed socket may still hold what the process said last: collect() finds its end.
    if (sent != grammar::Sent::kYes) return;
    unsent_.pop_front();
  }
}

void GrammarProcess::collect() {
  flush();
  while (!failed_) {
    Header header;
    const grammar::Received got = grammar::receive_message(socket_.get(), header, received_, false);
    if (got == grammar::Received::kNothing) break;
    if (got == grammar::Received::kMessage) {
      progress_ = Clock::now();
      awaited_ = std::max(awaited_ - 1, 0);
      take(header);
    } else if (compiled_) {
      fail_locked(internal_error("the process that follows this request's grammar ended"));
    } else {
      vanished_ = true;
      fail_locked(invalid_argument(
          "the grammar is not usable: the process that compiled it ended (a fault in XGrammar)"));
    }
  }
  check_time();
}

void GrammarProcess::take(const Header& header) {
  if (header.kind == Kind::kReady) {
    compiled_ = true;
    bytes_ = header.id;
    return;
  }
  if (header.kind == Kind::kFailed && header.id == 0)
    return fail_locked(grammar::to_error(header, received_));
  const auto at = answers_.find(header.id);
  if (at == answers_.end()) return;  // closed meanwhile
  --at->second.awaited;
  if (header.kind == Kind::kFailed) {
    at->second.error = grammar::to_error(header, received_);
  } else {
    at->second.words.resize(received_.size() / sizeof(uint32_t));
    std::memcpy(at->second.words.data(), received_.data(),
                at->second.words.size() * sizeof(uint32_t));
  }
}

void GrammarProcess::fail_locked(Error error) {
  if (failed_) return;
  failed_ = std::move(error);
  unsent_.clear();
  host_->kill(id_);
}

void GrammarProcess::check_time() {
  if (failed_ || awaited_ == 0 || Clock::now() - progress_ <= timeout_) return;
  const double seconds = std::chrono::duration<double>(timeout_).count();
  fail_locked(invalid_argument(
      compiled_ ? fmt::format("the grammar is not usable: which tokens it allows next was not "
                              "known after {} s; simplify it",
                              seconds)
                : fmt::format("the grammar is not usable: compiling it took more than {} s; "
                              "simplify it",
                              seconds)));
}

void GrammarProcess::wait(std::unique_lock<std::mutex>& lock, std::chrono::microseconds timeout) {
  pollfd wanted{socket_.get(), static_cast<short>(unsent_.empty() ? POLLIN : POLLIN | POLLOUT), 0};
  lock.unlock();
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(timeout);
  const timespec limit{seconds.count(), std::chrono::nanoseconds(timeout - seconds).count()};
  (void)::ppoll(&wanted, 1, &limit, nullptr);
  lock.lock();
}

Status GrammarProcess::wait_compiled() {
  std::unique_lock lock(mutex_);
  while (true) {
    collect();
    if (failed_) return *failed_;
    if (compiled_) return {};
    wait(lock, kCheckInterval);
  }
}

Result<bool> GrammarProcess::ready(int64_t id, std::chrono::microseconds timeout) {
  const Clock::time_point deadline = Clock::now() + timeout;
  std::unique_lock lock(mutex_);
  while (true) {
    const Answer& answer = answers_.at(id);
    if (!answer.there()) collect();
    if (answer.there()) {
      if (answer.error) return *answer.error;
      return true;
    }
    if (failed_) return *failed_;
    const auto left =
        std::chrono::duration_cast<std::chrono::microseconds>(deadline - Clock::now());
    if (left.count() <= 0) return false;
    wait(lock, left);
  }
}

bool GrammarProcess::compiled() {
  const std::lock_guard lock(mutex_);
  collect();
  return compiled_ && !failed_;
}

bool GrammarProcess::vanished() {
  const std::lock_guard lock(mutex_);
  return vanished_;
}

bool GrammarProcess::alive() {
  const std::lock_guard lock(mutex_);
  collect();
  return !failed_;
}

int64_t GrammarProcess::bytes() {
  const std::lock_guard lock(mutex_);
  return bytes_;
}

void GrammarProcess::fail(Error error) {
  const std::lock_guard lock(mutex_);
  fail_locked(std::move(error));
}

std::unique_ptr<engine::TokenConstraint> GrammarProcess::open() {
  const std::lock_guard lock(mutex_);
  const int64_t id = next_matcher_++;
  answers_.emplace(id, Answer{});
  ask(Kind::kOpen, id, 0);
  return std::make_unique<Constraint>(shared_from_this(), id);
}

}  // namespace sub8::server
