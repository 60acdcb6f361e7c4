// Costs, budgets and the choice among layers' options; sensitivity on whole fixtures.
#include "study/planner.h"

#include <cmath>
#include <filesystem>
#include <fstream>
#include <numeric>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "base/cpu.h"
#include "base/file.h"
#include "model/harness.h"
#include "quantize/load_source.h"
#include "quantize/plan.h"
#include "study/budget_program.h"
#include "study/evaluate.h"
#include "study/sensitivity.h"
#include "study/store_calibration.h"

namespace sub8::study {
namespace {

namespace fs = std::filesystem;
using quantize::LayerOption;

fs::path fixture(const std::string& name) { return fs::path(SUB8_TEST_DATA) / name; }

format::WeightFormat weight_format(const char* name) {
  return format::parse_weight_format(name).value();
}

std::vector<LayerOption> few_options(bool residue) {
  const std::vector<std::optional<format::WeightFormat>> formats = {
      weight_format("nvfp4"), weight_format("mxfp4"), weight_format("e3m2"), std::nullopt};
  const std::vector<float> ratios = {0, 0.25f, 1};
  return plan_options(formats, ratios, residue);
}

template <class T>
void expect_says(const T& result, ErrorCode code, std::string_view what) {
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().code, code) << result.error().message;
  EXPECT_NE(result.error().message.find(what), std::string::npos) << result.error().message;
}

std::vector<Sample> samples_of(int count, int length) {
  std::vector<Sample> out;
  for (int s = 0; s < count; ++s) {
    Sample sample;
    for (int i = 0; i < length; ++i) sample.push_back(3 + (i * 17 + s * 29 + i * i) % 60);
    out.push_back(sample);
  }
  return out;
}

// A model that takes substitutes, and what measuring needs.
struct Study {
  Study(const std::string& name, bool residue, int64_t rows, int64_t length, int64_t windows)
      : pool(2) {
    source = checkpoint::open_checkpoint(fixture(name)).value();
    model::ModelOptions options;
    options.path = available_cpu_paths().back();
    if (residue) options.mode.mode = model::ExecutionMode::kResidue;
    options.substitution = true;
    options.max_rows = rows;
    options.max_logit_rows = 7;
    options.max_context = length;
    options.kv_pages = static_cast<int32_t>((length + 31) / 32 * windows);
    model = model::Model::load(*source, options, pool).value();
    groups = layer_groups(*source).value();
    how.substitutes.open = [name] { return checkpoint::open_checkpoint(fixture(name)); };
  }
  ThreadPool pool;
  std::unique_ptr<checkpoint::WeightSource> source;
  std::unique_ptr<model::Model> model;
  std::vector<LayerGroup> groups;
  SensitivityOptions how;
};

SensitivityCache memory_cache() { return SensitivityCache::open("", {}).value(); }

TEST(LayerGroups, FusedLayersAreOne) {
  const auto source = checkpoint::open_checkpoint(fixture("models/llama-chat")).value();
  const auto groups = layer_groups(*source);
  ASSERT_TRUE(groups.ok());
  EXPECT_EQ(static_cast<int64_t>(groups->size()), 4 * source->config().layers);
  EXPECT_EQ((*groups)[0].modules.size(), 3u);
  EXPECT_EQ((*groups)[0].name(), "model.layers.0.self_attn.q_proj");
  EXPECT_EQ((*groups)[1].modules.size(), 1u);
  EXPECT_EQ((*groups)[2].modules.size(), 2u);
  const auto quantised = checkpoint::open_checkpoint(fixture("exports/mo-nvfp4")).value();
  expect_says(layer_groups(*quantised), ErrorCode::kUnsupported, "floating-point");
}

// The shortcut (pieces of forward passes, one layer's weights replaced) gives what a model gives
// that is loaded with that layer quantised.
TEST(Sensitivity, EqualsAModelWithOneLayerQuantised) {
  const auto samples = samples_of(3, 20);
  for (const char* name : {"models/llama-chat", "models/opt"}) {
    Study study(name, false, 40, 20, 3);  // two windows a batch, then one
    const std::vector<LayerOption> options = {{weight_format("nvfp4"), 0}, {std::nullopt, 0}};
    SensitivityCache cache = memory_cache();
    const Status measured = measure_sensitivity(*study.model, *study.source, study.groups, options,
                                                samples, study.how, cache);
    ASSERT_TRUE(measured.ok()) << measured.error().message;
    EXPECT_EQ(cache.size(), study.groups.size());
    for (const size_t g : {size_t{0}, size_t{2}, study.groups.size() - 1}) {
      const LayerGroup& group = study.groups[g];
      quantize::Recipe recipe;
      recipe.layout = quantize::Layout::kSub8;
      recipe.modules.emplace();
      for (const LayerGroup& other : study.groups) {
        for (const std::string& module : other.modules) (*recipe.modules)[module] = std::nullopt;
      }
      for (const std::string& module : group.modules)
        (*recipe.modules)[module] = weight_format("nvfp4");
      const auto source =
          quantize::quantize_at_load(checkpoint::open_checkpoint(fixture(name)).value(), recipe, 1)
              .value();
      model::ModelOptions plain = study.model->options();
      plain.substitution = false;
      plain.max_rows = plain.max_logit_rows = 64;
      const auto subject = model::Model::load(*source, plain, study.pool).value();
      const auto reference = model::Model::load(*study.source, plain, study.pool).value();
      // evaluate() leaves the last row of a window out: one more token, and sums over all rows.
      double sum = 0;
      for (const Sample& sample : samples) {
        model::testing::Rows rows;
        const std::vector<int32_t> pages = {0, 1, 2};
        rows.add(pages, sample, 0);
        std::vector<int32_t> ids(sample.size());
        std::iota(ids.begin(), ids.end(), 0);
        std::vector<float> a, b;
        for (model::Model* m : {reference.get(), subject.get()}) {
          ASSERT_TRUE(m->forward(rows.batch()).ok());
          const auto logits = model::testing::all_logits(*m, static_cast<int64_t>(sample.size()));
          (m == reference.get() ? a : b) = logits;
        }
        const auto vocab = static_cast<size_t>(reference->config().vocab_size);
        for (size_t r = 0; r < sample.size(); ++r) {
          double za = 0, zb = 0, kl = 0;
          for (size_t t = 0; t < vocab; ++t) {
            za += std::exp(static_cast<double>(a[r * vocab + t]));
            zb += std::exp(static_cast<double>(b[r * vocab + t]));
          }
          for (size_t t = 0; t < vocab; ++t) {
            const double pa = a[r * vocab + t] - std::log(za), pb = b[r * vocab + t] - std::log(zb);
            kl += std::exp(pa) * (pa - pb);
          }
          sum += kl;
        }
      }
      const auto got = cache.find(group.name(), "nvfp4");
      ASSERT_TRUE(got.has_value());
      EXPECT_GT(*got, 0);
      EXPECT_NEAR(*got, sum / 60, 1e-9 + 1e-6 * *got) << name << " " << group.name();
    }
  }
}

// The residue lowers what 4-bit activations cost, more with a larger ratio, over all layers.
TEST(Sensitivity, FallsWithTheRatio) {
  Study study("exports/base", true, 64, 30, 2);
  const std::vector<std::optional<format::WeightFormat>> formats = {weight_format("nvfp4"),
                                                                    weight_format("mxfp4")};
  const std::vector<float> ratios = {0, 0.125f, 0.25f, 0.5f, 1};
  const auto options = plan_options(formats, ratios, true);
  ASSERT_EQ(options.size(), 10u);
  SensitivityCache cache = memory_cache();
  const auto samples = samples_of(2, 30);
  ASSERT_TRUE(measure_sensitivity(*study.model, *study.source, study.groups, options, samples,
                                  study.how, cache)
                  .ok());
  for (size_t f = 0; f < 2; ++f) {
    double last = 1e30;
    for (size_t r = 0; r < 5; ++r) {
      double sum = 0;
      for (const LayerGroup& group : study.groups)
        sum += cache.find(group.name(), options[5 * f + r].name()).value();
      EXPECT_LT(sum, last) << options[5 * f + r].name();
      last = sum;
    }
  }
}

class PlanFiles : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "sub8-plan-XXXXXX").string();
    dir_ = ::mkdtemp(pattern.data());
  }
  void TearDown() override { fs::remove_all(dir_); }
  void write(const std::string& name, const std::string& text) {
    std::ofstream(dir_ / name, std::ios::binary) << text;
  }
  fs::path dir_;
};

