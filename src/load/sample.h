// What one request looked like from outside. Definitions are those of `vllm bench serve`.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace sub8::load {

enum class Failure : uint8_t {
  kNone,
  kConnect,       // no connection
  kTimeout,       // the whole request took too long
  kStatus,        // a status other than 200
  kNoStream,      // 200, but no event stream
  kServerError,   // an error event in the stream
  kBrokenStream,  // the stream ended early, or holds what no server should send
};
inline constexpr int kFailures = 7;
const char* failure_name(Failure failure);  // "connect", "timeout", ...

struct Sample {
  Failure failure = Failure::kNone;
  std::string message;  // with a failure

  std::chrono::steady_clock::time_point start{};  // before connecting
  double first_token_seconds = 0;  // TTFT: to the first event that has choices, whatever its text
  double seconds = 0;              // E2E: to the last such event; with a failure: to that
  std::vector<double> gaps;        // ITL: between such events
  int64_t prompt_tokens = -1;      // of the usage; -1: the server sent none
  int64_t output_tokens = 0;       // of the usage, else the events that have choices
  bool counted_by_server = false;  // output_tokens came from the usage

  bool ok() const { return failure == Failure::kNone; }
  // TPOT: seconds per token after the first. 0 for less than two tokens.
  double token_seconds() const {
    return output_tokens > 1
               ? (seconds - first_token_seconds) / static_cast<double>(output_tokens - 1)
               : 0;
  }
};

}  // namespace sub8::load
