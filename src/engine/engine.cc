#include "engine/engine.h"

#include <algorithm>
#include <chrono>

#include <fmt/format.h>

#include "base/check.h"

namespace sub8::engine {
namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

std::string_view finish_reason_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kRunning:
      return "running";
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kContext:
      return "context";
    case FinishReason::kCancelled:
      return "cancelled";
    case FinishReason::kError:
      return "error";
  }
  return "error";
}

struct Engine::Sequence {
  Sequence(RequestId request_id, Request&& request, const Tokenizer& tokenizer,
           const std::vector<int32_t>& end_ids)
      : id(request_id),
        tokens(std::move(request.prompt)),
        prompt_size(static_cast<int64_t>(tokens.size())),
        sampler(std::move(request.sampling), tokens, end_ids),
        detokenizer(tokenizer, request.skip_special),
        stops(sampler.params().stop) {}

  int64_t size() const { return static_cast<int64_t>(tokens.size()); }
  int64_t answer_size() const { return size() - prompt_size; }
  bool decoding() const { return computed >= prompt_size; }

  RequestId id;
  std::vector<int32_t> tokens;  // prompt, then the answer
  int64_t prompt_size;
  int64_t computed = 0;  // tokens whose K and V are in the cache
  int64_t limit = 0;     // tokens at which it must end
  bool limited_by_context = false;
  kvcache::PageTable table;
  Sampler sampler;
  Detokenizer detokenizer;
  StopMatcher stops;
};

// The rows of a step: prompt chunks first, then one row for each decoding sequence.
struct Engine::Plan {
  struct Part {
    Sequence* sequence;
    int64_t count;
  };
  std::vector<Part> parts;
  int64_t prompt_rows = 0;
};

Engine::Engine(std::unique_ptr<model::Model> model, const Tokenizer& tokenizer,
               std::vector<int32_t> end_ids, const EngineOptions& options)
    : model_(std::move(model)),
      tokenizer_(tokenizer),
      end_ids_(std::move(end_ids)),
      options_(options),
      pool_(model_->options().kv_pages) {
  SUB8_CHECK_LE(options_.max_batch_tokens, model_->options().max_rows);
  SUB8_CHECK_LE(options_.max_sequences, model_->options().max_logit_rows);
  SUB8_CHECK_LE(options_.max_sequences, options_.max_batch_tokens);
  SUB8_CHECK_LE(options_.max_model_len, model_->options().max_context);
  reuse_generated_ = model_->same_order_for_all_rows();
}

Engine::~Engine() = default;

Result<RequestId> Engine::submit(Request request) {
  if (request.prompt.empty()) return invalid_argument("the prompt is empty: it has no tokens");
  const auto prompt_size = static_cast<int64_t>(request.prompt.size());
  if (prompt_size >= options_.max_model_len) {
    return invalid_argument(
        fmt::format("the prompt has {} tokens, but the context holds {} including the answer; "
                    "shorten the prompt or raise --max-model-len",
                    prompt_size, options_.max_model_len));
  }
  SUB8_RETURN_IF_ERROR(validate(request.sampling, model_->config().vocab_size));
  for (const int32_t id : request.prompt) {
    if (id < 0 || id >= model_->config().vocab_size) {
      return invalid_argument(fmt::format("prompt token {} is outside the model's vocabulary of {}",
                                          id, model_->config().vocab_size));
    }
  }
  if (!request.sampling.seed) request.sampling.seed = draw_seed();
  auto sequence = std::make_unique<Sequence>(next_id_, std::move(request), tokenizer_, end_ids_);
  const auto& max_tokens = sequence->sampler.params().max_tokens;
  sequence->limit = options_.max_model_len;
  sequence->limited_by_context = true;
  if (max_tokens && *max_tokens <= options_.max_model_len - prompt_size) {
    sequence->limit = prompt_size + *max_tokens;
    sequence->limited_by_context = false;
  }
  const int32_t pages = kvcache::PagePool::pages_needed({}, sequence->limit);
  if (pages > pool_.total()) {
    return resource_exhausted(
        fmt::format("the request needs {} pages of KV memory, there are {}", pages, pool_.total()));
  }
  waiting_.push_back(std::move(sequence));
  return next_id_++;
}

// Moves the first waiting sequence to the running ones if its pages are to be had.
bool Engine::admit() {
  if (waiting_.empty() || static_cast<int>(running_.size()) >= options_.max_sequences) return false;
  Sequence& next = *waiting_.front();
  if (retained_ != nullptr) {
    // The common beginning with the retained sequence is kept, less the last token, which must be
    // run for its logits.
    const int64_t usable = reuse_generated_ ? retained_->computed
                                            : std::min(retained_->computed, retained_->prompt_size);
    int64_t common = 0;
    while (common < std::min(usable, next.size() - 1) &&
           retained_->tokens[static_cast<size_t>(common)] ==
               next.tokens[static_cast<size_t>(common)]) {
      ++common;
    }
    if (common > 0) {
      pool_.truncate(retained_->table, common);
      next.table = std::exchange(retained_->table, {});
      next.computed = common;
      stats_.cached_prompt_tokens += common;
      retained_.reset();
    }
  }
  const int64_t missing = next.limit - next.table.tokens;
  if (!pool_.extend(next.table, missing)) {
    drop_retained();
    if (!pool_.extend(next.table, missing)) return false;
  }
  running_.push_back(std::move(waiting_.front()));
  waiting_.pop_front();
  return true;
}

