// Calibration: which text becomes a sample, and what is counted over the samples.
#include "study/calibrate.h"

#include <cmath>
#include <filesystem>
#include <numeric>

#include <gtest/gtest.h>

#include "format/activation.h"
#include "quantize/load_source.h"

namespace sub8::study {
namespace {

std::filesystem::path fixture(const std::string& name) {
  return std::filesystem::path(SUB8_TEST_DATA) / name;
}

struct Loaded {
  std::unique_ptr<ThreadPool> pool;
  std::unique_ptr<model::Model> model;
};

Loaded load(const std::string& name, int threads, int64_t max_rows, bool quantised_head = false) {
  Loaded out;
  out.pool = std::make_unique<ThreadPool>(threads);
  auto source = checkpoint::open_checkpoint(fixture(name));
  EXPECT_TRUE(source.ok());
  if (quantised_head) {
    quantize::Recipe recipe;
    recipe.weights = format::nvfp4_format();
    recipe.lm_head = format::nvfp4_format();
    source = quantize::quantize_at_load(std::move(source).value(), recipe, 1);
    EXPECT_TRUE(source.ok());
  }
  model::ModelOptions options;
  options.path = available_cpu_paths().back();
  options.max_rows = max_rows;
  options.max_logit_rows = 3;
  options.max_context = 64;
  options.kv_pages = 2;
  auto model = model::Model::load(**source, options, *out.pool);
  EXPECT_TRUE(model.ok()) << (model.ok() ? "" : model.error().message);
  if (model.ok()) out.model = std::move(model).value();
  return out;
}

std::vector<Sample> samples_of(int count) {
  std::vector<Sample> out;
  for (int s = 0; s < count; ++s) {
    Sample sample;
    for (int i = 0; i < 40 - 7 * s; ++i) sample.push_back(3 + (i * 17 + s * 5) % 60);
    out.push_back(sample);
  }
  return out;
}

// The plainest way to the same sums.
class Sums final : public model::Observer {
 public:
  void linear_input(const model::LinearOp& op, const uint16_t* x, int64_t stride,
                    int64_t rows) override {
    for (const std::string& module : op.modules) {
      auto& sums = by_module[module];
      sums.resize(static_cast<size_t>(op.in.cols));
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t k = 0; k < op.in.cols; ++k) {
          const double value = std::fabs(format::bf16_to_float(x[r * stride + k]));
          sums[static_cast<size_t>(k)] += value;
          amax[module] = std::max(amax[module], value);
        }
      }
    }
  }
  void attention_input(const model::AttentionOp& op, kernels::InputRows, kernels::InputRows k,
                       kernels::InputRows v, int64_t rows) override {
    kv.resize(std::max(kv.size(), static_cast<size_t>(op.layer) + 1));
    KvAmax& amax = kv[static_cast<size_t>(op.layer)];
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t i = 0; i < kv_cols; ++i) {
        amax.k = std::max(amax.k, std::fabs(format::round_to_bf16(k.data[r * k.stride + i])));
        amax.v = std::max(amax.v, std::fabs(format::round_to_bf16(v.data[r * v.stride + i])));
      }
    }
  }
  int64_t kv_cols = 0;
  std::vector<KvAmax> kv;
  std::map<std::string, std::vector<double>> by_module;
  std::map<std::string, double> amax;
};

TEST(Calibrate, CountsWhatLinearLayersRead) {
  for (const char* name : {"exports/mo-nvfp4", "models/opt"}) {
    auto loaded = load(name, 2, 64);
    ASSERT_NE(loaded.model, nullptr);
    const auto samples = samples_of(3);
    std::vector<int32_t> pages = {0, 1};
    Sums sums;
    sums.kv_cols = loaded.model->config().kv_heads * loaded.model->config().head_dim;
    double tokens = 0;
    for (const Sample& sample : samples) {
      std::vector<int32_t> positions(sample.size());
      std::iota(positions.begin(), positions.end(), 0);
      std::vector<int64_t> slots(positions.begin(), positions.end());
      std::vector<kernels::AttentionRow> attention;
      for (const int32_t p : positions) attention.push_back({pages.data(), p});
      ASSERT_TRUE(
          loaded.model
              ->forward({sample, positions, slots, attention, static_cast<int64_t>(sample.size())},
                        &sums)
              .ok());
      tokens += static_cast<double>(sample.size());
    }
    int64_t seen = 0;
    CalibrateOptions options;
    options.progress = [&](int64_t done, int64_t total) {
      EXPECT_EQ(done, ++seen);
      EXPECT_EQ(total, 3);
    };
    const auto got = calibrate(*loaded.model, samples, options);
    ASSERT_TRUE(got.ok()) << got.error().message;
    EXPECT_EQ(seen, 3);
    EXPECT_EQ(got->samples, 3);
    EXPECT_EQ(got->tokens, static_cast<int64_t>(tokens));
    ASSERT_EQ(got->modules.size(), sums.by_module.size());
    ASSERT_EQ(got->kv.size(), sums.kv.size());
    ASSERT_EQ(static_cast<int64_t>(got->kv.size()), loaded.model->config().layers);
    for (size_t layer = 0; layer < sums.kv.size(); ++layer) {
      EXPECT_GT(got->kv[layer].k, 0.0f);
      EXPECT_EQ(got->kv[layer].k, sums.kv[layer].k);
      EXPECT_EQ(got->kv[layer].v, sums.kv[layer].v);
    }
    EXPECT_EQ(got->modules.count("lm_head"), 0u) << "a dense head needs no statistics";
    for (const auto& [module, want] : sums.by_module) {
      ASSERT_EQ(got->modules.count(module), 1u) << module;
      const InputStatistics& statistics = got->modules.find(module)->second;
      ASSERT_EQ(statistics.mean_abs.size(), want.size());
      for (size_t k = 0; k < want.size(); ++k)
        ASSERT_EQ(statistics.mean_abs[k], static_cast<float>(want[k] / tokens)) << module;
      EXPECT_EQ(statistics.amax, static_cast<float>(sums.amax[module])) << module;
    }
  }
}

