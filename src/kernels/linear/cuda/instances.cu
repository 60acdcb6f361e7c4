// The kernels of one codec of instances.inc: built once per line, with SUB8_LINEAR_CODEC = its
// name.
#include <vector>

#include "kernels/linear/cuda/entry.cuh"
#include "kernels/linear/cuda/fragment_kernel.cuh"
#include "kernels/linear/cuda/sliced_kernel.cuh"
#include "kernels/linear/cuda/warpgroup_kernel.cuh"

namespace sub8::kernels::linear {
namespace {

template <class CodecType, int Tokens, int Warps, int RowTiles, int Residents>
KernelEntry fragment(const char* name) {
  using P = FragmentPolicy<CodecType, Tokens, Warps, RowTiles, Residents>;
  return make_entry<P>(name, MainLoop::kFragment,
                       reinterpret_cast<const void*>(&fragment_kernel<P>));
}

template <class CodecType, int Tokens, int Rows, int Units, int Residents>
KernelEntry sliced(const char* name) {
  using P = SlicedPolicy<CodecType, Tokens, Rows, Units, Residents>;
  return make_entry<P>(name, MainLoop::kSliced, reinterpret_cast<const void*>(&sliced_kernel<P>));
}

template <class CodecType, WarpgroupShape Shape>
KernelEntry warpgroup(const char* name) {
  using P = WarpgroupPolicy<CodecType, Shape>;
  return make_entry<P>(name, MainLoop::kWarpgroup,
                       reinterpret_cast<const void*>(&warpgroup_kernel<P>));
}

template <ElementFormat Element, GroupKind Groups, Half Type>
void add_entries(const char* name, std::vector<KernelEntry>* out) {
  using C = Codec<Element, Type, Groups>;
  // Small CTAs: a part of the next launch fits beside one or two of this one.
  // Dense weights leave room for one ring only: consumers look one slot ahead.
  constexpr int kResidents = C::kDense ? 1 : 2;
  out->push_back(fragment<C, 8, 8, 2, kResidents>(name));
  out->push_back(fragment<C, 16, 8, 2, kResidents>(name));
  out->push_back(sliced<C, 8, 32, 16, 2>(name));
  out->push_back(sliced<C, 8, 32, 8, 2>(name));
  out->push_back(sliced<C, 8, 64, 8, 2>(name));
  out->push_back(sliced<C, 16, 32, 8, 2>(name));
  out->push_back(sliced<C, 16, 64, 8, 2>(name));
  out->push_back(warpgroup<C, WarpgroupShape{16, 1, 4, 1, 2, 4, 2, 1}>(name));
  out->push_back(warpgroup<C, WarpgroupShape{32, 1, 4, 1, 2, 4, 2, 1}>(name));
  out->push_back(warpgroup<C, WarpgroupShape{64, 1, 4, 1, 2, 4, 2, 1}>(name));
  // Pairs of CTAs share the activations.
  out->push_back(warpgroup<C, WarpgroupShape{128, 2, 2, 2, 1, 4, 2, 1}>(name));
  out->push_back(warpgroup<C, WarpgroupShape{256, 2, 2, 1, 1, 2, 2, 1}>(name));
  if constexpr (!C::kDense) {
    // Small layers: fewer rows of W, K divided among warpgroups, so that CTAs exchange less.
    out->push_back(warpgroup<C, WarpgroupShape{32, 1, 4, 1, 4, 4, 1, 4}>(name));
    out->push_back(warpgroup<C, WarpgroupShape{64, 1, 4, 1, 4, 4, 1, 4}>(name));
    out->push_back(warpgroup<C, WarpgroupShape{64, 1, 4, 1, 4, 4, 2, 2}>(name));
    out->push_back(warpgroup<C, WarpgroupShape{128, 2, 2, 1, 2, 4, 1, 2}>(name));
  }
}

template <ElementFormat Element, GroupKind Groups>
KernelEntryList all(const char* name) {
  static const std::vector<KernelEntry> entries = [name] {
    std::vector<KernelEntry> out;
    add_entries<Element, Groups, Half::kBF16>(name, &out);
#ifndef SUB8_LINEAR_BF16_ONLY
    add_entries<Element, Groups, Half::kF16>(name, &out);
#endif
    return out;
  }();
  return {entries.data(), static_cast<int>(entries.size())};
}

}  // namespace

KernelEntryList SUB8_PASTE(kernel_entries_, SUB8_LINEAR_CODEC)() {
#ifdef SUB8_LINEAR_EMPTY  // a partial build for development
  return {nullptr, 0};
#else
  return all<SUB8_LINEAR_ELEMENT, GroupKind::SUB8_LINEAR_GROUPS>(SUB8_STRING(SUB8_LINEAR_CODEC));
#endif
}

}  // namespace sub8::kernels::linear
