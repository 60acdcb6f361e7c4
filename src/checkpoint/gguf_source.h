// A GGUF file as a WeightSource.
#pragma once

#include <filesystem>
#include <memory>

#include "base/error.h"
#include "checkpoint/weight_source.h"

namespace sub8::checkpoint {

Result<std::unique_ptr<WeightSource>> open_gguf(const std::filesystem::path& path);

}  // namespace sub8::checkpoint
