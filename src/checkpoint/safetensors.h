// safetensors: reader of one file or of a sharded model, and a streaming writer.
//
// File: u64 little-endian header length, a JSON object {name: {dtype, shape, data_offsets}},
// optional "__metadata__" of strings, then the data. Offsets count from the end of the header; the
// tensors cover the data without gaps or overlap. Nothing is aligned: neither the header length nor
// any tensor.
//
// Source: the format description in the safetensors repository.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "format/dtype.h"

namespace sub8::checkpoint {

struct TensorSpec {
  std::string name;
  format::DType dtype = format::DType::kF32;
  std::vector<int64_t> shape;

  // Product of the shape (1 for []); specs from this reader never overflow.
  int64_t elements() const;
  int64_t byte_size() const {
    return elements() * static_cast<int64_t>(format::dtype_bytes(dtype));
  }
};
std::string shape_text(std::span<const int64_t> shape);  // "[2, 3]"

// A tensor inside a mapped file. `data` may be unaligned and lives as long as `owner`.
struct Tensor : TensorSpec {
  std::span<const uint8_t> data;
  std::shared_ptr<const void> owner;
  std::shared_ptr<const MappedFile> file;  // null for parsed buffers
  uint64_t file_offset = 0;

  std::filesystem::path path() const { return file ? file->path() : std::filesystem::path(); }
};

// Everything about the file is checked when it is opened; the data itself is not read.
class SafetensorsFile {
 public:
  static Result<SafetensorsFile> open(const std::filesystem::path& path);
  // `source` names the bytes in errors; `owner` keeps them alive.
  static Result<SafetensorsFile> parse(std::span<const uint8_t> bytes, const std::string& source,
                                       const std::shared_ptr<const void>& owner);

  // In the order of the data.
  const std::vector<Tensor>& tensors() const { return tensors_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

 private:
  std::vector<Tensor> tensors_;
  std::map<std::string, std::string> metadata_;
};

// The weights of a model directory: model.safetensors, or the shards that
// model.safetensors.index.json lists (not both), or the only *.safetensors file that there is.
class SafetensorsModel {
 public:
  static Result<SafetensorsModel> open(const std::filesystem::path& directory);

  const std::vector<Tensor>& tensors() const { return tensors_; }
  const Tensor* find(std::string_view name) const;
  const std::vector<std::filesystem::path>& files() const { return files_; }
  // Of the first file.
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

 private:
  Status add(const SafetensorsFile& file, const std::filesystem::path& path);
  std::vector<Tensor> tensors_;
  std::unordered_map<std::string, size_t> by_name_;
  std::vector<std::filesystem::path> files_;
  std::map<std::string, std::string> metadata_;
};

// Writes a model into a directory. All tensors are declared first, so shards, headers and offsets
// are fixed before any data exists; the data may then come in any order and from several threads.
// The bytes depend on the declarations and the data only. Within a shard tensors are ordered by
// element size, wide ones first, then as declared, so each is aligned to its element; the data
// starts at a multiple of 8.
class SafetensorsWriter {
 public:
  static constexpr int64_t kDefaultShardBytes = int64_t{5} << 30;

  // One file "model.safetensors" if everything fits `shard_bytes`, else
  // "model-00001-of-0000N.safetensors" with "model.safetensors.index.json". A tensor larger than
  // the limit gets a shard of its own. Duplicate names are refused.
  static Result<SafetensorsWriter> create(const std::filesystem::path& directory,
                                          std::vector<TensorSpec> tensors,
                                          const std::map<std::string, std::string>& metadata,
                                          int64_t shard_bytes = kDefaultShardBytes);

  // The whole tensor.
  Status write(std::string_view name, std::span<const uint8_t> bytes);
  // A part of it; parts must not overlap.
  Status write_part(std::string_view name, int64_t offset, std::span<const uint8_t> bytes);
  // Flushes to the disk. An error if a tensor is incomplete.
  Status finish();

  int64_t total_bytes() const { return total_bytes_; }
  size_t shards() const { return shards_.size(); }

 private:
  struct Entry {
    TensorSpec spec;
    size_t shard = 0;
    uint64_t file_offset = 0;
    std::unique_ptr<std::atomic<int64_t>> written;
  };
  SafetensorsWriter() = default;
  std::filesystem::path directory_;
  std::vector<std::string> shard_names_;
  std::vector<FileWriter> shards_;
  std::vector<Entry> entries_;
  std::unordered_map<std::string, size_t> by_name_;
  int64_t total_bytes_ = 0;
};

}  // namespace sub8::checkpoint
