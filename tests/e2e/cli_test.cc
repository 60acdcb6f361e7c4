// Runs the program and looks at what it prints and how it exits.
#include <fstream>

#include <boost/json.hpp>

#include "program.h"

namespace sub8 {
namespace {

namespace fs = std::filesystem;
namespace json = boost::json;

TEST_F(Cli, Usage) {
  EXPECT_EQ(run("--version").status, 0);
  EXPECT_EQ(run("--help").status, 0);
  EXPECT_EQ(run("run --help").status, 0);
  EXPECT_EQ(run("").status, 2);
  EXPECT_EQ(run("frobnicate").status, 2);
  EXPECT_EQ(run("run").status, 2);
  EXPECT_EQ(run("run x --no-such-option").status, 2);
}

TEST_F(Cli, MissingModels) {
  EXPECT_EQ(run("run ./nowhere --prompt hi").status, 3);
  const Outcome hub = run("run org/some-model --prompt hi");
  EXPECT_EQ(hub.status, 3);
  EXPECT_SAYS(hub.err, "download");
  fs::create_directory(dir_ / "empty");
  EXPECT_NE(run("run empty --prompt hi").status, 0);
}

TEST_F(Cli, AnswersAndRepeats) {
  const std::string arguments = fmt::format(
      "run '{}' --prompt 'Hello there' --max-tokens 12 --json --seed 5", model("llama-chat"));
  const Outcome first = run(arguments);
  ASSERT_EQ(first.status, 0) << first.err;
  const json::value report = json::parse(first.out);
  EXPECT_GT(report.at("usage").at("prompt_tokens").to_number<int>(), 2);
  EXPECT_GT(report.at("usage").at("completion_tokens").to_number<int>(), 0);
  EXPECT_EQ(report.at("seed").to_number<int>(), 5);
  const Outcome second = run(arguments + " --threads 1");
  ASSERT_EQ(second.status, 0);
  EXPECT_EQ(json::parse(second.out).at("text"), report.at("text"));
}

TEST_F(Cli, StandardInputAndRawText) {
  const Outcome piped = run(
      "run '" + model("llama-chat") + "' --raw --max-tokens 3 --temperature 0", "Once upon a time");
  EXPECT_EQ(piped.status, 0) << piped.err;
  EXPECT_SAYS(piped.err, "tokens/s");
  const Outcome bad = run("run '" + model("llama-chat") + "' --raw --max-tokens 3", "abc\xff\xfe");
  EXPECT_EQ(bad.status, 2);
  EXPECT_SAYS(bad.err, "UTF-8");
  EXPECT_EQ(bad.err.find('\xff'), std::string::npos);
  const Outcome empty = run("run '" + model("llama-chat") + "' --raw --max-tokens 3", "");
  EXPECT_NE(empty.status, 0);
}

TEST_F(Cli, WrongValuesAreNamed) {
  const std::string base = "run '" + model("llama-chat") + "' --prompt hi ";
  for (const char* option :
       {"--temperature -1", "--top-p 1.5", "--min-p 2", "--top-k -2", "--max-tokens 0", "--stop ''",
        "--weights e9m9", "--weights q4_0", "--lm-head e3m2", "--kv-cache-dtype int3",
        "--activations fp8", "--max-model-len 1000000000", "--threads 0", "--temperature warm"}) {
    const Outcome outcome = run(base + option);
    EXPECT_EQ(outcome.status, 2) << option << "\n" << outcome.err;
    EXPECT_FALSE(outcome.err.empty()) << option;
  }
  setenv("SUB8_CPU", "mmx", 1);
  EXPECT_EQ(run(base).status, 2);
  setenv("SUB8_CPU", "scalar", 1);
  EXPECT_EQ(run(base + "--max-tokens 2").status, 0);
  unsetenv("SUB8_CPU");
}

TEST_F(Cli, QuantiseInspectRunEvaluate) {
  const Outcome made =
      run("quantize '" + model("llama-chat") + "' q --weights e3m2 --lm-head e3m2");
  ASSERT_EQ(made.status, 0) << made.err;
  EXPECT_SAYS(made.out, "NMSE");
  const Outcome shown = run("inspect q --json");
  ASSERT_EQ(shown.status, 0) << shown.err;
  const json::value report = json::parse(shown.out);
  EXPECT_EQ(report.at("quantization"), "sub8");
  EXPECT_GT(report.at("storage_bits").as_double(), 6.0);
  EXPECT_EQ(run("inspect q").status, 0);

  const std::string tail = " --prompt 'Hello there' --max-tokens 12 --temperature 0 --json";
  const Outcome stored = run("run q" + tail);
  ASSERT_EQ(stored.status, 0) << stored.err;
  EXPECT_SAYS(stored.err, "mode weight-only\n");
  const Outcome at_load =
      run("run '" + model("llama-chat") + "' --weights e3m2 --lm-head e3m2" + tail);
  ASSERT_EQ(at_load.status, 0) << at_load.err;
  EXPECT_EQ(json::parse(stored.out).at("text"), json::parse(at_load.out).at("text"));

  std::string text;
  for (int i = 0; i < 200; ++i) text += fmt::format("line {} of a text. ", i);
  std::ofstream(dir_ / "text.txt") << text;
  const Outcome scores = run("eval q --text text.txt --window 16 --max-windows 5 --reference '" +
                             model("llama-chat") + "' --json - --plot p.svg");
  ASSERT_EQ(scores.status, 0) << scores.err;
  const json::value eval = json::parse(scores.out);
  EXPECT_EQ(eval.at("scored_tokens").to_number<int>(), 75);
  EXPECT_GT(eval.at("perplexity").as_double(), 1.0);
  EXPECT_GT(eval.at("kl_divergence").as_double(), 0.0);
  EXPECT_SAYS(read_all(dir_ / "p.svg"), "</svg>");
  const Outcome same = run("eval '" + model("llama-chat") +
                           "' --text text.txt --window 16 --max-windows 2 --reference '" +
                           model("llama-chat") + "' --json -");
  EXPECT_LT(json::parse(same.out).at("kl_divergence").to_number<double>(), 1e-12);
  std::ofstream(dir_ / "short.txt") << "a";
  const Outcome fails = run("eval q --text short.txt --window 16");
  EXPECT_EQ(fails.status, 2);
  EXPECT_SAYS(fails.err, "fewer than one window");
  EXPECT_EQ(fails.err.find("mode weight-only"), std::string::npos)
      << "it loaded the weights first: " << fails.err;

  // A row of a sweep is what an evaluation of its own gives.
  const std::string evaluate =
      "eval '" + model("llama-chat") + "' --text text.txt --window 16 --max-windows 5 --json - ";
  const Outcome sweep = run(evaluate + "--sweep original,e3m2+head,nvfp4+4/6");
  ASSERT_EQ(sweep.status, 0) << sweep.err;
  const json::array rows = json::parse(sweep.out).at("rows").as_array();
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_LT(rows[0].at("kl_divergence").to_number<double>(), 1e-12);
  EXPECT_EQ(rows[1].at("perplexity"), eval.at("perplexity"));
  EXPECT_EQ(rows[1].at("label"), "e3m2+head");
  const Outcome alone =
      run(evaluate + "--weights nvfp4 --four-over-six --reference '" + model("llama-chat") + "'");
  EXPECT_EQ(rows[2].at("per_window"), json::parse(alone.out).at("per_window"));
  EXPECT_EQ(rows[2].at("weight_nmse"), json::parse(alone.out).at("weight_nmse"));
  EXPECT_EQ(rows[0].at("storage_bits").to_number<double>(), 0.0);
  const Outcome baselines = run(evaluate + "--sweep nvfp4,int4:g32");
  const json::array by_bits = json::parse(baselines.out).at("rows").as_array();
  // 4.5 and what blocks and groups at the ends of rows cost.
  EXPECT_NEAR(by_bits[0].at("storage_bits").to_number<double>(), 4.5292, 1e-4);
  EXPECT_NEAR(by_bits[1].at("storage_bits").to_number<double>(), 4.5333, 1e-4);
  EXPECT_SAYS(run(evaluate + "--sweep e3m2+tail").err, "known are +head, +4/6");
  EXPECT_EQ(run(evaluate + "--sweep original --weights e3m2").status, 2);

  // Modes: the residue brings W4A4 back to weight-only; generated rows have it by themselves.
  const Outcome modes = run(evaluate +
                            "--rows generated --sweep "
                            "nvfp4,nvfp4+plain,nvfp4+residue,nvfp4+residue+ratio=1");
  ASSERT_EQ(modes.status, 0) << modes.err;
  const json::array by_mode = json::parse(modes.out).at("rows").as_array();
  const auto kld = [&](size_t i) { return by_mode[i].at("kl_divergence").to_number<double>(); };
  EXPECT_GT(kld(1), kld(0));
  EXPECT_LT(std::abs(kld(2) - kld(0)), 0.5 * (kld(1) - kld(0)));
  EXPECT_EQ(by_mode[2].at("per_window"), by_mode[3].at("per_window"));
  EXPECT_SAYS(modes.err, "mode weight-only\n");
  EXPECT_SAYS(modes.err, "mode plain");
  EXPECT_SAYS(modes.err, "mode residue, prefill ratio 1");
  EXPECT_SAYS(modes.err, "note: prompt rows run without residue");
  EXPECT_EQ(run(evaluate + "--weights e3m2 --mode plain").status, 5);
  EXPECT_EQ(run(evaluate + "--weights nvfp4 --mode w4a4").status, 2);
}

TEST_F(Cli, CalibrationIsStoredBesideTheModel) {
  ASSERT_EQ(run("quantize '" + model("llama-chat") + "' q --weights nvfp4 --layout sub8").status,
            0);
  std::string text;
  for (int i = 0; i < 100; ++i) text += fmt::format("line {} of a text. ", i);
  std::ofstream(dir_ / "text.txt") << text;
  const std::string size = " --samples 4 --length 32";
  const Outcome made = run("calibrate q --text text.txt --ratios 0.125,0.25,0.5 --original '" +
                           model("llama-chat") + "'" + size + " --threads 1");
  ASSERT_EQ(made.status, 0) << made.err;
  EXPECT_SAYS(made.out, "4 samples, 128 tokens");
  EXPECT_SAYS(made.out, "from the original's weights");
  const std::string json_text = read_all(dir_ / "q/sub8/residue.json");
  const std::string tensors = read_all(dir_ / "q/sub8/residue.safetensors");
  EXPECT_EQ(json::parse(json_text).at("original"), "llama-chat");
  EXPECT_EQ(run("inspect q").status, 0);
  // The same again, with other threads; then from the decoded weights.
  const Outcome again = run("calibrate q --text text.txt");
  EXPECT_EQ(again.status, 2);
  EXPECT_SAYS(again.err, "calibrated already; --overwrite");
  ASSERT_EQ(run("calibrate q --overwrite --text text.txt --ratios 0.5,0.125,0.25 --original '" +
                model("llama-chat") + "'" + size + " --threads 3")
                .status,
            0);
  EXPECT_EQ(read_all(dir_ / "q/sub8/residue.json"), json_text);
  EXPECT_EQ(read_all(dir_ / "q/sub8/residue.safetensors"), tensors);
  std::ofstream(dir_ / "p.jsonl") << "\"one\"\n{\"text\": \"two\"}\n";
  const Outcome decoded = run("calibrate q --overwrite --jsonl p.jsonl");
  ASSERT_EQ(decoded.status, 0) << decoded.err;
  EXPECT_SAYS(decoded.out, "no --original");

  // Nothing is touched where something is wrong.
  const std::string kept = read_all(dir_ / "q/sub8/residue.safetensors");
  std::ofstream(dir_ / "binary") << "abc\xff\xfe";
  std::ofstream(dir_ / "empty") << "";
  for (const char* bad : {"--text empty", "--text binary --length 2", "--jsonl empty",
                          "--jsonl text.txt", "", "--text text.txt --jsonl p.jsonl",
                          "--text text.txt --ratios 0.3", "--text text.txt --length 100000"}) {
    const Outcome outcome = run(std::string("calibrate q --overwrite ") + bad);
    EXPECT_NE(outcome.status, 0) << bad;
    EXPECT_NE(outcome.status, 1) << bad << outcome.err;
    EXPECT_FALSE(outcome.err.empty()) << bad;
  }
  EXPECT_EQ(run("calibrate q --overwrite --text nowhere.txt").status, 3);
  EXPECT_EQ(read_all(dir_ / "q/sub8/residue.safetensors"), kept);
}

TEST_F(Cli, QuantisingIsDeterministicAndAtomic) {
  const std::string base = "quantize '" + model("llama-chat") + "' ";
  ASSERT_EQ(run(base + "a --weights nvfp4 --layout sub8 --threads 1").status, 0);
  setenv("SUB8_CPU", "scalar", 1);
  ASSERT_EQ(run(base + "b --weights nvfp4 --layout sub8 --threads 3").status, 0);
  unsetenv("SUB8_CPU");
  EXPECT_EQ(read_all(dir_ / "a/model.safetensors"), read_all(dir_ / "b/model.safetensors"));
  EXPECT_EQ(read_all(dir_ / "a/config.json"), read_all(dir_ / "b/config.json"));

  const Outcome refused = run(base + "a --weights e3m2");
  EXPECT_EQ(refused.status, 2);
  EXPECT_SAYS(refused.err, "--overwrite");
  EXPECT_EQ(read_all(dir_ / "a/model.safetensors"), read_all(dir_ / "b/model.safetensors"));
  EXPECT_EQ(run(base + "a --weights e3m2 --overwrite").status, 0);
  EXPECT_NE(read_all(dir_ / "a/model.safetensors"), read_all(dir_ / "b/model.safetensors"));
  EXPECT_EQ(entries(), 2);

  EXPECT_EQ(run(base + "c --weights e3m2 --dry-run").status, 0);
  EXPECT_EQ(run(base + "nowhere/c --weights e3m2").status, 3);
  EXPECT_EQ(run(base + "c --weights e3m2 --skip no_such_module").status, 2);
  EXPECT_EQ(run(base + "c --weights nonsense").status, 2);
  EXPECT_EQ(entries(), 2);
}

TEST_F(Cli, DamagedFilesAreRefused) {
  const fs::path path = copy("llama-chat");
  const auto size = fs::file_size(path / "model.safetensors");
  fs::resize_file(path / "model.safetensors", size - 1);
  Outcome outcome = run("run llama-chat --prompt hi");
  EXPECT_EQ(outcome.status, 4);
  EXPECT_SAYS(outcome.err, "model.safetensors");
  fs::resize_file(path / "model.safetensors", 4);
  EXPECT_EQ(run("inspect llama-chat").status, 4);
  fs::remove(path / "model.safetensors");
  fs::remove(path / "reference.safetensors");
  EXPECT_EQ(run("inspect llama-chat").status, 3);

  const fs::path broken = copy("llama");
  std::ofstream(broken / "config.json") << "{\"model_type\": \"llama\", \"hidden_size\": -5}";
  EXPECT_EQ(run("inspect llama").status, 4);
  std::ofstream(broken / "config.json") << "not json";
  EXPECT_EQ(run("inspect llama").status, 4);
  std::ofstream(dir_ / "x.gguf") << "GGUF";
  EXPECT_EQ(run("inspect x.gguf").status, 4);
}

TEST_F(Cli, ATokenizerThatDoesNotFitIsRefused) {
  const fs::path path = copy("llama");
  fs::copy(model("llama-chat") + "/tokenizer.json", path / "tokenizer.json",
           fs::copy_options::overwrite_existing);
  const Outcome outcome = run("run llama --raw --prompt hi");
  EXPECT_EQ(outcome.status, 4);
  EXPECT_SAYS(outcome.err, "the tokenizer has 288 tokens");
}

// The demo model, where `./dev` has fetched it: the perplexity that transformers computes in
// float32.
TEST_F(Cli, DemoPerplexityEqualsTransformers) {
  const char* demo = std::getenv("SUB8_DEMO_DIR");
  const fs::path gguf = fs::path(demo == nullptr ? "" : demo) / "SmolLM2-135M-Instruct.Q4_1.gguf";
  if (demo == nullptr || !fs::exists(gguf)) GTEST_SKIP() << "the demo model is not there";
  const std::string make =
      fmt::format("python3 '{}/tools/eval_text.py' --out '{}/text' >/dev/null 2>&1",
                  SUB8_SOURCE_DIR, dir_.string());
  if (std::system(make.c_str()) != 0)
    GTEST_SKIP() << "the evaluation text is not there (Debian's debian-handbook)";
  const json::value want = json::parse(read_all(fs::path(SUB8_TEST_DATA) / "demo_reference.json"));
  const auto& per_window =
      want.at("perplexity").at("prose-heldout.txt").at("window_nll").as_array();
  const Outcome got =
      run(fmt::format("eval '{}' --text text/prose-heldout.txt --activations f32 --window 512 "
                      "--max-windows 2 --json -",
                      gguf.string()));
  ASSERT_EQ(got.status, 0) << got.err;
  EXPECT_SAYS(got.err, "decoded to f32 and will take about");
  const json::value report = json::parse(got.out);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_NEAR(report.at("per_window").at(i).at("nll").as_double(),
                per_window[i].to_number<double>() / 511, 2e-5);
  }
}

}  // namespace
}  // namespace sub8
