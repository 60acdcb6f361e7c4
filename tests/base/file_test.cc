#include "base/file.h"

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <set>
#include <thread>

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/interrupt.h"

// In the place of the C library's: counted, without flags on request as on a file system that has
// none, and the end of the process at a chosen call.
namespace {
bool no_rename_flags = false;
int renames = 0;
int killing_rename = 0;
}  // namespace
extern "C" int renameat2(int from_dir, const char* from, int to_dir, const char* to,
                         unsigned flags) noexcept {
  if (++renames == killing_rename) ::_exit(0);
  if (no_rename_flags && flags != 0) {
    errno = EINVAL;
    return -1;
  }
  return static_cast<int>(::syscall(SYS_renameat2, from_dir, from, to_dir, to, flags));
}

namespace sub8 {
namespace {
namespace fs = std::filesystem;

class FileTest : public testing::Test {
 protected:
  void SetUp() override {
    dir_ = fs::temp_directory_path() / ("sub8-file-test-" + std::to_string(::getpid()));
    fs::remove_all(dir_);
    fs::create_directories(dir_);
  }
  void TearDown() override { fs::remove_all(dir_); }
  void put(const fs::path& path, const std::string& text) { std::ofstream(path) << text; }
  std::set<std::string> names() const {
    std::set<std::string> out;
    for (const auto& entry : fs::directory_iterator(dir_)) out.insert(entry.path().filename());
    return out;
  }
  fs::path dir_;
};

TEST_F(FileTest, MapsAndReads) {
  put(dir_ / "a", "hello");
  auto file = MappedFile::open(dir_ / "a");
  ASSERT_TRUE(file.ok());
  EXPECT_EQ((*file)->bytes().size(), 5u);
  EXPECT_EQ(static_cast<char>((*file)->bytes()[1]), 'e');
  EXPECT_EQ(read_file(dir_ / "a").value(), "hello");
  put(dir_ / "empty", "");
  EXPECT_TRUE(MappedFile::open(dir_ / "empty").value()->bytes().empty());
}

TEST_F(FileTest, ErrorsNameTheFile) {
  auto missing = MappedFile::open(dir_ / "missing");
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.error().code, ErrorCode::kNotFound);
  EXPECT_NE(missing.error().message.find("missing"), std::string::npos);
  EXPECT_FALSE(MappedFile::open(dir_).ok());
  EXPECT_FALSE(read_file(dir_).ok());
  put(dir_ / "big", std::string(100, 'x'));
  EXPECT_FALSE(read_file(dir_ / "big", 99).ok());
  EXPECT_TRUE(read_file(dir_ / "big", 100).ok());
}

TEST_F(FileTest, OutputAppearsWholeOrNotAtAll) {
  {
    auto out = OutputDirectory::create(dir_ / "model", false);
    ASSERT_TRUE(out.ok()) << out.error().message;
    put(out->path() / "x", "1");
    EXPECT_FALSE(fs::exists(dir_ / "model"));
  }
  EXPECT_TRUE(fs::is_empty(dir_));
  {
    auto out = OutputDirectory::create(dir_ / "model", false);
    ASSERT_TRUE(out.ok());
    put(out->path() / "x", "1");
    ASSERT_TRUE(out->commit().ok());
  }
  EXPECT_EQ(read_file(dir_ / "model" / "x").value(), "1");
  auto refused = OutputDirectory::create(dir_ / "model", false);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("--overwrite"), std::string::npos);
  {
    auto out = OutputDirectory::create(dir_ / "model", true);
    ASSERT_TRUE(out.ok());
    put(out->path() / "y", "2");
    ASSERT_TRUE(out->commit().ok());
  }
  EXPECT_FALSE(fs::exists(dir_ / "model" / "x"));
  EXPECT_EQ(read_file(dir_ / "model" / "y").value(), "2");
  EXPECT_EQ(std::distance(fs::directory_iterator(dir_), fs::directory_iterator()), 1);
}

