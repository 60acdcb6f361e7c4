// The small text files of a model directory.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace sub8::checkpoint {

// False only where nothing has that name. A broken link, or what may not be looked at, is there: an
// error when it is opened, never an absent file.
bool is_present(const std::filesystem::path& path);

// The content of a regular file; anything else, such as a FIFO that would wait for a writer, is an
// error.
Result<std::string> read_model_file(const std::filesystem::path& path);

// The same, or "" where nothing has that name. A JSON file that is there must not be empty.
Result<std::string> read_optional_model_file(const std::filesystem::path& path);

// The files of a directory with this extension (".gguf"), sorted. A directory that cannot be listed
// is an error.
Result<std::vector<std::filesystem::path>> files_with_extension(
    const std::filesystem::path& directory, std::string_view extension);

}  // namespace sub8::checkpoint
