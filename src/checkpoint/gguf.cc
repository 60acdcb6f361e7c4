#include "checkpoint/gguf.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/checked_math.h"

namespace sub8::checkpoint {
namespace fs = std::filesystem;
namespace {

constexpr int64_t kMaxDimensions = 4;
constexpr int kMaxArrayDepth = 4;
constexpr uint64_t kMaxArrayValues = 1 << 24;  // real vocabularies have well under a million
constexpr uint64_t kMaxKeyBytes = 65535;
constexpr uint64_t kMaxAlignment = 1 << 20;

// Metadata value types.
enum ValueType : uint32_t {
  kU8 = 0,
  kI8,
  kU16,
  kI16,
  kU32,
  kI32,
  kFloat32,
  kBool,
  kString,
  kArray,
  kU64,
  kI64,
  kFloat64
};

// Names of types that exist but are not decoded, for the refusal.
std::string_view foreign_type_name(uint32_t type) {
  switch (type) {
    case 9:
      return "Q8_1";
    case 15:
      return "Q8_K";
    case 16:
      return "IQ2_XXS";
    case 17:
      return "IQ2_XS";
    case 18:
      return "IQ3_XXS";
    case 19:
      return "IQ1_S";
    case 20:
      return "IQ4_NL";
    case 21:
      return "IQ3_S";
    case 22:
      return "IQ2_S";
    case 23:
      return "IQ4_XS";
    case 24:
      return "I8";
    case 25:
      return "I16";
    case 26:
      return "I32";
    case 27:
      return "I64";
    case 28:
      return "F64";
    case 29:
      return "IQ1_M";
    case 34:
      return "TQ1_0";
    case 35:
      return "TQ2_0";
    case 41:
      return "Q1_0";
    default:
      return {};
  }
}

bool is_supported(uint32_t type) { return ggml_block(static_cast<GgmlType>(type)).name != "?"; }

// Reads from the front of the file; every read is checked.
class Cursor {
 public:
  Cursor(std::span<const uint8_t> bytes, const std::string& source)
      : bytes_(bytes), source_(source) {}

  size_t position() const { return position_; }
  size_t left() const { return bytes_.size() - position_; }

  template <class T>
  Result<T> read(std::string_view what) {
    if (left() < sizeof(T)) return truncated(what, sizeof(T));
    T out;
    std::memcpy(&out, bytes_.data() + position_, sizeof(T));
    position_ += sizeof(T);
    return out;
  }

  Result<std::span<const uint8_t>> read_bytes(size_t size, std::string_view what) {
    if (left() < size) return truncated(what, size);
    const auto out = bytes_.subspan(position_, size);
    position_ += size;
    return out;
  }

  Result<std::string_view> read_string(std::string_view what) {
    SUB8_ASSIGN_OR_RETURN(const uint64_t size, read<uint64_t>(what));
    if (size > left()) return truncated(what, size);
    const std::string_view out(reinterpret_cast<const char*>(bytes_.data()) + position_,
                               static_cast<size_t>(size));
    position_ += static_cast<size_t>(size);
    return out;
  }

  Error truncated(std::string_view what, uint64_t need) const {
    return corrupt_data(source_ + ": " + std::string(what) + " at byte " +
                        std::to_string(position_) + " needs " + std::to_string(need) + " bytes, " +
                        std::to_string(left()) + " of " + std::to_string(bytes_.size()) +
                        " are left: the file is truncated or damaged");
  }