// Interrupted after the first group, a second run measures the rest only and ends with the same
// values as one run.
TEST_F(PlanFiles, MeasuringGoesOnWhereItStopped) {
  const auto samples = samples_of(2, 16);
  const std::vector<LayerOption> options = {{weight_format("nvfp4"), 0},
                                            {weight_format("e3m2"), 0}};
  Study study("models/llama-chat", false, 32, 16, 2);
  SensitivityCache whole = memory_cache();
  ASSERT_TRUE(measure_sensitivity(*study.model, *study.source, study.groups, options, samples,
                                  study.how, whole)
                  .ok());
  const SensitivityKey key{.model = {"a", "b"}, .text_hash = "c"};
  SensitivityCache first = SensitivityCache::open(dir_ / "cache", key).value();
  ASSERT_TRUE(measure_sensitivity(*study.model, *study.source, std::span(study.groups).first(2),
                                  options, samples, study.how, first)
                  .ok());
  SensitivityCache second = SensitivityCache::open(dir_ / "cache", key).value();
  EXPECT_EQ(second.size(), 4u);
  int64_t seen = 0;
  study.how.progress = [&](int64_t, int64_t total, std::string_view) {
    ++seen;
    EXPECT_EQ(total, static_cast<int64_t>(2 * study.groups.size() - 4));
  };
  ASSERT_TRUE(measure_sensitivity(*study.model, *study.source, study.groups, options, samples,
                                  study.how, second)
                  .ok());
  EXPECT_EQ(seen, static_cast<int64_t>(2 * study.groups.size() - 4));
  for (const LayerGroup& group : study.groups) {
    // The text of a file is exact, reading it may cost the last bit.
    for (const LayerOption& option : options)
      EXPECT_DOUBLE_EQ(second.find(group.name(), option.name()).value(),
                       whole.find(group.name(), option.name()).value());
  }
}

