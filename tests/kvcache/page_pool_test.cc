#include "kvcache/page_pool.h"

#include <algorithm>
#include <random>

#include <gtest/gtest.h>

namespace sub8::kvcache {
namespace {

constexpr RowKeys kKeys{1, 2, 0};

std::vector<int32_t> tokens_of(int seed, int count) {
  std::mt19937 random(static_cast<uint32_t>(seed));
  std::vector<int32_t> out;
  for (int i = 0; i < count; ++i) out.push_back(static_cast<int32_t>(random() % 50));
  return out;
}

TEST(PagePool, ExtendIsAllOrNothing) {
  PagePool pool(3);
  PageTable a;
  EXPECT_TRUE(pool.extend(a, 33));
  EXPECT_EQ(a.pages.size(), 2u);
  PageTable b;
  EXPECT_FALSE(pool.extend(b, 33));
  EXPECT_EQ(b.tokens, 0);
  EXPECT_TRUE(b.pages.empty());
  EXPECT_TRUE(pool.extend(b, 32));
  EXPECT_TRUE(pool.extend(a, 31));
  EXPECT_FALSE(pool.extend(a, 1));
  EXPECT_TRUE(pool.check_invariants({&a, &b}));
  pool.release(b);
  EXPECT_TRUE(pool.extend(a, 1));
  EXPECT_EQ(a.slot(64) % kPageTokens, 0);
  EXPECT_TRUE(pool.check_invariants({&a, &b}));
}

TEST(PagePool, InvariantCheckSeesPlantedFaults) {
  PagePool pool(4);
  PageTable a;
  ASSERT_TRUE(pool.extend(a, 40));
  EXPECT_FALSE(pool.check_invariants({}));        // leaked
  EXPECT_FALSE(pool.check_invariants({&a, &a}));  // one owner too few
  PageTable bad = a;
  bad.pages[0] = 99;
  EXPECT_FALSE(pool.check_invariants({&bad}));
  bad = a;
  bad.tokens = 65;
  EXPECT_FALSE(pool.check_invariants({&bad}));
  EXPECT_TRUE(pool.check_invariants({&a}));
}

TEST(PagePool, FullPagesAreFoundAgainAndShared) {
  PagePool pool(10);
  const std::vector<int32_t> tokens = tokens_of(1, 100);
  PageTable a;
  ASSERT_TRUE(pool.extend(a, 100));
  pool.publish(a, tokens, 100, 63, kKeys);
  PageTable b;
  EXPECT_EQ(pool.adopt(b, tokens, 100, 99, kKeys), 32);  // the second page is not complete yet
  pool.release(b);
  pool.publish(a, tokens, 100, 100, kKeys);
  EXPECT_EQ(pool.adopt(b, tokens, 100, 99, kKeys), 96);
  EXPECT_EQ(pool.used(), 4);
  EXPECT_EQ(b.pages[2], a.pages[2]);
  EXPECT_TRUE(pool.check_invariants({&a, &b}));
  pool.release(a);
  EXPECT_EQ(pool.used(), 3);
  EXPECT_EQ(pool.free(), 7);  // the partial page is not kept
  pool.release(b);
  EXPECT_EQ(pool.cached(), 3);
  EXPECT_EQ(pool.available(), 10);
  // A limit inside the third page, another salt, another class.
  EXPECT_EQ(pool.adopt(b, tokens, 100, 95, kKeys), 64);
  pool.release(b);
  EXPECT_EQ(pool.adopt(b, tokens, 100, 99, {1, 2, 3}), 0);
  EXPECT_EQ(pool.adopt(b, tokens, 50, 99, kKeys), 32);
  pool.release(b);
  EXPECT_EQ(pool.adopt(b, tokens, 50, 99, {1, 1, 0}), 96);  // equal keys: the class is no matter
  EXPECT_TRUE(pool.check_invariants({&b}));
}

// The same tokens after others are another content: their rows have seen other keys.
TEST(PagePool, ContentIncludesAllThatCameBefore) {
  PagePool pool(8);
  const std::vector<int32_t> a = tokens_of(1, 64), b = tokens_of(2, 64);
  PageTable first, second;
  ASSERT_TRUE(pool.extend(first, 64));
  ASSERT_TRUE(pool.extend(second, 64));
  pool.publish(first, a, 64, 64, kKeys);
  pool.publish(second, b, 64, 64, kKeys);
  std::vector<int32_t> mixed(a.begin(), a.begin() + 32);
  mixed.insert(mixed.end(), b.begin() + 32, b.end());
  PageTable found;
  EXPECT_EQ(pool.adopt(found, mixed, 64, 64, kKeys), 32);
}

TEST(PagePool, TheOldestContentIsForgottenFirstAndTailsBeforeHeads) {
  PagePool pool(4);
  const std::vector<int32_t> x = tokens_of(1, 64), y = tokens_of(2, 64);
  PageTable a, b;
  for (auto* pair : {&a, &b}) {
    ASSERT_TRUE(pool.extend(*pair, 64));
    pool.publish(*pair, pair == &a ? x : y, 64, 64, kKeys);
  }
  pool.release(a);
  pool.release(b);
  EXPECT_EQ(pool.cached(), 4);
  PageTable c;
  ASSERT_TRUE(pool.extend(c, 32));
  PageTable found;
  EXPECT_EQ(pool.adopt(found, x, 64, 64, kKeys), 32);  // its second page went
  EXPECT_EQ(pool.used(), 2);
  pool.release(found);
  EXPECT_EQ(pool.adopt(found, y, 64, 64, kKeys), 64);
  EXPECT_TRUE(pool.check_invariants({&c, &found}));
  EXPECT_FALSE(pool.extend(c, 96));
}

TEST(PagePool, TwinsKeepOneIdentity) {
  PagePool pool(8);
  const std::vector<int32_t> tokens = tokens_of(1, 96);
  PageTable a, b;
  ASSERT_TRUE(pool.extend(a, 64));
  ASSERT_TRUE(pool.extend(b, 96));
  pool.publish(a, tokens, 96, 64, kKeys);
  pool.publish(b, tokens, 96, 96, kKeys);  // the same two pages, and a third
  EXPECT_TRUE(pool.check_invariants({&a, &b}));
  PageTable c;
  EXPECT_EQ(pool.adopt(c, tokens, 96, 96, kKeys), 96);
  EXPECT_EQ(c.pages[0], a.pages[0]);
  EXPECT_EQ(c.pages[2], b.pages[2]);
  pool.release(b);
  EXPECT_EQ(pool.free(), 5);  // its twins had no identity of their own
  EXPECT_TRUE(pool.check_invariants({&a, &c}));
}

// Contents in a shadow memory: whatever adopt() hands out holds what was asked for.
TEST(PagePool, RandomTrace) {
  std::mt19937 random(7);
  PagePool pool(50);
  struct Owner {
    PageTable table;
    std::vector<int32_t> tokens;
    int64_t prompt = 0;
  };
  std::vector<Owner> owners(9);
  std::vector<const PageTable*> views;
  for (auto& owner : owners) views.push_back(&owner.table);
  std::vector<std::pair<int32_t, bool>> memory(50 * kPageTokens);  // token, generated
  int64_t adopted = 0;
  for (int step = 0; step < 8000; ++step) {
    Owner& o = owners[random() % owners.size()];
    if (o.table.pages.empty()) {
      const int size = 1 + static_cast<int>(random() % 300);
      o.tokens = tokens_of(static_cast<int>(random() % 3), size);
      for (int i = static_cast<int>(random() % 300); i < size; ++i)
        o.tokens[static_cast<size_t>(i)] = static_cast<int32_t>(random() % 2);
      o.prompt = 1 + static_cast<int64_t>(random() % static_cast<uint32_t>(size));
      const int64_t found = pool.adopt(o.table, o.tokens, o.prompt, size, kKeys);
      adopted += found;
      for (int64_t i = 0; i < found; ++i) {
        ASSERT_EQ(memory[static_cast<size_t>(o.table.slot(i))],
                  (std::pair{o.tokens[static_cast<size_t>(i)], i >= o.prompt}));
      }
    } else if (random() % 4 == 0) {
      pool.release(o.table);
      continue;
    }
    {
      const int64_t left = static_cast<int64_t>(o.tokens.size()) - o.table.tokens;
      const int64_t count = std::min<int64_t>(left, random() % 100);
      const int64_t first = o.table.tokens;
      const bool fits = PagePool::pages_needed(o.table, count) <= pool.available();
      EXPECT_EQ(pool.extend(o.table, count), fits);
      for (int64_t i = first; i < o.table.tokens; ++i) {
        memory[static_cast<size_t>(o.table.slot(i))] = {o.tokens[static_cast<size_t>(i)],
                                                        i >= o.prompt};
      }
      pool.publish(o.table, o.tokens, o.prompt, o.table.tokens, kKeys);
    }
    ASSERT_TRUE(pool.check_invariants(views));
  }
  EXPECT_GT(adopted, 10000);
}

}  // namespace
}  // namespace sub8::kvcache
