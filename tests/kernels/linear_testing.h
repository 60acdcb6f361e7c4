// Makes random weights in storage form, runs the kernels of every path, and compares with the
// reference: a bound per element, never a score per tensor.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "base/cpu.h"
#include "format/dtype.h"
#include "kernels/linear/emulated.h"
#include "kernels/linear/op.h"

namespace sub8::testing {

// A kernel path as it can be exercised here: the real one, or the twin over plain arrays.
struct PathUnderTest {
  CpuPath path = CpuPath::kScalar;
  bool emulated = false;
  std::string name() const {
    return std::string(cpu_path_name(path)) + (emulated ? " (emulated)" : "");
  }
};

// Scalar, every real path of this machine, and the emulated twins of AVX-512 and AMX.
inline std::vector<PathUnderTest> paths_under_test() {
  std::vector<PathUnderTest> out;
  for (CpuPath path : available_cpu_paths()) out.push_back({path, false});
  out.push_back({CpuPath::kAvx512, true});
  out.push_back({CpuPath::kAmx, true});
  return out;
}

struct OwnedMatrix {
  StoredMatrix m;
  std::vector<uint8_t> codes;
  std::vector<uint8_t> scales;
};

enum class Values { kRandom, kGrid };

inline std::shared_ptr<OwnedMatrix> random_matrix(const format::WeightFormat& f, int64_t rows,
                                                  int64_t cols, uint32_t seed,
                                                  Values values = Values::kRandom) {
  std::mt19937 rng(seed);
  auto out = std::make_shared<OwnedMatrix>();
  const int64_t row_bytes = f.row_bytes(cols);
  out->codes.resize(static_cast<size_t>(rows * row_bytes));
  std::vector<uint8_t> codes(static_cast<size_t>(cols));
  for (int64_t n = 0; n < rows; ++n) {
    uint8_t* row = out->codes.data() + n * row_bytes;
    if (f.dense) {
      for (int64_t k = 0; k < cols; ++k) {
        const float value = values == Values::kGrid
                                ? static_cast<float>(static_cast<int>(rng() % 9) - 4) * 0.5f
                                : std::normal_distribution<float>(0, 0.05f)(rng);
        if (f.dtype == format::DType::kF32) {
          std::memcpy(row + 4 * k, &value, 4);
        } else {
          const uint16_t half = f.dtype == format::DType::kF16 ? format::float_to_f16(value)
                                                               : format::float_to_bf16(value);
          std::memcpy(row + 2 * k, &half, 2);
        }
      }
      continue;
    }
    for (uint8_t& code : codes) {
      do {
        code = static_cast<uint8_t>(rng() & (f.element.code_count() - 1));
      } while (f.element.is_nonfinite(code));
    }
    format::pack_codes(codes.data(), cols, f.element.bits(), row);
  }
  for (int64_t i = 0; i < rows * f.groups(cols); ++i) {
    const bool e4m3 = f.block_scale == format::BlockScale::kE4M3;
    const uint32_t r = static_cast<uint32_t>(rng());
    out->scales.push_back(static_cast<uint8_t>(values == Values::kGrid
                                                   ? (e4m3 ? 0x38 + 8 * (r % 2) : 127 + r % 2)
                                                   : (e4m3 ? 1 + r % 0x7e : 120 + r % 14)));
  }
  const int64_t outer = f.outer_scale == format::OuterScale::kChannel  ? rows
                        : f.outer_scale == format::OuterScale::kTensor ? 1
                                                                       : 0;
  for (int64_t i = 0; i < outer; ++i) {
    const float value = 0.01f + 0.001f * static_cast<float>(rng() % 100);
    out->m.outer_scales.push_back(values == Values::kGrid ? std::ldexp(1.0f, int(rng() % 3))
                                                          : value);
  }
  out->m.format = f;
  out->m.rows = rows;
  out->m.cols = cols;
  out->m.codes = out->codes;
  out->m.block_scales = out->scales;
  return out;
}

// Activations on the bf16 grid, as bf16 and as double.
struct Activations {
  std::vector<uint16_t> bf16;
  std::vector<float> f32;
  std::vector<double> exact;
};

inline Activations random_activations(int64_t m, int64_t cols, uint32_t seed,
                                      Values values = Values::kRandom) {
  std::mt19937 rng(seed);
  Activations out;
  for (int64_t i = 0; i < m * cols; ++i) {
    const float value = values == Values::kGrid
                            ? static_cast<float>(static_cast<int>(rng() % 5) - 2)
                            : std::normal_distribution<float>()(rng);
    out.bf16.push_back(format::float_to_bf16(value));
    out.f32.push_back(format::bf16_to_float(out.bf16.back()));
    out.exact.push_back(static_cast<double>(out.f32.back()));
  }
  return out;
}

// The first element that breaks |got - want| <= bound (NaN breaks it), or nothing.
inline std::optional<std::string> first_mismatch(const float* got, int64_t stride,
                                                 const std::vector<double>& want,
                                                 const std::vector<double>& bound, int64_t m,
                                                 int64_t n) {
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      const double g = static_cast<double>(got[i * stride + j]);
      const double w = want[static_cast<size_t>(i * n + j)];
      const double b = bound[static_cast<size_t>(i * n + j)];
      if (!(std::fabs(g - w) <= b)) {
        return "y[" + std::to_string(i) + ", " + std::to_string(j) + "] = " + std::to_string(g) +
               ", expected " + std::to_string(w) + " +- " + std::to_string(b);
      }
    }
  }
  return std::nullopt;
}

// gamma_K * sum|w x| + half an ulp of each later rounding; 2^-126 per product for flushed
// subnormals.
inline std::vector<double> error_bounds(const std::vector<double>& want,
                                        const std::vector<double>& magnitude, int64_t cols,
                                        double outer_max) {
  constexpr double kUnit = 0x1p-24;
  const double steps = static_cast<double>(cols) + 8;
  const double gamma = steps * kUnit / (1 - steps * kUnit);
  std::vector<double> out;
  for (size_t i = 0; i < want.size(); ++i) {
    out.push_back(gamma * magnitude[i] + 4 * kUnit * std::fabs(want[i]) +
                  steps * 0x1p-126 * std::max(1.0, outer_max));
  }
  return out;
}

// Y with NaN poison and guard zones around every row.
struct GuardedOutput {
  static constexpr int64_t kGuard = 40;
  int64_t m, n, stride;
  std::vector<float> data;
  GuardedOutput(int64_t rows, int64_t cols)
      : m(rows),
        n(cols),
        stride(cols + kGuard),
        data(static_cast<size_t>(kGuard + rows * (cols + kGuard)),
             std::numeric_limits<float>::quiet_NaN()) {}
  float* y() { return data.data() + kGuard; }
  bool guards_intact() const {
    for (size_t i = 0; i < data.size(); ++i) {
      const int64_t at = static_cast<int64_t>(i) - kGuard;
      const bool inside = at >= 0 && at / stride < m && at % stride < n;
      if (!inside && !std::isnan(data[i])) return false;
    }
    return true;
  }
};

inline void run_path(const PathUnderTest& path, const LinearArgs& args, ThreadPool& pool) {
  const size_t bytes = linear_workspace_bytes(*args.w, args.m, pool.size());
  Result<AlignedBuffer<std::byte>> work = AlignedBuffer<std::byte>::uninitialized(bytes);
  std::memset(work->data(), 0x7f, bytes);  // stale bytes must not matter
  if (path.emulated) {
    linear_emulated(args, pool, work->span());
  } else {
    linear(args, pool, work->span());
  }
}

}  // namespace sub8::testing
