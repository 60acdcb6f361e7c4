// Coded KV pages and the kinds of attention that quantise queries.
#include <algorithm>

#include "kernels/attention_testing.h"

namespace sub8::kernels {
namespace {

struct Case {
  int heads, kv_heads, head_dim, window;
  float soft_cap;
  KvType type;
  AttentionKind kind = AttentionKind::k16Bit;
  KvScales scales = {};
  bool sinks = false;
};

AttentionShape shape_of(const Case& c) {
  AttentionShape shape = make_shape(c.heads, c.kv_heads, c.head_dim, c.type);
  shape.window = c.window;
  shape.soft_cap = c.soft_cap;
  shape.kind = c.kind;
  shape.kv_scales = c.scales;
  return shape;
}

// The end of a short prompt, a chunk across a split, a first token, a generated row.
std::vector<AttentionRow> some_rows(const Cache& cache) {
  std::vector<AttentionRow> rows = prompt_rows(cache, 0, 60, 70);
  for (const AttentionRow& row : prompt_rows(cache, 1, 508, 515)) rows.push_back(row);
  rows.push_back({cache.table(2), 0});
  rows.push_back({cache.table(1), 1099});
  return rows;
}

TEST(CodedPages, MatchTheDoubleReference) {
  const Case cases[] = {
      {9, 3, 64, 0, 0, KvType::kFp8},
      {9, 3, 64, 0, 0, KvType::kNvfp4},
      {4, 1, 24, 40, 0, KvType::kNvfp4, {}, {0.013f, 0.007f}, true},
      {2, 2, 40, 0, 30.0f, KvType::kFp8, {}, {0.01f, 0.02f}},
      {8, 2, 128, 0, 0, KvType::kNvfp4, AttentionKind::kResAttn},
      {9, 3, 64, 0, 0, KvType::kNvfp4, AttentionKind::kResAttn, {0.009f, 0.01f}},
      {4, 1, 256, 600, 50.0f, KvType::kNvfp4, AttentionKind::kResAttn, {}, true},
      {5, 1, 24, 0, 0, KvType::kNvfp4, AttentionKind::kResAttn, {0.3f, 4.0f}},
      {40, 1, 40, 0, 0, KvType::kNvfp4, AttentionKind::kResAttn},
      {9, 3, 64, 0, 0, KvType::kNvfp4, AttentionKind::kFp4Query},
      {9, 3, 64, 0, 0, KvType::kNvfp4, AttentionKind::kFp8Query, {0.01f, 0.01f}},
      {4, 2, 72, 33, 0, KvType::kFp8, AttentionKind::kFp8Query, {}, true},
      {4, 2, 64, 0, 0, KvType::kNvfp4, AttentionKind::kResAttnV8},
      {4, 2, 64, 0, 0, KvType::kNvfp4, AttentionKind::kResAttnPv16, {0.01f, 0.02f}},
  };
  uint32_t seed = 500;
  for (const Case& c : cases) {
    AttentionShape shape = shape_of(c);
    const auto sinks = random_values(seed, static_cast<size_t>(c.heads));
    if (c.sinks) shape.sinks = sinks.data();
    const Cache cache(shape.kv, {70, 1100, 1}, seed++, 1.0f, c.scales);
    const auto rows = some_rows(cache);
    const auto q = random_values(
        seed++, rows.size() * static_cast<size_t>(c.heads) * static_cast<size_t>(c.head_dim), 2.0f);
    SCOPED_TRACE(std::string(attention_kind_name(c.kind)) + " over " +
                 std::string(kv_type_name(c.type)));
    check_all_paths(shape, cache, q, rows);
  }
}

// The bounds are tight enough to tell every kind from every other, and to see a forgotten scale, a
// residue that is missing, a V that was not rounded.
TEST(ResAttn, TheBoundsTellTheKindsApart) {
  AttentionShape shape = make_shape(4, 2, 64, KvType::kNvfp4);
  shape.kv_scales = {0.011f, 0.012f};
  const Cache cache(shape.kv, {70, 1100, 1}, 41, 1.0f, shape.kv_scales);
  const auto rows = some_rows(cache);
  const int64_t cols = 256;
  const auto q = random_values(42, rows.size() * static_cast<size_t>(cols), 2.0f);
  const auto type = format::DType::kF32;
  const AttentionKind kinds[] = {AttentionKind::k16Bit,     AttentionKind::kFp8Query,
                                 AttentionKind::kFp4Query,  AttentionKind::kResAttn,
                                 AttentionKind::kResAttnV8, AttentionKind::kResAttnPv16};
  const auto values = [&](const AttentionShape& s) {
    return values_of(run(CpuPath::kScalar, 1, s, cache, q, rows, type),
                     static_cast<int64_t>(rows.size()), cols);
  };
  for (const AttentionKind wanted : kinds) {
    shape.kind = wanted;
    const AttentionReference reference =
        attention_reference(shape, cache.pages(), {q.data(), cols}, rows);
    for (const AttentionKind got : kinds) {
      AttentionShape other = shape;
      other.kind = got;
      EXPECT_EQ(compare(values(other), reference, cols, type).empty(), got == wanted)
          << attention_kind_name(got) << " against " << attention_kind_name(wanted);
    }
    for (const KvScales scales : {KvScales{0.0115f, 0.012f}, KvScales{0.011f, 0.0121f}}) {
      AttentionShape other = shape;
      other.kv_scales = scales;
      EXPECT_NE(compare(values(other), reference, cols, type), "") << attention_kind_name(wanted);
    }
  }
}

TEST(ResAttn, ARowsBitsDependOnThatRowAlone) {
  for (const Case& c : {Case{9, 3, 64, 0, 0, KvType::kNvfp4, AttentionKind::kResAttn},
                        Case{4, 1, 24, 100, 0, KvType::kNvfp4, AttentionKind::kFp4Query},
                        Case{40, 1, 40, 0, 0, KvType::kFp8, AttentionKind::kFp8Query},
                        Case{4, 2, 72, 0, 0, KvType::kNvfp4, AttentionKind::k16Bit}}) {
    const AttentionShape shape = shape_of(c);
    const Cache cache(shape.kv, {1100, 40}, 71);
    // The same tokens on other pages.
    const Cache moved(shape.kv, {1100, 40}, 71 + 1000000);
    std::vector<AttentionRow> rows = prompt_rows(cache, 0, 1030, 1080);
    rows.push_back({cache.table(1), 39});
    const int64_t cols = int64_t{c.heads} * c.head_dim;
    const auto q = random_values(72, rows.size() * static_cast<size_t>(cols), 2.0f);
    const auto type = format::DType::kF32;
    for (CpuPath path : paths_to_test()) {
      const GuardedRows whole = run(path, 1, shape, cache, q, rows, type);
      for (int threads : {2, 3})
        EXPECT_EQ(whole.bytes(), run(path, threads, shape, cache, q, rows, type).bytes());
      for (const auto& [first, count] :
           {std::pair<size_t, size_t>{0, 1}, {7, 9}, {25, 26}, {50, 1}}) {
        const std::vector<float> part(q.begin() + static_cast<int64_t>(first) * cols,
                                      q.begin() + static_cast<int64_t>(first + count) * cols);
        for (int threads : {1, 3}) {
          const GuardedRows out =
              run(path, threads, shape, cache, part, std::span(rows).subspan(first, count), type);
          for (size_t r = 0; r < count; ++r) {
            EXPECT_EQ(whole.row_bytes(static_cast<int64_t>(first + r)),
                      out.row_bytes(static_cast<int64_t>(r)))
                << cpu_path_name(path) << " row " << first + r << " on " << threads;
          }
        }
      }
    }
  }
}

// Slots without a token hold 0xff: NaN scales and codes.
TEST(ResAttn, UnseenKeysAreNeverUsedAndSeenNansShow) {
  for (const KvType type : {KvType::kFp8, KvType::kNvfp4}) {
    AttentionShape shape = make_shape(6, 2, 40, type);
    shape.kind = type == KvType::kFp8 ? AttentionKind::kFp8Query : AttentionKind::kResAttn;
    Cache cache(shape.kv, {100}, 17);
    const auto rows = prompt_rows(cache, 0, 60, 70);
    const auto q = random_values(18, rows.size() * 240, 2.0f);
    for (CpuPath path : paths_to_test()) {
      const GuardedRows before = run(path, 1, shape, cache, q, rows, format::DType::kF32);
      Cache poisoned(shape.kv, {100}, 17);
      const std::vector<float> nan(31 * 80, NAN);
      poisoned.write(0, 69, nan, nan);
      const GuardedRows after = run(path, 1, shape, poisoned, q, rows, format::DType::kF32);
      for (int64_t r = 0; r < 9; ++r) EXPECT_EQ(before.row_bytes(r), after.row_bytes(r));
      for (int64_t c = 0; c < 240; ++c) {
        EXPECT_TRUE(std::isfinite(before.at(9, c)));
        EXPECT_TRUE(std::isnan(after.at(9, c)));
      }
    }
  }
}

// 128K keys, one with most of the mass: partial results of 256 splits merge without losing
// either part, although each split rounds its probabilities against its own maximum.
TEST(ResAttn, LongContextWithASink) {
  const int keys = 131072;
  AttentionShape shape = make_shape(1, 1, 16, KvType::kNvfp4);
  shape.kind = AttentionKind::kResAttn;
  shape.kv_scales = {1.0f, 0.01f};
  for (int sink : {5, keys - 1}) {
    Cache cache(shape.kv, {keys}, 90, 0.01f, shape.kv_scales);
    auto k = random_values(91, static_cast<size_t>(keys) * 16, 0.01f);
    const auto v = random_values(92, static_cast<size_t>(keys) * 16);
    std::vector<float> q(16, 0.0f);
    q[0] = 4.0f;
    for (int i = 0; i < 16; ++i) k[static_cast<size_t>(sink) * 16 + i] = 0.0f;
    k[static_cast<size_t>(sink) * 16] = 14.0f;  // stored as 13.5: six times the others together
    cache.write(0, 0, k, v);
    const std::vector<AttentionRow> rows = {{cache.table(0), keys - 1}};
    const AttentionReference reference =
        attention_reference(shape, cache.pages(), {q.data(), 16}, rows);
    double along = 0;  // the output's component along the sink's value, and that value's energy
    double energy = 0;
    for (size_t c = 0; c < 16; ++c) {
      const double value = v[static_cast<size_t>(sink) * 16 + c];
      along += reference.value[c] * value;
      energy += value * value;
    }
    EXPECT_GT(along, 0.75 * energy);
    EXPECT_LT(along, 0.95 * energy);
    check_all_paths(shape, cache, q, rows);
  }
}

TEST(ResAttn, RefusesPagesAndScalesByName) {
  const auto refused = [](AttentionShape shape, std::string_view word) {
    const Status status = check_attention(shape);
    return !status.ok() && status.error().message.find(word) != std::string::npos;
  };
  AttentionShape shape = make_shape(4, 2, 64, KvType::kFp8);
  EXPECT_TRUE(check_attention(shape).ok());
  shape.kind = AttentionKind::kResAttn;
  EXPECT_TRUE(refused(shape, "'resattn' needs nvfp4 KV pages, and these are fp8"));
  shape.kv.type = KvType::kBF16;
  shape.kind = AttentionKind::kFp8Query;
  EXPECT_TRUE(refused(shape, "nvfp4 or fp8"));
  shape.kv.type = KvType::kNvfp4;
  EXPECT_TRUE(check_attention(shape).ok());
  for (const float bad : {0.0f, -1.0f, 0x1p-118f, 0x1p116f, INFINITY, NAN}) {
    shape.kv_scales = {1.0f, bad};
    EXPECT_TRUE(refused(shape, "KV cache scale")) << bad;
    shape.kv_scales = {bad, 1.0f};
    EXPECT_TRUE(refused(shape, "KV cache scale")) << bad;
  }
  for (const char* name :
       {"16-bit", "fp8-query", "fp4-query", "resattn", "resattn-v8", "resattn-pv16"})
    EXPECT_EQ(attention_kind_name(parse_attention_kind(name).value()), name);
  const auto unknown = parse_attention_kind("fp6-query");
  ASSERT_FALSE(unknown.ok());
  EXPECT_NE(unknown.error().message.find("resattn-pv16"), std::string::npos);
}

}  // namespace
}  // namespace sub8::kernels
