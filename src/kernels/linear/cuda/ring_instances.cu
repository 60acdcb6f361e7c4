// The ring kernels of one codec of instances.inc: built once per line, with SUB8_RING_CODEC = its
// name.
#include "kernels/linear/cuda/ring_entry.h"
#include "kernels/linear/cuda/ring_kernel.cuh"

namespace sub8::kernels::linear {
namespace {

template <ElementFormat Element, GroupKind Groups, Half Type, int Tokens, int Cluster>
RingEntry entry(const char* name) {
  using P = RingPolicy<Codec<Element, Type, Groups>, Tokens, Cluster>;
  return {name,        Element,    Type,
          Groups,      Tokens,     Cluster,
          P::kThreads, P::kXBytes, reinterpret_cast<const void*>(&ring_kernel<P>)};
}

template <ElementFormat Element, GroupKind Groups>
RingEntryList all(const char* name) {
  // Measured on an H200: pairs of CTAs that share activations win up to 4 bits per weight, where
  // activations are a larger part of what is read; single CTAs win above.
  constexpr int kCluster = Codec<Element, Half::kBF16, Groups>::kWords <= 4 ? 2 : 1;
  static const RingEntry entries[] = {
      entry<Element, Groups, Half::kBF16, 16, kCluster>(name),
      entry<Element, Groups, Half::kBF16, 32, kCluster>(name),
      entry<Element, Groups, Half::kBF16, 64, kCluster>(name),
#ifndef SUB8_RING_BF16_ONLY
      entry<Element, Groups, Half::kF16, 16, kCluster>(name),
      entry<Element, Groups, Half::kF16, 32, kCluster>(name),
      entry<Element, Groups, Half::kF16, 64, kCluster>(name),
#endif
  };
  return {entries, static_cast<int>(sizeof(entries) / sizeof(entries[0]))};
}

// The line of this codec: other names do not match and are skipped.
#define SUB8_PASTE_(a, b) a##b
#define SUB8_PASTE(a, b) SUB8_PASTE_(a, b)

}  // namespace

#define SUB8_STRING_(x) #x
#define SUB8_STRING(x) SUB8_STRING_(x)
RingEntryList SUB8_PASTE(ring_entries_, SUB8_RING_CODEC)() {
#ifdef SUB8_RING_EMPTY  // a partial build for development
  return {nullptr, 0};
#else
  return all<SUB8_RING_ELEMENT, GroupKind::SUB8_RING_GROUPS>(SUB8_STRING(SUB8_RING_CODEC));
#endif
}

}  // namespace sub8::kernels::linear
