// Choice of a kernel: feasible, then the lowest estimate. Deterministic; plain C++.
#pragma once

#include <string>
#include <vector>

#include "base/error.h"
#include "kernels/linear/cuda/entry.h"
#include "pack/cuda/linear_layout.h"

namespace sub8::kernels::linear {

struct Wanted {
  std::string id_end;            // only kernels whose id ends with this
  int ctas_per_sm = 0;           // 0: as estimated
  int residents = 0;             // 0: as estimated
  bool batch_invariant = false;  // only kernels with the one order of sums that every M can have
};

// What a choice depends on; an H200 where nothing else is said.
struct Card {
  int sms = 132;
  int shared_bytes = 232448;         // a CTA may have
  int shared_bytes_per_sm = 233472;  // of which each CTA takes 1 KB more than it asks for
};

struct Choice {
  KernelEntry entry;
  int ctas_per_sm = 1;
  int residents = 1;  // CTAs that an SM's shared memory is divided among
  double estimate_us = 0;
};

// How the work of a call is divided.
struct Division {
  int32_t row_tiles;    // along N, in units of a cluster's rows
  int32_t token_tiles;  // along M
  int32_t k_stages;
  int64_t stages;  // all of them together
  int32_t workers;
  // Row tiles whose stages are divided among all workers; kSliced deals the others out whole.
  int32_t rest_tiles;
};

const std::vector<KernelEntry>& all_kernels();

// Shared memory in front of the ring: alignment and barriers.
inline constexpr uint32_t kRingOverhead = 2048;

// Slots of a CTA's ring where an SM's shared memory is divided among `residents` CTAs. Consumers
// wait for the next slot before they give the last one back, so fewer than two would wait for ever.
uint32_t ring_slots(const KernelEntry& e, int64_t piece_bytes, int64_t m, int residents,
                    const Card& card);
uint32_t ring_slot_size(const KernelEntry& e, int64_t piece_bytes, int64_t m);
// Rows of X that a slot of the sliced loop has room for: a power of two, 2 at least.
int slot_rows(const KernelEntry& e, int64_t m);

// e.g. "linear_e3m2_bf16_wgmma_256x64x128_w4": rows of W x rows of X x K of a stage, consumer
// teams.
std::string kernel_id(const KernelEntry& e);

bool runs(const KernelEntry& e, const pack::CudaLinearLayout& layout);

Division divide(const KernelEntry& e, int ctas_per_sm, const pack::CudaLinearLayout& layout,
                int64_t m, int sms);

// Microseconds of a call, fitted to an H200; it need only put candidates in the right order.
double estimate_us(const KernelEntry& e, int ctas_per_sm, int residents,
                   const pack::CudaLinearLayout& layout, int64_t m, int sms);

// All candidates in the order of their estimates; the first is the choice. Refusals, one line each,
// go to `refused` where it is not null.
std::vector<Choice> candidates(const pack::CudaLinearLayout& layout, int64_t m, const Card& card,
                               const Wanted& wanted, std::string* refused);

// Rows that one launch of the batch-invariant kernels takes.
inline constexpr int64_t kInvariantRows = 64;

}  // namespace sub8::kernels::linear
