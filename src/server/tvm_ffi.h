// The part of TVM-FFI's C interface that sub8 calls, resolved at run time: values, functions found
// by name, and strings. Layouts are those of version 0.1 (tvm/ffi/c_api.h of apache-tvm-ffi).
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "base/error.h"

namespace sub8::server::ffi {

// A tagged 16-byte value, as the interface passes it. Objects are counted references; a Raw holds
// none of its own.
struct Raw {
  int32_t type = 0;
  uint32_t small_length = 0;
  union {
    int64_t integer = 0;
    double real;
    void* pointer;
  };
};

enum Type : int32_t {
  kNone = 0,
  kInt = 1,
  kBool = 2,
  kTensorPointer = 7,
  kFirstObject = 64,
  kFunction = 68,
};

struct Bytes {
  const char* data;
  size_t size;
};

// DLPack's description of an array in memory.
struct Tensor {
  void* data;
  int32_t device_type;  // 1: CPU
  int32_t device_id;
  int32_t dimensions;
  uint8_t type_code;  // 0: signed integer
  uint8_t type_bits;
  uint16_t type_lanes;
  int64_t* shape;
  int64_t* strides;
  uint64_t byte_offset;
};

class Library;

// Owns one reference, if the value is an object. The library must outlive it.
class Value {
 public:
  Value() = default;
  Value(const Library* library, Raw raw) : library_(library), raw_(raw) {}
  Value(Value&& other) noexcept
      : library_(other.library_), raw_(std::exchange(other.raw_, Raw{})) {}
  Value& operator=(Value&& other) noexcept;
  ~Value();
  const Raw& raw() const { return raw_; }

 private:
  const Library* library_ = nullptr;
  Raw raw_;
};

Raw none();
Raw integer(int64_t value);
Raw boolean(bool value);
Raw tensor(const Tensor* value);  // `value` must live as long as the call

class Library {
 public:
  // Loads libtvm_ffi.so; an error that says what is missing or of another version.
  static Result<Library> open(const std::filesystem::path& path);

  // A method of a registered class; for instance methods the first argument is the object. The
  // result refers to the registry and needs no release.
  Result<Raw> method(std::string_view class_name, std::string_view name) const;
  Result<Value> global(std::string_view name) const;

  // Calls a function; failures are invalid_argument with the other side's message.
  Result<Value> call(const Raw& function, std::span<const Raw> arguments) const;
  Result<Value> make_bytes(std::string_view content) const;
  Result<Value> make_string(std::string_view content) const;

  void release(void* object) const;

 private:
  struct TypeInfo;
  struct Method;
  Library() = default;
  Error take_error(std::string_view what) const;

  int (*dec_ref_)(void*) = nullptr;
  int (*key_to_index_)(const Bytes*, int32_t*) = nullptr;
  const TypeInfo* (*type_info_)(int32_t) = nullptr;
  int (*get_global_)(const Bytes*, void**) = nullptr;
  int (*call_)(void*, const Raw*, int32_t, Raw*) = nullptr;
  int (*bytes_from_)(const Bytes*, Raw*) = nullptr;
  int (*string_from_)(const Bytes*, Raw*) = nullptr;
  void (*move_error_)(void**) = nullptr;
};

}  // namespace sub8::server::ffi
