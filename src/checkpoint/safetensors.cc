#include "checkpoint/safetensors.h"

#include <algorithm>
#include <optional>
#include <tuple>

#include "base/checked_math.h"
#include "base/json.h"
#include "base/json_keys.h"
#include "checkpoint/model_file.h"

namespace sub8::checkpoint {
namespace fs = std::filesystem;
namespace {

using format::DType;

constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // as the reference implementation

constexpr DType kTypes[] = {DType::kF64,    DType::kF32,    DType::kF16,    DType::kBF16,
                            DType::kF8E4M3, DType::kF8E5M2, DType::kF8E8M0, DType::kI64,
                            DType::kI32,    DType::kI16,    DType::kI8,     DType::kU64,
                            DType::kU32,    DType::kU16,    DType::kU8,     DType::kBool};

Result<DType> parse_dtype(const JsonRef& entry, const std::string& where) {
  SUB8_ASSIGN_OR_RETURN(const JsonRef member, entry.at("dtype"));
  SUB8_ASSIGN_OR_RETURN(const std::string name, member.as_string());
  for (const DType type : kTypes) {
    if (format::dtype_name(type) == name) return type;
  }
  return unsupported(where + ": sub8 does not know the dtype \"" + name.substr(0, 40) + "\"");
}

// Shape, dtype and data_offsets of one header entry, checked against each other.
Result<Tensor> parse_entry(const std::string& name, const JsonRef& entry,
                           const std::string& source) {
  const std::string where = source + ": tensor \"" + name + "\"";
  if (!entry.is_object()) return corrupt_data(where + ": its header entry is not an object");
  Tensor out;
  out.name = name;
  SUB8_ASSIGN_OR_RETURN(out.dtype, parse_dtype(entry, where));
  SUB8_ASSIGN_OR_RETURN(const JsonRef shape, entry.at("shape"));
  SUB8_ASSIGN_OR_RETURN(const auto dims, shape.elements());
  if (dims.size() > 16) return corrupt_data(where + ": more than 16 dimensions");
  std::optional<int64_t> elements = 1;
  for (const JsonRef& dim : dims) {
    SUB8_ASSIGN_OR_RETURN(const int64_t size, dim.as_int(0, INT64_MAX));
    out.shape.push_back(size);
    if (elements) elements = checked_mul(*elements, size);
  }
  std::optional<int64_t> bytes;
  if (elements) {
    bytes = checked_mul(*elements, static_cast<int64_t>(format::dtype_bytes(out.dtype)));
  }
  if (!bytes) {
    return corrupt_data(where + ": shape " + shape_text(out.shape) + " overflows 64 bits");
  }
  SUB8_ASSIGN_OR_RETURN(const JsonRef range, entry.at("data_offsets"));
  SUB8_ASSIGN_OR_RETURN(const auto limits, range.elements());
  if (limits.size() != 2) {
    return corrupt_data(range.where() + ": expected [begin, end], got " +
                        std::to_string(limits.size()) + " numbers");
  }
  SUB8_ASSIGN_OR_RETURN(const int64_t begin, limits[0].as_int(0, INT64_MAX));
  SUB8_ASSIGN_OR_RETURN(const int64_t end, limits[1].as_int(0, INT64_MAX));
  if (end < begin) {
    return corrupt_data(where + ": data_offsets [" + std::to_string(begin) + ", " +
                        std::to_string(end) + "] are reversed");
  }
  if (end - begin != *bytes) {
    return corrupt_data(where + ": " + std::string(format::dtype_name(out.dtype)) + " " +
                        shape_text(out.shape) + " needs " + std::to_string(*bytes) +
                        " bytes, data_offsets [" + std::to_string(begin) + ", " +
                        std::to_string(end) + "] hold " + std::to_string(end - begin));
  }
  out.file_offset = static_cast<uint64_t>(begin);
  return out;
}

Result<std::map<std::string, std::string>> parse_metadata(const JsonRef& entry) {
  std::map<std::string, std::string> out;
  SUB8_ASSIGN_OR_RETURN(const auto members, entry.members());
  for (const auto& [key, value] : members) {
    SUB8_ASSIGN_OR_RETURN(out[key], value.as_string());
  }
  return out;
}

// Tensors sorted by offset must follow one another without gap or overlap up to the end.
Status check_coverage(const std::vector<Tensor>& tensors, const std::string& source,
                      uint64_t data_bytes) {
  uint64_t position = 0;
  const std::string* previous = nullptr;
  for (const Tensor& tensor : tensors) {
    const uint64_t begin = tensor.file_offset;
    if (begin < position) {
      return corrupt_data(source + ": tensor \"" + tensor.name + "\" overlaps \"" + *previous +
                          "\": it begins at byte " + std::to_string(begin) +
                          ", before that one's end at " + std::to_string(position));
    }
    if (begin > position) {
      return corrupt_data(source + ": bytes " + std::to_string(position) + " to " +
                          std::to_string(begin) + " of the data, before tensor \"" + tensor.name +
                          "\", belong to no tensor");
    }
    position += static_cast<uint64_t>(tensor.byte_size());
    previous = &tensor.name;
  }
  if (position != data_bytes) {
    return corrupt_data(source + ": the header describes " + std::to_string(position) +
                        " bytes of data, the file has " + std::to_string(data_bytes));
  }
  return {};
}

}  // namespace

int64_t TensorSpec::elements() const {
  int64_t out = 1;
  for (const int64_t size : shape) out *= size;
  return out;
}

std::string shape_text(std::span<const int64_t> shape) {
  std::string out = "[";
  for (size_t i = 0; i < shape.size(); ++i) {
    if (i != 0) out += ", ";
    out += std::to_string(shape[i]);
  }
  return out + "]";
}

Result<SafetensorsFile> SafetensorsFile::parse(std::span<const uint8_t> bytes,
                                               const std::string& source,
                                               const std::shared_ptr<const void>& owner) {
  if (bytes.size() < 8) {
    return corrupt_data(source + ": a safetensors file has at least 8 bytes, this has " +
                        std::to_string(bytes.size()));
  }
  constexpr std::string_view kPointer = "version https://git-lfs";
  if (std::string_view(reinterpret_cast<const char*>(bytes.data()),
                       std::min(bytes.size(), kPointer.size())) == kPointer) {
    return corrupt_data(source +
                        ": a Git LFS pointer, not the weights themselves; fetch them with 'git lfs "
                        "pull' in the model's repository, or download the file again");
  }
  uint64_t header_bytes = 0;
  for (int i = 7; i >= 0; --i) header_bytes = header_bytes << 8 | bytes[static_cast<size_t>(i)];
  if (header_bytes > kMaxHeaderBytes) {
    return corrupt_data(source + ": the header claims " + std::to_string(header_bytes) +
                        " bytes, more than the limit of " + std::to_string(kMaxHeaderBytes) +
                        ": not a safetensors file");
  }
  if (header_bytes > bytes.size() - 8) {
    return corrupt_data(source + ": the header needs " + std::to_string(header_bytes + 8) +
                        " bytes, the file has " + std::to_string(bytes.size()) +
                        ": the file is truncated");
  }
  const std::string_view header(reinterpret_cast<const char*>(bytes.data()) + 8, header_bytes);
  if (header.empty() || header.front() != '{') {
    return corrupt_data(source + ": the header does not begin with '{': not a safetensors file");
  }
  SUB8_ASSIGN_OR_RETURN(const auto document, parse_json(header, source + " header"));
  SUB8_RETURN_IF_ERROR(check_no_duplicate_keys(header, source + " header"));
  const JsonRef root(document, source + " header");
  SUB8_ASSIGN_OR_RETURN(const auto members, root.members());

  SafetensorsFile out;
  const uint64_t data_bytes = bytes.size() - 8 - header_bytes;
  uint64_t needed = 0;
  for (const auto& [name, entry] : members) {
    if (name == "__metadata__") {
      SUB8_ASSIGN_OR_RETURN(out.metadata_, parse_metadata(entry));
      continue;
    }
    SUB8_ASSIGN_OR_RETURN(Tensor tensor, parse_entry(name, entry, source));
    needed = std::max(needed, tensor.file_offset + static_cast<uint64_t>(tensor.byte_size()));
    out.tensors_.push_back(std::move(tensor));
  }
  if (needed > data_bytes) {
    return corrupt_data(source + ": the file has " + std::to_string(bytes.size()) +
                        " bytes and needs " + std::to_string(needed + 8 + header_bytes) +
                        ": it is truncated (an interrupted download?) or its header is wrong");
  }
  std::sort(out.tensors_.begin(), out.tensors_.end(), [](const Tensor& a, const Tensor& b) {
    return std::make_tuple(a.file_offset, a.byte_size() != 0, std::string_view(a.name)) <
           std::make_tuple(b.file_offset, b.byte_size() != 0, std::string_view(b.name));
  });
  SUB8_RETURN_IF_ERROR(check_coverage(out.tensors_, source, data_bytes));
  for (Tensor& tensor : out.tensors_) {
    tensor.file_offset += 8 + header_bytes;
    tensor.data = bytes.subspan(tensor.file_offset, static_cast<size_t>(tensor.byte_size()));
    tensor.owner = owner;
  }
  return out;
}

Result<SafetensorsFile> SafetensorsFile::open(const fs::path& path) {
  SUB8_ASSIGN_OR_RETURN(const auto file, MappedFile::open(path));
  const std::span<const uint8_t> bytes(reinterpret_cast<const uint8_t*>(file->bytes().data()),
                                       file->bytes().size());
  SUB8_ASSIGN_OR_RETURN(SafetensorsFile out, parse(bytes, path.string(), file));
  for (Tensor& tensor : out.tensors_) tensor.file = file;
  return out;
}

namespace {

// The shard files named by an index, and which tensor belongs to which.
struct ShardIndex {
  std::vector<std::string> files;                 // in order of first mention, sorted
  std::map<std::string, std::string> weight_map;  // tensor -> file
};

Result<ShardIndex> read_index(const fs::path& path) {
  SUB8_ASSIGN_OR_RETURN(const std::string text, read_model_file(path));
  SUB8_ASSIGN_OR_RETURN(const auto document, parse_json(text, path.string()));
  SUB8_RETURN_IF_ERROR(check_no_duplicate_keys(text, path.string()));
  const JsonRef root(document, path.string());
  SUB8_ASSIGN_OR_RETURN(const JsonRef map, root.at("weight_map"));
  SUB8_ASSIGN_OR_RETURN(const auto members, map.members());
  ShardIndex out;
  for (const auto& [tensor, value] : members) {
    SUB8_ASSIGN_OR_RETURN(const std::string file, value.as_string());
    // A plain name inside the directory: nothing that leads elsewhere.
    if (file.empty() || file == "." || file == ".." || file.find('/') != std::string::npos ||
        file.find('\0') != std::string::npos) {
      return corrupt_data(value.where() + ": expected the name of a file in the same directory");
    }
    out.weight_map.emplace(tensor, file);
    out.files.push_back(file);
  }
  std::sort(out.files.begin(), out.files.end());
  out.files.erase(std::unique(out.files.begin(), out.files.end()), out.files.end());
  if (out.files.empty()) return corrupt_data(map.where() + ": it lists no tensors");
  return out;
}

}  // namespace

Status SafetensorsModel::add(const SafetensorsFile& file, const fs::path& path) {
  if (files_.empty()) metadata_ = file.metadata();
  files_.push_back(path);
  for (const Tensor& tensor : file.tensors()) {
    const auto [at, added] = by_name_.emplace(tensor.name, tensors_.size());
    if (!added) {
      return corrupt_data(path.string() + ": tensor \"" + tensor.name + "\" is also in " +
                          tensors_[at->second].path().string());
    }
    tensors_.push_back(tensor);
  }
  return {};
}

Result<SafetensorsModel> SafetensorsModel::open(const fs::path& directory) {
  SafetensorsModel out;
  const fs::path index_path = directory / "model.safetensors.index.json";
  if (is_present(index_path)) {
    SUB8_ASSIGN_OR_RETURN(const ShardIndex index, read_index(index_path));
    const fs::path other = directory / "model.safetensors";
    if (is_present(other) &&
        std::find(index.files.begin(), index.files.end(), other.filename()) == index.files.end()) {
      return corrupt_data(
          "'" + other.string() + "' lies beside " + index_path.filename().string() +
          ", which does not list it: programs disagree about which of the two "
          "models counts. Move the one that is not meant elsewhere (model.safetensors, "
          "or the index with its shards)");
    }
    for (const std::string& name : index.files) {
      if (!is_present(directory / name)) {
        return not_found("'" + (directory / name).string() + "' is missing: " +
                         index_path.string() + " lists it; download the model again");
      }
      SUB8_ASSIGN_OR_RETURN(const SafetensorsFile file, SafetensorsFile::open(directory / name));
      SUB8_RETURN_IF_ERROR(out.add(file, directory / name));
    }
    for (const auto& [tensor, file] : index.weight_map) {
      const Tensor* found = out.find(tensor);
      if (found == nullptr || found->path().filename() != file) {
        return corrupt_data((directory / file).string() + ": tensor \"" + tensor +
                            "\" is not in it, " + index_path.string() + " says that it is");
      }
    }
    return out;
  }
  fs::path single = directory / "model.safetensors";
  if (!is_present(single)) {
    SUB8_ASSIGN_OR_RETURN(const auto candidates, files_with_extension(directory, ".safetensors"));
    if (candidates.size() != 1) {
      return not_found("'" + directory.string() +
                       "' has neither model.safetensors nor "
                       "model.safetensors.index.json" +
                       (candidates.empty() ? std::string()
                                           : ", and " + std::to_string(candidates.size()) +
                                                 " other .safetensors files") +
                       "; sub8 reads safetensors directories and GGUF files (PyTorch .bin files "
                       "must be converted first)");
    }
    single = candidates.front();
  }
  SUB8_ASSIGN_OR_RETURN(const SafetensorsFile file, SafetensorsFile::open(single));
  SUB8_RETURN_IF_ERROR(out.add(file, single));
  return out;
}

const Tensor* SafetensorsModel::find(std::string_view name) const {
  const auto at = by_name_.find(std::string(name));
  return at == by_name_.end() ? nullptr : &tensors_[at->second];
}

}  // namespace sub8::checkpoint
