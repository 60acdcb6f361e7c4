// K-Ext in whole models: what the ratio buys, which rows get it, and what is refused.
#include <algorithm>
#include <filesystem>

#include <unistd.h>

#include "model/harness.h"
#include "quantize/extension.h"
#include "quantize/load_source.h"
#include "study/store_calibration.h"

namespace sub8::study {
namespace {

namespace fs = std::filesystem;
using model::ExecutionMode;
using model::Model;
using model::ModeOptions;
using model::testing::all_logits;
using model::testing::distance;
using model::testing::fixture;
using model::testing::ids_of;
using model::testing::kPages;
using model::testing::Rows;

// An export that was calibrated with columns of all ratios.
class Compensation : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "sub8-kext-XXXXXX").string();
    dir_ = ::mkdtemp(pattern.data());
    fs::copy(fixture(GetParam()), dir_,
             fs::copy_options::recursive | fs::copy_options::overwrite_existing);
    source_ = checkpoint::open_checkpoint(dir_).value();
    const auto original = checkpoint::open_checkpoint(fixture("exports/base")).value();
    auto model = load({ExecutionMode::kWeightOnly, {}}, nullptr).value();
    const std::vector<Sample> samples = {ids_of(60)};
    const CalibrateOptions calibrated{.length = 60};
    const auto calibration = calibrate(*model, samples, calibrated);
    ASSERT_TRUE(calibration.ok());
    StoreOptions store;
    store.ratios = {0, 1, 2};
    store.original = original.get();
    const auto report = store_calibration(dir_, *source_, *calibration, calibrated, store, pool_);
    ASSERT_TRUE(report.ok()) << report.error().message;
    EXPECT_EQ(report->modules, report->extended);
    residue_ = checkpoint::read_residue(dir_, *source_).value();
  }
  void TearDown() override { fs::remove_all(dir_); }

  Result<std::unique_ptr<Model>> load(ModeOptions mode,
                                      std::shared_ptr<const checkpoint::Residue> residue,
                                      CpuPath path = available_cpu_paths().back()) {
    model::ModelOptions options;
    options.path = path;
    options.mode = mode;
    options.residue = std::move(residue);
    options.max_rows = options.max_logit_rows = options.max_context = 128;
    options.kv_pages = 4;
    return Model::load(*source_, options, pool_);
  }
  std::vector<float> logits(ModeOptions mode, int64_t prompt_rows = 40) {
    return logits(mode, prompt_rows, residue_);
  }
  std::vector<float> logits(ModeOptions mode, int64_t prompt_rows,
                            std::shared_ptr<const checkpoint::Residue> residue) {
    auto model = load(mode, std::move(residue));
    EXPECT_TRUE(model.ok()) << model.error().message;
    Rows rows;
    rows.add(kPages, ids_of(40), 0);
    EXPECT_TRUE((*model)->forward(rows.batch(prompt_rows)).ok());
    return all_logits(**model, 40);
  }
  bool mxfp4() const {
    return std::string_view(GetParam()).find("mxfp4") != std::string_view::npos;
  }

  fs::path dir_;
  ThreadPool pool_{2};
  std::unique_ptr<checkpoint::WeightSource> source_;
  std::shared_ptr<const checkpoint::Residue> residue_;
};

TEST_P(Compensation, ErrorFallsWithTheRatio) {
  const auto exact = logits({ExecutionMode::kWeightOnly, {}});
  double last = distance(logits({ExecutionMode::kPlain, {}}), exact);
  EXPECT_EQ(distance(logits({ExecutionMode::kResidue, 0.0f}), exact), last);
  for (const float ratio : {0.125f, 0.25f, 0.5f, 1.0f}) {
    const double here = distance(logits({ExecutionMode::kResidue, ratio}), exact);
    EXPECT_LT(here, last) << ratio;
    last = here;
  }
}

TEST_P(Compensation, PromptRowsAloneAndADefaultPerFormat) {
  const auto generated = logits({ExecutionMode::kResidue, 1.0f}, 0);
  EXPECT_EQ(logits({ExecutionMode::kResidue, 0.25f}, 0), generated);
  const float usual = mxfp4() ? 0.25f : 0.0f;
  EXPECT_EQ(logits({ExecutionMode::kResidue, {}}), logits({ExecutionMode::kResidue, usual}));
}

