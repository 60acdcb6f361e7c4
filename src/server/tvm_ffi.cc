#include "server/tvm_ffi.h"

#include <cstring>

#include <dlfcn.h>
#include <fmt/format.h>

namespace sub8::server::ffi {
namespace {

struct Version {
  uint32_t major, minor, patch;
};
constexpr uint32_t kMajor = 0;
constexpr uint32_t kMinor = 1;

// Every object starts with a count, its type, padding and a deleter.
constexpr size_t kObjectHeaderBytes = 24;
static_assert(sizeof(Raw) == 16);
static_assert(sizeof(Tensor) == 48);

}  // namespace

struct Library::Method {
  Bytes name;
  Bytes doc;
  Bytes metadata;
  int64_t flags;
  Raw function;
};

struct Library::TypeInfo {
  int32_t index;
  int32_t depth;
  Bytes key;
  const TypeInfo** ancestors;
  uint64_t key_hash;
  int32_t field_count;
  int32_t method_count;
  const void* fields;
  const Method* methods;
  const void* metadata;
};

Raw none() { return {}; }

Raw integer(int64_t value) {
  Raw out;
  out.type = kInt;
  out.integer = value;
  return out;
}

Raw boolean(bool value) {
  Raw out;
  out.type = kBool;
  out.integer = value ? 1 : 0;
  return out;
}

Raw tensor(const Tensor* value) {
  Raw out;
  out.type = kTensorPointer;
  out.pointer = const_cast<Tensor*>(value);
  return out;
}

Value& Value::operator=(Value&& other) noexcept {
  std::swap(library_, other.library_);
  std::swap(raw_, other.raw_);
  return *this;
}

Value::~Value() {
  if (library_ != nullptr && raw_.type >= kFirstObject) library_->release(raw_.pointer);
}

Result<Library> Library::open(const std::filesystem::path& path) {
  // Global, so that libraries loaded later find its symbols.
  void* handle = ::dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (handle == nullptr) {
    const char* reason = ::dlerror();
    return not_found(fmt::format("could not load {}: {}", path.string(),
                                 reason == nullptr ? "unknown reason" : reason));
  }
  Library out;
  std::string missing;
  const auto find = [&](const char* name, auto& function) {
    void* symbol = ::dlsym(handle, name);
    if (symbol == nullptr) missing = name;
    std::memcpy(&function, &symbol, sizeof symbol);
  };
  void (*get_version)(Version*) = nullptr;
  find("TVMFFIGetVersion", get_version);
  find("TVMFFIObjectDecRef", out.dec_ref_);
  find("TVMFFITypeKeyToIndex", out.key_to_index_);
  find("TVMFFIGetTypeInfo", out.type_info_);
  find("TVMFFIFunctionGetGlobal", out.get_global_);
  find("TVMFFIFunctionCall", out.call_);
  find("TVMFFIBytesFromByteArray", out.bytes_from_);
  find("TVMFFIStringFromByteArray", out.string_from_);
  find("TVMFFIErrorMoveFromRaised", out.move_error_);
  if (!missing.empty())
    return unsupported(fmt::format("{} has no function {}", path.string(), missing));
  Version version{};
  get_version(&version);
  if (version.major != kMajor || version.minor != kMinor) {
    return unsupported(fmt::format("{} has version {}.{}.{}, but sub8 knows {}.{}", path.string(),
                                   version.major, version.minor, version.patch, kMajor, kMinor));
  }
  return out;
}

void Library::release(void* object) const {
  if (object != nullptr) dec_ref_(object);
}

Error Library::take_error(std::string_view what) const {
  void* object = nullptr;
  move_error_(&object);
  if (object == nullptr) return internal_error(fmt::format("{} failed without a reason", what));
  // An error object holds its kind and its message behind the header.
  const auto* texts =
      reinterpret_cast<const Bytes*>(static_cast<char*>(object) + kObjectHeaderBytes);
  std::string message(texts[1].data, texts[1].size);
  release(object);
  return invalid_argument(std::move(message));
}

Result<Raw> Library::method(std::string_view class_name, std::string_view name) const {
  const Bytes key{class_name.data(), class_name.size()};
  int32_t index = 0;
  if (key_to_index_(&key, &index) != 0) return take_error(class_name);
  const TypeInfo* info = type_info_(index);
  for (int32_t i = 0; i < info->method_count; ++i) {
    const Method& entry = info->methods[i];
    if (std::string_view(entry.name.data, entry.name.size) == name) return entry.function;
  }
  return unsupported(fmt::format("{} has no method {}", class_name, name));
}

Result<Value> Library::global(std::string_view name) const {
  const Bytes key{name.data(), name.size()};
  void* function = nullptr;
  if (get_global_(&key, &function) != 0) return take_error(name);
  if (function == nullptr) return unsupported(fmt::format("there is no function {}", name));
  Raw raw;
  raw.type = kFunction;
  raw.pointer = function;
  return Value(this, raw);
}

Result<Value> Library::call(const Raw& function, std::span<const Raw> arguments) const {
  Raw result;
  if (call_(function.pointer, arguments.data(), static_cast<int32_t>(arguments.size()), &result) !=
      0) {
    return take_error("the call");
  }
  return Value(this, result);
}

Result<Value> Library::make_bytes(std::string_view content) const {
  const Bytes view{content.data(), content.size()};
  Raw result;
  if (bytes_from_(&view, &result) != 0) return take_error("making bytes");
  return Value(this, result);
}

Result<Value> Library::make_string(std::string_view content) const {
  const Bytes view{content.data(), content.size()};
  Raw result;
  if (string_from_(&view, &result) != 0) return take_error("making a string");
  return Value(this, result);
}

}  // namespace sub8::server::ffi
