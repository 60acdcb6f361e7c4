// Files for the tests of src/checkpoint: raw safetensors and GGUF bytes, small models on disk.
#pragma once

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>
#include <unistd.h>

#include "checkpoint/safetensors.h"
#include "format/dtype.h"

namespace sub8::checkpoint {

// A directory of its own that goes with the test.
class TempDir {
 public:
  TempDir() {
    std::string pattern = (std::filesystem::temp_directory_path() / "sub8-test-XXXXXX").string();
    path_ = ::mkdtemp(pattern.data());
  }
  ~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  std::filesystem::path operator/(std::string_view name) const { return path_ / name; }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

inline void write_text(const std::filesystem::path& path, std::string_view text) {
  std::ofstream(path, std::ios::binary)
      .write(text.data(), static_cast<std::streamsize>(text.size()));
}

inline std::string read_text(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

template <class T>
std::string little_endian(T value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

// A safetensors file with the header as given: hostile ones too.
inline std::string raw_safetensors(std::string_view header, std::string_view data) {
  return little_endian(static_cast<uint64_t>(header.size())) + std::string(header) +
         std::string(data);
}

inline std::span<const uint8_t> as_bytes(std::string_view text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

// Tensors by name, each a spec and its bytes; save() writes model.safetensors.
struct TestTensors {
  struct One {
    TensorSpec spec;
    std::string bytes;
  };
  std::map<std::string, One> all;

  void put(const std::string& name, format::DType dtype, std::vector<int64_t> shape,
           std::string bytes) {
    TensorSpec spec;
    spec.name = name;
    spec.dtype = dtype;
    spec.shape = std::move(shape);
    ASSERT_EQ(spec.byte_size(), static_cast<int64_t>(bytes.size())) << name;
    all[name] = {spec, std::move(bytes)};
  }
  void put_f32(const std::string& name, std::vector<int64_t> shape, const std::vector<float>& v) {
    put(name, format::DType::kF32, std::move(shape),
        std::string(reinterpret_cast<const char*>(v.data()), 4 * v.size()));
  }
  void put_bf16(const std::string& name, std::vector<int64_t> shape, const std::vector<float>& v) {
    std::string bytes;
    for (const float x : v) bytes += little_endian(format::float_to_bf16(x));
    put(name, format::DType::kBF16, std::move(shape), bytes);
  }
  // Everything that a model on disk holds.
  static TestTensors load(const std::filesystem::path& directory) {
    TestTensors out;
    const auto model = SafetensorsModel::open(directory);
    EXPECT_TRUE(model.ok());
    for (const Tensor& t : model->tensors()) {
      out.all[t.name] = {t,
                         std::string(reinterpret_cast<const char*>(t.data.data()), t.data.size())};
    }
    return out;
  }
  void save(const std::filesystem::path& directory) const {
    std::vector<TensorSpec> specs;
    for (const auto& [name, one] : all) specs.push_back(one.spec);
    auto writer = SafetensorsWriter::create(directory, specs, {});
    ASSERT_TRUE(writer.ok());
    for (const auto& [name, one] : all) ASSERT_TRUE(writer->write(name, as_bytes(one.bytes)).ok());
    ASSERT_TRUE(writer->finish().ok());
  }
};

// A GGUF file piece by piece.
class GgufBuilder {
 public:
  explicit GgufBuilder(uint32_t version = 3) : version_(version) {}

  static std::string text(std::string_view s) {
    return little_endian(static_cast<uint64_t>(s.size())) + std::string(s);
  }
  GgufBuilder& raw(std::string_view key, uint32_t type, std::string_view value) {
    values_ += text(key) + little_endian(type) + std::string(value);
    ++value_count_;
    return *this;
  }
  GgufBuilder& u32(std::string_view key, uint32_t v) { return raw(key, 4, little_endian(v)); }
  GgufBuilder& f32(std::string_view key, float v) { return raw(key, 6, little_endian(v)); }
  GgufBuilder& boolean(std::string_view key, bool v) {
    return raw(key, 7, v ? "\1" : std::string(1, 0));
  }
  GgufBuilder& string(std::string_view key, std::string_view v) { return raw(key, 8, text(v)); }
  GgufBuilder& strings(std::string_view key, const std::vector<std::string>& v) {
    std::string bytes = little_endian(uint32_t{8}) + little_endian(static_cast<uint64_t>(v.size()));
    for (const std::string& s : v) bytes += text(s);
    return raw(key, 9, bytes);
  }
  // Dimensions in the file's order: columns first.
  GgufBuilder& tensor(std::string_view name, const std::vector<uint64_t>& dims, uint32_t type,
                      std::string data) {
    return entry(name, dims, type, data_.size(), std::move(data));
  }
  GgufBuilder& entry(std::string_view name, const std::vector<uint64_t>& dims, uint32_t type,
                     uint64_t offset, std::string data) {
    tensors_ += text(name) + little_endian(static_cast<uint32_t>(dims.size()));
    for (const uint64_t d : dims) tensors_ += little_endian(d);
    tensors_ += little_endian(type) + little_endian(offset);
    data_ += data;
    data_.resize((data_.size() + 31) / 32 * 32);
    ++tensor_count_;
    return *this;
  }
  std::string build() const {
    std::string out = "GGUF" + little_endian(version_) + little_endian(tensor_count_) +
                      little_endian(value_count_) + values_ + tensors_;
    out.resize((out.size() + 31) / 32 * 32);
    return out + data_;
  }

 private:
  uint32_t version_;
  uint64_t tensor_count_ = 0;
  uint64_t value_count_ = 0;
  std::string values_, tensors_, data_;
};

}  // namespace sub8::checkpoint