TEST_P(Compensation, RowsDoNotDependOnTheStep) {
  for (const CpuPath path : available_cpu_paths()) {
    SCOPED_TRACE(cpu_path_name(path));
    auto loaded = load({ExecutionMode::kResidue, 0.25f}, residue_, path);
    ASSERT_TRUE(loaded.ok());
    Model& model = **loaded;
    EXPECT_FALSE(model.same_order_for_all_rows(ExecutionMode::kResidue));
    model::testing::expect_rows_alone(model, ids_of(21), 13, 8);
  }
}

// What each source of an alpha gives, over rows and steps.
TEST_P(Compensation, AlphasComeFromWhereTheyShould) {
  const auto with = [](ExecutionMode mode, format::AlphaSource source) {
    return ModeOptions{.mode = mode, .alpha = source};
  };
  using format::AlphaSource;
  const auto exact = logits({ExecutionMode::kWeightOnly, {}});
  // FP8 activations of MXFP4 weights are MXFP8: no alpha either.
  if (mxfp4()) {
    const auto refused = load(with(ExecutionMode::kPlain, AlphaSource::kStatic), residue_);
    ASSERT_FALSE(refused.ok());
    EXPECT_NE(refused.error().message.find("MXFP4 and MXFP8 have not"), std::string::npos);
    return;
  }
  for (const ExecutionMode mode :
       {ExecutionMode::kPlain, ExecutionMode::kResidue, ExecutionMode::kFp8}) {
    SCOPED_TRACE(model::execution_mode_name(mode));
    const auto row = logits(with(mode, AlphaSource::kRow));
    const auto fixed = logits(with(mode, AlphaSource::kStatic));
    const auto tensor = logits(with(mode, AlphaSource::kTensor));
    EXPECT_NE(row, fixed);
    EXPECT_NE(row, tensor);
    EXPECT_NE(tensor, fixed);
    const double of_row = distance(row, exact);
    EXPECT_LT(distance(fixed, exact), 4 * of_row);
    EXPECT_GT(distance(fixed, exact), of_row / 4);
    // The file's choice is the default, and an option beats it.
    auto named = std::make_shared<checkpoint::Residue>(*residue_);
    named->alpha = AlphaSource::kStatic;
    EXPECT_EQ(logits({mode, {}}, 40, named), fixed);
    EXPECT_EQ(logits(with(mode, AlphaSource::kRow), 40, named), row);
    named->alpha = AlphaSource::kRow;
    EXPECT_EQ(logits({mode, {}}, 40, named), row);
    // Twice the amax is another alpha: the file is what is read.
    named->alpha = AlphaSource::kStatic;
    for (auto& [name, module] : named->modules) module.amax *= 1.5f;
    EXPECT_NE(logits({mode, {}}, 40, named), fixed);
  }
  // Static alphas do not depend on the step; one per tensor does.
  auto loaded = load(with(ExecutionMode::kResidue, AlphaSource::kStatic), residue_);
  ASSERT_TRUE(loaded.ok());
  model::testing::expect_rows_alone(**loaded, ids_of(21), 13, 8);
}

TEST_P(Compensation, KvScalesOfTheCalibrationAreUsed) {
  model::ModelOptions options;
  options.path = available_cpu_paths().back();
  options.max_rows = options.max_logit_rows = options.max_context = 64;
  options.kv_pages = 2;
  options.kv_type = kernels::KvType::kFp8;
  const auto origin = [&](std::shared_ptr<const checkpoint::Residue> residue) {
    options.residue = std::move(residue);
    auto model = Model::load(*source_, options, pool_);
    EXPECT_TRUE(model.ok()) << model.error().message;
    return std::pair((*model)->kv_scale_origin(), (*model)->kv_scales(1).v);
  };
  EXPECT_EQ(origin(nullptr), std::pair(std::string("1"), 1.0f));
  ASSERT_EQ(static_cast<int64_t>(residue_->kv_scales.size()), source_->config().layers);
  EXPECT_EQ(origin(residue_), std::pair(std::string("calibrated"), residue_->kv_scales[1].v));
  EXPECT_NE(residue_->kv_scales[1].v, 1.0f);
  options.kv_type = kernels::KvType::kBF16;
  EXPECT_EQ(origin(residue_).first, "");
}

