// The kernels of one codec of byte_instances.inc: built once per line, with SUB8_LINEAR_CODEC = its
// name.
#include <vector>

#include "kernels/linear/cuda/byte_kernel.cuh"
#include "kernels/linear/cuda/entry.cuh"

namespace sub8::kernels::linear {
namespace {

template <class CodecType, ByteShape Shape>
KernelEntry entry(const char* name) {
  using P = BytePolicy<CodecType, Shape>;
  return make_entry<P>(name, MainLoop::kByteWarpgroup,
                       reinterpret_cast<const void*>(&byte_kernel<P>));
}

template <ElementFormat Element, GroupKind Groups>
KernelEntryList all(const char* name) {
  using C = ByteCodec<Element, Groups>;
  static const std::vector<KernelEntry> entries = {
      entry<C, ByteShape{16, 16, 1, 4, 1, 2, 2, 1}>(name),
      entry<C, ByteShape{32, 32, 1, 4, 1, 2, 2, 1}>(name),
      entry<C, ByteShape{64, 64, 1, 2, 2, 2, 2, 1}>(name),
      // Pairs of CTAs share the activations.
      entry<C, ByteShape{128, 64, 2, 2, 1, 2, 2, 1}>(name),
      entry<C, ByteShape{256, 32, 2, 2, 1, 1, 1, 2}>(name),
  };
  return {entries.data(), static_cast<int>(entries.size())};
}

}  // namespace

KernelEntryList SUB8_PASTE(byte_entries_, SUB8_LINEAR_CODEC)() {
#ifdef SUB8_LINEAR_EMPTY  // a partial build for development
  return {nullptr, 0};
#else
  return all<SUB8_LINEAR_ELEMENT, GroupKind::SUB8_LINEAR_GROUPS>(SUB8_STRING(SUB8_LINEAR_CODEC));
#endif
}

}  // namespace sub8::kernels::linear
