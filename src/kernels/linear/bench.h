// Measures linear kernels: time, bytes, and the share of the read bandwidth of this machine.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/cpu.h"
#include "base/error.h"
#include "base/thread_pool.h"
#include "format/weight_format.h"
#include "kernels/linear/op.h"

namespace sub8 {

struct LinearBenchCase {
  format::WeightFormat format;
  int64_t rows = 0;  // N
  int64_t cols = 0;  // K
  int64_t m = 1;
  CpuPath path = CpuPath::kScalar;
  ActivationType x_type = ActivationType::kBF16;  // or kE2M1
  RowClass row_class = RowClass::kPrompt;
};

struct LinearBenchResult {
  std::string kernel;  // linear_kernel_id
  LinearBenchCase what;
  int64_t packed_bytes = 0;
  int copies = 0;           // of the weight, used in turn, so that caches do not hold it
  double best_seconds = 0;  // of one call
  double median_seconds = 0;
  double packed_gb_per_s = 0;  // by the best time, as are the following
  double read_share = 0;       // of read_gb_per_s as passed in
  double gweights_per_s = 0;
  double gflop_per_s = 0;  // 2 M N K
};

// Best rate in GB/s at which the pool reads memory: every thread sums its part of `bytes` bytes.
Result<double> measure_read_bandwidth(ThreadPool& pool, int64_t bytes = int64_t{256} << 20);

// Best rate in Gop/s (two for each multiply-add) of the products that `path` has for rows of a
// type, from registers, on all threads.
double measure_product_rate(CpuPath path, ActivationType x_type, ThreadPool& pool);

// Finite random codes with scales near one; the same for the same arguments.
StoredMatrix random_weight(const format::WeightFormat& format, int64_t rows, int64_t cols);

// Random codes, one set of rows; runs for about `seconds`. With `cold`, copies of the weight of
// 96 MB in all (at most 512) are used in turn; otherwise one weight stays in cache if it fits.
Result<LinearBenchResult> bench_linear(const LinearBenchCase& what, ThreadPool& pool,
                                       double read_gb_per_s, bool cold = true,
                                       double seconds = 0.5);

// The layers of a model by width: q|k|v, o, gate|up, down and head of the 135M demo model and of an
// 8B one.
struct LinearShape {
  const char* name;
  int64_t rows;
  int64_t cols;
};
std::vector<LinearShape> bench_shapes();

}  // namespace sub8
