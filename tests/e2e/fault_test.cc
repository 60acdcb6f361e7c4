// The program under faults: interrupts, full disks, rivals, hostile files; and its memory.
#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstring>
#include <fstream>
#include <thread>

#include <boost/json.hpp>

#include "large_model.h"

namespace sub8 {
namespace {

namespace fs = std::filesystem;
namespace json = boost::json;

constexpr bool kSanitized =
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    true;
#else
    false;
#endif

class Faults : public LargeModelCli {};

TEST_F(Faults, InterruptedQuantisingLeavesNothing) {
  make_large("large", 4096);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    const pid_t pid = start(slow_quantise("large", "out"));
    ASSERT_TRUE(writing(pid, "out")) << read_all(dir_ / "bg.err");
    ASSERT_EQ(::kill(pid, signal), 0);
    EXPECT_EQ(finish(pid).status, 130);
    EXPECT_SAYS(read_all(dir_ / "bg.err"), "interrupted");
    EXPECT_EQ(entries(), 1) << "something beside the source was left";
  }
}

TEST_F(Faults, TheNextQuantiserClearsWhatAKilledOneLeft) {
  make_large("large", 4096);
  const pid_t pid = start(slow_quantise("large", "out"));
  ASSERT_TRUE(writing(pid, "out"));
  ASSERT_EQ(::kill(pid, SIGKILL), 0);
  EXPECT_GE(finish(pid).status, 1000);
  EXPECT_TRUE(fs::exists(dir_ / ".out.partial"));
  EXPECT_EQ(run(fmt::format("quantize '{}' out --weights e3m2", model("llama"))).status, 0);
  EXPECT_EQ(entries(), 2);
  EXPECT_EQ(run("inspect out").status, 0);
}

TEST_F(Faults, TwoQuantisersIntoOneDirectory) {
  make_large("large", 4096);
  const pid_t first = start(slow_quantise("large", "out"));
  ASSERT_TRUE(writing(first, "out"));
  ASSERT_EQ(::kill(first, SIGSTOP), 0);
  const Outcome second = run(fmt::format("quantize '{}' out --weights e3m2", model("llama")));
  EXPECT_EQ(second.status, 2);
  EXPECT_SAYS(second.err, "another sub8 process");
  EXPECT_TRUE(fs::exists(dir_ / ".out.partial")) << "the first one's work is untouched";
  ASSERT_EQ(::kill(first, SIGCONT), 0);
  ASSERT_EQ(::kill(first, SIGINT), 0);
  EXPECT_EQ(finish(first).status, 130);
  EXPECT_EQ(entries(), 1);
}

// A file-size limit is the full disk that needs no mount: writes fail half-way with EFBIG.
TEST_F(Faults, AFullDiskIsSaidAndLeavesNothing) {
  const Outcome full = shell(fmt::format("ulimit -f 16; '{}' quantize '{}' out --weights e3m2",
                                         SUB8_BINARY, model("llama")));
  EXPECT_EQ(full.status, 6) << full.err;
  EXPECT_SAYS(full.err, "model.safetensors");
  EXPECT_EQ(entries(), 0);
  // An existing output survives a failed replacement.
  ASSERT_EQ(run(fmt::format("quantize '{}' out --weights e2m3", model("llama"))).status, 0);
  const std::string before = read_all(dir_ / "out/model.safetensors");
  EXPECT_EQ(shell(fmt::format("ulimit -f 16; '{}' quantize '{}' out --weights e3m2 --overwrite",
                              SUB8_BINARY, model("llama")))
                .status,
            6);
  EXPECT_EQ(read_all(dir_ / "out/model.safetensors"), before);
  EXPECT_EQ(entries(), 1);
  // Standard output that cannot be written.
  for (const std::string& arguments :
       {std::string("inspect '") + model("llama") + "'", "inspect --json '" + model("llama") + "'",
        "run --raw --prompt a --max-tokens 2 '" + model("llama-chat") + "'",
        "quantize --dry-run --weights e3m2 '" + model("llama") + "' nowhere"}) {
    const Outcome outcome = run(arguments + " >/dev/full");
    EXPECT_EQ(outcome.status, 6) << arguments << outcome.err;
    EXPECT_SAYS(outcome.err, "standard output");
  }
}

TEST_F(Faults, AClosedPipeIsAnErrorNotTheEnd) {
  shell(fmt::format(
      "{{ sleep 0.2; '{}' quantize '{}' out --weights e3m2; echo $? >cli.status; }} | true",
      SUB8_BINARY, model("llama")));
  EXPECT_EQ(read_all(dir_ / "cli.status"), "6\n");
  EXPECT_EQ(entries(), 1);
  EXPECT_EQ(run("inspect out").status, 0);
}

TEST_F(Faults, ReadOnlyTargets) {
  // Nobody, root included, can create a file there, if it is what it should be.
  if (!fs::is_directory("/sys/kernel")) GTEST_SKIP() << "sysfs is not mounted";
  const Outcome outcome =
      run(fmt::format("quantize '{}' /sys/sub8-out --weights e3m2", model("llama")));
  EXPECT_EQ(outcome.status, 2);
  EXPECT_SAYS(outcome.err, "/sys");
  EXPECT_SAYS(outcome.err, "Permission denied");
  const Outcome report =
      run(fmt::format("quantize '{}' out --weights e3m2 --dry-run --json /sys/r", model("llama")));
  EXPECT_EQ(report.status, 2);
  EXPECT_SAYS(report.err, "/sys/r");
}

TEST_F(Faults, APromptLongerThanTheContextNamesBoth) {
  std::string text;
  for (int i = 0; i < 400; ++i) text += "word ";
  const std::string base = "run '" + model("llama-chat") + "' --raw --max-tokens 4 ";
  const Outcome outcome = run(base + "--max-model-len 64", text);
  EXPECT_EQ(outcome.status, 2);
  EXPECT_SAYS(outcome.err, "64");
  EXPECT_SAYS(outcome.err, "prompt");
  EXPECT_TRUE(outcome.out.empty());
  // The chat template of the same text; and 10 MB of it.
  EXPECT_EQ(run("run '" + model("llama-chat") + "' --max-tokens 4", text).status, 2);
  std::string large;
  while (large.size() < (size_t{10} << 20)) large += text;
  EXPECT_EQ(run(base, large).status, 2);
}

// Every seed of the fuzz corpora as a file on disk: an answer or a named error, never a crash.
TEST_F(Faults, HostileFilesThroughInspectAndRun) {
  const fs::path corpus = fs::path(SUB8_SOURCE_DIR) / "tests/fuzz/corpus";
  int files = 0;
  const auto check = [&](const std::string& path, const fs::path& seed) {
    for (const char* verb : {"inspect", "run --raw --prompt a --max-tokens 1"}) {
      const Outcome outcome = run(fmt::format("{} {}", verb, path));
      EXPECT_TRUE(outcome.status == 0 || (outcome.status >= 2 && outcome.status <= 6))
          << seed << " " << verb << ": " << outcome.status << "\n"
          << outcome.err;
      if (outcome.status != 0) {
        EXPECT_SAYS(outcome.err, "sub8: ");
      }
    }
    ++files;
  };
  for (const auto& entry : fs::directory_iterator(corpus / "gguf")) {
    fs::copy_file(entry.path(), dir_ / "x.gguf", fs::copy_options::overwrite_existing);
    check("x.gguf", entry.path());
  }
  copy("llama-chat");
  for (const auto& entry : fs::directory_iterator(corpus / "safetensors")) {
    fs::copy_file(entry.path(), dir_ / "llama-chat/model.safetensors",
                  fs::copy_options::overwrite_existing);
    check("llama-chat", entry.path());
  }
  EXPECT_GE(files, 10);
}

// Bytes that are no text, in every option that takes text: refused, and not echoed to the terminal.
TEST_F(Faults, InvalidUtf8InOptions) {
  const std::string bad = "\"$(printf 'a\\377\\376b')\"";
  const std::string base = "run '" + model("llama-chat") + "' --max-tokens 2 ";
  for (const std::string& arguments :
       {base + "--prompt " + bad, base + "--raw --prompt " + bad,
        base + "--prompt a --system " + bad, base + "--prompt a --stop " + bad,
        base + "--prompt a --weights " + bad, base + "--prompt a --activations " + bad,
        base + "--prompt a --" + bad,
        "quantize '" + model("llama") + "' q --weights e3m2 --skip " + bad,
        "quantize '" + model("llama") + "' q --weights e3m2 --override 're:('" + bad + "=e3m2"}) {
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.status, 2) << arguments;
    EXPECT_SAYS(outcome.err, "sub8: ");
    EXPECT_EQ(outcome.err.find('\xff'), std::string::npos) << arguments;
  }
  const Outcome missing = run("inspect " + bad);
  EXPECT_EQ(missing.status, 3);
  EXPECT_SAYS(missing.err, "\\xff\\xfe");
}

