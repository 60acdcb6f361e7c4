// Whole checkpoints: quantise, read back, compare with quantising at load; refusals leave nothing.
#include "quantize/quantize.h"

#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <unistd.h>

#include "base/file.h"
#include "checkpoint/wrapped_source.h"
#include "quantize/load_source.h"

namespace sub8::quantize {
namespace {

namespace fs = std::filesystem;
using checkpoint::WeightInfo;
using checkpoint::WeightKind;
using checkpoint::WeightSource;

class Quantize : public ::testing::Test {
 protected:
  void SetUp() override {
    directory_ = fs::temp_directory_path() / ("sub8_quantize_test_" + std::to_string(getpid()));
    fs::remove_all(directory_);
    fs::create_directories(directory_);
  }
  void TearDown() override { fs::remove_all(directory_); }

  static std::unique_ptr<WeightSource> open(const fs::path& path) {
    auto source = checkpoint::open_checkpoint(path);
    EXPECT_TRUE(source.ok()) << source.error().message;
    return source.ok() ? std::move(source).value() : nullptr;
  }
  static fs::path model(const std::string& name) {
    return fs::path(SUB8_TEST_DATA) / "models" / name;
  }
  static Recipe recipe(const std::string& name) {
    return Recipe{.weights = *format::parse_weight_format(name)};
  }
  Result<QuantizeReport> run(const std::string& name, const Recipe& r, const std::string& out,
                             int threads = 2) {
    ThreadPool pool(threads);
    return quantize_checkpoint(*open(model(name)), r, {.directory = directory_ / out}, pool, {});
  }

  // The file that was written and the source that quantises at load agree on every bit.
  void expect_equal_to_load(const std::string& name, const Recipe& r, const std::string& out) {
    const auto written = open(directory_ / out);
    auto loaded = quantize_at_load(open(model(name)), r, 2);
    ASSERT_TRUE(loaded.ok()) << loaded.error().message;
    for (const WeightInfo& info : written->weights()) {
      if (info.kind == WeightKind::kVector) {
        EXPECT_EQ(*written->vector(info.name), *(*loaded)->vector(info.name)) << info.name;
        continue;
      }
      const auto a = written->matrix(info.name, format::DType::kBF16);
      const auto b = (*loaded)->matrix(info.name, format::DType::kBF16);
      ASSERT_TRUE(a.ok() && b.ok()) << info.name;
      EXPECT_EQ(a->format, b->format) << info.name;
      EXPECT_TRUE(std::equal(a->codes.begin(), a->codes.end(), b->codes.begin(), b->codes.end()))
          << info.name;
      EXPECT_TRUE(std::equal(a->block_scales.begin(), a->block_scales.end(),
                             b->block_scales.begin(), b->block_scales.end()))
          << info.name;
      EXPECT_EQ(a->outer_scales, b->outer_scales) << info.name;
      std::vector<float> x(static_cast<size_t>(info.cols));
      std::vector<float> y(x.size());
      ASSERT_TRUE(written->decode_rows(info.name, info.rows - 1, 1, x).ok());
      ASSERT_TRUE((*loaded)->decode_rows(info.name, info.rows - 1, 1, y).ok());
      EXPECT_EQ(x, y) << info.name;
    }
  }

