// Plans from measuring to the planned model, explanations of kernels, and differences with
// intervals.
#include <map>

#include <boost/json.hpp>

#include "program.h"

namespace sub8 {
namespace {

namespace fs = std::filesystem;
namespace json = boost::json;

class Plans : public Cli {
 protected:
  void SetUp() override {
    Cli::SetUp();
    std::string text;
    for (int i = 0; i < 300; ++i) text += fmt::format("line {} of a text. ", i);
    std::ofstream(dir_ / "text.txt") << text;
  }
  std::string plan(const std::string& options) {
    return "plan '" + model("llama-chat") + "' --text text.txt --windows 3 --window 24 " + options;
  }
  static bool solves(const Outcome& outcome) { return outcome.status != 5; }
};

TEST_F(Plans, FromMeasuringToTheModel) {
  const std::string formats = "--mode residue --formats nvfp4,mxfp4,e3m2,original ";
  const Outcome made = run(plan(formats + "--budget storage-bits=e3m2 --out p.json --json r.json "
                                          "--plot p.svg --points 5"));
  if (!solves(made)) GTEST_SKIP() << "built without CBC";
  ASSERT_EQ(made.status, 0) << made.err;
  const json::value report = json::parse(read_all(dir_ / "r.json"));
  EXPECT_EQ(report.at("uniform").as_array().size(), 12u);
  EXPECT_GT(report.at("curve").as_array().size(), 2u);
  EXPECT_SAYS(read_all(dir_ / "p.svg"), "</svg>");
  const json::value file = json::parse(read_all(dir_ / "p.json"));
  double uniform = 0;
  for (const json::value& row : report.at("uniform").as_array()) {
    if (row.at("option") != "e3m2") continue;
    uniform = row.at("kl_divergence").to_number<double>();
    EXPECT_LE(file.at("cost").at("bytes").to_number<int64_t>(),
              row.at("bytes").to_number<int64_t>());
  }
  EXPECT_LE(file.at("kl_divergence").to_number<double>(), uniform);

  // Another budget takes the kept measurements: no progress of measuring, the same table.
  const Outcome again = run(plan(formats + "--budget compute-bits=5 --budget bytes=e3m2 --out "
                                           "q.json --cache p.json.cache --points 5 --json -"));
  ASSERT_EQ(again.status, 0) << again.err;
  EXPECT_EQ(again.err.find("loading"), std::string::npos) << again.err;
  EXPECT_EQ(json::parse(again.out).at("uniform"), report.at("uniform"));
  EXPECT_LE(json::parse(again.out).at("plan").at("compute_bits").to_number<double>(), 5.0);

  const std::string quantize = "quantize '" + model("llama-chat") + "' ";
  EXPECT_SAYS(run(quantize + "o --plan q.json").err, "--text");
  EXPECT_FALSE(fs::exists(dir_ / "o"));
  const Outcome written = run(quantize + "o --plan q.json --text text.txt --length 24");
  ASSERT_EQ(written.status, 0) << written.err;
  const json::value residue = json::parse(read_all(dir_ / "o/sub8/residue.json"));
  const json::value planned = json::parse(read_all(dir_ / "q.json"));
  const json::value config = json::parse(read_all(dir_ / "o/config.json"));
  const json::object& stored = config.at("quantization_config").at("modules").as_object();
  for (const json::value& layer : planned.at("layers").as_array()) {
    for (const json::value& module : layer.at("modules").as_array()) {
      const std::string name(module.as_string());
      const std::string format(layer.at("format").as_string());
      ASSERT_EQ(stored.contains(name), format != "original") << name;
      if (!format.ends_with("fp4")) continue;
      EXPECT_EQ(residue.at("modules").at(name).at("prefill_ratio").to_number<double>(),
                layer.at("prefill_ratio").to_number<double>())
          << name;
    }
  }
  // The plan's ratios are in force without an option, and explain shows them.
  const Outcome shown = run("explain o --mode residue --rows prompt --batch 8 --json --no-measure");
  ASSERT_EQ(shown.status, 0) << shown.err;
  const json::array layers = json::parse(shown.out).at("layers").as_array();
  for (const json::value& layer : layers) {
    for (const json::value& wanted : planned.at("layers").as_array()) {
      if (wanted.at("modules").at(0) != layer.at("modules").at(0)) continue;
      EXPECT_EQ(layer.at("prefill_ratio").to_number<double>(),
                wanted.at("prefill_ratio").to_number<double>());
    }
  }
  const Outcome scored =
      run("eval '" + model("llama-chat") +
          "' --text text.txt --window 24 --max-windows 4 --sweep "
          "original,nvfp4+plain,@o+residue --baseline nvfp4+plain --json - --report r.html");
  ASSERT_EQ(scored.status, 0) << scored.err;
  const json::value rows = json::parse(scored.out).at("rows");
  EXPECT_EQ(rows.at(2).at("label"), "@o+residue");
  EXPECT_EQ(rows.at(1).at("kl_difference").at("high").to_number<double>(), 0);
  EXPECT_NEAR(rows.at(2).at("kl_difference").at("estimate").to_number<double>(),
              rows.at(2).at("kl_divergence").to_number<double>() -
                  rows.at(1).at("kl_divergence").to_number<double>(),
              1e-9);
  EXPECT_SAYS(read_all(dir_ / "r.html"), "</svg>");
}

TEST_F(Plans, MistakesLeaveNothing) {
  const Outcome made =
      run(plan("--formats nvfp4,original --budget bytes=nvfp4 --out p.json --cache c.json"));
  if (!solves(made)) GTEST_SKIP() << "built without CBC";
  ASSERT_EQ(made.status, 0) << made.err;
  const int before = entries();
  const auto refused = [&](const std::string& arguments, int status, const char* says) {
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.status, status) << arguments << "\n" << outcome.err;
    EXPECT_SAYS(outcome.err, says);
    EXPECT_EQ(entries(), before) << arguments;
  };
  const std::string cached = plan("--formats nvfp4,original --cache c.json ");
  refused(cached + "--out x.json --budget storage-bits=2", 2, "smallest one takes");
  refused(cached + "--out x.json", 2, "go together");
  refused(cached + "--out x.json --budget latency-us=5", 2, "bench layers");
  refused(cached + "--out x.json --budget compute-bits=5", 2, "--mode residue");
  refused(cached + "--out x.json --budget bytes=nan", 2, "number above 0");
  refused(plan("--formats nvfp4,q4_0 --points 2"), 2, "--formats");
  refused(plan("--ratios 0.3 --mode residue --points 2"), 2, "--ratios");
  refused(
      "plan '" + model("llama-chat") + "' --text text.txt --windows 2 --window 24 --cache c.json",
      2, "key.windows");
  refused("quantize '" + model("llama-tied") + "' o --plan p.json", 2, "another model");
  refused("quantize '" + model("llama-chat") + "' o --plan p.json --weights e3m2", 2, "either");
  refused("quantize '" + model("llama-chat") + "' o", 2, "either");
  refused("quantize '" + model("llama-chat") + "' o --plan p.json --text text.txt", 2,
          "leave out --text");
  refused("quantize '" + model("llama-chat") + "' o --plan p.json --skip down_proj", 2, "--skip");
  refused("quantize '" + model("llama-chat") + "' o --plan c.json", 2, "no plan");
  const std::string whole = read_all(dir_ / "p.json");
  std::ofstream(dir_ / "p.json") << whole.substr(0, whole.size() / 2);
  refused("quantize '" + model("llama-chat") + "' o --plan p.json", 4, "p.json");
  const std::string cache = read_all(dir_ / "c.json");
  std::ofstream(dir_ / "c.json") << cache.substr(0, cache.size() - 9);
  refused(cached, 4, "remove the file");
  EXPECT_EQ(read_all(dir_ / "c.json"), cache.substr(0, cache.size() - 9));
}

TEST_F(Plans, LatencyBudgetsTakeMeasuredTimes) {
  const Outcome measured = run("bench layers '" + model("llama-chat") +
                               "' --formats nvfp4,e3m2,original --rows 4 --repeat 2 --json t.json");
  ASSERT_EQ(measured.status, 0) << measured.err;
  const Outcome made =
      run(plan("--formats nvfp4,e3m2,original --latency t.json --budget latency-us=e3m2 --out "
               "p.json --curve latency-us"));
  if (!solves(made)) GTEST_SKIP() << "built without CBC";
  ASSERT_EQ(made.status, 0) << made.err;
  const json::value file = json::parse(read_all(dir_ / "p.json"));
  EXPECT_LE(file.at("cost").at("latency_us").to_number<double>(),
            file.at("budgets").at("latency-us").to_number<double>());
  EXPECT_EQ(run(plan("--formats nvfp4,e2m2 --latency t.json")).status, 3);
}

TEST_F(Plans, ExplainNamesEveryCandidate) {
  const Outcome table = run("explain '" + model("llama-chat") + "' --weights nvfp4 --mode residue");
  ASSERT_EQ(table.status, 0) << table.err;
  EXPECT_SAYS(table.out, "M-Ext");
  EXPECT_SAYS(table.out, "chosen");
  setenv("SUB8_CPU", "scalar", 1);
  const Outcome forced =
      run("explain '" + model("llama-chat") + "' --weights e3m2 --batch 3 --json");
  unsetenv("SUB8_CPU");
  ASSERT_EQ(forced.status, 0) << forced.err;
  const json::value report = json::parse(forced.out);
  EXPECT_EQ(report.at("path"), "scalar");
  for (const json::value& layer : report.at("layers").as_array()) {
    const json::array& candidates = layer.at("candidates").as_array();
    ASSERT_EQ(candidates.size(), 5u);
    EXPECT_EQ(candidates[0].at("state"), "chosen");
    EXPECT_GT(candidates[0].at("median_us").to_number<double>(), 0);
    EXPECT_SAYS(std::string(candidates[0].at("kernel").as_string()), "scalar");
    for (size_t i = 1; i < candidates.size(); ++i) {
      EXPECT_EQ(candidates[i].at("state"), "refused") << "nothing is below scalar";
      EXPECT_FALSE(candidates[i].at("reason").as_string().empty());
    }
  }
  const json::value free = json::parse(
      run("explain '" + model("llama-chat") + "' --weights e3m2 --json --no-measure").out);
  const json::value& next = free.at("layers").at(0).at("runner_up");
  EXPECT_EQ(next.is_null(), free.at("path") == "scalar");
}

// 4-bit activations are multiplied as codes; the same rows as bf16 values are the alternative.
TEST_F(Plans, ExplainNamesTheKernelOfFourBitActivations) {
  for (const char* path : {"scalar", ""}) {
    if (*path != 0) setenv("SUB8_CPU", path, 1);
    const Outcome got = run("explain '" + model("llama-chat") +
                            "' --weights mxfp4 --mode plain --batch 2 --no-measure --json");
    unsetenv("SUB8_CPU");
    ASSERT_EQ(got.status, 0) << got.err;
    const json::value report = json::parse(got.out);
    for (const json::value& layer : report.at("layers").as_array()) {
      if (layer.at("format") != "mxfp4") continue;
      EXPECT_SAYS(std::string(layer.at("kernel").as_string()), "linear_mxfp4_e2m1_");
      const json::value& next = layer.at("candidates").at(1);
      EXPECT_SAYS(std::string(next.at("kernel").as_string()), "linear_mxfp4_bf16_");
      EXPECT_EQ(next.at("state"), "slower");
    }
  }
}

TEST_F(Plans, BenchResidueMeasuresEveryForm) {
  const Outcome got = run(
      "bench residue --formats nvfp4,mxfp4 --shapes 96x160 --rows 1,3 --prompt-rows 20 --ratios "
      "0.25,0.5 --seconds 0.01 --json -");
  ASSERT_EQ(got.status, 0) << got.err;
  const json::value report = json::parse(got.out);
  EXPECT_GT(report.at("byte_gop_per_s").to_number<double>(), 0);
  const json::array& results = report.at("results").as_array();
  ASSERT_EQ(results.size(), 6u);
  for (const json::value& result : results) {
    const bool prompt = result.at("rows") == "prompt";
    std::map<std::string, const json::value*> forms;
    for (const json::value& form : result.at("forms").as_array()) {
      forms[std::string(form.at("form").as_string())] = &form;
      EXPECT_GT(form.at("best_us").to_number<double>(), 0);
      EXPECT_GT(form.at("floor_us").to_number<double>(), 0);
    }
    EXPECT_TRUE(forms.contains("weight-only") && forms.contains("M-Ext"));
    EXPECT_EQ(forms.at("plain")->at("over_plain").to_number<double>(), 1.0);
    EXPECT_EQ(forms.contains("K-Ext 0.25"), prompt);
    if (!prompt) continue;
    // 20 masks besides: 20 bytes of 96 * (80 + 10) or (80 + 5).
    const double growth = forms.at("K-Ext 0.5")->at("storage_growth").to_number<double>();
    EXPECT_GT(growth, 0.5);
    EXPECT_LT(growth, 0.52);
  }
  EXPECT_EQ(run("bench residue --formats e3m2 --shapes 96x160").status, 2);
  EXPECT_EQ(run("bench residue --ratios 0.3 --prompt-rows 2 --rows 1 --shapes 96x160 "
                "--seconds 0.01")
                .status,
            2);
  EXPECT_SAYS(run("bench residue --shapes 96x").err, "neither NxK");
  EXPECT_SAYS(run("bench residue --cpu-time --threads 2").err, "--threads 1");
}

TEST_F(Plans, ReportsNameTheirBaseline) {
  const std::string evaluate = "eval '" + model("llama-chat") + "' --text text.txt --window 24 ";
  const Outcome table = run(evaluate + "--max-windows 3 --sweep original,e3m2,nvfp4 --report r.md");
  ASSERT_EQ(table.status, 0) << table.err;
  EXPECT_SAYS(table.out, "differences to original");
  const std::string page = read_all(dir_ / "r.md");
  EXPECT_SAYS(page, "Differences to original");
  EXPECT_SAYS(page, "r-kl_divergence.svg");
  EXPECT_SAYS(read_all(dir_ / "r-weight_nmse.svg"), "</svg>");
  const auto rows = [&](const std::string& options) {
    return json::parse(run(evaluate + "--sweep original,e3m2 --json - " + options).out).at("rows");
  };
  EXPECT_EQ(rows("").at(1).at("kl_difference"),
            rows("--bootstrap-seed 42").at(1).at("kl_difference"));
  EXPECT_TRUE(rows("--max-windows 1").at(1).at("kl_difference").is_null());
  const std::string absent = "eval absent --text text.txt ";
  EXPECT_SAYS(run(absent + "--sweep e3m2 --baseline nvfp4").err, "none of the sweep's rows");
  EXPECT_SAYS(run(absent + "--baseline nvfp4").err, "--sweep");
  EXPECT_SAYS(run(absent + "--report r.pdf").err, ".md or .html");
  EXPECT_SAYS(run(absent + "--sweep @").err, "@out/planned");
}

}  // namespace
}  // namespace sub8
