#include "base/file.h"

#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>
#include <unistd.h>

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

TEST_F(FileTest, LeftoversOfAKilledWriterAreRemoved) {
  fs::create_directory(dir_ / ".model.partial");
  put(dir_ / ".model.partial" / "junk", "junk");
  put(dir_ / ".model.lock", "");
  auto out = OutputDirectory::create(dir_ / "model", false);
  ASSERT_TRUE(out.ok()) << out.error().message;
  EXPECT_FALSE(fs::exists(out->path() / "junk"));
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
}

}  // namespace
}  // namespace sub8
