// Which page of KV memory belongs to which sequence: host bookkeeping only, no memory, no device.
//
// A page holds kPageTokens tokens of every layer. One page table serves all layers. A token's place
// is its slot: page * kPageTokens + offset. Invariant, checked by check_invariants(): every page is
// either free or owned once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace sub8::kvcache {

inline constexpr int kPageTokens = 32;

// A sequence's pages in token order; the table owns them until they are released to the pool.
struct PageTable {
  std::vector<int32_t> pages;
  int64_t tokens = 0;  // slots handed out so far

  int64_t capacity() const { return static_cast<int64_t>(pages.size()) * kPageTokens; }
  // The slot of token `position`, which must be below `tokens`.
  int64_t slot(int64_t position) const {
    return int64_t{pages[static_cast<size_t>(position / kPageTokens)]} * kPageTokens +
           position % kPageTokens;
  }
};

class PagePool {
 public:
  explicit PagePool(int32_t pages);

  int32_t total() const { return total_; }
  int32_t available() const { return static_cast<int32_t>(free_.size()); }

  // Pages that `count` more tokens of `table` would take from the pool.
  static int32_t pages_needed(const PageTable& table, int64_t count);

  // Extends `table` by `count` tokens. Either all of them or, when pages do not suffice, nothing
  // and false.
  bool extend(PageTable& table, int64_t count);

  // Shortens `table` to its first `tokens` tokens; pages that become empty return to the pool.
  void truncate(PageTable& table, int64_t tokens);
  void release(PageTable& table) { truncate(table, 0); }

  // True when free pages and the pages of `tables` are exactly all pages, each once.
  bool check_invariants(const std::vector<const PageTable*>& tables) const;

 private:
  int32_t total_;
  std::vector<int32_t> free_;  // taken from the back: the most recently used page is warm
};

}  // namespace sub8::kvcache