Engine::Plan Engine::plan() const {
  Plan out;
  int64_t decoding = 0;
  for (const auto& sequence : running_) decoding += sequence->decoding() ? 1 : 0;
  int64_t budget = options_.max_batch_tokens - decoding;
  for (const auto& sequence : running_) {
    if (sequence->decoding() || budget == 0) continue;
    const int64_t count = std::min(budget, sequence->prompt_size - sequence->computed);
    out.parts.push_back({sequence.get(), count});
    out.prompt_rows += count;
    budget -= count;
  }
  for (const auto& sequence : running_) {
    if (sequence->decoding()) out.parts.push_back({sequence.get(), 1});
  }
  return out;
}

Status Engine::step(std::vector<TokenEvent>& events) {
  while (admit()) {
  }
  const Plan current = plan();
  if (current.parts.empty()) return {};
  const auto start = std::chrono::steady_clock::now();
  SUB8_RETURN_IF_ERROR(run(current, events));
  (current.prompt_rows > 0 ? stats_.prompt_seconds : stats_.decode_seconds) += seconds_since(start);
  return {};
}

Status Engine::run(const Plan& plan, std::vector<TokenEvent>& events) {
  std::vector<int32_t> tokens;
  std::vector<int32_t> positions;
  std::vector<int64_t> slots;
  std::vector<kernels::AttentionRow> attention;
  std::vector<int32_t> wanted;
  std::vector<Sequence*> sampled;
  for (const Plan::Part& part : plan.parts) {
    Sequence& s = *part.sequence;
    for (int64_t i = s.computed; i < s.computed + part.count; ++i) {
      tokens.push_back(s.tokens[static_cast<size_t>(i)]);
      positions.push_back(static_cast<int32_t>(i));
      slots.push_back(s.table.slot(i));
      attention.push_back({s.table.pages.data(), static_cast<int32_t>(i)});
    }
    if (s.computed + part.count == s.size()) {
      wanted.push_back(static_cast<int32_t>(tokens.size()) - 1);
      sampled.push_back(&s);
    }
  }
  SUB8_RETURN_IF_ERROR(model_->forward({tokens, positions, slots, attention, plan.prompt_rows}));
  for (const Plan::Part& part : plan.parts) part.sequence->computed += part.count;
  stats_.prompt_tokens += plan.prompt_rows;
  if (wanted.empty()) return {};
  SUB8_ASSIGN_OR_RETURN(const std::span<const float> logits, model_->logits(wanted));
  const auto vocab = static_cast<size_t>(model_->config().vocab_size);
  for (size_t i = 0; i < sampled.size(); ++i) {
    events.push_back(advance(*sampled[i], logits.subspan(i * vocab, vocab)));
    if (events.back().finish != FinishReason::kRunning) retire(*sampled[i]);
  }
  return {};
}

// Samples the next token of a sequence and decides whether it ends.
TokenEvent Engine::advance(Sequence& s, std::span<const float> logits) {
  TokenEvent event;
  event.id = s.id;
  Result<TokenLogprob> token = s.sampler.sample(logits, static_cast<uint32_t>(s.answer_size()));
  if (!token.ok()) {
    event.finish = FinishReason::kError;
    event.error = token.error();
    return event;
  }
  const int32_t id = token->id;
  event.token = std::move(token).value();
  s.tokens.push_back(id);
  ++stats_.generated_tokens;
  const SamplingParams& params = s.sampler.params();
  const auto listed = [id](const std::vector<int32_t>& ids) {
    return std::find(ids.begin(), ids.end(), id) != ids.end();
  };
  if ((!params.ignore_eos && listed(end_ids_)) || listed(params.stop_token_ids)) {
    event.finish = FinishReason::kStop;  // the token itself is not text
  } else {
    event.text = s.stops.push(s.detokenizer.push(id));
    if (s.stops.matched()) {
      event.finish = FinishReason::kStop;
      event.stop = s.stops.match();
    } else if (s.size() >= s.limit) {
      event.finish = s.limited_by_context ? FinishReason::kContext : FinishReason::kLength;
    }
  }
  if (event.finish != FinishReason::kRunning && !s.stops.matched()) {
    event.text += s.stops.push(s.detokenizer.finish());
    event.text += s.stops.finish();
  }
  return event;
}

// Takes a finished sequence out of the running ones and keeps it for the next request.
void Engine::retire(Sequence& sequence) {
  const auto it = std::find_if(running_.begin(), running_.end(),
                               [&](const auto& s) { return s.get() == &sequence; });
  SUB8_CHECK(it != running_.end());
  drop_retained();
  retained_ = std::move(*it);
  running_.erase(it);
  // Slots that were reserved for tokens that never came.
  pool_.truncate(retained_->table, retained_->computed);
}

void Engine::drop_retained() {
  if (retained_ == nullptr) return;
  pool_.release(retained_->table);
  retained_.reset();
}

void Engine::cancel(RequestId id) {
  const auto matches = [id](const auto& s) { return s->id == id; };
  if (const auto it = std::find_if(waiting_.begin(), waiting_.end(), matches);
      it != waiting_.end()) {
    pool_.release((*it)->table);
    waiting_.erase(it);
  }
  if (const auto it = std::find_if(running_.begin(), running_.end(), matches); it != running_.end())
    retire(**it);
}

int32_t Engine::available_pages() const {
  return pool_.available() +
         (retained_ == nullptr ? 0 : static_cast<int32_t>(retained_->table.pages.size()));
}

bool Engine::check_invariants() const {
  std::vector<const kvcache::PageTable*> tables;
  for (const auto& s : waiting_) tables.push_back(&s->table);
  for (const auto& s : running_) tables.push_back(&s->table);
  if (retained_ != nullptr) tables.push_back(&retained_->table);
  return pool_.check_invariants(tables);
}

}  // namespace sub8::engine
