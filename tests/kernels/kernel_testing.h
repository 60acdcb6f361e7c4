// Shared by the kernel tests: which paths run here, seeded values, guarded and poisoned outputs.
#pragma once

#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/cpu.h"
#include "format/dtype.h"
#include "kernels/rows.h"

namespace sub8::kernels {

// The paths that the elementwise kernels and attention exist for and this machine has. What it
// lacks is counted and printed: not run is not passed.
inline std::vector<CpuPath> paths_to_test() {
  static bool printed = false;
  std::vector<CpuPath> out;
  int skipped = 0;
  for (CpuPath path : {CpuPath::kScalar, CpuPath::kAvx2, CpuPath::kAvx512}) {
    if (cpu_path_available(path)) {
      out.push_back(path);
      continue;
    }
    ++skipped;
    if (!printed) {
      std::printf("[ NOT RUN  ] path %s: this machine (%s) lacks it\n",
                  std::string(cpu_path_name(path)).c_str(), cpu_features().model.c_str());
    }
  }
  if (!printed) std::printf("[  PATHS   ] %zu run, %d not run\n", out.size(), skipped);
  printed = true;
  return out;
}

inline std::vector<float> random_values(uint32_t seed, size_t count, float spread = 1.0f) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, spread);
  std::vector<float> out(count);
  for (float& x : out) x = normal(random);
  return out;
}

// [rows, cols] of f32 or bf16 with padding between rows and guards at both ends, all filled with
// NaN: an element that is not written, and a write outside, both show.
class GuardedRows {
 public:
  GuardedRows(int64_t rows, int64_t cols, format::DType type, int64_t padding = 5)
      : rows_(rows),
        cols_(cols),
        stride_(cols + padding),
        type_(type),
        size_(static_cast<int64_t>(format::dtype_bytes(type))),
        bytes_(static_cast<size_t>((rows * stride_ + 2 * kGuard) * size_), 0xff) {}

  OutputRows view() { return {bytes_.data() + kGuard * size_, type_, stride_}; }

  float at(int64_t row, int64_t col) const {
    const uint8_t* p = bytes_.data() + (kGuard + row * stride_ + col) * size_;
    if (type_ == format::DType::kBF16) {
      uint16_t bits = 0;
      std::memcpy(&bits, p, 2);
      return format::bf16_to_float(bits);
    }
    float value = 0;
    std::memcpy(&value, p, 4);
    return value;
  }
  // Whether everything outside the [rows, cols] elements still holds the poison.
  bool guards_intact() const {
    for (size_t i = 0; i < bytes_.size(); ++i) {
      const int64_t element = static_cast<int64_t>(i) / size_ - kGuard;
      const bool inside = element >= 0 && element < rows_ * stride_ && element % stride_ < cols_;
      if (!inside && bytes_[i] != 0xff) return false;
    }
    return true;
  }
  const std::vector<uint8_t>& bytes() const { return bytes_; }
  std::vector<uint8_t> row_bytes(int64_t row) const {
    const uint8_t* p = bytes_.data() + (kGuard + row * stride_) * size_;
    return {p, p + cols_ * size_};
  }

 private:
  static constexpr int64_t kGuard = 32;
  int64_t rows_, cols_, stride_;
  format::DType type_;
  int64_t size_;
  std::vector<uint8_t> bytes_;
};

// Half a unit in the last place of the output type at `value`.
inline double half_unit(format::DType type, double value) {
  const double relative = type == format::DType::kBF16 ? 0x1p-7 : 0x1p-23;
  return 0.5 * relative * std::abs(value) + 1e-38;
}

}  // namespace sub8::kernels
