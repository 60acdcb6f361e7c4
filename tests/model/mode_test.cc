// Execution modes of a whole model: what each row gets, and what is refused.
#include <algorithm>

#include "harness.h"
#include "model/mode_summary.h"

namespace sub8::model {
namespace {

using testing::all_logits;
using testing::distance;
using testing::expect_rows_alone;
using testing::fixture;
using testing::ids_of;
using testing::kPages;
using testing::load;
using testing::Loaded;
using testing::LoadOptions;
using testing::Rows;

Loaded load_mode(const std::string& name, ModeOptions mode, CpuPath path = CpuPath::kScalar) {
  LoadOptions options;
  options.path = path;
  options.activations = ActivationType::kBF16;
  options.kv = kernels::KvType::kBF16;
  options.mode = mode;
  return load(fixture(name), options);
}

std::vector<float> logits_of(Model& model, const std::vector<int32_t>& ids, int64_t prompt_rows) {
  Rows rows;
  rows.add(kPages, ids, 0);
  EXPECT_TRUE(model.forward(rows.batch(prompt_rows)).ok());
  return all_logits(model, static_cast<int64_t>(ids.size()));
}

class Modes : public ::testing::TestWithParam<const char*> {};

TEST_P(Modes, TheResidueBringsRowsBackToWeightOnly) {
  const auto ids = ids_of(40);
  auto weight_only = load_mode(GetParam(), {ExecutionMode::kWeightOnly, {}});
  ASSERT_NE(weight_only.model, nullptr);
  const auto exact = logits_of(*weight_only.model, ids, 40);
  const auto of = [&](ModeOptions mode, int64_t prompt_rows) {
    return logits_of(*load_mode(GetParam(), mode).model, ids, prompt_rows);
  };
  EXPECT_EQ(of({ExecutionMode::kAuto, {}}, 40), exact);
  const auto plain = of({ExecutionMode::kPlain, {}}, 40);
  const auto full = of({ExecutionMode::kResidue, 1.0f}, 40);
  // Prompt rows without ratio are plain rows; generated rows are compensated.
  EXPECT_EQ(of({ExecutionMode::kResidue, {}}, 40), plain);
  EXPECT_EQ(of({ExecutionMode::kResidue, {}}, 0), full);
  // The residue takes at least nine tenths of the error away.
  EXPECT_GT(distance(plain, exact), 0.0);
  EXPECT_LT(distance(full, exact), 0.1 * distance(plain, exact));
  const auto fp8 = of({ExecutionMode::kFp8, {}}, 40);
  const auto fp8_residue = of({ExecutionMode::kFp8Residue, {}}, 40);
  EXPECT_LT(distance(fp8, exact), distance(plain, exact));
  EXPECT_LT(distance(fp8_residue, exact), distance(fp8, exact));
}

TEST_P(Modes, RowsDoNotDependOnTheStep) {
  for (const CpuPath path : available_cpu_paths()) {
    const bool one_order =
        load_mode(GetParam(), {}, path).model->same_order_for_all_rows(ExecutionMode::kAuto);
    for (const ExecutionMode mode : {ExecutionMode::kResidue, ExecutionMode::kFp8Residue}) {
      auto loaded = load_mode(GetParam(), {mode, {}}, path);
      Model& model = *loaded.model;
      SCOPED_TRACE(std::string(execution_mode_name(mode)) + " " + std::string(cpu_path_name(path)));
      // One by one and in chunks that mix the classes.
      for (const int chunk : {1, 8}) expect_rows_alone(model, ids_of(21), 13, chunk);
      EXPECT_EQ(model.same_order_for_all_rows(mode), mode != ExecutionMode::kResidue && one_order);
    }
  }
}

// One step with a sequence in every mode, prompt and generated rows of each, in several orders:
// every row's logits are those of a model that was loaded in that mode.
TEST_P(Modes, RowsOfOneStepMayDifferInMode) {
  const int count = 11;
  const int prompt = 6;
  const auto ids = ids_of(count);
  for (const CpuPath path : available_cpu_paths()) {
    LoadOptions options;
    options.path = path;
    options.activations = ActivationType::kBF16;
    options.kv = kernels::KvType::kBF16;
    options.mixed_modes = true;
    auto mixed = load(fixture(GetParam()), options);
    Model& model = *mixed.model;
    const std::vector<ExecutionMode> modes(model.row_modes().begin(), model.row_modes().end());
    ASSERT_EQ(modes.size(), 5u);
    EXPECT_EQ(modes.front(), ExecutionMode::kWeightOnly);
    const auto vocab = static_cast<size_t>(model.config().vocab_size);
    std::vector<std::vector<float>> want;
    for (const ExecutionMode mode : modes)
      want.push_back(logits_of(*load_mode(GetParam(), {mode, {}}, path).model, ids, prompt));
    EXPECT_NE(want[0], want[1]);
    const std::vector<std::vector<int32_t>> pages = {{0}, {1}, {2}, {3}, {4}};
    for (const size_t shift : {0, 1, 3}) {
      Rows rows;
      std::vector<RowGroup> groups;
      for (size_t i = 0; i < modes.size(); ++i) {
        rows.add(pages[i], ids, 0);
        groups.push_back({modes[(i + shift) % modes.size()], RowClass::kPrompt, prompt});
        groups.push_back({groups.back().mode, RowClass::kGenerated, count - prompt});
      }
      Batch batch = rows.batch();
      batch.groups = groups;
      ASSERT_TRUE(model.forward(batch).ok());
      const auto got = all_logits(model, batch.rows());
      for (size_t i = 0; i < modes.size(); ++i) {
        const auto begin = got.begin() + static_cast<int64_t>(i * count * vocab);
        EXPECT_TRUE(std::equal(begin, begin + static_cast<int64_t>(count * vocab),
                               want[(i + shift) % modes.size()].begin()))
            << execution_mode_name(groups[2 * i].mode) << " " << cpu_path_name(path);
      }
    }
  }
}

TEST_P(Modes, PaperCompensatesSmallStepsWhateverTheirRows) {
  auto paper = load_mode(GetParam(), {ExecutionMode::kPaper, {}});
  auto full = load_mode(GetParam(), {ExecutionMode::kResidue, 1.0f});
  const auto ids = ids_of(40);
  EXPECT_EQ(logits_of(*paper.model, ids, 40), logits_of(*full.model, ids, 40));
  EXPECT_EQ(logits_of(*paper.model, ids, 0), logits_of(*full.model, ids, 0));
  EXPECT_FALSE(batch_invariant(ExecutionMode::kPaper));
  const format::WeightFormat w = format::nvfp4_format();
  EXPECT_EQ(row_execution(ExecutionMode::kPaper, w, 0.25f, RowClass::kPrompt, 128).ratio, 1.0f);
  EXPECT_EQ(row_execution(ExecutionMode::kPaper, w, 0.25f, RowClass::kGenerated, 129).ratio, 0.25f);
}

TEST_P(Modes, TheModeInForceIsSaid) {
  const auto said = [&](ModeOptions mode) {
    const auto loaded = load_mode(GetParam(), mode);
    return describe_mode(loaded.model->program(), loaded.model->mode());
  };
  EXPECT_EQ(said({ExecutionMode::kAuto, {}}), "mode weight-only");
  const std::string half = said({ExecutionMode::kPlain, {}});
  EXPECT_TRUE(half.starts_with("mode plain")) << half;
  EXPECT_EQ(half.find("prefill ratio"), std::string::npos) << half;
  // The exports' heads are dense.
  EXPECT_NE(half.find("; 1 of "), std::string::npos) << half;
  const std::string full = said({ExecutionMode::kResidue, 1.0f});
  EXPECT_TRUE(full.starts_with("mode residue, prefill ratio 1")) << full;
  EXPECT_EQ(full.find("note"), std::string::npos) << full;
  const std::string none = said({ExecutionMode::kResidue, {}});
  EXPECT_TRUE(none.starts_with("mode residue, prefill ratio 0")) << none;
  EXPECT_NE(none.find("\nnote: prompt rows run without residue"), std::string::npos) << none;
  const std::string paper = said({ExecutionMode::kPaper, {}});
  EXPECT_NE(paper.find("in steps of more than 128 rows, 1 in others"), std::string::npos) << paper;
  EXPECT_EQ(paper.find("note"), std::string::npos) << paper;
}

INSTANTIATE_TEST_SUITE_P(
    Exports, Modes, ::testing::Values("exports/mo-nvfp4", "exports/ct-nvfp4", "exports/ct-mxfp4"),
    [](const auto& parameter) {
      std::string name = parameter.param;
      std::replace_if(
          name.begin(), name.end(), [](char c) { return c == '-' || c == '/'; }, '_');
      return name;
    });

Error refusal(const std::string& name, ModeOptions mode, ActivationType activations) {
  ThreadPool pool(1);
  auto source = checkpoint::open_checkpoint(fixture(name));
  EXPECT_TRUE(source.ok());
  ModelOptions options;
  options.activations = activations;
  options.max_rows = options.max_context = 32;
  options.kv_pages = 1;
  options.mode = mode;
  auto model = Model::load(**source, options, pool);
  EXPECT_FALSE(model.ok());
  return model.ok() ? Error{} : model.error();
}

TEST(ModeRefusals, SayWhatIsMissing) {
  const auto bf16 = ActivationType::kBF16;
  EXPECT_EQ(refusal("models/llama", {ExecutionMode::kPlain, {}}, bf16).code,
            ErrorCode::kUnsupported);
  EXPECT_EQ(refusal("models/llama", {ExecutionMode::kFp8, {}}, bf16).code, ErrorCode::kUnsupported);
  EXPECT_EQ(refusal("exports/mo-nvfp4", {ExecutionMode::kPlain, {}}, ActivationType::kF32).code,
            ErrorCode::kInvalidArgument);
  const Error masks = refusal("exports/mo-nvfp4", {ExecutionMode::kResidue, 0.25f}, bf16);
  EXPECT_EQ(masks.code, ErrorCode::kUnsupported);
  EXPECT_NE(masks.message.find("masks"), std::string::npos);
  EXPECT_EQ(refusal("exports/mo-nvfp4", {ExecutionMode::kResidue, 0.3f}, bf16).code,
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(refusal("exports/mo-nvfp4", {ExecutionMode::kPlain, 1.0f}, bf16).code,
            ErrorCode::kInvalidArgument);
  EXPECT_FALSE(parse_execution_mode("w4a4").ok());
  for (const ExecutionMode mode : {ExecutionMode::kAuto, ExecutionMode::kFp8Residue})
    EXPECT_EQ(*parse_execution_mode(execution_mode_name(mode)), mode);
}

}  // namespace
}  // namespace sub8::model
