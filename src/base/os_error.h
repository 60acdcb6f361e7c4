// A failed system call as an Error: shared by the files of this folder.
#pragma once

#include <filesystem>
#include <string>

#include "base/error.h"

namespace sub8 {

// Names the path and what was attempted; `number` is the errno.
Error os_error(const std::string& action, const std::filesystem::path& path, int number);

}  // namespace sub8
