// What quantised activations and their residue cost on this machine: time of a linear layer in each
// form beside the plain one, and storage.
//
// All forms of a layer are timed in turn, call by call, over copies of the weight that no cache
// holds. On a busy machine the time that one thread computes (`cpu_time`) tells more than the time
// that passes: calls longer than a time slice are interrupted.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/cpu.h"
#include "base/error.h"
#include "base/thread_pool.h"
#include "format/weight_format.h"
#include "kernels/linear/op.h"

namespace sub8::study {

struct ResidueCostCase {
  format::WeightFormat weights;  // nvfp4 or mxfp4
  int64_t rows = 0;              // N
  int64_t cols = 0;              // K
  int64_t m = 1;
  RowClass row_class = RowClass::kPrompt;
  CpuPath path = CpuPath::kScalar;
  bool cpu_time = false;  // of the process, in the place of elapsed time; for a pool of one thread
};

// What this machine can do at most, for the floor.
struct MachineRates {
  double read_gb_per_s = 0;    // 0: no floor
  double byte_gop_per_s = 0;   // products of bytes
  double value_gop_per_s = 0;  // of bf16 rows
};
Result<MachineRates> measure_machine_rates(CpuPath path, ThreadPool& pool);

struct ResidueCost {
  std::string form;    // "weight-only", "plain", "plain, bf16 rows", "M-Ext", "K-Ext 0.25", ...
  std::string kernel;  // linear_kernel_id of its first product; "" for weight-only's alone
  double best_us = 0;
  double median_us = 0;
  double over_plain = 1;  // median over the rounds of this time over plain's in the same round
  // The larger of packed bytes over the read rate and operations over their rate.
  double floor_us = 0;
  bool memory_bound = true;
  int64_t extra_bytes = 0;  // extension and mask in storage form
  double growth = 0;        // that over the weight's codes and scales
};

// Forms: weight-only, plain (by the kernel chosen and, where that takes codes, by bf16 rows too),
// M-Ext, and K-Ext for each ratio between 0 and 1; M-Ext in the place of ratio 1. At least five
// rounds and `seconds` long.
Result<std::vector<ResidueCost>> measure_residue_cost(const ResidueCostCase& what,
                                                      std::span<const float> ratios,
                                                      const MachineRates& rates, double seconds,
                                                      ThreadPool& pool);

}  // namespace sub8::study
