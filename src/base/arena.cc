#include "base/arena.h"

#include <algorithm>
#include <cstdlib>
#include <string>

#include <sys/mman.h>

namespace sub8 {
namespace {

constexpr size_t kPage = size_t{2} << 20;
// Untouched pages of a slab cost address space only.
constexpr size_t kSlab = size_t{32} << 20;

}  // namespace

Result<std::shared_ptr<std::byte>> Arena::allocate(size_t bytes) {
  if (bytes > SIZE_MAX - kSlab)
    return resource_exhausted("a buffer of " + std::to_string(bytes) + " bytes does not fit");
  bytes = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  if (slab_ == nullptr || bytes > size_ - used_) {
    const size_t size = std::max(kSlab, (bytes + kPage - 1) / kPage * kPage);
    auto* memory = static_cast<std::byte*>(std::aligned_alloc(kPage, size));
    if (memory == nullptr) {
      return resource_exhausted("out of memory: could not allocate " + std::to_string(size) +
                                " bytes");
    }
    madvise(memory, size, MADV_HUGEPAGE);  // advice: where it is refused, small pages work too
    slab_ = std::shared_ptr<std::byte>(memory, std::free);
    size_ = size;
    used_ = 0;
  }
  std::shared_ptr<std::byte> out(slab_, slab_.get() + used_);
  used_ += bytes;
  return out;
}

}  // namespace sub8
