// Scoring: sums, and models whose logits are no numbers.
#include "study/evaluate.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include <gtest/gtest.h>

#include "checkpoint/test_files.h"
#include "checkpoint/weight_source.h"

namespace sub8::study {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kWindow = 8;

const fs::path kModel = fs::path(SUB8_TEST_DATA) / "models/llama";

std::unique_ptr<model::Model> load(const fs::path& directory, ThreadPool& pool) {
  auto source = checkpoint::open_checkpoint(directory);
  EXPECT_TRUE(source.ok()) << source.error().message;
  model::ModelOptions options;
  options.path = available_cpu_paths().back();
  options.max_rows = kWindow;
  options.max_logit_rows = 3;
  options.max_context = kWindow;
  options.kv_pages = 1;
  auto out = model::Model::load(**source, options, pool);
  EXPECT_TRUE(out.ok()) << out.error().message;
  return std::move(out).value();
}

// The model without what its layers add, so that a row's logits are its token's own: those of
// `token` overflow for token 7.
void save_overflowing(const fs::path& directory, int64_t token) {
  fs::copy_file(kModel / "config.json", directory / "config.json");
  auto tensors = checkpoint::TestTensors::load(kModel);
  const auto set = [&](const std::string& name, int64_t row, int64_t column, float value) {
    auto& tensor = tensors.all.at(name);
    ASSERT_EQ(tensor.spec.dtype, format::DType::kBF16);
    const uint16_t half = format::float_to_bf16(value);
    const int64_t at = 2 * (row * tensor.spec.shape[1] + column);
    std::memcpy(tensor.bytes.data() + at, &half, sizeof half);
  };
  for (auto& [name, tensor] : tensors.all) {
    if (name.ends_with("o_proj.weight") || name.ends_with("down_proj.weight"))
      std::fill(tensor.bytes.begin(), tensor.bytes.end(), '\0');
  }
  const std::string table = "model.embed_tokens.weight";
  const std::vector<int64_t> shape = tensors.all.at(table).spec.shape;
  for (int64_t row = 0; row < shape[0]; ++row) set(table, row, 0, 0);
  for (int64_t k = 0; k < shape[1]; ++k) set(table, token, k, k == 0 ? 1.0F : 0.0F);
  set("lm_head.weight", 7, 0, 3e38F);
  tensors.save(directory);
}

std::vector<int32_t> tokens_of(int64_t count) {
  std::vector<int32_t> out(static_cast<size_t>(count));
  for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<int32_t>(3 + i * 7 % 40);
  return out;
}

TEST(Evaluate, ALogitThatIsNoNumberIsAnErrorNamingWindowAndRow) {
  checkpoint::TempDir dir;
  save_overflowing(dir.path(), 60);
  ThreadPool pool(2);
  const auto sound = load(kModel, pool);
  const auto broken = load(dir.path(), pool);
  std::vector<int32_t> tokens = tokens_of(3 * kWindow);
  model::Model* const sounds[] = {sound.get()};
  model::Model* const both[] = {sound.get(), broken.get()};
  const EvaluateOptions options{.window = kWindow};
  ASSERT_TRUE(evaluate(both, nullptr, tokens, options).ok());
  tokens[static_cast<size_t>(kWindow) + 5] = 60;
  const auto check = [](const auto& result, const char* who) {
    ASSERT_FALSE(result.ok());
    const std::string& message = result.error().message;
    EXPECT_EQ(result.error().code, ErrorCode::kCorruptData) << message;
    EXPECT_NE(message.find(who), std::string::npos) << message;
    EXPECT_NE(message.find("row 5 of window 1"), std::string::npos) << message;
    EXPECT_NE(message.find("out of range"), std::string::npos) << message;
  };
  check(evaluate(both, nullptr, tokens, options), "model 2 of 2");
  check(evaluate(sounds, broken.get(), tokens, options), "the reference");
}

TEST(Evaluate, TheMeanComesFromTheSums) {
  Evaluation e;
  e.windows = {{.negative_log_likelihood = 3000, .scored = 3},
               {.negative_log_likelihood = 1800, .scored = 1}};
  EXPECT_EQ(e.mean_nll(), 1200);
  EXPECT_TRUE(std::isinf(e.perplexity()));
}

}  // namespace
}  // namespace sub8::study
