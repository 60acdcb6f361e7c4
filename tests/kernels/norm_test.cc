#include "kernels/norm/norm.h"

#include <gtest/gtest.h>

#include "kernels/kernel_testing.h"
#include "kernels/norm/reference.h"

namespace sub8::kernels {
namespace {

using format::DType;

// Sizes around every vector length and unrolled block, and of models.
const int64_t kCols[] = {1, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 576, 1000};

// FP32: n terms in any order, then a root, a division and two products.
double norm_bound(int64_t cols, double magnitude) {
  return (0.5 * static_cast<double>(cols) + 8) * 0x1p-24 * magnitude + 1e-37;
}

TEST(Norm, RmsMatchesTheDoubleReference) {
  ThreadPool pool(2);
  uint32_t seed = 1;
  for (CpuPath path : paths_to_test()) {
    for (int64_t cols : kCols) {
      for (bool plus_one : {false, true}) {
        for (DType type : {DType::kF32, DType::kBF16}) {
          const int64_t rows = 5;
          const auto x = random_values(seed++, static_cast<size_t>(rows * (cols + 3)), 3.0f);
          const auto w = random_values(seed++, static_cast<size_t>(cols));
          const RmsNormWeights weights{w.data(), 1e-5f, plus_one};
          GuardedRows out(rows, cols, type);
          rms_norm(path, pool, {x.data(), cols + 3}, rows, cols, weights, out.view());
          EXPECT_TRUE(out.guards_intact());
          for (int64_t r = 0; r < rows; ++r) {
            const auto want = rms_norm_reference(x.data() + r * (cols + 3), cols, weights);
            for (int64_t i = 0; i < cols; ++i) {
              // 1 + w may cancel: its rounding is relative to the larger operand.
              const double scale = std::abs(want[i]) + (plus_one ? 4.0 * 0x1p-24 * 24 : 0.0);
              ASSERT_NEAR(out.at(r, i), want[i],
                          norm_bound(cols, scale) + half_unit(type, want[i]) * 1.001)
                  << cpu_path_name(path) << " cols " << cols << " row " << r << " col " << i;
            }
          }
        }
      }
    }
  }
}

TEST(Norm, RmsHandlesZeroAndLargeRows) {
  ThreadPool pool(1);
  for (CpuPath path : paths_to_test()) {
    std::vector<float> x(64, 0.0f);
    const std::vector<float> w(64, 2.0f);
    rms_norm(path, pool, {x.data(), 64}, 1, 64, {w.data(), 1e-6f, false}, f32_rows(x.data(), 64));
    for (float v : x) EXPECT_EQ(v, 0.0f);
    x.assign(64, 1e18f);  // squares stay finite
    rms_norm(path, pool, {x.data(), 64}, 1, 64, {w.data(), 1e-6f, false}, f32_rows(x.data(), 64));
    for (float v : x) EXPECT_NEAR(v, 2.0f, 1e-5f);
  }
}

TEST(Norm, HeadsAreNormalisedInPlaceAndNothingElse) {
  ThreadPool pool(2);
  const int64_t rows = 3;
  const int heads = 5;
  const int head_dim = 24;
  const int64_t stride = heads * head_dim + 7;
  for (CpuPath path : paths_to_test()) {
    const auto before = random_values(7, static_cast<size_t>(rows * stride), 2.0f);
    auto x = before;
    const auto w = random_values(8, head_dim);
    const RmsNormWeights weights{w.data(), 1e-6f, true};
    rms_norm_heads(path, pool, x.data(), rows, stride, heads, head_dim, weights);
    for (int64_t r = 0; r < rows; ++r) {
      for (int h = 0; h < heads; ++h) {
        const int64_t at = r * stride + h * head_dim;
        const auto want = rms_norm_reference(before.data() + at, head_dim, weights);
        for (int i = 0; i < head_dim; ++i)
          ASSERT_NEAR(x[at + i], want[i], norm_bound(head_dim, std::abs(want[i]) + 1e-5));
      }
      for (int64_t i = heads * head_dim; i < stride; ++i)
        ASSERT_EQ(x[r * stride + i], before[r * stride + i]);
    }
  }
}

TEST(Norm, LayerNormMatchesTheDoubleReference) {
  ThreadPool pool(2);
  uint32_t seed = 50;
  for (CpuPath path : paths_to_test()) {
    for (int64_t cols : kCols) {
      if (cols == 1) continue;  // the variance of one value is 0: eps alone, checked below
      for (bool with_bias : {false, true}) {
        const auto x = random_values(seed++, static_cast<size_t>(2 * cols), 3.0f);
        const auto w = random_values(seed++, static_cast<size_t>(cols));
        const auto b = random_values(seed++, static_cast<size_t>(cols));
        const LayerNormWeights weights{w.data(), with_bias ? b.data() : nullptr, 1e-5f};
        GuardedRows out(2, cols, DType::kF32);
        layer_norm(path, pool, {x.data(), cols}, 2, cols, weights, out.view());
        EXPECT_TRUE(out.guards_intact());
        for (int64_t r = 0; r < 2; ++r) {
          const auto want = layer_norm_reference(x.data() + r * cols, cols, weights);
          double top = 0;
          double spread = 0;
          for (int64_t i = 0; i < cols; ++i) top = std::max(top, double{std::abs(x[r * cols + i])});
          for (int64_t i = 1; i < cols; ++i)
            spread = std::max(spread, double{std::abs(x[r * cols + i] - x[r * cols])});
          for (int64_t i = 0; i < cols; ++i) {
            // The mean's error, over the deviation, times the weight.
            const double magnitude =
                std::abs(want[i]) + std::abs(b[i]) +
                (top / (spread / std::sqrt(2.0 * cols)) + 1) * std::abs(w[i]) * 2;
            ASSERT_NEAR(out.at(r, i), want[i], norm_bound(cols, magnitude))
                << cpu_path_name(path) << " cols " << cols << " col " << i;
          }
        }
      }
    }
    const float one = 3.0f;
    const float weight = 2.0f;
    const float bias = 0.5f;
    float out = 0;
    layer_norm(path, pool, {&one, 1}, 1, 1, {&weight, &bias, 1e-5f}, f32_rows(&out, 1));
    EXPECT_EQ(out, 0.5f);
  }
}

TEST(Norm, NoRowsTouchNothing) {
  ThreadPool pool(2);
  for (CpuPath path : paths_to_test()) {
    rms_norm(path, pool, {nullptr, 0}, 0, 64, {}, {nullptr, DType::kBF16, 0});
    layer_norm(path, pool, {nullptr, 0}, 0, 64, {}, {nullptr, DType::kBF16, 0});
    rms_norm_heads(path, pool, nullptr, 0, 0, 4, 64, {});
  }
}

TEST(Norm, ARowsBitsDependOnThatRowAlone) {
  const int64_t cols = 576;
  const int64_t rows = 13;
  const auto x = random_values(9, static_cast<size_t>(rows * cols));
  const auto w = random_values(10, static_cast<size_t>(cols));
  const RmsNormWeights weights{w.data(), 1e-5f, false};
  for (CpuPath path : paths_to_test()) {
    ThreadPool one(1);
    GuardedRows whole(rows, cols, DType::kF32);
    rms_norm(path, one, {x.data(), cols}, rows, cols, weights, whole.view());
    for (int threads : {2, 3}) {
      ThreadPool pool(threads);
      GuardedRows again(rows, cols, DType::kF32);
      rms_norm(path, pool, {x.data(), cols}, rows, cols, weights, again.view());
      EXPECT_EQ(whole.bytes(), again.bytes());
    }
    for (int64_t r = 0; r < rows; ++r) {
      GuardedRows alone(1, cols, DType::kF32);
      rms_norm(path, one, {x.data() + r * cols, cols}, 1, cols, weights, alone.view());
      EXPECT_EQ(whole.row_bytes(r), alone.row_bytes(0));
    }
  }
}

}  // namespace
}  // namespace sub8::kernels
