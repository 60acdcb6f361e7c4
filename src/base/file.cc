#include "base/file.h"

#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/interrupt.h"
#include "base/mapped_regions.h"
#include "base/os_error.h"

namespace sub8 {
namespace fs = std::filesystem;

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

namespace {

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

// Why `path` could not be opened for reading.
Error open_error(const fs::path& path, int number) {
  std::error_code ignored;
  if (number == ENOENT && fs::is_symlink(fs::symlink_status(path, ignored))) {
    return not_found("'" + path.string() + "' is a symbolic link to '" +
                     fs::read_symlink(path, ignored).string() + "', which does not exist");
  }
  return os_error("could not open", path, number);
}

// Writes at the position of the file, which may be a pipe or a device.
Status write_all(int fd, std::string_view content, const fs::path& path) {
  while (!content.empty()) {
    const ssize_t put = ::write(fd, content.data(), content.size());
    if (put < 0 && errno == EINTR) {
      SUB8_RETURN_IF_ERROR(check_interrupt());
      continue;
    }
    if (put < 0) return os_error("could not write", path, errno);
    content.remove_prefix(static_cast<size_t>(put));
  }
  return {};
}

// Writes to what `path` names without replacing it.
Status write_through(const fs::path& path, std::string_view content) {
  int fd = -1;
  do {  // a FIFO waits here for its reader
    SUB8_RETURN_IF_ERROR(check_interrupt());
    fd = ::open(path.c_str(), O_WRONLY | O_NOCTTY | O_CLOEXEC);
  } while (fd < 0 && errno == EINTR);
  if (fd < 0) return os_error("could not open for writing", path, errno);
  const FileDescriptor file(fd);
  return write_all(file.get(), content, path);
}

// The file that a chain of symbolic links ends at; it need not exist.
Result<fs::path> follow_symlinks(fs::path path) {
  for (int i = 0; i < 40; ++i) {
    std::error_code error;
    if (!fs::is_symlink(fs::symlink_status(path, error))) return path;
    const fs::path next = fs::read_symlink(path, error);
    if (error) return os_error("could not read the symbolic link", path, error.value());
    path = path.parent_path() / next;
  }
  return os_error("could not follow the symbolic link", path, ELOOP);
}

// A new empty file beside `path`, with a name that was not there; short, as `path` may have the
// longest name possible.
Result<fs::path> create_beside(const fs::path& path) {
  for (int i = 0; i < 1000; ++i) {
    fs::path out = path.parent_path() /
                   (".sub8-partial-" + std::to_string(::getpid()) + "-" + std::to_string(i));
    const FileDescriptor fd(::open(out.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
    if (fd.get() >= 0) return out;
    if (errno != EEXIST) return os_error("could not create a temporary file for", path, errno);
  }
  return os_error("could not create a temporary file for", path, EEXIST);
}

// Reads a byte of each page: where the kernel could not read `bytes` for a system call (EFAULT)
// because their mapped file became shorter, this raises the SIGBUS whose handler names the file.
void touch(std::span<const std::byte> bytes) {
  for (size_t at = 0; at < bytes.size(); at += 4096) {
    (void)*static_cast<const volatile std::byte*>(&bytes[at]);
  }
  if (!bytes.empty()) (void)*static_cast<const volatile std::byte*>(&bytes.back());
}

}  // namespace

Result<std::shared_ptr<const MappedFile>> MappedFile::open(const fs::path& path) {
  // Without O_NONBLOCK, a FIFO would wait for a writer here.
  FileDescriptor fd(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  if (fd.get() < 0) return open_error(path, errno);
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
    add_mapped_region(data, file->size_, path.string());
  }
  return std::shared_ptr<const MappedFile>(std::move(file));
}

MappedFile::~MappedFile() {
  if (data_ == nullptr) return;
  remove_mapped_region(data_);
  ::munmap(const_cast<std::byte*>(data_), size_);
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
  if (fd.get() < 0) return open_error(path, errno);
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
  struct stat info {};
  const bool exists = ::stat(path.c_str(), &info) == 0;
  // A device, a pipe: its name stays what it is. /dev/stdout too, whatever it leads to.
  if (exists && !S_ISREG(info.st_mode)) return write_through(path, content);
  for (const int fd : {STDOUT_FILENO, STDERR_FILENO}) {
    struct stat open_file {};
    if (exists && ::fstat(fd, &open_file) == 0 && open_file.st_dev == info.st_dev &&
        open_file.st_ino == info.st_ino) {
      return write_all(fd, content, path);
    }
  }
  SUB8_ASSIGN_OR_RETURN(const fs::path target, follow_symlinks(path));
  SUB8_ASSIGN_OR_RETURN(const fs::path temporary, create_beside(target));
  Status status;
  {
    Result<FileWriter> writer = FileWriter::create(temporary);
    status = writer.ok() ? writer->write(content) : Status(writer.error());
    if (status.ok()) status = writer->finish();
  }
  // A replaced file keeps its permissions.
  if (status.ok() && exists && ::chmod(temporary.c_str(), info.st_mode & 07777) != 0) {
    status = os_error("could not set the permissions of", temporary, errno);
  }
  if (status.ok() && ::rename(temporary.c_str(), target.c_str()) != 0) {
    status = os_error("could not move the finished file to", target, errno);
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
    if (put < 0) {
      const int number = errno;
      if (number == EFAULT) touch(bytes);
      return os_error("could not write", path_, number);
    }
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

}  // namespace sub8
