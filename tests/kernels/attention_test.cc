#include "kernels/attention/attention.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include <gtest/gtest.h>

#include "base/aligned_buffer.h"
#include "kernels/attention/reference.h"
#include "kernels/kernel_testing.h"
#include "kernels/kv_write/kv_write.h"

namespace sub8::kernels {
namespace {

// Sequences whose keys and values lie in permuted pages; slots that hold no token are NaN.
class Cache {
 public:
  Cache(KvLayout layout, std::vector<int> lengths, uint32_t seed, float spread = 1.0f)
      : layout_(layout) {
    int pages = 3;  // some that nobody owns
    for (int length : lengths) pages += (length + 31) / 32;
    data_ = AlignedBuffer<uint8_t>::uninitialized(static_cast<size_t>(pages * layout.page_bytes()))
                .value();
    std::memset(data_.data(), 0xff, data_.size());
    std::vector<int32_t> free(static_cast<size_t>(pages));
    std::iota(free.begin(), free.end(), 0);
    std::shuffle(free.begin(), free.end(), std::mt19937(seed));
    for (int length : lengths) {
      std::vector<int32_t> table;
      for (int i = 0; i < (length + 31) / 32; ++i) {
        table.push_back(free.back());
        free.pop_back();
      }
      tables_.push_back(std::move(table));
      const int64_t cols = int64_t{layout.kv_heads} * layout.head_dim;
      const auto k = random_values(seed * 2 + 1, static_cast<size_t>(length * cols), spread);
      const auto v = random_values(seed * 2 + 2, static_cast<size_t>(length * cols));
      write(static_cast<int>(tables_.size()) - 1, 0, k, v);
      ++seed;
    }
  }

  void write(int sequence, int first, const std::vector<float>& k, const std::vector<float>& v) {
    const int64_t cols = int64_t{layout_.kv_heads} * layout_.head_dim;
    const auto count = static_cast<int64_t>(k.size()) / cols;
    std::vector<int64_t> slots;
    for (int64_t i = first; i < first + count; ++i)
      slots.push_back(int64_t{table(sequence)[i / 32]} * 32 + i % 32);
    ThreadPool pool(1);
    kv_write(CpuPath::kScalar, pool, {k.data(), cols}, {v.data(), cols}, count, slots.data(),
             {layout_, data_.data()});
  }

  const int32_t* table(int sequence) const { return tables_[static_cast<size_t>(sequence)].data(); }
  const uint8_t* pages() const { return data_.data(); }

 private:
  KvLayout layout_;
  AlignedBuffer<uint8_t> data_;
  std::vector<std::vector<int32_t>> tables_;
};

AttentionShape make_shape(int heads, int kv_heads, int head_dim, KvType type) {
  AttentionShape shape;
  shape.heads = heads;
  shape.kv = {type, kv_heads, head_dim};
  shape.scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
  return shape;
}

GuardedRows run(CpuPath path, int threads, const AttentionShape& shape, const Cache& cache,
                const std::vector<float>& q, std::span<const AttentionRow> rows,
                format::DType type) {
  ThreadPool pool(threads);
  const int64_t cols = int64_t{shape.heads} * shape.kv.head_dim;
  GuardedRows out(static_cast<int64_t>(rows.size()), cols, type);
  int32_t longest = 0;
  for (const AttentionRow& row : rows) longest = std::max(longest, row.position);
  auto workspace = AlignedBuffer<std::byte>::uninitialized(
                       attention_workspace_bytes(shape, threads, longest + 1))
                       .value();
  std::memset(workspace.data(), 0xff, workspace.size());
  const Status status = attention(path, pool, shape, cache.pages(), {q.data(), cols}, rows,
                                  out.view(), workspace.span());
  EXPECT_TRUE(status.ok());
  EXPECT_TRUE(out.guards_intact());
  return out;
}

// What is outside the bound: empty if nothing, else the first element and their number.
std::string compare(const std::vector<double>& got, const AttentionReference& reference,
                    int64_t cols, format::DType type) {
  int64_t bad = 0;
  std::string first;
  for (size_t i = 0; i < reference.value.size(); ++i) {
    const double want = reference.value[i];
    const double bound = reference.bound[i] + half_unit(type, std::abs(want) + reference.bound[i]);
    if (std::abs(got[i] - want) <= bound) continue;  // NaN is outside
    if (bad++ == 0) {
      const auto at = static_cast<int64_t>(i);
      first = "row " + std::to_string(at / cols) + " column " + std::to_string(at % cols) + " is " +
              std::to_string(got[i]) + ", expected " + std::to_string(want) + " within " +
              std::to_string(bound);
    }
  }
  return bad == 0 ? "" : first + "; " + std::to_string(bad) + " elements in all";
}

std::vector<double> values_of(const GuardedRows& out, int64_t rows, int64_t cols) {
  std::vector<double> values;
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < cols; ++c) values.push_back(out.at(r, c));
  return values;
}

// Runs every path in both output types against the reference.
void check_all_paths(const AttentionShape& shape, const Cache& cache, const std::vector<float>& q,
                     std::span<const AttentionRow> rows) {
  const int64_t cols = int64_t{shape.heads} * shape.kv.head_dim;
  const AttentionReference reference =
      attention_reference(shape, cache.pages(), {q.data(), cols}, rows);
  for (CpuPath path : paths_to_test()) {
    for (format::DType type : {format::DType::kF32, format::DType::kBF16}) {
      const GuardedRows out = run(path, 2, shape, cache, q, rows, type);
      EXPECT_EQ(
          compare(values_of(out, static_cast<int64_t>(rows.size()), cols), reference, cols, type),
          "")
          << cpu_path_name(path) << " heads " << shape.heads << "/" << shape.kv.kv_heads
          << " head_dim " << shape.kv.head_dim << " window " << shape.window;
    }
  }
}

std::vector<AttentionRow> prompt_rows(const Cache& cache, int sequence, int first, int end) {
  std::vector<AttentionRow> rows;
  for (int p = first; p < end; ++p) rows.push_back({cache.table(sequence), p});
  return rows;
}

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
