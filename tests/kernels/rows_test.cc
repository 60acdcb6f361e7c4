// Embedding, residual addition, conversion, KV append, logits.
#include <algorithm>

#include <gtest/gtest.h>

#include "format/reference/block_reference.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/embed/embed.h"
#include "kernels/kernel_testing.h"
#include "kernels/kv_write/kv_write.h"
#include "kernels/sample/logits.h"

namespace sub8::kernels {
namespace {

using format::DType;

// Values at which rounding to bf16 could go wrong: ties, neighbours of ties, subnormals, the ends.
std::vector<float> hard_values() {
  std::vector<float> out;
  for (uint32_t high : {0x0000u, 0x0001u, 0x007fu, 0x0080u, 0x3f80u, 0x3f81u, 0x7f7fu, 0x7f80u}) {
    for (uint32_t low : {0x0000u, 0x0001u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
      const uint32_t bits = high << 16 | low;
      out.push_back(format::bits_float(bits));
      out.push_back(format::bits_float(bits | 0x80000000u));
    }
  }
  return out;  // infinities and NaNs included
}

TEST(Elementwise, ConvertsAsTheFormatsDo) {
  ThreadPool pool(2);
  auto x = hard_values();
  const auto more = random_values(1, 300);
  x.insert(x.end(), more.begin(), more.end());
  for (CpuPath path : paths_to_test()) {
    for (int64_t cols : {int64_t{1}, int64_t{7}, int64_t{19}, static_cast<int64_t>(x.size())}) {
      const int64_t rows = static_cast<int64_t>(x.size()) / cols;
      GuardedRows half(rows, cols, DType::kBF16);
      GuardedRows full(rows, cols, DType::kF32);
      convert_rows(path, pool, {x.data(), cols}, rows, cols, half.view());
      convert_rows(path, pool, {x.data(), cols}, rows, cols, full.view());
      EXPECT_TRUE(half.guards_intact());
      EXPECT_TRUE(full.guards_intact());
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t c = 0; c < cols; ++c) {
          const float value = x[r * cols + c];
          ASSERT_EQ(format::float_to_bf16(half.at(r, c)), format::float_to_bf16(value)) << value;
          ASSERT_EQ(format::float_bits(full.at(r, c)), format::float_bits(value));
        }
      }
    }
    convert_rows(path, pool, {}, 0, 8, {});
  }
}

TEST(Elementwise, AddsRows) {
  ThreadPool pool(3);
  for (CpuPath path : paths_to_test()) {
    for (int64_t cols : {1, 8, 15, 16, 33}) {
      auto x = random_values(2, static_cast<size_t>(5 * (cols + 2)));
      const auto before = x;
      const auto y = random_values(3, static_cast<size_t>(5 * cols));
      add_rows(path, pool, x.data(), cols + 2, {y.data(), cols}, 5, cols);
      for (int64_t r = 0; r < 5; ++r) {
        for (int64_t c = 0; c < cols + 2; ++c) {
          const float sum = before[r * (cols + 2) + c] + (c < cols ? y[r * cols + c] : 0.0f);
          ASSERT_EQ(x[r * (cols + 2) + c], sum);
        }
      }
    }
    add_rows(path, pool, nullptr, 0, {}, 0, 8);
  }
}

TEST(KvWrite, PutsTokensIntoTheirSlots) {
  ThreadPool pool(2);
  for (CpuPath path : paths_to_test()) {
    for (KvType type : {KvType::kF32, KvType::kBF16}) {
      for (int head_dim : {16, 24, 64}) {
        const KvLayout layout{type, 3, head_dim};
        const int64_t cols = 3 * head_dim;
        const int64_t size = layout.element_bits() / 8;
        ASSERT_EQ(layout.page_bytes(), 2 * 3 * 32 * head_dim * size);
        const int64_t pages = 4;
        std::vector<uint8_t> memory(static_cast<size_t>(pages * layout.page_bytes()), 0xff);
        const std::vector<int64_t> slots = {2 * 32 + 31, 0, 3 * 32 + 7, 31};
        auto k = random_values(20, static_cast<size_t>(4 * cols));
        const auto v = random_values(21, static_cast<size_t>(4 * cols));
        const auto hard = hard_values();
        std::copy_n(hard.begin(), 40, k.begin());
        kv_write(path, pool, {k.data(), cols}, {v.data(), cols}, 4, slots.data(),
                 {layout, memory.data()});
        // Every element of the memory: written where it belongs, poison elsewhere.
        int64_t written = 0;
        for (int64_t element = 0; element < pages * 2 * 3 * 32 * head_dim; ++element) {
          const int64_t d = element % head_dim;
          const int64_t offset = element / head_dim % 32;
          const int64_t head = element / head_dim / 32 % 3;
          const int64_t part = element / head_dim / 32 / 3 % 2;
          const int64_t page = element / head_dim / 32 / 3 / 2;
          const auto slot = std::find(slots.begin(), slots.end(), page * 32 + offset);
          uint32_t want = size == 4 ? 0xffffffffu : 0xffffu;
          if (slot != slots.end()) {
            const int64_t at = (slot - slots.begin()) * cols + head * head_dim + d;
            const float x = part == 0 ? k[at] : v[at];
            want = size == 4 ? format::float_bits(x) : format::float_to_bf16(x);
            ++written;
          }
          uint32_t got = 0;
          std::memcpy(&got, memory.data() + element * size, static_cast<size_t>(size));
          ASSERT_EQ(got, want) << "element " << element;
        }
        EXPECT_EQ(written, 4 * 2 * cols);
      }
    }
    kv_write(path, pool, {}, {}, 0, nullptr, {});
  }
}

// Codes and scales of every token against the block rules' independent reference; poison elsewhere.
TEST(KvWrite, CodedPagesHoldTheReferencesBytes) {
  ThreadPool pool(2);
  const reference::Element e4m3(4, 3);
  for (KvType type : {KvType::kFp8, KvType::kNvfp4}) {
    for (int d : {16, 24, 64, 72}) {
      for (const KvScales scales :
           {KvScales{}, KvScales{0.01f, 0.003f}, KvScales{0x1p-40f, 7.0f}}) {
        for (const bool round : {true, false}) {
          const KvLayout layout{type, 3, d};
          const int blocks = type == KvType::kNvfp4 ? (d + 15) / 16 : 0;
          const int64_t data_bytes = type == KvType::kNvfp4 ? d / 2 : d;
          ASSERT_EQ(layout.page_bytes(), 2 * 3 * 32 * (data_bytes + blocks));
          std::vector<uint8_t> memory(static_cast<size_t>(2 * layout.page_bytes()), 0xee);
          const std::vector<int64_t> slots = {32 + 31, 0, 7};
          const int64_t cols = 3 * d;
          auto k = random_values(20, static_cast<size_t>(3 * cols), 3.0f);
          auto v = random_values(21, static_cast<size_t>(3 * cols), 3.0f);
          std::fill_n(k.begin() + 16, 8, -0.0f);   // with 8 to follow: part of a block
          std::fill_n(v.begin(), 16, 0.0f);        // a whole one
          v[static_cast<size_t>(cols)] = 3000.0f;  // beyond V's largest scale where alpha is 1
          k[static_cast<size_t>(cols)] = 3000.0f;
          std::vector<uint8_t> want = memory;
          for (int64_t r = 0; r < 3; ++r) {
            for (int part = 0; part < 2; ++part) {
              const auto& in = part == 0 ? k : v;
              const double alpha = part == 0 ? scales.k : scales.v;
              uint8_t* at = want.data() + slots[static_cast<size_t>(r)] / 32 * layout.page_bytes() +
                            part * 3 * 32 * (data_bytes + blocks);
              for (int h = 0; h < 3; ++h) {
                std::vector<float> x(in.begin() + r * cols + h * d,
                                     in.begin() + r * cols + (h + 1) * d);
                if (round)
                  for (float& value : x) value = format::round_to_bf16(value);
                const int64_t token = h * 32 + slots[static_cast<size_t>(r)] % 32;
                if (type == KvType::kFp8) {
                  for (int i = 0; i < d; ++i)
                    at[token * d + i] = static_cast<uint8_t>(e4m3.encode(
                        reference::fp32(x[static_cast<size_t>(i)] * reference::fp32(1 / alpha))));
                  continue;
                }
                const reference::Row row = reference::nvfp4_kv(alpha, part == 1, x);
                for (int b = 0; b < blocks; ++b)
                  at[3 * 32 * data_bytes + token * blocks + b] =
                      static_cast<uint8_t>(row.block_scales[static_cast<size_t>(b)]);
                for (int i = 0; i < d; i += 2)
                  at[token * data_bytes + i / 2] =
                      static_cast<uint8_t>(row.codes[static_cast<size_t>(i)] |
                                           row.codes[static_cast<size_t>(i) + 1] << 4);
              }
            }
          }
          for (CpuPath path : paths_to_test()) {
            std::vector<uint8_t> got = memory;
            kv_write(path, pool, {k.data(), cols}, {v.data(), cols}, 3, slots.data(),
                     {layout, got.data(), scales, round});
            ASSERT_EQ(got, want) << kv_type_name(type) << " head_dim " << d << " alpha "
                                 << scales.k;
          }
        }
      }
    }
  }
}

TEST(KvPages, RefusesLayoutsByName) {
  EXPECT_TRUE(check_kv_layout({KvType::kBF16, 3, 64}).ok());
  EXPECT_TRUE(check_kv_layout({KvType::kF32, 1, 256}).ok());
  for (int head_dim : {0, 8, 12, 20, 264, 512}) {
    const Status status = check_kv_layout({KvType::kBF16, 3, head_dim});
    ASSERT_FALSE(status.ok()) << head_dim;
    EXPECT_EQ(status.error().code, ErrorCode::kUnsupported);
    EXPECT_NE(status.error().message.find(std::to_string(head_dim)), std::string::npos);
  }
  EXPECT_FALSE(check_kv_layout({KvType::kBF16, 0, 64}).ok());
  EXPECT_TRUE(check_kv_layout({KvType::kNvfp4, 3, 24}).ok());
  for (KvType type : {KvType::kF32, KvType::kBF16, KvType::kFp8, KvType::kNvfp4})
    EXPECT_EQ(parse_kv_type(kv_type_name(type)).value(), type);
  EXPECT_FALSE(parse_kv_type("int8").ok());
}

StoredMatrix dense_table(const std::vector<uint16_t>& bits, int64_t rows, int64_t cols) {
  StoredMatrix table;
  table.format = format::dense_format(DType::kBF16);
  table.rows = rows;
  table.cols = cols;
  table.codes = {reinterpret_cast<const uint8_t*>(bits.data()), bits.size() * 2};
  return table;
}

TEST(Embed, TakesRowsTimesTheMultiplier) {
  ThreadPool pool(2);
  const auto values = random_values(30, 6 * 10);
  std::vector<uint16_t> bits;
  for (float x : values) bits.push_back(format::float_to_bf16(x));
  const StoredMatrix table = dense_table(bits, 6, 10);
  const std::vector<int32_t> ids = {5, 0, 5, 2};
  for (float multiplier : {1.0f, 25.25f}) {
    std::vector<float> out(4 * 12, -1.0f);
    ASSERT_TRUE(embed(pool, table, ids, multiplier, out.data(), 12).ok());
    for (int64_t r = 0; r < 4; ++r) {
      for (int64_t c = 0; c < 12; ++c) {
        const float want =
            c < 10 ? format::bf16_to_float(bits[ids[r] * 10 + c]) * multiplier : -1.0f;
        ASSERT_EQ(out[r * 12 + c], want);
      }
    }
  }
  for (int32_t bad : {-1, 6}) {
    float untouched = 3.0f;
    const std::vector<int32_t> wrong = {bad};
    const Status status = embed(pool, table, wrong, 1.0f, &untouched, 10);
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().code, ErrorCode::kInvalidArgument);
    EXPECT_NE(status.error().message.find(std::to_string(bad)), std::string::npos);
    EXPECT_EQ(untouched, 3.0f);
  }
  EXPECT_TRUE(embed(pool, table, {}, 1.0f, nullptr, 0).ok());
}