  fs::path directory_;
};

TEST_F(Quantize, EveryFormatReadsBackAsQuantisedAtLoad) {
  for (const char* name :
       {"e3m2", "e2m0", "e4m3", "e2m1:g32", "nvfp4", "mxfp4", "mxfp6_e2m3", "mxfp8"}) {
    for (const ScaleMethod method : {ScaleMethod::kAmax, ScaleMethod::kMse}) {
      Recipe r = recipe(name);
      r.rules.scale = method;
      const std::string out = std::string(name) + (method == ScaleMethod::kMse ? "-mse" : "");
      const auto report = run("llama", r, out);
      ASSERT_TRUE(report.ok()) << name << ": " << report.error().message;
      int quantised = 0;
      for (const LayerReport& layer : report->layers) {
        if (!layer.nmse) continue;
        EXPECT_GT(*layer.nmse, 0) << layer.name;
        EXPECT_LT(*layer.nmse, 0.1) << layer.name;
        ++quantised;
      }
      EXPECT_EQ(quantised, 14);
      expect_equal_to_load("llama", r, out);
    }
  }
}

TEST_F(Quantize, CompressedTensorsLayoutReadsBack) {
  Recipe r = recipe("nvfp4");
  r.layout = Layout::kCompressedTensors;
  ASSERT_TRUE(run("llama", r, "ct").ok());
  expect_equal_to_load("llama", r, "ct");
}

TEST_F(Quantize, LayoutsAndSharedTensorScales) {
  const auto report = run("llama", recipe("nvfp4"), "nvfp4");
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(report->layout, Layout::kModelOpt);
  EXPECT_TRUE(fs::exists(directory_ / "nvfp4/hf_quant_config.json"));
  EXPECT_TRUE(fs::exists(directory_ / "nvfp4/sub8/provenance.json"));
  const auto source = open(directory_ / "nvfp4");
  const auto scale = [&](const std::string& module) {
    return source->matrix("model.layers.0." + module, format::DType::kBF16)->outer_scales.at(0);
  };
  EXPECT_EQ(scale("self_attn.q_proj"), scale("self_attn.k_proj"));
  EXPECT_EQ(scale("self_attn.q_proj"), scale("self_attn.v_proj"));
  EXPECT_EQ(scale("mlp.gate_proj"), scale("mlp.up_proj"));
  EXPECT_NE(scale("self_attn.q_proj"), scale("mlp.down_proj"));
  EXPECT_EQ(run("llama", recipe("mxfp4"), "mxfp4")->layout, Layout::kCompressedTensors);
  EXPECT_EQ(run("llama", recipe("e3m2"), "e3m2")->layout, Layout::kSub8);
}

// A model with another kind of source: static KV scales, as ModelOpt exports have them.
class WithKvScales final : public checkpoint::WrappedSource {
 public:
  WithKvScales(std::unique_ptr<WeightSource> source, std::string scheme)
      : WrappedSource(std::move(source)) {
    kv_cache_scheme_ = std::move(scheme);
    for (const checkpoint::WeightInfo& info : this->source().weights()) add_weight(info);
  }
  Result<std::optional<float>> kv_scale(int64_t layer, bool value_side) const override {
    if (layer == 1 && value_side) return std::optional<float>();  // one is missing: it stays so
    return std::optional<float>(0.25F + static_cast<float>(layer) + (value_side ? 8.0F : 0.0F));
  }
};

TEST_F(Quantize, KvScalesAreCarriedOver) {
  ThreadPool pool(2);
  const std::tuple<const char*, Layout, const char*> cases[] = {
      {"e3m2", Layout::kSub8, "fp8"},
      {"e3m2", Layout::kSub8, "nvfp4"},
      {"nvfp4", Layout::kModelOpt, "fp8"},
      {"nvfp4", Layout::kModelOpt, "nvfp4"},
      {"nvfp4", Layout::kCompressedTensors, "fp8"},
      {"mxfp4", Layout::kCompressedTensors, "fp8"}};
  for (const auto& [format, layout, scheme] : cases) {
    SCOPED_TRACE(std::string(format) + " " + std::string(layout_name(layout)) + " " + scheme);
    const WithKvScales source(open(model("llama")), scheme);
    Recipe r = recipe(format);
    r.layout = layout;
    const fs::path out = directory_ / "kv";
    const auto report =
        quantize_checkpoint(source, r, {.directory = out, .overwrite = true}, pool, {});
    ASSERT_TRUE(report.ok()) << report.error().message;
    const auto written = open(out);
    EXPECT_EQ(written->kv_cache_scheme(), scheme);
    EXPECT_TRUE(written->ignored().empty());
    for (const int64_t layer : {0, 1}) {
      for (const bool value_side : {false, true}) {
        EXPECT_EQ(written->kv_scale(layer, value_side).value(),
                  source.kv_scale(layer, value_side).value());
      }
    }
  }
  const WithKvScales source(open(model("llama")), "nvfp4");
  Recipe r = recipe("nvfp4");
  r.layout = Layout::kCompressedTensors;
  const auto refused = quantize_checkpoint(source, r, {.directory = directory_ / "x"}, pool, {});
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kUnsupported);
  EXPECT_NE(refused.error().message.find("NVFP4 KV cache"), std::string::npos);
}

TEST_F(Quantize, BytesDoNotDependOnThreads) {
  ASSERT_TRUE(run("llama", recipe("nvfp4"), "one", 1).ok());
  ASSERT_TRUE(run("llama", recipe("nvfp4"), "three", 3).ok());
  for (const char* file : {"model.safetensors", "config.json", "sub8/provenance.json"}) {
    EXPECT_EQ(*read_file(directory_ / "one" / file), *read_file(directory_ / "three" / file))
        << file;
  }
}

TEST_F(Quantize, TiedHeadIsStoredOnce) {
  Recipe r = recipe("e3m2");
  r.lm_head = format::parse_weight_format("e3m3").value();
  const auto report = run("llama-tied", r, "tied");
  ASSERT_TRUE(report.ok()) << report.error().message;
  const auto source = open(directory_ / "tied");
  EXPECT_TRUE(source->tied_head());
  EXPECT_EQ(source->find("lm_head")->name, "model.embed_tokens");
  EXPECT_EQ(source->find("lm_head")->format.name(), "e3m3");
  expect_equal_to_load("llama-tied", r, "tied");
  r.weights = *format::parse_weight_format("nvfp4");
  r.lm_head = r.weights;
  r.layout = Layout::kModelOpt;
  EXPECT_EQ(run("llama-tied", r, "no").error().code, ErrorCode::kUnsupported);
}

TEST_F(Quantize, SkipsAndOverrides) {
  Recipe r = recipe("e3m2");
  r.skip.push_back(*NamePattern::parse("model.layers.0.self_attn.*"));
  r.overrides.push_back(*parse_override("down_proj=e3m3"));
  ASSERT_TRUE(run("llama", r, "mixed").ok());
  const auto source = open(directory_ / "mixed");
  EXPECT_EQ(source->find("model.layers.0.self_attn.q_proj")->format.name(), "bf16");
  EXPECT_EQ(source->find("model.layers.1.self_attn.q_proj")->format.name(), "e3m2");
  EXPECT_EQ(source->find("model.layers.1.mlp.down_proj")->format.name(), "e3m3");
  expect_equal_to_load("llama", r, "mixed");
  r.skip.push_back(*NamePattern::parse("mlp.down_prj"));
  const auto typo = run("llama", r, "typo");
  ASSERT_FALSE(typo.ok());
  EXPECT_NE(typo.error().message.find("down_prj"), std::string::npos);
  EXPECT_FALSE(fs::exists(directory_ / "typo"));
}

TEST_F(Quantize, DryRunWritesNothingAndKnowsSizes) {
  ThreadPool pool(1);
  const auto source = open(model("llama"));
  const auto dry = quantize_checkpoint(
      *source, recipe("e3m2"), {.directory = directory_ / "dry", .dry_run = true}, pool, {});
  ASSERT_TRUE(dry.ok());
  EXPECT_FALSE(fs::exists(directory_ / "dry"));
  const auto real = run("llama", recipe("e3m2"), "real");
  EXPECT_EQ(dry->output.total_bytes, real->output.total_bytes);
  EXPECT_NEAR(dry->output.storage_bits(), 6.5, 1e-9);  // 6 + 32/64
}

TEST_F(Quantize, ExistingOutputIsRefused) {
  ASSERT_TRUE(run("llama", recipe("e3m2"), "out").ok());
  EXPECT_EQ(run("llama", recipe("e3m2"), "out").error().code, ErrorCode::kInvalidArgument);
}

// A weight source with one bad value.
class Poisoned final : public checkpoint::WrappedSource {
 public:
  Poisoned(std::unique_ptr<WeightSource> source, float value)
      : WrappedSource(std::move(source)), value_(value) {
    for (const checkpoint::WeightInfo& info : this->source().weights()) add_weight(info);
  }
  Status decode_rows(std::string_view module, int64_t row, int64_t count,
                     std::span<float> out) const override {
    SUB8_RETURN_IF_ERROR(source().decode_rows(module, row, count, out));
    const int64_t cols = find(module)->cols;
    if (module == "model.layers.1.mlp.up_proj" && row <= 5 && 5 < row + count) {
      out[static_cast<size_t>((5 - row) * cols + 7)] = value_;
    }
    return {};
  }

