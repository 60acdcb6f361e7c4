// Runs requests over a model: continuous batching over a paged KV cache with a prefix cache.
//
// step() plans one batch of token rows (scheduler.h), runs it, samples, and reports what happened.
// What a request produces depends on it alone: not on its neighbours in the batch, on chunks, on
// preemption, or on what the prefix cache held.
//
// Not thread-safe: one thread drives an engine. service.h gives it a thread of its own.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/error.h"
#include "engine/choice.h"
#include "engine/request.h"
#include "engine/runner.h"
#include "engine/scheduler.h"
#include "engine/stats.h"
#include "text/tokenizer.h"

namespace sub8::engine {

struct EngineOptions {
  int64_t max_model_len = 0;       // longest prompt + answer, in tokens
  int64_t max_batch_tokens = 512;  // rows per step; at most the runner's max_rows
  int max_sequences = 16;          // choices that run at once; at most max_batch_tokens
  bool prefix_cache = true;
  // Lets prompts use cached pages that hold generated rows, also where these are summed in another
  // order: results then depend, in the last bits, on what the cache holds.
  bool reuse_generated = false;
  std::function<TimePoint()> clock;  // empty: std::chrono::steady_clock
};

// What is fixed once the engine is made.
struct EngineInfo {
  int64_t max_model_len = 0;  // longest prompt + answer, in tokens
  int64_t vocab_size = 0;
  int64_t max_batch_tokens = 0;  // rows per step
  int max_sequences = 0;         // choices that run at once
  int32_t kv_pages = 0;
  int page_tokens = 0;
  int64_t kv_bytes = 0;
  int64_t weight_bytes = 0;
  // Of the KV cache over all layers.
  int64_t kv_token_bytes() const {
    return kv_pages == 0 ? 0 : kv_bytes / (int64_t{kv_pages} * page_tokens);
  }
  std::string kv_type;  // "bf16", ...
  std::string
      kv_scales;  // of fp8 and nvfp4 pages: "calibrated", "of the checkpoint", "1"; or empty
  std::string attention;  // of generated rows: "16-bit", "resattn", ...
  bool prefix_cache = false;
  bool reuse_generated = false;
  model::ExecutionMode mode{};              // what kAuto means here
  std::vector<model::ExecutionMode> modes;  // what a request may ask for, besides kAuto
  std::string mode_text;                    // `mode` in words, with the ratios in force
  std::vector<int32_t> end_ids;             // end-of-sequence tokens
};

// What is wrong with a request, if anything: an empty prompt, one that leaves no room for an
// answer, values out of range, a mode that the model cannot run, more KV memory than there is. The
// message names the field and the limit.
Status check_request(const Request& request, const EngineInfo& info);

class Engine {
 public:
  // `end_ids`: the model's end-of-sequence tokens. The tokenizer must outlive the engine.
  Engine(std::unique_ptr<Runner> runner, const Tokenizer& tokenizer, std::vector<int32_t> end_ids,
         const EngineOptions& options);
  ~Engine();

  const EngineInfo& info() const { return info_; }

  // Checks a request and queues it. A seed is drawn when there is none.
  Result<RequestId> submit(Request request);
  // The same for a request that passed check_request(), under a number that the caller chose. Not
  // to be mixed with submit().
  void enqueue(RequestId id, Request request);

  // Runs one step and appends what happened. Failures of a single request arrive as its event; an
  // error returned here means that the engine cannot go on.
  Status step(std::vector<TokenEvent>& events);

  // Ends a request; its pages are free when this returns. Appends a last event for each choice that
  // was not over. Unknown ids are ignored.
  void cancel(RequestId id, std::vector<TokenEvent>& events);
  // Ends all requests: with `error`, or as cancelled if it is null.
  void end_all(const Error* error, std::vector<TokenEvent>& events);

  // Takes a request out of the steps until resume(). It may lose its pages meanwhile.
  void pause(RequestId id);
  void resume(RequestId id);

  // No request is left.
  bool idle() const { return requests_.empty(); }
  // A step would do something: not all requests are paused. It may do nothing where holds().
  bool has_work() const {
    return !scheduler_.running().empty() || !scheduler_.waiting().empty() || holds();
  }
  // Some choice waits for its constraint, outside the steps; step() asks it again.
  bool holds() const { return !held_.empty(); }
  // The last step had rows.
  bool stepped() const { return stepped_; }

  // Counters, and the gauges of now.
  const Stats& stats() const { return stats_; }
  bool check_invariants() const;

 private:
  struct RequestState;
  struct Wanted;       // a row whose logits are wanted
  struct OrderedPart;  // a part of the plan, where it goes in the batch

  TimePoint now() const;
  void assemble(const StepPlan& plan);
  void prepare_admitted(const StepPlan& plan, TimePoint time);
  void hold_late();
  void ask_held(std::vector<TokenEvent>& events);
  void fail(Choice& choice, Error error, std::vector<TokenEvent>& events);
  Status run_head(std::vector<TokenEvent>& events);
  void take_logits(const Wanted& wanted, std::span<const float> logits, SamplerScratch& scratch,
                   TokenEvent& event) const;
  void deliver(TokenEvent event, TimePoint time, std::vector<TokenEvent>& events);
  void count_token(RequestState& request, Choice& choice, TimePoint time);
  void count_end(RequestState& request, const Choice& choice, TokenEvent& event);
  void update_gauges();

  std::unique_ptr<Runner> runner_;
  const Tokenizer& tokenizer_;
  EngineOptions options_;
  EngineInfo info_;
  Scheduler scheduler_;
  RequestId next_id_ = 1;
  std::unordered_map<RequestId, std::unique_ptr<RequestState>> requests_;
  Stats stats_;
  std::vector<Choice*> held_;  // whose constraint was not ready
  bool stepped_ = false;

  // The step's batch; kept for their memory.
  std::vector<int32_t> tokens_, positions_, wanted_rows_;
  std::vector<int64_t> slots_;
  std::vector<kernels::AttentionRow> attention_;
  std::vector<Wanted> wanted_;
  std::vector<OrderedPart> ordered_parts_;
  std::vector<model::RowGroup> groups_;
  std::vector<TokenEvent> step_events_;
  std::vector<std::pair<Choice*, Error>> failed_;  // by their constraint
  std::vector<SamplerScratch> scratch_;            // per thread
};

}  // namespace sub8::engine
