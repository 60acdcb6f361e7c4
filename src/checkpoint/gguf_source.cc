#include "checkpoint/gguf_source.h"

#include <cmath>
#include <cstring>
#include <map>
#include <set>

#include "base/aligned_buffer.h"
#include "checkpoint/gguf_model.h"
#include "checkpoint/model_layout.h"
#include "checkpoint/token_ids.h"
#include "tensor/decode.h"

namespace sub8::checkpoint {
namespace fs = std::filesystem;
namespace {

using format::DType;
using format::WeightFormat;

struct Entry {
  const GgufTensor* tensor = nullptr;
  int64_t rows = 0;
  int64_t cols = 1;
  int64_t interleaved_head_dim = 0;  // > 0: rows are stored interleaved (interleaved_row)
  float tensor_scale = 1.0F;         // NVFP4's side tensor ".scale"
  bool minus_one = false;            // Gemma norms: the file stores 1 + weight
};

bool is_dense(GgmlType type) {
  return type == GgmlType::kF32 || type == GgmlType::kF16 || type == GgmlType::kBF16;
}
bool is_fp4(GgmlType type) { return type == GgmlType::kMXFP4 || type == GgmlType::kNVFP4; }

WeightFormat format_of(GgmlType type) {
  switch (type) {
    case GgmlType::kF32:
      return format::dense_format(DType::kF32);
    case GgmlType::kF16:
      return format::dense_format(DType::kF16);
    case GgmlType::kMXFP4:
      return format::mx_format(format::kE2M1);
    case GgmlType::kNVFP4:
      return format::nvfp4_format();
    default:
      return format::dense_format(DType::kBF16);
  }
}

class GgufSource final : public WeightSource {
 public:
  static Result<std::unique_ptr<WeightSource>> open(const fs::path& path);

  const ModelConfig& config() const override { return config_; }
  const GgufTokenizer* gguf_tokenizer() const override { return &tokenizer_; }
  bool tied_head() const override { return config_.tie_word_embeddings; }
  Result<StoredMatrix> matrix(std::string_view module, DType decoded) const override;
  Status decode_rows(std::string_view module, int64_t row, int64_t count,
                     std::span<float> out) const override;
  Result<std::vector<float>> vector(std::string_view name) const override;
  void release(std::string_view module) const override;

 private:
  Status resolve(const ExpectedWeight& expected);
  Status take_side_scales(const std::string& base, Entry& entry, WeightInfo& info);
  Result<std::optional<float>> side_scale(const std::string& name);
  void describe_types();
  Result<const Entry*> entry(std::string_view name, bool matrix) const;
  Result<StoredMatrix> repack_fp4(const Entry& entry, std::string_view name) const;
  Status decode_checked(const Entry& entry, int64_t row, int64_t count, float* out) const;

