#include "base/file.h"

#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace sub8 {
namespace fs = std::filesystem;
namespace {

// The errno of a failed call, as an Error that names the path and what was attempted.
Error os_error(const std::string& action, const fs::path& path, int number) {
  const std::string text = action + " '" + path.string() + "': " + std::strerror(number);
  switch (number) {
    case ENOENT:
    case ENOTDIR:
      return not_found(text);
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
    case ENOMEM:
    case EMFILE:
    case ENFILE:
      return resource_exhausted(text);
    default:
      return invalid_argument(text);
  }
}

class FileDescriptor {
 public:
  explicit FileDescriptor(int fd) : fd_(fd) {}
  ~FileDescriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

// Opens and locks `path`. The holder unlinks it when done, so the lock counts only if the name
// still leads to this file.
Result<int> lock_exclusively(const fs::path& path, const fs::path& target) {
  while (true) {
    const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (fd < 0) return os_error("could not create a lock beside the output,", path, errno);
    if (::flock(fd, LOCK_EX | LOCK_NB) != 0) {
      ::close(fd);
      return invalid_argument("another sub8 process is writing '" + target.string() +
                              "'; wait for it or choose another output");
    }
    struct stat held {};
    struct stat named {};
    if (::fstat(fd, &held) == 0 && ::stat(path.c_str(), &named) == 0 && held.st_ino == named.st_ino)
      return fd;
    ::close(fd);
  }
}

Status sync_directory(const fs::path& path) {
  FileDescriptor fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (fd.get() < 0) return os_error("could not open directory", path, errno);
  // Some file systems refuse fsync on a directory; the rename is then as durable as they make it.
  if (::fsync(fd.get()) != 0 && errno != EINVAL)
    return os_error("could not flush directory", path, errno);
  return {};
}

}  // namespace

Result<std::shared_ptr<const MappedFile>> MappedFile::open(const fs::path& path) {
  FileDescriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (fd.get() < 0) return os_error("could not open", path, errno);
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) return os_error("could not read the size of", path, errno);
  if (!S_ISREG(info.st_mode)) {
    return invalid_argument("'" + path.string() + "' is not a regular file");
  }
  std::shared_ptr<MappedFile> file(new MappedFile);
  file->path_ = path;
  file->size_ = static_cast<size_t>(info.st_size);
  if (file->size_ != 0) {
    void* data = ::mmap(nullptr, file->size_, PROT_READ, MAP_SHARED, fd.get(), 0);
    if (data == MAP_FAILED) return os_error("could not map", path, errno);
    file->data_ = static_cast<const std::byte*>(data);
  }
  return std::shared_ptr<const MappedFile>(std::move(file));
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

void MappedFile::release(size_t offset, size_t size) const {
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  const size_t begin = (offset + page - 1) / page * page;
  const size_t end = (offset + size) / page * page;
  if (begin < end && end <= size_) {
    ::madvise(const_cast<std::byte*>(data_) + begin, end - begin, MADV_DONTNEED);
  }
}

Result<std::string> read_file(const fs::path& path, size_t limit) {
  FileDescriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (fd.get() < 0) return os_error("could not open", path, errno);
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) return os_error("could not read the size of", path, errno);
  if (S_ISDIR(info.st_mode))
    return invalid_argument("'" + path.string() + "' is a directory, not a file");
  std::string out;
  std::vector<char> chunk(1 << 16);
  while (true) {
    const ssize_t got = ::read(fd.get(), chunk.data(), chunk.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return os_error("could not read", path, errno);
    if (got == 0) return out;
    if (out.size() + static_cast<size_t>(got) > limit) {
      return invalid_argument("'" + path.string() + "' is larger than the limit of " +
                              std::to_string(limit) + " bytes for this kind of file");
    }
    out.append(chunk.data(), static_cast<size_t>(got));
  }
}

Status write_file_atomic(const fs::path& path, std::string_view content) {
  fs::path temporary = path;
  temporary += ".partial-" + std::to_string(::getpid());
  Status status;
  {
    Result<FileWriter> writer = FileWriter::create(temporary);
    if (!writer.ok()) return std::move(writer).error();
    status = writer->write(content);
    if (status.ok()) status = writer->finish();
  }
  if (status.ok() && ::rename(temporary.c_str(), path.c_str()) != 0) {
    status = os_error("could not move the finished file to", path, errno);
  }
  if (!status.ok()) ::unlink(temporary.c_str());
  return status;
}

Result<FileWriter> FileWriter::create(const fs::path& path) {
  FileWriter out;
  out.fd_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (out.fd_ < 0) return os_error("could not create", path, errno);
  out.path_ = path;
  return out;
}

FileWriter::FileWriter(FileWriter&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), size_(other.size_), path_(std::move(other.path_)) {}

FileWriter& FileWriter::operator=(FileWriter&& other) noexcept {
  if (this != &other) {
    if (fd_ >= 0) ::close(fd_);
    fd_ = std::exchange(other.fd_, -1);
    size_ = other.size_;
    path_ = std::move(other.path_);
  }
  return *this;
}

FileWriter::~FileWriter() {
  if (fd_ >= 0) ::close(fd_);
}

Status FileWriter::write(std::span<const std::byte> bytes) {
  SUB8_RETURN_IF_ERROR(write_at(size_, bytes));
  size_ += bytes.size();
  return {};
}

Status FileWriter::write(std::string_view text) {
  return write(std::as_bytes(std::span(text.data(), text.size())));
}

Status FileWriter::write_at(uint64_t offset, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t put = ::pwrite(fd_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return os_error("could not write", path_, errno);
    offset += static_cast<uint64_t>(put);
    bytes = bytes.subspan(static_cast<size_t>(put));
  }
  return {};
}

Status FileWriter::finish() {
  if (::fsync(fd_) != 0) return os_error("could not flush", path_, errno);
  if (::close(std::exchange(fd_, -1)) != 0) return os_error("could not close", path_, errno);
  return {};
}

Result<OutputDirectory> OutputDirectory::create(const fs::path& target_in, bool overwrite) {
  std::error_code ignored;
  fs::path target = fs::absolute(target_in, ignored).lexically_normal();
  if (!target.has_filename()) target = target.parent_path();
  const fs::path parent = target.parent_path();
  if (!fs::is_directory(parent, ignored)) {
    return not_found("the directory '" + parent.string() +
                     "' that should hold the output does not exist");
  }
  if (fs::exists(fs::symlink_status(target, ignored))) {
    if (!overwrite) {
      return invalid_argument(
          "output '" + target.string() +
          "' exists already; choose another name or pass --overwrite to replace it");
    }
    if (!fs::is_directory(target, ignored) || fs::is_symlink(fs::symlink_status(target, ignored))) {
      return invalid_argument(
          "output '" + target.string() +
          "' exists and is not a directory; --overwrite replaces directories only");
    }
  }
  OutputDirectory out;
  out.target_ = target;
  out.overwrite_ = overwrite;
  const std::string name = target.filename().string();
  out.lock_ = parent / ("." + name + ".lock");
  SUB8_ASSIGN_OR_RETURN(out.lock_fd_, lock_exclusively(out.lock_, target));
  // Set only under the lock: the destructor removes it.
  out.working_ = parent / ("." + name + ".partial");
  std::error_code error;
  fs::remove_all(out.working_, error);
  if (!fs::create_directory(out.working_, error)) {
    const Error failure =
        os_error("could not create", out.working_, error ? error.value() : EEXIST);
    out.working_.clear();
    return failure;
  }
  return out;
}

OutputDirectory::OutputDirectory(OutputDirectory&& other) noexcept
    : target_(std::move(other.target_)),
      working_(std::exchange(other.working_, {})),
      lock_(std::move(other.lock_)),
      lock_fd_(std::exchange(other.lock_fd_, -1)),
      overwrite_(other.overwrite_) {}

OutputDirectory& OutputDirectory::operator=(OutputDirectory&& other) noexcept {
  if (this != &other) {
    discard();
    target_ = std::move(other.target_);
    working_ = std::exchange(other.working_, {});
    lock_ = std::move(other.lock_);
    lock_fd_ = std::exchange(other.lock_fd_, -1);
    overwrite_ = other.overwrite_;
  }
  return *this;
}

OutputDirectory::~OutputDirectory() { discard(); }

void OutputDirectory::discard() {
  std::error_code ignored;
  if (!working_.empty()) fs::remove_all(working_, ignored);
  working_.clear();
  if (lock_fd_ >= 0) {
    ::unlink(lock_.c_str());
    ::close(std::exchange(lock_fd_, -1));
  }
}

Status OutputDirectory::commit() {
  SUB8_RETURN_IF_ERROR(sync_directory(working_));
  std::error_code ignored;
  fs::path old;
  if (fs::exists(fs::symlink_status(target_, ignored))) {
    if (!overwrite_) {
      return invalid_argument("output '" + target_.string() +
                              "' appeared while it was being written");
    }
    old = target_.parent_path() / ("." + target_.filename().string() + ".old");
    fs::remove_all(old, ignored);
    if (::rename(target_.c_str(), old.c_str()) != 0) {
      return os_error("could not move away the old output", target_, errno);
    }
  }
  if (::rename(working_.c_str(), target_.c_str()) != 0) {
    const Error failure = os_error("could not move the finished output to", target_, errno);
    if (!old.empty()) (void)::rename(old.c_str(), target_.c_str());
    return failure;
  }
  working_.clear();
  if (!old.empty()) fs::remove_all(old, ignored);
  return sync_directory(target_.parent_path());
}

}  // namespace sub8
