// Files: mapped input, whole-file input, and output that appears whole or not at all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

#include "base/error.h"

namespace sub8 {

// A read-only mapping of a whole regular file. The size is fixed when it is opened; shared so that
// tensors can keep it alive.
class MappedFile {
 public:
  static Result<std::shared_ptr<const MappedFile>> open(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  const std::filesystem::path& path() const { return path_; }

  // Tells the kernel that [offset, offset+size) will not be read again soon, so that its pages may
  // go.
  void release(size_t offset, size_t size) const;

 private:
  MappedFile() = default;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
  std::filesystem::path path_;
};

// The content of a file of at most `limit` bytes. "-" is not special.
Result<std::string> read_file(const std::filesystem::path& path, size_t limit = size_t{256} << 20);

// `path`, links followed, holds the old or the new content; a device or pipe is written in place.
Status write_file_atomic(const std::filesystem::path& path, std::string_view content);

// A sequential file writer that reports every failure (a full disk too) as an Error.
class FileWriter {
 public:
  static Result<FileWriter> create(const std::filesystem::path& path);
  FileWriter(FileWriter&& other) noexcept;
  FileWriter& operator=(FileWriter&& other) noexcept;
  ~FileWriter();

  Status write(std::span<const std::byte> bytes);
  Status write(std::string_view text);
  // Overwrites bytes that were already written; does not move the end.
  Status write_at(uint64_t offset, std::span<const std::byte> bytes);
  uint64_t size() const { return size_; }
  // Flushes to the disk and closes. A writer that is destroyed without it leaves an unfinished
  // file.
  Status finish();

 private:
  FileWriter() = default;
  int fd_ = -1;
  uint64_t size_ = 0;
  std::filesystem::path path_;
};

// A directory that is filled under a temporary name beside its target and renamed when complete.
// Destroyed before commit(), it removes what was written. A lock on the temporary name keeps two
// writers of one target apart; what a killed writer left behind is removed by the next one.
class OutputDirectory {
 public:
  // Fails with invalid_argument when `target` exists and `overwrite` is false, and names
  // --overwrite.
  static Result<OutputDirectory> create(const std::filesystem::path& target, bool overwrite);
  OutputDirectory(OutputDirectory&& other) noexcept;
  OutputDirectory& operator=(OutputDirectory&& other) noexcept;
  ~OutputDirectory();

  // Where to write until commit().
  const std::filesystem::path& path() const { return working_; }
  const std::filesystem::path& target() const { return target_; }
  Status commit();

 private:
  OutputDirectory() = default;
  void discard();
  std::filesystem::path target_;
  std::filesystem::path working_;
  std::filesystem::path lock_;
  int lock_fd_ = -1;
  bool overwrite_ = false;
};

}  // namespace sub8
