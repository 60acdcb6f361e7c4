// What people type by mistake, and what must not happen then.
#include "program.h"

namespace sub8 {
namespace {

namespace fs = std::filesystem;

TEST_F(Cli, OverwriteReplacesOnlyWhatSub8Wrote) {
  const std::string in = "quantize '" + model("llama-chat") + "' ";
  const std::string how = " --weights e3m2 --overwrite";
  fs::create_directory(dir_ / "precious");
  std::ofstream(dir_ / "precious/thesis.tex") << "x";
  const Outcome other = run(in + "precious" + how);
  EXPECT_EQ(other.status, 2);
  EXPECT_SAYS(other.err, "did not write");
  EXPECT_TRUE(fs::exists(dir_ / "precious/thesis.tex"));

  // The source itself, and what holds it.
  fs::create_directory(dir_ / "models");
  fs::copy(model("llama-chat"), dir_ / "models/a", fs::copy_options::recursive);
  for (const char* out : {"models/a", "models", "models/../models/a/"}) {
    const Outcome outcome = run(std::string("quantize models/a ") + out + how);
    EXPECT_EQ(outcome.status, 2) << out;
    EXPECT_SAYS(outcome.err, "holds the source");
  }
  EXPECT_TRUE(fs::exists(dir_ / "models/a/model.safetensors"));
  // The working directory.
  EXPECT_EQ(run(in + "." + how).status, 2);
  EXPECT_TRUE(fs::exists(dir_ / "precious/thesis.tex"));

  // An empty directory and an earlier output are fine.
  fs::create_directory(dir_ / "q");
  EXPECT_EQ(run(in + "q" + how).status, 0);
  EXPECT_EQ(run(in + "q" + how).status, 0);
}

TEST_F(Cli, OptionsDoNotSwallowWhatFollows) {
  const Outcome answer = run("run --stop END --stop FIN '" + model("llama-chat") +
                             "' --prompt hi --max-tokens 2 --temperature 0");
  EXPECT_EQ(answer.status, 0) << answer.err;
  const Outcome made = run("quantize --skip down_proj --override up_proj=e2m2 '" +
                           model("llama-chat") + "' q --weights e3m2");
  EXPECT_EQ(made.status, 0) << made.err;
}

TEST_F(Cli, MistakesAreSaidBeforeTheWork) {
  const std::string m = "'" + model("llama-chat") + "'";
  std::ofstream(dir_ / "text.txt") << std::string(4000, 'a');
  const std::string eval = "eval " + m + " --text text.txt --window 16 --max-windows 1 ";
  // Nothing is loaded: the error comes although the model does not exist.
  const std::string absent = "eval absent --text text.txt ";
  EXPECT_SAYS(run(absent + "--sweep foo").err, "--sweep: 'foo'");
  EXPECT_SAYS(run(absent + "--sweep e3m2+plain").err, "needs nvfp4 or mxfp4");
  EXPECT_SAYS(run(absent + "--json no/such/x.json").err, "no directory 'no/such'");
  EXPECT_EQ(run(eval + "--sweep 'e3m2, nvfp4'").status, 0);
  EXPECT_EQ(run("quantize " + m + " q --weights e3m2 --json no/such/x.json").status, 3);
  EXPECT_FALSE(fs::exists(dir_ / "q"));
  EXPECT_EQ(run("run absent --prompt hi --max-tokens 0").status, 2);
  EXPECT_SAYS(run("run absent --prompt ''").err, "is empty");
  EXPECT_SAYS(run("run absent").err, "standard input) is empty");
  EXPECT_SAYS(run("run absent", "\xff").err, "standard input: not valid UTF-8");
  EXPECT_SAYS(run("run absent --prompt hi --four-over-six").err, "--weights nvfp4");
}

TEST_F(Cli, MessagesNameTheCause) {
  const std::string m = "'" + model("llama-chat") + "'";
  EXPECT_SAYS(run("chat m").err, "there is no 'sub8 chat'; there is run");
  EXPECT_SAYS(run("bench m").err, "there is no 'sub8 bench m'");
  EXPECT_SAYS(run("run " + m + " --promt hi").err,
              "there is no option '--promt'; did you mean '--prompt'?");
  EXPECT_SAYS(run("run " + m + " --promt hi").err, "'sub8 run --help'");
  EXPECT_SAYS(run("quantize " + m + " q --weights bf16").err, "no quantised format");
  EXPECT_SAYS(run("quantize " + m + " q --weights e3m2 --skip lm_head").err, "--lm-head");
  const fs::path pointer = copy("llama");
  std::ofstream(pointer / "model.safetensors")
      << "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n";
  EXPECT_SAYS(run("inspect llama").err, "git lfs pull");
}

// The editor keeps characters of every language whatever the locale is.
TEST_F(Cli, ChatTakesEveryCharacter) {
  if (shell("python3 -c 'import os; os.openpty()'").status != 0)
    GTEST_SKIP() << "this machine has no pseudo-terminals";
  std::ofstream(dir_ / "chat.py") << R"(import os, pty, select, sys, time
pid, fd = pty.fork()
if pid == 0:
    os.environ["LC_ALL"] = "C"
    os.environ["TERM"] = "xterm"
    os.execv(sys.argv[1], [sys.argv[1], "run", sys.argv[2], "--max-tokens", "1"])
said = b""
def until(text, seconds=60):
    global said
    end = time.time() + seconds
    while text not in said and time.time() < end:
        if select.select([fd], [], [], 0.1)[0]:
            try:
                said += os.read(fd, 65536)
            except OSError:
                return
until(b"> ")
os.write(fd, "caf\u00e9 \u4f60\u597d\n".encode())
until(b"tokens/s")
said = b""
os.write(fd, b"/history\n")
until(b"content")
os.write(fd, b"/quit\n")
until(b"never", 1)
sys.stdout.buffer.write(said)
)";
  const Outcome chat =
      shell(std::string("python3 chat.py '") + SUB8_BINARY + "' '" + model("llama-chat") + "'");
  EXPECT_SAYS(chat.out, "caf\xc3\xa9 \xe4\xbd\xa0\xe5\xa5\xbd");
}

}  // namespace
}  // namespace sub8