 private:
  float value_;
};

TEST_F(Quantize, NonFiniteWeightsAreNamedAndLeaveNothing) {
  for (const float value : {NAN, INFINITY, -INFINITY, 1.8e38F}) {
    for (const char* name : {"e3m2", "nvfp4"}) {
      const Poisoned source(open(model("llama")), value);
      ThreadPool pool(2);
      const auto report =
          quantize_checkpoint(source, recipe(name), {.directory = directory_ / "bad"}, pool, {});
      ASSERT_FALSE(report.ok());
      EXPECT_EQ(report.error().code, ErrorCode::kCorruptData);
      EXPECT_NE(report.error().message.find("model.layers.1.mlp.up_proj"), std::string::npos);
      EXPECT_NE(report.error().message.find("row 5, column 7"), std::string::npos);
      EXPECT_TRUE(fs::is_empty(directory_)) << "something was left behind";
    }
  }
}

TEST_F(Quantize, ProgressIsMonotoneAndEndsAtTheTotal) {
  ThreadPool pool(2);
  int64_t last = 0;
  int64_t total = -1;
  const auto report =
      quantize_checkpoint(*open(model("llama")), recipe("e3m2"), {.directory = directory_ / "p"},
                          pool, [&](const Progress& p) {
                            EXPECT_GE(p.done_bytes, last);
                            last = p.done_bytes;
                            total = p.total_bytes;
                          });
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(last, total);
}

}  // namespace
}  // namespace sub8::quantize
