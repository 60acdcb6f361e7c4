#include <cstdio>

#include <gtest/gtest.h>

#include "kernels/linear_testing.h"

namespace sub8::testing {
namespace {

const std::vector<std::string>& common_formats() {
  static const std::vector<std::string> kNames = {
      "e3m2",        "e2m3",  "e2m2",       "e3m1",       "e2m1",     "e3m3",
      "e4m3",        "e5m2",  "e2m0",       "e1m1",       "e4m2",     "e3m4",
      "e5m0",        "e5m1",  "e6m1",       "e2m1:g32",   "e3m2:g64", "e2m3:g128",
      "nvfp4",       "mxfp4", "mxfp6_e3m2", "mxfp6_e2m3", "mxfp8",    "e2m1:e4m3g32:tensor",
      "e4m3:tensor", "bf16",  "f16",        "f32"};
  return kNames;
}

std::vector<format::WeightFormat> every_element() {
  std::vector<format::WeightFormat> out;
  for (uint8_t x = 1; x <= 7; ++x) {
    for (uint8_t y = 0; y <= 6; ++y) {
      const format::ElementFormat e{x, y};
      if (e.valid()) out.push_back(format::channel_format(e));
    }
  }
  return out;
}

format::WeightFormat named(const std::string& name) {
  Result<format::WeightFormat> f = format::parse_weight_format(name);
  EXPECT_TRUE(f.ok()) << name;
  return *f;
}

double outer_max(const StoredMatrix& m) {
  double out = 1;
  for (float s : m.outer_scales) out = std::max(out, static_cast<double>(std::fabs(s)));
  return out;
}

// Packs for the path, runs, checks guards, compares. `exact` demands the reference's very value.
void check(const StoredMatrix& w, const Activations& x, int64_t m, const PathUnderTest& path,
           ThreadPool& pool, bool exact, ActivationType type = ActivationType::kBF16,
           RowClass row_class = RowClass::kPrompt) {
  SCOPED_TRACE(w.format.name() + " N=" + std::to_string(w.rows) + " K=" + std::to_string(w.cols) +
               " M=" + std::to_string(m) + " " + path.name());
  const StoredMatrix* parts[] = {&w};
  Result<PackedMatrix> packed = pack_linear(parts, path.path, pool);
  ASSERT_TRUE(packed.ok()) << packed.error().message;
  std::vector<float> bias;
  for (int64_t n = 0; n < w.rows; ++n) bias.push_back(static_cast<float>(n % 7) - 3);
  GuardedOutput out(m, w.rows);
  LinearArgs args;
  args.x = type == ActivationType::kBF16 ? static_cast<const void*>(x.bf16.data()) : x.f32.data();
  args.x_type = type;
  args.x_stride = w.cols;
  args.m = m;
  args.w = &*packed;
  args.y = out.y();
  args.y_stride = out.stride;
  args.bias = bias.data();
  args.row_class = row_class;
  run_path(path, args, pool);
  EXPECT_TRUE(out.guards_intact());
  std::vector<double> want(static_cast<size_t>(m * w.rows));
  std::vector<double> magnitude(want.size());
  linear_reference(w, x.exact.data(), m, bias.data(), want.data(), magnitude.data());
  std::vector<double> bound = error_bounds(want, magnitude, w.cols, outer_max(w));
  if (exact) bound.assign(bound.size(), 0.0);
  const auto bad = first_mismatch(out.y(), out.stride, want, bound, m, w.rows);
  EXPECT_FALSE(bad.has_value()) << *bad;
}

TEST(Linear, PathsRunHere) {
  for (CpuPath path : {CpuPath::kScalar, CpuPath::kAvx2, CpuPath::kAvx512, CpuPath::kAmx}) {
    std::printf("[ paths    ] %-6s %s\n", std::string(cpu_path_name(path)).c_str(),
                cpu_path_available(path) ? "run"
                : path == CpuPath::kAvx2 ? "NOT RUN (machine lacks it)"
                                         : "NOT RUN (machine lacks it); emulated twin run");
    RecordProperty(std::string(cpu_path_name(path)), cpu_path_available(path) ? "run" : "not run");
  }
}

// Every code of every format comes out right: grid activations make every sum exact.
TEST(Linear, GridInputsAreExactForEveryElement) {
  ThreadPool pool(2);
  for (const PathUnderTest& path : paths_under_test()) {
    for (const format::WeightFormat& f : every_element()) {
      // One nonzero activation per row: y is one weight times a power of two.
      const int64_t cols = 40;
      const int64_t rows = 33;
      auto w = random_matrix(f, rows, cols, 11 + f.element.bits(), Values::kGrid);
      Activations x = random_activations(cols, cols, 1, Values::kGrid);
      for (int64_t i = 0; i < cols * cols; ++i) {
        const float value = i / cols == i % cols ? 2.0f : 0.0f;
        x.f32[static_cast<size_t>(i)] = value;
        x.bf16[static_cast<size_t>(i)] = format::float_to_bf16(value);
        x.exact[static_cast<size_t>(i)] = static_cast<double>(value);
      }
      // Biases would round against large weights: none here.
      const StoredMatrix* parts[] = {&w->m};
      Result<PackedMatrix> packed = pack_linear(parts, path.path, pool);
      ASSERT_TRUE(packed.ok()) << packed.error().message;
      for (const int64_t m : {int64_t{1}, cols}) {
        GuardedOutput out(m, rows);
        LinearArgs args{.x = x.bf16.data(),
                        .x_stride = cols,
                        .m = m,
                        .w = &*packed,
                        .y = out.y(),
                        .y_stride = out.stride};
        run_path(path, args, pool);
        std::vector<double> want(static_cast<size_t>(m * rows));
        linear_reference(w->m, x.exact.data(), m, nullptr, want.data(), nullptr);
        const auto bad = first_mismatch(out.y(), out.stride, want,
                                        std::vector<double>(want.size(), 0.0), m, rows);
        ASSERT_FALSE(bad.has_value()) << f.name() << " " << path.name() << ": " << *bad;
        ASSERT_TRUE(out.guards_intact());
      }
    }
  }
}

TEST(Linear, GridSumsAreExact) {
  ThreadPool pool(3);
  for (const PathUnderTest& path : paths_under_test()) {
    for (const char* name : {"e3m2", "e2m1", "nvfp4", "mxfp4", "e2m1:g32", "bf16", "f16", "f32"}) {
      auto w = random_matrix(named(name), 70, 200, 5, Values::kGrid);
      const Activations x = random_activations(35, 200, 6, Values::kGrid);
      check(w->m, x, 35, path, pool, true);
      check(w->m, x, 1, path, pool, true);
    }
  }
}

TEST(Linear, RandomInputsWithinTheBound) {
  ThreadPool pool(2);
  for (const PathUnderTest& path : paths_under_test()) {
    for (const std::string& name : common_formats()) {
      for (const auto& [n, k] : {std::pair<int, int>{100, 80}, {8, 300}}) {
        auto w = random_matrix(named(name), n, k, 17);
        const Activations x = random_activations(17, k, 23);
        for (int64_t m : {1, 17}) {
          check(w->m, x, m, path, pool, false);
          check(w->m, x, m, path, pool, false, ActivationType::kF32, RowClass::kGenerated);
        }
      }
    }
  }
}

// Shapes from the tile: 32 channels, units of 1..16 values of K, segments of 128, blocks of 3, 12
// and 32 rows.
TEST(Linear, ShapesAroundTheTile) {
  ThreadPool pool(2);
  for (const PathUnderTest& path : paths_under_test()) {
    for (const char* name : {"e3m2", "nvfp4", "e2m2:g32", "bf16"}) {
      for (int n : {1, 31, 32, 33, 64}) {
        for (int k : {1, 15, 16, 17, 33, 127, 128, 129, 256}) {
          auto w = random_matrix(named(name), n, k, 3);
          const Activations x = random_activations(4, k, 4);
          for (int m : {1, 2, 4}) check(w->m, x, m, path, pool, false);
        }
      }
      auto w = random_matrix(named(name), 40, 96, 3);
      const Activations x = random_activations(129, 96, 4);
      for (int m : {2, 3, 4, 5, 7, 11, 12, 13, 24, 25, 31, 32, 33, 64, 95, 96, 97, 129})
        check(w->m, x, m, path, pool, false);
    }
  }
}

TEST(Linear, OddModelShapes) {  // depths and widths that fit no tile
  ThreadPool pool(2);
  for (const PathUnderTest& path : paths_under_test()) {
    for (const char* name : {"e3m2", "e2m2", "nvfp4", "mxfp4"}) {
      for (int k : {16, 48, 72, 80, 100, 3424, 3696}) {
        for (int n : {8, 100}) {
          auto w = random_matrix(named(name), n, k, 3);
          const Activations x = random_activations(3, k, 4);
          for (int m : {1, 3}) check(w->m, x, m, path, pool, false);
        }
      }
    }
    auto w = random_matrix(named("e3m2"), 1000, 72, 3);
    check(w->m, random_activations(17, 72, 4), 17, path, pool, false);
  }
}

TEST(Linear, NoRowsTouchesNothing) {
  ThreadPool pool(2);
  for (const PathUnderTest& path : paths_under_test()) {
    auto w = random_matrix(named("e3m2"), 8, 16, 3);
    const StoredMatrix* parts[] = {&w->m};
    Result<PackedMatrix> packed = pack_linear(parts, path.path, pool);
    ASSERT_TRUE(packed.ok());
    run_path(path, {.m = 0, .w = &*packed}, pool);
  }
}

TEST(Linear, AccumulateAddsToY) {
  ThreadPool pool(2);
  for (const PathUnderTest& path : paths_under_test()) {
    auto w = random_matrix(named("e3m2"), 45, 64, 3, Values::kGrid);
    const Activations x = random_activations(5, 64, 4, Values::kGrid);
    const StoredMatrix* parts[] = {&w->m};
    Result<PackedMatrix> packed = pack_linear(parts, path.path, pool);
    for (int64_t m : {1, 5}) {
      GuardedOutput out(m, 45);
      for (int64_t i = 0; i < m; ++i)
        for (int64_t j = 0; j < 45; ++j) out.y()[i * out.stride + j] = static_cast<float>(i - j);
      run_path(path,
               {.x = x.bf16.data(),
                .x_stride = 64,
                .m = m,
                .w = &*packed,
                .y = out.y(),
                .y_stride = out.stride,
                .accumulate = true},
               pool);
      std::vector<double> want(static_cast<size_t>(m * 45));
      linear_reference(w->m, x.exact.data(), m, nullptr, want.data(), nullptr);
      for (int64_t i = 0; i < m; ++i)
        for (int64_t j = 0; j < 45; ++j) want[static_cast<size_t>(i * 45 + j)] += double(i - j);
      const auto bad =
          first_mismatch(out.y(), out.stride, want, std::vector<double>(want.size(), 0.0), m, 45);
      EXPECT_FALSE(bad.has_value()) << path.name() << *bad;
      EXPECT_TRUE(out.guards_intact());
    }
  }
}

// Every row has the bits of its solo run, for every M, thread count and repetition.
TEST(Linear, RowsDoNotDependOnTheirBatch) {
  for (const PathUnderTest& path : paths_under_test()) {
    for (const char* name : {"e3m2", "nvfp4", "bf16"}) {
      const int64_t n = 70;
      const int64_t k = 200;
      auto w = random_matrix(named(name), n, k, 3);
      const Activations x = random_activations(67, k, 4);
      const StoredMatrix* parts[] = {&w->m};
      std::vector<float> solo(static_cast<size_t>(67 * n));
      ThreadPool one(1);
      Result<PackedMatrix> packed = pack_linear(parts, path.path, one);
      for (RowClass row_class : {RowClass::kPrompt, RowClass::kGenerated}) {
        for (int64_t i = 0; i < 67; ++i) {
          run_path(path,
                   {.x = x.bf16.data() + i * k,
                    .x_stride = k,
                    .m = 1,
                    .w = &*packed,
                    .y = solo.data() + i * n,
                    .y_stride = n,
                    .row_class = row_class},
                   one);
        }
        for (int threads : {1, 2, 3}) {
          ThreadPool pool(threads);
          for (int64_t m : {2, 3, 4, 5, 8, 12, 13, 32, 33, 67, 67}) {
            std::vector<float> y(static_cast<size_t>(m * n));
            run_path(path,
                     {.x = x.bf16.data(),
                      .x_stride = k,
                      .m = m,
                      .w = &*packed,
                      .y = y.data(),
                      .y_stride = n,
                      .row_class = row_class},
                     pool);
            ASSERT_EQ(std::memcmp(y.data(), solo.data(), y.size() * 4), 0)
                << name << " " << path.name() << " M=" << m << " threads=" << threads;
          }
        }
      }
    }
  }
}

// Equal order ids promise equal bits across paths.
TEST(Linear, EqualOrderIdsGiveEqualBits) {
  ThreadPool pool(2);
  for (const std::string& name : common_formats()) {
    auto w = random_matrix(named(name), 50, 144, 3);
    const Activations x = random_activations(5, 144, 4);
    const StoredMatrix* parts[] = {&w->m};
    std::vector<float> first;
    uint64_t first_id = 0;
    for (const PathUnderTest& path : paths_under_test()) {
      Result<PackedMatrix> packed = pack_linear(parts, path.path, pool);
      std::vector<float> y(5 * 50);
      run_path(path,
               {.x = x.bf16.data(),
                .x_stride = 144,
                .m = 5,
                .w = &*packed,
                .y = y.data(),
                .y_stride = 50,
                .row_class = RowClass::kGenerated},
               pool);
      const uint64_t id = linear_order_id(*packed, ActivationType::kBF16, RowClass::kGenerated);
      if (first.empty()) {
        first = y;
        first_id = id;
      }
      EXPECT_EQ(id, first_id) << name << " " << path.name();
      EXPECT_EQ(std::memcmp(y.data(), first.data(), y.size() * 4), 0) << name << " " << path.name();
    }
  }
}

// Field fault: a shift trick that flushes small E4M3 scales. All bytes 0x01..0x7E, code 7 = 6.0.
TEST(Linear, EveryE4M3ScaleByteIsExact) {
  ThreadPool pool(2);
  format::WeightFormat f = format::nvfp4_format();
  auto w = random_matrix(f, 0x7e, 16, 3);
  for (size_t i = 0; i < w->codes.size(); ++i) w->codes[i] = 0x77;
  for (size_t i = 0; i < w->scales.size(); ++i) w->scales[i] = static_cast<uint8_t>(1 + i);
  w->m.outer_scales = {1.0f};
  Activations x = random_activations(2, 16, 1);
  for (size_t i = 0; i < x.exact.size(); ++i) {
    x.exact[i] = i % 17 == 0 ? 1 : 0;
    x.bf16[i] = format::float_to_bf16(static_cast<float>(x.exact[i]));
  }
  for (const PathUnderTest& path : paths_under_test()) {
    const StoredMatrix* parts[] = {&w->m};
    Result<PackedMatrix> packed = pack_linear(parts, path.path, pool);
    for (int64_t m : {1, 2}) {
      std::vector<float> y(static_cast<size_t>(m * 0x7e));
      run_path(path,
               {.x = x.bf16.data(),
                .x_stride = 16,
                .m = m,
                .w = &*packed,
                .y = y.data(),
                .y_stride = 0x7e},
               pool);
      EXPECT_EQ(y[0], 0.01171875f) << path.name();
      std::vector<double> want(y.size());
      linear_reference(w->m, x.exact.data(), m, nullptr, want.data(), nullptr);
      const auto bad =
          first_mismatch(y.data(), 0x7e, want, std::vector<double>(y.size(), 0.0), m, 0x7e);
      EXPECT_FALSE(bad.has_value()) << path.name() << ": " << *bad;
    }
  }
}

TEST(Linear, ZerosAndExtremeScales) {
  ThreadPool pool(2);
  for (const PathUnderTest& path : paths_under_test()) {
    for (const char* name : {"e3m2", "e4m3:tensor", "nvfp4"}) {
      for (float scale : {0x1p-120f, 0x1p100f, 0.0f}) {
        auto w = random_matrix(named(name), 40, 64, 9);
        for (float& s : w->m.outer_scales) s = scale;
        check(w->m, random_activations(4, 64, 2), 4, path, pool, false);
        check(w->m, random_activations(1, 64, 2), 1, path, pool, false);
      }
    }
    for (const char* name : {"mxfp4", "mxfp6_e3m2", "mxfp8"}) {
      for (int byte : {0, 1, 20, 230, 250}) {
        auto w = random_matrix(named(name), 40, 64, 9);
        for (uint8_t& s : w->scales) s = static_cast<uint8_t>(byte);
        Activations x = random_activations(4, 64, 2);
        for (size_t i = 0; i < x.exact.size(); ++i) {  // keeps sums finite
          x.f32[i] *= 0x1p-20f;
          x.bf16[i] = format::float_to_bf16(x.f32[i]);
          x.exact[i] = static_cast<double>(x.f32[i]);
        }
        check(w->m, x, 4, path, pool, false);
        check(w->m, x, 1, path, pool, false);
      }
    }
  }
}

// The comparator sees what it must see.
TEST(LinearComparator, PlantedFaultsAreFound) {
  const std::vector<double> want = {1, -2, 3, -4, 5, -6};
  const std::vector<double> bound(6, 1e-3);
  const std::vector<float> good = {1, -2, 3, -4, 5, -6};
  EXPECT_FALSE(first_mismatch(good.data(), 3, want, bound, 2, 3).has_value());
  for (size_t i = 0; i < good.size(); ++i) {
    for (float fault : {-good[i], std::numeric_limits<float>::quiet_NaN(), good[i] * 2, 0.0f,
                        std::numeric_limits<float>::infinity()}) {
      std::vector<float> bad = good;
      bad[i] = fault;
      EXPECT_TRUE(first_mismatch(bad.data(), 3, want, bound, 2, 3).has_value())
          << i << " " << fault;
    }
  }
  GuardedOutput out(2, 3);
  EXPECT_TRUE(out.guards_intact());
  out.y()[3] = 0;
  EXPECT_FALSE(out.guards_intact());
}

}  // namespace
}  // namespace sub8::testing
