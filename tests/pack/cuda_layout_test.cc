// The packed layout of the sm_90a linear kernel: maps are bijections, and a CPU reading of the
// packed bytes, the way the kernel reads them, gives back every weight exactly.
#include <cmath>
#include <cstring>
#include <random>
#include <set>

#include <gtest/gtest.h>

#include "arch/cuda/sm90a/map.h"
#include "pack/cuda/linear_layout.h"

namespace sub8::pack {
namespace {

namespace sm90a = arch::sm90a;
using format::Half;

TEST(Sm90aMap, OperandMapsAreBijections) {
  std::set<std::pair<int, int>> a;
  std::set<std::pair<int, int>> d;
  for (int t = 0; t < 128; ++t) {
    for (int r = 0; r < 4; ++r)
      for (int h = 0; h < 2; ++h)
        a.insert({sm90a::a_coordinate(t, r, h).row, sm90a::a_coordinate(t, r, h).col});
    for (int v = 0; v < 32; ++v)
      d.insert({sm90a::d_coordinate(t, v).row, sm90a::d_coordinate(t, v).col});
  }
  EXPECT_EQ(a.size(), 64u * 16);
  EXPECT_EQ(a.rbegin()->first, 63);
  EXPECT_EQ(d.size(), 64u * 64);
  EXPECT_EQ(d.rbegin()->first, 63);
  std::set<uint32_t> b;
  for (uint32_t row = 0; row < 16; ++row)
    for (uint32_t byte = 0; byte < 128; ++byte) b.insert(sm90a::b_swizzle(row, byte));
  EXPECT_EQ(b.size(), 2048u);
  EXPECT_EQ(*b.rbegin(), 2047u);
}

// Row pairs of a fold lie in one thread: columns 2i and 2i + 1 of D.
TEST(Sm90aMap, RowPairsShareAThread) {
  for (int t = 0; t < 128; ++t)
    for (int v = 0; v < 128; v += 2) {
      const sm90a::Coordinate even = sm90a::d_coordinate(t, v);
      const sm90a::Coordinate odd = sm90a::d_coordinate(t, v + 1);
      ASSERT_EQ(even.row, odd.row);
      ASSERT_EQ(even.col % 2, 0);
      ASSERT_EQ(even.col + 1, odd.col);
    }
}

TEST(CudaLinearLayout, WordOffsetsAreABijection) {
  for (const int words : {3, 4, 5, 6, 7, 8, 16}) {
    std::set<int64_t> seen;
    for (int t = 0; t < 128; ++t)
      for (int j = 0; j < words; ++j) seen.insert(unit_word_offset(words, t, j));
    ASSERT_EQ(seen.size(), static_cast<size_t>(words) * 128);
    ASSERT_EQ(*seen.begin(), 0);
    ASSERT_EQ(*seen.rbegin(), int64_t{words} * 512 - 4);
  }
}

struct Source {
  StoredMatrix stored;
  std::vector<uint8_t> codes;
  std::vector<uint8_t> scales;
  std::vector<double> values;  // decoded, outer scale left out
};

void make_source(const std::string& name, int64_t rows, int64_t cols, Source* s) {
  std::mt19937 random(static_cast<uint32_t>(rows * 131 + cols));
  StoredMatrix& m = s->stored;
  m.format = format::parse_weight_format(name).value();
  m.rows = rows;
  m.cols = cols;
  const format::WeightFormat& f = m.format;
  const int64_t groups = f.groups(cols);
  s->codes.resize(static_cast<size_t>(rows * f.row_bytes(cols)));
  s->values.resize(static_cast<size_t>(rows * cols));
  const bool e8m0 = f.block_scale == format::BlockScale::kE8M0;
  for (int64_t i = 0; i < rows * groups; ++i)
    s->scales.push_back(static_cast<uint8_t>(e8m0 ? 110 + random() % 20 : random() % 0x7f));
  for (int64_t r = 0; r < rows; ++r) {
    std::vector<uint8_t> row(static_cast<size_t>(cols));
    for (int64_t k = 0; k < cols; ++k) {
      double value;
      if (f.dense) {
        const uint16_t bits = format::float_to_bf16(static_cast<float>(random() % 1000) - 500.0f);
        std::memcpy(&s->codes[static_cast<size_t>(r * f.row_bytes(cols) + 2 * k)], &bits, 2);
        value = format::bf16_to_float(bits);
      } else {
        const uint32_t magnitude = static_cast<uint32_t>(random() % (f.element.max_code() + 1));
        const uint32_t code = magnitude | (random() % 2 != 0 ? f.element.sign_bit() : 0u);
        row[static_cast<size_t>(k)] = static_cast<uint8_t>(code);
        value = format::decode_element(f.element, code);
        if (groups != 0) {
          const uint8_t b = s->scales[static_cast<size_t>(r * groups + k / f.group)];
          value *= e8m0 ? format::decode_e8m0(b) : format::decode_element(format::kE4M3, b);
        }
      }
      s->values[static_cast<size_t>(r * cols + k)] = value;
    }
    if (!f.dense)
      format::pack_codes(row.data(), cols, f.element.bits(),
                         &s->codes[static_cast<size_t>(r * f.row_bytes(cols))]);
  }
  m.codes = s->codes;
  m.block_scales = s->scales;
  const int64_t outer = f.dense                                         ? 0
                        : f.outer_scale == format::OuterScale::kChannel ? rows
                        : f.outer_scale == format::OuterScale::kTensor  ? 1
                                                                        : 0;
  for (int64_t i = 0; i < outer; ++i) m.outer_scales.push_back(0.5f + static_cast<float>(i % 3));
}

template <format::ElementFormat F>
bool place_if(format::ElementFormat f, Half target, const uint32_t* w, uint32_t* r) {
  if (!(f == F)) return false;
  if (target == Half::kF16)
    format::place_unit<F, Half::kF16>(w, r);
  else
    format::place_unit<F, Half::kBF16>(w, r);
  return true;
}

void place_any(format::ElementFormat f, Half target, const uint32_t* w, uint32_t* r) {
  ASSERT_TRUE(
      place_if<format::kE2M0>(f, target, w, r) || place_if<format::kE1M1>(f, target, w, r) ||
      place_if<format::kE2M1>(f, target, w, r) || place_if<format::kE2M2>(f, target, w, r) ||
      place_if<format::kE3M1>(f, target, w, r) || place_if<format::kE3M2>(f, target, w, r) ||
      place_if<format::kE2M3>(f, target, w, r) || place_if<format::kE3M3>(f, target, w, r) ||
      place_if<format::kE4M3>(f, target, w, r));
}

double half_value(Half target, uint32_t bits) {
  return target == Half::kF16 ? format::f16_to_float(static_cast<uint16_t>(bits))
                              : format::bf16_to_float(static_cast<uint16_t>(bits));
}

// The 16-bit factor of a piece's row and k, read as the kernels read it.
double scale_factor(const CudaLinearLayout& l, const uint8_t* scales, int row, int k) {
  const uint32_t pair = static_cast<uint32_t>(row / 16 * 8 + row % 8);
  const uint32_t group = static_cast<uint32_t>(k / l.format.group);
  uint32_t index = 0;
  int rotation = 0;
  if (l.format.group == 16) {
    index = 2 * pair + group / 2, rotation = group % 2 != 0 ? 8 : 0;
  } else if (l.format.group == 32) {
    index = pair, rotation = group % 2 != 0 ? 8 : 0;
  } else {
    index = pair / 2, rotation = pair % 2 != 0 ? 8 : 0;
  }
  uint32_t word;
  std::memcpy(&word, scales + 4 * index, 4);
  const uint32_t half = format::rotate_left(word, rotation) >> (row / 8 % 2 != 0 ? 16 : 0);
  const bool exponent =
      l.format.block_scale == format::BlockScale::kE8M0 && l.activation() == Half::kBF16;
  if (l.activation() == Half::kF16 || exponent) return half_value(l.activation(), half & 0x7f80);
  return half_value(Half::kBF16, 0x7000u | (half & 0x0ff0));
}

void check_round_trip(const std::string& name, int64_t rows, int64_t cols, Half target) {
  SCOPED_TRACE(name + " " + std::to_string(rows) + "x" + std::to_string(cols) +
               (target == Half::kF16 ? " f16" : " bf16"));
  Source s;
  make_source(name, rows, cols, &s);
  const auto made = make_cuda_linear_layout(s.stored.format, rows, cols, target);
  ASSERT_TRUE(made.ok()) << made.error().message;
  const CudaLinearLayout l = *made;
  std::vector<uint8_t> packed(static_cast<size_t>(l.total_bytes()), 0xaa);
  ThreadPool pool(2);
  const Status status = pack_cuda_linear(s.stored, l, packed, pool);
  ASSERT_TRUE(status.ok()) << status.error().message;
  for (int64_t tile = 0; tile < l.row_tiles(); ++tile)
    for (int64_t k_piece = 0; k_piece < l.k_pieces(); ++k_piece)
      for (int block = 0; block < kPiecesPerTile; ++block) {
        const uint8_t* piece =
            packed.data() +
            ((tile * l.k_pieces() + k_piece) * kPiecesPerTile + block) * l.piece_bytes();
        ASSERT_EQ(((piece - packed.data()) % 16), 0);
        for (int t = 0; t < 128; ++t) {
          uint32_t w[16] = {};
          uint32_t r[16];
          for (int j = 0; j < l.words(); ++j)
            std::memcpy(&w[j], piece + unit_word_offset(l.words(), t, j), 4);
          if (l.format.dense)
            std::memcpy(r, w, sizeof(r));
          else
            place_any(l.format.element, target, w, r);
          for (int i = 0; i < 32; ++i) {
            const int reg = i / 2;
            const sm90a::Coordinate c = sm90a::a_coordinate(t, reg % 4, i % 2);
            const int local_k = 16 * (reg / 4) + c.col;
            const int64_t row = tile * kTileRows + block * kPieceRows + c.row;
            const int64_t k = k_piece * kPieceCols + local_k;
            double value = half_value(target, (r[reg] >> (16 * (i % 2))) & 0xffff);
            if (l.format.group != 0) {
              value *= scale_factor(l, piece + l.unit_bytes(), c.row, local_k);
              // The product itself must be a number of the MMA's type.
              const uint16_t rounded = target == Half::kF16
                                           ? format::float_to_f16(static_cast<float>(value))
                                           : format::float_to_bf16(static_cast<float>(value));
              ASSERT_EQ(half_value(target, rounded), value);
            } else if (!l.format.dense && target == Half::kBF16) {
              value = std::ldexp(value, 127 - l.format.element.bias());
            }
            float multiplier;
            std::memcpy(&multiplier, packed.data() + l.multiplier_offset() + row * 4, 4);
            if (row >= rows || k >= cols) {
              ASSERT_EQ(value, 0.0) << "padding at row " << row << ", k " << k;
              continue;
            }
            const double outer = s.stored.outer_scales.empty() ? 1.0
                                 : s.stored.outer_scales.size() == 1
                                     ? s.stored.outer_scales[0]
                                     : s.stored.outer_scales[static_cast<size_t>(row)];
            ASSERT_EQ(value * multiplier, s.values[static_cast<size_t>(row * cols + k)] * outer)
                << "row " << row << ", k " << k;
          }
        }
      }
}

TEST(CudaLinearLayout, PackedWeightsReadBackExactly) {
  for (const char* name :
       {"e2m0", "e1m1", "e2m1", "e2m2", "e3m1", "e3m2", "e2m3", "e3m3", "e4m3", "nvfp4", "mxfp4",
        "mxfp6_e3m2", "mxfp6_e2m3", "e2m1:g32", "e2m1:g64", "e2m1:g128", "e3m2:g64", "e2m3:g128"}) {
    for (const Half target : {Half::kBF16, Half::kF16}) {
      check_round_trip(name, 100, 200, target);
      check_round_trip(name, 257, 72, target);
    }
  }
  check_round_trip("bf16", 100, 200, Half::kBF16);
}

uint64_t hash_bytes(const std::vector<uint8_t>& bytes) {  // FNV-1a
  uint64_t h = 14695981039346656037ull;
  for (const uint8_t b : bytes) h = (h ^ b) * 1099511628211ull;
  return h;
}

uint64_t packed_hash(const std::string& name, Half target) {
  Source s;
  make_source(name, 70, 136, &s);
  const CudaLinearLayout l = make_cuda_linear_layout(s.stored.format, 70, 136, target).value();
  std::vector<uint8_t> packed(static_cast<size_t>(l.total_bytes()));
  ThreadPool pool(1);
  EXPECT_TRUE(pack_cuda_linear(s.stored, l, packed, pool).ok());
  return hash_bytes(packed);
}

// A change here means that files with the old numbers cannot be read: give the layout a new number.
TEST(CudaLinearLayout, PackedBytesArePinned) {
  EXPECT_EQ(packed_hash("e3m2", Half::kBF16), 11054762489347432890ull);
  EXPECT_EQ(packed_hash("nvfp4", Half::kBF16), 17171410533563773910ull);
  EXPECT_EQ(packed_hash("e3m2", Half::kF16), 10855993987160701401ull);
  EXPECT_EQ(packed_hash("mxfp4", Half::kF16), 16518049349587156383ull);
}

TEST(CudaLinearLayout, RefusesBadScalesAndCodes) {
  ThreadPool pool(1);
  const auto pack_error = [&](Source& s, Half target) {
    const CudaLinearLayout l =
        make_cuda_linear_layout(s.stored.format, s.stored.rows, s.stored.cols, target).value();
    std::vector<uint8_t> packed(static_cast<size_t>(l.total_bytes()));
    const Status status = pack_cuda_linear(s.stored, l, packed, pool);
    return status.ok() ? std::string() : status.error().message;
  };
  Source nan;
  make_source("nvfp4", 4, 64, &nan);
  nan.scales[5] = 0x7f;
  EXPECT_NE(pack_error(nan, Half::kBF16).find("row 1, group 1"), std::string::npos);
  nan.scales[5] = 0x88;
  EXPECT_NE(pack_error(nan, Half::kBF16).find("negative"), std::string::npos);
  Source spread;
  make_source("mxfp4", 4, 64, &spread);
  std::fill(spread.codes.begin(), spread.codes.end(), uint8_t{0x11});
  spread.scales = {127, 127, 127, 90, 127, 127, 127, 127};
  spread.stored.block_scales = spread.scales;
  EXPECT_NE(pack_error(spread, Half::kF16).find("row 1"), std::string::npos);
  EXPECT_EQ(pack_error(spread, Half::kBF16), "");
  Source code;
  make_source("e4m3", 4, 64, &code);
  code.codes[64 * 2 + 3] = 0xff;
  EXPECT_NE(pack_error(code, Half::kBF16).find("row 2, column 3"), std::string::npos);
}

TEST(CudaLinearLayout, RefusesWhatNoKernelDoes) {
  const auto make = [](const char* name, Half target) {
    return make_cuda_linear_layout(format::parse_weight_format(name).value(), 16, 64, target);
  };
  EXPECT_EQ(make("f32", Half::kBF16).error().code, ErrorCode::kUnsupported);
  EXPECT_EQ(make("f16", Half::kBF16).error().code, ErrorCode::kUnsupported);
  EXPECT_EQ(make("e5m2", Half::kBF16).error().code, ErrorCode::kUnsupported);
  EXPECT_EQ(make("mxfp8", Half::kF16).error().code, ErrorCode::kUnsupported);
  EXPECT_EQ(make_cuda_linear_layout(format::nvfp4_format(), 0, 64, Half::kBF16).error().code,
            ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace sub8::pack
