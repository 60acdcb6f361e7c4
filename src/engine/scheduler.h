// Decides which rows a step computes and which pages they live in. Bookkeeping only: no model, no
// sampling, no clock, no threads.
//
// Contract of a step:
//   plan()    picks the rows and gives them slots; may admit waiting sequences and preempt running
//             ones. A second plan() must not follow before commit().
//   (the caller runs the rows)
//   commit()  the rows' K and V are in memory; full pages become findable.
//   (the caller appends sampled tokens to Sequence::tokens, removes what has ended)
// Sequences are removed, paused and resumed only outside plan() .. commit().
//
// Order. Every sequence has a key (arrival moved by priority, then age). Waiting ones are admitted
// strictly by it, and a running one may take pages only from younger ones, so the first in that
// order always goes on and nobody starves.
//
// Rows. Each sequence that lacks one row (it decodes) gets it first; what is left of the budget
// goes to chunks of the others in order. Pages for all known tokens of a sequence are taken when it
// is admitted, one more for every 32 tokens that it generates. When there is none: sequences that
// do not run but hold pages lose them first, then the youngest running one. Who lost them is
// computed again from its tokens, as far as the prefix cache does not have them.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "kernels/linear/op.h"
#include "kvcache/page_pool.h"

namespace sub8::engine {

// A choice of a request as the scheduler sees it; the engine derives from it and owns it.
struct Sequence {
  enum class State : uint8_t { kNew, kWaiting, kRunning, kPaused, kRemoved };

  std::vector<int32_t> tokens;  // prompt, then the answer
  int64_t prompt_size = 0;
  std::pair<double, int64_t> key;  // lower is earlier; never equal for two sequences
  kvcache::RowKeys row_keys;
  // Waits until this one's prompt is computed, to share its pages. Null: nobody. The leader is in
  // the scheduler as long as it is named here.
  const Sequence* leader = nullptr;
  bool use_prefix_cache = true;  // false: every row is computed

  // Written by the scheduler.
  State state = State::kNew;
  int64_t computed = 0;  // leading tokens whose K and V are in the pages
  kvcache::PageTable table;
  int64_t cached = 0;  // tokens found in the prefix cache at the first admission
  bool held = false;   // running, but gets no rows, see hold()
  int preemptions = 0;

  int64_t size() const { return static_cast<int64_t>(tokens.size()); }
  int64_t pending() const { return size() - computed; }
};

// Rows [first, first + count) of a sequence, all of one class.
struct StepPart {
  Sequence* sequence = nullptr;
  int64_t first = 0;
  int64_t count = 0;
  RowClass row_class = RowClass::kPrompt;
};

// Prompt rows of all sequences first. A sequence that is computed again may have a part in both.
struct StepPlan {
  std::vector<StepPart> parts;
  int64_t rows = 0;
  int64_t prompt_rows = 0;
  std::vector<Sequence*> admitted;  // in this step
};

struct SchedulerOptions {
  int64_t max_batch_tokens = 512;  // rows per step
  int max_sequences = 16;          // running at once, at most max_batch_tokens
  int32_t pages = 0;
  bool prefix_cache = true;
};

// Counters since the scheduler was made.
struct SchedulerStats {
  int64_t preemptions = 0;
  int64_t prefix_queries = 0;  // tokens looked up at first admissions
  int64_t prefix_hits = 0;     // of them found
};

class Scheduler {
 public:
  explicit Scheduler(const SchedulerOptions& options);

  // `sequence` waits from now on. The pages of its longest form must fit into the pool.
  void add(Sequence* sequence);
  // Takes it out, whatever its state; its pages are available when this returns.
  void remove(Sequence* sequence);
  // Out of the running ones until resume(); it keeps its pages as long as nobody needs them.
  void pause(Sequence* sequence);
  void resume(Sequence* sequence);

  // A running sequence keeps its place and its pages but gets no rows until release() or until it
  // loses its pages; for a short time. Nothing happens to others.
  void hold(Sequence* sequence);
  void release(Sequence* sequence);

  // Valid until the next call. Has rows unless nothing runs and nothing waits, those aside that
  // are held or follow a paused leader.
  const StepPlan& plan();
  void commit();
  // Between plan() and commit(): the last row of `sequence` in the plan does not count as computed,
  // and is planned again later.
  void withdraw_last_row(const Sequence* sequence);
  // Instead of commit(): the rows could not be run. Nothing of them counts as computed.
  void abandon();

  // Each in order of the key.
  std::span<Sequence* const> waiting() const { return waiting_; }
  std::span<Sequence* const> running() const { return running_; }
  std::span<Sequence* const> paused() const { return paused_; }
  const kvcache::PagePool& pool() const { return pool_; }
  const SchedulerStats& stats() const { return stats_; }

  // The pool's invariants, and that states, lists and tables agree.
  bool check_invariants() const;

 private:
  void plan_decode_rows(int64_t& budget);
  void plan_chunks(int64_t& budget);
  void admit(int64_t& budget);
  void add_rows(Sequence* sequence, int64_t count);
  bool take_pages(Sequence* sequence, int64_t count);
  bool reclaim_idle(const Sequence* requester);
  void drop_pages(Sequence* sequence);

  SchedulerOptions options_;
  kvcache::PagePool pool_;
  std::vector<Sequence*> waiting_, running_, paused_;
  StepPlan plan_;
  std::vector<StepPart> generated_parts_;
  bool planned_ = false;
  SchedulerStats stats_;
};

}  // namespace sub8::engine