TEST_F(PlanFiles, ADamagedCacheIsRefused) {
  const SensitivityKey key{.model = {"a", "b"}, .text_hash = "c"};
  SensitivityCache cache = SensitivityCache::open(dir_ / "cache", key).value();
  cache.set("x", "nvfp4", 0.5);
  cache.set("x", "e3m2", 0.25);
  ASSERT_TRUE(cache.save().ok());
  const std::string text = read_file(dir_ / "cache").value();
  EXPECT_EQ(SensitivityCache::open(dir_ / "cache", key)->find("x", "e3m2"), 0.25);
  for (const size_t length : {size_t{0}, size_t{1}, text.size() / 2, text.size() - 3}) {
    write("cache", text.substr(0, length));
    expect_says(SensitivityCache::open(dir_ / "cache", key), ErrorCode::kCorruptData, "--cache");
  }
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string out = text;
    out.replace(out.find(from), from.size(), to);
    write("cache", out);
    return SensitivityCache::open(dir_ / "cache", key);
  };
  expect_says(with("0.5", "-0.5"), ErrorCode::kCorruptData, "at least 0");
  EXPECT_FALSE(with("0.5", "NaN").ok());
  EXPECT_FALSE(with("0.5", "1e999").ok());
  expect_says(with("\"c\"", "\"d\""), ErrorCode::kInvalidArgument, "text_hash");
  expect_says(with("\"layout\": \"a\"", "\"layout\": \"z\""), ErrorCode::kInvalidArgument,
              "another model");
  expect_says(with("\"schema_version\": 1", "\"schema_version\": 9"), ErrorCode::kUnsupported, "9");
}

