// From a loop's policy to what the host sees of it.
#pragma once

#include "kernels/linear/cuda/byte_codec.cuh"
#include "kernels/linear/cuda/entry.h"

namespace sub8::kernels::linear {

template <ElementFormat Element, Half Type, GroupKind Groups>
constexpr pack::Operand operand_of(const Codec<Element, Type, Groups>*) {
  return Type == Half::kF16 ? pack::Operand::kF16 : pack::Operand::kBF16;
}
template <ElementFormat Element, GroupKind Groups>
constexpr pack::Operand operand_of(const ByteCodec<Element, Groups>*) {
  return pack::Operand::kE4M3;
}

template <class P>
KernelEntry make_entry(const char* codec, MainLoop loop, const void* kernel) {
  return {.codec = codec,
          .element = P::Codec::kElement,
          .operand = operand_of(static_cast<const typename P::Codec*>(nullptr)),
          .groups = P::Codec::kGroups,
          .loop = loop,
          .tokens = P::kTokens,
          .rows = P::kRows,
          .units = P::kUnits,
          .cluster = P::kCluster,
          .ctas_per_sm = P::kCtasPerSm,
          .residents = P::kResidents,
          .teams = P::kTeams,
          .threads = P::kThreads,
          .x_bytes = P::kXBytes,
          .beside_bytes = P::kBesideBytes,
          .kernel = kernel};
}

}  // namespace sub8::kernels::linear

#define SUB8_PASTE_(a, b) a##b
#define SUB8_PASTE(a, b) SUB8_PASTE_(a, b)
#define SUB8_STRING_(x) #x
#define SUB8_STRING(x) SUB8_STRING_(x)