  GgufFile file_;
  ModelConfig config_;
  GgufTokenizer tokenizer_;
  std::set<std::string, std::less<>> used_;
  std::map<std::string, Entry, std::less<>> entries_;
};

Result<std::unique_ptr<WeightSource>> GgufSource::open(const fs::path& path) {
  auto out = std::make_unique<GgufSource>();
  out->path_ = path;
  SUB8_ASSIGN_OR_RETURN(out->file_, GgufFile::open(path));
  SUB8_ASSIGN_OR_RETURN(out->config_, gguf_model_config(out->file_));
  SUB8_ASSIGN_OR_RETURN(out->tokenizer_, sub8::checkpoint::gguf_tokenizer(out->file_));
  SUB8_ASSIGN_OR_RETURN(out->generation_config_,
                        gguf_generation_config(out->file_, out->tokenizer_));
  SUB8_RETURN_IF_ERROR(
      check_token_ids(out->file_.source(), out->generation_config_, out->config_.vocab_size));
  out->texts_.config = model_config_json(out->config_, "bfloat16");
  out->texts_.generation_config = generation_config_json(out->generation_config_);
  out->texts_.tokenizer_config = tokenizer_config_json(out->tokenizer_, out->config_.max_positions);
  out->texts_.chat_template = out->tokenizer_.chat_template;
  out->used_.emplace("rope_freqs.weight");
  for (const ExpectedWeight& expected : expected_weights(out->config_, out->tied_head())) {
    SUB8_RETURN_IF_ERROR(out->resolve(expected));
  }
  for (const GgufTensor& tensor : out->file_.tensors()) {
    if (out->used_.contains(tensor.name)) continue;
    const std::string base = tensor.name.substr(0, tensor.name.rfind('.'));
    if (out->used_.contains(base + ".weight")) {
      return unsupported(out->file_.source() + ": tensor \"" + tensor.name +
                         "\" is not something that sub8 understands, and leaving it out would "
                         "change the result");
    }
    SUB8_RETURN_IF_ERROR(
        check_unused_in_layers(tensor.name, "blk.", out->config_,
                               out->file_.source() + ": tensor \"" + tensor.name + "\""));
    out->ignored_.push_back(tensor.name + ": not part of the text model");
  }
  out->describe_types();
  return std::unique_ptr<WeightSource>(std::move(out));
}

// "gguf Q4_1": the type that holds most of the bytes.
void GgufSource::describe_types() {
  std::map<std::string, int64_t> bytes;
  for (const WeightInfo& info : weights()) bytes[info.stored_type] += info.stored_bytes;
  std::string most;
  for (const auto& [type, size] : bytes) {
    if (most.empty() || size > bytes[most]) most = type;
  }
  if (most != "F32" && most != "F16" && most != "BF16") quantization_ = "gguf " + most;
}

Result<std::optional<float>> GgufSource::side_scale(const std::string& name) {
  const GgufTensor* tensor = file_.find(name);
  if (tensor == nullptr) return std::optional<float>();
  used_.insert(name);
  if (tensor->type != GgmlType::kF32 || tensor->rows * tensor->cols != 1) {
    return corrupt_data(file_.source() + ": tensor \"" + name + "\": expected one F32 value");
  }
  float value = 0;
  std::memcpy(&value, tensor->data.data(), 4);
  if (!std::isfinite(value) || value < 0) {
    return corrupt_data(file_.source() + ": tensor \"" + name + "\": a scale of " +
                        std::to_string(value));
  }
  return std::optional<float>(value);
}

Status GgufSource::take_side_scales(const std::string& base, Entry& entry, WeightInfo& info) {
  SUB8_ASSIGN_OR_RETURN(const auto scale, side_scale(base + ".scale"));
  SUB8_ASSIGN_OR_RETURN(info.input_scale, side_scale(base + ".input_scale"));
  if (info.input_scale && *info.input_scale < format::power_of_two(-117)) {
    return corrupt_data(file_.source() + ": tensor \"" + base + ".input_scale\": a scale of " +
                        std::to_string(*info.input_scale));
  }
  if (scale && entry.tensor->type != GgmlType::kNVFP4 && *scale != 1.0F) {
    return unsupported(file_.source() + ": tensor \"" + base + ".scale\" beside a " +
                       std::string(ggml_block(entry.tensor->type).name) +
                       " weight is not supported");
  }
  entry.tensor_scale = scale.value_or(1.0F);
  return {};
}

Status GgufSource::resolve(const ExpectedWeight& expected) {
  const bool is_vector = expected.kind == WeightKind::kVector;
  const size_t dot = expected.name.rfind('.');
  const std::string module = is_vector ? expected.name.substr(0, dot) : expected.name;
  const std::string suffix = is_vector ? expected.name.substr(dot) : ".weight";
  const std::string base = gguf_name(config_.architecture, module);
  Entry entry;
  entry.rows = expected.rows;
  entry.cols = expected.cols;
  entry.tensor = file_.find(base + suffix);
  if (entry.tensor == nullptr) {
    return corrupt_data(file_.source() + ": tensor \"" + base + suffix + "\" (" + expected.name +
                        ") is missing");
  }
  used_.insert(base + suffix);
  const GgufTensor& tensor = *entry.tensor;
  const std::string where = file_.source() + ": tensor \"" + tensor.name + "\"";
  if (tensor.dimensions > (is_vector ? 1 : 2)) {
    return corrupt_data(where + " has " + std::to_string(tensor.dimensions) +
                        " dimensions, expected " + (is_vector ? "1" : "2"));
  }
  const bool fits = is_vector ? tensor.rows == 1 && tensor.cols == expected.rows
                              : tensor.rows == expected.rows && tensor.cols == expected.cols;
  if (!fits) {
    return corrupt_data(
        where + " has " + std::to_string(tensor.rows) + " rows of " + std::to_string(tensor.cols) +
        ", expected " + std::to_string(is_vector ? 1 : expected.rows) + " of " +
        std::to_string(is_vector ? expected.rows : expected.cols) + " by the metadata");
  }
  if (config_.architecture == Architecture::kLlama &&
      (module.ends_with(".q_proj") || module.ends_with(".k_proj"))) {
    entry.interleaved_head_dim = config_.head_dim;
  }
  entry.minus_one = is_vector && suffix == ".weight" && config_.norm_weight_plus_one;
  WeightInfo info;
  info.name = expected.name;
  info.kind = expected.kind;
  info.rows = expected.rows;
  info.cols = expected.cols;
  info.format = is_vector ? format::dense_format(DType::kF32) : format_of(tensor.type);
  info.stored_type = ggml_block(tensor.type).name;
  info.stored_bytes = static_cast<int64_t>(tensor.data.size());
  info.file = file_.source();
  if (!is_vector) SUB8_RETURN_IF_ERROR(take_side_scales(base, entry, info));
  add_weight(std::move(info));
  entries_.emplace(expected.name, entry);
  return {};
}

Result<const Entry*> GgufSource::entry(std::string_view name, bool matrix) const {
  const std::string own =
      name == "lm_head" && tied_head() ? embedding_module(config_) : std::string(name);
  const auto at = entries_.find(own);
  const WeightInfo* info = find(own);
  if (at == entries_.end() || (info->kind != WeightKind::kVector) != matrix) {
    return not_found(file_.source() + ": no " + (matrix ? "matrix" : "vector") + " named \"" +
                     std::string(name) + "\"");
  }
  return &at->second;
}

// Rows in canonical order, exact; refuses NaN and infinity.
Status GgufSource::decode_checked(const Entry& entry, int64_t row, int64_t count,
                                  float* out) const {
  const GgufTensor& tensor = *entry.tensor;
  const int64_t row_bytes = tensor.row_bytes();
  for (int64_t r = row; r < row + count; ++r) {
    const int64_t stored =
        entry.interleaved_head_dim > 0 ? interleaved_row(r, entry.interleaved_head_dim) : r;
    float* to = out + (r - row) * entry.cols;
    decode_ggml(tensor.type, tensor.data.data() + stored * row_bytes, entry.cols, to);
    for (int64_t k = 0; k < entry.cols; ++k) {
      if (!std::isfinite(to[k])) {
        return corrupt_data(file_.source() + ": tensor \"" + tensor.name + "\" has " +
                            (std::isnan(to[k]) ? "NaN" : "an infinity") + " at row " +
                            std::to_string(stored) + ", column " + std::to_string(k));
      }
    }
  }
  return {};
}

// MXFP4 and NVFP4 keep their codes and scales; only the order changes: a GGUF block has element j
// and j + half in one byte, the storage form 2j and 2j + 1.
Result<StoredMatrix> GgufSource::repack_fp4(const Entry& entry, std::string_view name) const {
  const GgufTensor& tensor = *entry.tensor;
  const bool nvfp4 = tensor.type == GgmlType::kNVFP4;
  StoredMatrix out;
  out.format = format_of(tensor.type);
  out.rows = entry.rows;
  out.cols = entry.cols;
  if (nvfp4) out.outer_scales = {entry.tensor_scale};
  const int64_t code_bytes = entry.cols / 2;
  const int64_t groups = out.format.groups(entry.cols);
  SUB8_ASSIGN_OR_RETURN(auto buffer, AlignedBuffer<uint8_t>::uninitialized(
                                         static_cast<size_t>(entry.rows * (code_bytes + groups))));
  auto owner = std::make_shared<AlignedBuffer<uint8_t>>(std::move(buffer));
  uint8_t* const codes = owner->data();
  uint8_t* const scales = codes + entry.rows * code_bytes;
  const GgmlBlock block = ggml_block(tensor.type);
  const int scales_per_block = nvfp4 ? 4 : 1;
  const int half = nvfp4 ? 8 : 16;  // bytes of one scale's codes
  for (int64_t r = 0; r < entry.rows; ++r) {
    const int64_t stored =
        entry.interleaved_head_dim > 0 ? interleaved_row(r, entry.interleaved_head_dim) : r;
    const uint8_t* from = tensor.data.data() + stored * tensor.row_bytes();
    uint8_t* to = codes + r * code_bytes;
    uint8_t* scale = scales + r * groups;
    for (int64_t b = 0; b < entry.cols / block.elements; ++b, from += block.bytes) {
      for (int s = 0; s < scales_per_block; ++s, to += half) {
        // NVFP4 in a GGUF: 0x7f stands for zero.
        *scale++ = nvfp4 && from[s] == 0x7f ? 0 : from[s];
        const uint8_t* qs = from + scales_per_block + s * half;
        const auto code = [&](int j) { return j < half ? qs[j] & 15 : qs[j - half] >> 4; };
        for (int j = 0; j < half; ++j) {
          to[j] = static_cast<uint8_t>(code(2 * j) | code(2 * j + 1) << 4);
        }
      }
    }
  }
  out.codes = {codes, static_cast<size_t>(entry.rows * code_bytes)};
  out.block_scales = {scales, static_cast<size_t>(entry.rows * groups)};
  out.owner = owner;
  SUB8_RETURN_IF_ERROR(check_finite(
      out, 0, out.rows,
      file_.source() + ": tensor \"" + tensor.name + "\" (module " + std::string(name) + ")"));
  return out;
}

Result<StoredMatrix> GgufSource::matrix(std::string_view module, DType decoded) const {
  SUB8_ASSIGN_OR_RETURN(const Entry* const found, entry(module, true));
  const GgufTensor& tensor = *found->tensor;
  if (is_fp4(tensor.type)) return repack_fp4(*found, module);
  if (decoded != DType::kBF16 && decoded != DType::kF32) {
    return invalid_argument("a GGUF matrix is decoded to BF16 or F32");
  }
  StoredMatrix out;
  out.rows = found->rows;
  out.cols = found->cols;
  if (is_dense(tensor.type) && found->interleaved_head_dim == 0) {
    out.format = format_of(tensor.type);
    out.codes = tensor.data;
    out.owner = file_.owner();
    SUB8_RETURN_IF_ERROR(
        check_finite(out, 0, out.rows, file_.source() + ": tensor \"" + tensor.name + "\""));
    return out;
  }
  // Dense types that only need their rows moved keep their values: F32 stays F32.
  const DType type = is_dense(tensor.type) ? format_of(tensor.type).dtype : decoded;
  out.format = format::dense_format(type);
  const auto row_bytes = static_cast<size_t>(out.format.row_bytes(out.cols));
  SUB8_ASSIGN_OR_RETURN(auto buffer, AlignedBuffer<uint8_t>::uninitialized(
                                         static_cast<size_t>(out.rows) * row_bytes));
  auto owner = std::make_shared<AlignedBuffer<uint8_t>>(std::move(buffer));
  std::vector<float> values(static_cast<size_t>(out.cols));
  std::vector<uint16_t> halves(type == DType::kF32 ? 0 : values.size());
  for (int64_t r = 0; r < out.rows; ++r) {
    SUB8_RETURN_IF_ERROR(decode_checked(*found, r, 1, values.data()));
    for (size_t k = 0; k < halves.size(); ++k) {
      halves[k] =
          type == DType::kF16 ? format::float_to_f16(values[k]) : format::float_to_bf16(values[k]);
    }
    uint8_t* to = owner->data() + static_cast<size_t>(r) * row_bytes;
    if (type == DType::kF32) {
      std::memcpy(to, values.data(), row_bytes);
    } else {
      std::memcpy(to, halves.data(), row_bytes);
    }
  }
  out.codes = owner->span();
  out.owner = owner;
  return out;
}

Status GgufSource::decode_rows(std::string_view module, int64_t row, int64_t count,
                               std::span<float> out) const {
  SUB8_ASSIGN_OR_RETURN(const Entry* const found, entry(module, true));
  if (row < 0 || count < 0 || count > found->rows - row ||
      static_cast<int64_t>(out.size()) != count * found->cols) {
    return invalid_argument("rows [" + std::to_string(row) + ", +" + std::to_string(count) +
                            ") of \"" + std::string(module) + "\" with " +
                            std::to_string(found->rows) + " rows");
  }
  if (found->tensor->type == GgmlType::kNVFP4) {
    // Through the storage form's row, so that the side scale enters in the normative order.
    Entry rows = *found;
    GgufTensor part = *found->tensor;
    std::vector<uint8_t> gathered;
    for (int64_t r = row; r < row + count; ++r) {
      const int64_t stored =
          found->interleaved_head_dim > 0 ? interleaved_row(r, found->interleaved_head_dim) : r;
      const auto at = part.data.begin() + stored * part.row_bytes();
      gathered.insert(gathered.end(), at, at + part.row_bytes());
    }
    part.data = gathered;
    part.rows = count;
    rows.tensor = &part;
    rows.rows = count;
    rows.interleaved_head_dim = 0;
    SUB8_ASSIGN_OR_RETURN(const StoredMatrix matrix, repack_fp4(rows, module));
    sub8::decode_rows(matrix, 0, count, out);
    return {};
  }
  return decode_checked(*found, row, count, out.data());
}

Result<std::vector<float>> GgufSource::vector(std::string_view name) const {
  SUB8_ASSIGN_OR_RETURN(const Entry* const found, entry(name, false));
  Entry flat = *found;
  flat.rows = 1;
  flat.cols = found->rows;
  flat.interleaved_head_dim = 0;
  std::vector<float> stored(static_cast<size_t>(found->rows));
  SUB8_RETURN_IF_ERROR(decode_checked(flat, 0, 1, stored.data()));
  std::vector<float> out(stored.size());
  for (size_t i = 0; i < out.size(); ++i) {
    const size_t from = found->interleaved_head_dim > 0
                            ? static_cast<size_t>(interleaved_row(static_cast<int64_t>(i),
                                                                  found->interleaved_head_dim))
                            : i;
    out[i] = found->minus_one ? stored[from] - 1.0F : stored[from];
  }
  return out;
}

void GgufSource::release(std::string_view module) const {
  const auto found = entry(module, true);
  if (!found.ok() || !file_.file()) return;
  file_.file()->release(static_cast<size_t>((*found)->tensor->file_offset),
                        (*found)->tensor->data.size());
}

}  // namespace

Result<std::unique_ptr<WeightSource>> open_gguf(const fs::path& path) {
  return GgufSource::open(path);
}

}  // namespace sub8::checkpoint
