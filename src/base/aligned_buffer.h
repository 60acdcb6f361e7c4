// Owned, 64-byte aligned memory for packed weights, activations and caches.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <type_traits>
#include <utility>

#include "base/arena.h"
#include "base/error.h"

namespace sub8 {

// Elements are trivially copyable. Allocation failure is an Error, since sizes follow from outside
// data.
template <class T>
class AlignedBuffer {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  static constexpr size_t kAlignment = 64;

  AlignedBuffer() = default;
  AlignedBuffer(AlignedBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)),
        size_(std::exchange(other.size_, 0)),
        slab_(std::move(other.slab_)) {}
  AlignedBuffer& operator=(AlignedBuffer&& other) noexcept {
    if (this != &other) {
      release();
      data_ = std::exchange(other.data_, nullptr);
      size_ = std::exchange(other.size_, 0);
      slab_ = std::move(other.slab_);
    }
    return *this;
  }
  ~AlignedBuffer() { release(); }

  // Uninitialised memory, from the arena if there is one. Padding is the writer's business: whoever
  // packs also zero-fills the tail.
  static Result<AlignedBuffer> uninitialized(size_t count, Arena* arena = nullptr) {
    AlignedBuffer out;
    if (count == 0) return out;
    size_t bytes = 0;
    if (__builtin_mul_overflow(count, sizeof(T), &bytes) || bytes > SIZE_MAX - kAlignment) {
      return resource_exhausted("a buffer of " + std::to_string(count) + " elements does not fit");
    }
    bytes = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    if (arena != nullptr) {
      SUB8_ASSIGN_OR_RETURN(out.slab_, arena->allocate(bytes));
      out.data_ = reinterpret_cast<T*>(out.slab_.get());
      out.size_ = count;
      return out;
    }
    out.data_ = static_cast<T*>(std::aligned_alloc(kAlignment, bytes));
    if (out.data_ == nullptr) {
      return resource_exhausted("out of memory: could not allocate " + std::to_string(bytes) +
                                " bytes");
    }
    out.size_ = count;
    return out;
  }
  static Result<AlignedBuffer> zeros(size_t count) {
    Result<AlignedBuffer> out = uninitialized(count);
    if (out.ok() && count != 0) std::memset(out->data_, 0, count * sizeof(T));
    return out;
  }

  T* data() { return data_; }
  const T* data() const { return data_; }
  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  T& operator[](size_t i) { return data_[i]; }
  const T& operator[](size_t i) const { return data_[i]; }
  std::span<T> span() { return {data_, size_}; }
  std::span<const T> span() const { return {data_, size_}; }

 private:
  void release() {
    if (slab_ == nullptr) std::free(data_);
    slab_.reset();
  }

  T* data_ = nullptr;
  size_t size_ = 0;
  std::shared_ptr<std::byte> slab_;  // keeps an arena's memory; null: data_ is our own
};

}  // namespace sub8
