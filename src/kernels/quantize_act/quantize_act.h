// Quantise-and-extend: token rows to 4- or 8-bit codes and scales, with their residue, in one pass.
//
// Source: ResServe Algorithm 1 and sections 5.1-5.3; format/activation.h has the arithmetic. A row
// is read once; residues are formed from the codes just chosen and never leave the thread.
//
// Where rows go (M token rows, K channels; R = 1 without residue):
//
// clang-format off
// | layout      | rows                   | row i: base, residue        | width of a row
// | kRows       | M, residue in `second` | i, i of `second`            | K; of `second` K, or selected channels
// | kRowPair    | 2M                     | 2i, 2i + 1                  | K
// | kTile8      | 16 ceil(M/8)           | 16(i/8) + i%8, that + 8     | K; rows from M on are zero
// | kKExtended  | M                      | i, the same row             | base padded to whole blocks, then the selected channels
// clang-format on
//
// Selected channels: groups of 8 ascending, channels ascending, `selected_per_group(ratio)` of each
// group; a last group with fewer than 8 channels is filled up with zeros.
//
// A destination takes codes (packed least significant bit first) with scale bytes, or the values
// q*s without alpha as bf16, which is what the CPU's matrix kernels for 8-bit rows read.
#pragma once

#include <cstdint>
#include <span>

#include "base/cpu.h"
#include "base/thread_pool.h"
#include "format/activation.h"

namespace sub8::kernels {

enum class QuantizedLayout : uint8_t { kRows, kRowPair, kTile8, kKExtended };

using format::AlphaSource;

struct ActivationRule {
  format::ActivationFormat format = format::ActivationFormat::kNvfp4;
  format::MxRule mx_rule = format::MxRule::kEven;
  AlphaSource alpha_source = AlphaSource::kRow;
  float static_alpha = 0;  // kStatic: finite, positive (0: every row is zero)
};

// Either codes and scales, or values. Strides are in bytes for codes and scales, in elements for
// values; fp8 has no scales.
struct QuantizedRows {
  uint8_t* codes = nullptr;
  int64_t code_stride = 0;
  uint8_t* scales = nullptr;
  int64_t scale_stride = 0;
  uint16_t* values = nullptr;  // bf16
  int64_t value_stride = 0;
};

struct QuantizeActArgs {
  CpuPath path = CpuPath::kScalar;  // available here; every path writes the same bytes
  ActivationRule rule;
  const uint16_t* x = nullptr;  // bf16 [m][x_stride], finite
  int64_t x_stride = 0;
  int64_t m = 0;
  int64_t k = 0;
  QuantizedLayout layout = QuantizedLayout::kRows;
  bool residue = false;               // always true for the other layouts
  std::span<const uint8_t> selected;  // ceil(k/8) masks of equal population; empty: all channels
  QuantizedRows out;
  QuantizedRows second;    // kRows with residue only
  float* alpha = nullptr;  // [m]
};

// Rows that `layout` has for m token rows.
int64_t quantized_rows(QuantizedLayout layout, int64_t m);
// Selected channels of a row: ceil(k/8) times the masks' common population; k without masks.
int64_t selected_cols(int64_t k, std::span<const uint8_t> selected);
// Width of a row in elements; the extension begins at the first whole block.
int64_t quantized_cols(QuantizedLayout layout, format::ActivationFormat format, int64_t k,
                       std::span<const uint8_t> selected);

// Bytes of scratch for one thread; the pass needs `threads` times that.
size_t quantize_act_workspace_bytes(int64_t k, int threads);

// Writes every element of the destination, padding included. Allocates nothing. The arguments are
// ours (SUB8_CHECK).
void quantize_act(const QuantizeActArgs& args, ThreadPool& pool, std::span<std::byte> workspace);

// Fold: y[i] = (raw[base(i)] + raw[residue(i)]) * fl(alpha[i] * outer[n]) (+ bias[n]) (+ y[i]),
// each operation rounded in this order. `raw` holds the sums over q*s products.
struct FoldArgs {
  const float* raw = nullptr;  // [quantized_rows][raw_stride], or without residue [m][raw_stride]
  int64_t raw_stride = 0;
  QuantizedLayout layout = QuantizedLayout::kRows;  // kRows, kKExtended: one sum per row
  int64_t m = 0;
  int64_t n = 0;
  const float* alpha = nullptr;  // [m]
  const float* outer = nullptr;  // [n] tensor or channel scales of the weight; null: 1
  const float* bias = nullptr;   // [n] or null
  bool accumulate = false;
  float* y = nullptr;
  int64_t y_stride = 0;
};
void fold(const FoldArgs& args, ThreadPool& pool);

}  // namespace sub8::kernels
