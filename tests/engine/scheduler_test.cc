// Which rows a step gets, and whose pages.
#include "engine/scheduler.h"

#include <algorithm>

#include <gtest/gtest.h>

namespace sub8::engine {
namespace {

struct Sequences {
  Scheduler scheduler;
  std::vector<std::unique_ptr<Sequence>> owned;

  explicit Sequences(SchedulerOptions options) : scheduler(options) {}

  Sequence* add(int64_t prompt, double arrival, int32_t first_token = 0) {
    auto s = std::make_unique<Sequence>();
    for (int64_t i = 0; i < prompt; ++i) s->tokens.push_back(first_token + static_cast<int32_t>(i));
    s->prompt_size = prompt;
    s->key = {arrival, static_cast<int64_t>(owned.size())};
    s->row_keys = {1, 2, 0};
    scheduler.add(s.get());
    owned.push_back(std::move(s));
    return owned.back().get();
  }
  // One step; sequences whose rows are complete get one more token.
  std::vector<StepPart> step() {
    const std::vector<StepPart> parts = scheduler.plan().parts;
    scheduler.commit();
    for (const auto& s : owned) {
      if (s->state == Sequence::State::kRunning && s->pending() == 0) s->tokens.push_back(9);
    }
    EXPECT_TRUE(scheduler.check_invariants());
    return parts;
  }
};

int64_t rows_of(const std::vector<StepPart>& parts, const Sequence* s) {
  int64_t out = 0;
  for (const StepPart& part : parts) out += part.sequence == s ? part.count : 0;
  return out;
}

TEST(Scheduler, DecodingRowsComeFirstAndChunksFillTheBudget) {
  Sequences s({.max_batch_tokens = 10, .max_sequences = 4, .pages = 100});
  Sequence* a = s.add(4, 1, 0);
  Sequence* b = s.add(25, 2, 100);
  Sequence* c = s.add(3, 3, 200);
  auto parts = s.step();
  EXPECT_EQ(rows_of(parts, a), 4);
  EXPECT_EQ(rows_of(parts, b), 6);
  EXPECT_EQ(rows_of(parts, c), 0);
  parts = s.step();
  EXPECT_EQ(rows_of(parts, a), 1);
  EXPECT_EQ(rows_of(parts, b), 9);
  ASSERT_EQ(parts.size(), 2u);
  EXPECT_EQ(parts[0].row_class, RowClass::kPrompt);  // prompt rows of all sequences first
  EXPECT_EQ(parts[1].row_class, RowClass::kGenerated);
  parts = s.step();
  EXPECT_EQ(rows_of(parts, a), 1);
  EXPECT_EQ(rows_of(parts, b), 9);
  parts = s.step();
  EXPECT_EQ(rows_of(parts, b), 1);
  EXPECT_EQ(rows_of(parts, c), 3);
  parts = s.step();
  for (const Sequence* one : {a, b, c}) EXPECT_EQ(rows_of(parts, one), 1);
}

TEST(Scheduler, TheYoungestLosesItsPagesAndIsComputedAgainByClass) {
  Sequences s({.max_batch_tokens = 128, .max_sequences = 4, .pages = 4, .prefix_cache = false});
  Sequence* old = s.add(31, 1, 0);
  Sequence* young = s.add(31, 2, 100);
  s.step();
  ASSERT_EQ(young->state, Sequence::State::kRunning);
  // One page each so far. Both grow into their second page, then the old one needs a third.
  while (old->table.pages.size() < 3) s.step();
  EXPECT_EQ(young->state, Sequence::State::kWaiting);
  EXPECT_TRUE(young->table.pages.empty());
  EXPECT_EQ(young->preemptions, 1);
  EXPECT_EQ(old->preemptions, 0);
  s.scheduler.remove(old);
  EXPECT_EQ(s.scheduler.pool().used(), 0);
  const int64_t known = young->size();
  const auto parts = s.step();
  ASSERT_EQ(parts.size(), 2u);
  EXPECT_EQ(parts[0].row_class, RowClass::kPrompt);
  EXPECT_EQ(parts[0].count, 31);
  EXPECT_EQ(parts[1].row_class, RowClass::kGenerated);
  EXPECT_EQ(parts[1].count, known - 31);
}

TEST(Scheduler, RemovalFreesPagesAtOnceInEveryState) {
  Sequences s({.max_batch_tokens = 40, .max_sequences = 2, .pages = 8, .prefix_cache = false});
  Sequence* running = s.add(20, 1);
  Sequence* half = s.add(90, 2);
  Sequence* waiting = s.add(5, 3);
  s.step();
  EXPECT_EQ(half->computed, 20);
  EXPECT_EQ(s.scheduler.pool().used(), 1 + 3);
  s.scheduler.pause(half);
  EXPECT_EQ(s.scheduler.pool().used(), 1 + 3);
  s.scheduler.remove(half);
  EXPECT_EQ(s.scheduler.pool().used(), 1);
  s.scheduler.remove(waiting);
  s.scheduler.remove(running);
  s.scheduler.remove(running);
  EXPECT_EQ(s.scheduler.pool().free(), 8);
  EXPECT_TRUE(s.scheduler.plan().parts.empty());
  s.scheduler.commit();
}

TEST(Scheduler, PausedSequencesAreTheFirstToLosePages) {
  Sequences s({.max_batch_tokens = 64, .max_sequences = 2, .pages = 4, .prefix_cache = false});
  Sequence* first = s.add(60, 1);
  s.step();
  s.scheduler.pause(first);
  EXPECT_EQ(s.scheduler.pool().used(), 2);
  Sequence* second = s.add(60, 2, 100);
  s.step();
  EXPECT_EQ(first->table.pages.size(), 2u);  // there was room
  Sequence* third = s.add(20, 3, 200);
  s.step();
  EXPECT_TRUE(first->table.pages.empty());
  EXPECT_EQ(second->preemptions, 0);
  EXPECT_EQ(third->state, Sequence::State::kRunning);
  s.scheduler.resume(first);
  s.scheduler.remove(second);
  s.scheduler.remove(third);
  EXPECT_EQ(rows_of(s.step(), first), 61);
}

TEST(Scheduler, AResumedSequenceGoesOnWhereItWas) {
  Sequences s({.max_batch_tokens = 64, .max_sequences = 2, .pages = 4});
  Sequence* one = s.add(60, 1);
  s.step();
  s.scheduler.pause(one);
  s.step();
  s.scheduler.resume(one);
  EXPECT_EQ(rows_of(s.step(), one), 1);
  EXPECT_EQ(one->preemptions, 0);
}

// However many short ones arrive, the large one at the head of the line is next.
TEST(Scheduler, ALargeRequestIsNotOvertakenForEver) {
  Sequences s({.max_batch_tokens = 64, .max_sequences = 8, .pages = 10});
  double time = 0;
  for (int i = 0; i < 4; ++i) s.add(20, time += 1, 1000 * i);
  s.step();
  Sequence* large = s.add(290, time += 1, 100000);
  int steps = 0;
  while (large->state != Sequence::State::kRunning) {
    ASSERT_LT(++steps, 60);
    s.add(20, time += 1, 200000 + 1000 * steps);
    s.step();
    for (const auto& one : s.owned) {
      if (one->state == Sequence::State::kRunning && one.get() != large &&
          one->size() - one->prompt_size > 20)
        s.scheduler.remove(one.get());
    }
  }
  EXPECT_GT(steps, 1);
  // It was alone when it came in: nobody younger was let past.
  for (const auto& one : s.owned) {
    if (one->key > large->key) {
      EXPECT_EQ(one->computed, 0);
    }
  }
}

TEST(Scheduler, FollowersWaitForTheirLeadersPromptAndShareIt) {
  Sequences s({.max_batch_tokens = 40, .max_sequences = 8, .pages = 10});
  Sequence* leader = s.add(70, 1);
  Sequence* follower = s.add(70, 2);
  follower->leader = leader;
  Sequence* other = s.add(3, 3, 500);
  auto parts = s.step();
  EXPECT_EQ(rows_of(parts, follower), 0);
  parts = s.step();
  EXPECT_EQ(rows_of(parts, leader), 30);
  EXPECT_EQ(rows_of(parts, other), 3);  // it need not wait for the follower
  parts = s.step();
  EXPECT_EQ(rows_of(parts, follower), 70 - 64);
  EXPECT_EQ(follower->cached, 64);
  EXPECT_EQ(s.scheduler.pool().used(), 3 + 1 + 1);
  EXPECT_EQ(leader->table.pages[1], follower->table.pages[1]);
  EXPECT_NE(leader->table.pages[2], follower->table.pages[2]);
  // A leader that goes away leaves nobody behind.
  Sequence* orphan = s.add(70, 4, 900);
  orphan->leader = other;
  s.scheduler.remove(other);
  EXPECT_EQ(orphan->leader, nullptr);
}

TEST(Scheduler, GeneratedRowsDoNotStandForPromptRows) {
  Sequences s({.max_batch_tokens = 64, .max_sequences = 2, .pages = 10});
  Sequence* one = s.add(40, 1);
  while (one->computed < 70) s.step();
  std::vector<int32_t> tokens = one->tokens;
  s.scheduler.remove(one);
  Sequence* next = s.add(70, 2);
  next->tokens = tokens;
  next->tokens.resize(70);
  s.step();
  EXPECT_EQ(next->cached, 32);  // the page with rows 32..63 has generated ones
  s.scheduler.remove(next);
  // The same tokens in the same classes: both pages.
  Sequence* again = s.add(40, 3);
  again->tokens = tokens;
  s.step();
  EXPECT_EQ(again->cached, 64);
  s.scheduler.remove(again);
  // Where the classes leave the same bits, so it is for prompts.
  Sequences same({.max_batch_tokens = 64, .max_sequences = 2, .pages = 10});
  one = same.add(40, 1);
  one->row_keys = {1, 1, 0};
  while (one->computed < 70) same.step();
  tokens = one->tokens;
  same.scheduler.remove(one);
  next = same.add(70, 2);
  next->row_keys = {1, 1, 0};
  next->tokens = tokens;
  next->tokens.resize(70);
  same.step();
  EXPECT_EQ(next->cached, 64);
  // Another salt finds nothing.
  Sequence* salted = same.add(70, 3);
  salted->row_keys = {1, 1, 5};
  salted->tokens = next->tokens;
  same.step();
  EXPECT_EQ(salted->cached, 0);
}

TEST(Scheduler, FailedStepsLeaveNothingBehind) {
  Sequences s({.max_batch_tokens = 64, .max_sequences = 2, .pages = 4});
  Sequence* one = s.add(40, 1);
  EXPECT_EQ(s.scheduler.plan().rows, 40);
  s.scheduler.abandon();
  EXPECT_EQ(one->computed, 0);
  s.scheduler.remove(one);
  EXPECT_EQ(s.scheduler.pool().free(), 4);
  EXPECT_TRUE(s.scheduler.check_invariants());
}

}  // namespace
}  // namespace sub8::engine
