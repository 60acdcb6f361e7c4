// Runs requests over a model: sequences over a paged KV cache, many token rows per step, one
// sampler per sequence.
//
// step() plans one batch (a row for every sequence that is decoding, then prompt chunks of waiting
// ones up to the token budget), runs it, samples, and reports what happened. A request's pages for
// its prompt and longest answer are taken when it is admitted, so a running request never lacks
// memory. What a request produces depends on it alone, not on its neighbours in the batch.
//
// Not thread-safe: one thread drives an engine.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "engine/request.h"
#include "engine/sampler.h"
#include "engine/stop_matcher.h"
#include "kvcache/page_pool.h"
#include "model/model.h"
#include "text/detokenizer.h"
#include "text/tokenizer.h"

namespace sub8::engine {

struct EngineOptions {
  int64_t max_model_len = 0;       // longest prompt + answer, in tokens
  int64_t max_batch_tokens = 512;  // rows per step; at most the model's max_rows
  int max_sequences = 16;          // at most the model's max_logit_rows
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
  std::string kv_type;  // "bf16", ...
  bool prefix_cache = false;
  model::ExecutionMode mode{};              // what kAuto means here
  std::vector<model::ExecutionMode> modes;  // what a request may ask for, kAuto included
  std::vector<int32_t> end_ids;             // end-of-sequence tokens
};

// Counters since the engine was made.
struct EngineStats {
  int64_t prompt_tokens = 0;         // computed
  int64_t cached_prompt_tokens = 0;  // reused from the previous request
  int64_t generated_tokens = 0;
  double prompt_seconds = 0;  // steps that held prompt rows
  double decode_seconds = 0;  // the other steps
};

class Engine {
 public:
  // `end_ids`: the model's end-of-sequence tokens. The tokenizer must outlive the engine; the model
  // is owned.
  Engine(std::unique_ptr<model::Model> model, const Tokenizer& tokenizer,
         std::vector<int32_t> end_ids, const EngineOptions& options);
  ~Engine();

  // Checks the request and queues it. Errors name the limit: an empty prompt, one that leaves no
  // room for an answer, sampling values out of range. A seed is drawn when there is none.
  Result<RequestId> submit(Request request);

  // Runs one step and appends what happened. Failures of a single request arrive as its event; an
  // error returned here means the engine itself failed.
  Status step(std::vector<TokenEvent>& events);

  // Ends a request now; its pages are free when this returns. Unknown ids are ignored.
  void cancel(RequestId id);

  bool idle() const { return waiting_.empty() && running_.empty(); }
  const EngineStats& stats() const { return stats_; }
  const model::Model& model() const { return *model_; }
  const EngineOptions& options() const { return options_; }
  // Free pages, the retained ones included; for tests: equals the total when idle.
  int32_t available_pages() const;
  bool check_invariants() const;

 private:
  struct Sequence;
  struct Plan;
  bool admit();
  Plan plan() const;
  Status run(const Plan& plan, std::vector<TokenEvent>& events);
  TokenEvent advance(Sequence& sequence, std::span<const float> logits);
  void retire(Sequence& sequence);
  void drop_retained();

  std::unique_ptr<model::Model> model_;
  const Tokenizer& tokenizer_;
  std::vector<int32_t> end_ids_;
  EngineOptions options_;
  kvcache::PagePool pool_;
  RequestId next_id_ = 1;
  std::deque<std::unique_ptr<Sequence>> waiting_;
  std::vector<std::unique_ptr<Sequence>> running_;
  // The last finished sequence keeps its pages until they are needed: the next turn of a chat
  // starts where it ended.
  std::unique_ptr<Sequence> retained_;
  bool reuse_generated_ = false;  // prompt and generated rows are computed in the same order
  EngineStats stats_;
};

}  // namespace sub8::engine