 private:
  std::span<const uint8_t> bytes_;
  const std::string& source_;
  size_t position_ = 0;
};

// The fewest bytes that a value of the type occupies; 0 for an unknown type.
uint64_t minimum_bytes(uint32_t type) {
  switch (type) {
    case kU8:
    case kI8:
    case kBool:
      return 1;
    case kU16:
    case kI16:
      return 2;
    case kU32:
    case kI32:
    case kFloat32:
      return 4;
    case kU64:
    case kI64:
    case kFloat64:
    case kString:
      return 8;
    case kArray:
      return 12;
    default:
      return 0;
  }
}

template <class Stored, class Wide>
Result<GgufValue> read_scalar(Cursor& in, std::string_view what) {
  SUB8_ASSIGN_OR_RETURN(const Stored stored, in.read<Stored>(what));
  return GgufValue{static_cast<Wide>(stored)};
}

Result<GgufValue> read_value(Cursor& in, uint32_t type, const std::string& what, int depth) {
  switch (type) {
    case kU8:
      return read_scalar<uint8_t, uint64_t>(in, what);
    case kI8:
      return read_scalar<int8_t, int64_t>(in, what);
    case kU16:
      return read_scalar<uint16_t, uint64_t>(in, what);
    case kI16:
      return read_scalar<int16_t, int64_t>(in, what);
    case kU32:
      return read_scalar<uint32_t, uint64_t>(in, what);
    case kI32:
      return read_scalar<int32_t, int64_t>(in, what);
    case kU64:
      return read_scalar<uint64_t, uint64_t>(in, what);
    case kI64:
      return read_scalar<int64_t, int64_t>(in, what);
    case kFloat32:
      return read_scalar<float, double>(in, what);
    case kFloat64:
      return read_scalar<double, double>(in, what);
    case kBool: {
      SUB8_ASSIGN_OR_RETURN(const uint8_t byte, in.read<uint8_t>(what));
      if (byte > 1) return corrupt_data(what + ": a boolean has the value " + std::to_string(byte));
      return GgufValue{byte == 1};
    }
    case kString: {
      SUB8_ASSIGN_OR_RETURN(const std::string_view text, in.read_string(what));
      return GgufValue{text};
    }
    case kArray: {
      if (depth >= kMaxArrayDepth) {
        return corrupt_data(what + ": arrays are nested more than " +
                            std::to_string(kMaxArrayDepth) + " deep");
      }
      GgufArray array;
      SUB8_ASSIGN_OR_RETURN(array.element_type, in.read<uint32_t>(what));
      SUB8_ASSIGN_OR_RETURN(const uint64_t count, in.read<uint64_t>(what));
      const uint64_t each = minimum_bytes(array.element_type);
      if (each == 0) {
        return corrupt_data(what + ": unknown value type " + std::to_string(array.element_type));
      }
      if (count > kMaxArrayValues) {
        return corrupt_data(what + ": an array claims " + std::to_string(count) +
                            " values, more than the limit of " + std::to_string(kMaxArrayValues));
      }
      if (count > in.left() / each) {
        return corrupt_data(what + ": an array claims " + std::to_string(count) + " values, only " +
                            std::to_string(in.left()) + " bytes are left");
      }
      array.size = static_cast<size_t>(count);
      if (array.element_type != kString && array.element_type != kArray) {
        SUB8_ASSIGN_OR_RETURN(array.scalars,
                              in.read_bytes(static_cast<size_t>(count * each), what));
        const auto bad = std::find_if(array.scalars.begin(), array.scalars.end(),
                                      [](uint8_t byte) { return byte > 1; });
        if (array.element_type == kBool && bad != array.scalars.end()) {
          return corrupt_data(what + ": a boolean has the value " + std::to_string(*bad));
        }
        return GgufValue{std::move(array)};
      }
      array.values.reserve(array.size);
      for (uint64_t i = 0; i < count; ++i) {
        SUB8_ASSIGN_OR_RETURN(GgufValue value, read_value(in, array.element_type, what, depth + 1));
        array.values.push_back(std::move(value));
      }
      return GgufValue{std::move(array)};
    }
    default:
      return corrupt_data(what + ": unknown value type " + std::to_string(type));
  }
}

// Reads from a view that is known to be long enough.
template <class Stored, class Wide>
GgufValue stored_scalar(std::span<const uint8_t> scalars, size_t i) {
  Stored out;
  std::memcpy(&out, scalars.data() + i * sizeof out, sizeof out);
  return {static_cast<Wide>(out)};
}

// A tensor entry; data is attached later, file_offset is still relative to the data section.
Result<GgufTensor> read_tensor_entry(Cursor& in, const std::string& source, uint64_t alignment) {
  GgufTensor out;
  SUB8_ASSIGN_OR_RETURN(const std::string_view name, in.read_string(source + ": a tensor name"));
  if (name.empty() || name.size() > kMaxKeyBytes) {
    return corrupt_data(source + ": a tensor name of " + std::to_string(name.size()) + " bytes");
  }
  out.name = name;
  const std::string where = source + ": tensor \"" + out.name.substr(0, 200) + "\"";
  SUB8_ASSIGN_OR_RETURN(const uint32_t dimensions, in.read<uint32_t>(where));
  if (dimensions > kMaxDimensions) {
    return corrupt_data(where + ": " + std::to_string(dimensions) + " dimensions, at most 4 exist");
  }
  std::optional<int64_t> elements = 1;
  for (uint32_t i = 0; i < dimensions; ++i) {
    SUB8_ASSIGN_OR_RETURN(const int64_t size, in.read<int64_t>(where));
    if (size < 0) return corrupt_data(where + ": a dimension is 2^63 or more");
    if (i == 0) out.cols = size;
    if (size != 1) out.dimensions = static_cast<int>(i) + 1;
    std::optional<int64_t> rows = i == 0 ? std::optional<int64_t>(1) : checked_mul(out.rows, size);
    if (elements) elements = checked_mul(*elements, size);
    if (!rows || !elements) return corrupt_data(where + ": its dimensions overflow 64 bits");
    out.rows = *rows;
  }
  SUB8_ASSIGN_OR_RETURN(const uint32_t type, in.read<uint32_t>(where));
  if (!is_supported(type)) {
    const std::string_view known = foreign_type_name(type);
    return unsupported(
        where + ": tensor type " + (known.empty() ? std::to_string(type) : std::string(known)) +
        " is not supported; sub8 reads F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, "
        "Q2_K to Q6_K, MXFP4 and NVFP4");
  }
  out.type = static_cast<GgmlType>(type);
  const GgmlBlock block = ggml_block(out.type);
  if (out.cols % block.elements != 0) {
    return corrupt_data(where + ": rows of " + std::to_string(out.cols) +
                        " elements are not whole " + std::string(block.name) + " blocks of " +
                        std::to_string(block.elements));
  }
  const std::optional<int64_t> bytes = checked_mul(*elements / block.elements, block.bytes);
  if (!bytes) return corrupt_data(where + ": its size overflows 64 bits");
  SUB8_ASSIGN_OR_RETURN(out.file_offset, in.read<uint64_t>(where));
  if (out.file_offset % alignment != 0) {
    return corrupt_data(where + ": offset " + std::to_string(out.file_offset) +
                        " is not a multiple of the alignment " + std::to_string(alignment));
  }
  return out;
}

uint64_t data_size(const GgufTensor& tensor) {
  return static_cast<uint64_t>(tensor.rows) * static_cast<uint64_t>(tensor.row_bytes());
}

// Points every tensor at its bytes; refuses what lies past the end or overlaps.
Status attach_data(std::vector<GgufTensor>& tensors, std::span<const uint8_t> bytes,
                   uint64_t data_begin, const std::string& source) {
  std::vector<const GgufTensor*> sorted;
  for (GgufTensor& tensor : tensors) {
    const auto end = checked_add(tensor.file_offset, data_size(tensor));
    const auto file_end = end ? checked_add(*end, data_begin) : std::nullopt;
    if (!file_end) {
      return corrupt_data(source + ": tensor \"" + tensor.name +
                          "\": its offset overflows 64 bits");
    }
    if (*file_end > bytes.size()) {
      return corrupt_data(source + ": tensor \"" + tensor.name + "\" ends at byte " +
                          std::to_string(*file_end) + ", the file has " +
                          std::to_string(bytes.size()) +
                          ": it is truncated (an interrupted download?) or damaged");
    }
    tensor.file_offset += data_begin;
    tensor.data = bytes.subspan(static_cast<size_t>(tensor.file_offset),
                                static_cast<size_t>(data_size(tensor)));
    if (!tensor.data.empty()) sorted.push_back(&tensor);
  }
  std::sort(sorted.begin(), sorted.end(), [](const GgufTensor* a, const GgufTensor* b) {
    return a->file_offset < b->file_offset;
  });
  for (size_t i = 1; i < sorted.size(); ++i) {
    if (sorted[i - 1]->file_offset + sorted[i - 1]->data.size() > sorted[i]->file_offset) {
      return corrupt_data(source + ": tensors \"" + sorted[i - 1]->name + "\" and \"" +
                          sorted[i]->name + "\" overlap");
    }
  }
  return {};
}

Status check_header(Cursor& in, const std::string& source) {
  SUB8_ASSIGN_OR_RETURN(const uint32_t magic, in.read<uint32_t>(source + ": the magic number"));
  if (magic != 0x46554747) {
    return corrupt_data(source + ": it does not begin with \"GGUF\": not a GGUF file");
  }
  SUB8_ASSIGN_OR_RETURN(const uint32_t version, in.read<uint32_t>(source + ": the version"));
  if (version == 0x02000000 || version == 0x03000000) {
    return unsupported(source + ": big-endian GGUF files are not supported");
  }
  if (version != 2 && version != 3) {
    return unsupported(source + ": GGUF version " + std::to_string(version) +
                       " is not supported; sub8 reads versions 2 and 3");
  }
  return {};
}

}  // namespace

GgufValue GgufArray::at(size_t i) const {
  switch (element_type) {
    case kU8:
      return stored_scalar<uint8_t, uint64_t>(scalars, i);
    case kI8:
      return stored_scalar<int8_t, int64_t>(scalars, i);
    case kU16:
      return stored_scalar<uint16_t, uint64_t>(scalars, i);
    case kI16:
      return stored_scalar<int16_t, int64_t>(scalars, i);
    case kU32:
      return stored_scalar<uint32_t, uint64_t>(scalars, i);
    case kI32:
      return stored_scalar<int32_t, int64_t>(scalars, i);
    case kU64:
      return stored_scalar<uint64_t, uint64_t>(scalars, i);
    case kI64:
      return stored_scalar<int64_t, int64_t>(scalars, i);
    case kFloat32:
      return stored_scalar<float, double>(scalars, i);
    case kFloat64:
      return stored_scalar<double, double>(scalars, i);
    case kBool:
      return {scalars[i] == 1};
    default:
      return values[i];
  }
}

Result<GgufFile> GgufFile::parse(std::span<const uint8_t> bytes, std::string source,
                                 std::shared_ptr<const void> owner) {
  GgufFile out;
  out.source_ = std::move(source);
  out.owner_ = std::move(owner);
  Cursor in(bytes, out.source_);
  SUB8_RETURN_IF_ERROR(check_header(in, out.source_));
  SUB8_ASSIGN_OR_RETURN(const uint64_t tensor_count, in.read<uint64_t>("the tensor count"));
  SUB8_ASSIGN_OR_RETURN(const uint64_t value_count, in.read<uint64_t>("the metadata count"));
  // A tensor entry has at least 8+4+4+8 bytes, a metadata entry 8+4+1.
  if (tensor_count > in.left() / 24 || value_count > in.left() / 13) {
    return corrupt_data(out.source_ + ": the header claims " + std::to_string(tensor_count) +
                        " tensors and " + std::to_string(value_count) + " metadata entries, " +
                        std::to_string(in.left()) + " bytes are left");
  }
  for (uint64_t i = 0; i < value_count; ++i) {
    SUB8_ASSIGN_OR_RETURN(const std::string_view key,
                          in.read_string(out.source_ + ": metadata key " + std::to_string(i)));
    if (key.empty() || key.size() > kMaxKeyBytes) {
      return corrupt_data(out.source_ + ": a metadata key of " + std::to_string(key.size()) +
                          " bytes");
    }
    const std::string what = out.source_ + ": metadata \"" + std::string(key.substr(0, 200)) + "\"";
    SUB8_ASSIGN_OR_RETURN(const uint32_t type, in.read<uint32_t>(what));
    SUB8_ASSIGN_OR_RETURN(GgufValue value, read_value(in, type, what, 0));
    if (!out.metadata_.emplace(std::string(key), std::move(value)).second) {
      return corrupt_data(what + " occurs twice");
    }
  }
  SUB8_ASSIGN_OR_RETURN(const auto alignment_value,
                        out.get_int("general.alignment", 1, kMaxAlignment));
  const auto alignment = static_cast<uint64_t>(alignment_value.value_or(32));
  if (alignment % 8 != 0 || (alignment & (alignment - 1)) != 0) {
    return corrupt_data(out.source_ + ": general.alignment is " + std::to_string(alignment) +
                        ", expected a power of two of at least 8");
  }
  for (uint64_t i = 0; i < tensor_count; ++i) {
    SUB8_ASSIGN_OR_RETURN(GgufTensor tensor, read_tensor_entry(in, out.source_, alignment));
    if (!out.by_name_.emplace(tensor.name, out.tensors_.size()).second) {
      return corrupt_data(out.source_ + ": tensor \"" + tensor.name + "\" occurs twice");
    }
    out.tensors_.push_back(std::move(tensor));
  }
  const uint64_t data_begin = round_up<uint64_t>(in.position(), alignment);
  SUB8_RETURN_IF_ERROR(attach_data(out.tensors_, bytes, data_begin, out.source_));
  return out;
}

Result<GgufFile> GgufFile::open(const fs::path& path) {
  SUB8_ASSIGN_OR_RETURN(const auto file, MappedFile::open(path));
  const std::span<const uint8_t> bytes(reinterpret_cast<const uint8_t*>(file->bytes().data()),
                                       file->bytes().size());
  SUB8_ASSIGN_OR_RETURN(GgufFile out, parse(bytes, path.string(), file));
  out.file_ = file;
  return out;
}

const GgufTensor* GgufFile::find(std::string_view name) const {
  const auto at = by_name_.find(std::string(name));
  return at == by_name_.end() ? nullptr : &tensors_[at->second];
}

}  // namespace sub8::checkpoint
