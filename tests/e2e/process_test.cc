// The program as a process: its descriptors, signals at any time, and files that change under it.
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <thread>

#include <fcntl.h>
#include <sys/stat.h>

#include "large_model.h"

namespace sub8 {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

class Process : public LargeModelCli {
 protected:
  // Waits until the process catches signals and holds that much anonymous memory.
  static bool holds(pid_t pid, int64_t bytes) {
    for (int i = 0; i < 6000; ++i) {
      std::ifstream status(fmt::format("/proc/{}/status", pid));
      std::string line;
      int64_t held = 0;
      bool catches = false;
      while (std::getline(status, line)) {
        if (line.starts_with("State:") && line.find('Z') != std::string::npos) return false;
        if (line.starts_with("RssAnon:")) held = std::atoll(line.c_str() + 8) * 1024;
        if (line.starts_with("SigCgt:"))
          catches = (std::strtoull(line.c_str() + 7, nullptr, 16) >> (SIGINT - 1) & 1) != 0;
      }
      if (catches && held >= bytes) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return false;
  }
  // Sends the signal and expects the end that an interrupt means, soon.
  void expect_interrupted(pid_t pid, int signal) {
    const auto start = Clock::now();
    ASSERT_EQ(::kill(pid, signal), 0);
    EXPECT_EQ(finish(pid).status, 130);
    EXPECT_LT(std::chrono::duration<double>(Clock::now() - start).count(), 1.5);
    const std::string err = read_all(dir_ / "bg.err");
    EXPECT_SAYS(err, "interrupted");
    EXPECT_EQ(err.find("tokens/s"), std::string::npos) << "a speed without an answer: " << err;
  }
};

// Files must not get the numbers of the closed ones: the program writes to those.
TEST_F(Process, ClosedStandardDescriptors) {
  make_large("large", 4096);
  const pid_t pid = ::fork();
  if (pid == 0) {
    if (::chdir(dir_.c_str()) != 0) ::_exit(99);
    for (const int fd : {0, 1, 2}) ::close(fd);
    ::execl(SUB8_BINARY, SUB8_BINARY, "quantize", "large", "out", "--weights", "e3m2", "--scale",
            "mse", "--threads", "1", nullptr);
    ::_exit(99);
  }
  ASSERT_TRUE(writing(pid, "out"));
  for (const int fd : {0, 1, 2}) {
    EXPECT_EQ(fs::read_symlink(fmt::format("/proc/{}/fd/{}", pid, fd)), "/dev/null") << fd;
  }
  ::kill(pid, SIGINT);
  EXPECT_EQ(finish(pid).status, 130);
  // Some of them; and no success where nothing could be said.
  EXPECT_EQ(run("inspect '" + model("llama") + "' <&- 2>&-").status, 0);
  const Outcome silent = run("inspect '" + model("llama") + "' <&- >&-");
  EXPECT_EQ(silent.status, 6);
  EXPECT_SAYS(silent.err, "standard output");
}

TEST_F(Process, StandardOutputThatIsFull) {
  const Outcome outcome =
      run(fmt::format("quantize '{}' out --weights e3m2 --json r.json >/dev/full", model("llama")));
  EXPECT_EQ(outcome.status, 6);
  EXPECT_SAYS(outcome.err, "standard output");
  EXPECT_SAYS(outcome.err, "'out' is complete");
  EXPECT_EQ(run("inspect out").status, 0);
  EXPECT_TRUE(fs::exists(dir_ / "r.json"));
  for (const char* arguments : {"--help", "--version", "run --help"}) {
    const Outcome help = run(std::string(arguments) + " >/dev/full");
    EXPECT_EQ(help.status, 6) << arguments;
    EXPECT_SAYS(help.err, "standard output");
  }
}

TEST_F(Process, ReportsThroughDevicesAndPipes) {
  const std::string base =
      fmt::format("quantize '{}' out --weights e3m2 --dry-run --json ", model("llama"));
  EXPECT_EQ(run(base + "/dev/null").status, 0);
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
  for (const char* path : {"/dev/stdout", "/dev/stdout | cat", "/dev/stderr"}) {
    const Outcome outcome = run(base + path);
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    const std::string all = outcome.out + outcome.err;
    EXPECT_SAYS(all, "\"schema_version\"");
    EXPECT_SAYS(all, "storage bits");
  }
}

TEST_F(Process, InterruptWhileLoading) {
  make_large("large", 6144, 288);
  for (const char* file : {"tokenizer.json", "tokenizer_config.json"}) {
    fs::copy(fs::path(model("llama-chat")) / file, dir_ / "large" / file);
  }
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    const pid_t pid = start({"run", "large", "--raw", "--prompt", "a", "--max-tokens", "1",
                             "--weights", "nvfp4", "--threads", "1"});
    ASSERT_TRUE(holds(pid, int64_t{24} << 20)) << read_all(dir_ / "bg.err");
    expect_interrupted(pid, signal);
  }
}

TEST_F(Process, InterruptWhileTokenising) {
  std::string text;
  for (int i = 0; i < 1000; ++i) text += fmt::format("word {} and another, ", i * 7919);
  std::ofstream file(dir_ / "long.txt");
  for (int i = 0; i < 2500; ++i) file << text;
  file.close();
  const auto bytes = static_cast<int64_t>(fs::file_size(dir_ / "long.txt"));
  const pid_t pid = start({"eval", model("llama-chat"), "--text", "long.txt", "--window", "16"});
  ASSERT_TRUE(holds(pid, bytes));
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  expect_interrupted(pid, SIGINT);
}

TEST_F(Process, InterruptWhileWaitingForAFifo) {
  ASSERT_EQ(::mkfifo((dir_ / "text").c_str(), 0600), 0);
  const pid_t pid = start({"eval", model("llama-chat"), "--text", "text"});
  int writer = -1;
  for (int i = 0; i < 6000 && writer < 0; ++i) {  // there is a reader
    writer = ::open((dir_ / "text").c_str(), O_WRONLY | O_NONBLOCK);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  ASSERT_GE(writer, 0);
  expect_interrupted(pid, SIGTERM);
  ::close(writer);
  // With a writer, a FIFO is a text like any other.
  const Outcome outcome =
      shell(fmt::format("{{ seq 500 >text & }}; '{}' eval '{}' --text text --window 16",
                        SUB8_BINARY, model("llama-chat")));
  EXPECT_EQ(outcome.status, 0) << outcome.err;
}

TEST_F(Process, AHangUpThatIsIgnoredStaysIgnored) {
  const Outcome outcome = shell(
      fmt::format("trap '' HUP; '{}' quantize '{}' out --weights e3m2 & kill -HUP $!; sleep 0.05; "
                  "kill -HUP $!; wait $!",
                  SUB8_BINARY, model("llama")));
  EXPECT_EQ(outcome.status, 0) << outcome.err;
}

TEST_F(Process, ASourceThatShrinksIsNamed) {
  make_large("large", 4096);
  const pid_t pid = start(slow_quantise("large", "out"));
  ASSERT_TRUE(writing(pid, "out"));
  fs::resize_file(dir_ / "large/model.safetensors", 4096);
  EXPECT_EQ(finish(pid).status, 4);
  EXPECT_SAYS(read_all(dir_ / "bg.err"), "large/model.safetensors' became shorter");
  EXPECT_FALSE(fs::exists(dir_ / "out"));
  // What it left goes with the next one.
  EXPECT_EQ(run(fmt::format("quantize '{}' out --weights e3m2", model("llama"))).status, 0);
  EXPECT_EQ(entries(), 2);
}

}  // namespace
}  // namespace sub8
