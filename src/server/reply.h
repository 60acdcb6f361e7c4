// From the engine's events to the body of a reply. One object per HTTP request; it sees the events
// of each of its prompts in order, on one thread at a time.
//
// A stream and a whole reply come from the same calls: add() appends what the event adds to the
// stream (server-sent events), and keeps what body() needs.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <boost/json.hpp>

#include "engine/request.h"
#include "server/chat_request.h"
#include "server/completion_request.h"
#include "server/served_model.h"

namespace sub8::server {

class Reply {
 public:
  virtual ~Reply() = default;
  // `sse` is null for a whole reply.
  virtual void add(size_t prompt, const engine::TokenEvent& event, std::string* sse) = 0;
  // After the last event: what still follows in the stream, "data: [DONE]" included.
  virtual void finish(std::string* sse) = 0;
  // After the last event of a whole reply.
  virtual boost::json::object body() = 0;
};

std::unique_ptr<Reply> make_completion_reply(const ServedModel& model, CompletionRequest request,
                                             std::string id);
std::unique_ptr<Reply> make_chat_reply(const ServedModel& model, ChatRequest request,
                                       std::string id);

// Appends "data: {...}\n\n".
void append_event(const boost::json::value& value, std::string* sse);
void append_done(std::string* sse);

// What both kinds of reply count.
class ReplyTotals {
 public:
  void add(const engine::TokenEvent& event);
  // {"prompt_tokens", "completion_tokens", "total_tokens", "prompt_tokens_details"}
  boost::json::object usage() const;
  // Milliseconds and rates of the requests that are over, summed; llama.cpp's names.
  boost::json::object timings() const;
  // Known before the summaries: for usage in every chunk.
  void set_prompt_tokens(int64_t tokens) { prompt_tokens_ = tokens; }

 private:
  int64_t prompt_tokens_ = 0;
  int64_t cached_tokens_ = 0;
  int64_t completion_tokens_ = 0;
  double queue_ms_ = 0;
  double prompt_ms_ = 0;
  double predicted_ms_ = 0;
  std::vector<uint64_t> seeds_;
  model::ExecutionMode mode_{};
};

// The end of a stream: the usage chunk where it was asked for (`envelope` is a chunk without
// choices), then [DONE].
void append_end(boost::json::object envelope, bool include_usage, const ReplyTotals& totals,
                std::string* sse);

// JSON has no -infinity: log-probabilities are not written below this (vLLM's number).
inline constexpr double kLogprobFloor = -9999.0;
double json_logprob(float logprob);

// "stop", "length", "error"; null while running.
boost::json::value finish_reason_json(engine::FinishReason reason);
// The stop string or stop token that ended the choice, or null.
boost::json::value stop_reason_json(const engine::TokenEvent& event);

}  // namespace sub8::server