// Made-up sensitivities over a real model's shapes.
PlanTable made_up_table(bool residue, const LatencyTable* latency = nullptr) {
  const auto source = checkpoint::open_checkpoint(fixture("exports/base")).value();
  auto groups = layer_groups(*source).value();
  auto options = few_options(residue);
  SensitivityCache cache = memory_cache();
  for (size_t g = 0; g < groups.size(); ++g) {
    for (size_t o = 0; o < options.size(); ++o) {
      if (!options[o].format) continue;
      cache.set(groups[g].name(), options[o].name(),
                std::exp(-static_cast<double>((g * 7 + o * 3) % 11)) / static_cast<double>(o + 1));
    }
  }
  return plan_table(std::move(groups), std::move(options), cache, residue, latency).value();
}

TEST(Planner, CostsAreWhatFilesHold) {
  const PlanTable table = made_up_table(true);
  const LayerGroup& group = table.groups[0];
  for (size_t o = 0; o < table.options.size(); ++o) {
    const LayerOption& option = table.options[o];
    int64_t bytes = 0;
    for (const int64_t n : group.rows) {
      if (!option.format) {
        bytes += 2 * n * group.cols;
        continue;
      }
      bytes += option.format->storage_bytes(n, group.cols);
      if (option.prefill_ratio == 0.25f) {
        const int64_t selects = (group.cols + 7) / 8;
        bytes += option.format->storage_bytes(n, 2 * selects) + selects;
      }
    }
    EXPECT_EQ(table.costs[0][o].bytes, bytes) << option.name();
    const PlanChoice choice = uniform_plan(table, o);
    const bool fp4 = option.name().find("fp4") != std::string::npos;
    EXPECT_DOUBLE_EQ(choice.cost.compute_bits, fp4 ? 4 * (1 + option.prefill_ratio) : 16.0)
        << option.name();
  }
  EXPECT_DOUBLE_EQ(uniform_plan(made_up_table(false), 0).cost.compute_bits, 16.0);
}

TEST(Planner, NeverWorseThanOneOptionEverywhere) {
  if (!has_budget_solver()) GTEST_SKIP() << "built without CBC";
  for (const bool residue : {false, true}) {
    const PlanTable table = made_up_table(residue);
    for (const char* kind : {"bytes", "storage-bits", "compute-bits"}) {
      if (!residue && std::string_view(kind) == "compute-bits") continue;
      for (size_t o = 0; o < table.options.size(); ++o) {
        const auto budget = parse_budget(std::string(kind) + "=" + table.options[o].name(), table);
        ASSERT_TRUE(budget.ok()) << budget.error().message;
        const auto choice = choose_plan(table, std::span(&*budget, 1));
        ASSERT_TRUE(choice.ok()) << choice.error().message;
        const PlanChoice uniform = uniform_plan(table, o);
        EXPECT_LE(choice->kl_divergence, uniform.kl_divergence * (1 + 1e-9)) << kind;
        if (std::string_view(kind) == "compute-bits")
          EXPECT_LE(choice->cost.compute_bits, uniform.cost.compute_bits);
        else
          EXPECT_LE(choice->cost.bytes, uniform.cost.bytes);
      }
    }
    const auto curve = pareto_curve(table, BudgetKind::kBytes, 9).value();
    ASSERT_GT(curve.size(), 3u);
    for (size_t i = 1; i < curve.size(); ++i) {
      EXPECT_GE(curve[i].cost.bytes, curve[i - 1].cost.bytes);
      EXPECT_LE(curve[i].kl_divergence, curve[i - 1].kl_divergence);
    }
    EXPECT_EQ(curve.back().kl_divergence, 0) << "the original is within the largest budget";
  }
}

TEST(Planner, RefusesBudgetsThatMeanNothing) {
  const PlanTable table = made_up_table(false);
  const auto invalid = ErrorCode::kInvalidArgument;
  expect_says(parse_budget("storage-bits", table), invalid, "KIND=VALUE");
  expect_says(parse_budget("speed=3", table), invalid, "known: storage-bits");
  for (const char* value : {"", "x", "0", "-3", "nan", "inf", "1e999", "4.5 ", "e2m2"})
    expect_says(parse_budget(std::string("storage-bits=") + value, table), invalid, "nvfp4");
  expect_says(parse_budget("compute-bits=4", table), invalid, "--mode residue");
  expect_says(parse_budget("latency-us=4", table), invalid, "bench layers");
  if (!has_budget_solver()) GTEST_SKIP() << "built without CBC";
  const auto small = parse_budget("storage-bits=3.9", table).value();
  expect_says(choose_plan(table, std::span(&small, 1)), invalid, "smallest one takes");
}

