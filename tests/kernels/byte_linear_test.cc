// FP4 rows as bytes (ActivationType::kE2M1): every pair of codes exactly, and otherwise the bits of
// the bf16 kernels on rows of q*s.
#include <gtest/gtest.h>

#include "format/bits.h"
#include "kernels/linear_testing.h"

namespace sub8::testing {
namespace {

format::WeightFormat nvfp4() { return format::nvfp4_format(); }
format::WeightFormat mxfp4() { return format::mx_format(format::kE2M1); }

float scale_value(const format::WeightFormat& f, uint8_t byte) {
  return f.block_scale == format::BlockScale::kE4M3 ? format::decode_element(format::kE4M3, byte)
                                                    : format::decode_e8m0(byte);
}

// Rows in a weight's block format, and as bf16 values q*s.
struct FourBitRows {
  int64_t m, k, groups;
  std::vector<uint8_t> codes;  // packed
  std::vector<uint8_t> scales;
  std::vector<uint16_t> values;

  int64_t code_stride() const { return (k + 1) / 2; }
};

FourBitRows make_rows(const format::WeightFormat& f, int64_t m, int64_t k,
                      const std::vector<uint8_t>& codes, std::vector<uint8_t> scales) {
  FourBitRows out{m, k, f.groups(k), {}, std::move(scales), {}};
  out.codes.resize(m * out.code_stride());
  for (int64_t i = 0; i < m; ++i) {
    format::pack_codes(codes.data() + i * k, k, 4, out.codes.data() + i * out.code_stride());
    for (int64_t j = 0; j < k; ++j) {
      const float s = scale_value(f, out.scales[i * out.groups + j / f.group]);
      out.values.push_back(
          format::float_to_bf16(format::decode_element(format::kE2M1, codes[i * k + j]) * s));
    }
  }
  return out;
}

// Scales over all of E4M3, zero and subnormals included; E8M0 over 2^-40 .. 2^40.
uint8_t random_scale(const format::WeightFormat& f, std::mt19937& rng) {
  return static_cast<uint8_t>(f.block_scale == format::BlockScale::kE4M3 ? rng() % 0x7f
                                                                         : 87 + rng() % 81);
}

FourBitRows random_rows(const format::WeightFormat& f, int64_t m, int64_t k, uint32_t seed) {
  std::mt19937 rng(seed);
  std::vector<uint8_t> codes(m * k);
  for (uint8_t& c : codes) c = rng() % 16;
  std::vector<uint8_t> scales(m * f.groups(k));
  for (uint8_t& s : scales) s = random_scale(f, rng);
  return make_rows(f, m, k, codes, std::move(scales));
}

std::shared_ptr<OwnedMatrix> random_weight(const format::WeightFormat& f, int64_t n, int64_t k,
                                           uint32_t seed) {
  auto out = random_matrix(f, n, k, seed);
  std::mt19937 rng(seed + 1);
  for (uint8_t& s : out->scales) s = random_scale(f, rng);
  return out;
}

PackedMatrix pack(const StoredMatrix& w, CpuPath path) {
  ThreadPool pool(2);
  const StoredMatrix* parts[] = {&w};
  Result<PackedMatrix> out = pack_linear(parts, path, pool);
  EXPECT_TRUE(out.ok());
  return std::move(*out);
}

struct Options {
  bool raw_sums = true;
  bool accumulate = false;
  const float* bias = nullptr;
  int threads = 2;
};

// Rows [first, first + m) as bytes; `values`: as bf16 values instead.
std::vector<float> multiply(const PathUnderTest& path, const PackedMatrix& w, const FourBitRows& x,
                            int64_t first, int64_t m, bool values = false,
                            const Options& options = {}) {
  ThreadPool pool(options.threads);
  GuardedOutput out(m, w.rows);
  LinearArgs args;
  if (values) {
    args.x = x.values.data() + first * x.k;
    args.x_stride = x.k;
  } else {
    args.x_type = ActivationType::kE2M1;
    args.x = x.codes.data() + first * x.code_stride();
    args.x_stride = x.code_stride();
    args.x_scales = x.scales.data() + first * x.groups;
    args.x_scale_stride = x.groups;
  }
  args.m = m;
  args.w = &w;
  args.y = out.y();
  args.y_stride = out.stride;
  args.row_class = RowClass::kGenerated;
  args.raw_sums = options.raw_sums;
  args.accumulate = options.accumulate;
  args.bias = options.bias;
  if (options.accumulate) {
    for (int64_t i = 0; i < m * w.rows; ++i)
      out.y()[i / w.rows * out.stride + i % w.rows] = 0.37f * static_cast<float>(i % 101) - 9;
  }
  run_path(path, args, pool);
  EXPECT_TRUE(out.guards_intact()) << path.name();
  std::vector<float> y;
  for (int64_t i = 0; i < m; ++i)
    y.insert(y.end(), out.y() + i * out.stride, out.y() + i * out.stride + w.rows);
  return y;
}

// The bits of the scalar path's products of values: no instruction there takes subnormals as zero.
std::vector<float> by_values(const StoredMatrix& w, const FourBitRows& x, int64_t first, int64_t m,
                             const Options& options = {}) {
  return multiply({CpuPath::kScalar, false}, pack(w, CpuPath::kScalar), x, first, m, true, options);
}

// One code of x at one depth against every code of w there: nothing rounds.
TEST(ByteLinear, EveryPairOfCodesAtEveryDepthIsExact) {
  for (const format::WeightFormat& f : {nvfp4(), mxfp4()}) {
    const int64_t k = 48;  // a short last group of mxfp4
    const int64_t n = 37;
    auto w = random_matrix(f, n, k, 3);
    std::vector<uint8_t> row(k);
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t j = 0; j < k; ++j) row[j] = static_cast<uint8_t>((i + 5 * j) % 16);
      format::pack_codes(row.data(), k, 4, w->codes.data() + i * f.row_bytes(k));
    }
    const uint8_t one = f.block_scale == format::BlockScale::kE4M3 ? 0x38 : 127;
    std::fill(w->scales.begin(), w->scales.end(), one);
    const int64_t m = 16 * k;
    std::vector<uint8_t> codes(m * k, 0);
    for (int64_t i = 0; i < m; ++i) codes[i * k + i / 16] = static_cast<uint8_t>(i % 16);
    const FourBitRows x = make_rows(f, m, k, codes, std::vector<uint8_t>(m * f.groups(k), one));
    for (const PathUnderTest& path : paths_under_test()) {
      const PackedMatrix packed = pack(w->m, path.path);
      for (const int64_t rows : {int64_t{1}, int64_t{5}, m}) {
        for (int64_t first = 0; first + rows <= m; first += rows) {
          const std::vector<float> y = multiply(path, packed, x, first, rows);
          for (int64_t i = 0; i < rows * n; ++i) {
            const int64_t row_of_x = first + i / n;
            const float want =
                format::decode_element(format::kE2M1, static_cast<uint32_t>(row_of_x % 16)) *
                format::decode_element(format::kE2M1,
                                       static_cast<uint32_t>((i % n + 5 * (row_of_x / 16)) % 16));
            ASSERT_EQ(y[i], want) << f.name() << " " << path.name() << " row " << row_of_x
                                  << " channel " << i % n;
          }
          if (rows == 1 && first > 40) break;
        }
      }
    }
  }
}

