// How the host sees a kernel instance.
#pragma once

#include <cstdint>

#include "format/element.h"
#include "pack/cuda/linear_layout.h"

namespace sub8::kernels::linear {

// Where operands live: fragments of mma.sync (fragment_kernel.cuh, sliced_kernel.cuh), or wgmma's
// registers and shared memory (warpgroup_kernel.cuh; byte_kernel.cuh for e4m3 activations).
enum class MainLoop { kFragment, kSliced, kWarpgroup, kByteWarpgroup };

struct KernelEntry {
  const char* codec;
  format::ElementFormat element;  // {0,0}: dense
  pack::Operand operand;
  pack::GroupKind groups;
  MainLoop loop;
  int tokens;
  int rows;   // of W that a CTA works on
  int units;  // pieces along k per stage
  int cluster;
  int ctas_per_sm;  // of one launch
  int residents;    // CTAs per SM that registers and shared memory are divided among
  int teams;        // consumer warps or warpgroups
  int threads;
  uint32_t x_bytes;       // of activations per ring slot
  uint32_t beside_bytes;  // of sums that warps exchange in shared memory, beside the ring
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
#define X(name, element, groups) KernelEntryList byte_entries_##name();
#include "kernels/linear/cuda/byte_instances.inc"
#undef X

}  // namespace sub8::kernels::linear