TEST(Embed, DecodesCodedTablesAndAddsPositions) {
  ThreadPool pool(2);
  // e2m1 with one scale per channel: codes 1 (0.5) and 0xe (-4), times the row's scale.
  const std::vector<uint8_t> codes = {0xe1, 0x11, 0xee, 0x1e};
  StoredMatrix table;
  table.format = format::channel_format(format::kE2M1);
  table.rows = 2;
  table.cols = 4;
  table.codes = codes;
  table.outer_scales = {2.0f, 3.0f};
  const std::vector<int32_t> ids = {1, 0};
  std::vector<float> out(8);
  ASSERT_TRUE(embed(pool, table, ids, 1.0f, out.data(), 4).ok());
  EXPECT_EQ(out, (std::vector<float>{-12, -12, -12, 1.5f, 1, -8, 1, 1}));

  const std::vector<int32_t> positions = {0, 1};
  std::vector<float> scratch(8);
  StoredMatrix learned = table;  // two rows: offset 2 needs four
  const Status outside =
      add_position_embedding(pool, learned, positions, 2, out.data(), 4, scratch);
  ASSERT_FALSE(outside.ok());
  EXPECT_NE(outside.error().message.find("offset 2"), std::string::npos);
  const std::vector<int32_t> first = {0, 0};
  ASSERT_TRUE(add_position_embedding(pool, learned, first, 1, out.data(), 4, scratch).ok());
  EXPECT_EQ(out, (std::vector<float>{-24, -24, -24, 3, -11, -20, -11, 2.5f}));
}

