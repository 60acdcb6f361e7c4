#include "kernels/activation/activation.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "kernels/activation/kernels.h"
#include "kernels/activation/reference.h"
#include "kernels/kernel_testing.h"

namespace sub8::kernels {
namespace {

using format::DType;

constexpr Activation kAll[] = {Activation::kSilu, Activation::kGelu, Activation::kGeluTanh,
                               Activation::kRelu, Activation::kQuickGelu};

// |got - want| in units of the last place at `want`; those of the smallest normal below it.
double error_units(float got, double want) {
  const int exponent = std::max(std::ilogb(want == 0 ? 1e-300 : want), -126);
  return std::abs(got - want) / std::ldexp(1.0, exponent - 23);
}

// Every 37th float (portable: 997th) from 1e-9 to the ends of the range, both signs.
TEST(SimdMath, ExpIsWithinItsStatedAccuracy) {
  for (CpuPath path : paths_to_test()) {
    const MathKernels& kernels = SUB8_PICK_KERNELS(path, kMath);
    const uint32_t stride = path == CpuPath::kScalar ? 997 : 37;
    double worst = 0;
    float worst_at = 0;
    std::vector<float> x;
    std::vector<float> y(1 << 16);
    const auto flush = [&] {
      kernels.exp(x.data(), static_cast<int64_t>(x.size()), y.data());
      for (size_t i = 0; i < x.size(); ++i) {
        const double error = error_units(y[i], std::exp(double{x[i]}));
        if (!(error <= worst)) {
          worst = error;
          worst_at = x[i];
        }
      }
      x.clear();
    };
    for (uint32_t bits = format::float_bits(1e-9f); bits < format::float_bits(103.9f);
         bits += stride) {
      const float magnitude = format::bits_float(bits);
      x.push_back(-magnitude);
      if (magnitude < 88.72f) x.push_back(magnitude);
      if (x.size() + 2 > y.size()) flush();
    }
    flush();
    std::printf("[   EXP    ] %s: at most %.3f units, at %.9g\n",
                std::string(cpu_path_name(path)).c_str(), worst, worst_at);
    EXPECT_LE(worst, path == CpuPath::kScalar ? 2.0 : 1.5) << "at " << worst_at;
  }
}

TEST(SimdMath, ExpEnds) {
  const float inf = INFINITY;
  for (CpuPath path : paths_to_test()) {
    const std::vector<float> x = {0.0f, -0.0f, inf, -inf, 88.8f, 1e30f, -104.1f, -1e30f, NAN};
    std::vector<float> y(x.size());
    SUB8_PICK_KERNELS(path, kMath).exp(x.data(), static_cast<int64_t>(x.size()), y.data());
    EXPECT_EQ(y[0], 1.0f);
    EXPECT_EQ(y[1], 1.0f);
    EXPECT_EQ(y[2], inf);
    EXPECT_EQ(y[3], 0.0f);
    EXPECT_EQ(y[4], inf);
    EXPECT_EQ(y[5], inf);
    EXPECT_EQ(y[6], 0.0f);
    EXPECT_EQ(y[7], 0.0f);
    EXPECT_TRUE(std::isnan(y[8]));
  }
}

TEST(SimdMath, TanhIsWithinFourUnits) {
  for (CpuPath path : paths_to_test()) {
    std::vector<float> x;
    for (uint32_t bits = 0; bits < 0x7f800000u; bits += 7919) {
      x.push_back(format::bits_float(bits));
      x.push_back(-x.back());
    }
    std::vector<float> y(x.size());
    SUB8_PICK_KERNELS(path, kMath).tanh(x.data(), static_cast<int64_t>(x.size()), y.data());
    double worst = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      if (std::abs(x[i]) < 1e-36f) {
        ASSERT_NEAR(y[i], x[i], 1e-37);
        continue;
      }
      worst = std::max(worst, error_units(y[i], std::tanh(double{x[i]})));
    }
    std::printf("[   TANH   ] %s: at most %.3f units\n", std::string(cpu_path_name(path)).c_str(),
                worst);
    EXPECT_LE(worst, 4.0);
  }
}

TEST(Activation, MatchesTheDoubleReference) {
  ThreadPool pool(2);
  std::vector<float> values = random_values(5, 997, 6.0f);
  for (float x : {0.0f, -0.0f, 30.0f, -30.0f, 1e4f, -1e4f, 1e-30f, -1e-30f}) values.push_back(x);
  const auto n = static_cast<int64_t>(values.size());
  const auto up = random_values(6, values.size());
  for (CpuPath path : paths_to_test()) {
    for (Activation f : kAll) {
      for (bool gated : {false, true}) {
        for (DType type : {DType::kF32, DType::kBF16}) {
          GuardedRows out(1, n, type);
          if (gated) {
            gated_activation(path, pool, f, {values.data(), n}, {up.data(), n}, 1, n, out.view());
          } else {
            activation(path, pool, f, {values.data(), n}, 1, n, out.view());
          }
          EXPECT_TRUE(out.guards_intact());
          for (int64_t i = 0; i < n; ++i) {
            const double x = values[i];
            const double want = activation_reference(f, x) * (gated ? up[i] : 1.0f);
            // The rounding of the exponent's argument counts once per unit of its size; below
            // 2^-126 results may be flushed, times the factor.
            const double argument = std::min(88.0, std::abs(x) * (1.6 + 0.0714 * x * x));
            const double relative = (8 + 3 * argument) * 0x1p-24;
            ASSERT_NEAR(out.at(0, i), want,
                        std::abs(want) * relative + half_unit(type, want) * 1.001 +
                            0x1p-125 * (1 + std::abs(x)) * 4)
                << cpu_path_name(path) << " function " << static_cast<int>(f) << " at " << x;
          }
        }
      }
    }
  }
}

TEST(Activation, NaNStaysVisible) {
  ThreadPool pool(1);
  for (CpuPath path : paths_to_test()) {
    for (Activation f : kAll) {
      std::vector<float> x(9, NAN);
      activation(path, pool, f, {x.data(), 9}, 1, 9, f32_rows(x.data(), 9));
      for (float y : x) EXPECT_TRUE(std::isnan(y)) << static_cast<int>(f);
    }
  }
}

TEST(Activation, TailsThreadsAndEmpty) {
  for (CpuPath path : paths_to_test()) {
    ThreadPool pool(3);
    ThreadPool one(1);
    for (int64_t cols = 1; cols <= 40; ++cols) {
      const auto gate = random_values(11, static_cast<size_t>(7 * cols));
      const auto up = random_values(12, static_cast<size_t>(7 * cols));
      GuardedRows all(7, cols, DType::kBF16);
      gated_activation(path, pool, Activation::kSilu, {gate.data(), cols}, {up.data(), cols}, 7,
                       cols, all.view());
      EXPECT_TRUE(all.guards_intact());
      for (int64_t r = 0; r < 7; ++r) {
        GuardedRows alone(1, cols, DType::kBF16);
        gated_activation(path, one, Activation::kSilu, {gate.data() + r * cols, cols},
                         {up.data() + r * cols, cols}, 1, cols, alone.view());
        EXPECT_EQ(all.row_bytes(r), alone.row_bytes(0));
      }
    }
    gated_activation(path, pool, Activation::kSilu, {}, {}, 0, 64, {});
    activation(path, pool, Activation::kRelu, {}, 0, 64, {});
  }
}

TEST(Activation, Names) {
  EXPECT_EQ(parse_activation("silu").value(), Activation::kSilu);
  EXPECT_EQ(parse_activation("gelu_pytorch_tanh").value(), Activation::kGeluTanh);
  EXPECT_EQ(parse_activation("relu").value(), Activation::kRelu);
  const auto unknown = parse_activation("mish");
  ASSERT_FALSE(unknown.ok());
  EXPECT_EQ(unknown.error().code, ErrorCode::kUnsupported);
  EXPECT_NE(unknown.error().message.find("silu"), std::string::npos);
}

}  // namespace
}  // namespace sub8::kernels
