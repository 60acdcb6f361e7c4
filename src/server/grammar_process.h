// The server's side of one process that follows one grammar, for all requests that have it.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include "base/error.h"
#include "engine/request.h"
#include "server/grammar_host.h"

namespace sub8::server {

// Any thread.
class GrammarProcess : public std::enable_shared_from_this<GrammarProcess> {
 public:
  // `timeout`: for the process to compile the grammar, and then to say anything that is awaited.
  // Later it is killed, and all who use it get an invalid_argument error.
  GrammarProcess(std::shared_ptr<GrammarHost> host, GrammarHost::Child child,
                 std::chrono::milliseconds timeout);
  // Kills the process.
  ~GrammarProcess();
  GrammarProcess(const GrammarProcess&) = delete;
  GrammarProcess& operator=(const GrammarProcess&) = delete;

  // Waits until the grammar is compiled: an error if it cannot be.
  Status wait_compiled();
  bool compiled();
  // It ended before it said what became of the grammar.
  bool vanished();
  // As far as is known; a process that was killed meanwhile is noticed here.
  bool alive();
  // Memory that the compiled grammar takes; 0 before.
  int64_t bytes();
  // Ends it; who waits for it gets `error`.
  void fail(Error error);

  // A text at its start. It may outlive all but the process.
  std::unique_ptr<engine::TokenConstraint> open();

 private:
  class Constraint;
  using Clock = std::chrono::steady_clock;
  struct Answer {
    bool there() const { return awaited == 0; }
    int awaited = 1;              // messages about this matcher; the last one counts
    std::vector<uint32_t> words;  // which tokens may come next
    std::optional<Error> error;
  };

  // With the mutex held.
  void ask(grammar::Kind kind, int64_t id, uint32_t value);
  void flush();
  void collect();
  void take(const grammar::Header& header);
  void fail_locked(Error error);
  void check_time();
  // Returns when something came, or after `timeout`; releases the mutex meanwhile.
  void wait(std::unique_lock<std::mutex>& lock, std::chrono::microseconds timeout);
  Result<bool> ready(int64_t id, std::chrono::microseconds timeout);

  const std::shared_ptr<GrammarHost> host_;
  const int64_t id_;
  const std::chrono::milliseconds timeout_;
  std::mutex mutex_;
  grammar::Descriptor socket_;  // open as long as this lives
  std::deque<grammar::Header> unsent_;
  std::vector<std::byte> received_;
  std::unordered_map<int64_t, Answer> answers_;  // by matcher
  int64_t next_matcher_ = 1;
  int awaited_ = 1;             // messages; at first, that the grammar is compiled
  Clock::time_point progress_;  // since when the next message is awaited
  bool compiled_ = false;
  bool vanished_ = false;
  int64_t bytes_ = 0;
  std::optional<Error> failed_;
};

}  // namespace sub8::server
