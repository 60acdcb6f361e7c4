// Which page of KV memory belongs to whom: host bookkeeping only, no memory, no device.
//
// A page holds kPageTokens tokens of every layer. One page table serves all layers. A token's place
// is its slot: page * kPageTokens + offset. A page is in exactly one state:
//   used    in at least one page table; `owners` of them
//   cached  in none, but its content is known and can be found again
//   free    neither
// so that free + cached + used = all. A cached page is free for the taking; the one that was given
// up first goes first.
//
// Prefix cache. Once all tokens of a page are computed, publish() gives its content an identity:
// what the page before it holds, its own tokens, and how its rows were computed (RowKeys). adopt()
// finds the longest run of pages with the content that a sequence needs. Keys are compared in full,
// never by hash alone. What is the same for all pages of a pool (the model, the type and scales of
// the KV elements, the rounding of activations) is no part of the key: one pool serves one model.
//
// Pages are shared only while full, and full pages are never written again.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "kvcache/page_tokens.h"

namespace sub8::kvcache {

// What decides, besides tokens, the bits that a row leaves in the cache. Rows with equal keys are
// interchangeable.
struct RowKeys {
  uint64_t prompt = 0;     // of rows at positions inside the prompt
  uint64_t generated = 0;  // of the others
  uint64_t salt = 0;       // sequences share pages only with equal salts
};

// A sequence's pages in token order. The table owns a share of each until it is released.
struct PageTable {
  std::vector<int32_t> pages;
  int64_t tokens = 0;  // slots handed out so far

  int64_t capacity() const { return static_cast<int64_t>(pages.size()) * kPageTokens; }
  // The slot of token `position`, which must be below `tokens`.
  int64_t slot(int64_t position) const {
    return int64_t{pages[static_cast<size_t>(position / kPageTokens)]} * kPageTokens +
           position % kPageTokens;
  }

 private:
  friend class PagePool;
  int64_t published_ = 0;  // leading pages whose content has an identity
  uint64_t content_ = 0;   // that of the last of them
};

class PagePool {
 public:
  explicit PagePool(int32_t pages);

  int32_t total() const { return static_cast<int32_t>(pages_.size()); }
  int32_t free() const { return static_cast<int32_t>(free_.size()); }
  int32_t cached() const { return cached_; }
  int32_t used() const { return total() - free() - cached_; }
  int32_t available() const { return free() + cached_; }

  // Pages that `count` more tokens of `table` would take from the available ones.
  static int32_t pages_needed(const PageTable& table, int64_t count);

  // Extends `table` by `count` tokens. Either all of them or, when pages do not suffice, nothing
  // and false.
  bool extend(PageTable& table, int64_t count);

  // Gives up all pages of `table`. Those with an identity stay findable until they are taken.
  void release(PageTable& table);

  // Takes cached or used pages with the content of tokens [0, limit) into the empty `table`, full
  // pages only, and returns how many tokens they hold. `prompt_size`: tokens from there on are
  // generated ones.
  int64_t adopt(PageTable& table, std::span<const int32_t> tokens, int64_t prompt_size,
                int64_t limit, const RowKeys& keys);

  // The first `computed` tokens of `table` are in memory now: full pages among them can be found
  // from now on. `tokens`, `prompt_size`, `keys` as in adopt().
  void publish(PageTable& table, std::span<const int32_t> tokens, int64_t prompt_size,
               int64_t computed, const RowKeys& keys);

  // True when every page is in one state, its owners are exactly the `tables` that list it, and the
  // index of contents agrees.
  bool check_invariants(const std::vector<const PageTable*>& tables) const;

 private:
  // The identity of a full page's content.
  struct Key {
    uint64_t before = 0;  // content of the page before; the root is 0
    uint64_t salt = 0;
    uint64_t prompt = 0;     // key of its first prompt_rows rows; 0 if there are none
    uint64_t generated = 0;  // key of the rest
    int32_t prompt_rows = 0;
    std::array<int32_t, kPageTokens> tokens{};

    bool operator==(const Key&) const = default;
  };
  struct Page {
    int32_t owners = 0;
    uint64_t content = 0;  // 0: none. Numbers are never used twice
    uint64_t hash = 0;     // of `key`
    Key key;
    int32_t older = -1, newer = -1;  // neighbours in the list of cached pages
  };

  static Key make_key(const PageTable& table, std::span<const int32_t> tokens, int64_t prompt_size,
                      const RowKeys& keys);
  uint64_t hash(const Key& key) const;
  int32_t find(const Key& key, uint64_t hash) const;  // -1: none
  Page& at(int32_t page) { return pages_[static_cast<size_t>(page)]; }
  const Page& at(int32_t page) const { return pages_[static_cast<size_t>(page)]; }
  int32_t take();
  void retain(int32_t page);
  void give_up(int32_t page);
  void unlink(int32_t page);  // from the list of cached pages
  void forget(int32_t page);  // its content

  std::vector<Page> pages_;
  std::vector<int32_t> free_;  // taken from the back: the most recently used page is warm
  int32_t oldest_ = -1, newest_ = -1;
  int32_t cached_ = 0;
  uint64_t next_content_ = 1;
  uint64_t hash_seed_;
  std::unordered_multimap<uint64_t, int32_t> index_;  // hash of the key -> page
};

}  // namespace sub8::kvcache