TEST(Calibrate, NeitherThreadsNorStepsChangeABit) {
  const auto samples = samples_of(2);
  const auto want = calibrate(*load("exports/mo-nvfp4", 1, 64, true).model, samples, {});
  ASSERT_TRUE(want.ok());
  EXPECT_EQ(want->modules.count("lm_head"), 1u);
  for (const auto& [threads, rows] : {std::pair(1, 7), std::pair(3, 32)}) {
    const auto got = calibrate(*load("exports/mo-nvfp4", threads, rows, true).model, samples, {});
    ASSERT_TRUE(got.ok());
    for (const auto& [module, statistics] : want->modules) {
      EXPECT_EQ(got->modules.at(module).mean_abs, statistics.mean_abs) << module;
      EXPECT_EQ(got->modules.at(module).amax, statistics.amax) << module;
    }
  }
}

class Samples : public ::testing::Test {
 protected:
  void SetUp() override {
    auto source = checkpoint::open_checkpoint(fixture("models/llama-chat"));
    ASSERT_TRUE(source.ok());
    auto bundle = engine::make_bundle(std::move(source).value());
    ASSERT_TRUE(bundle.ok());
    bundle_ = std::move(bundle).value();
  }
  Result<std::vector<Sample>> text(std::string_view text, const CalibrateOptions& options) {
    return text_samples(*bundle_.tokenizer, text, options);
  }
  Result<std::vector<Sample>> jsonl(std::string_view text, const CalibrateOptions& options = {}) {
    return jsonl_samples(bundle_, text, "prompts.jsonl", options);
  }
  engine::Bundle bundle_;
};

TEST_F(Samples, OfATextAreItsWindows) {
  std::string long_text;
  for (int i = 0; i < 60; ++i) long_text += "line " + std::to_string(i) + " of a text. ";
  const auto tokens = bundle_.tokenizer->encode(long_text, {.add_special_tokens = false});
  ASSERT_TRUE(tokens.ok());
  const auto windows = static_cast<int64_t>(tokens->size()) / 16;
  ASSERT_GT(windows, 20);
  const auto all = text(long_text, {.samples = 1000, .length = 16});
  ASSERT_TRUE(all.ok());
  ASSERT_EQ(static_cast<int64_t>(all->size()), windows);
  for (size_t i = 0; i < all->size(); ++i) {
    const auto begin = tokens->begin() + static_cast<int64_t>(16 * i);
    EXPECT_EQ((*all)[i], Sample(begin, begin + 16));
  }
  // Fewer: distinct ones, in order, the same for the same seed.
  const auto place = [&](const Sample& sample) {
    return std::find(all->begin(), all->end(), sample) - all->begin();
  };
  const auto some = text(long_text, {.samples = 7, .length = 16});
  ASSERT_TRUE(some.ok());
  ASSERT_EQ(some->size(), 7u);
  for (size_t i = 1; i < 7; ++i) EXPECT_LT(place((*some)[i - 1]), place((*some)[i]));
  EXPECT_LT(place((*some)[6]), windows);
  EXPECT_EQ(*some, *text(long_text, {.samples = 7, .length = 16, .seed = 42}));
  EXPECT_NE(*some, *text(long_text, {.samples = 7, .length = 16, .seed = 43}));
}

TEST_F(Samples, OfJsonlAreItsLines) {
  const auto got = jsonl(
      "\"hello there\"\n\n{\"text\": \"hello there\", \"id\": 7}\n  \r\n"
      "{\"prompt\": \"hello there\"}\n{\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}]}",
      {.length = 5});
  ASSERT_TRUE(got.ok()) << got.error().message;
  ASSERT_EQ(got->size(), 4u);
  EXPECT_EQ((*got)[0], (*got)[1]);
  EXPECT_EQ((*got)[0], (*got)[2]);
  EXPECT_NE((*got)[0], (*got)[3]);
  for (const Sample& sample : *got) EXPECT_LE(sample.size(), 5u);
  EXPECT_EQ(jsonl("\"a\"\n\"b\"\n\"c\"\n", {.samples = 2})->size(), 2u);
}

TEST_F(Samples, BadTextIsRefused) {
  const auto says = [](const auto& result, std::string_view what) {
    EXPECT_FALSE(result.ok());
    const Error error = result.ok() ? Error{} : result.error();
    EXPECT_NE(error.message.find(what), std::string::npos) << error.message;
    return error.code;
  };
  const auto invalid = ErrorCode::kInvalidArgument;
  EXPECT_EQ(says(text("", {}), "0 tokens"), invalid);
  EXPECT_EQ(says(text("too short", {.length = 64}), "--length"), invalid);
  EXPECT_EQ(says(text(std::string("ab\xff\xfe\0c", 6), {.length = 1}), "UTF-8"), invalid);
  EXPECT_EQ(says(text("some text", {.samples = 0, .length = 1}), "at least 1 sample"), invalid);
  EXPECT_EQ(says(text("some text", {.length = 0}), "at least 1 token"), invalid);
  EXPECT_EQ(says(jsonl("\n \n"), "no line"), invalid);
  says(jsonl("\"ok\"\n{\"text\": 5}"), "line 2");
  says(jsonl("{\"other\": \"x\"}"), "line 1");
  says(jsonl("plain text"), "line 1");
}

}  // namespace
}  // namespace sub8::study
