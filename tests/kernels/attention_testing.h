// What the tests of attention share: caches on scattered pages, one call on guarded output, the
// comparison with the reference.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/aligned_buffer.h"
#include "kernels/attention/attention.h"
#include "kernels/attention/reference.h"
#include "kernels/kernel_testing.h"
#include "kernels/kv_write/kv_write.h"

namespace sub8::kernels {

// Sequences whose keys and values lie in permuted pages; slots that hold no token are NaN.
class Cache {
 public:
  Cache(KvLayout layout, std::vector<int> lengths, uint32_t seed, float spread = 1.0f,
        KvScales scales = {})
      : layout_(layout), scales_(scales) {
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
             {layout_, data_.data(), scales_});
  }

  const int32_t* table(int sequence) const { return tables_[static_cast<size_t>(sequence)].data(); }
  const uint8_t* pages() const { return data_.data(); }

 private:
  KvLayout layout_;
  KvScales scales_;
  AlignedBuffer<uint8_t> data_;
  std::vector<std::vector<int32_t>> tables_;
};

inline AttentionShape make_shape(int heads, int kv_heads, int head_dim, KvType type) {
  AttentionShape shape;
  shape.heads = heads;
  shape.kv = {type, kv_heads, head_dim};
  shape.scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
  return shape;
}

inline GuardedRows run(CpuPath path, int threads, const AttentionShape& shape, const Cache& cache,
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
inline std::string compare(const std::vector<double>& got, const AttentionReference& reference,
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

inline std::vector<double> values_of(const GuardedRows& out, int64_t rows, int64_t cols) {
  std::vector<double> values;
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < cols; ++c) values.push_back(out.at(r, c));
  return values;
}

// Runs every path in both output types against the reference.
inline void check_all_paths(const AttentionShape& shape, const Cache& cache,
                            const std::vector<float>& q, std::span<const AttentionRow> rows) {
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

inline std::vector<AttentionRow> prompt_rows(const Cache& cache, int sequence, int first, int end) {
  std::vector<AttentionRow> rows;
  for (int p = first; p < end; ++p) rows.push_back({cache.table(sequence), p});
  return rows;
}

}  // namespace sub8::kernels
