// The packed layout of e4m3 activations: maps are bijections, a CPU reading of the packed bytes,
// the way the kernel reads them, gives back every weight exactly, and products through an emulated
// wgmma k32 with the hardware's fragment maps give the reference's sums.
#include <cmath>
#include <cstring>
#include <random>
#include <set>

#include <gtest/gtest.h>

#include "arch/cuda/sm90a/map.h"
#include "format/byte_placement.h"
#include "pack/cuda/byte_layout.h"

namespace sub8::pack {
namespace {

namespace sm90a = arch::sm90a;
using format::ElementFormat;

TEST(Sm90aMap, ByteOperandMapIsABijection) {
  std::set<std::pair<int, int>> a;
  for (int t = 0; t < 128; ++t)
    for (int r = 0; r < 4; ++r)
      for (int b = 0; b < 4; ++b)
        a.insert({sm90a::a_byte_coordinate(t, r, b).row, sm90a::a_byte_coordinate(t, r, b).col});
  EXPECT_EQ(a.size(), 64u * 32);
  EXPECT_EQ(a.rbegin()->first, 63);
  EXPECT_EQ(a.rbegin()->second, 31);
}

struct Source {
  StoredMatrix stored;
  std::vector<uint8_t> codes;
  std::vector<uint8_t> scales;
  std::vector<double> values;  // decoded, outer scale included
};

// E8M0 exponents within `spread` of each other.
void make_source(const std::string& name, int64_t rows, int64_t cols, int spread, Source* s) {
  std::mt19937 random(static_cast<uint32_t>(rows * 131 + cols + spread));
  StoredMatrix& m = s->stored;
  m.format = format::parse_weight_format(name).value();
  m.rows = rows, m.cols = cols;
  const format::WeightFormat& f = m.format;
  const int64_t groups = f.groups(cols);
  s->codes.resize(static_cast<size_t>(rows * f.row_bytes(cols)));
  const bool e8m0 = f.block_scale == format::BlockScale::kE8M0;
  for (int64_t i = 0; i < rows * groups; ++i)
    s->scales.push_back(static_cast<uint8_t>(
        e8m0 ? 60 + random() % static_cast<uint32_t>(spread + 1) : random() % 0x7f));
  for (int64_t i = 0; i < rows && f.outer_scale == format::OuterScale::kChannel; ++i)
    m.outer_scales.push_back(0.5f + static_cast<float>(i % 3));
  std::vector<uint8_t> row(static_cast<size_t>(cols));
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t k = 0; k < cols; ++k) {
      const uint32_t code = static_cast<uint32_t>(random()) % f.element.code_count();
      row[static_cast<size_t>(k)] = static_cast<uint8_t>(code);
      double value = format::decode_element(f.element, code);
      if (groups != 0) {
        const uint8_t b = s->scales[static_cast<size_t>(r * groups + k / f.group)];
        value *= e8m0 ? format::decode_e8m0(b) : format::decode_element(format::kE4M3, b);
      }
      if (!m.outer_scales.empty()) value *= m.outer_scales[static_cast<size_t>(r)];
      s->values.push_back(value);
    }
    format::pack_codes(row.data(), cols, f.element.bits(),
                       &s->codes[static_cast<size_t>(r * f.row_bytes(cols))]);
  }
  m.codes = s->codes;
  m.block_scales = s->scales;
}

std::vector<uint8_t> pack(const Source& s, CudaLinearLayout* layout) {
  *layout = make_cuda_byte_layout(s.stored.format, s.stored.rows, s.stored.cols).value();
  std::vector<uint8_t> packed(static_cast<size_t>(layout->total_bytes()), 0xaa);
  ThreadPool pool(2);
  const Status status = pack_cuda_linear(s.stored, *layout, packed, pool);
  EXPECT_TRUE(status.ok()) << status.error().message;
  return packed;
}

template <ElementFormat F>
bool place_if(ElementFormat f, const uint32_t* w, uint32_t* r) {
  if (f == F) format::place_bytes<F, 16>(w, r);
  return f == F;
}

