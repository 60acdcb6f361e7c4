// OutputDirectory (file.h): the lock beside the target, what it records, and the last rename.
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <sstream>
#include <string_view>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/os_error.h"

namespace sub8 {
namespace fs = std::filesystem;
namespace {

// The lock file begins with this line; each further one is a record, "KIND DEVICE INODE NAME", of a
// directory beside it that is ours to remove should this process be killed. By number as well as by
// name: another directory under the same name is somebody else's.
constexpr std::string_view kLockHeader = "sub8 output lock\n";
constexpr std::string_view kRemove = "remove";    // half-written, or replaced
constexpr std::string_view kRestore = "restore";  // the old output, moved away to be replaced
constexpr size_t kMaxLockBytes = 1 << 16;

// ".NAME.SUFFIX" beside the target; for names too long for that, or for a line of the lock, a hash
// in the place of NAME.
fs::path name_beside(const fs::path& target, const std::string& suffix) {
  const std::string name = target.filename().string();
  const long limit = ::pathconf(target.parent_path().c_str(), _PC_NAME_MAX);
  const size_t most = limit > 0 ? static_cast<size_t>(limit) : 255;
  const size_t longest_suffix = 16;
  if (name.size() + longest_suffix <= most && name.find('\n') == std::string::npos) {
    return target.parent_path() / ("." + name + "." + suffix);
  }
  uint64_t hash = 0xcbf29ce484222325U;  // FNV-1a
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3U;
  char digits[17];
  std::snprintf(digits, sizeof digits, "%016llx", static_cast<unsigned long long>(hash));
  return target.parent_path() / (std::string(".sub8-") + digits + "." + suffix);
}

bool present(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(fs::symlink_status(path, ignored));
}

Result<std::string> read_lock(int fd, const fs::path& path) {
  std::string out(kMaxLockBytes, '\0');
  const ssize_t got = ::pread(fd, out.data(), out.size(), 0);
  if (got < 0) return os_error("could not read the lock beside the output,", path, errno);
  out.resize(static_cast<size_t>(got));
  return out;
}

struct Lock {
  int fd = -1;
  bool temporary = false;  // ours to unlink at the end
};

// Opens and locks `path`. The holder unlinks it when done, so the lock counts only if the name
// still leads to this file.
Result<Lock> lock_exclusively(const fs::path& path, const fs::path& target) {
  while (true) {
    Lock out;
    const int flags = O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY;
    out.fd = ::open(path.c_str(), flags | O_EXCL, 0644);
    out.temporary = out.fd >= 0;
    if (out.fd < 0 && errno == EEXIST) out.fd = ::open(path.c_str(), flags, 0644);
    if (out.fd < 0) return os_error("could not create a lock beside the output,", path, errno);
    if (::flock(out.fd, LOCK_EX | LOCK_NB) != 0) {
      ::close(out.fd);
      return invalid_argument("another sub8 process is writing '" + target.string() +
                              "'; wait for it or choose another output");
    }
    struct stat held {};
    struct stat named {};
    if (::fstat(out.fd, &held) != 0 || ::lstat(path.c_str(), &named) != 0 ||
        held.st_ino != named.st_ino) {
      ::close(out.fd);
      continue;
    }
    Result<std::string> content =
        S_ISREG(held.st_mode) ? read_lock(out.fd, path) : std::string("?");
    const bool ours = content.ok() && content->starts_with(kLockHeader);
    if (content.ok() && (ours || content->empty())) {
      out.temporary = out.temporary || ours;
      return out;
    }
    ::close(out.fd);
    if (!content.ok()) return content.error();
    return invalid_argument("'" + path.string() + "' is where the lock of the output '" +
                            target.string() +
                            "' would be, and is no lock of sub8; move it or choose another output");
  }
}

Status append_to_lock(int fd, std::string_view text, const fs::path& path) {
  struct stat info {};
  if (::fstat(fd, &info) != 0 ||
      ::pwrite(fd, text.data(), text.size(), info.st_size) != static_cast<ssize_t>(text.size())) {
    return os_error("could not write the lock beside the output,", path, errno);
  }
  return {};
}

// Notes the directory `path`, or what will be there once `path` was moved to `name`.
Status record(int lock_fd, std::string_view kind, const fs::path& path, const fs::path& name) {
  struct stat info {};
  if (::lstat(path.c_str(), &info) != 0) return os_error("could not look at", path, errno);
  std::ostringstream line;
  line << kind << ' ' << info.st_dev << ' ' << info.st_ino << ' ' << name.filename().string()
       << '\n';
  return append_to_lock(lock_fd, line.str(), path);
}

// Removes what a killed process left; an old output that was moved away and not replaced goes back.
Status recover(int lock_fd, const fs::path& lock, const fs::path& target) {
  SUB8_ASSIGN_OR_RETURN(const std::string content, read_lock(lock_fd, lock));
  std::istringstream lines(content);
  std::string line;
  std::getline(lines, line);  // the header
  std::error_code ignored;
  while (std::getline(lines, line)) {
    std::istringstream fields(line);
    std::string kind;
    std::string name;
    uint64_t device = 0;
    uint64_t inode = 0;
    fields >> kind >> device >> inode;
    fields.get();
    std::getline(fields, name);
    if (!fields || name.empty() || name.find('/') != std::string::npos) continue;
    const fs::path path = target.parent_path() / name;
    struct stat info {};
    if (::lstat(path.c_str(), &info) != 0 || !S_ISDIR(info.st_mode) || info.st_dev != device ||
        info.st_ino != inode) {
      continue;
    }
    if (kind == kRestore && !present(target)) {
      fs::rename(path, target, ignored);
    } else {
      fs::remove_all(path, ignored);
    }
  }
  if (::ftruncate(lock_fd, 0) != 0) return os_error("could not empty the lock", lock, errno);
  return append_to_lock(lock_fd, kLockHeader, lock);
}

// A directory that was not there before.
Result<fs::path> create_working(const fs::path& target) {
  for (int i = 0; i < 100; ++i) {
    fs::path path = name_beside(target, i == 0 ? "partial" : "partial-" + std::to_string(i));
    if (::mkdir(path.c_str(), 0777) == 0) return path;
    if (errno != EEXIST) return os_error("could not create", path, errno);
  }
  return os_error("could not create a directory beside", target, EEXIST);
}

Status check_target(const fs::path& target, bool overwrite) {
  std::error_code ignored;
  const fs::file_status status = fs::symlink_status(target, ignored);
  if (!fs::exists(status)) return {};
  if (!overwrite) {
    return invalid_argument("output '" + target.string() +
                            "' exists already; choose another name or pass --overwrite to replace "
                            "it");
  }
  if (fs::is_directory(status)) return {};
  return invalid_argument("output '" + target.string() +
                          "' exists and is not a directory; --overwrite replaces directories only");
}

Status sync_directory(const fs::path& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return os_error("could not open directory", path, errno);
  // Some file systems refuse fsync on a directory; the rename is then as durable as they make it.
  const int number = ::fsync(fd) != 0 ? errno : 0;
  ::close(fd);
  if (number != 0 && number != EINVAL) return os_error("could not flush directory", path, number);
  return {};
}

// renameat2 with flags; EINVAL or ENOSYS where the file system or the kernel lacks it.
int rename_with(const fs::path& from, const fs::path& to, unsigned flags) {
  return ::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), flags) == 0 ? 0 : errno;
}

