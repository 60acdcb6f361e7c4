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
inline constexpr int kPrefetch = 1536;  // bytes ahead in the packed stream

struct CodeParams {    // for codecs that are not fixed to one element
  int sign_shift = 0;  // canonical code -> f16 image
  int magnitude_shift = 0;
  uint16_t magnitude_mask = 0;
  const float* table = nullptr;  // canonical code -> value
};

enum class ScaleKind : uint8_t { kNone, kE4M3, kE8M0 };

// Rows [0, m) of Y for panels [panel_begin, panel_end).
struct PanelJob {
  // f32 activations: (row, k) is x[k / 128 * x_segment + row * x_row + k % 128]. Zero from K up to
  // the weights' padded depth.
  const float* x = nullptr;
  int64_t x_row = 0;
  int64_t x_segment = 0;
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

// Decodes `units` units into out[depth][32] f32, without the correction.
using DecodeFn = void (*)(const uint8_t* data, int64_t units, const CodeParams& params, float* out);

struct CodecKernels {
  void (*row)(const PanelJob& job) = nullptr;  // m == 1, straight from registers
  DecodeFn decode = nullptr;
};

// One ISA's kernels. All of them sum in the same order, see op.h.
struct Kernels {
  CodecKernels codec[32];  // indexed by CpuCodec
  // Any m: decodes a panel segment, then runs blocks of rows over it.
  void (*rows)(const PanelJob& job, DecodeFn decode, int unit_depth, int unit_bytes) = nullptr;
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
