// The kernels of one codec of instances.inc: built once per line, with SUB8_LINEAR_CODEC = its
// name.
#include "kernels/linear/cuda/entry.h"
#include "kernels/linear/cuda/fragment_kernel.cuh"
#include "kernels/linear/cuda/warpgroup_kernel.cuh"

namespace sub8::kernels::linear {
namespace {

template <class CodecType, int Tokens, int Residents>
KernelEntry fragment(const char* name) {
  using C = CodecType;
  using P = FragmentPolicy<C, Tokens, Residents>;
  return {name,
          C::kElement,
          C::kType,
          C::kGroups,
          MainLoop::kFragment,
          Tokens,
          P::kPieces,
          1,
          2,
          Residents,
          P::kThreads,
          P::kXBytes,
          reinterpret_cast<const void*>(&fragment_kernel<P>)};
}

template <class CodecType, int Tokens, int Cluster>
KernelEntry warpgroup(const char* name) {
  using C = CodecType;
  using P = WarpgroupPolicy<C, Tokens, Cluster>;
  return {name,
          C::kElement,
          C::kType,
          C::kGroups,
          MainLoop::kWarpgroup,
          Tokens,
          P::kPieces,
          Cluster,
          1,
          1,
          P::kThreads,
          P::kXBytes,
          reinterpret_cast<const void*>(&warpgroup_kernel<P>)};
}

template <ElementFormat Element, GroupKind Groups>
KernelEntryList all(const char* name) {
  // Measured on an H200: pairs of CTAs that share activations win up to 4 bits per weight, where
  // activations are a larger part of what is read; single CTAs win above.
  constexpr int kCluster = Codec<Element, Half::kBF16, Groups>::kWords <= 4 ? 2 : 1;
  using B = Codec<Element, Half::kBF16, Groups>;
  using F = Codec<Element, Half::kF16, Groups>;
  static const KernelEntry entries[] = {
      fragment<B, 8, 3>(name),          fragment<B, 16, 2>(name),
      warpgroup<B, 16, kCluster>(name), warpgroup<B, 32, kCluster>(name),
      warpgroup<B, 64, kCluster>(name),
#ifndef SUB8_LINEAR_BF16_ONLY
      fragment<F, 8, 3>(name),          fragment<F, 16, 2>(name),
      warpgroup<F, 16, kCluster>(name), warpgroup<F, 32, kCluster>(name),
      warpgroup<F, 64, kCluster>(name),
#endif
  };
  return {entries, static_cast<int>(sizeof(entries) / sizeof(entries[0]))};
}

#define SUB8_PASTE_(a, b) a##b
#define SUB8_PASTE(a, b) SUB8_PASTE_(a, b)
#define SUB8_STRING_(x) #x
#define SUB8_STRING(x) SUB8_STRING_(x)

}  // namespace

KernelEntryList SUB8_PASTE(kernel_entries_, SUB8_LINEAR_CODEC)() {
#ifdef SUB8_LINEAR_EMPTY  // a partial build for development
  return {nullptr, 0};
#else
  return all<SUB8_LINEAR_ELEMENT, GroupKind::SUB8_LINEAR_GROUPS>(SUB8_STRING(SUB8_LINEAR_CODEC));
#endif
}

}  // namespace sub8::kernels::linear
