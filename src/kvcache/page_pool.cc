#include "kvcache/page_pool.h"

namespace sub8::kvcache {

PagePool::PagePool(int32_t pages) : total_(pages) {
  free_.reserve(static_cast<size_t>(pages));
  for (int32_t page = pages - 1; page >= 0; --page) free_.push_back(page);
}

int32_t PagePool::pages_needed(const PageTable& table, int64_t count) {
  const int64_t missing = table.tokens + count - table.capacity();
  return missing <= 0 ? 0 : static_cast<int32_t>((missing + kPageTokens - 1) / kPageTokens);
}

bool PagePool::extend(PageTable& table, int64_t count) {
  const int32_t needed = pages_needed(table, count);
  if (needed > available()) return false;
  for (int32_t i = 0; i < needed; ++i) {
    table.pages.push_back(free_.back());
    free_.pop_back();
  }
  table.tokens += count;
  return true;
}

void PagePool::truncate(PageTable& table, int64_t tokens) {
  const auto keep = static_cast<size_t>((tokens + kPageTokens - 1) / kPageTokens);
  while (table.pages.size() > keep) {
    free_.push_back(table.pages.back());
    table.pages.pop_back();
  }
  table.tokens = tokens;
}

bool PagePool::check_invariants(const std::vector<const PageTable*>& tables) const {
  std::vector<int> owners(static_cast<size_t>(total_), 0);
  const auto count = [&](int32_t page) {
    if (page < 0 || page >= total_) return false;
    return ++owners[static_cast<size_t>(page)] == 1;
  };
  for (const int32_t page : free_) {
    if (!count(page)) return false;
  }
  for (const PageTable* table : tables) {
    for (const int32_t page : table->pages) {
      if (!count(page)) return false;
    }
    if (table->tokens > table->capacity()) return false;
  }
  for (const int owner : owners) {
    if (owner != 1) return false;
  }
  return true;
}

}  // namespace sub8::kvcache