TEST(ByteLinear, HasTheBitsOfTheBf16Kernels) {
  uint32_t seed = 100;
  for (const format::WeightFormat& f : {nvfp4(), mxfp4()}) {
    for (const int64_t k : {1, 15, 16, 17, 31, 33, 48, 127, 128, 129, 160, 301}) {
      const int64_t n = 1 + (seed * 13) % 70;
      const auto w = random_weight(f, n, k, ++seed);
      const FourBitRows x = random_rows(f, 17, k, ++seed);
      const std::vector<float> want = by_values(w->m, x, 0, 17);
      for (const PathUnderTest& path : paths_under_test()) {
        const PackedMatrix packed = pack(w->m, path.path);
        EXPECT_EQ(multiply(path, packed, x, 0, 17), want)
            << f.name() << " N=" << n << " K=" << k << " " << path.name();
      }
    }
  }
}

TEST(ByteLinear, AnyNumberOfRowsGivesTheSameBits) {
  for (const format::WeightFormat& f : {nvfp4(), mxfp4()}) {
    const int64_t k = 208;
    const auto w = random_weight(f, 70, k, 7);
    const FourBitRows x = random_rows(f, 110, k, 8);
    const std::vector<float> all = by_values(w->m, x, 0, 110);
    for (const PathUnderTest& path : paths_under_test()) {
      const PackedMatrix packed = pack(w->m, path.path);
      EXPECT_EQ(multiply(path, packed, x, 0, 110), all) << path.name();  // two blocks of rows
      for (int64_t m = 1; m <= 17; ++m) {
        for (const int threads : {1, 3}) {
          const std::vector<float> want(all.begin() + 2 * 70, all.begin() + (2 + m) * 70);
          EXPECT_EQ(multiply(path, packed, x, 2, m, false, {.threads = threads}), want)
              << f.name() << " M=" << m << " " << path.name();
        }
      }
    }
  }
}

