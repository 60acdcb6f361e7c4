// GGUF container: metadata, tensor directory, block types. Architectures and names: gguf_model.h.
//
// File: "GGUF", u32 version (2 or 3), u64 tensor count, u64 metadata count, metadata entries,
// tensor entries, padding to the alignment, data. Everything little-endian. Counts come from
// outside: each is checked against the bytes that are left before anything is allocated.
//
// Source: the GGUF specification in the ggml repository; block layouts as in the `gguf` Python
// package, whose dequantize() the decoders equal value for value.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <variant>
#include <vector>

#include "base/error.h"
#include "base/file.h"

namespace sub8::checkpoint {

enum class GgmlType : uint32_t {
  kF32 = 0,
  kF16 = 1,
  kQ4_0 = 2,
  kQ4_1 = 3,
  kQ5_0 = 6,
  kQ5_1 = 7,
  kQ8_0 = 8,
  kQ2_K = 10,
  kQ3_K = 11,
  kQ4_K = 12,
  kQ5_K = 13,
  kQ6_K = 14,
  kBF16 = 30,
  kMXFP4 = 39,
  kNVFP4 = 40,
};

struct GgmlBlock {
  std::string_view name;
  int64_t elements = 1;  // per block, along a row
  int64_t bytes = 1;     // per block
};
// Any of the types above.
GgmlBlock ggml_block(GgmlType type);

// Decodes `count` elements (whole blocks) to f32 in the order and with the roundings of the `gguf`
// package. NaN and infinity in the source pass through.
void decode_ggml(GgmlType type, const uint8_t* blocks, int64_t count, float* out);

// One metadata value. Strings and arrays of numbers and booleans point into the file.
struct GgufValue;
struct GgufArray {
  uint32_t element_type = 0;
  size_t size = 0;
  std::span<const uint8_t> scalars;  // numbers and booleans, as stored
  std::vector<GgufValue> values;     // strings and arrays

  GgufValue at(size_t i) const;  // i < size
};
struct GgufValue {
  std::variant<uint64_t, int64_t, double, bool, std::string_view, GgufArray> value;
};

struct GgufTensor {
  std::string name;
  GgmlType type = GgmlType::kF32;
  int64_t rows = 1;    // product of all dimensions but the first
  int64_t cols = 1;    // the first dimension: contiguous
  int dimensions = 1;  // without trailing ones
  std::span<const uint8_t> data;
  uint64_t file_offset = 0;

  int64_t row_bytes() const {
    const GgmlBlock block = ggml_block(type);
    return cols / block.elements * block.bytes;
  }
};

class GgufFile {
 public:
  static Result<GgufFile> open(const std::filesystem::path& path);
  // `source` names the bytes in errors; `owner` keeps them alive.
  static Result<GgufFile> parse(std::span<const uint8_t> bytes, std::string source,
                                std::shared_ptr<const void> owner);

  const std::string& source() const { return source_; }
  const std::shared_ptr<const void>& owner() const { return owner_; }
  const std::shared_ptr<const MappedFile>& file() const { return file_; }
  const std::vector<GgufTensor>& tensors() const { return tensors_; }
  const GgufTensor* find(std::string_view name) const;

  const std::map<std::string, GgufValue, std::less<>>& metadata() const { return metadata_; }
  bool has(std::string_view key) const { return metadata_.find(key) != metadata_.end(); }
  // Typed access: nothing where the key is absent, an Error naming the key where the type or range
  // is wrong.
  Result<std::optional<int64_t>> get_int(std::string_view key, int64_t low, int64_t high) const;
  Result<std::optional<double>> get_double(std::string_view key) const;  // finite
  Result<std::optional<bool>> get_bool(std::string_view key) const;
  Result<std::optional<std::string>> get_string(std::string_view key) const;
  // Arrays; empty where absent.
  Result<std::vector<std::string>> get_strings(std::string_view key) const;
  Result<std::vector<int64_t>> get_ints(std::string_view key, int64_t low, int64_t high) const;
  Result<std::vector<double>> get_doubles(std::string_view key) const;

 private:
  std::string source_;
  std::shared_ptr<const void> owner_;
  std::shared_ptr<const MappedFile> file_;
  std::map<std::string, GgufValue, std::less<>> metadata_;
  std::vector<GgufTensor> tensors_;
  std::unordered_map<std::string, size_t> by_name_;
};

}  // namespace sub8::checkpoint
