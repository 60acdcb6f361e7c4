#include "kvcache/page_pool.h"

#include <algorithm>
#include <random>

#include "base/check.h"

namespace sub8::kvcache {

PagePool::PagePool(int32_t pages) : pages_(static_cast<size_t>(pages)) {
  free_.reserve(static_cast<size_t>(pages));
  for (int32_t page = pages - 1; page >= 0; --page) free_.push_back(page);
  // Prompts are foreign: nobody shall be able to prepare tokens whose hashes collide.
  std::random_device device;
  hash_seed_ = (uint64_t{device()} << 32) | device();
}

int32_t PagePool::pages_needed(const PageTable& table, int64_t count) {
  const int64_t missing = table.tokens + count - table.capacity();
  return missing <= 0 ? 0 : static_cast<int32_t>((missing + kPageTokens - 1) / kPageTokens);
}

bool PagePool::extend(PageTable& table, int64_t count) {
  const int32_t needed = pages_needed(table, count);
  if (needed > available()) return false;
  for (int32_t i = 0; i < needed; ++i) table.pages.push_back(take());
  table.tokens += count;
  return true;
}

void PagePool::release(PageTable& table) {
  // From the end: a page is found through those before it, so it must not outlive them.
  for (auto it = table.pages.rbegin(); it != table.pages.rend(); ++it) give_up(*it);
  table = {};
}

int64_t PagePool::adopt(PageTable& table, std::span<const int32_t> tokens, int64_t prompt_size,
                        int64_t limit, const RowKeys& keys) {
  SUB8_CHECK(table.pages.empty());
  while (table.tokens + kPageTokens <= limit) {
    const Key key = make_key(table, tokens, prompt_size, keys);
    const int32_t page = find(key, hash(key));
    if (page < 0) break;
    retain(page);
    table.pages.push_back(page);
    table.tokens += kPageTokens;
    ++table.published_;
    table.content_ = at(page).content;
  }
  return table.tokens;
}

void PagePool::publish(PageTable& table, std::span<const int32_t> tokens, int64_t prompt_size,
                       int64_t computed, const RowKeys& keys) {
  SUB8_CHECK_LE(computed, table.tokens);
  while ((table.published_ + 1) * kPageTokens <= computed) {
    Key key = make_key(table, tokens, prompt_size, keys);
    const uint64_t key_hash = hash(key);
    const int32_t twin = find(key, key_hash);
    if (twin >= 0) {
      // Somebody computed the same at the same time. Ours stays private.
      table.content_ = at(twin).content;
    } else {
      const int32_t page = table.pages[static_cast<size_t>(table.published_)];
      Page& p = at(page);
      p.content = next_content_++;
      p.hash = key_hash;
      p.key = key;
      index_.emplace(key_hash, page);
      table.content_ = p.content;
    }
    ++table.published_;
  }
}

PagePool::Key PagePool::make_key(const PageTable& table, std::span<const int32_t> tokens,
                                 int64_t prompt_size, const RowKeys& keys) {
  const int64_t first = table.published_ * kPageTokens;
  Key key;
  key.before = table.content_;
  key.salt = keys.salt;
  key.prompt_rows =
      keys.prompt == keys.generated
          ? kPageTokens
          : static_cast<int32_t>(std::clamp<int64_t>(prompt_size - first, 0, int64_t{kPageTokens}));
  key.prompt = key.prompt_rows > 0 ? keys.prompt : 0;
  key.generated = key.prompt_rows < kPageTokens ? keys.generated : 0;
  std::copy_n(tokens.begin() + first, kPageTokens, key.tokens.begin());
  return key;
}

uint64_t PagePool::hash(const Key& key) const {
  uint64_t state = hash_seed_;
  const auto mix = [&](uint64_t value) {
    state = (state ^ value) * 0x9E3779B97F4A7C15;
    state ^= state >> 32;
  };
  mix(key.before);
  mix(key.salt);
  mix(key.prompt);
  mix(key.generated);
  mix(static_cast<uint64_t>(key.prompt_rows));
  for (const int32_t token : key.tokens) mix(static_cast<uint32_t>(token));
  return state;
}

int32_t PagePool::find(const Key& key, uint64_t key_hash) const {
  const auto [begin, end] = index_.equal_range(key_hash);
  for (auto it = begin; it != end; ++it) {
    if (at(it->second).key == key) return it->second;
  }
  return -1;
}

int32_t PagePool::take() {
  int32_t page = -1;
  if (!free_.empty()) {
    page = free_.back();
    free_.pop_back();
  } else {
    page = oldest_;
    SUB8_CHECK(page >= 0);
    unlink(page);
    forget(page);
  }
  at(page).owners = 1;
  return page;
}

void PagePool::retain(int32_t page) {
  if (at(page).owners == 0) unlink(page);
  ++at(page).owners;
}

void PagePool::give_up(int32_t page) {
  Page& p = at(page);
  SUB8_CHECK(p.owners > 0);
  if (--p.owners > 0) return;
  if (p.content == 0) {
    free_.push_back(page);
    return;
  }
  p.older = newest_;
  p.newer = -1;
  (newest_ >= 0 ? at(newest_).newer : oldest_) = page;
  newest_ = page;
  ++cached_;
}

void PagePool::unlink(int32_t page) {
  Page& p = at(page);
  (p.older >= 0 ? at(p.older).newer : oldest_) = p.newer;
  (p.newer >= 0 ? at(p.newer).older : newest_) = p.older;
  p.older = p.newer = -1;
  --cached_;
}

void PagePool::forget(int32_t page) {
  Page& p = at(page);
  const auto [begin, end] = index_.equal_range(p.hash);
  const auto it = std::find_if(begin, end, [&](const auto& e) { return e.second == page; });
  SUB8_CHECK(it != end);
  index_.erase(it);
  p.content = 0;
}

bool PagePool::check_invariants(const std::vector<const PageTable*>& tables) const {
  std::vector<int32_t> owners(pages_.size(), 0);
  for (const PageTable* table : tables) {
    for (const int32_t page : table->pages) {
      if (page < 0 || page >= total()) return false;
      ++owners[static_cast<size_t>(page)];
    }
    if (table->tokens > table->capacity()) return false;
    if (table->capacity() - table->tokens >= kPageTokens) return false;
  }
  // 1 free, 2 cached, 4 used; each page exactly one.
  std::vector<int> state(pages_.size(), 0);
  for (const int32_t page : free_) {
    if (at(page).content != 0) return false;
    state[static_cast<size_t>(page)] += 1;
  }
  int32_t cached = 0;
  for (int32_t page = oldest_, before = -1; page >= 0; before = page, page = at(page).newer) {
    if (at(page).content == 0 || at(page).older != before || ++cached > total()) return false;
    state[static_cast<size_t>(page)] += 2;
  }
  size_t contents = 0;
  for (size_t i = 0; i < pages_.size(); ++i) {
    if (pages_[i].owners != owners[i]) return false;
    state[i] += owners[i] > 0 ? 4 : 0;
    if (state[i] != 1 && state[i] != 2 && state[i] != 4) return false;
    if (pages_[i].content == 0) continue;
    ++contents;
    if (find(pages_[i].key, pages_[i].hash) != static_cast<int32_t>(i)) return false;
  }
  return cached == cached_ && contents == index_.size() && free() + cached_ + used() == total();
}

}  // namespace sub8::kvcache