// What byte_codec.cuh does: the 16 A registers of thread t of a piece.
void convert(const CudaLinearLayout& l, const uint8_t* piece, int t, ScaleMode mode,
             uint32_t (&r)[16]) {
  uint32_t w[16] = {};
  for (int j = 0; j < l.words(); ++j)
    std::memcpy(&w[j], piece + unit_word_offset(l.words(), t, j), 4);
  const ElementFormat e = l.format.element;
  if (l.format.group != 0 && e == format::kE2M1) {
    const uint8_t* scales = piece + l.unit_bytes() + 8 * (8 * (t / 32) + t % 32 / 4);
    for (int i = 0; i < 4; ++i)
      for (int h = 0; h < 2; ++h) {
        const uint32_t d = mode == ScaleMode::kFolded ? scales[4 * h + i] : 0u;
        format::place_table_word(format::byte_table(d), w[2 * i + h], format::PermuteTable{},
                                 &r[4 * i + h], &r[4 * i + h + 2]);
      }
    return;
  }
  ASSERT_TRUE(place_if<format::kE2M1>(e, w, r) || place_if<format::kE2M2>(e, w, r) ||
              place_if<format::kE3M1>(e, w, r) || place_if<format::kE3M2>(e, w, r) ||
              place_if<format::kE2M3>(e, w, r));
}

double factor(const CudaLinearLayout& l, const uint8_t* piece, ScaleMode mode, int row, int step) {
  if (l.format.group == 0 || mode == ScaleMode::kFolded) return 1;
  const ScaleDecode decode = scale_decode(l.format);
  const uint32_t byte =
      piece[l.unit_bytes() + 8 * (8 * (row / 16) + row % 8) + 4 * (row / 8 % 2) + step];
  return format::bits_float((byte << decode.shift) + decode.base);
}

template <class T>
T read(const std::vector<uint8_t>& bytes, int64_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(value));
  return value;
}

ScaleMode mode_of(const CudaLinearLayout& l, const std::vector<uint8_t>& packed, int64_t tile) {
  return l.format.group == 0
             ? ScaleMode::kFolded
             : static_cast<ScaleMode>(read<uint32_t>(packed, l.mode_offset() + 4 * tile));
}

void check_round_trip(const std::string& name, int64_t rows, int64_t cols, int spread,
                      ScaleMode want_mode) {
  SCOPED_TRACE(name + " " + std::to_string(rows) + "x" + std::to_string(cols) + " spread " +
               std::to_string(spread));
  Source s;
  make_source(name, rows, cols, spread, &s);
  CudaLinearLayout l;
  const std::vector<uint8_t> packed = pack(s, &l);
  const ElementFormat target = format::byte_target(l.format.element);
  int64_t inside = 0;
  for (int64_t tile = 0; tile < l.row_tiles(); ++tile) {
    const ScaleMode mode = mode_of(l, packed, tile);
    if (l.format.group != 0) {
      ASSERT_EQ(mode, want_mode);
    }
    for (int64_t p = 0; p < l.k_pieces() * kPiecesPerTile; ++p) {
      const uint8_t* piece =
          packed.data() + (tile * l.k_pieces() * kPiecesPerTile + p) * l.piece_bytes();
      for (int t = 0; t < 128; ++t) {
        uint32_t r[16];
        convert(l, piece, t, mode, r);
        for (int i = 0; i < 64; ++i) {
          const sm90a::Coordinate c = sm90a::a_byte_coordinate(t, i / 4 % 4, i % 4);
          const int64_t row = tile * kTileRows + p % kPiecesPerTile * kPieceRows + c.row;
          const int64_t k = p / kPiecesPerTile * 128 + 32 * (i / 16) + c.col;
          const uint32_t byte = (r[i / 4] >> (8 * (i % 4))) & 0xff;
          ASSERT_FALSE(target.is_nonfinite(byte));
          const double value = format::decode_element(target, byte);
          if (row >= rows || k >= cols) {
            ASSERT_EQ(value, 0.0) << "padding at row " << row << ", k " << k;
            continue;
          }
          ++inside;
          const float multiplier = read<float>(packed, l.multiplier_offset() + row * 4);
          ASSERT_EQ(value * factor(l, piece, mode, c.row, i / 16) * multiplier,
                    s.values[static_cast<size_t>(row * cols + k)])
              << "row " << row << ", k " << k;
        }
      }
    }
  }
  EXPECT_EQ(inside, rows * cols);
}

