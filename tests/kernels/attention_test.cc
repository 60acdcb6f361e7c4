#include <algorithm>

#include "kernels/attention_testing.h"

namespace sub8::kernels {
namespace {

struct Case {
  int heads, kv_heads, head_dim, window;
  float soft_cap;
  KvType type;
  bool sinks;
};

TEST(Attention, MatchesTheDoubleReference) {
  const Case cases[] = {
      {9, 3, 64, 0, 0, KvType::kF32, false},       {9, 3, 64, 0, 0, KvType::kBF16, false},
      {4, 4, 16, 0, 0, KvType::kBF16, false},      {4, 1, 24, 40, 0, KvType::kF32, false},
      {2, 1, 256, 0, 50.0f, KvType::kBF16, false}, {8, 8, 80, 33, 30.0f, KvType::kF32, false},
      {8, 2, 128, 128, 0, KvType::kBF16, true},    {40, 1, 40, 0, 0, KvType::kF32, true},
      {7, 1, 72, 1, 0, KvType::kBF16, false},      {5, 5, 248, 512, 0, KvType::kF32, false},
  };
  uint32_t seed = 100;
  for (const Case& c : cases) {
    AttentionShape shape = make_shape(c.heads, c.kv_heads, c.head_dim, c.type);
    shape.window = c.window;
    shape.soft_cap = c.soft_cap;
    const auto sinks = random_values(seed, static_cast<size_t>(c.heads));
    if (c.sinks) shape.sinks = sinks.data();
    const Cache cache(shape.kv, {70, 530, 1, 1100}, seed++);
    // A prompt, a chunk that crosses a split, a first token, a decode row far on.
    std::vector<AttentionRow> rows = prompt_rows(cache, 0, 0, 70);
    for (const AttentionRow& row : prompt_rows(cache, 1, 500, 530)) rows.push_back(row);
    rows.push_back({cache.table(2), 0});
    rows.push_back({cache.table(3), 1099});
    const int64_t cols = int64_t{c.heads} * c.head_dim;
    const auto q = random_values(seed++, rows.size() * static_cast<size_t>(cols), 2.0f);
    check_all_paths(shape, cache, q, rows);
  }
}

TEST(Attention, TheComparatorSeesPlantedFaults) {
  const AttentionShape shape = make_shape(2, 1, 16, KvType::kF32);
  const Cache cache(shape.kv, {20}, 5);
  const auto rows = prompt_rows(cache, 0, 0, 20);
  const auto q = random_values(6, 20 * 32);
  const AttentionReference reference =
      attention_reference(shape, cache.pages(), {q.data(), 32}, rows);
  const auto type = format::DType::kF32;
  const auto good = values_of(run(CpuPath::kScalar, 1, shape, cache, q, rows, type), 20, 32);
  ASSERT_EQ(compare(good, reference, 32, type), "");
  auto faulty = good;
  faulty[100] = -faulty[100];
  EXPECT_NE(compare(faulty, reference, 32, type), "");
  faulty = good;
  faulty[5] = NAN;
  EXPECT_NE(compare(faulty, reference, 32, type), "");
  faulty = good;
  std::copy_n(good.begin() + 32, 32, faulty.begin());  // row 1 in the place of row 0
  EXPECT_NE(compare(faulty, reference, 32, type).find("row 0"), std::string::npos);
  faulty = good;
  faulty[639] *= 1.0002;
  EXPECT_NE(compare(faulty, reference, 32, type), "");
}

TEST(Attention, WindowEdges) {
  uint32_t seed = 300;
  for (int window : {1, 2, 31, 32, 33, 63, 511, 512, 513, 600}) {
    AttentionShape shape = make_shape(6, 2, 32, KvType::kBF16);
    shape.window = window;
    const Cache cache(shape.kv, {1060}, seed++);
    std::vector<AttentionRow> rows = prompt_rows(cache, 0, 0, 3);
    for (const int middle : {31, 511, 543, 1023}) {
      for (const AttentionRow& row : prompt_rows(cache, 0, middle - 2, middle + 34))
        rows.push_back(row);
    }
    const auto q = random_values(seed, rows.size() * 6 * 32, 2.0f);
    check_all_paths(shape, cache, q, rows);
  }
}

// Keys that a row must not see are NaN: any use of one would show.
TEST(Attention, UnseenKeysAreNeverUsed) {
  for (KvType type : {KvType::kF32, KvType::kBF16}) {
    AttentionShape shape = make_shape(6, 2, 40, type);
    shape.window = 50;
    Cache cache(shape.kv, {700}, 17);
    const auto rows = prompt_rows(cache, 0, 560, 600);
    const auto q = random_values(18, rows.size() * 240, 2.0f);
    for (CpuPath path : paths_to_test()) {
      const GuardedRows before = run(path, 2, shape, cache, q, rows, format::DType::kF32);
      Cache poisoned(shape.kv, {700}, 17);
      // Visible to the first row: 511..560; to the last: 550..599.
      poisoned.write(0, 0, std::vector<float>(511 * 80, NAN), std::vector<float>(511 * 80, NAN));
      poisoned.write(0, 600, std::vector<float>(100 * 80, NAN), std::vector<float>(100 * 80, NAN));
      const GuardedRows after = run(path, 2, shape, poisoned, q, rows, format::DType::kF32);
      EXPECT_EQ(before.bytes(), after.bytes()) << cpu_path_name(path);
      // The first row alone, without its successors' keys.
      poisoned.write(0, 561, std::vector<float>(39 * 80, NAN),
                     std::vector<float>(39 * 80, INFINITY));
      const GuardedRows batch = run(path, 1, shape, poisoned, q, rows, format::DType::kF32);
      EXPECT_EQ(before.row_bytes(0), batch.row_bytes(0)) << cpu_path_name(path);
      EXPECT_TRUE(std::isnan(batch.at(39, 0)));  // and the poison does arrive where it is seen
    }
  }
}

TEST(Attention, ARowsBitsDependOnThatRowAlone) {
  struct Layout {
    int heads, kv_heads, head_dim, window;
    KvType type;
  };
  for (const Layout& l :
       {Layout{9, 3, 64, 0, KvType::kBF16}, Layout{4, 1, 24, 100, KvType::kF32},
        Layout{40, 1, 16, 0, KvType::kBF16}, Layout{3, 3, 136, 0, KvType::kF32}}) {
    AttentionShape shape = make_shape(l.heads, l.kv_heads, l.head_dim, l.type);
    shape.window = l.window;
    const Cache cache(shape.kv, {1100, 40, 1400}, 71);
    std::vector<AttentionRow> rows = prompt_rows(cache, 0, 1000, 1100);
    for (const AttentionRow& row : prompt_rows(cache, 1, 0, 40)) rows.push_back(row);
    rows.push_back({cache.table(2), 1399});
    const int64_t cols = int64_t{l.heads} * l.head_dim;
    const auto q = random_values(72, rows.size() * static_cast<size_t>(cols), 2.0f);
    const auto type = format::DType::kF32;
    for (CpuPath path : paths_to_test()) {
      const GuardedRows whole = run(path, 1, shape, cache, q, rows, type);
      for (int threads : {2, 3}) {
        EXPECT_EQ(whole.bytes(), run(path, threads, shape, cache, q, rows, type).bytes())
            << cpu_path_name(path) << " on " << threads << " threads";
      }
      const auto chunk_equals = [&](size_t first, size_t count, int threads) {
        const std::vector<float> part(q.begin() + static_cast<int64_t>(first) * cols,
                                      q.begin() + static_cast<int64_t>(first + count) * cols);
        const GuardedRows out =
            run(path, threads, shape, cache, part, std::span(rows).subspan(first, count), type);
        for (size_t r = 0; r < count; ++r) {
          if (whole.row_bytes(static_cast<int64_t>(first + r)) !=
              out.row_bytes(static_cast<int64_t>(r)))
            return false;
        }
        return true;
      };
      // Rows alone: threads then share the splits of one row.
      for (size_t row : {0u, 23u, 24u, 99u, 100u, 131u, 139u, 140u}) {
        for (int threads : {1, 2, 3}) {
          EXPECT_TRUE(chunk_equals(row, 1, threads))
              << cpu_path_name(path) << " row " << row << " on " << threads;
        }
      }
      for (size_t chunk : {7u, 33u, 64u}) {
        for (size_t first = 0; first < rows.size(); first += chunk) {
          EXPECT_TRUE(chunk_equals(first, std::min(chunk, rows.size() - first), 2))
              << cpu_path_name(path) << " chunk " << first << " of " << chunk;
        }
      }
    }
  }
}

// 64K keys, one of which has nine tenths of the mass: the partial results of 128 splits must merge
// without losing either part.
TEST(Attention, LongContextWithASink) {
  const int keys = 65536;
  const AttentionShape shape = make_shape(1, 1, 16, KvType::kF32);
  for (int sink : {5, 30000, keys - 1}) {
    Cache cache(shape.kv, {keys}, 90);
    auto k = random_values(91, static_cast<size_t>(keys) * 16, 0.01f);
    const auto v = random_values(92, static_cast<size_t>(keys) * 16);
    std::vector<float> q(16, 0.0f);
    q[0] = 4.0f;  // scores are about k[0]: 4 / sqrt(16) = 1
    for (int i = 0; i < 16; ++i) k[static_cast<size_t>(sink) * 16 + i] = 0.0f;
    k[static_cast<size_t>(sink) * 16] = std::log(9.0f * keys);
    cache.write(0, 0, k, v);
    const std::vector<AttentionRow> rows = {{cache.table(0), keys - 1}};
    const AttentionReference reference =
        attention_reference(shape, cache.pages(), {q.data(), 16}, rows);
    double mean = 0;  // the answer is 0.9 of the sink's value and 0.1 of a mean near 0
    for (int c = 0; c < 16; ++c)
      mean += std::abs(reference.value[static_cast<size_t>(c)] -
                       0.9 * v[static_cast<size_t>(sink) * 16 + static_cast<size_t>(c)]);
    EXPECT_LT(mean / 16, 2e-3);
    check_all_paths(shape, cache, q, rows);
  }
}

TEST(Attention, ExtremeScoresStayFinite) {
  for (float size : {1e4f, -1e4f}) {
    AttentionShape shape = make_shape(2, 1, 16, KvType::kF32);
    shape.scale = 1.0f;
    Cache cache(shape.kv, {1100}, 33);
    // Scores of +-1e4 with gaps of 20 between some keys: weights underflow, nothing overflows.
    auto k = random_values(34, 1100 * 16, 0.0f);
    const auto v = random_values(35, 1100 * 16);
    for (int key = 0; key < 1100; ++key)
      k[static_cast<size_t>(key) * 16] = size + static_cast<float>(key % 7 * 20);
    cache.write(0, 0, k, v);
    std::vector<float> q(3 * 32, 0.0f);
    for (size_t i = 0; i < q.size(); i += 16) q[i] = 1.0f;
    std::vector<AttentionRow> rows = {
        {cache.table(0), 0}, {cache.table(0), 700}, {cache.table(0), 1099}};
    check_all_paths(shape, cache, q, rows);
    for (CpuPath path : paths_to_test()) {
      const GuardedRows out = run(path, 2, shape, cache, q, rows, format::DType::kF32);
      for (int64_t r = 0; r < 3; ++r)
        for (int64_t c = 0; c < 32; ++c) EXPECT_TRUE(std::isfinite(out.at(r, c)));
    }
  }
}

TEST(Attention, RefusesShapesByName) {
  EXPECT_TRUE(check_attention(make_shape(9, 3, 64, KvType::kBF16)).ok());
  const auto refused = [](AttentionShape shape, std::string_view word) {
    const Status status = check_attention(shape);
    return !status.ok() && status.error().message.find(word) != std::string::npos;
  };
  EXPECT_TRUE(refused(make_shape(9, 3, 8, KvType::kBF16), "head_dim"));
  EXPECT_TRUE(refused(make_shape(9, 3, 512, KvType::kBF16), "head_dim"));
  EXPECT_TRUE(refused(make_shape(9, 2, 64, KvType::kBF16), "9 query heads"));
  EXPECT_TRUE(refused(make_shape(0, 1, 64, KvType::kBF16), "query heads"));
  AttentionShape shape = make_shape(4, 2, 64, KvType::kBF16);
  shape.window = -1;
  EXPECT_TRUE(refused(shape, "window"));
  shape.window = 0;
  shape.soft_cap = NAN;
  EXPECT_TRUE(refused(shape, "soft-cap"));
  ThreadPool pool(2);
  EXPECT_FALSE(attention(CpuPath::kScalar, pool, shape, nullptr, {}, {}, {}, {}).ok());
}

TEST(Attention, NoRowsTouchNothing) {
  ThreadPool pool(2);
  for (CpuPath path : paths_to_test()) {
    EXPECT_TRUE(
        attention(path, pool, make_shape(9, 3, 64, KvType::kBF16), nullptr, {}, {}, {}, {}).ok());
  }
}

}  // namespace
}  // namespace sub8::kernels
