#include "kvcache/page_pool.h"

#include <random>

#include <gtest/gtest.h>

namespace sub8::kvcache {
namespace {

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
  EXPECT_FALSE(pool.check_invariants({&a, &a}));  // owned twice
  PageTable bad = a;
  bad.pages[0] = 99;
  EXPECT_FALSE(pool.check_invariants({&bad}));
  EXPECT_TRUE(pool.check_invariants({&a}));
}

TEST(PagePool, RandomTrace) {
  std::mt19937 random(7);
  PagePool pool(50);
  std::vector<PageTable> tables(9);
  std::vector<const PageTable*> views;
  for (auto& table : tables) views.push_back(&table);
  for (int step = 0; step < 5000; ++step) {
    PageTable& table = tables[random() % tables.size()];
    switch (random() % 4) {
      case 0:
        pool.release(table);
        break;
      case 1:
        pool.truncate(table,
                      table.tokens == 0 ? 0 : random() % static_cast<uint32_t>(table.tokens));
        break;
      default: {
        const int64_t count = random() % 100;
        const bool fits = PagePool::pages_needed(table, count) <= pool.available();
        EXPECT_EQ(pool.extend(table, count), fits);
      }
    }
    ASSERT_TRUE(pool.check_invariants(views));
  }
}

}  // namespace
}  // namespace sub8::kvcache
