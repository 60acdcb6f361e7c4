// What stands in the place of a model's files: nothing, a FIFO, a broken link, an empty file.
#include "checkpoint/model_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "checkpoint/weight_source.h"
#include "test_files.h"

namespace sub8::checkpoint {
namespace {

namespace fs = std::filesystem;

// Every file that a directory may have.
constexpr const char* kFiles[] = {
    "config.json",           "generation_config.json",  "tokenizer.json",
    "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja",
    "hf_quant_config.json",  "model.safetensors",       "model.safetensors.index.json"};

class ModelFile : public testing::Test {
 protected:
  // The directory of a small model where `name` is replaced by what `make` makes.
  template <class Make>
  std::string error_with(const std::string& name, Make make) {
    const fs::path model = dir_ / "model";
    fs::remove_all(model);
    fs::copy(fs::path(SUB8_TEST_DATA) / "models/llama-chat", model);
    EXPECT_TRUE(open_checkpoint(model).ok());
    fs::remove(model / name);
    make(model / name);
    const auto opened = open_checkpoint(model);
    return opened.ok() ? "" : opened.error().message;
  }
  TempDir dir_;
};

TEST_F(ModelFile, AFifoIsNoModelFile) {
  for (const char* name : kFiles) {
    const std::string error =
        error_with(name, [](const fs::path& path) { ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0); });
    EXPECT_NE(error.find(name), std::string::npos) << name << ": " << error;
    EXPECT_NE(error.find("not a regular file"), std::string::npos) << name << ": " << error;
  }
  ASSERT_EQ(::mkfifo((dir_ / "x.gguf").c_str(), 0600), 0);
  const auto gguf = open_checkpoint(dir_ / "x.gguf");
  ASSERT_FALSE(gguf.ok());
  EXPECT_NE(gguf.error().message.find("not a regular file"), std::string::npos);
}

TEST_F(ModelFile, ABrokenLinkIsNotAnAbsentFile) {
  for (const char* name : kFiles) {
    const std::string dangling =
        error_with(name, [](const fs::path& path) { fs::create_symlink("../blobs/0123", path); });
    EXPECT_NE(dangling.find(std::string(name) + "' is a symbolic link to '../blobs/0123'"),
              std::string::npos)
        << name << ": " << dangling;
    const std::string loop =
        error_with(name, [](const fs::path& path) { fs::create_symlink(path.filename(), path); });
    EXPECT_NE(loop.find(name), std::string::npos) << name << ": " << loop;
  }
  fs::create_symlink("nowhere", dir_ / "link");
  const auto model = open_checkpoint(dir_ / "link");
  ASSERT_FALSE(model.ok());
  EXPECT_NE(model.error().message.find("symbolic link to 'nowhere'"), std::string::npos);
}

TEST_F(ModelFile, AnEmptyJsonFileIsAnError) {
  for (const std::string name : kFiles) {
    if (!name.ends_with(".json")) continue;
    const std::string error = error_with(name, [](const fs::path& path) { write_text(path, ""); });
    EXPECT_NE(error.find(name), std::string::npos) << name << ": " << error;
  }
}

TEST_F(ModelFile, LinksToFilesAreFollowed) {
  const std::string error = error_with("config.json", [](const fs::path& path) {
    fs::copy(fs::path(SUB8_TEST_DATA) / "models/llama-chat/config.json",
             path.parent_path() / "blob");
    fs::create_symlink("blob", path);
  });
  EXPECT_EQ(error, "");
}

}  // namespace
}  // namespace sub8::checkpoint
