// A model whose every row depends on all that a real one depends on, in microseconds: for tests of
// whatever drives it.
//
// A row's state is a hash of its token, position, row class, and the states of all earlier
// positions as found in the pages of its table. A slot that holds anything else than the right row
// of the right sequence, computed in the right class, changes the logits. What a real model would
// only do wrong (reading what was never written, too many rows) is reported as a test failure.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "engine/engine.h"
#include "kvcache/page_pool.h"
#include "text/byte_vocab.h"
#include "text/tokenizer.h"

namespace sub8::engine::testing {

struct FakeOptions {
  int64_t vocab_size = 160;
  int64_t max_rows = 64;
  int64_t max_logit_rows = 5;
  int64_t max_context = 256;
  int32_t kv_pages = 64;
  bool one_order = false;    // prompt rows and generated rows leave the same bits
  bool flat_logits = false;  // every token equally likely
  ThreadPool* pool = nullptr;
};

class FakeRunner final : public Runner {
 public:
  explicit FakeRunner(const FakeOptions& options)
      : options_(options), slots_(static_cast<size_t>(options.kv_pages) * kvcache::kPageTokens) {
    info_.vocab_size = options.vocab_size;
    info_.max_rows = options.max_rows;
    info_.max_logit_rows = options.max_logit_rows;
    info_.max_context = options.max_context;
    info_.kv_pages = options.kv_pages;
    info_.kv_type = "fake";
    info_.modes = {model::ExecutionMode::kWeightOnly, model::ExecutionMode::kPlain};
  }

  const RunnerInfo& info() const override { return info_; }
  uint64_t row_key(model::ExecutionMode mode, RowClass row_class) const override {
    return 2 * static_cast<uint64_t>(mode) +
           (row_class == RowClass::kGenerated && !options_.one_order ? 2 : 1);
  }
  ThreadPool* pool() override { return options_.pool; }

  Status forward(const model::Batch& batch) override {
    ++steps;
    rows += batch.rows();
    if (fail_at_step == steps) return internal_error("the fake model was told to fail");
    EXPECT_LE(batch.rows(), options_.max_rows);
    EXPECT_GT(batch.rows(), 0);
    std::set<int64_t> written;
    states_.clear();
    std::vector<uint64_t> keys;
    for (const model::RowGroup& group : batch.groups) {
      EXPECT_GT(group.rows, 0);
      keys.insert(keys.end(), static_cast<size_t>(group.rows),
                  row_key(group.mode, group.row_class));
    }
    EXPECT_EQ(static_cast<int64_t>(keys.size()), batch.rows());
    for (int64_t i = 0; i < batch.rows(); ++i) {
      const auto at = static_cast<size_t>(i);
      const int32_t position = batch.positions[at];
      EXPECT_TRUE(written.insert(batch.slots[at]).second) << "two rows write one slot";
      uint64_t state =
          mix(static_cast<uint64_t>(batch.tokens[at]), static_cast<uint64_t>(position));
      state = mix(state, keys.at(at));
      for (int32_t j = 0; j < position; ++j) {
        const Slot& slot = at_slot(batch.attention[at].page_table, j);
        EXPECT_EQ(slot.position, j) << "row " << i << " at " << position << " reads a wrong slot";
        state = mix(state, slot.state);
      }
      Slot& own = at_slot(batch.attention[at].page_table, position);
      EXPECT_EQ(&own - slots_.data(), batch.slots[at]) << "page table and slot disagree";
      own = {position, state};
      states_.push_back(state);
    }
    return {};
  }

  Result<std::span<const float>> logits(std::span<const int32_t> wanted) override {
    EXPECT_LE(static_cast<int64_t>(wanted.size()), options_.max_logit_rows);
    logits_.clear();
    for (size_t i = 0; i < wanted.size(); ++i) {
      if (i > 0) {
        EXPECT_LT(wanted[i - 1], wanted[i]);
      }
      for (int64_t token = 0; token < options_.vocab_size; ++token) {
        const uint64_t bits =
            mix(states_.at(static_cast<size_t>(wanted[i])), static_cast<uint64_t>(token));
        logits_.push_back(options_.flat_logits ? 0 : static_cast<float>(bits % 4096) / 512.0f);
      }
    }
    return std::span<const float>(logits_);
  }

  int64_t steps = 0;
  int64_t rows = 0;
  int64_t fail_at_step = -1;

 private:
  struct Slot {
    int32_t position = -1;
    uint64_t state = 0;
  };
  static uint64_t mix(uint64_t a, uint64_t b) {
    uint64_t x = (a ^ (b + 0x9E3779B97F4A7C15)) * 0xBF58476D1CE4E5B9;
    x ^= x >> 29;
    return x * 0x94D049BB133111EB ^ x >> 32;
  }
  Slot& at_slot(const int32_t* pages, int32_t position) {
    const int64_t slot = int64_t{pages[position / kvcache::kPageTokens]} * kvcache::kPageTokens +
                         position % kvcache::kPageTokens;
    return slots_.at(static_cast<size_t>(slot));
  }

  FakeOptions options_;
  RunnerInfo info_;
  std::vector<Slot> slots_;
  std::vector<uint64_t> states_;
  std::vector<float> logits_;
};

// Byte tokens, so that every id is text.
inline const Tokenizer& fake_tokenizer() {
  static const std::unique_ptr<Tokenizer> tokenizer = [] {
    auto made = Tokenizer::from_gguf(sub8::testing::byte_vocab());
    EXPECT_TRUE(made.ok()) << (made.ok() ? "" : made.error().message);
    return std::move(made).value();
  }();
  return *tokenizer;
}

// Moves only when told to.
struct FakeClock {
  TimePoint now{std::chrono::hours(1)};
  void advance(std::chrono::microseconds by) { now += by; }
};

}  // namespace sub8::engine::testing