TEST(ByteLinear, OuterScalesBiasAndAccumulation) {
  std::vector<float> bias(45);
  for (size_t i = 0; i < bias.size(); ++i) bias[i] = static_cast<float>(i % 7) - 3;
  for (const format::WeightFormat& f : {nvfp4(), mxfp4()}) {
    const auto w = random_weight(f, 45, 96, 17);
    const FourBitRows x = random_rows(f, 9, 96, 18);
    for (const bool accumulate : {false, true}) {
      const Options options{.raw_sums = false, .accumulate = accumulate, .bias = bias.data()};
      const std::vector<float> want = by_values(w->m, x, 0, 9, options);
      for (const PathUnderTest& path : paths_under_test()) {
        EXPECT_EQ(multiply(path, pack(w->m, path.path), x, 0, 9, false, options), want)
            << f.name() << " " << path.name();
        EXPECT_EQ(multiply(path, pack(w->m, path.path), x, 0, 1, false, options),
                  std::vector<float>(want.begin(), want.begin() + 45))
            << f.name() << " " << path.name();
      }
    }
  }
}

// The largest sums a group can have: every lane that overflowed would show.
TEST(ByteLinear, LargestCodesOfEitherSignDoNotOverflow) {
  for (const format::WeightFormat& f : {nvfp4(), mxfp4()}) {
    const int64_t k = 128;
    auto w = random_matrix(f, 32, k, 27);
    const bool e4m3 = f.block_scale == format::BlockScale::kE4M3;
    std::fill(w->scales.begin(), w->scales.end(), e4m3 ? 0x7e : 150);
    std::vector<uint8_t> codes(4 * k);
    for (int64_t i = 0; i < 4 * k; ++i) codes[i] = i / k % 2 == 0 ? 7 : 15;  // 6 and -6
    for (int64_t n = 0; n < 32; ++n)
      std::fill_n(w->codes.begin() + n * k / 2, k / 2, n % 2 == 0 ? 0x77 : 0xff);
    const FourBitRows x =
        make_rows(f, 4, k, codes, std::vector<uint8_t>(4 * f.groups(k), e4m3 ? 0x7e : 150));
    const double scale = e4m3 ? 448.0 : 0x1p23;
    for (const PathUnderTest& path : paths_under_test()) {
      const std::vector<float> y = multiply(path, pack(w->m, path.path), x, 0, 4);
      for (int64_t i = 0; i < 4 * 32; ++i) {
        const double sign = i / 32 % 2 == i % 2 ? 1 : -1;
        ASSERT_EQ(static_cast<double>(y[i]), sign * 36.0 * k * scale * scale)
            << f.name() << " " << path.name();
      }
    }
  }
}

// E8M0 scales at their ends whose products are ordinary numbers. (A group whose own sum times the
// scale of x leaves FP32 is lost, as in the bf16 kernels.)
TEST(ByteLinear, ExtremeExponentsThatCancelAreExact) {
  const format::WeightFormat f = mxfp4();
  for (const auto& [of_x, of_w] : {std::pair{0, 254}, {1, 253}, {245, 0}, {244, 9}, {3, 240}}) {
    const int64_t k = 80;
    auto w = random_matrix(f, 33, k, 37);
    std::fill(w->scales.begin(), w->scales.end(), static_cast<uint8_t>(of_w));
    FourBitRows x = random_rows(f, 7, k, 38);
    std::fill(x.scales.begin(), x.scales.end(), static_cast<uint8_t>(of_x));
    for (uint8_t& pair : x.codes) pair &= 0x99;  // 0, 0.5 and their negatives: q*s fits FP32
    std::vector<double> exact(7 * k), want(7 * 33);
    for (int64_t i = 0; i < 7 * k; ++i) {
      const int code = x.codes[i / 2] >> (i % 2 * 4) & 15;
      exact[i] = std::ldexp(format::decode_element(format::kE2M1, code), of_x - 127);
    }
    linear_reference(w->m, exact.data(), 7, nullptr, want.data(), nullptr);
    for (const PathUnderTest& path : paths_under_test()) {
      const PackedMatrix packed = pack(w->m, path.path);
      for (const int64_t m : {1, 7}) {
        const std::vector<float> y = multiply(path, packed, x, 0, m);
        for (int64_t i = 0; i < m * 33; ++i)
          ASSERT_EQ(static_cast<double>(y[i]), want[i]) << path.name() << " " << of_x;
      }
    }
  }
}

