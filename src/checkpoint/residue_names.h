// Names and shapes inside the residue files, for their reader and their writer.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "format/dtype.h"
#include "tensor/stored_matrix.h"

namespace sub8::checkpoint {

inline constexpr int64_t kResidueFormatVersion = 2;
inline constexpr std::string_view kResidueIdKey = "residue_id";  // in the tensors' metadata

inline std::filesystem::path residue_json_path(const std::filesystem::path& model_directory) {
  return model_directory / "sub8" / "residue.json";
}
inline std::filesystem::path residue_tensors_path(const std::filesystem::path& model_directory) {
  return model_directory / "sub8" / "residue.safetensors";
}

inline constexpr std::string_view kKvScaleNames[] = {"kv_cache.k_scale", "kv_cache.v_scale"};

// By place in kSelectRatios; the digits are thousandths.
inline constexpr std::string_view kRatioDigits[] = {"125", "250", "500"};
inline std::string mask_name(size_t ratio) { return "mask_" + std::string(kRatioDigits[ratio]); }
inline std::string extension_name(size_t ratio) {
  return "extension_" + std::string(kRatioDigits[ratio]);
}

inline format::DType block_scale_type(const format::WeightFormat& f) {
  return f.block_scale == format::BlockScale::kE4M3 ? format::DType::kF8E4M3 : format::DType::kU8;
}
inline std::vector<int64_t> outer_scale_shape(const StoredMatrix& m) {
  return m.format.outer_scale == format::OuterScale::kChannel ? std::vector<int64_t>{m.rows}
                                                              : std::vector<int64_t>{};
}

}  // namespace sub8::checkpoint