TEST_F(FileTest, TwoWritersOfOneTargetAreKeptApart) {
  auto first = OutputDirectory::create(dir_ / "model", false);
  ASSERT_TRUE(first.ok());
  auto second = OutputDirectory::create(dir_ / "model", false);
  ASSERT_FALSE(second.ok());
  EXPECT_NE(second.error().message.find("another sub8 process"), std::string::npos);
  ASSERT_TRUE(first->commit().ok());
}

// Ends a child process in the middle of `work`, as SIGKILL would.
template <class Work>
void in_killed_process(Work work) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    work();
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(pid, &status, 0), pid);
  ASSERT_EQ(status, 0);
}

TEST_F(FileTest, LeftoversOfAKilledWriterAreRemoved) {
  in_killed_process([&] {
    auto killed = OutputDirectory::create(dir_ / "model", false);
    if (!killed.ok()) ::_exit(1);
    put(killed->path() / "junk", "junk");
    ::_exit(0);
  });
  EXPECT_EQ(names(), (std::set<std::string>{".model.lock", ".model.partial"}));
  auto out = OutputDirectory::create(dir_ / "model", false);
  ASSERT_TRUE(out.ok()) << out.error().message;
  EXPECT_FALSE(fs::exists(out->path() / "junk"));
  ASSERT_TRUE(out->commit().ok());
  out = not_found("");  // destroyed
  EXPECT_EQ(names(), std::set<std::string>{"model"});
}

// Directories and files of somebody else under the names that the output would use.
TEST_F(FileTest, OnlyOwnLeftoversAreRemoved) {
  for (const char* name : {".model.partial", ".model.old"}) {
    fs::create_directory(dir_ / name);
    put(dir_ / name / "precious", "precious");
  }
  fs::create_directory(dir_ / ".model.partial-1");
  put(dir_ / ".model.lock", "");
  for (const bool overwrite : {false, true}) {
    auto out = OutputDirectory::create(dir_ / "model", overwrite);
    ASSERT_TRUE(out.ok()) << out.error().message;
    put(out->path() / "x", "1");
    ASSERT_TRUE(out->commit().ok());
  }
  EXPECT_EQ(names(), (std::set<std::string>{".model.lock", ".model.old", ".model.partial",
                                            ".model.partial-1", "model"}));
  EXPECT_EQ(read_file(dir_ / ".model.partial/precious").value(), "precious");
  EXPECT_EQ(read_file(dir_ / ".model.old/precious").value(), "precious");
  EXPECT_EQ(read_file(dir_ / ".model.lock").value(), "");
  // A lock that is somebody's file, or leads to one.
  put(dir_ / ".model.lock", "precious");
  auto refused = OutputDirectory::create(dir_ / "model", true);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find(".model.lock"), std::string::npos);
  EXPECT_EQ(read_file(dir_ / ".model.lock").value(), "precious");
  fs::rename(dir_ / ".model.lock", dir_ / "mine");
  fs::create_symlink("mine", dir_ / ".model.lock");
  EXPECT_FALSE(OutputDirectory::create(dir_ / "model", true).ok());
  EXPECT_EQ(read_file(dir_ / "mine").value(), "precious");
}

// After a killed writer, somebody made the name of its leftover anew: not the same directory.
TEST_F(FileTest, ALeftoverIsKnownByMoreThanItsName) {
  in_killed_process([&] {
    auto killed = OutputDirectory::create(dir_ / "model", false);
    ::_exit(killed.ok() ? 0 : 1);
  });
  fs::create_directory(dir_ / "mine");
  put(dir_ / "mine/precious", "precious");
  fs::remove(dir_ / ".model.partial");
  fs::rename(dir_ / "mine", dir_ / ".model.partial");
  { ASSERT_TRUE(OutputDirectory::create(dir_ / "model", false).ok()); }
  EXPECT_EQ(read_file(dir_ / ".model.partial/precious").value(), "precious");
}