TEST_F(PlanFiles, LatencyTables) {
  PlanTable plain = made_up_table(false);
  LatencyTable latency;
  latency.rows = 64;
  for (const LayerGroup& group : plain.groups) {
    int64_t time = 1000;
    for (const LayerOption& option : plain.options)
      latency.nanoseconds[{option.name(), group.weights / group.cols, group.cols}] = time += 500;
  }
  write("t.json", boost::json::serialize(latency_json(latency)));
  const auto read = read_latency_table(dir_ / "t.json");
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(read->nanoseconds, latency.nanoseconds);
  const PlanTable table = made_up_table(false, &*read);
  const double count = static_cast<double>(table.groups.size());
  EXPECT_DOUBLE_EQ(uniform_plan(table, 0).cost.latency_us.value(), 1.5 * count);
  if (has_budget_solver()) {
    const auto budget = parse_budget(fmt::format("latency-us={}", 2 * count), table).value();
    const auto choice = choose_plan(table, std::span(&budget, 1)).value();
    EXPECT_LE(choice.cost.latency_us.value(), 2 * count);
  }
  SensitivityCache empty = memory_cache();
  latency.nanoseconds.erase(latency.nanoseconds.begin());
  const std::vector<LayerOption> only = {{std::nullopt, 0}};
  latency.nanoseconds.clear();
  expect_says(plan_table(plain.groups, only, empty, false, &latency), ErrorCode::kNotFound,
              "bench layers");
  expect_says(plan_table(plain.groups, only, empty, true, &latency), ErrorCode::kInvalidArgument,
              "--mode residue");
  const std::string text = read_file(dir_ / "t.json").value();
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string out = text;
    out.replace(out.find(from), from.size(), to);
    write("u.json", out);
    return read_latency_table(dir_ / "u.json");
  };
  EXPECT_FALSE(with("1.5E0", "0").ok());
  EXPECT_FALSE(with("1.5E0", "-1").ok());
  EXPECT_FALSE(with("sub8-layer-latency", "sub8-plan").ok());
}

quantize::LayerPlan made_up_plan(const checkpoint::WeightSource& source, bool residue) {
  quantize::LayerPlan plan;
  plan.version = "1";
  plan.model_name = "m";
  plan.model = checkpoint::fingerprint(source).value();
  plan.residue = residue;
  plan.sample = {"t.txt", 2, 16, 42};
  plan.budgets = {{"bytes", 5}};
  const auto groups = layer_groups(source).value();
  for (size_t g = 0; g < groups.size(); ++g) {
    LayerOption option{weight_format(g % 2 == 0 ? "nvfp4" : "e3m2"), 0};
    if (residue && g % 4 == 0) option.prefill_ratio = 0.25f;
    if (g % 5 == 4) option = {};
    plan.layers.push_back({groups[g].modules, option, 0.5});
  }
  return plan;
}

TEST_F(PlanFiles, APlanReadsBackAndKnowsItsModel) {
  const auto source = checkpoint::open_checkpoint(fixture("exports/base")).value();
  const quantize::LayerPlan plan = made_up_plan(*source, true);
  const std::string text = quantize::layer_plan_json(plan);
  const auto read = quantize::parse_layer_plan(text, "plan.json");
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(quantize::layer_plan_json(*read), text);
  EXPECT_TRUE(quantize::check_layer_plan(*read, *source).ok());
  EXPECT_TRUE(read->selects_channels());
  const auto invalid = ErrorCode::kInvalidArgument;
  for (const char* other : {"models/llama-chat", "models/opt", "models/llama-tied"}) {
    const auto foreign = checkpoint::open_checkpoint(fixture(other)).value();
    expect_says(quantize::check_layer_plan(*read, *foreign), invalid, "another model");
  }
  // Same names and shapes, one value differs: in the vector of the final norm.
  auto bad = plan;
  bad.model.content = "0123456789abcdef";
  expect_says(quantize::check_layer_plan(bad, *source), invalid, "values differ");
  bad = plan;
  bad.layers.pop_back();
  expect_says(quantize::check_layer_plan(bad, *source), invalid, "says nothing about");
  bad = plan;
  bad.layers[0].modules.pop_back();  // v_proj
  bad.layers.push_back({{plan.layers[0].modules.back()}, plan.layers[0].option, 0});
  expect_says(quantize::check_layer_plan(bad, *source), invalid, "computed together");
  bad = plan;
  bad.layers[0].modules[0] = "model.layers.0.self_attn.w_proj";
  expect_says(quantize::check_layer_plan(bad, *source), invalid, "no linear layer");
}

