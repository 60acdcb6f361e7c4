#include <algorithm>
#include <cstdio>

#include <boost/json.hpp>

#include "base/checked_math.h"
#include "checkpoint/safetensors.h"

namespace sub8::checkpoint {
namespace fs = std::filesystem;
namespace {

std::string shard_name(size_t index, size_t count) {
  if (count == 1) return "model.safetensors";
  char text[64];
  std::snprintf(text, sizeof text, "model-%05zu-of-%05zu.safetensors", index + 1, count);
  return text;
}

// Shard of every tensor: greedy in the declared order.
std::vector<size_t> assign_shards(const std::vector<TensorSpec>& tensors, int64_t limit) {
  std::vector<size_t> out;
  size_t shard = 0;
  int64_t used = 0;
  for (const TensorSpec& spec : tensors) {
    const int64_t bytes = spec.byte_size();
    if (used != 0 && bytes > limit - used) {
      ++shard;
      used = 0;
    }
    out.push_back(shard);
    used += bytes;
  }
  return out;
}

Status check_spec(const TensorSpec& spec) {
  std::optional<int64_t> bytes = static_cast<int64_t>(format::dtype_bytes(spec.dtype));
  for (const int64_t size : spec.shape) {
    if (size < 0) bytes.reset();
    if (bytes) bytes = checked_mul(*bytes, size);
  }
  if (!bytes) {
    return invalid_argument("tensor \"" + spec.name + "\" has the impossible shape " +
                            shape_text(spec.shape));
  }
  return {};
}

std::string header_text(const boost::json::object& header) {
  std::string text = boost::json::serialize(header);
  text.append((8 - text.size() % 8) % 8, ' ');
  return text;
}

}  // namespace

Result<SafetensorsWriter> SafetensorsWriter::create(
    const fs::path& directory, std::vector<TensorSpec> tensors,
    const std::map<std::string, std::string>& metadata, int64_t shard_bytes) {
  SafetensorsWriter out;
  out.directory_ = directory;
  for (size_t i = 0; i < tensors.size(); ++i) {
    SUB8_RETURN_IF_ERROR(check_spec(tensors[i]));
    if (!out.by_name_.emplace(tensors[i].name, i).second) {
      return invalid_argument("tensor \"" + tensors[i].name + "\" would be written twice");
    }
  }
  const std::vector<size_t> shard_of = assign_shards(tensors, std::max<int64_t>(shard_bytes, 1));
  const size_t shards = shard_of.empty() ? 1 : shard_of.back() + 1;
  for (size_t i = 0; i < tensors.size(); ++i) {
    out.total_bytes_ += tensors[i].byte_size();
    out.entries_.push_back(
        {std::move(tensors[i]), shard_of[i], 0, std::make_unique<std::atomic<int64_t>>(0)});
  }
  for (size_t shard = 0; shard < shards; ++shard) {
    std::vector<Entry*> members;
    for (Entry& entry : out.entries_) {
      if (entry.shard == shard) members.push_back(&entry);
    }
    std::stable_sort(members.begin(), members.end(), [](const Entry* a, const Entry* b) {
      return format::dtype_bytes(a->spec.dtype) > format::dtype_bytes(b->spec.dtype);
    });
    boost::json::object header;
    if (!metadata.empty()) {
      boost::json::object texts;
      for (const auto& [key, value] : metadata) texts[key] = value;
      header["__metadata__"] = std::move(texts);
    }
    int64_t offset = 0;
    for (Entry* entry : members) {
      boost::json::array shape(entry->spec.shape.begin(), entry->spec.shape.end());
      const int64_t end = offset + entry->spec.byte_size();
      header[entry->spec.name] = {{"dtype", std::string(format::dtype_name(entry->spec.dtype))},
                                  {"shape", std::move(shape)},
                                  {"data_offsets", boost::json::array{offset, end}}};
      entry->file_offset = static_cast<uint64_t>(offset);
      offset = end;
    }
    const std::string text = header_text(header);
    for (Entry* entry : members) entry->file_offset += 8 + text.size();
    std::string length(8, '\0');
    for (size_t i = 0; i < 8; ++i) length[i] = static_cast<char>(text.size() >> (8 * i));
    out.shard_names_.push_back(shard_name(shard, shards));
    SUB8_ASSIGN_OR_RETURN(FileWriter file, FileWriter::create(directory / out.shard_names_.back()));
    SUB8_RETURN_IF_ERROR(file.write(length));
    SUB8_RETURN_IF_ERROR(file.write(text));
    out.shards_.push_back(std::move(file));
  }
  return out;
}

Status SafetensorsWriter::write(std::string_view name, std::span<const uint8_t> bytes) {
  const auto at = by_name_.find(std::string(name));
  if (at != by_name_.end() &&
      static_cast<int64_t>(bytes.size()) != entries_[at->second].spec.byte_size()) {
    return internal_error("tensor \"" + std::string(name) + "\" was declared with " +
                          std::to_string(entries_[at->second].spec.byte_size()) + " bytes, got " +
                          std::to_string(bytes.size()));
  }
  return write_part(name, 0, bytes);
}

Status SafetensorsWriter::write_part(std::string_view name, int64_t offset,
                                     std::span<const uint8_t> bytes) {
  const auto at = by_name_.find(std::string(name));
  if (at == by_name_.end()) {
    return internal_error("tensor \"" + std::string(name) + "\" was not declared to the writer");
  }
  Entry& entry = entries_[at->second];
  const auto size = static_cast<int64_t>(bytes.size());
  if (offset < 0 || offset > entry.spec.byte_size() || size > entry.spec.byte_size() - offset ||
      entry.written->fetch_add(size) + size > entry.spec.byte_size()) {
    return internal_error("tensor \"" + std::string(name) + "\": more bytes written than declared");
  }
  return shards_[entry.shard].write_at(entry.file_offset + static_cast<uint64_t>(offset),
                                       std::as_bytes(bytes));
}

Status SafetensorsWriter::finish() {
  for (const Entry& entry : entries_) {
    if (entry.written->load() != entry.spec.byte_size()) {
      return internal_error("tensor \"" + entry.spec.name +
                            "\": " + std::to_string(entry.written->load()) + " of " +
                            std::to_string(entry.spec.byte_size()) + " bytes were written");
    }
  }
  for (FileWriter& shard : shards_) SUB8_RETURN_IF_ERROR(shard.finish());
  if (shards_.size() == 1) return {};
  boost::json::object map;
  for (const auto& entry : entries_) map[entry.spec.name] = shard_names_[entry.shard];
  const boost::json::object index{{"metadata", {{"total_size", total_bytes_}}},
                                  {"weight_map", std::move(map)}};
  SUB8_ASSIGN_OR_RETURN(FileWriter file,
                        FileWriter::create(directory_ / "model.safetensors.index.json"));
  SUB8_RETURN_IF_ERROR(file.write(boost::json::serialize(index) + "\n"));
  return file.finish();
}

}  // namespace sub8::checkpoint