TEST_F(FileTest, TheLongestNames) {
  for (const size_t length : {239, 240, 246, 247, 255}) {
    const std::string name(length, 'n');
    {
      auto out = OutputDirectory::create(dir_ / name, false);
      ASSERT_TRUE(out.ok()) << length << out.error().message;
      put(out->path() / "x", "1");
      EXPECT_FALSE(OutputDirectory::create(dir_ / name, false).ok()) << "not locked";
      ASSERT_TRUE(out->commit().ok());
    }
    EXPECT_EQ(names(), std::set<std::string>{name});
    fs::remove_all(dir_ / name);
    ASSERT_TRUE(write_file_atomic(dir_ / name, "x").ok()) << length;
    EXPECT_EQ(names(), std::set<std::string>{name});
    fs::remove(dir_ / name);
  }
}

// Replacing an output leaves no moment without one. Of the ways to do it, the test takes away the
// exchange, then kills in the gap that the other way has.
TEST_F(FileTest, ReplacingIsOneStepOrIsUndone) {
  fs::create_directory(dir_ / "model");
  put(dir_ / "model/x", "old");
  const auto replace = [&](const std::string& text) {
    auto out = OutputDirectory::create(dir_ / "model", true);
    if (!out.ok()) return false;
    put(out->path() / "x", text);
    return out->commit().ok();
  };
  renames = 0;
  ASSERT_TRUE(replace("exchanged"));
  EXPECT_EQ(renames, 1);
  EXPECT_EQ(read_file(dir_ / "model/x").value(), "exchanged");
  EXPECT_EQ(names(), std::set<std::string>{"model"});

  no_rename_flags = true;
  renames = 0;
  ASSERT_TRUE(replace("moved"));
  EXPECT_EQ(renames, 3);  // the refused exchange and two steps
  EXPECT_EQ(read_file(dir_ / "model/x").value(), "moved");
  EXPECT_EQ(names(), std::set<std::string>{"model"});

  in_killed_process([&] {
    killing_rename = renames + 3;
    replace("never");
    ::_exit(1);
  });
  EXPECT_FALSE(fs::exists(dir_ / "model"));
  no_rename_flags = false;
  auto refused = OutputDirectory::create(dir_ / "model", false);
  ASSERT_FALSE(refused.ok()) << "the old output is there again";
  EXPECT_EQ(read_file(dir_ / "model/x").value(), "moved");
  EXPECT_EQ(names(), std::set<std::string>{"model"});
}

TEST_F(FileTest, WhatAppearsMeanwhileIsNotReplaced) {
  for (const bool flags : {true, false}) {
    no_rename_flags = !flags;
    auto out = OutputDirectory::create(dir_ / "model", false);
    ASSERT_TRUE(out.ok());
    put(out->path() / "x", "1");
    fs::create_directory(dir_ / "model");
    if (!flags) put(dir_ / "model/precious", "precious");  // rename replaces an empty one
    const Status status = out->commit();
    ASSERT_FALSE(status.ok());
    EXPECT_NE(status.error().message.find("appeared"), std::string::npos) << status.error().message;
    EXPECT_FALSE(fs::exists(dir_ / "model/x"));
    fs::remove_all(dir_ / "model");
  }
  no_rename_flags = false;
}

TEST_F(FileTest, OverwriteRefusesAPlainFile) {
  put(dir_ / "model", "precious");
  EXPECT_FALSE(OutputDirectory::create(dir_ / "model", true).ok());
  EXPECT_EQ(read_file(dir_ / "model").value(), "precious");
}

TEST_F(FileTest, AFullDiskIsAnError) {
  if (!fs::exists("/dev/full")) GTEST_SKIP() << "no /dev/full here";
  auto writer = FileWriter::create("/dev/full");
  ASSERT_TRUE(writer.ok());
  const Status status = writer->write("x");
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::kResourceExhausted);
}

