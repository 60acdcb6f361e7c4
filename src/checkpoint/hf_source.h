// A Hugging Face directory as a WeightSource.
#pragma once

#include <filesystem>
#include <memory>

#include "base/error.h"
#include "checkpoint/weight_source.h"

namespace sub8::checkpoint {

Result<std::unique_ptr<WeightSource>> open_hf_directory(const std::filesystem::path& directory);

}  // namespace sub8::checkpoint
