#include "pack/layout.h"

#include "base/check.h"
#include "pack/placement_table.h"

namespace sub8 {
namespace {

constexpr std::string_view kCodecNames[kCpuCodecs] = {
    "e3m2",       "e2m3",       "e2m2",         "e3m1",         "e2m1",         "e3m3",
    "e4m3",       "e5m2",       "f16stream3",   "f16stream4",   "f16stream5",   "f16stream6",
    "f16stream7", "f16stream8", "tablestream6", "tablestream7", "tablestream8", "byte3",
    "byte4",      "byte5",      "byte6",        "byte7",        "byte8",        "dense_f16",
    "dense_bf16", "dense_f32"};

CpuCodec choose_codec(const format::WeightFormat& f, bool wide) {
  if (f.dense) {
    if (f.dtype == format::DType::kF32) return CpuCodec::kDenseF32;
    return f.dtype == format::DType::kF16 ? CpuCodec::kDenseF16 : CpuCodec::kDenseBF16;
  }
  const format::ElementFormat e = f.element;
  if (wide) return static_cast<CpuCodec>(static_cast<int>(CpuCodec::kByte3) + e.bits() - 3);
  if (e == format::kE3M2) return CpuCodec::kE3M2;
  if (e == format::kE2M3) return CpuCodec::kE2M3;
  if (e == format::kE2M2) return CpuCodec::kE2M2;
  if (e == format::kE3M1) return CpuCodec::kE3M1;
  if (e == format::kE2M1) return CpuCodec::kE2M1;
  if (e == format::kE3M3) return CpuCodec::kE3M3;
  if (e == format::kE4M3) return CpuCodec::kE4M3;
  if (e == format::kE5M2) return CpuCodec::kE5M2;
  const int first =
      static_cast<int>(e.fits_f16() ? CpuCodec::kF16Stream3 : CpuCodec::kTableStream6);
  return static_cast<CpuCodec>(first + e.bits() - (e.fits_f16() ? 3 : 6));
}

}  // namespace

std::string_view cpu_codec_name(CpuCodec codec) { return kCodecNames[static_cast<int>(codec)]; }

std::string layout_name(LayoutId id) {
  return "panel32_w" + std::to_string(layout_word_bytes(id)) + "_" +
         std::string(cpu_codec_name(layout_codec(id)));
}

UnitShape unit_shape(LayoutId id) {
  const int word_bytes = layout_word_bytes(id);
  switch (layout_codec(id)) {
    case CpuCodec::kDenseF16:
      return {2 * kPanelRows / word_bytes, 1, 2 * kPanelRows};
    case CpuCodec::kDenseBF16:
      return {4 * kPanelRows / word_bytes, 2, 4 * kPanelRows};
    case CpuCodec::kDenseF32:
      return {4 * kPanelRows / word_bytes, 1, 4 * kPanelRows};
    default: {
      const pack::PlacementShape p = pack::placement_shape(layout_codec(id));
      const int lanes = 8 * word_bytes / p.lane_bits;
      return {p.words, p.values * lanes / kPanelRows, p.words * word_bytes};
    }
  }
}

// Byte lanes: interleaving the low and the high bytes of 64 decoded bf16 numbers, as the byte
// interleave of two registers does (bytes 0..7, then 8..15 of each 16), gives two registers of
// 32-bit lanes, one for 16 channels each. A lane's upper half is the smaller depth: the dot product
// instruction takes it first.
CodePosition code_position(LayoutId id, int lane, int value) {
  if (layout_word_bytes(id) == 32) return {16 * (value % 2) + lane, value / 2};
  const int quarter = lane / 16;
  const int upper = lane % 16 / 8;
  return {16 * upper + 4 * quarter + lane % 8 / 2, 2 * value + (lane % 2 == 0 ? 1 : 0)};
}

CodeSlot code_slot(LayoutId id, CodePosition at) {
  if (layout_word_bytes(id) == 32) return {at.channel % 16, 2 * at.depth + at.channel / 16};
  const int lane = at.channel % 16 / 4 * 16 + at.channel / 16 * 8 + at.channel % 4 * 2;
  return {lane + (at.depth % 2 == 0 ? 1 : 0), at.depth / 2};
}

Result<LayoutId> cpu_layout(const format::WeightFormat& f, CpuPath path) {
  if (f.dense && f.dtype != format::DType::kF32 && f.dtype != format::DType::kF16 &&
      f.dtype != format::DType::kBF16) {
    return unsupported("dense weights of type " + std::string(format::dtype_name(f.dtype)) +
                       ": the CPU kernels read F32, F16 and BF16");
  }
  if (!f.dense && !f.element.valid()) {
    return invalid_argument(
        "weight format without a valid element: an element needs a sign, at "
        "least 1 exponent bit, and 3 to 8 bits in all");
  }
  if (f.block_scale != format::BlockScale::kNone && f.group != 16 && f.group != 32 &&
      f.group != 64 && f.group != 128) {
    return unsupported("weight format " + f.name() + ": block scales over " +
                       std::to_string(f.group) +
                       " elements; the CPU kernels do 16, 32, 64 and 128");
  }
  if (f.dense && f.block_scale != format::BlockScale::kNone) {
    return unsupported("dense weights with block scales have no CPU kernel");
  }
  const bool wide = path == CpuPath::kAvx512 || path == CpuPath::kAmx;
  return layout_id(choose_codec(f, wide), wide ? 64 : 32);
}

}  // namespace sub8
