#include "pack/placement_table.h"

#include "base/check.h"
#include "pack/scatter.h"

namespace sub8::pack {
namespace {

// Calls f with the placement type of a coded layout.
template <class F>
void with_placement(CpuCodec codec, F&& f) {
  switch (codec) {
    case CpuCodec::kE3M2:
      return f(PlaceE3M2{});
    case CpuCodec::kE2M3:
      return f(PlaceE2M3{});
    case CpuCodec::kE2M2:
      return f(PlaceE2M2{});
    case CpuCodec::kE3M1:
      return f(PlaceE3M1{});
    case CpuCodec::kE2M1:
      return f(PlaceE2M1{});
    case CpuCodec::kE3M3:
      return f(PlaceE3M3{});
    case CpuCodec::kE4M3:
      return f(PlaceE4M3{});
    case CpuCodec::kE5M2:
      return f(PlaceE5M2{});
    case CpuCodec::kF16Stream3:
      return f(PlaceStream<3>{});
    case CpuCodec::kF16Stream4:
      return f(PlaceStream<4>{});
    case CpuCodec::kF16Stream5:
      return f(PlaceStream<5>{});
    case CpuCodec::kF16Stream6:
    case CpuCodec::kTableStream6:
      return f(PlaceStream<6>{});
    case CpuCodec::kF16Stream7:
    case CpuCodec::kTableStream7:
      return f(PlaceStream<7>{});
    case CpuCodec::kF16Stream8:
    case CpuCodec::kTableStream8:
      return f(PlaceStream<8>{});
    case CpuCodec::kByte3:
      return f(PlaceByte<3>{});
    case CpuCodec::kByte4:
      return f(PlaceByte<4>{});
    case CpuCodec::kByte5:
      return f(PlaceByte<5>{});
    case CpuCodec::kByte6:
      return f(PlaceByte<6>{});
    case CpuCodec::kByte7:
      return f(PlaceByte<7>{});
    case CpuCodec::kByte8:
      return f(PlaceByte<8>{});
    case CpuCodec::kDenseF16:
    case CpuCodec::kDenseBF16:
    case CpuCodec::kDenseF32:
      break;
  }
  SUB8_CHECK(false);  // dense layouts have no placement
}

template <class P>
PlacementTable build() {
  constexpr ScatterMap<P> kMap = make_scatter_map<P>();
  PlacementTable out;
  out.bits = P::kBits;
  out.words = P::kWords;
  out.values = P::kValues;
  out.lane_bits = P::kLaneBits;
  out.add.resize(static_cast<size_t>(P::kValues) << P::kBits);
  for (int v = 0; v < P::kValues; ++v) {
    for (int bit = 0; bit < P::kBits; ++bit) {
      const int source = kMap[v][bit];
      out.sources.push_back(static_cast<int16_t>(source));
      for (uint32_t code = 0; code < (1u << P::kBits); ++code) {
        if (((code >> bit) & 1) == 0) continue;
        LaneWords& add = out.add[(static_cast<size_t>(v) << P::kBits) + code];
        add.half[source / 64] |= uint64_t{1} << (source % 64);
      }
    }
  }
  return out;
}

}  // namespace

PlacementTable placement_table(CpuCodec codec) {
  PlacementTable out;
  with_placement(codec, [&]<class P>(P) { out = build<P>(); });
  return out;
}

PlacementShape placement_shape(CpuCodec codec) {
  PlacementShape out;
  with_placement(codec, [&]<class P>(P) { out = {P::kBits, P::kWords, P::kValues, P::kLaneBits}; });
  return out;
}

}  // namespace sub8::pack
