#include "pack/linear_cpu.h"

#include <cstdio>
#include <map>
#include <string>

#include <gtest/gtest.h>

#include "pack/placement_table.h"
#include "pack/scatter.h"

namespace sub8 {
namespace {

// xorshift64*: the goldens below must not depend on a library's generator.
struct Random {
  uint64_t state;
  uint64_t next() {
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    return state * 0x2545f4914f6cdd1dull;
  }
};

struct Owned {
  StoredMatrix m;
  std::vector<uint8_t> codes;
  std::vector<uint8_t> scales;
};

// Finite codes in every position; dense values have small exponents.
std::unique_ptr<Owned> make_matrix(const format::WeightFormat& f, int64_t rows, int64_t cols,
                                   uint64_t seed) {
  auto out = std::make_unique<Owned>();
  Random rng{seed};
  const int64_t row_bytes = f.row_bytes(cols);
  out->codes.resize(static_cast<size_t>(rows * row_bytes));
  std::vector<uint8_t> codes(static_cast<size_t>(cols));
  for (int64_t n = 0; n < rows; ++n) {
    uint8_t* row = out->codes.data() + n * row_bytes;
    if (f.dense) {
      for (int64_t i = 0; i < row_bytes; ++i) row[i] = static_cast<uint8_t>(rng.next() % 0x3c);
      continue;
    }
    for (uint8_t& code : codes) {
      do {
        code = static_cast<uint8_t>((rng.next() >> 32) & (f.element.code_count() - 1));
      } while (f.element.is_nonfinite(code));
    }
    format::pack_codes(codes.data(), cols, f.element.bits(), row);
  }
  for (int64_t i = 0; i < rows * f.groups(cols); ++i)
    out->scales.push_back(static_cast<uint8_t>(1 + (rng.next() >> 32) % 0x7e));
  const int64_t outer = f.outer_scale == format::OuterScale::kChannel  ? rows
                        : f.outer_scale == format::OuterScale::kTensor ? 1
                                                                       : 0;
  for (int64_t i = 0; i < outer; ++i)
    out->m.outer_scales.push_back(static_cast<float>(1 + (rng.next() >> 32) % 99) * 0.25f);
  out->m.format = f;
  out->m.rows = rows;
  out->m.cols = cols;
  out->m.codes = out->codes;
  out->m.block_scales = out->scales;
  return out;
}

format::WeightFormat named(const char* name) {
  const auto f = format::parse_weight_format(name);
  EXPECT_TRUE(f.ok()) << name;
  return *f;
}

std::vector<format::WeightFormat> formats() {
  std::vector<format::WeightFormat> out;
  for (uint8_t x = 1; x <= 7; ++x) {
    for (uint8_t y = 0; y <= 6; ++y) {
      if (format::ElementFormat{x, y}.valid()) out.push_back(format::channel_format({x, y}));
    }
  }
  for (const char* name :
       {"nvfp4", "mxfp4", "mxfp6_e3m2", "mxfp6_e2m3", "mxfp8", "e2m1:g32", "e3m2:g64", "e2m2:g128",
        "e2m1:e4m3g32:tensor", "e4m3:tensor", "f32", "f16", "bf16"})
    out.push_back(named(name));
  return out;
}

void expect_same(const StoredMatrix& got, const StoredMatrix& want) {
  EXPECT_EQ(got.rows, want.rows);
  EXPECT_EQ(got.cols, want.cols);
  EXPECT_EQ(got.format, want.format);
  EXPECT_TRUE(std::equal(got.codes.begin(), got.codes.end(), want.codes.begin(), want.codes.end()));
  EXPECT_TRUE(std::equal(got.block_scales.begin(), got.block_scales.end(),
                         want.block_scales.begin(), want.block_scales.end()));
  EXPECT_EQ(got.outer_scales, want.outer_scales);
}

constexpr CpuPath kPaths[] = {CpuPath::kScalar, CpuPath::kAvx2, CpuPath::kAvx512, CpuPath::kAmx};

TEST(PackLinearCpu, UnpackGivesTheCodesBack) {
  ThreadPool pool(3);
  for (const format::WeightFormat& f : formats()) {
    for (CpuPath path : kPaths) {
      for (const auto& [rows, cols] : {std::pair<int, int>{1, 1},
                                       {31, 15},
                                       {32, 16},
                                       {33, 17},
                                       {64, 128},
                                       {70, 131},
                                       {8, 100}}) {
        SCOPED_TRACE(f.name() + " " + std::to_string(rows) + "x" + std::to_string(cols) + " " +
                     std::string(cpu_path_name(path)));
        const auto w = make_matrix(f, rows, cols, 7);
        const StoredMatrix* parts[] = {&w->m};
        const auto packed = pack_linear(parts, path, pool);
        ASSERT_TRUE(packed.ok()) << packed.error().message;
        const auto back = unpack_linear(*packed);
        ASSERT_TRUE(back.ok());
        expect_same(*back, w->m);
        EXPECT_EQ(packed->bytes(), *packed_bytes(f, rows, cols, path));
      }
    }
  }
}

// The table that the packer uses is a bijection between code bits and word bits.
TEST(PackLinearCpu, EveryWordBitHoldsOneCodeBit) {
  for (int i = 0; i < kCpuCodecs; ++i) {
    const auto codec = static_cast<CpuCodec>(i);
    if (codec >= CpuCodec::kDenseF16) continue;
    const pack::PlacementTable table = pack::placement_table(codec);
    std::vector<int> hits(static_cast<size_t>(table.words * table.lane_bits));
    for (int16_t source : table.sources) ++hits.at(static_cast<size_t>(source));
    for (int h : hits) EXPECT_EQ(h, 1) << cpu_codec_name(codec);
  }
}

TEST(PackLinearCpu, JoinedPartsAreTheirRowsInOrder) {
  ThreadPool pool(2);
  for (const char* name : {"e3m2", "nvfp4", "e2m1:g32", "bf16"}) {
    for (CpuPath path : kPaths) {
      const auto a = make_matrix(named(name), 50, 48, 1);
      const auto b = make_matrix(named(name), 17, 48, 2);
      const StoredMatrix* parts[] = {&a->m, &b->m};
      const auto packed = pack_linear(parts, path, pool);
      ASSERT_TRUE(packed.ok()) << packed.error().message;
      const auto back = unpack_linear(*packed);
      ASSERT_TRUE(back.ok());
      std::vector<uint8_t> codes = a->codes;
      codes.insert(codes.end(), b->codes.begin(), b->codes.end());
      EXPECT_TRUE(std::equal(codes.begin(), codes.end(), back->codes.begin(), back->codes.end()));
      if (!a->m.outer_scales.empty()) {  // tensor scales become one per channel
        ASSERT_EQ(back->outer_scales.size(), 67u);
        EXPECT_EQ(back->outer_scales[49], a->m.outer_scales.back());
        EXPECT_EQ(back->outer_scales[50], b->m.outer_scales.front());
      }
    }
  }
}

uint64_t fnv1a(const PackedMatrix& m) {
  uint64_t hash = 0xcbf29ce484222325ull;
  const auto add = [&](const uint8_t* p, size_t n) {
    for (size_t i = 0; i < n; ++i) hash = (hash ^ p[i]) * 0x100000001b3ull;
  };
  add(m.data.data(), m.data.size());
  add(m.block_scales.data(), m.block_scales.size());
  return hash;
}

// One format per codec, 40 x 77: the bytes of every layout. A change here is a new LayoutId.
struct Golden {
  const char* format;
  uint64_t w32;
  uint64_t w64;
};
constexpr Golden kGoldens[] = {
#include "pack/golden_cpu.inc"
};

TEST(PackLinearCpu, PackedBytesArePinned) {
  std::map<int, int> seen;
  for (const Golden& golden : kGoldens) {
    for (int threads : {1, 3}) {
      ThreadPool pool(threads);
      const auto w = make_matrix(named(golden.format), 40, 77, 42);
      const StoredMatrix* parts[] = {&w->m};
      const auto narrow = pack_linear(parts, CpuPath::kAvx2, pool);
      const auto wide = pack_linear(parts, CpuPath::kAvx512, pool);
      ASSERT_TRUE(narrow.ok() && wide.ok());
      ++seen[static_cast<int>(layout_codec(narrow->layout))];
      ++seen[static_cast<int>(layout_codec(wide->layout))];
      char line[160];
      std::snprintf(line, sizeof(line), "{\"%s\", 0x%016llxull, 0x%016llxull},", golden.format,
                    static_cast<unsigned long long>(fnv1a(*narrow)),
                    static_cast<unsigned long long>(fnv1a(*wide)));
      EXPECT_EQ(fnv1a(*narrow), golden.w32) << line;
      EXPECT_EQ(fnv1a(*wide), golden.w64) << line;
    }
  }
  EXPECT_EQ(seen.size(), static_cast<size_t>(kCpuCodecs)) << "a layout has no golden";
}

TEST(PackLinearCpu, BadInputIsAnErrorThatSaysWhere) {
  ThreadPool pool(2);
  const auto fails = [&](const StoredMatrix& m, ErrorCode code, const std::string& text) {
    const StoredMatrix* parts[] = {&m};
    const auto packed = pack_linear(parts, CpuPath::kAvx2, pool);
    ASSERT_FALSE(packed.ok()) << text;
    EXPECT_EQ(packed.error().code, code) << packed.error().message;
    EXPECT_NE(packed.error().message.find(text), std::string::npos) << packed.error().message;
  };
  EXPECT_FALSE(pack_linear({}, CpuPath::kAvx2, pool).ok());
  auto w = make_matrix(named("e4m3"), 40, 20, 1);
  w->codes[37 * 20 + 5] = 0x7f;
  fails(w->m, ErrorCode::kCorruptData, "[37, 5]");
  w = make_matrix(named("nvfp4"), 40, 64, 1);
  w->scales[33 * 4 + 2] = 0xff;
  fails(w->m, ErrorCode::kCorruptData, "[33, 2]");
  w = make_matrix(named("mxfp4"), 40, 64, 1);
  w->scales[3] = 0xff;
  fails(w->m, ErrorCode::kCorruptData, "[1, 1]");
  w = make_matrix(named("e3m2"), 40, 64, 1);
  w->m.outer_scales[39] = std::numeric_limits<float>::infinity();
  fails(w->m, ErrorCode::kCorruptData, "row 39");
  w = make_matrix(named("e3m2"), 40, 64, 1);
  w->m.codes = w->m.codes.first(w->m.codes.size() - 1);
  fails(w->m, ErrorCode::kInvalidArgument, "codes has");
  w = make_matrix(named("e3m2"), 40, 64, 1);
  w->m.outer_scales.pop_back();
  fails(w->m, ErrorCode::kInvalidArgument, "outer_scales has");
  w = make_matrix(named("e2m1:e4m3g8:tensor"), 40, 64, 1);
  fails(w->m, ErrorCode::kUnsupported, "over 8 elements");
  const auto a = make_matrix(named("e3m2"), 4, 64, 1);
  const auto b = make_matrix(named("e3m2"), 4, 32, 1);
  const StoredMatrix* parts[] = {&a->m, &b->m};
  EXPECT_FALSE(pack_linear(parts, CpuPath::kAvx2, pool).ok());
}

// AMX multiplies bf16 numbers: scales that leave its range keep the matrix on the vector kernels.
TEST(PackLinearCpu, TileUseFollowsTheScales) {
  ThreadPool pool(2);
  const auto exact = [&](const StoredMatrix& m) {
    const StoredMatrix* parts[] = {&m};
    const auto packed = pack_linear(parts, CpuPath::kAmx, pool);
    return packed.ok() && packed->bf16_exact;
  };
  auto w = make_matrix(named("mxfp8"), 40, 64, 1);
  for (uint8_t& s : w->scales) s = 127;
  EXPECT_TRUE(exact(w->m));
  w->scales[50] = 254;
  EXPECT_FALSE(exact(w->m));
  w->scales[50] = 0;
  EXPECT_FALSE(exact(w->m));
  for (int i = 0; i < 32; ++i) w->codes[static_cast<size_t>(25 * 64 + i)] = 0;  // scale 50's block
  EXPECT_TRUE(exact(w->m));
  EXPECT_FALSE(exact(make_matrix(named("f32"), 8, 16, 1)->m));
  EXPECT_TRUE(exact(make_matrix(named("nvfp4"), 8, 16, 1)->m));
}

}  // namespace
}  // namespace sub8