TEST(CudaByteLayout, PackedWeightsReadBackExactly) {
  for (const char* name : {"e2m1", "e2m2", "e3m1", "e3m2", "e2m3", "e2m1:g32", "e2m1:g64",
                           "e2m1:g128", "e3m2:g32", "e2m3:g64", "mxfp6_e3m2", "mxfp6_e2m3"}) {
    check_round_trip(name, 100, 200, 20, ScaleMode::kScaled);
    check_round_trip(name, 257, 72, 20, ScaleMode::kScaled);
  }
}

TEST(CudaByteLayout, BlockExponentsAreFoldedWhileTheyFit) {
  check_round_trip("mxfp4", 300, 328, 0, ScaleMode::kFolded);
  check_round_trip("mxfp4", 300, 328, format::kTableSpread, ScaleMode::kFolded);
  check_round_trip("mxfp4", 300, 2048, 60, ScaleMode::kScaled);
  check_round_trip("mxfp4", 100, 2048, kMaxScaledSpread, ScaleMode::kScaled);
}

// One far exponent decides for its row tile alone; a group of zeros does not count.
TEST(CudaByteLayout, ModeIsPerRowTile) {
  Source s;
  make_source("mxfp4", 600, 64, 3, &s);
  s.scales[2 * 300] = 60 + 3 + 27;
  s.scales[2 * 520] = 60 + 3 + 27;
  std::memset(&s.codes[520 * 32], 0, 16);
  s.stored.block_scales = s.scales;
  s.stored.codes = s.codes;
  CudaLinearLayout l;
  const std::vector<uint8_t> packed = pack(s, &l);
  EXPECT_EQ(mode_of(l, packed, 0), ScaleMode::kFolded);
  EXPECT_EQ(mode_of(l, packed, 1), ScaleMode::kScaled);
  EXPECT_EQ(mode_of(l, packed, 2), ScaleMode::kFolded);
}

// A wgmma m64n8k32: D from fragments of A and a swizzled B tile, read as the hardware does.
void emulate_k32(const uint32_t (&a)[128][4], ElementFormat a_type, const uint8_t* b, int step,
                 double (&d)[128][4]) {
  double tile_a[64][32];
  for (int t = 0; t < 128; ++t)
    for (int r = 0; r < 4; ++r)
      for (int byte = 0; byte < 4; ++byte) {
        const sm90a::Coordinate c = sm90a::a_byte_coordinate(t, r, byte);
        tile_a[c.row][c.col] = format::decode_element(a_type, (a[t][r] >> (8 * byte)) & 0xff);
      }
  for (int t = 0; t < 128; ++t)
    for (int v = 0; v < 4; ++v) {
      const sm90a::Coordinate c = sm90a::d_coordinate(t, v);
      for (uint32_t k = 0; k < 32; ++k)
        d[t][v] += tile_a[c.row][k] *
                   format::decode_element(
                       format::kE4M3, b[sm90a::b_swizzle(static_cast<uint32_t>(c.col),
                                                         static_cast<uint32_t>(32 * step) + k)]);
    }
}

