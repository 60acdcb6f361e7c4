// The packed layouts that CPU linear kernels read, and their geometry. docs/formats/packed_cpu.md
// has the diagrams.
//
// A matrix W[N, K] is cut into panels of 32 output channels (the last one padded with zero codes).
// A panel is a sequence of units along K. A unit holds kWords vector words of 32 or 64 bytes, which
// split (placement.h) into kValues registers of lanes; register v of a unit holds
//   32-byte words, 16-bit lanes: channels 16*(v%2) .. +15 at depth v/2
//   64-byte words, byte lanes:   all 32 channels at depths 2v and 2v+1 (code_position)
// so one unit covers kValues/2 (or 2*kValues) values of K for all 32 channels, and every load is
// aligned and sequential. The identifiers are part of what a packed file would say: changing bytes
// means a new identifier, never another meaning for an old one.
#pragma once

#include <cstdint>
#include <string>

#include "base/cpu.h"
#include "base/error.h"
#include "format/weight_format.h"

namespace sub8 {

inline constexpr int kPanelRows = 32;

// How the values of a panel are stored. The order is the dispatch order of instances.inc.
enum class CpuCodec : uint8_t {
  kE3M2,
  kE2M3,
  kE2M2,
  kE3M1,
  kE2M1,
  kE3M3,
  kE4M3,
  kE5M2,
  kF16Stream3,  // any element of that width that fits f16
  kF16Stream4,
  kF16Stream5,
  kF16Stream6,
  kF16Stream7,
  kF16Stream8,
  kTableStream6,  // elements whose range exceeds f16: e5m0; e5m1, e6m0; e6m1, e7m0
  kTableStream7,
  kTableStream8,
  kByte3,  // 64-byte words: any element of that width, decoded by byte look-ups
  kByte4,
  kByte5,
  kByte6,
  kByte7,
  kByte8,
  kDenseF16,
  kDenseBF16,  // pairs along K: 32-bit lane = channel, low half k, high half k+1
  kDenseF32,
};
inline constexpr int kCpuCodecs = static_cast<int>(CpuCodec::kDenseF32) + 1;

std::string_view cpu_codec_name(CpuCodec codec);

// 256 * (word bytes / 32) + codec.
enum class LayoutId : uint16_t {};
constexpr LayoutId layout_id(CpuCodec codec, int word_bytes) {
  return static_cast<LayoutId>(256 * (word_bytes / 32) + static_cast<int>(codec));
}
constexpr CpuCodec layout_codec(LayoutId id) {
  return static_cast<CpuCodec>(static_cast<int>(id) % 256);
}
constexpr int layout_word_bytes(LayoutId id) { return static_cast<int>(id) / 256 * 32; }
std::string layout_name(LayoutId id);  // "panel32_w32_e3m2"

// Sizes of one unit.
struct UnitShape {
  int words = 0;  // vector words
  int depth = 0;  // values of K
  int bytes = 0;
};
UnitShape unit_shape(LayoutId id);

// Where value `value` of lane `lane` of a coded unit belongs, and the inverse.
struct CodePosition {
  int channel = 0;  // in the panel
  int depth = 0;    // in the unit
};
CodePosition code_position(LayoutId id, int lane, int value);
struct CodeSlot {
  int lane = 0;
  int value = 0;
};
CodeSlot code_slot(LayoutId id, CodePosition position);

// The layout that `path` reads for `format`. An error names what no kernel runs: block scales over
// other than 16, 32, 64 or 128 elements.
Result<LayoutId> cpu_layout(const format::WeightFormat& format, CpuPath path);

}  // namespace sub8