TEST_F(FileTest, AtomicFile) {
  ASSERT_TRUE(write_file_atomic(dir_ / "f", "one").ok());
  ASSERT_TRUE(write_file_atomic(dir_ / "f", "two").ok());
  EXPECT_EQ(read_file(dir_ / "f").value(), "two");
  EXPECT_FALSE(write_file_atomic(dir_ / "no" / "f", "x").ok());
  EXPECT_EQ(std::distance(fs::directory_iterator(dir_), fs::directory_iterator()), 1);
  fs::permissions(dir_ / "f", fs::perms::owner_read | fs::perms::owner_write);
  ASSERT_TRUE(write_file_atomic(dir_ / "f", "secret").ok());
  EXPECT_EQ(fs::status(dir_ / "f").permissions(), fs::perms::owner_read | fs::perms::owner_write);
}

TEST_F(FileTest, AtomicFileFollowsLinks) {
  fs::create_directory(dir_ / "far");
  fs::create_symlink("far/link", dir_ / "link");
  fs::create_symlink("file", dir_ / "far/link");
  for (const char* text : {"new", "replaced"}) {
    ASSERT_TRUE(write_file_atomic(dir_ / "link", text).ok());
    EXPECT_TRUE(fs::is_symlink(dir_ / "link"));
    EXPECT_TRUE(fs::is_symlink(dir_ / "far/link"));
    EXPECT_EQ(read_file(dir_ / "far/file").value(), text);
  }
  fs::create_symlink("loop", dir_ / "loop");
  EXPECT_FALSE(write_file_atomic(dir_ / "loop", "x").ok());
}

TEST_F(FileTest, DevicesAndPipesAreWrittenNotReplaced) {
  ASSERT_EQ(::mkfifo((dir_ / "fifo").c_str(), 0600), 0);
  std::string got;
  std::thread reader([&] { got = read_file(dir_ / "fifo").value(); });
  EXPECT_TRUE(write_file_atomic(dir_ / "fifo", "through").ok());
  reader.join();
  EXPECT_EQ(got, "through");
  EXPECT_TRUE(fs::is_fifo(dir_ / "fifo"));
  // A node of one's own, where the test may make one; else the link to it.
  const bool made = ::mknod((dir_ / "null").c_str(), S_IFCHR | 0600, makedev(1, 3)) == 0;
  if (!made) fs::create_symlink("/dev/null", dir_ / "null");
  const Status status = write_file_atomic(dir_ / "null", "x");
  EXPECT_TRUE(status.ok() || made) << "a file system may forbid devices";
  EXPECT_TRUE(fs::is_character_file(dir_ / "null"));
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
  EXPECT_FALSE(write_file_atomic(dir_, "x").ok());
}

TEST_F(FileTest, WhatIsNoRegularFileIsNotMapped) {
  ASSERT_EQ(::mkfifo((dir_ / "fifo").c_str(), 0600), 0);
  auto fifo = MappedFile::open(dir_ / "fifo");  // would wait for a writer
  ASSERT_FALSE(fifo.ok());
  EXPECT_NE(fifo.error().message.find("regular file"), std::string::npos);
  fs::create_symlink("nowhere", dir_ / "broken");
  auto broken = MappedFile::open(dir_ / "broken");
  ASSERT_FALSE(broken.ok());
  EXPECT_NE(broken.error().message.find("symbolic link to 'nowhere'"), std::string::npos);
}

TEST_F(FileTest, AFileThatShrinksIsNamed) {
  const auto status_of = [&](auto use) {
    put(dir_ / "shrinks", std::string(3 << 16, 'x'));
    ::testing::FLAGS_gtest_death_test_style = "fast";
    EXPECT_EXIT(
        {
          install_signal_handlers();
          const auto other = MappedFile::open(dir_ / "shrinks").value();
          const auto file = MappedFile::open(dir_ / "shrinks").value();
          fs::resize_file(dir_ / "shrinks", 100);
          use(*file);
        },
        testing::ExitedWithCode(4), "shrinks' became shorter while it was read");
  };
  status_of([](const MappedFile& file) {
    (void)*static_cast<const volatile std::byte*>(&file.bytes().back());
  });
  // Through a system call, which fails instead of raising the signal.
  status_of([&](const MappedFile& file) {
    (void)FileWriter::create(dir_ / "copy").value().write(file.bytes());
  });
}

}  // namespace
}  // namespace sub8
