#include "checkpoint/model_file.h"

#include <algorithm>
#include <system_error>

#include "base/file.h"

namespace sub8::checkpoint {
namespace fs = std::filesystem;

constexpr size_t kMaxTextBytes = size_t{256} << 20;

bool is_present(const fs::path& path) {
  std::error_code ignored;
  return fs::symlink_status(path, ignored).type() != fs::file_type::not_found;
}

Result<std::string> read_model_file(const fs::path& path) {
  SUB8_ASSIGN_OR_RETURN(const auto file, MappedFile::open(path));
  const auto bytes = file->bytes();
  if (bytes.size() > kMaxTextBytes) {
    return invalid_argument("'" + path.string() + "' has " + std::to_string(bytes.size()) +
                            " bytes, more than the limit of " + std::to_string(kMaxTextBytes) +
                            " for this kind of file");
  }
  if (bytes.empty()) return std::string();
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

Result<std::vector<fs::path>> files_with_extension(const fs::path& directory,
                                                   std::string_view extension) {
  std::vector<fs::path> out;
  std::error_code error;
  for (fs::directory_iterator at(directory, error), end; !error && at != end; at.increment(error)) {
    if (at->path().extension() == extension) out.push_back(at->path());
  }
  if (error) {
    return invalid_argument("could not list the directory '" + directory.string() +
                            "': " + error.message());
  }
  std::sort(out.begin(), out.end());
  return out;
}

Result<std::string> read_optional_model_file(const fs::path& path) {
  if (!is_present(path)) return std::string();
  SUB8_ASSIGN_OR_RETURN(std::string text, read_model_file(path));
  if (text.empty() && path.extension() == ".json") {
    return corrupt_data("'" + path.string() +
                        "' is empty, expected a JSON object (an interrupted download?); remove it "
                        "or download it again");
  }
  return text;
}

}  // namespace sub8::checkpoint
