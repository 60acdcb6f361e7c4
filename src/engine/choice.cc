#include "engine/choice.h"

#include <algorithm>

namespace sub8::engine {

Choice::Choice(RequestId id, uint32_t index, const Request& request, int64_t max_model_len,
               const Tokenizer& tokenizer, const std::vector<int32_t>& end_ids)
    : id_(id),
      index_(index),
      end_ids_(end_ids),
      sampler_(request.sampling, request.prompt, end_ids, index),
      detokenizer_(tokenizer, request.skip_special),
      stops_(request.sampling.stop, request.sampling.include_stop_text) {
  tokens = request.prompt;
  prompt_size = static_cast<int64_t>(tokens.size());
  const auto& max_tokens = request.sampling.max_tokens;
  limited_by_context_ = !max_tokens || *max_tokens > max_model_len - prompt_size;
  limit_ = limited_by_context_ ? max_model_len : prompt_size + *max_tokens;
}

void Choice::prepare(const Request& request) {
  if (!request.constraint || constraint_ != nullptr || constraint_error_) return;
  Result<std::unique_ptr<TokenConstraint>> made = request.constraint(index_);
  if (made.ok()) {
    constraint_ = std::move(made).value();
  } else {
    constraint_error_ = std::move(made).error();
  }
}

Result<bool> Choice::constraint_ready(std::chrono::microseconds timeout) {
  if (constraint_error_) return *constraint_error_;
  if (constraint_ == nullptr) return true;
  return constraint_->ready(timeout);
}

TokenEvent Choice::event() const {
  TokenEvent out;
  out.id = id_;
  out.choice = index_;
  return out;
}

TokenEvent Choice::fail(Error error) {
  TokenEvent out = event();
  out.finish = finish_ = FinishReason::kError;
  out.error = std::move(error);
  return out;
}

TokenEvent Choice::end(FinishReason reason) {
  TokenEvent out = event();
  out.finish = finish_ = reason;
  if (!stops_.matched()) {
    out.text = stops_.push(detokenizer_.finish());
    out.text += stops_.finish();
  }
  return out;
}

// Clears the bits of what allowed_token_ids and banned_runs exclude at this place.
void Choice::restrict_by_params(std::span<uint32_t> allowed) const {
  const SamplingParams& params = sampler_.params();
  if (!params.allowed_token_ids.empty()) {
    const auto bit = [](int32_t id) { return uint32_t{1} << (static_cast<uint32_t>(id) % 32); };
    std::vector<uint32_t> listed(allowed.size());
    for (const int32_t id : params.allowed_token_ids)
      listed[static_cast<size_t>(id) / 32] |= bit(id);
    for (size_t i = 0; i < allowed.size(); ++i) allowed[i] &= listed[i];
  }
  const std::span<const int32_t> answer =
      std::span(tokens).subspan(static_cast<size_t>(prompt_size));
  for (const std::vector<int32_t>& run : params.banned_runs) {
    const size_t before = run.size() - 1;
    if (answer.size() < before ||
        !std::equal(run.begin(), run.end() - 1, answer.end() - static_cast<std::ptrdiff_t>(before)))
      continue;
    allowed[static_cast<size_t>(run.back()) / 32] &=
        ~(uint32_t{1} << (static_cast<uint32_t>(run.back()) % 32));
  }
}

Result<TokenLogprob> Choice::sample(std::span<const float> logits, SamplerScratch& scratch) {
  std::span<const uint32_t> allowed;
  const SamplingParams& params = sampler_.params();
  if (constraint_ != nullptr || !params.allowed_token_ids.empty() || !params.banned_runs.empty()) {
    scratch.allowed.assign((logits.size() + 31) / 32, ~uint32_t{0});
    if (constraint_ != nullptr) SUB8_RETURN_IF_ERROR(constraint_->restrict_next(scratch.allowed));
    restrict_by_params(scratch.allowed);
    allowed = scratch.allowed;
  }
  SUB8_ASSIGN_OR_RETURN(
      TokenLogprob token,
      sampler_.sample(logits, static_cast<uint32_t>(answer_size()), scratch, allowed));
  if (constraint_ != nullptr) SUB8_RETURN_IF_ERROR(constraint_->accept(token.id));
  return token;
}

TokenEvent Choice::advance(std::span<const float> logits, SamplerScratch& scratch) {
  Result<TokenLogprob> token = sample(logits, scratch);
  if (!token.ok()) return fail(std::move(token).error());
  TokenEvent out = event();
  const int32_t id = token->id;
  out.token = std::move(token).value();
  tokens.push_back(id);
  const SamplingParams& params = sampler_.params();
  const auto listed = [id](const std::vector<int32_t>& ids) {
    return std::find(ids.begin(), ids.end(), id) != ids.end();
  };
  const bool stop_token = listed(params.stop_token_ids);
  if (stop_token) out.stop_token = id;
  if (stop_token || (!params.ignore_eos && listed(end_ids_))) {
    // The token itself is not text, unless asked for.
    finish_ = FinishReason::kStop;
    if (params.include_stop_text) take_text(id, out);
  } else {
    take_text(id, out);
    if (stops_.matched()) {
      finish_ = FinishReason::kStop;
      out.stop = stops_.match();
    } else if (size() >= limit_) {
      finish_ = limited_by_context_ ? FinishReason::kContext : FinishReason::kLength;
    }
  }
  if (over()) out.text += end(finish_).text;
  out.finish = finish_;
  return out;
}

void Choice::take_text(int32_t token, TokenEvent& event) {
  std::string piece = detokenizer_.push(token);
  // Stop strings are not looked for in the text of the first min_tokens tokens.
  event.text =
      answer_size() <= sampler_.params().min_tokens ? std::move(piece) : stops_.push(piece);
}

}  // namespace sub8::engine
