// What stands in the place of a model's files: nothing, a FIFO, a broken link, an empty file.
#include "checkpoint/model_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

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

// Files are looked at with the rights of nobody while this lives.
class AsNobody {
 public:
  AsNobody() {
    if (::geteuid() == 0) changed_ = ::seteuid(65534) == 0;
  }
  ~AsNobody() {
    if (changed_) {
      EXPECT_EQ(::seteuid(0), 0);
    }
  }
  AsNobody(const AsNobody&) = delete;
  AsNobody& operator=(const AsNobody&) = delete;

 private:
  bool changed_ = false;
};

// What may not be read is never taken for absent.
TEST_F(ModelFile, MissingPermissionIsSaid) {
  constexpr const char* kDenied = "Permission denied";
  fs::permissions(dir_.path(), fs::perms(0755));
  const fs::path model = dir_ / "model";
  const auto error = [&] {
    const AsNobody nobody;
    const auto opened = open_checkpoint(model);
    return opened.ok() ? std::string() : opened.error().message;
  };
  const auto closed = [&](const fs::path& path) {
    fs::permissions(path, fs::perms(0));
    std::string out = error();
    fs::permissions(path, fs::perms(fs::is_directory(path) ? 0755 : 0644));
    return out;
  };
  for (const char* name : kFiles) {
    if (std::string_view(name) == "model.safetensors.index.json") continue;
    (void)error_with(name, [](const fs::path& path) {
      fs::copy(fs::path(SUB8_TEST_DATA) / "models/llama-chat/config.json", path);
    });
    const std::string said = closed(model / name);
    EXPECT_NE(said.find(name), std::string::npos) << name << ": " << said;
    EXPECT_NE(said.find(kDenied), std::string::npos) << name << ": " << said;
  }
  (void)error_with("config.json", [](const fs::path&) {});
  const std::string search = closed(model);
  EXPECT_NE(search.find(kDenied), std::string::npos) << search;
  EXPECT_EQ(search.find("no config.json"), std::string::npos) << search;
  // May be entered, not listed.
  for (const char* missing : {"config.json", "model.safetensors"}) {
    (void)error_with(missing, [](const fs::path&) {});
    fs::permissions(model, fs::perms(0311));
    const std::string listed = error();
    fs::permissions(model, fs::perms(0755));
    EXPECT_NE(listed.find("could not list the directory '" + model.string()), std::string::npos)
        << listed;
    EXPECT_NE(listed.find(kDenied), std::string::npos) << listed;
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
