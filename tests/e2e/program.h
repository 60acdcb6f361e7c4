// Runs the program as a user does, in a scratch directory of the test.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

namespace sub8 {

struct Outcome {
  int status = -1;  // exit status; 1000 + the wait status where a signal ended it
  std::string out;
  std::string err;
};

inline std::string read_all(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

class Cli : public testing::Test {
 protected:
  void SetUp() override {
    namespace fs = std::filesystem;
    dir_ = fs::temp_directory_path() / fmt::format("sub8-cli-{}-{}", ::getpid(),
                                                   testing::UnitTest::GetInstance()->random_seed());
    fs::remove_all(dir_);
    fs::create_directories(dir_);
  }
  void TearDown() override { std::filesystem::remove_all(dir_); }

  // Arguments go through the shell; standard input is `input`.
  Outcome run(const std::string& arguments, const std::string& input = "") {
    return shell(fmt::format("'{}' {}", SUB8_BINARY, arguments), input);
  }
  // A shell command with standard input, output and error in files of the scratch directory.
  Outcome shell(const std::string& command, const std::string& input = "") {
    std::ofstream(dir_ / "cli.in", std::ios::binary) << input;
    std::filesystem::remove(dir_ / "cli.out");
    std::filesystem::remove(dir_ / "cli.err");
    const int raw = std::system(
        fmt::format("cd '{0}' && {{ {1} ; }} <'{0}/cli.in' >'{0}/cli.out' 2>'{0}/cli.err'",
                    dir_.string(), command)
            .c_str());
    Outcome out;
    out.status = WIFEXITED(raw) ? WEXITSTATUS(raw) : 1000 + raw;
    out.out = read_all(dir_ / "cli.out");
    out.err = read_all(dir_ / "cli.err");
    return out;
  }
  // The program in the background, without a shell in between: signals reach it. Its output goes
  // to the files bg.out and bg.err.
  pid_t start(const std::vector<std::string>& arguments);
  static Outcome finish(pid_t pid);

  static std::string model(const std::string& name) {
    return std::string(SUB8_TEST_DATA) + "/models/" + name;
  }
  std::filesystem::path copy(const std::string& name) {
    std::filesystem::copy(model(name), dir_ / name, std::filesystem::copy_options::recursive);
    return dir_ / name;
  }
  // Everything in the scratch directory but the files that the functions above write.
  int entries() const {
    int count = 0;
    for (const auto& entry : std::filesystem::directory_iterator(dir_)) {
      const std::string name = entry.path().filename().string();
      count += name.starts_with("cli.") || name.starts_with("bg.") ? 0 : 1;
    }
    return count;
  }
  std::filesystem::path dir_;
};

inline pid_t Cli::start(const std::vector<std::string>& arguments) {
  std::vector<std::string> words = {SUB8_BINARY};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  const std::string out = dir_ / "bg.out";
  const std::string err = dir_ / "bg.err";
  const pid_t pid = ::fork();
  if (pid != 0) return pid;
  if (::chdir(dir_.c_str()) != 0 || std::freopen("/dev/null", "r", stdin) == nullptr ||
      std::freopen(out.c_str(), "w", stdout) == nullptr ||
      std::freopen(err.c_str(), "w", stderr) == nullptr) {
    ::_exit(99);
  }
  ::execv(SUB8_BINARY, argv.data());
  ::_exit(99);
}

inline Outcome Cli::finish(pid_t pid) {
  int raw = 0;
  Outcome out;
  if (::waitpid(pid, &raw, 0) == pid) {
    out.status = WIFEXITED(raw) ? WEXITSTATUS(raw) : 1000 + raw;
  }
  return out;
}

#define EXPECT_SAYS(text, part) EXPECT_NE((text).find(part), std::string::npos) << (text)

}  // namespace sub8
