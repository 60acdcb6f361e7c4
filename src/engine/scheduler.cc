#include "engine/scheduler.h"

#include <algorithm>

#include "base/check.h"

namespace sub8::engine {
namespace {

using State = Sequence::State;

void insert(std::vector<Sequence*>& list, Sequence* sequence) {
  const auto at =
      std::upper_bound(list.begin(), list.end(), sequence,
                       [](const Sequence* a, const Sequence* b) { return a->key < b->key; });
  list.insert(at, sequence);
}

void erase(std::vector<Sequence*>& list, Sequence* sequence) {
  const auto at = std::find(list.begin(), list.end(), sequence);
  SUB8_CHECK(at != list.end());
  list.erase(at);
}

}  // namespace

Scheduler::Scheduler(const SchedulerOptions& options) : options_(options), pool_(options.pages) {
  SUB8_CHECK_LE(options.max_sequences, options.max_batch_tokens);
  SUB8_CHECK(options.max_sequences > 0);
}

void Scheduler::add(Sequence* sequence) {
  SUB8_CHECK(sequence->state == State::kNew && !sequence->tokens.empty());
  sequence->state = State::kWaiting;
  insert(waiting_, sequence);
}

void Scheduler::remove(Sequence* sequence) {
  SUB8_CHECK(!planned_);
  switch (sequence->state) {
    case State::kWaiting:
      erase(waiting_, sequence);
      break;
    case State::kRunning:
      erase(running_, sequence);
      break;
    case State::kPaused:
      erase(paused_, sequence);
      break;
    case State::kNew:
    case State::kRemoved:
      return;
  }
  pool_.release(sequence->table);
  sequence->state = State::kRemoved;
  for (const auto* list : {&waiting_, &paused_}) {
    for (Sequence* s : *list) {
      if (s->leader == sequence) s->leader = nullptr;
    }
  }
}

void Scheduler::pause(Sequence* sequence) {
  SUB8_CHECK(!planned_);
  if (sequence->state != State::kWaiting && sequence->state != State::kRunning) return;
  erase(sequence->state == State::kWaiting ? waiting_ : running_, sequence);
  insert(paused_, sequence);
  sequence->state = State::kPaused;
  sequence->held = false;
}

void Scheduler::resume(Sequence* sequence) {
  SUB8_CHECK(!planned_);
  if (sequence->state != State::kPaused) return;
  erase(paused_, sequence);
  insert(waiting_, sequence);
  sequence->state = State::kWaiting;
}

void Scheduler::hold(Sequence* sequence) { sequence->held = sequence->state == State::kRunning; }

void Scheduler::release(Sequence* sequence) { sequence->held = false; }

// The sequence is computed again from its tokens when its turn comes.
void Scheduler::drop_pages(Sequence* sequence) {
  pool_.release(sequence->table);
  sequence->computed = 0;
  ++sequence->preemptions;
  ++stats_.preemptions;
}

// Takes the pages of the youngest sequence that holds some without running. False if there is none.
bool Scheduler::reclaim_idle(const Sequence* requester) {
  for (const auto* list : {&paused_, &waiting_}) {
    for (auto it = list->rbegin(); it != list->rend(); ++it) {
      if (*it == requester || (*it)->table.pages.empty()) continue;
      drop_pages(*it);
      return true;
    }
  }
  return false;
}

// Extends the table of a running sequence; younger ones make room. False: it is itself the youngest
// and there is no room.
bool Scheduler::take_pages(Sequence* sequence, int64_t count) {
  while (!pool_.extend(sequence->table, count)) {
    if (reclaim_idle(sequence)) continue;
    Sequence* victim = running_.back();
    drop_pages(victim);
    running_.pop_back();
    victim->state = State::kWaiting;
    victim->held = false;
    insert(waiting_, victim);
    if (victim == sequence) return false;
  }
  return true;
}

void Scheduler::add_rows(Sequence* sequence, int64_t count) {
  const int64_t first = sequence->computed;
  const int64_t prompt = std::clamp<int64_t>(sequence->prompt_size - first, 0, count);
  if (prompt > 0) plan_.parts.push_back({sequence, first, prompt, RowClass::kPrompt});
  if (prompt < count) {
    generated_parts_.push_back({sequence, first + prompt, count - prompt, RowClass::kGenerated});
  }
  plan_.rows += count;
  plan_.prompt_rows += prompt;
}

void Scheduler::plan_decode_rows(int64_t& budget) {
  // running_ is in order of the key and shrinks from its end only.
  for (size_t i = 0; i < running_.size(); ++i) {
    Sequence* s = running_[i];
    if (s->held || s->pending() != 1) continue;
    if (s->table.tokens < s->size() && !take_pages(s, s->size() - s->table.tokens)) break;
    add_rows(s, 1);
    --budget;
  }
}

void Scheduler::plan_chunks(int64_t& budget) {
  for (Sequence* s : running_) {
    if (budget == 0) return;
    if (s->held || s->pending() <= 1) continue;
    const int64_t count = std::min(budget, s->pending());
    add_rows(s, count);
    budget -= count;
  }
}

void Scheduler::admit(int64_t& budget) {
  size_t next = 0;
  while (budget > 0 && next < waiting_.size() &&
         static_cast<int>(running_.size()) < options_.max_sequences) {
    Sequence* s = waiting_[next];
    if (s->leader != nullptr) {
      if (options_.prefix_cache && s->leader->computed < s->leader->prompt_size) {
        ++next;  // the one exception to the order: its prompt is on its way
        continue;
      }
      s->leader = nullptr;
    }
    const bool fresh = s->table.pages.empty();
    if (fresh && options_.prefix_cache && s->use_prefix_cache) {
      // The last token is always computed: its logits are wanted.
      s->computed = pool_.adopt(s->table, s->tokens, s->prompt_size, s->size() - 1, s->row_keys);
    }
    // Every running sequence may soon need a page: without that reserve, who is admitted last would
    // be preempted at once.
    const int64_t missing = s->size() - s->table.tokens;
    const int64_t wanted =
        kvcache::PagePool::pages_needed(s->table, missing) + static_cast<int64_t>(running_.size());
    while (pool_.available() < wanted && reclaim_idle(s)) {
    }
    if (pool_.available() < wanted) {
      if (fresh) {
        pool_.release(s->table);
        s->computed = 0;
      }
      return;
    }
    SUB8_CHECK(pool_.extend(s->table, missing));
    if (fresh && s->preemptions == 0) {
      s->cached = s->computed;
      if (options_.prefix_cache && s->use_prefix_cache) {
        stats_.prefix_queries += s->size();
        stats_.prefix_hits += s->cached;
      }
    }
    waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(next));
    insert(running_, s);
    s->state = State::kRunning;
    plan_.admitted.push_back(s);
    const int64_t count = std::min(budget, s->pending());
    add_rows(s, count);
    budget -= count;
  }
}