TEST(Logits, ArgmaxTakesTheLowestIndexAndSkipsNaN) {
  for (CpuPath path : paths_to_test()) {
    for (int64_t n : {1, 3, 8, 17, 100, 49152}) {
      auto x = random_values(40, static_cast<size_t>(n));
      const auto want = std::max_element(x.begin(), x.end()) - x.begin();
      EXPECT_EQ(argmax(path, x.data(), n), want);
      x[static_cast<size_t>(n - 1)] = 100.0f;
      EXPECT_EQ(argmax(path, x.data(), n), n - 1);
      x[0] = 100.0f;
      EXPECT_EQ(argmax(path, x.data(), n), 0);
      if (n > 2) {
        x[0] = NAN;
        EXPECT_EQ(argmax(path, x.data(), n), n - 1);
      }
    }
    const std::vector<float> all_nan(20, NAN);
    EXPECT_EQ(argmax(path, all_nan.data(), 20), 0);
    const std::vector<float> low(20, -INFINITY);
    EXPECT_EQ(argmax(path, low.data(), 20), 0);
  }
}

TEST(Logits, LogSumExp) {
  for (CpuPath path : paths_to_test()) {
    for (int64_t n : {1, 5, 16, 1001, 49152}) {
      for (float shift : {0.0f, 1e4f, -1e4f}) {
        auto x = random_values(41, static_cast<size_t>(n), 4.0f);
        for (float& v : x) v += shift;
        const double top = *std::max_element(x.begin(), x.end());
        double sum = 0;
        for (float v : x) sum += std::exp(v - top);
        EXPECT_NEAR(log_sum_exp(path, x.data(), n), top + std::log(sum), 2e-6);
        auto terms = x;
        EXPECT_NEAR(exp_shifted(path, x.data(), n, terms.data()), sum, 2e-6 * sum);
        for (int64_t i = 0; i < n; ++i)
          ASSERT_NEAR(terms[i], std::exp(x[i] - top), 5e-6 * std::exp(x[i] - top) + 1e-37);
      }
    }
    const std::vector<float> low(20, -INFINITY);
    EXPECT_EQ(log_sum_exp(path, low.data(), 20), -INFINITY);
    const std::vector<float> nan(20, NAN);
    EXPECT_FALSE(std::isfinite(log_sum_exp(path, nan.data(), 20)));
  }
}

}  // namespace
}  // namespace sub8::kernels
