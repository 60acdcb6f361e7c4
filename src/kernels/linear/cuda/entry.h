// How the host sees a kernel instance.
#pragma once

#include <cstdint>

#include "format/placement.h"
#include "pack/cuda/linear_layout.h"

namespace sub8::kernels::linear {

// Where operands live: fragments of mma.sync (fragment_kernel.cuh, sliced_kernel.cuh), or wgmma's
// registers and shared memory (warpgroup_kernel.cuh).
enum class MainLoop { kFragment, kSliced, kWarpgroup };

struct KernelEntry {
  const char* codec;
  format::ElementFormat element;  // {0,0}: dense
  format::Half type;
  pack::GroupKind groups;
  MainLoop loop;
  int tokens;
  int rows;   // of W that a CTA works on
  int units;  // of 64 k per stage
  int cluster;
  int ctas_per_sm;  // of one launch
  int residents;    // CTAs per SM that registers and shared memory are divided among
  int teams;        // consumer warps or warpgroups
  int threads;
  uint32_t x_bytes;       // of activations per ring slot
  uint32_t reduce_bytes;  // of sums that warps exchange, beside the ring
  const void* kernel;     // void (RingParams); kSliced: void (SlicedParams)
};

struct KernelEntryList {
  const KernelEntry* entries;
  int count;
};

inline constexpr format::ElementFormat kDense{0, 0};

#define X(name, element, groups) KernelEntryList kernel_entries_##name();
#include "kernels/linear/cuda/instances.inc"
#undef X

}  // namespace sub8::kernels::linear