bool lacks_rename_flags(int number) {
  return number == EINVAL || number == ENOSYS || number == EOPNOTSUPP;
}

// Where directories cannot change places. A process that is killed between the two renames has
// noted the old one in the lock, so that the next one moves it back.
Status replace_in_two_steps(int lock_fd, const fs::path& working, const fs::path& target) {
  fs::path old = name_beside(target, "old");
  for (int i = 1; i < 100 && present(old); ++i) {
    old = name_beside(target, "old-" + std::to_string(i));
  }
  SUB8_RETURN_IF_ERROR(record(lock_fd, kRestore, target, old));
  if (const int number = rename_with(target, old, 0); number != 0) {
    return os_error("could not move away the old output", target, number);
  }
  if (const int number = rename_with(working, target, 0); number != 0) {
    (void)rename_with(old, target, 0);
    return os_error("could not move the finished output to", target, number);
  }
  std::error_code ignored;
  fs::remove_all(old, ignored);
  return {};
}

// There is no moment without an output under the target's name: the two directories change places.
Status replace(int lock_fd, const fs::path& working, const fs::path& target) {
  SUB8_RETURN_IF_ERROR(record(lock_fd, kRemove, target, working));
  const int number = rename_with(working, target, RENAME_EXCHANGE);
  if (lacks_rename_flags(number)) return replace_in_two_steps(lock_fd, working, target);
  if (number != 0) return os_error("could not move the finished output to", target, number);
  SUB8_RETURN_IF_ERROR(sync_directory(target.parent_path()));
  std::error_code ignored;
  fs::remove_all(working, ignored);  // the old output
  return {};
}