// Weights that are quantised at load, with the masks of their original.
TEST_P(Compensation, MasksServeWeightsThatAreQuantisedAtLoad) {
  const auto base = checkpoint::open_checkpoint(fixture("exports/base")).value();
  auto model = load({ExecutionMode::kWeightOnly, {}}, nullptr).value();
  const std::vector<Sample> samples = {ids_of(60)};
  const auto calibration = calibrate(*model, samples, {.length = 60});
  ASSERT_TRUE(calibration.ok());
  const fs::path dir = dir_ / "base";
  fs::create_directory(dir);
  StoreOptions store;
  ASSERT_TRUE(store_calibration(dir, *base, *calibration, {.length = 60}, store, pool_).ok());

  quantize::Recipe recipe;
  recipe.weights = mxfp4() ? format::mx_format(format::kE2M1) : format::nvfp4_format();
  source_ = quantize::quantize_at_load(checkpoint::open_checkpoint(fixture("exports/base")).value(),
                                       recipe, 2)
                .value();
  EXPECT_FALSE(checkpoint::read_residue(dir, *source_).ok()) << "these are not the stored weights";
  const auto residue = checkpoint::read_residue(dir, source_->stored()).value();
  model::ModelOptions options;
  options.path = available_cpu_paths().back();
  options.mode = {ExecutionMode::kResidue, 0.25f};
  options.max_rows = options.max_logit_rows = options.max_context = 128;
  options.kv_pages = 4;
  options.residue = residue;
  ASSERT_FALSE(Model::load(*source_, options, pool_).ok()) << "no columns are stored";
  options.extend = [&](const StoredMatrix& weight, std::string_view module,
                       std::span<const uint8_t> masks) {
    return quantize::extension_columns(weight, source_->stored(), module, masks, {}, pool_);
  };
  const auto scored = [&](std::optional<float> ratio) {
    options.mode.prefill_ratio = ratio;
    auto loaded = Model::load(*source_, options, pool_);
    EXPECT_TRUE(loaded.ok()) << loaded.error().message;
    Rows rows;
    rows.add(kPages, ids_of(40), 0);
    EXPECT_TRUE((*loaded)->forward(rows.batch(40)).ok());
    return all_logits(**loaded, 40);
  };
  const auto full = scored(1.0f);
  double last = distance(scored(0.0f), full);
  for (const float ratio : {0.125f, 0.25f, 0.5f}) {
    const double here = distance(scored(ratio), full);
    EXPECT_LT(here, last) << ratio;
    last = here;
  }
  EXPECT_EQ(scored({}), scored(mxfp4() ? 0.25f : 0.0f));
}

TEST_P(Compensation, WhatDoesNotFitIsRefused) {
  const ModeOptions mode{ExecutionMode::kResidue, 0.25f};
  const auto refusal = [&](const std::function<void(checkpoint::Residue&)>& change) {
    auto changed = std::make_shared<checkpoint::Residue>(*residue_);
    change(*changed);
    const auto got = load(mode, changed);
    EXPECT_FALSE(got.ok());
    return got.ok() ? std::string() : got.error().message;
  };
  const auto q = [](checkpoint::Residue& r) -> checkpoint::ResidueModule& {
    return r.modules.at("model.layers.0.self_attn.q_proj");
  };
  EXPECT_NE(refusal([&](auto& r) { q(r).extensions[1].reset(); }).find("--ratios 0.25"),
            std::string::npos);
  EXPECT_NE(refusal([&](auto& r) { q(r).masks[1][0] ^= 0xff; }).find("different channels"),
            std::string::npos);
  if (mxfp4()) return;
  const auto alpha_refusal = [&](const std::function<void(checkpoint::Residue&)>& change) {
    auto changed = std::make_shared<checkpoint::Residue>(*residue_);
    changed->alpha = format::AlphaSource::kStatic;
    change(*changed);
    const auto got = load({ExecutionMode::kPlain, {}}, changed);
    EXPECT_FALSE(got.ok());
    return got.ok() ? std::string() : got.error().message;
  };
  EXPECT_NE(alpha_refusal([&](auto& r) { q(r).amax = 0; }).find("the static alpha of"),
            std::string::npos);
  const auto unused =
      load({.mode = ExecutionMode::kWeightOnly, .alpha = format::AlphaSource::kStatic}, residue_);
  ASSERT_FALSE(unused.ok());
  EXPECT_NE(unused.error().message.find("not to 'weight-only'"), std::string::npos);
  EXPECT_NE(refusal([&](auto& r) {
              q(r).extensions[1]->outer_scales[0] *= 2;
            }).find("another tensor scale"),
            std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(Exports, Compensation,
                         ::testing::Values("exports/mo-nvfp4", "exports/ct-mxfp4"),
                         [](const auto& p) { return std::string(p.param).substr(11); });

}  // namespace
}  // namespace sub8::study
