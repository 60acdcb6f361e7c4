// What the dispatcher (op.cc) hands to an ISA's kernels. Plain data and function pointers only:
// this header is compiled with every set of -m flags, so it may define no function and include
// nothing that does.
#pragma once

#include <cstdint>

namespace sub8::linear_cpu {

// K is worked off in segments of this many values: the decoded f32 panel (16 KiB) then stays in L1.
inline constexpr int kSegment = 128;
inline constexpr int kPanel = 32;       // output channels of a panel
inline constexpr int kRowBlock = 96;    // token rows at a time: with the panel, their sums fit L1
inline constexpr int kFewRows = 8;      // at most so many rows are multiplied from registers
inline constexpr int kPrefetch = 1536;  // bytes ahead in the packed stream

inline constexpr int kSegmentGroups = kSegment / 16;  // most block scales of a segment

struct CodeParams {    // for codecs that are not fixed to one element
  int sign_shift = 0;  // canonical code -> f16 image
  int magnitude_shift = 0;
  uint16_t magnitude_mask = 0;
  const float* table = nullptr;  // canonical code -> value
  // Byte codecs: canonical code -> bf16, 128 lower bytes, then 128 upper ones, repeated to fill;
  // 64-byte aligned. Eight-bit codes: of the magnitude.
  const uint8_t* bytes = nullptr;
  // Byte kernels (e2m1): what byte_gemm.inc looks up; 64-byte aligned.
  const uint8_t* unsigned_codes = nullptr;
};

enum class ScaleKind : uint8_t { kNone, kE4M3, kE8M0 };

// Rows [0, m) of Y for panels [panel_begin, panel_end).
struct PanelJob {
  // Activations as 32-bit items, f32 or pairs of bf16 (value 2*i in the upper half, 2*i+1 in the
  // lower): [segments][m][items of a segment]. Zero from K up to the weights' padded depth.
  const float* x = nullptr;
  const uint32_t* byte_rows = nullptr;  // byte kernels, in the place of x: [segments][m] ByteRow
  int64_t m = 0;

  const uint8_t* data = nullptr;  // of panel 0
  int64_t panel_bytes = 0;
  int64_t depth = 0;  // padded K, whole units
  CodeParams params;
  const uint8_t* scales = nullptr;  // [panels][groups][32]
  ScaleKind scale_kind = ScaleKind::kNone;
  int group = 0;  // 16, 32, 64 or 128
  int64_t groups = 0;

  // y = sum * correction * outer + bias (+ y), rounded after each operation.
  float correction = 1.0f;       // a power of two that undoes the placement's exponent offset
  const float* outer = nullptr;  // [panels * 32] or null
  const float* bias = nullptr;   // [n] or null
  bool accumulate = false;
  float* y = nullptr;
  int64_t y_row = 0;
  int64_t n = 0;  // channels that exist

  int64_t panel_begin = 0;
  int64_t panel_end = 0;
  float* scratch = nullptr;  // kScratchFloats of this thread
};

// Panel, block scales, and sums of one row block.
inline constexpr int64_t kScratchFloats =
    kSegment * kPanel + kSegment / 16 * kPanel + int64_t{kRowBlock} * kPanel;

// Decodes `units` units into out[items][32], f32 or pairs of bf16, without the correction.
using DecodeFn = void (*)(const uint8_t* data, int64_t units, const CodeParams& params, float* out);

// Kernels for one kind of item.
struct CodecKernels {
  // By rows - 1, m <= kFewRows: straight from registers. Null: use `decode` and Kernels::rows.
  void (*few[kFewRows])(const PanelJob& job) = {};
  DecodeFn decode = nullptr;
};

// Any m: decodes a panel segment, then runs blocks of rows over it.
using RowsFn = void (*)(const PanelJob& job, DecodeFn decode, int unit_depth, int unit_bytes);

// One ISA's kernels. All of them sum in the same order, see op.h.
struct Kernels {
  CodecKernels codec[32];  // f32 items; indexed by CpuCodec
  RowsFn rows = nullptr;
  CodecKernels pairs[32];  // pairs of bf16; null where the ISA or the codec has none
  RowsFn pair_rows = nullptr;
  // One row of bf16 values as pairs; count is a multiple of 32.
  void (*to_pairs)(const uint16_t* x, int64_t count, uint16_t* out) = nullptr;
  // FP4 rows as bytes, for e2m1 weights with block scales over 16 or 32: as `few` and `rows`.
  void (*byte_few[kFewRows])(const PanelJob& job) = {};
  void (*byte_rows)(const PanelJob& job) = nullptr;
  int byte_item_depth = 0;  // values of K in an item, 4 or 2 (byte_gemm.inc)
  // Loops of products alone (peak.inc): `steps` times that many multiply-adds; out has kPanel
  // values.
  struct Peak {
    void (*run)(int64_t steps, float* out) = nullptr;
    int multiply_adds = 0;
  };
  Peak byte_peak;
  Peak item_peak;  // of f32 items, or of pairs of bf16 where the ISA has them
};

// AMX: m rows of bf16 activations, zero-padded to whole 16 x 32 tiles.
struct TileJob {
  PanelJob panel;               // x unused; scratch has kTileScratchFloats
  const uint16_t* x = nullptr;  // bf16 [round_up(m, 32)][x_stride]
  int64_t x_stride = 0;         // a multiple of 32, at least the padded depth
  DecodeFn decode = nullptr;
  int unit_depth = 0;
  int unit_bytes = 0;
};
inline constexpr int64_t kTileScratchFloats = kScratchFloats + kSegment * kPanel / 2 + 64;

using TileFn = void (*)(const TileJob& job);

}  // namespace sub8::linear_cpu
