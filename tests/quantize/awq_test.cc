// AWQ: a folded model is the same model, and scales that cannot be folded are refused or moved.
#include "quantize/awq.h"

#include <cmath>
#include <cstring>
#include <fstream>

#include <gtest/gtest.h>
#include <unistd.h>

#include "checkpoint/safetensors.h"
#include "checkpoint/wrapped_source.h"
#include "format/dtype.h"
#include "model/harness.h"

namespace sub8::quantize {
namespace {

namespace fs = std::filesystem;
using checkpoint::WeightSource;
using model::testing::all_logits;
using model::testing::distance;
using model::testing::fixture;
using model::testing::kPages;
using model::testing::Rows;

std::unique_ptr<WeightSource> open(const std::string& name) {
  return checkpoint::open_checkpoint(fixture(name)).value();
}

// Positive numbers between 1/4 and 4 without a pattern.
std::vector<float> some_scales(int64_t count, int salt) {
  std::vector<float> out;
  for (int64_t k = 0; k < count; ++k)
    out.push_back(std::exp2(static_cast<float>((k * 37 + salt * 11) % 65 - 32) / 16.0f));
  return out;
}

AwqScales scales_of_all(const WeightSource& source) {
  AwqScales out;
  int salt = 0;
  const AwqFold fold = AwqFold::create(source).value();
  for (const AwqSite& site : fold.sites()) out[site.name()] = some_scales(site.channels, ++salt);
  return out;
}

// Logits with exact weights and unrounded activations.
std::vector<float> exact_logits(const WeightSource& source) {
  ThreadPool pool(2);
  model::ModelOptions options;
  options.path = CpuPath::kScalar;
  options.activations = ActivationType::kF32;
  options.kv_type = kernels::KvType::kF32;
  options.max_rows = options.max_logit_rows = options.max_context = 64;
  options.kv_pages = 2;
  auto model = model::Model::load(source, options, pool);
  EXPECT_TRUE(model.ok()) << (model.ok() ? "" : model.error().message);
  std::vector<int32_t> ids;
  for (int i = 0; i < 30; ++i) ids.push_back(3 + i * 17 % 41);
  Rows rows;
  rows.add(kPages, ids, 0);
  EXPECT_TRUE((*model)->forward(rows.batch(30)).ok());
  return all_logits(**model, 30);
}

class Awq : public ::testing::TestWithParam<const char*> {};

TEST_P(Awq, AFoldedModelIsTheSameModel) {
  const std::string name = std::string("models/") + GetParam();
  const auto plain = open(name);
  const AwqScales scales = scales_of_all(*plain);
  ASSERT_FALSE(scales.empty());
  const auto folded = fold_awq(open(name), scales);
  ASSERT_TRUE(folded.ok()) << folded.error().message;
  const auto want = exact_logits(*plain);
  // Each weight is rounded a few times more, by 2^-24 each.
  EXPECT_LT(distance(exact_logits(**folded), want), 1e-10);
  // It is folded at all: every weight that a site reads is another one, and its norm too.
  const AwqFold fold = AwqFold::create(*plain).value();
  for (const AwqSite& site : fold.sites()) {
    for (const std::string& reader : site.readers) {
      const auto info = *plain->find(reader);
      std::vector<float> before(static_cast<size_t>(info.cols)), after(before.size());
      ASSERT_TRUE(plain->decode_rows(reader, 1, 1, before).ok());
      ASSERT_TRUE((*folded)->decode_rows(reader, 1, 1, after).ok());
      EXPECT_NE(before, after) << reader;
      const auto matrix = (*folded)->matrix(reader, format::DType::kBF16);
      ASSERT_TRUE(matrix.ok());
      EXPECT_EQ((*folded)->find(reader)->format, matrix->format);
      EXPECT_EQ(std::memcmp(matrix->codes.data() + info.cols * 4, after.data(), after.size() * 4),
                0);
    }
    if (!site.norm.empty()) {
      EXPECT_NE(*plain->vector(site.norm), *(*folded)->vector(site.norm)) << site.norm;
    }
  }
}

TEST_P(Awq, OneSideAloneIsAnotherModel) {
  // The test above can fail: without the division the model is another one.
  const std::string name = std::string("models/") + GetParam();
  const auto plain = open(name);
  const AwqScales scales = scales_of_all(*plain);
  class HalfFolded final : public checkpoint::WrappedSource {
   public:
    HalfFolded(std::unique_ptr<WeightSource> folded, const WeightSource& plain)
        : WrappedSource(std::move(folded)), plain_(plain) {
      for (const checkpoint::WeightInfo& info : source().weights()) add_weight(info);
    }
    Result<std::vector<float>> vector(std::string_view name) const override {
      return plain_.vector(name);
    }

   private:
    const WeightSource& plain_;
  };
  const HalfFolded half(fold_awq(open(name), scales).value(), *plain);
  EXPECT_GT(distance(exact_logits(half), exact_logits(*plain)), 1e-4);
}

TEST_P(Awq, NormWeightsAreBf16Numbers) {
  const std::string name = std::string("models/") + GetParam();
  const auto plain = open(name);
  AwqFold fold = AwqFold::create(*plain).value();
  for (const AwqSite& site : fold.sites()) {
    const auto wanted = some_scales(site.channels, 5);
    const auto scales = fold.foldable(site, wanted).value();
    ASSERT_TRUE(fold.set(site, wanted).ok());
    EXPECT_EQ(*fold.columns(site.readers.back()), scales);
    for (size_t k = 0; k < scales.size(); ++k) {
      ASSERT_GT(scales[k], 0.0f);
      // Moved by no more than a rounding of the weight; rows that make several channels apart.
      if (!site.norm.empty() && scales[k] != 1.0f && !plain->config().norm_weight_plus_one) {
        ASSERT_NEAR(scales[k] / wanted[k], 1.0f, 1.0f / 256) << site.name() << " " << k;
      }
    }
    if (site.norm.empty()) {
      for (size_t k = 0; k < scales.size(); ++k)
        EXPECT_EQ((*fold.row_divisors(site.producer))[static_cast<size_t>(site.rows[k])],
                  scales[k]);
      continue;
    }
    for (const float value : *fold.vector(site.norm))
      EXPECT_EQ(value, format::round_to_bf16(value));
    // What was folded folds to itself, so a record of it can be applied again.
    const auto again = fold.foldable(site, scales).value();
    for (size_t k = 0; k < scales.size(); ++k) EXPECT_NEAR(again[k] / scales[k], 1.0f, 1e-6f);
  }
}

INSTANTIATE_TEST_SUITE_P(Families, Awq, ::testing::Values("llama", "gemma3", "opt", "qwen2"),
                         [](const auto& p) { return std::string(p.param); });

TEST(AwqErrors, NameTheLayer) {
  const std::string name = "models/llama";
  const auto plain = open(name);
  const AwqScales good = scales_of_all(*plain);
  const auto refusal = [&](const AwqScales& scales) {
    const auto got = fold_awq(open(name), scales);
    EXPECT_FALSE(got.ok());
    return got.ok() ? std::string() : got.error().message;
  };
  const std::string q = "model.layers.0.self_attn.q_proj";
  AwqScales bad = good;
  bad[q].pop_back();
  EXPECT_NE(refusal(bad).find(q + " has"), std::string::npos);
  for (const float value : {0.0f, -1.0f, std::nanf(""), HUGE_VALF}) {
    bad = good;
    bad[q][3] = value;
    EXPECT_NE(refusal(bad).find(q + ": the AWQ scale of channel 3"), std::string::npos);
  }
  bad = good;
  bad["model.layers.0.self_attn.k_proj"] = good.at(q);
  EXPECT_NE(refusal(bad).find("k_proj whose input can be scaled"), std::string::npos);
}

TEST(AwqRecords, ReadBackWhatWasWritten) {
  std::string pattern = (fs::temp_directory_path() / "sub8-awq-XXXXXX").string();
  const fs::path dir = ::mkdtemp(pattern.data());
  EXPECT_FALSE(read_awq(dir).value());
  const AwqRecord record{{{"a.q_proj", {0.5f, 2.0f}}, {"a.o_proj", {1.5f}}}, "book.txt", 3, 190};
  ASSERT_TRUE(write_awq(dir, record).ok());
  EXPECT_EQ(std::distance(fs::directory_iterator(dir / "sub8"), {}), 1);
  const auto got = read_awq(dir);
  ASSERT_TRUE(got.ok() && *got);
  EXPECT_EQ((*got)->scales, record.scales);
  EXPECT_EQ((*got)->text, "book.txt");
  EXPECT_EQ((*got)->samples, 3);
  EXPECT_EQ((*got)->tokens, 190);
  const fs::path path = dir / "sub8/awq.safetensors";
  const auto file = checkpoint::SafetensorsFile::open(path).value();
  std::fstream out(path, std::ios::in | std::ios::out | std::ios::binary);
  out.seekp(static_cast<std::streamoff>(file.tensors()[0].file_offset));
  const float nan = std::nanf("");
  out.write(reinterpret_cast<const char*>(&nan), 4);
  out.close();
  const auto refused = read_awq(dir);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("awq_scale is nan"), std::string::npos)
      << refused.error().message;
  fs::resize_file(path, 20);
  EXPECT_FALSE(read_awq(dir).ok());
  fs::remove_all(dir);
}

}  // namespace
}  // namespace sub8::quantize
