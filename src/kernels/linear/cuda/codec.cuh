// Codecs: from the words of a thread to its 16 A registers of a 64 x 64 unit.
#pragma once

#include "arch/cuda/ptx/arith.cuh"
#include "arch/cuda/ptx/copy.cuh"
#include "format/placement.h"
#include "kernels/linear/cuda/params.h"
#include "pack/cuda/linear_layout.h"

namespace sub8::kernels::linear {

using format::ElementFormat;
using format::Half;
using pack::GroupKind;

// Loads the words of thread t of a unit (layout: pack/cuda/linear_layout.h); `unit` is its address
// plus 16 * t.
template <int Words>
__device__ __forceinline__ void load_words(uint32_t unit, int t, uint32_t (&w)[Words]) {
  constexpr int kQuads = Words / 4;
#pragma unroll
  for (int i = 0; i < kQuads; ++i) {
    const uint4 v = ptx::load_shared_128(unit + 2048 * i);
    w[4 * i] = v.x, w[4 * i + 1] = v.y, w[4 * i + 2] = v.z, w[4 * i + 3] = v.w;
  }
  constexpr uint32_t kBase = 2048 * kQuads;
  if constexpr ((Words & 2) != 0) {
    const uint2 v = ptx::load_shared_64(unit + kBase - 8 * t);
    w[4 * kQuads] = v.x, w[4 * kQuads + 1] = v.y;
  }
  if constexpr ((Words & 1) != 0) {
    w[Words - 1] = ptx::load_shared_32(unit + kBase + ((Words & 2) != 0 ? 1024 : 0) - 12 * t);
  }
}

// Element is {0,0} for dense 16-bit weights.
template <ElementFormat Element, Half Type, GroupKind Groups>
struct Codec {
  static constexpr ElementFormat kElement = Element;
  static constexpr Half kType = Type;
  static constexpr GroupKind kGroups = Groups;
  static constexpr bool kDense = Element.exponent_bits == 0;
  static constexpr int kWords = kDense ? 16 : Element.bits();
  static constexpr int kUnitBytes = kWords * 512;

  // What a thread keeps to find its scales of 32 and more elements.
  struct ScaleAccess {
    uint32_t offset = 0;        // of its first word within the piece's scales
    uint32_t second = 0;        // distance to the second word
    uint32_t selector[2] = {};  // per unit
  };

  __device__ static ScaleAccess scale_access(const RingParams& p, int t) {
    ScaleAccess a;
    const uint32_t pair = 8 * (t / 32) + (t % 32) / 4;
    if constexpr (Groups == GroupKind::k16) {
      a.offset = pair * 16;
    } else if constexpr (Groups == GroupKind::k32) {
      const uint32_t byte = pair * p.scale_pair_bytes;
      a.offset = byte & ~3u;
      if (p.scale_pair_bytes == 8) {
        a.second = 4;
        a.selector[0] = 0x3210, a.selector[1] = 0x7654;
      } else if (p.scale_pair_bytes == 4) {
        a.selector[0] = 0x2200, a.selector[1] = 0x3311;
      } else {
        a.selector[0] = a.selector[1] = (byte & 2) != 0 ? 0x3322 : 0x1100;
      }
    }
    return a;
  }

  // Scale factors for the four k steps of a unit: per step, low half = row g, high half = row g
  // + 8.
  __device__ static void load_scales(const RingParams& p, const ScaleAccess& a, uint32_t scales,
                                     int unit, uint32_t (&s)[4]) {
    if constexpr (Groups == GroupKind::k16) {
      const uint2 v = ptx::load_shared_64(scales + 8 * unit);
      const uint32_t w[2] = {v.x, v.y};
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if constexpr (Type == Half::kF16) {
          s[2 * i] = (w[i] << 7) & 0x7f807f80u;
          s[2 * i + 1] = (w[i] >> 1) & 0x7f807f80u;
        } else {
          s[2 * i] = ptx::and_or(w[i] << 4, 0x0ff00ff0u, 0x70007000u);
          s[2 * i + 1] = ptx::and_or(w[i] >> 4, 0x0ff00ff0u, 0x70007000u);
        }
      }
    } else if constexpr (Groups == GroupKind::k32) {
      const uint32_t first = ptx::load_shared_32(scales);
      const uint32_t second = ptx::load_shared_32(scales + a.second);
      const uint32_t w = ptx::permute_bytes(first, second, a.selector[unit]);
      s[0] = s[1] = ((w << p.scale_shift_low) & p.scale_mask) | p.scale_base;
      s[2] = s[3] = ((w >> p.scale_shift_high) & p.scale_mask) | p.scale_base;
    }
  }

  __device__ static void dequantise(const uint32_t (&w)[kWords], const uint32_t (&s)[4],
                                    uint32_t (&a)[4][4]) {
    uint32_t r[16];
    if constexpr (kDense) {
#pragma unroll
      for (int i = 0; i < 16; ++i) r[i] = w[i];
    } else {
      format::place_unit<Element, Type>(w, r);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (Groups != GroupKind::kNone) {
        const uint32_t low = ptx::low_twice(s[i]);
        const uint32_t high = ptx::high_twice(s[i]);
        a[i][0] = ptx::multiply2<Type>(r[4 * i], low);
        a[i][1] = ptx::multiply2<Type>(r[4 * i + 1], high);
        a[i][2] = ptx::multiply2<Type>(r[4 * i + 2], low);
        a[i][3] = ptx::multiply2<Type>(r[4 * i + 3], high);
      } else if constexpr (!kDense && Type == Half::kBF16) {
        // Lifts value * 2^(bias - 127) back; smaller products would leave FP32's range.
        constexpr uint32_t kLift = (254u - Element.bias()) << 7;
#pragma unroll
        for (int j = 0; j < 4; ++j) a[i][j] = ptx::multiply2<Type>(r[4 * i + j], kLift * 0x10001u);
      } else {
#pragma unroll
        for (int j = 0; j < 4; ++j) a[i][j] = r[4 * i + j];
      }
    }
  }
};

}  // namespace sub8::kernels::linear
