#include "base/mapped_regions.h"

#include <atomic>
#include <cstdint>
#include <mutex>
#include <utility>

namespace sub8 {
namespace {

// Nodes are used again but never freed or unlinked, so that a handler can walk the list at any
// time; a free one has size 0. `size` is written last and cleared first.
struct Region {
  std::atomic<uintptr_t> begin{0};
  std::atomic<size_t> size{0};
  std::string name;
  Region* next = nullptr;
};

std::atomic<Region*> regions{nullptr};
std::mutex regions_mutex;  // over changes

uintptr_t number(const void* address) { return reinterpret_cast<uintptr_t>(address); }

}  // namespace

void add_mapped_region(const void* begin, size_t size, std::string name) {
  for (char& c : name) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f) c = '?';
  }
  const std::scoped_lock lock(regions_mutex);
  Region* region = regions.load();
  while (region != nullptr && region->size.load() != 0) region = region->next;
  const bool added = region == nullptr;
  if (added) region = new Region;
  region->name = std::move(name);
  region->begin.store(number(begin));
  region->size.store(size);
  if (added) {
    region->next = regions.load();
    regions.store(region);
  }
}

void remove_mapped_region(const void* begin) {
  const std::scoped_lock lock(regions_mutex);
  for (Region* region = regions.load(); region != nullptr; region = region->next) {
    if (region->size.load() != 0 && region->begin.load() == number(begin)) {
      region->size.store(0);
      return;
    }
  }
}

const char* find_mapped_region(const void* address) {
  for (const Region* region = regions.load(); region != nullptr; region = region->next) {
    const size_t size = region->size.load();
    const uintptr_t begin = region->begin.load();
    if (number(address) >= begin && number(address) - begin < size) return region->name.c_str();
  }
  return nullptr;
}

}  // namespace sub8