TEST_F(PlanFiles, DamagedPlansAreRefused) {
  const auto source = checkpoint::open_checkpoint(fixture("exports/base")).value();
  const std::string text = quantize::layer_plan_json(made_up_plan(*source, true));
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string out = text;
    EXPECT_NE(out.find(from), std::string::npos) << from;
    out.replace(out.find(from), from.size(), to);
    return quantize::parse_layer_plan(out, "plan.json");
  };
  for (size_t length = 0; length + 2 < text.size(); length += 97)
    EXPECT_FALSE(quantize::parse_layer_plan(text.substr(0, length), "plan.json").ok()) << length;
  const auto corrupt = ErrorCode::kCorruptData;
  expect_says(with("sub8-plan", "sub9-plan"), ErrorCode::kInvalidArgument, "no plan");
  expect_says(with("\"schema_version\": 1", "\"schema_version\": 2"), ErrorCode::kUnsupported,
              "version 1");
  expect_says(with("\"format\": \"nvfp4\"", "\"format\": \"q4_0\""), ErrorCode::kInvalidArgument,
              "plan.json");
  EXPECT_FALSE(with("\"format\": \"nvfp4\"", "\"format\": \"bf16\"").ok()) << "that is 'original'";
  expect_says(with("\"prefill_ratio\": 0.25", "\"prefill_ratio\": 0.3"), corrupt, "0.125");
  expect_says(with("\"format\": \"nvfp4\"", "\"format\": \"e3m2\""), corrupt, "no prefill ratio");
  expect_says(with("\"mode\": \"residue\"", "\"mode\": \"weight-only\""), corrupt, "weight-only");
  expect_says(with("\"mode\": \"residue\"", "\"mode\": \"fast\""), corrupt, "mode");
  expect_says(with("\"kl_divergence\": 0.5", "\"kl_divergence\": -1"), corrupt, "at least 0");
  EXPECT_FALSE(with("\"kl_divergence\": 0.5", "\"kl_divergence\": NaN").ok());
  expect_says(with("k_proj", "q_proj"), corrupt, "second time");
}

// The plan's formats are what quantising at load gives, module by module.
TEST_F(PlanFiles, APlanIsARecipe) {
  const auto source = checkpoint::open_checkpoint(fixture("exports/base")).value();
  const quantize::LayerPlan plan = made_up_plan(*source, false);
  quantize::Recipe recipe;
  quantize::apply_layer_plan(plan, recipe);
  recipe.layout = quantize::Layout::kSub8;
  const auto loaded = quantize::quantize_at_load(
      checkpoint::open_checkpoint(fixture("exports/base")).value(), recipe, 1);
  ASSERT_TRUE(loaded.ok()) << loaded.error().message;
  for (const quantize::PlannedLayer& layer : plan.layers) {
    for (const std::string& module : layer.modules) {
      const auto* info = (*loaded)->find(module);
      ASSERT_NE(info, nullptr);
      if (layer.option.format)
        EXPECT_EQ(info->format, *layer.option.format) << module;
      else
        EXPECT_TRUE(info->format.dense) << module;
    }
  }
  recipe.skip.push_back(quantize::NamePattern::parse("down_proj").value());
  EXPECT_FALSE(quantize::plan_quantization(*source, recipe).ok());
}

}  // namespace
}  // namespace sub8::study
