// What a caller asks of the engine, and what comes back: one Request, a stream of TokenEvents.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "engine/sampling_params.h"
#include "model/execution_mode.h"

namespace sub8::engine {

using RequestId = int64_t;
using TimePoint = std::chrono::steady_clock::time_point;

// Says before every token which tokens may come next (structured output). One object per choice,
// driven by the engine alone and by one thread at a time (not always the same one). Preemption does
// not touch it: tokens that were sampled stay sampled.
//
// One that is computed elsewhere starts on the first answer when it is made, and on the next one in
// accept(), so that the engine computes a step meanwhile.
class TokenConstraint {
 public:
  virtual ~TokenConstraint() = default;
  // Whether restrict_next() has its answer; waits at most `timeout` for it. While it has none the
  // choice takes no part in steps, and the others go on. An error ends the choice with kError and
  // this message.
  virtual Result<bool> ready(std::chrono::microseconds timeout) {
    (void)timeout;
    return true;
  }
  // After ready(). Clears the bit of every token that may not come next. `allowed` has one bit per
  // vocabulary entry, token t in bit t % 32 of word t / 32, and arrives all ones. An end token is
  // allowed where the text may end. An error ends the choice with kError and this message.
  virtual Status restrict_next(std::span<uint32_t> allowed) = 0;
  // `token` was sampled. Called for every token, end tokens included.
  virtual Status accept(int32_t token) = 0;
};

struct Request {
  std::vector<int32_t> prompt;  // token ids, at least one
  SamplingParams sampling;
  int n = 1;  // parallel answers ("choices"), 1 .. kMaxChoices; choice i draws with counter i
  bool skip_special = true;  // special tokens are left out of the text

  // Log-probabilities of the prompt's tokens, as TokenEvent::prompt_logprobs: -1 none, 0 the
  // tokens' own, k also the k most likely at each place (at most kMaxTopLogprobs). The prompt is
  // then computed in full: it is not taken from the prefix cache. With it, max_tokens may be 0.
  int prompt_logprobs = -1;

  // Lower is earlier. A request of priority p is served as if it had arrived p seconds later than
  // it did, so none waits for ever. -kMaxPriority .. kMaxPriority.
  int priority = 0;

  // How linear layers and attention are executed for this request's rows. Modes that the loaded
  // model cannot run per request are refused by name.
  model::ExecutionMode mode = model::ExecutionMode::kAuto;

  // Requests share cached prefixes only with requests of the same salt.
  std::string cache_salt;

  // Makes the constraint of each choice; empty: none. Called once per choice, on the engine's
  // thread, when the choice first takes part in a step.
  std::function<Result<std::unique_ptr<TokenConstraint>>(uint32_t choice)> constraint;
};
inline constexpr int kMaxChoices = 128;
inline constexpr int kMaxPriority = 1'000'000;

enum class FinishReason : uint8_t {
  kRunning,    // not over
  kStop,       // an end token, a stop token or a stop string
  kLength,     // max_tokens
  kContext,    // the context is full (OpenAI calls this "length" too)
  kCancelled,  // cancel(), a dropped handle, or shutdown
  kError,      // see TokenEvent::error
};
inline constexpr int kFinishReasons = 6;
std::string_view finish_reason_name(FinishReason reason);  // "stop", "length", "context", ...

struct TokenLogprob {
  int32_t id = 0;
  float logprob = 0;  // of the model, before bias, penalties and temperature; may be -infinity
  std::vector<std::pair<int32_t, float>> top;  // most likely first
};

// Sent once, with the last event of a request.
struct RequestSummary {
  int64_t prompt_tokens = 0;      // counted once, whatever n
  int64_t cached_tokens = 0;      // of the prompt, found in the prefix cache by the first choice
  int64_t completion_tokens = 0;  // all choices, tokens behind a stop string included
  int preemptions = 0;            // times that a choice lost its pages and was computed again
  uint64_t seed = 0;              // given or drawn
  model::ExecutionMode mode{};    // in force; never kAuto
  TimePoint arrival{};
  TimePoint scheduled{};    // first step that held a row of it; zero if never
  TimePoint first_token{};  // zero if none
  TimePoint finished{};
};

// One sampled token, a part of the prompt's log-probabilities, or the end of a choice without a
// token (kCancelled, kError, and kLength for max_tokens = 0). Every token has an event of its own,
// also when its text is empty; the events of a choice are in order.
struct TokenEvent {
  RequestId id = 0;
  uint32_t choice = 0;
  std::optional<TokenLogprob> token;  // logprob and top only if SamplingParams::top_logprobs >= 0
  // What became safe to show: whole characters, nothing that may become a stop string. May be empty
  // or cover several tokens. The last event of a choice brings what was held back.
  std::string text;
  FinishReason finish = FinishReason::kRunning;  // otherwise: this choice is over
  std::string stop;                              // the stop string that ended it, if one did
  std::optional<int32_t> stop_token;             // the entry of stop_token_ids that ended it
  std::optional<Error> error;                    // with kError
  // In order from the prompt's second token on (the first has no probability); choice is 0. All of
  // them come before the first token of choice 0.
  std::vector<TokenLogprob> prompt_logprobs;
  TimePoint time{};                       // when the step ended
  std::optional<RequestSummary> summary;  // in the last event of the request: all choices are over
};

}  // namespace sub8::engine
