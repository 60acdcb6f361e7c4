// KV caches in 8 and 4 bits and the kinds of attention over them, in a whole model.
#include <algorithm>
#include <cmath>

#include "checkpoint/wrapped_source.h"
#include "harness.h"

namespace sub8::model {
namespace {

using kernels::AttentionKind;
using kernels::KvType;
using testing::all_logits;
using testing::fixture;
using testing::load;
using testing::Loaded;
using testing::LoadOptions;
using testing::Rows;

LoadOptions options_of(KvType kv, std::optional<AttentionKind> attention = {},
                       CpuPath path = CpuPath::kScalar) {
  LoadOptions out;
  out.path = path;
  out.activations = ActivationType::kBF16;
  out.kv = kv;
  out.mode.attention = attention;
  return out;
}

std::vector<int32_t> ids_of(int count) {
  std::vector<int32_t> out;
  for (int i = 0; i < count; ++i) out.push_back(3 + i * 17 % 41);
  return out;
}

const std::vector<int32_t> kPages = {0, 1, 2, 3};

std::vector<float> logits_of(Model& model, const std::vector<int32_t>& ids, int64_t prompt_rows) {
  Rows rows;
  rows.add(kPages, ids, 0);
  EXPECT_TRUE(model.forward(rows.batch(prompt_rows)).ok());
  return all_logits(model, static_cast<int64_t>(ids.size()));
}

double distance(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0, energy = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double d = static_cast<double>(a[i]) - static_cast<double>(b[i]);
    sum += d * d;
    energy += static_cast<double>(b[i]) * static_cast<double>(b[i]);
  }
  return sum / energy;
}

class KvCache : public ::testing::TestWithParam<const char*> {};

TEST_P(KvCache, FewerBitsCostMoreAndTheResidueWinsBack) {
  const auto ids = ids_of(40);
  const std::string name = std::string("models/") + GetParam();
  const auto of = [&](KvType kv, std::optional<AttentionKind> kind, int64_t prompt_rows) {
    auto loaded = load(fixture(name), options_of(kv, kind));
    return loaded.model ? logits_of(*loaded.model, ids, prompt_rows) : std::vector<float>();
  };
  const auto exact = of(KvType::kF32, {}, 0);
  const auto bf16 = of(KvType::kBF16, {}, 0);
  const auto fp8 = of(KvType::kFp8, {}, 0);
  const auto nvfp4 = of(KvType::kNvfp4, {}, 0);
  EXPECT_LT(distance(bf16, exact), 1e-3);
  EXPECT_LT(distance(bf16, exact), distance(fp8, exact));
  EXPECT_LT(distance(fp8, exact), distance(nvfp4, exact));
  EXPECT_LT(distance(nvfp4, exact), 0.2);
  // Against 16-bit queries on the same cache.
  const auto fp4_query = of(KvType::kNvfp4, AttentionKind::kFp4Query, 0);
  const auto resattn = of(KvType::kNvfp4, AttentionKind::kResAttn, 0);
  EXPECT_GT(distance(resattn, nvfp4), 0.0);
  EXPECT_LT(distance(resattn, nvfp4), distance(fp4_query, nvfp4));
  // Prompt rows have 16-bit queries whatever generated rows have.
  EXPECT_EQ(of(KvType::kNvfp4, AttentionKind::kResAttn, 40), nvfp4);
}

TEST_P(KvCache, RowsDoNotDependOnTheStep) {
  const int count = 45;
  const int prompt = 21;
  const auto ids = ids_of(count);
  const std::string name = std::string("models/") + GetParam();
  for (const CpuPath path : available_cpu_paths()) {
    for (const auto& [kv, kind] : {std::pair{KvType::kNvfp4, AttentionKind::kResAttn},
                                   std::pair{KvType::kFp8, AttentionKind::kFp8Query},
                                   std::pair{KvType::kNvfp4, AttentionKind::k16Bit}}) {
      LoadOptions options = options_of(kv, kind, path);
      auto loaded = load(fixture(name), options);
      ASSERT_NE(loaded.model, nullptr);
      Model& model = *loaded.model;
      EXPECT_EQ(model.same_order_for_all_rows(model.mode()),
                kind == AttentionKind::k16Bit &&
                    load(fixture(name), options_of(KvType::kBF16, {}, path))
                        .model->same_order_for_all_rows(ExecutionMode::kWeightOnly));
      const auto vocab = static_cast<size_t>(model.config().vocab_size);
      const auto whole = logits_of(model, ids, prompt);
      const std::vector<float> want(whole.end() - static_cast<ptrdiff_t>(vocab), whole.end());
      const std::vector<int32_t> pages = {9, 4};
      for (const int chunk : {1, 7, 32, 44}) {
        std::vector<float> got;
        for (int first = 0; first < count; first += chunk) {
          const int rows_here = std::min(chunk, count - first);
          Rows rows;
          rows.add(pages, {ids.begin() + first, ids.begin() + first + rows_here}, first);
          ASSERT_TRUE(model.forward(rows.batch(std::clamp(prompt - first, 0, rows_here))).ok());
          const int32_t row[] = {rows_here - 1};
          const auto step = model.logits(row);
          got.assign(step->begin(), step->end());
        }
        EXPECT_EQ(got, want) << cpu_path_name(path) << " chunk " << chunk << " "
                             << kernels::attention_kind_name(kind);
      }
      options.threads = 3;
      auto other = load(fixture(name), options);
      EXPECT_EQ(logits_of(*other.model, ids, prompt), whole) << cpu_path_name(path);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Families, KvCache, ::testing::Values("llama", "gemma3", "opt"));

TEST(KvCacheOptions, AutoFollowsModeAndPages) {
  const auto kind = [](ExecutionMode mode, KvType pages) {
    EXPECT_EQ(attention_kind({.mode = mode}, pages, RowClass::kPrompt), AttentionKind::k16Bit);
    return attention_kind({.mode = mode}, pages, RowClass::kGenerated);
  };
  EXPECT_EQ(kind(ExecutionMode::kResidue, KvType::kNvfp4), AttentionKind::kResAttn);
  EXPECT_EQ(kind(ExecutionMode::kPaper, KvType::kNvfp4), AttentionKind::kResAttn);
  EXPECT_EQ(kind(ExecutionMode::kResidue, KvType::kFp8), AttentionKind::k16Bit);
  EXPECT_EQ(kind(ExecutionMode::kAuto, KvType::kNvfp4), AttentionKind::k16Bit);
}

// A checkpoint with KV scales that its files do not have.
class ScaledSource final : public checkpoint::WrappedSource {
 public:
  ScaledSource(std::unique_ptr<checkpoint::WeightSource> source, float k, float v)
      : WrappedSource(std::move(source)), k_(k), v_(v) {
    for (const checkpoint::WeightInfo& info : this->source().weights()) add_weight(info);
  }
  Result<std::optional<float>> kv_scale(int64_t layer, bool value_side) const override {
    if (layer == 0) return std::optional<float>();
    return std::optional<float>(value_side ? v_ : k_);
  }

 private:
  float k_, v_;
};

Loaded load_scaled(KvType kv, float k, float v) {
  Loaded out;
  out.pool = std::make_unique<ThreadPool>(1);
  out.source = std::make_unique<ScaledSource>(
      std::move(checkpoint::open_checkpoint(fixture("models/llama"))).value(), k, v);
  ModelOptions options;
  options.kv_type = kv;
  options.max_rows = options.max_logit_rows = options.max_context = 64;
  options.kv_pages = 4;
  auto model = Model::load(*out.source, options, *out.pool);
  if (model.ok()) {
    out.model = std::move(model).value();
  } else {
    EXPECT_NE(model.error().message.find("layer 1"), std::string::npos) << model.error().message;
  }
  return out;
}

TEST(KvCacheOptions, TheCheckpointsScalesAreUsed) {
  const auto ids = ids_of(40);
  for (const KvType kv : {KvType::kFp8, KvType::kNvfp4}) {
    auto one = load_scaled(kv, 1.0f, 1.0f);
    auto own = load_scaled(kv, 0.011f, 0.013f);
    ASSERT_NE(own.model, nullptr);
    EXPECT_EQ(own.model->kv_scales(0).k, 1.0f);  // where the files have none
    EXPECT_EQ(own.model->kv_scales(1).k, 0.011f);
    EXPECT_EQ(own.model->kv_scales(1).v, 0.013f);
    EXPECT_NE(logits_of(*own.model, ids, 0), logits_of(*one.model, ids, 0));
    // Scales that saturate everything show what happens when they are ignored on reading or
    // writing.
    const auto tiny = logits_of(*load_scaled(kv, 1.0f, 0x1p-60f).model, ids, 0);
    EXPECT_GT(distance(tiny, logits_of(*one.model, ids, 0)), 1e-3);
    EXPECT_EQ(load_scaled(kv, 1.0f, 0x1p-118f).model, nullptr);
    EXPECT_EQ(load_scaled(kv, INFINITY, 1.0f).model, nullptr);
  }
  // 16-bit caches have none.
  EXPECT_EQ(load_scaled(KvType::kBF16, 0x1p-118f, 0.5f).model->kv_scales(1).k, 1.0f);
}

std::string load_error(LoadOptions o) {
  ThreadPool pool(1);
  auto source = checkpoint::open_checkpoint(fixture("models/llama"));
  ModelOptions options;
  options.path = o.path;
  options.activations = o.activations;
  options.kv_type = o.kv;
  options.mode = o.mode;
  options.max_context = 32;
  options.kv_pages = 1;
  auto model = Model::load(**source, options, pool);
  return model.ok() ? "" : model.error().message;
}

TEST(KvCacheOptions, RefusedByName) {
  EXPECT_NE(load_error(options_of(KvType::kBF16, AttentionKind::kResAttn))
                .find("--kv-cache-dtype: attention: 'resattn' needs nvfp4 KV pages"),
            std::string::npos);
  LoadOptions exact = options_of(KvType::kNvfp4, AttentionKind::kResAttn);
  exact.activations = ActivationType::kF32;
  EXPECT_NE(load_error(exact).find("the attention 'resattn' quantises queries"), std::string::npos);
  exact.mode.attention = AttentionKind::k16Bit;
  EXPECT_EQ(load_error(exact), "");
}

}  // namespace
}  // namespace sub8::model
