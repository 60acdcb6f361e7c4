// One of the parallel answers of a request: from logits to token, text, and the decision to end.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/request.h"
#include "engine/sampler.h"
#include "engine/scheduler.h"
#include "engine/stop_matcher.h"
#include "text/detokenizer.h"
#include "text/tokenizer.h"

namespace sub8::engine {

// The scheduler moves the base, the engine owns the whole.
class Choice : public Sequence {
 public:
  // `request` is checked and has a seed. The tokenizer and `end_ids` must outlive this.
  Choice(RequestId id, uint32_t index, const Request& request, int64_t max_model_len,
         const Tokenizer& tokenizer, const std::vector<int32_t>& end_ids);

  RequestId id() const { return id_; }
  uint32_t index() const { return index_; }
  int64_t answer_size() const { return size() - prompt_size; }
  // Longest it can become, prompt included.
  int64_t limit() const { return limit_; }
  FinishReason finish() const { return finish_; }
  bool over() const { return finish_ != FinishReason::kRunning; }

  // Makes the constraint if the request has one and it was not made yet.
  void prepare(const Request& request);
  // Whether advance() would find its constraint, if it has one, ready; waits at most `timeout`. An
  // error of the constraint, or of prepare().
  Result<bool> constraint_ready(std::chrono::microseconds timeout);

  // Samples the next token, appends it to `tokens`, and says what became of it. Touches this choice
  // and `scratch` only, so several choices may advance at once.
  TokenEvent advance(std::span<const float> logits, SamplerScratch& scratch);

  // Ends it without a token. What was held back of the text comes with the event, except after
  // errors.
  TokenEvent end(FinishReason reason);
  TokenEvent fail(Error error);

  // Log-probabilities of prompt tokens: how many of the prompt's rows have had theirs.
  int64_t prompt_logprobs_done = 0;
  TimePoint last_token{};  // zero before the first
  // Since when it is out of the steps because its constraint is not ready; zero when it is not.
  TimePoint held_since{};

 private:
  TokenEvent event() const;
  void restrict_by_params(std::span<uint32_t> allowed) const;
  Result<TokenLogprob> sample(std::span<const float> logits, SamplerScratch& scratch);
  void take_text(int32_t token, TokenEvent& event);

  RequestId id_;
  uint32_t index_;
  int64_t limit_;
  bool limited_by_context_;
  const std::vector<int32_t>& end_ids_;
  Sampler sampler_;
  Detokenizer detokenizer_;
  StopMatcher stops_;
  std::unique_ptr<TokenConstraint> constraint_;
  std::optional<Error> constraint_error_;
  FinishReason finish_ = FinishReason::kRunning;
};

}  // namespace sub8::engine
