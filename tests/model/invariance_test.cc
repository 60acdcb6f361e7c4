// A row's result depends on its own sequence only: not on the batch, the chunks, the threads, or
// where its pages are.
#include <algorithm>

#include "harness.h"

namespace sub8::model {
namespace {

using testing::all_logits;
using testing::fixture;
using testing::load;
using testing::LoadOptions;
using testing::Rows;

std::vector<int32_t> ids_of(int seed, int count, int64_t vocab) {
  std::vector<int32_t> out;
  uint32_t state = 12345u + static_cast<uint32_t>(seed);
  for (int i = 0; i < count; ++i) {
    state = state * 1664525u + 1013904223u;
    out.push_back(static_cast<int32_t>((state >> 8) % static_cast<uint32_t>(vocab)));
  }
  return out;
}

// Logits of the last row of `ids`, the sequence alone in one step.
std::vector<float> solo(Model& model, const std::vector<int32_t>& ids) {
  const std::vector<int32_t> pages = {0, 1, 2, 3};
  Rows rows;
  rows.add(pages, ids, 0);
  EXPECT_TRUE(model.forward(rows.batch()).ok());
  const int32_t last[] = {static_cast<int32_t>(ids.size()) - 1};
  const auto logits = model.logits(last);
  return {logits->begin(), logits->end()};
}

class Invariance : public ::testing::TestWithParam<const char*> {};

TEST_P(Invariance, ChunksBatchesPagesAndThreads) {
  for (const CpuPath path : available_cpu_paths()) {
    LoadOptions options;
    options.path = path;
    options.activations = ActivationType::kBF16;
    options.kv = kernels::KvType::kBF16;
    auto loaded = load(fixture(std::string("models/") + GetParam()), options);
    ASSERT_NE(loaded.model, nullptr);
    Model& model = *loaded.model;
    const auto a = ids_of(1, 45, model.config().vocab_size);
    const auto b = ids_of(2, 33, model.config().vocab_size);
    const std::vector<float> want_a = solo(model, a);
    const std::vector<float> want_b = solo(model, b);

    // Both sequences in one step, on scattered pages.
    const std::vector<int32_t> pages_a = {9, 4};
    const std::vector<int32_t> pages_b = {2, 11};
    Rows both;
    both.add(pages_b, b, 0);
    both.add(pages_a, a, 0);
    ASSERT_TRUE(model.forward(both.batch()).ok());
    const int32_t last[] = {32, 77};
    const auto logits = model.logits(last);
    const auto vocab = static_cast<size_t>(model.config().vocab_size);
    EXPECT_EQ(std::vector<float>(logits->begin(), logits->begin() + vocab), want_b)
        << cpu_path_name(path);
    EXPECT_EQ(std::vector<float>(logits->begin() + vocab, logits->end()), want_a)
        << cpu_path_name(path);

    // In chunks of every kind, beside another sequence.
    for (const int chunk : {1, 7, 32, 44}) {
      std::vector<float> got;
      for (int first = 0; first < 45; first += chunk) {
        const int count = std::min(chunk, 45 - first);
        Rows rows;
        rows.add(pages_a, {a.begin() + first, a.begin() + first + count}, first);
        if (first < 33)
          rows.add(pages_b, {b.begin() + first, b.begin() + std::min(first + 1, 33)}, first);
        ASSERT_TRUE(model.forward(rows.batch()).ok());
        const int32_t row[] = {count - 1};
        const auto step = model.logits(row);
        got.assign(step->begin(), step->end());
      }
      EXPECT_EQ(got, want_a) << cpu_path_name(path) << " chunk " << chunk;
    }

    options.threads = 3;
    auto other = load(fixture(std::string("models/") + GetParam()), options);
    EXPECT_EQ(solo(*other.model, a), want_a) << cpu_path_name(path) << " with 3 threads";
  }
}

INSTANTIATE_TEST_SUITE_P(Families, Invariance,
                         ::testing::Values("llama", "gemma3", "qwen3", "opt-post-norm",
                                           "mistral-sliding"),
                         [](const auto& parameter) {
                           std::string name = parameter.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST(Forward, OutOfRangeInputIsAnError) {
  auto loaded = load(fixture("models/llama"), {});
  ASSERT_NE(loaded.model, nullptr);
  const std::vector<int32_t> pages = {0, 1, 2, 3};
  Rows bad_token;
  bad_token.add(pages, {static_cast<int32_t>(loaded.model->config().vocab_size)}, 0);
  EXPECT_EQ(loaded.model->forward(bad_token.batch()).error().code, ErrorCode::kInvalidArgument);
  Rows negative;
  negative.add(pages, {-1}, 0);
  EXPECT_FALSE(loaded.model->forward(negative.batch()).ok());
  Rows none;
  EXPECT_TRUE(loaded.model->forward(none.batch()).ok());
}

}  // namespace
}  // namespace sub8::model