const StepPlan& Scheduler::plan() {
  SUB8_CHECK(!planned_);
  planned_ = true;
  plan_ = {std::move(plan_.parts), 0, 0, std::move(plan_.admitted)};
  plan_.parts.clear();
  plan_.admitted.clear();
  generated_parts_.clear();
  int64_t budget = options_.max_batch_tokens;
  plan_decode_rows(budget);
  plan_chunks(budget);
  admit(budget);
  plan_.parts.insert(plan_.parts.end(), generated_parts_.begin(), generated_parts_.end());
  return plan_;
}

void Scheduler::withdraw_last_row(const Sequence* sequence) {
  SUB8_CHECK(planned_);
  // Prompt rows stand before generated ones.
  const auto part = std::find_if(plan_.parts.rbegin(), plan_.parts.rend(),
                                 [&](const StepPart& p) { return p.sequence == sequence; });
  SUB8_CHECK(part != plan_.parts.rend());
  --part->count;
}

void Scheduler::commit() {
  SUB8_CHECK(planned_);
  planned_ = false;
  for (const StepPart& part : plan_.parts) part.sequence->computed += part.count;
  if (!options_.prefix_cache) return;
  for (const StepPart& part : plan_.parts) {
    Sequence& s = *part.sequence;
    pool_.publish(s.table, s.tokens, s.prompt_size, s.computed, s.row_keys);
  }
}

void Scheduler::abandon() {
  SUB8_CHECK(planned_);
  planned_ = false;
}

bool Scheduler::check_invariants() const {
  std::vector<const kvcache::PageTable*> tables;
  const auto agree = [&](const std::vector<Sequence*>& list, State state) {
    for (size_t i = 0; i < list.size(); ++i) {
      const Sequence& s = *list[i];
      if (s.state != state || (s.held && state != State::kRunning)) return false;
      if ((i > 0 && !(list[i - 1]->key < s.key))) return false;
      if (s.computed > s.table.tokens || s.table.tokens > s.size() || s.computed >= s.size())
        return false;
      tables.push_back(&s.table);
    }
    return true;
  };
  return agree(waiting_, State::kWaiting) && agree(running_, State::kRunning) &&
         agree(paused_, State::kPaused) &&
         static_cast<int>(running_.size()) <= options_.max_sequences &&
         pool_.check_invariants(tables);
}

}  // namespace sub8::engine
