// What calibration is used for: static alphas, KV scales, masks of weights that are quantised at
// load, AWQ, exported input scales; and what does not fit.
#include <boost/json.hpp>

#include "program.h"

namespace sub8 {
namespace {

namespace fs = std::filesystem;
namespace json = boost::json;

class CalibrationCli : public Cli {
 protected:
  void SetUp() override {
    Cli::SetUp();
    std::string words;
    for (int i = 0; i < 700; ++i) words += fmt::format("Some words {} of a text. ", i * 7 % 50);
    std::ofstream(dir_ / "text.txt") << words;
  }
  static constexpr const char* kSize = " --text text.txt --samples 4 --length 32 ";
  std::string chat() const { return "'" + model("llama-chat") + "' "; }
  json::value eval(const std::string& arguments) {
    const Outcome got = run("eval " + arguments + " --text text.txt --window 32 --json -");
    EXPECT_EQ(got.status, 0) << got.err;
    err_ = got.err;
    return got.status == 0 ? json::parse(got.out) : json::value();
  }
  void refused(const std::string& arguments, const std::string& what, int status = 2) {
    const Outcome got = run(arguments);
    EXPECT_EQ(got.status, status) << arguments << "\n" << got.err;
    EXPECT_NE(got.err.find(what), std::string::npos) << arguments << "\n" << got.err;
  }
  std::string err_;
};

TEST_F(CalibrationCli, AlphasAndKvScalesAreUsedAndSaid) {
  ASSERT_EQ(run("quantize " + chat() + "q --weights nvfp4 --layout sub8").status, 0);
  const Outcome made = run(std::string("calibrate q --alpha static") + kSize);
  ASSERT_EQ(made.status, 0) << made.err;
  EXPECT_NE(made.out.find("KV scales of 2 layers; alpha of activations: static"), std::string::npos)
      << made.out;
  const auto scored = [&](const std::string& options) {
    const json::value report = eval("q --max-windows 2 " + options);
    return std::tuple(report.at("mean_nll").to_number<double>(), report.at("alpha"),
                      report.at("kv_scales"));
  };
  const auto named = scored("--mode plain");
  EXPECT_NE(err_.find("mode plain, static alphas"), std::string::npos) << err_;
  EXPECT_EQ(std::get<1>(named), "static");
  EXPECT_TRUE(std::get<2>(named).is_null());
  EXPECT_EQ(scored("--mode plain --alpha static"), named);
  const auto row = scored("--mode plain --alpha row");
  EXPECT_EQ(std::get<1>(row), "row");
  EXPECT_NE(std::get<0>(row), std::get<0>(named));
  const auto tensor = scored("--mode fp8 --alpha tensor");
  EXPECT_EQ(std::get<1>(tensor), "tensor");
  EXPECT_NE(err_.find("not batch-invariant"), std::string::npos) << err_;
  const auto cache = scored("--kv-cache-dtype fp8");
  EXPECT_EQ(std::get<2>(cache), "calibrated");
  EXPECT_NE(err_.find("KV cache fp8, scales calibrated"), std::string::npos) << err_;
  const Outcome answer =
      run("run q --prompt hi --max-tokens 2 --mode residue --kv-cache-dtype nvfp4");
  EXPECT_NE(answer.err.find(", static alphas"), std::string::npos) << answer.err;
  EXPECT_NE(answer.err.find("scales calibrated"), std::string::npos) << answer.err;
  // The same facts without loading, and layer by layer.
  const Outcome shown = run("inspect q");
  EXPECT_NE(shown.out.find("calibration: 128 tokens of text.txt"), std::string::npos) << shown.out;
  EXPECT_NE(shown.out.find("alpha of activations: static"), std::string::npos);
  EXPECT_NE(shown.out.find("columns for ratio 0.25: 14 modules"), std::string::npos) << shown.out;
  const json::value facts = json::parse(run("inspect q --json").out).at("calibration");
  EXPECT_EQ(facts.at("activation_alpha"), "static");
  EXPECT_EQ(facts.at("kv_scale_layers"), 2);
  const json::value layers =
      json::parse(run("explain q --mode plain --no-measure --json").out).at("layers");
  EXPECT_EQ(layers.at(0).at("alpha"), "static");
  EXPECT_GT(layers.at(0).at("static_alpha").to_number<double>(), 0.0);
  // Without the calibration the row's own maximum is taken.
  fs::remove_all(dir_ / "q/sub8");
  EXPECT_EQ(scored("--mode plain"), row);
  EXPECT_EQ(std::get<2>(scored("--kv-cache-dtype fp8")), "1");
  refused("eval q --text text.txt --window 32 --mode plain --alpha static",
          "static alphas need a calibration", 5);
  refused("eval q --text text.txt --window 32 --alpha static", "not to 'weight-only'");
  refused("eval q --text text.txt --window 32 --mode plain --alpha max", "--alpha must be one of");
  refused(std::string("calibrate q --alpha tensor") + kSize, "--alpha must be auto, row or static");
}

TEST_F(CalibrationCli, ACalibrationBelongsToItsWeights) {
  const std::string quantize = "quantize " + chat();
  ASSERT_EQ(run(quantize + "a --weights mxfp4").status, 0);
  ASSERT_EQ(run(quantize + "b --weights mxfp4 --mx-rule ceil").status, 0);
  ASSERT_EQ(run(std::string("calibrate a") + kSize).status, 0);
  fs::copy(dir_ / "a/sub8/residue.json", dir_ / "b/sub8/residue.json");
  fs::copy(dir_ / "a/sub8/residue.safetensors", dir_ / "b/sub8/residue.safetensors");
  const std::string evaluate = " --text text.txt --window 32 --mode residue";
  refused("eval b" + evaluate, "made for another model: the weights' values differ", 4);
  refused("eval b --calibration a" + evaluate, "made for another model", 4);
  EXPECT_NE(run("inspect b").out.find("calibration: cannot be used: "), std::string::npos);
  EXPECT_EQ(run("eval b --text text.txt --window 32").status, 0) << "not used, so not read";
  // Everything else in the folder survives a calibration.
  ASSERT_EQ(run(std::string("calibrate b --overwrite") + kSize).status, 0);
  EXPECT_TRUE(fs::exists(dir_ / "b/sub8/provenance.json"));
  EXPECT_EQ(run("eval b --max-windows 1" + evaluate).status, 0);
}

// A full disk leaves the old pair, whole.
TEST_F(CalibrationCli, AFailedReplacementLeavesTheOldPair) {
  ASSERT_EQ(run("quantize " + chat() + "q --weights nvfp4").status, 0);
  ASSERT_EQ(run(std::string("calibrate q") + kSize).status, 0);
  const std::string before =
      read_all(dir_ / "q/sub8/residue.json") + read_all(dir_ / "q/sub8/residue.safetensors");
  // No file may grow beyond 8 blocks of 512 bytes, which is less than either of the two.
  const Outcome failed = shell(fmt::format(
      "(trap '' XFSZ; ulimit -f 8; '{}' calibrate q --overwrite --seed 7 {})", SUB8_BINARY, kSize));
  EXPECT_NE(failed.status, 0);
  EXPECT_EQ(read_all(dir_ / "q/sub8/residue.json") + read_all(dir_ / "q/sub8/residue.safetensors"),
            before);
  EXPECT_EQ(std::distance(fs::directory_iterator(dir_ / "q/sub8"), {}), 3);
  for (const auto& entry : fs::directory_iterator(dir_ / "q"))
    EXPECT_FALSE(entry.path().filename().string().starts_with(".")) << entry.path();
  EXPECT_EQ(run("run q --prompt hi --max-tokens 1 --mode residue").status, 0);
}

TEST_F(CalibrationCli, MasksServeFormatsChosenAtLoad) {
  const Outcome made = run("calibrate " + chat() + "--out c" + kSize);
  ASSERT_EQ(made.status, 0) << made.err;
  const json::value report =
      eval(chat() +
           "--calibration c --max-windows 3 --sweep "
           "original,nvfp4+plain,nvfp4+residue+ratio=0.25,nvfp4+residue+ratio=1,mxfp4+residue,"
           "nvfp4+plain+alpha=static,original+kv=fp8");
  const json::array& rows = report.at("rows").as_array();
  const auto kld = [&](size_t i) { return rows[i].at("kl_divergence").to_number<double>(); };
  EXPECT_LT(kld(2), kld(1));
  EXPECT_LT(kld(3), kld(2));
  EXPECT_EQ(rows[0].at("mode"), "weight-only");
  EXPECT_TRUE(rows[0].at("prefill_ratio").is_null());
  EXPECT_EQ(rows[1].at("mode"), "plain");
  EXPECT_EQ(rows[2].at("prefill_ratio").to_number<double>(), 0.25);
  EXPECT_EQ(rows[3].at("prefill_ratio").to_number<double>(), 1.0);
  EXPECT_EQ(rows[4].at("prefill_ratio").to_number<double>(), 0.25) << "masks at hand";
  EXPECT_EQ(rows[5].at("alpha"), "static");
  EXPECT_EQ(rows[5].at("label"), "nvfp4+plain+alpha=static");
  EXPECT_EQ(rows[6].at("kv_scales"), "calibrated");
  // What is quantised at load equals what was quantised before.
  ASSERT_EQ(run("quantize " + chat() + "q --weights nvfp4").status, 0);
  ASSERT_EQ(run("calibrate q --original " + chat() + kSize).status, 0);
  EXPECT_EQ(run("run " + chat() + "--prompt hi --calibration c").status, 2) << "no use for it";
  EXPECT_EQ(run("run " + chat() + "--prompt hi --calibration nowhere --mode plain").status, 3);
  refused("eval " + chat() +
              "--text text.txt --window 32 --weights nvfp4 --mode residue "
              "--prefill-ratio 0.5",
          "needs calibrated channel masks", 5);
}

TEST_F(CalibrationCli, AwqIsFoldedAndGoesWithTheResidue) {
  const std::string quantize = "quantize " + chat();
  const Outcome made = run(quantize + "a --weights nvfp4 --awq --json awq.json" + kSize);
  ASSERT_EQ(made.status, 0) << made.err;
  EXPECT_NE(made.out.find("of 8 inputs scaled"), std::string::npos) << made.out;
  const json::value report = json::parse(read_all(dir_ / "awq.json")).at("awq");
  ASSERT_EQ(report.at("inputs").as_array().size(), 8u);
  for (const json::value& site : report.at("inputs").as_array())
    EXPECT_LE(site.at("relative_error").to_number<double>(), 1.0);
  // ModelOpt's layout and no tensor that others do not know.
  EXPECT_EQ(
      json::parse(read_all(dir_ / "a/config.json")).at("quantization_config").at("quant_method"),
      "modelopt");
  EXPECT_NE(run("inspect a").out.find("AWQ: "), std::string::npos);
  // The same bytes whatever the threads; with a calibration whose columns are scaled ones.
  ASSERT_EQ(run(quantize + "b --weights nvfp4 --awq --threads 1" + kSize).status, 0);
  EXPECT_EQ(read_all(dir_ / "a/model.safetensors"), read_all(dir_ / "b/model.safetensors"));
  EXPECT_EQ(read_all(dir_ / "a/sub8/residue.safetensors"),
            read_all(dir_ / "b/sub8/residue.safetensors"));
  ASSERT_EQ(run("calibrate b --overwrite --original " + chat() + kSize).status, 0);
  EXPECT_EQ(read_all(dir_ / "a/sub8/residue.safetensors"),
            read_all(dir_ / "b/sub8/residue.safetensors"));
  EXPECT_TRUE(fs::exists(dir_ / "b/sub8/awq.safetensors"));
  const json::value scored = eval(chat() +
                                  "--max-windows 3 --sweep nvfp4,@a,@a+plain,@a+residue+ratio=0.25,"
                                  "@a+residue+ratio=1");
  const auto kld = [&](size_t i) {
    return scored.at("rows").at(i).at("kl_divergence").to_number<double>();
  };
  EXPECT_LT(kld(1), kld(2));
  EXPECT_LT(kld(3), kld(2));
  EXPECT_LT(kld(4), kld(3));
  // Weights are compared with the scaled original: rounding only.
  for (const json::value& error : scored.at("rows").at(1).at("weight_nmse").as_array())
    EXPECT_LT(error.at("nmse").to_number<double>(), 0.02);
  refused(quantize + "c --weights nvfp4 --awq", "give --text");
  refused(quantize + "c --weights nvfp4 --awq --export-input-scales" + kSize,
          "leave out --export-input-scales");
  refused(quantize + "c --weights nvfp4 --awq --text text.txt --length 100000", "--length");
  EXPECT_FALSE(fs::exists(dir_ / "c"));
}

TEST_F(CalibrationCli, InputScalesAreExportedAndCarried) {
  ASSERT_EQ(run("calibrate " + chat() + "--out c" + kSize).status, 0);
  const std::string quantize = "quantize " + chat();
  for (const char* layout : {"modelopt", "compressed-tensors", "sub8"}) {
    SCOPED_TRACE(layout);
    const std::string name = layout;
    const Outcome made = run(quantize + name +
                             " --weights nvfp4 --export-input-scales "
                             "--calibration c --layout " +
                             name);
    ASSERT_EQ(made.status, 0) << made.err;
    const Outcome shown = run("eval " + name +
                              " --text text.txt --window 32 --max-windows 1 "
                              "--mode plain --json -");
    ASSERT_EQ(shown.status, 0) << shown.err;
    EXPECT_EQ(json::parse(shown.out).at("alpha"), "static");
  }
  EXPECT_EQ(json::parse(read_all(dir_ / "modelopt/config.json"))
                .at("quantization_config")
                .at("quant_algo"),
            "NVFP4");
  EXPECT_EQ(json::parse(read_all(dir_ / "modelopt/hf_quant_config.json"))
                .at("quantization")
                .at("quant_algo"),
            "NVFP4");
  // From one export to the next: kept in sub8's layout, said where not.
  ASSERT_EQ(run("quantize modelopt kept --weights e2m2").status, 0);
  const json::value kept = eval("kept --max-windows 1 --mode fp8 --alpha static");
  EXPECT_EQ(kept.at("alpha"), "static");
  const Outcome dropped = run("quantize modelopt dropped --weights nvfp4");
  EXPECT_NE(dropped.err.find("activation scales are left out"), std::string::npos) << dropped.err;
  refused(quantize + "x --weights nvfp4 --export-input-scales", "no static activation scale for");
  refused(quantize + "x --weights mxfp4 --export-input-scales --calibration c", "MX formats have");
  refused(quantize + "x --weights nvfp4 --calibration c", "--export-input-scales");
}

TEST_F(CalibrationCli, BaselinesAndRulesThatDoNotApplyAreNamed) {
  const std::string quantize = "quantize " + chat() + "x ";
  refused(quantize + "--weights int4", "int4 is a baseline for measurements", 5);
  refused(quantize + "--weights int4:g128", "int4:g128 is a baseline", 5);
  refused(quantize + "--weights nvfp4 --lm-head int8", "--lm-head: int8 is a baseline", 5);
  refused(quantize + "--weights nvfp4 --override down_proj=int4", "--override: int4", 5);
  refused(quantize + "--weights nvfp4 --mx-rule ceil", "--mx-rule is for MX formats");
  refused(quantize + "--weights e3m2 --mx-rule even", "--mx-rule is for MX formats");
  EXPECT_EQ(run(quantize + "--weights e3m2 --override down_proj=mxfp4 --mx-rule ceil").status, 0);
  refused("plan " + chat() + "--text text.txt --formats nvfp4 --mx-rule ceil",
          "--mx-rule is for MX formats");
  ASSERT_EQ(run("quantize " + chat() + "q --weights nvfp4").status, 0);
  refused(std::string("calibrate q --mx-rule ceil") + kSize, "--mx-rule is for the extension");
}

TEST_F(CalibrationCli, OneWindowHasNoStandardError) {
  const json::value one = eval(chat() + "--max-windows 1");
  EXPECT_TRUE(one.at("nll_standard_error").is_null());
  EXPECT_TRUE(one.at("per_window").at(0).at("kl_divergence").is_null());
  EXPECT_EQ(one.as_object().count("kl_divergence"), 0u);
  const json::value two = eval(chat() + "--max-windows 2 --reference " + chat());
  EXPECT_FALSE(two.at("nll_standard_error").is_null());
  EXPECT_FALSE(two.at("kl_standard_error").is_null());
  EXPECT_FALSE(two.at("per_window").at(0).at("kl_divergence").is_null());
  EXPECT_EQ(two.at("mode"), "weight-only");
}

}  // namespace
}  // namespace sub8
