// What attention computes, in double, by its own reading of the page layout, with a bound on what
// FP32 kernels may differ by.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/attention/attention.h"

namespace sub8::kernels {

struct AttentionReference {
  std::vector<double> value;  // [rows, heads * head_dim], before the rounding of the output
  // Bound of |kernel - value| before the rounding of the output, from: dot products of head_dim
  // terms, exponentials within 4 half-units, chains of at most 512 additions per split, one merge
  // of a few operations per split. Where probabilities are rounded to E4M3 or bf16, those near a
  // tie may come out as the neighbour: each counts with the distance of what the ends of its
  // interval are rounded to.
  std::vector<double> bound;
};

AttentionReference attention_reference(const AttentionShape& shape, const uint8_t* pages,
                                       InputRows q, std::span<const AttentionRow> rows);

}  // namespace sub8::kernels
