// How the host sees a ring-kernel instance.
#pragma once

#include <cstdint>

#include "format/placement.h"
#include "pack/cuda/linear_layout.h"

namespace sub8::kernels::linear {

struct RingEntry {
  const char* codec;
  format::ElementFormat element;  // {0,0}: dense
  format::Half type;
  pack::GroupKind groups;
  int tokens;
  int cluster;
  int threads;
  uint32_t x_bytes;    // of activations per ring slot
  const void* kernel;  // void (RingParams)
};

struct RingEntryList {
  const RingEntry* entries;
  int count;
};

inline constexpr format::ElementFormat kDense{0, 0};

#define X(name, element, groups) RingEntryList ring_entries_##name();
#include "kernels/linear/cuda/instances.inc"
#undef X

}  // namespace sub8::kernels::linear
