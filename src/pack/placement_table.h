// Run-time form of the placements, for packers and unpackers (kernels use the templates).
#pragma once

#include <cstdint>
#include <vector>

#include "pack/layout.h"

namespace sub8::pack {

// What one code adds to its lane's words. Word w is bits lane_bits * w and up of half[0], half[1].
struct LaneWords {
  uint64_t half[2] = {0, 0};
};

struct PlacementTable {
  int bits = 0;
  int words = 0;
  int values = 0;
  int lane_bits = 0;             // 8 or 16
  std::vector<LaneWords> add;    // [values << bits]
  std::vector<int16_t> sources;  // [values][bits]: lane_bits * word + bit
};

// Coded layouts only.
PlacementTable placement_table(CpuCodec codec);

// A coded layout without its tables.
struct PlacementShape {
  int bits = 0;
  int words = 0;
  int values = 0;
  int lane_bits = 0;
};
PlacementShape placement_shape(CpuCodec codec);

}  // namespace sub8::pack