TEST(ByteLinear, ScalesOfZeroAndNaNStayInTheirRow) {
  for (const format::WeightFormat& f : {nvfp4(), mxfp4()}) {
    const int64_t k = 64;
    const auto w = random_weight(f, 40, k, 47);
    const FourBitRows clean = random_rows(f, 12, k, 48);
    FourBitRows x = clean;
    const int64_t groups = f.groups(k);
    const bool e4m3 = f.block_scale == format::BlockScale::kE4M3;
    x.scales[3 * groups] = e4m3 ? 0x7f : 255;  // NaN
    if (e4m3) std::fill_n(x.scales.begin() + 5 * groups, groups, 0);
    for (const PathUnderTest& path : paths_under_test()) {
      const PackedMatrix packed = pack(w->m, path.path);
      const std::vector<float> want = multiply(path, packed, clean, 0, 12);
      const std::vector<float> y = multiply(path, packed, x, 0, 12);
      for (int64_t i = 0; i < 12 * 40; ++i) {
        const int64_t row = i / 40;
        if (row == 3) {
          ASSERT_TRUE(std::isnan(y[i])) << path.name();
        } else if (row == 5 && e4m3) {
          ASSERT_EQ(y[i], 0.0f) << path.name();
        } else {
          ASSERT_EQ(y[i], want[i]) << path.name();
        }
      }
    }
  }
}

// Stray bits behind a row's last code are not read.
TEST(ByteLinear, IgnoresTheSpareNibbleOfOddRows) {
  const format::WeightFormat f = nvfp4();
  const auto w = random_weight(f, 33, 37, 57);
  const FourBitRows clean = random_rows(f, 3, 37, 58);
  FourBitRows x = clean;
  for (int64_t i = 0; i < 3; ++i) x.codes[(i + 1) * x.code_stride() - 1] |= 0xf0;
  for (const PathUnderTest& path : paths_under_test()) {
    const PackedMatrix packed = pack(w->m, path.path);
    EXPECT_EQ(multiply(path, packed, x, 0, 3), multiply(path, packed, clean, 0, 3));
  }
}

TEST(ByteLinear, WhichWeightsTakeCodes) {
  const auto takes = [](const char* name, CpuPath path, RowClass row_class) {
    const auto w = random_matrix(*format::parse_weight_format(name), 32, 64, 1);
    return linear_takes_e2m1(pack(w->m, path), row_class);
  };
  for (const char* name : {"nvfp4", "mxfp4"}) {
    for (const CpuPath path : {CpuPath::kScalar, CpuPath::kAvx2, CpuPath::kAvx512})
      EXPECT_TRUE(takes(name, path, RowClass::kPrompt)) << name;
    EXPECT_TRUE(takes(name, CpuPath::kAmx, RowClass::kGenerated)) << name;
    EXPECT_FALSE(takes(name, CpuPath::kAmx, RowClass::kPrompt)) << name;  // bf16 tiles
  }
  for (const char* name : {"e2m1", "e2m1:g32", "mxfp6_e3m2", "mxfp8", "bf16"})
    EXPECT_FALSE(takes(name, CpuPath::kAvx512, RowClass::kPrompt)) << name;
}

TEST(ByteLinear, IdsNameTheKernelAndTheOrder) {
  const auto w = random_matrix(nvfp4(), 32, 64, 1);
  const PackedMatrix packed = pack(w->m, CpuPath::kAvx2);
  EXPECT_EQ(linear_kernel_id(packed, 1, ActivationType::kE2M1), "linear_nvfp4_e2m1_avx2_1x32");
  EXPECT_EQ(linear_kernel_id(packed, 64, ActivationType::kE2M1), "linear_nvfp4_e2m1_avx2_4x32");
  EXPECT_EQ(linear_order_id(packed, ActivationType::kE2M1, RowClass::kPrompt),
            linear_order_id(packed, ActivationType::kBF16, RowClass::kPrompt));
}

}  // namespace
}  // namespace sub8::testing