// 64 rows, 8 tokens, two pieces of K: the emulated atom over packed pieces against plain sums.
void check_products(const std::string& name, int spread) {
  SCOPED_TRACE(name);
  constexpr int kRows = 64, kTokens = 8, kK = 256;
  Source s;
  make_source(name, kRows, kK, spread, &s);
  CudaLinearLayout l;
  const std::vector<uint8_t> packed = pack(s, &l);
  const ScaleMode mode = mode_of(l, packed, 0);
  std::mt19937 random(5);
  uint8_t x[kTokens][kK];
  for (auto& token : x)
    for (uint8_t& v : token) {
      v = static_cast<uint8_t>(random());
      if (format::kE4M3.is_nonfinite(v)) v = 0x38;
    }
  double sums[128][4] = {};
  for (int piece_k = 0; piece_k < 2; ++piece_k) {
    const uint8_t* piece = packed.data() + piece_k * kPiecesPerTile * l.piece_bytes();
    uint8_t b[kTokens * 128];
    for (uint32_t token = 0; token < kTokens; ++token)
      for (uint32_t k = 0; k < 128; ++k)
        b[sm90a::b_swizzle(token, k)] = x[token][128 * static_cast<uint32_t>(piece_k) + k];
    uint32_t registers[128][16];
    for (int t = 0; t < 128; ++t) convert(l, piece, t, mode, registers[t]);
    for (int step = 0; step < 4; ++step) {
      uint32_t a[128][4];
      for (int t = 0; t < 128; ++t) std::memcpy(a[t], registers[t] + 4 * step, sizeof(a[t]));
      double part[128][4] = {};
      emulate_k32(a, format::byte_target(l.format.element), b, step, part);
      for (int t = 0; t < 128; ++t)
        for (int v = 0; v < 4; ++v)
          sums[t][v] += part[t][v] * factor(l, piece, mode, sm90a::d_coordinate(t, v).row, step);
    }
  }
  for (int t = 0; t < 128; ++t)
    for (int v = 0; v < 4; ++v) {
      const sm90a::Coordinate c = sm90a::d_coordinate(t, v);
      double want = 0, size = 0;
      for (int k = 0; k < kK; ++k) {
        const double term = s.values[static_cast<size_t>(c.row * kK + k)] *
                            format::decode_element(format::kE4M3, x[c.col][k]);
        want += term, size += std::fabs(term);
      }
      const double got = sums[t][v] * read<float>(packed, l.multiplier_offset() + 4 * c.row);
      ASSERT_NEAR(got, want, size * 0x1p-45) << "row " << c.row << ", token " << c.col;
    }
}

TEST(CudaByteLayout, EmulatedProductsMatchPlainSums) {
  for (const char* name :
       {"e2m1", "e2m2", "e3m1", "e3m2", "e2m3", "e2m1:g32", "e2m3:g128", "mxfp6_e3m2"})
    check_products(name, 10);
  check_products("mxfp4", 20);
  check_products("mxfp4", 90);
}

uint64_t packed_hash(const std::string& name, int spread) {  // FNV-1a
  Source s;
  make_source(name, 70, 136, spread, &s);
  CudaLinearLayout l;
  uint64_t h = 14695981039346656037ull;
  for (const uint8_t b : pack(s, &l)) h = (h ^ b) * 1099511628211ull;
  return h;
}

// A change here means that files with the old number cannot be read: give the layout a new number.
TEST(CudaByteLayout, PackedBytesArePinned) {
  EXPECT_EQ(packed_hash("mxfp4", 9), 2043440296982992303ull);
  EXPECT_EQ(packed_hash("mxfp4", 60), 15115165204365057611ull);
  EXPECT_EQ(packed_hash("e3m2", 0), 17810548913687299066ull);
  EXPECT_EQ(packed_hash("e2m2", 0), 2607596998163021015ull);
}

TEST(CudaByteLayout, RefusesWhatNoKernelDoes) {
  const auto refusal = [](const char* name) {
    const auto made = make_cuda_byte_layout(format::parse_weight_format(name).value(), 16, 64);
    return made.ok() ? std::string() : made.error().message;
  };
  EXPECT_NE(refusal("nvfp4").find("scales of 16 elements"), std::string::npos);
  EXPECT_NE(refusal("bf16").find("16-bit kernels only"), std::string::npos);
  EXPECT_NE(refusal("e4m3").find("elements with a kernel"), std::string::npos);
  EXPECT_NE(refusal("e2m2:g32").find("elements with block scales"), std::string::npos);
  EXPECT_EQ(make_cuda_byte_layout(format::parse_weight_format("mxfp4").value(), 0, 64).error().code,
            ErrorCode::kInvalidArgument);
}

TEST(CudaByteLayout, RefusesSpreadsThatCannotBeExact) {
  Source s;
  make_source("mxfp4", 4, 64, 0, &s);
  std::fill(s.codes.begin(), s.codes.end(), uint8_t{0x11});
  s.scales[3] = 200;
  s.scales[2] = 79;
  s.stored.block_scales = s.scales;
  s.stored.codes = s.codes;
  const CudaLinearLayout l = make_cuda_byte_layout(s.stored.format, 4, 64).value();
  std::vector<uint8_t> packed(static_cast<size_t>(l.total_bytes()));
  ThreadPool pool(1);
  const Status status = pack_cuda_linear(s.stored, l, packed, pool);
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.error().message.find("row 1 has E8M0 scales"), std::string::npos);
}

}  // namespace
}  // namespace sub8::pack