// A name inside a file does not drive the terminal.
TEST_F(Faults, NamesFromFilesAreEscaped) {
  const fs::path path = copy("llama");
  std::string file = read_all(path / "model.safetensors");
  uint64_t length = 0;
  std::memcpy(&length, file.data(), 8);
  json::object header = json::parse(file.substr(8, length)).as_object();
  header["x.\x1b[2J\x7f\xc2\x9b"] = {
      {"dtype", "U8"},
      {"shape", {0}},
      {"data_offsets", {file.size() - 8 - length, file.size() - 8 - length}}};
  const std::string text = json::serialize(header);
  const auto longer = static_cast<uint64_t>(text.size());
  std::ofstream(path / "model.safetensors", std::ios::binary)
      << std::string(reinterpret_cast<const char*>(&longer), 8) << text << file.substr(8 + length);
  for (const char* verb : {"inspect llama", "inspect llama --json"}) {
    const Outcome outcome = run(verb);
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    EXPECT_EQ(outcome.out.find('\x1b'), std::string::npos);
    EXPECT_EQ(outcome.out.find("\xc2\x9b"), std::string::npos);
    EXPECT_SAYS(outcome.out, "x1b[2J");
  }
}

// ---- Memory ------------------------------------------------------------------------------------

// The most anonymous memory that a process held, in bytes, sampled until it ends.
int64_t peak_anonymous(pid_t pid) {
  int64_t peak = 0;
  while (::waitpid(pid, nullptr, WNOHANG) == 0) {
    std::ifstream status(fmt::format("/proc/{}/status", pid));
    std::string line;
    while (std::getline(status, line)) {
      if (!line.starts_with("RssAnon:")) continue;
      peak = std::max(peak, int64_t{std::atoll(line.c_str() + 8)} * 1024);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return peak;
}

// One layer of 4096 x 4096 matrices has 235 MB in bf16; a chunk of output and the rows at hand are
// what may be in memory.
TEST_F(Faults, QuantisingHoldsLittleInMemory) {
  if (kSanitized) GTEST_SKIP() << "sanitizers have memory of their own";
  const int64_t bytes = make_large("large", 4096);
  for (const char* format : {"e3m2", "nvfp4", "e2m1:g32"}) {
    const int64_t peak = peak_anonymous(
        start({"quantize", "large", std::string("out-") + format, "--weights", format}));
    EXPECT_TRUE(fs::exists(dir_ / (std::string("out-") + format) / "config.json"));
    EXPECT_GT(peak, 1 << 20);
    EXPECT_LT(peak, int64_t{80} << 20) << format << " of " << bytes << " bytes";
  }
}

// Anonymous memory of `run`: packed weights, KV cache and 150 MB.
TEST_F(Faults, RunningHoldsTheWeightsOnce) {
  if (kSanitized) GTEST_SKIP() << "sanitizers have memory of their own";
  const char* demo = std::getenv("SUB8_DEMO_DIR");
  const fs::path gguf = fs::path(demo == nullptr ? "" : demo) / "SmolLM2-135M-Instruct.Q4_1.gguf";
  if (demo == nullptr || !fs::exists(gguf)) GTEST_SKIP() << "the demo model is not there";
  // The table of 49152 x 576 is kept (and decoded on the way), or quantised.
  EXPECT_LT(peak_anonymous(start({"quantize", gguf.string(), "kept", "--weights", "nvfp4"})),
            int64_t{80} << 20);
  EXPECT_LT(peak_anonymous(
                start({"quantize", gguf.string(), "q", "--weights", "e3m2", "--lm-head", "e3m2"})),
            int64_t{80} << 20);
  const json::value sizes = json::parse(run("inspect q --json").out);
  const int64_t weights = sizes.at("bytes").as_int64();
  // 30 layers, K and V, 3 heads of 64, bf16.
  const int64_t kv = int64_t{1024} * 30 * 2 * 3 * 64 * 2;
  const int64_t peak = peak_anonymous(
      start({"run", "q", "--prompt", "Hello", "--max-tokens", "8", "--max-model-len", "1024"}));
  EXPECT_GT(peak, weights / 2);
  EXPECT_LT(peak, weights + kv + (int64_t{150} << 20)) << "weights " << weights << ", KV " << kv;
}

}  // namespace
}  // namespace sub8
