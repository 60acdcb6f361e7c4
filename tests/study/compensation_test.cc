// K-Ext in whole models: what the ratio buys, which rows get it, and what is refused.
#include <algorithm>
#include <filesystem>

#include <unistd.h>

#include "model/harness.h"
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
    auto model = load(mode, residue_);
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
