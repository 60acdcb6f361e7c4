// Run-time form of the placements, for packers and unpackers (kernels use the templates).
#pragma once

#include <cstdint>
#include <vector>

#include "pack/layout.h"

namespace sub8::pack {

// What one code adds to its lane's words. Word w is bits 16*(w%4) .. of half[w/4].
struct LaneWords {
  uint64_t half[2] = {0, 0};
};

struct PlacementTable {
  int bits = 0;
  int words = 0;
  int values = 0;
  std::vector<LaneWords> add;    // [values << bits]
  std::vector<int16_t> sources;  // [values][bits]: 16 * word + bit
};

// Coded layouts only.
PlacementTable placement_table(CpuCodec codec);

// Bits, words and values of a coded layout without its tables.
struct PlacementShape {
  int bits = 0;
  int words = 0;
  int values = 0;
};
PlacementShape placement_shape(CpuCodec codec);

}  // namespace sub8::pack
