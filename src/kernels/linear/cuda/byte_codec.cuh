// Codecs of e4m3 activations: from the words of a thread to its 16 A registers of a 64 x 128 unit,
// four weights each. Layout: pack/cuda/byte_layout.h.
#pragma once

#include "arch/cuda/ptx/arith.cuh"
#include "arch/cuda/ptx/copy.cuh"
#include "arch/cuda/ptx/wgmma.cuh"
#include "format/byte_placement.h"
#include "kernels/linear/cuda/codec.cuh"
#include "kernels/linear/cuda/params.h"
#include "pack/cuda/byte_layout.h"

namespace sub8::kernels::linear {

template <ElementFormat Element, GroupKind Groups>
struct ByteCodec {
  static constexpr ElementFormat kElement = Element;
  static constexpr GroupKind kGroups = Groups;
  static constexpr bool kE5M2 = format::byte_target(Element) == format::kE5M2;
  static constexpr bool kHasScales = Groups != GroupKind::kNone;
  static constexpr bool kTable = kHasScales && Element == format::kE2M1;
  static constexpr int kWords = 2 * Element.bits();
  static constexpr int kUnitBytes = kWords * 512;
  static constexpr int kPieceBytes = kUnitBytes + (kHasScales ? 256 : 0);

  __device__ static constexpr uint32_t piece_bytes(const RingParams&) { return kPieceBytes; }

  // Where thread t finds its scales, counted from the piece's.
  __device__ static uint32_t scale_offset(int t) { return 8 * (8 * (t / 32) + t % 32 / 4); }

  struct Loaded {
    uint32_t words[kWords];
    uint32_t scales[2];  // of row g and of row g + 8: a byte per k step
  };
  // `words`: address of the unit plus 16 * t; `scales`: of the thread's scales.
  __device__ static void load(uint32_t words, uint32_t scales, int t, Loaded& q) {
    load_words(words, t, q.words);
    if constexpr (kHasScales) {
      const uint2 v = ptx::load_shared_64(scales);
      q.scales[0] = v.x, q.scales[1] = v.y;
    }
  }
  __device__ static void pin(Loaded& q) {
    ptx::pin(q.words);
    if constexpr (kHasScales) ptx::pin(q.scales);
  }
  // The scale of k step i and row g + 8 * h.
  __device__ static uint32_t scale_byte(const Loaded& q, int i, int h) {
    return ptx::permute_bytes(q.scales[h], 0, 0x4440 | i);
  }

  // A registers of the four k steps. Folded: with the block exponents.
  template <bool Folded>
  __device__ static void dequantise(const Loaded& q, uint32_t (&a)[4][4]) {
    if constexpr (kTable) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const auto table = format::byte_table(Folded ? scale_byte(q, i, h) : 0);
          const auto permute = [](format::ByteTable t, uint32_t selectors) {
            return ptx::permute_bytes_unmasked(t.low, t.high, selectors);
          };
          format::place_table_word(table, q.words[2 * i + h], permute, &a[i][h], &a[i][h + 2]);
        }
      }
    } else {
      format::place_bytes<Element, 16>(q.words, &a[0][0]);
    }
  }

  // The factor of the sums of k step i (pack::ScaleMode::kScaled).
  __device__ static float factor(const RingParams& p, const Loaded& q, int i, int h) {
    return __uint_as_float(scale_byte(q, i, h) * p.scale_mask + p.scale_base);
  }
};

}  // namespace sub8::kernels::linear
