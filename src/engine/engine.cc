#include "engine/engine.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/check.h"

namespace sub8::engine {
namespace {

using namespace std::chrono_literals;

// How long a step waits for constraints that are not ready, all of them together: with others in
// the batch, and where nobody else waits for it.
constexpr std::chrono::microseconds kPatience = 2ms;
constexpr std::chrono::microseconds kPatienceAlone = 20ms;
// How long a choice keeps its place among the running ones while it waits for its constraint.
constexpr auto kHoldPlace = 100ms;

double seconds_between(TimePoint a, TimePoint b) {
  return std::chrono::duration<double>(b - a).count();
}

SchedulerOptions scheduler_options(const EngineOptions& options, const RunnerInfo& runner) {
  SchedulerOptions out;
  out.max_batch_tokens = options.max_batch_tokens;
  out.max_sequences = options.max_sequences;
  out.pages = runner.kv_pages;
  out.prefix_cache = options.prefix_cache;
  return out;
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

Status check_request(const Request& request, const EngineInfo& info) {
  if (request.prompt.empty()) return invalid_argument("the prompt is empty: it has no tokens");
  const auto prompt_size = static_cast<int64_t>(request.prompt.size());
  const SamplingParams& sampling = request.sampling;
  const bool scores_only = sampling.max_tokens == 0;
  if (prompt_size > info.max_model_len || (prompt_size == info.max_model_len && !scores_only)) {
    return invalid_argument(fmt::format(
        "the prompt has {} tokens, but the context holds {} including the answer; "
        "shorten the prompt, or raise --max-model-len if the model's own limit is higher",
        prompt_size, info.max_model_len));
  }
  SUB8_RETURN_IF_ERROR(validate(sampling, info.vocab_size));
  if (scores_only && request.prompt_logprobs < 0) {
    return invalid_argument(
        "max_tokens must be at least 1, got 0 (0 is for scoring a prompt only: with its logprobs)");
  }
  if (request.prompt_logprobs < -1 || request.prompt_logprobs > kMaxTopLogprobs) {
    return invalid_argument(fmt::format("prompt_logprobs must be between 0 and {}, got {}",
                                        kMaxTopLogprobs, request.prompt_logprobs));
  }
  if (request.n < 1 || request.n > kMaxChoices) {
    return invalid_argument(
        fmt::format("n must be between 1 and {}, got {}", kMaxChoices, request.n));
  }
  if (request.priority < -kMaxPriority || request.priority > kMaxPriority) {
    return invalid_argument(fmt::format("priority must be between {} and {}, got {}", -kMaxPriority,
                                        kMaxPriority, request.priority));
  }
  if (request.mode != model::ExecutionMode::kAuto &&
      std::find(info.modes.begin(), info.modes.end(), request.mode) == info.modes.end()) {
    std::string modes = "auto";
    for (const model::ExecutionMode mode : info.modes)
      modes += fmt::format(", {}", model::execution_mode_name(mode));
    return unsupported(
        fmt::format("this model cannot run rows in the execution mode '{}'; it has: {}",
                    model::execution_mode_name(request.mode), modes));
  }
  for (const int32_t id : request.prompt) {
    if (id < 0 || id >= info.vocab_size) {
      return invalid_argument(fmt::format("prompt token {} is outside the model's vocabulary of {}",
                                          id, info.vocab_size));
    }
  }
  const int64_t longest = std::min(
      info.max_model_len,
      prompt_size + std::min(sampling.max_tokens.value_or(info.max_model_len), info.max_model_len));
  const int32_t pages = kvcache::PagePool::pages_needed({}, longest);
  if (pages > info.kv_pages) {
    return resource_exhausted(fmt::format(
        "the request may need {} pages of KV memory ({} tokens each), there are {}; lower "
        "max_tokens or give the cache more memory",
        pages, info.page_tokens, info.kv_pages));
  }
  return {};
}

struct Engine::RequestState {
  Request request;
  RequestSummary summary;
  std::vector<std::unique_ptr<Choice>> choices;
  int open = 0;         // choices that are not over
  bool paused = false;  // by pause()
};

struct Engine::OrderedPart {
  const StepPart* part;
  RequestState* request;
  model::RowGroup group;
};

struct Engine::Wanted {
  Choice* choice;
  const RequestState* request;
  int32_t row;                // of the step
  int64_t prompt_token = -1;  // its logits score this prompt token
  bool sample = false;        // its logits give the next token
};

Engine::Engine(std::unique_ptr<Runner> runner, const Tokenizer& tokenizer,
               std::vector<int32_t> end_ids, const EngineOptions& options)
    : runner_(std::move(runner)),
      tokenizer_(tokenizer),
      options_(options),
      scheduler_(scheduler_options(options, runner_->info())),
      stats_(options.max_model_len) {
  const RunnerInfo& r = runner_->info();
  SUB8_CHECK_LE(options_.max_batch_tokens, r.max_rows);
  SUB8_CHECK_LE(options_.max_model_len, r.max_context);
  SUB8_CHECK(r.max_logit_rows > 0);
  info_.max_model_len = options_.max_model_len;
  info_.vocab_size = r.vocab_size;
  info_.max_batch_tokens = options_.max_batch_tokens;
  info_.max_sequences = options_.max_sequences;
  info_.kv_pages = r.kv_pages;
  info_.page_tokens = kvcache::kPageTokens;
  info_.kv_bytes = r.kv_bytes;
  info_.weight_bytes = r.weight_bytes;
  info_.kv_type = r.kv_type;
  info_.kv_scales = r.kv_scales;
  info_.attention = r.attention;
  info_.prefix_cache = options_.prefix_cache;
  info_.reuse_generated = options_.reuse_generated;
  info_.mode = r.mode;
  info_.modes = r.modes;
  info_.mode_text = r.mode_text;
  info_.end_ids = std::move(end_ids);
  scratch_.resize(static_cast<size_t>(runner_->pool() == nullptr ? 1 : runner_->pool()->size()));
  for (SamplerScratch& scratch : scratch_) scratch.path = r.path;
  update_gauges();
}

Engine::~Engine() = default;

TimePoint Engine::now() const {
  return options_.clock ? options_.clock() : std::chrono::steady_clock::now();
}

Result<RequestId> Engine::submit(Request request) {
  SUB8_RETURN_IF_ERROR(check_request(request, info_));
  const RequestId id = next_id_++;
  enqueue(id, std::move(request));
  return id;
}

void Engine::enqueue(RequestId id, Request request) {
  auto state = std::make_unique<RequestState>();
  if (!request.sampling.seed) request.sampling.seed = draw_seed();
  state->request = std::move(request);
  const Request& r = state->request;
  state->open = r.n;
  state->summary.prompt_tokens = static_cast<int64_t>(r.prompt.size());
  state->summary.seed = *r.sampling.seed;
  state->summary.arrival = now();
  const model::ExecutionMode mode = r.mode == model::ExecutionMode::kAuto ? info_.mode : r.mode;
  state->summary.mode = mode;
  kvcache::RowKeys keys;
  keys.prompt = runner_->row_key(mode, RowClass::kPrompt);
  keys.generated =
      options_.reuse_generated ? keys.prompt : runner_->row_key(mode, RowClass::kGenerated);
  keys.salt = r.cache_salt.empty() ? 0 : std::hash<std::string>{}(r.cache_salt);
  const double arrival =
      std::chrono::duration<double>(state->summary.arrival.time_since_epoch()).count();
  for (int i = 0; i < r.n; ++i) {
    auto choice = std::make_unique<Choice>(id, static_cast<uint32_t>(i), r, info_.max_model_len,
                                           tokenizer_, info_.end_ids);
    choice->key = {arrival + r.priority, id * kMaxChoices + i};
    choice->row_keys = keys;
    choice->use_prefix_cache = r.prompt_logprobs < 0 || i > 0;
    if (i > 0) choice->leader = state->choices.front().get();
    scheduler_.add(choice.get());
    state->choices.push_back(std::move(choice));
  }
  stats_.request_params_n.observe(r.n);
  if (r.sampling.max_tokens)
    stats_.request_params_max_tokens.observe(static_cast<double>(*r.sampling.max_tokens));
  requests_.emplace(id, std::move(state));
  update_gauges();
}

// The batch of a plan, rows of one mode together, and which of its rows' logits are wanted for
// what.
void Engine::assemble(const StepPlan& plan) {
  tokens_.clear();
  positions_.clear();
  slots_.clear();
  attention_.clear();
  wanted_.clear();
  groups_.clear();
  ordered_parts_.clear();
  for (const StepPart& part : plan.parts) {
    RequestState& request = *requests_.at(static_cast<Choice&>(*part.sequence).id());
    ordered_parts_.push_back({&part, &request, {request.summary.mode, part.row_class, part.count}});
  }
  // Within a mode the plan's order: prompt rows first.
  std::stable_sort(
      ordered_parts_.begin(), ordered_parts_.end(),
      [](const OrderedPart& a, const OrderedPart& b) { return a.group.mode < b.group.mode; });
  for (const auto& [planned, owner, group] : ordered_parts_) {
    const StepPart& part = *planned;
    RequestState& request = *owner;
    auto& choice = static_cast<Choice&>(*part.sequence);
    if (!groups_.empty() && groups_.back().mode == group.mode &&
        groups_.back().row_class == group.row_class) {
      groups_.back().rows += group.rows;
    } else {
      groups_.push_back(group);
    }
    const bool scores = request.request.prompt_logprobs >= 0 && choice.index() == 0;
    for (int64_t i = part.first; i < part.first + part.count; ++i) {
      Wanted wanted{&choice, &request, static_cast<int32_t>(tokens_.size())};
      tokens_.push_back(choice.tokens[static_cast<size_t>(i)]);
      positions_.push_back(static_cast<int32_t>(i));
      slots_.push_back(choice.table.slot(i));
      attention_.push_back({choice.table.pages.data(), static_cast<int32_t>(i)});
      if (scores && i + 1 < choice.prompt_size && i >= choice.prompt_logprobs_done) {
        wanted.prompt_token = i + 1;
        choice.prompt_logprobs_done = i + 1;
      }
      wanted.sample = i + 1 == choice.size();
      if (wanted.sample || wanted.prompt_token >= 0) wanted_.push_back(wanted);
    }
  }
}

Status Engine::step(std::vector<TokenEvent>& events) {
  const TimePoint start = now();
  ask_held(events);
  const StepPlan& plan = scheduler_.plan();
  stepped_ = plan.rows > 0;
  if (!stepped_) {
    scheduler_.commit();
    update_gauges();
    return {};
  }
  prepare_admitted(plan, start);
  assemble(plan);
  const TimePoint assembled = now();
  if (Status status = runner_->forward({.tokens = tokens_,
                                        .positions = positions_,
                                        .slots = slots_,
                                        .attention = attention_,
                                        .groups = groups_});
      !status.ok()) {
    scheduler_.abandon();
    return status;
  }
  stats_.model_seconds += seconds_between(assembled, now());
  hold_late();
  scheduler_.commit();
  for (auto& [choice, error] : std::exchange(failed_, {})) fail(*choice, std::move(error), events);
  for (Choice* choice : held_) scheduler_.hold(choice);
  SUB8_RETURN_IF_ERROR(run_head(events));
  ++stats_.steps;
  stats_.computed_rows += plan.rows;
  stats_.iteration_tokens.observe(static_cast<double>(plan.rows));
  (plan.prompt_rows > 0 ? stats_.prompt_seconds : stats_.decode_seconds) +=
      seconds_between(start, now());
  update_gauges();
  return {};
}

// Their constraints are made now, so that what they compute elsewhere runs beside the step.
void Engine::prepare_admitted(const StepPlan& plan, TimePoint time) {
  for (Sequence* sequence : plan.admitted) {
    auto& choice = static_cast<Choice&>(*sequence);
    RequestState& request = *requests_.at(choice.id());
    choice.prepare(request.request);
    if (request.summary.scheduled != TimePoint{}) continue;
    request.summary.scheduled = time;
    request.summary.cached_tokens = sequence->cached;
    stats_.queue_time.observe(seconds_between(request.summary.arrival, time));
  }
}

// Before the rows count as computed: choices that would be sampled but whose constraint is not
// ready leave the step. Their last row is computed again later, with the same result.
void Engine::hold_late() {
  const bool alone = scheduler_.running().size() == 1 && scheduler_.waiting().empty();
  const TimePoint deadline =
      std::chrono::steady_clock::now() + (alone ? kPatienceAlone : kPatience);
  std::erase_if(wanted_, [&](const Wanted& wanted) {
    Choice& choice = *wanted.choice;
    if (!wanted.sample || choice.limit() == choice.prompt_size) return false;
    const auto left = std::chrono::duration_cast<std::chrono::microseconds>(
        deadline - std::chrono::steady_clock::now());
    Result<bool> ready = choice.constraint_ready(std::max(left, 0us));
    if (ready.ok() && *ready) return false;
    scheduler_.withdraw_last_row(&choice);
    if (!ready.ok()) {
      failed_.emplace_back(&choice, std::move(ready).error());
    } else if (choice.held_since == TimePoint{}) {
      choice.held_since = std::chrono::steady_clock::now();
      held_.push_back(&choice);
    }
    return true;
  });
}

// Before a step: who can go on, who failed, and who has kept a place from others long enough.
void Engine::ask_held(std::vector<TokenEvent>& events) {
  const TimePoint time = std::chrono::steady_clock::now();
  std::erase_if(held_, [&](Choice* choice) {
    Result<bool> ready = choice->constraint_ready(0us);
    if (!ready.ok()) {
      failed_.emplace_back(choice, std::move(ready).error());
    } else if (!*ready) {
      if (time - choice->held_since > kHoldPlace) scheduler_.pause(choice);
      return false;
    } else if (!requests_.at(choice->id())->paused) {
      scheduler_.release(choice);
      scheduler_.resume(choice);
    }
    choice->held_since = {};
    return true;
  });
  for (auto& [choice, error] : std::exchange(failed_, {})) fail(*choice, std::move(error), events);
}

void Engine::fail(Choice& choice, Error error, std::vector<TokenEvent>& events) {
  deliver(choice.fail(std::move(error)), now(), events);
}

// Logits, in groups as large as the runner allows; then tokens, on all threads; then events, in
// order.
Status Engine::run_head(std::vector<TokenEvent>& events) {
  const auto group = static_cast<size_t>(runner_->info().max_logit_rows);
  const auto vocab = static_cast<size_t>(info_.vocab_size);
  for (size_t begin = 0; begin < wanted_.size(); begin += group) {
    const size_t count = std::min(group, wanted_.size() - begin);
    wanted_rows_.clear();
    for (size_t i = 0; i < count; ++i) wanted_rows_.push_back(wanted_[begin + i].row);
    const TimePoint start = now();
    SUB8_ASSIGN_OR_RETURN(const std::span<const float> logits, runner_->logits(wanted_rows_));
    const TimePoint computed = now();
    stats_.model_seconds += seconds_between(start, computed);
    step_events_.assign(count, {});
    const auto sample = [&](int64_t first, int64_t last, int thread) {
      for (int64_t i = first; i < last; ++i) {
        const auto at = static_cast<size_t>(i);
        take_logits(wanted_[begin + at], logits.subspan(at * vocab, vocab),
                    scratch_[static_cast<size_t>(thread)], step_events_[at]);
      }
    };
    if (runner_->pool() == nullptr) {
      sample(0, static_cast<int64_t>(count), 0);
    } else {
      runner_->pool()->for_ranges(static_cast<int64_t>(count), 1, sample);
    }
    const TimePoint end = now();
    stats_.sample_seconds += seconds_between(computed, end);
    for (TokenEvent& event : step_events_) deliver(std::move(event), end, events);
  }
  return {};
}

// On any thread of the pool: touches the choice and the event only.
void Engine::take_logits(const Wanted& wanted, std::span<const float> logits,
                         SamplerScratch& scratch, TokenEvent& event) const {
  Choice& choice = *wanted.choice;
  std::vector<TokenLogprob> scores;
  if (wanted.prompt_token >= 0) {
    scores.push_back(token_logprob(scratch.path, logits,
                                   choice.tokens[static_cast<size_t>(wanted.prompt_token)],
                                   wanted.request->request.prompt_logprobs));
  }
  event.id = choice.id();
  event.choice = choice.index();
  if (wanted.sample) {
    event = choice.limit() == choice.prompt_size ? choice.end(FinishReason::kLength)
                                                 : choice.advance(logits, scratch);
  }
  event.prompt_logprobs = std::move(scores);
}

// Completes an event, counts it, and hands it out. Ends of choices happen here.
void Engine::deliver(TokenEvent event, TimePoint time, std::vector<TokenEvent>& events) {
  RequestState& request = *requests_.at(event.id);
  Choice& choice = *request.choices[event.choice];
  event.time = time;
  if (event.token) count_token(request, choice, time);
  // Neighbouring scores of a prompt travel in one event.
  if (!event.token && event.finish == FinishReason::kRunning && !events.empty() &&
      events.back().id == event.id && !events.back().token &&
      events.back().finish == FinishReason::kRunning && events.back().choice == event.choice) {
    auto& scores = events.back().prompt_logprobs;
    std::move(event.prompt_logprobs.begin(), event.prompt_logprobs.end(),
              std::back_inserter(scores));
    return;
  }
  const bool over = event.finish != FinishReason::kRunning;
  const RequestId id = event.id;
  if (over) count_end(request, choice, event);
  events.push_back(std::move(event));
  if (!over) return;
  scheduler_.remove(&choice);
  if (choice.held_since != TimePoint{}) std::erase(held_, &choice);
  if (request.open == 0) requests_.erase(id);
}

void Engine::count_token(RequestState& request, Choice& choice, TimePoint time) {
  ++stats_.generation_tokens;
  ++request.summary.completion_tokens;
  if (choice.last_token != TimePoint{}) {
    stats_.inter_token_latency.observe(seconds_between(choice.last_token, time));
  } else {
    stats_.prompt_tokens += choice.prompt_size;
    stats_.cached_prompt_tokens += choice.cached;
    if (request.summary.first_token == TimePoint{}) {
      request.summary.first_token = time;
      stats_.time_to_first_token.observe(seconds_between(request.summary.arrival, time));
      stats_.prefill_time.observe(seconds_between(request.summary.scheduled, time));
    }
  }
  choice.last_token = time;
}

void Engine::count_end(RequestState& request, const Choice& choice, TokenEvent& event) {
  ++stats_.finished[static_cast<size_t>(event.finish)];
  request.summary.preemptions += choice.preemptions;
  if (--request.open > 0) return;
  RequestSummary& s = request.summary;
  s.finished = event.time;
  event.summary = s;
  if (event.finish == FinishReason::kCancelled || event.finish == FinishReason::kError) return;
  stats_.e2e_latency.observe(seconds_between(s.arrival, s.finished));
  stats_.inference_time.observe(seconds_between(s.scheduled, s.finished));
  stats_.request_prompt_tokens.observe(static_cast<double>(s.prompt_tokens));
  stats_.request_generation_tokens.observe(static_cast<double>(s.completion_tokens));
  if (s.first_token == TimePoint{}) return;
  const double decode = seconds_between(s.first_token, s.finished);
  stats_.decode_time.observe(decode);
  const int64_t longest = s.completion_tokens / request.request.n;
  if (longest > 1) stats_.time_per_output_token.observe(decode / static_cast<double>(longest - 1));
}

void Engine::cancel(RequestId id, std::vector<TokenEvent>& events) {
  const auto it = requests_.find(id);
  if (it == requests_.end()) return;
  const TimePoint time = now();
  std::vector<Choice*> open;
  for (const auto& choice : it->second->choices) {
    if (!choice->over()) open.push_back(choice.get());
  }
  for (Choice* choice : open) deliver(choice->end(FinishReason::kCancelled), time, events);
  update_gauges();
}

void Engine::end_all(const Error* error, std::vector<TokenEvent>& events) {
  std::vector<Choice*> open;
  for (const auto& [id, request] : requests_) {
    for (const auto& choice : request->choices) {
      if (!choice->over()) open.push_back(choice.get());
    }
  }
  const TimePoint time = now();
  for (Choice* choice : open) {
    deliver(error == nullptr ? choice->end(FinishReason::kCancelled) : choice->fail(*error), time,
            events);
  }
  update_gauges();
}

void Engine::pause(RequestId id) {
  const auto it = requests_.find(id);
  if (it == requests_.end()) return;
  it->second->paused = true;
  for (const auto& choice : it->second->choices) scheduler_.pause(choice.get());
  update_gauges();
}

void Engine::resume(RequestId id) {
  const auto it = requests_.find(id);
  if (it == requests_.end()) return;
  it->second->paused = false;
  for (const auto& choice : it->second->choices) {
    // One that waits for its constraint goes on when that is ready.
    if (choice->held_since == TimePoint{}) scheduler_.resume(choice.get());
  }
  update_gauges();
}

void Engine::update_gauges() {
  stats_.running = static_cast<int>(scheduler_.running().size());
  stats_.paused = static_cast<int>(scheduler_.paused().size());
  stats_.waiting = static_cast<int>(scheduler_.waiting().size()) + stats_.paused;
  const kvcache::PagePool& pool = scheduler_.pool();
  stats_.kv_pages = pool.total();
  stats_.kv_pages_used = pool.used();
  stats_.kv_pages_cached = pool.cached();
  stats_.kv_pages_free = pool.free();
  stats_.preemptions = scheduler_.stats().preemptions;
  stats_.prefix_cache_queries = scheduler_.stats().prefix_queries;
  stats_.prefix_cache_hits = scheduler_.stats().prefix_hits;
}

bool Engine::check_invariants() const { return scheduler_.check_invariants(); }

}  // namespace sub8::engine
