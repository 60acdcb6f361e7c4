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

  // Bytes of a piece; known when compiled unless groups have a run-time size.
  __device__ static uint32_t piece_bytes(const RingParams& p) {
    if constexpr (Groups == GroupKind::kNone) return kUnitBytes;
    if constexpr (Groups == GroupKind::k16) return kUnitBytes + 256;
    return p.piece_bytes;
  }

  // What a thread keeps to find its scales.
  struct ScaleAccess {
    uint32_t offset = 0;    // of its first word within the piece's scales
    uint32_t rotation = 0;  // groups of 64 and more: 0 or 8
    bool one_group = false;
  };

  __device__ static ScaleAccess scale_access(const RingParams& p, int t) {
    ScaleAccess a;
    const uint32_t pair = 8 * (t / 32) + (t % 32) / 4;
    if constexpr (Groups == GroupKind::k16) {
      a.offset = pair * 8;
    } else if constexpr (Groups == GroupKind::k32) {
      a.one_group = p.scale_pairs == 2;
      a.offset = a.one_group ? pair / 2 * 4 : pair * 4;
      a.rotation = a.one_group ? 8 * (pair % 2) : 0;
    }
    return a;
  }

  // Words of scales as loaded, for one unit.
  static constexpr int kScaleWords = Groups == GroupKind::kNone ? 0
                                     : Groups == GroupKind::k16 ? 2
                                                                : 1;
  struct Loaded {
    uint32_t words[kWords];
    uint32_t scales[kScaleWords + 1] = {};
  };
  // `words`: address of the unit plus 16 * t; `scales`: of the thread's scales.
  __device__ static void load(uint32_t words, uint32_t scales, int t, Loaded& q) {
    load_words(words, t, q.words);
    load_scales(scales, q);
  }
  __device__ static void load_scales(uint32_t scales, Loaded& q) {
    if constexpr (Groups == GroupKind::k16) {
      const uint2 v = ptx::load_shared_64(scales);
      q.scales[0] = v.x, q.scales[1] = v.y;
    } else if constexpr (Groups == GroupKind::k32) {
      q.scales[0] = ptx::load_shared_32(scales);
    }
  }

  // Scale factors of k step i (of four): low half = row g, high half = row g + 8.
  __device__ static uint32_t scale(const RingParams& p, const ScaleAccess& a, const Loaded& q,
                                   int i) {
    if constexpr (Groups == GroupKind::k16) {
      const uint32_t w =
          i % 2 == 0 ? q.scales[i / 2] : __funnelshift_l(q.scales[i / 2], q.scales[i / 2], 8);
      if constexpr (Type == Half::kF16) return w & 0x7f807f80u;
      return ptx::and_or(w, 0x0ff00ff0u, 0x70007000u);
    } else {
      const uint32_t by = i < 2 || a.one_group ? a.rotation : 8;
      const uint32_t w = __funnelshift_l(q.scales[0], q.scales[0], by);
      return ptx::and_or(w, p.scale_mask, p.scale_base);
    }
  }

  // A registers of Count k steps of 16, from step First of the unit's four on.
  template <int First, int Count>
  __device__ static void dequantise(const RingParams& p, const ScaleAccess& access, const Loaded& q,
                                    uint32_t (&a)[Count][4]) {
    uint32_t r[16];
    if constexpr (kDense) {
#pragma unroll
      for (int i = 0; i < 16; ++i) r[i] = q.words[i];
    } else {
      format::place_unit<Element, Type>(q.words, r);
    }
#pragma unroll
    for (int i = 0; i < Count; ++i) {
      const uint32_t* step = r + 4 * (First + i);
      if constexpr (Groups != GroupKind::kNone) {
        const uint32_t s = scale(p, access, q, First + i);
        const uint32_t low = ptx::low_twice(s);
        const uint32_t high = ptx::high_twice(s);
        a[i][0] = ptx::multiply2<Type>(step[0], low);
        a[i][1] = ptx::multiply2<Type>(step[1], high);
        a[i][2] = ptx::multiply2<Type>(step[2], low);
        a[i][3] = ptx::multiply2<Type>(step[3], high);
      } else if constexpr (!kDense && Type == Half::kBF16) {
        // Lifts value * 2^(bias - 127) back; smaller products would leave FP32's range.
        constexpr uint32_t kLift = (254u - Element.bias()) << 7;
#pragma unroll
        for (int j = 0; j < 4; ++j) a[i][j] = ptx::multiply2<Type>(step[j], kLift * 0x10001u);
      } else {
#pragma unroll
        for (int j = 0; j < 4; ++j) a[i][j] = step[j];
      }
    }
  }
};

}  // namespace sub8::kernels::linear
