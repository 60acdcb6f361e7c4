// KV caches and kinds of attention from the command line.
#include <fstream>

#include <boost/json.hpp>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "program.h"

namespace sub8 {
namespace {

namespace json = boost::json;

class KvCacheCli : public Cli {
 protected:
  void SetUp() override {
    Cli::SetUp();
    std::string text;
    for (int i = 0; i < 60; ++i) text += fmt::format("line {} of a text. ", i);
    std::ofstream(dir_ / "text.txt") << text;
  }
};

TEST_F(KvCacheCli, WhatIsInForceIsShown) {
  const std::string base =
      "run '" + model("llama-chat") + "' --prompt hi --temperature 0 --max-tokens 8 ";
  const Outcome usual = run(base + "--json");
  ASSERT_EQ(usual.status, 0) << usual.err;
  EXPECT_SAYS(usual.err, "KV cache bf16 (");
  const Outcome fp4 = run(base + "--kv-cache-dtype nvfp4 --attention resattn");
  ASSERT_EQ(fp4.status, 0) << fp4.err;
  EXPECT_SAYS(fp4.err, "KV cache nvfp4 (");
  EXPECT_SAYS(fp4.err, "attention of generated rows resattn");
  EXPECT_SAYS(run(base + "--kv-cache-dtype fp8").err, "KV cache fp8 (");
  // The residue mode brings ResAttn with it.
  EXPECT_SAYS(run(base + "--weights nvfp4 --mode residue --kv-cache-dtype nvfp4").err,
              "generated rows resattn");
  const Outcome wrong = run(base + "--attention resattn");
  EXPECT_EQ(wrong.status, 5);
  EXPECT_SAYS(wrong.err, "'resattn' needs nvfp4 KV pages, and these are bf16");
  EXPECT_EQ(run(base + "--attention int4").status, 2);
  const Outcome exact =
      run(base + "--activations f32 --kv-cache-dtype nvfp4 --attention fp4-query");
  EXPECT_EQ(exact.status, 2);
  EXPECT_SAYS(exact.err, "f32 activations");
}

TEST_F(KvCacheCli, InspectSaysWhatATokenCosts) {
  EXPECT_SAYS(run("inspect '" + model("llama-chat") + "'").out, "KV cache per token: f32 ");
  const json::value report = json::parse(run("inspect '" + model("llama-chat") + "' --json").out);
  const json::object& bytes = report.at("kv_token_bytes").as_object();
  const auto of = [&](const char* type) { return bytes.at(type).to_number<int64_t>(); };
  const int64_t elements = 2 * report.at("layers").to_number<int64_t>() *
                           report.at("kv_heads").to_number<int64_t>() *
                           report.at("head_dim").to_number<int64_t>();
  EXPECT_EQ(of("f32"), 4 * elements);
  EXPECT_EQ(of("bf16"), 2 * elements);
  EXPECT_EQ(of("fp8"), elements);
  EXPECT_EQ(of("nvfp4"), elements / 2 + elements / 16);  // head_dim is a multiple of 16
}

TEST_F(KvCacheCli, SweepsTakeCachesAndAttention) {
  const std::string evaluate =
      "eval '" + model("llama-chat") + "' --text text.txt --window 16 --max-windows 4 --json - ";
  const Outcome sweep = run(evaluate +
                            "--rows generated --sweep original,original+kv=nvfp4,"
                            "original+kv=nvfp4+fp4-query,original+kv=nvfp4+resattn");
  ASSERT_EQ(sweep.status, 0) << sweep.err;
  const json::array rows = json::parse(sweep.out).at("rows").as_array();
  ASSERT_EQ(rows.size(), 4u);
  const auto kld = [&](size_t i) { return rows[i].at("kl_divergence").to_number<double>(); };
  EXPECT_LT(kld(0), 1e-12);
  EXPECT_GT(kld(1), 0);
  EXPECT_EQ(rows[1].at("kv_cache_dtype"), "nvfp4");
  EXPECT_EQ(rows[1].at("attention"), "16-bit");
  EXPECT_EQ(rows[3].at("attention"), "resattn");
  EXPECT_EQ(rows[3].at("label"), "original+kv=nvfp4+resattn");
  EXPECT_NE(rows[2].at("per_window"), rows[3].at("per_window"));
  // Alone it gives the same; prompt rows never have quantised queries.
  const Outcome alone =
      run(evaluate + "--kv-cache-dtype nvfp4 --attention resattn --rows generated");
  EXPECT_EQ(json::parse(alone.out).at("perplexity"), rows[3].at("perplexity"));
  const Outcome prompt = run(evaluate + "--kv-cache-dtype nvfp4 --attention resattn");
  EXPECT_EQ(json::parse(prompt.out).at("perplexity"), rows[1].at("perplexity"));
  EXPECT_SAYS(run(evaluate + "--sweep original+kv=int4").err, "f32, bf16, fp8 or nvfp4");
  EXPECT_SAYS(run(evaluate + "--sweep original+resattn+fp4-query").err, "a kind of attention");
}

TEST_F(KvCacheCli, OperatorsAreMeasured) {
  const Outcome outcome =
      run("eval '" + model("llama-chat") +
          "' --text text.txt --window 64 --operators --operator-rows 40 --json -");
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const json::value report = json::parse(outcome.out);
  const auto nmse = [&](const char* list, const std::string& variant, const char* key = "nmse") {
    for (const json::value& entry : report.at(list).as_array()) {
      if (entry.at("variant").as_string() == variant) return entry.at(key).to_number<double>();
    }
    ADD_FAILURE() << "no variant " << variant;
    return 0.0;
  };
  for (const std::string weights : {"nvfp4", "mxfp4", "mxfp4-ceil"}) {
    const double plain = nmse("linear", weights + " plain");
    const double residue = nmse("linear", weights + " residue");
    const double weight_only = nmse("linear", weights + " weight-only");
    EXPECT_GT(weight_only, 0);
    EXPECT_GT(plain, 1.1 * weight_only);
    EXPECT_LT(residue - weight_only, 0.2 * (plain - weight_only));
    // K-Ext: the error falls with the ratio, from plain to the full residue.
    double before = plain;
    for (const std::string ratio : {" residue 0.125", " residue 0.25", " residue 0.5"}) {
      const double now = nmse("linear", weights + ratio);
      EXPECT_LT(now, before) << weights << ratio;
      before = now;
    }
    EXPECT_LT(residue, before) << weights;
  }
  EXPECT_EQ(nmse("attention", "nvfp4 KV, 16-bit"), 0);
  EXPECT_GT(nmse("attention", "nvfp4 KV, 16-bit", "nmse_original_kv"), 0);
  EXPECT_LT(nmse("attention", "nvfp4 KV, resattn"), nmse("attention", "nvfp4 KV, fp4-query"));
  EXPECT_LT(nmse("attention", "nvfp4 KV, resattn-pv16"), nmse("attention", "nvfp4 KV, resattn"));
  EXPECT_FALSE(report.at("block_scales").as_array().empty());
  // One thread gives the same figures.
  const Outcome again =
      run("eval '" + model("llama-chat") +
          "' --text text.txt --window 64 --operators --operator-rows 40 --json - --threads 1");
  EXPECT_EQ(again.out, outcome.out);
  EXPECT_EQ(
      run("eval '" + model("llama-chat") + "' --text text.txt --operators --mode plain").status, 2);
  EXPECT_EQ(run("eval '" + model("llama-chat") +
                "' --text text.txt --operators --window 64 --max-windows 100000")
                .status,
            2);
}

}  // namespace
}  // namespace sub8
