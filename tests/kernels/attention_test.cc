#include "kernels/attention/attention.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include <gtest/gtest.h>

#include "base/aligned_buffer.h"
#include "kernels/attention/reference.h"
#include "kernels/kv_write/kv_write.h"
#include "kernels/kernel_testing.h"

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

// The number of elements outside the bound; prints the first.
int compare(const GuardedRows& out, const AttentionReference& reference, int64_t cols,
            format::DType type, const std::string& what) {
  int bad = 0;
  for (size_t i = 0; i < reference.value.size(); ++i) {
    const auto at = static_cast<int64_t>(i);
    const double got = out.at(at / cols, at % cols);
    const double want = reference.value[i];
    const double bound = reference.bound[i] + half_unit(type, std::abs(want) + reference.bound[i]);
    if (std::abs(got - want) <= bound) continue;
    if (bad++ == 0) {
      ADD_FAILURE() << what << ": row " << at / cols << " column " << at % cols << " is " << got
                    << ", expected " << want << " within " << bound;
    }
  }
  return bad;
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
    const AttentionReference reference =
        attention_reference(shape, cache.pages(), {q.data(), cols}, rows);
    for (CpuPath path : paths_to_test()) {
      for (format::DType type : {format::DType::kF32, format::DType::kBF16}) {
        const GuardedRows out = run(path, 2, shape, cache, q, rows, type);
        const std::string what = std::string(cpu_path_name(path)) + " heads " +
                                 std::to_string(c.heads) + "/" + std::to_string(c.kv_heads) +
                                 " head_dim " + std::to_string(c.head_dim);
        EXPECT_EQ(compare(out, reference, cols, type, what), 0) << what;
      }
    }
  }
}

}  // namespace
}  // namespace sub8::kernels
