#include "server/reply.h"

#include <algorithm>
#include <chrono>

namespace sub8::server {
namespace json = boost::json;

namespace {

double ms_between(engine::TimePoint from, engine::TimePoint to) {
  if (from == engine::TimePoint{} || to == engine::TimePoint{}) return 0;
  return std::max(0.0, std::chrono::duration<double, std::milli>(to - from).count());
}

double per_second(double count, double ms) { return ms > 0 ? count / ms * 1000 : 0; }

}  // namespace

void append_event(const json::value& value, std::string* sse) {
  *sse += "data: ";
  *sse += json::serialize(value);
  *sse += "\n\n";
}

void append_done(std::string* sse) { *sse += "data: [DONE]\n\n"; }

void ReplyTotals::add(const engine::TokenEvent& event) {
  if (event.token) ++completion_tokens_;
  if (!event.summary) return;
  const engine::RequestSummary& s = *event.summary;
  cached_tokens_ += s.cached_tokens;
  queue_ms_ += ms_between(s.arrival, s.scheduled);
  prompt_ms_ += ms_between(s.scheduled, s.first_token);
  predicted_ms_ += ms_between(s.first_token, s.finished);
  seeds_.push_back(s.seed);
  mode_ = s.mode;  // of all prompts
}

json::object ReplyTotals::usage() const {
  return {{"prompt_tokens", prompt_tokens_},
          {"completion_tokens", completion_tokens_},
          {"total_tokens", prompt_tokens_ + completion_tokens_},
          {"prompt_tokens_details", {{"cached_tokens", cached_tokens_}}}};
}

json::object ReplyTotals::timings() const {
  json::object out{
      {"queue_ms", queue_ms_},
      {"prompt_n", prompt_tokens_ - cached_tokens_},
      {"cache_n", cached_tokens_},
      {"prompt_ms", prompt_ms_},
      {"prompt_per_second",
       per_second(static_cast<double>(prompt_tokens_ - cached_tokens_), prompt_ms_)},
      {"predicted_n", completion_tokens_},
      {"predicted_ms", predicted_ms_},
      // A request's first token belongs to its prompt's time.
      {"predicted_per_second", per_second(static_cast<double>(std::max<int64_t>(
                                              completion_tokens_ - std::ssize(seeds_), 0)),
                                          predicted_ms_)},
      {"mode", model::execution_mode_name(mode_)}};
  // Without a seed in the request this is how to get the same answer again.
  if (seeds_.size() == 1) out["seed"] = seeds_[0];
  return out;
}

void append_end(json::object envelope, bool include_usage, const ReplyTotals& totals,
                std::string* sse) {
  if (include_usage) {
    envelope["choices"] = json::array();
    envelope["usage"] = totals.usage();
    envelope["timings"] = totals.timings();
    append_event(envelope, sse);
  }
  append_done(sse);
}

double json_logprob(float logprob) {
  // NaN too: it compares false.
  return logprob >= kLogprobFloor ? static_cast<double>(logprob) : kLogprobFloor;
}

json::value finish_reason_json(engine::FinishReason reason) {
  switch (reason) {
    case engine::FinishReason::kRunning:
      return nullptr;
    case engine::FinishReason::kStop:
      return "stop";
    case engine::FinishReason::kLength:
    case engine::FinishReason::kContext:
      return "length";
    case engine::FinishReason::kCancelled:
    case engine::FinishReason::kError:
      return "error";
  }
  return "error";
}

json::value stop_reason_json(const engine::TokenEvent& event) {
  if (!event.stop.empty()) return json::value(event.stop);
  if (event.stop_token) return *event.stop_token;
  return nullptr;
}

}  // namespace sub8::server