// Not over anything: an empty directory, which rename would replace, is somebody's too.
Status move_into_place(const fs::path& working, const fs::path& target) {
  int number = rename_with(working, target, RENAME_NOREPLACE);
  if (lacks_rename_flags(number)) number = rename_with(working, target, 0);
  if (number == EEXIST || number == ENOTEMPTY) {
    return invalid_argument("output '" + target.string() + "' appeared while it was being written");
  }
  if (number != 0) return os_error("could not move the finished output to", target, number);
  return {};
}

}  // namespace

Result<OutputDirectory> OutputDirectory::create(const fs::path& target_in, bool overwrite) {
  std::error_code ignored;
  fs::path target = fs::absolute(target_in, ignored).lexically_normal();
  if (!target.has_filename()) target = target.parent_path();
  const fs::path parent = target.parent_path();
  if (!fs::is_directory(parent, ignored)) {
    return not_found("the directory '" + parent.string() +
                     "' that should hold the output does not exist");
  }
  SUB8_RETURN_IF_ERROR(check_target(target, overwrite));
  OutputDirectory out;
  out.target_ = target;
  out.overwrite_ = overwrite;
  const fs::path lock_path = name_beside(target, "lock");
  SUB8_ASSIGN_OR_RETURN(const Lock lock, lock_exclusively(lock_path, target));
  out.lock_fd_ = lock.fd;
  // An empty file that somebody else made stays.
  if (lock.temporary) out.lock_ = lock_path;
  SUB8_RETURN_IF_ERROR(recover(lock.fd, lock_path, target));
  SUB8_RETURN_IF_ERROR(check_target(target, overwrite));
  SUB8_ASSIGN_OR_RETURN(out.working_, create_working(target));
  SUB8_RETURN_IF_ERROR(record(lock.fd, kRemove, out.working_, out.working_));
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
    if (lock_.empty()) {
      (void)!::ftruncate(lock_fd_, 0);
    } else {
      ::unlink(lock_.c_str());
    }
    ::close(std::exchange(lock_fd_, -1));
  }
}

Status OutputDirectory::commit() {
  SUB8_RETURN_IF_ERROR(sync_directory(working_));
  if (overwrite_ && present(target_)) {
    SUB8_RETURN_IF_ERROR(check_target(target_, overwrite_));
    SUB8_RETURN_IF_ERROR(replace(lock_fd_, working_, target_));
  } else {
    SUB8_RETURN_IF_ERROR(move_into_place(working_, target_));
  }
  working_.clear();
  return sync_directory(target_.parent_path());
}

}  // namespace sub8
