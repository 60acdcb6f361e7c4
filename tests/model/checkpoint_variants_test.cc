// One model in several files: what must not change a result does not.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "checkpoint/test_files.h"
#include "harness.h"
#include "quantize/load_source.h"
#include "tensor/decode.h"

namespace sub8::model {
namespace {

using checkpoint::TempDir;
using checkpoint::TestTensors;
using testing::all_logits;
using testing::fixture;
using testing::load;
using testing::Loaded;
using testing::Rows;

std::vector<float> logits(Model& model, int64_t count = 40) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < count; ++i) {
    ids.push_back(static_cast<int32_t>(i * 37 % model.config().vocab_size));
  }
  const std::vector<int32_t> pages = {1, 0, 2, 3};
  Rows rows;
  rows.add(pages, ids, 0);
  EXPECT_TRUE(model.forward(rows.batch()).ok());
  return all_logits(model, count);
}

std::vector<float> logits_of(const std::filesystem::path& path) {
  const Loaded loaded = load(path, {});
  return loaded.model == nullptr ? std::vector<float>() : logits(*loaded.model);
}

void copy_texts(const std::filesystem::path& from, const TempDir& to) {
  for (const char* name : {"config.json", "hf_quant_config.json"}) {
    if (std::filesystem::exists(from / name)) std::filesystem::copy(from / name, to / name);
  }
}

// Field fault B09: q/k/v and gate/up stored as one tensor each, with the one scale that they share.
// (ctest fills fresh memory with a pattern, so a value that nobody wrote would show.)
TEST(CheckpointVariants, FusedFilesGiveTheSameLogits) {
  const std::filesystem::path source = fixture("exports/mo-nvfp4");
  TestTensors fused = TestTensors::load(source);
  int joined = 0;
  const auto join = [&](const std::string& prefix, const std::vector<std::string>& parts,
                        const std::string& name) {
    for (const char* suffix : {".weight", ".weight_scale"}) {
      TestTensors::One whole = fused.all.at(prefix + parts[0] + suffix);
      for (size_t i = 1; i < parts.size(); ++i) {
        const TestTensors::One& part = fused.all.at(prefix + parts[i] + suffix);
        whole.bytes += part.bytes;
        whole.spec.shape[0] += part.spec.shape[0];
      }
      for (const std::string& part : parts) fused.all.erase(prefix + part + suffix);
      fused.put(prefix + name + suffix, whole.spec.dtype, whole.spec.shape, whole.bytes);
    }
    for (const char* suffix : {".weight_scale_2", ".input_scale"}) {
      const TestTensors::One one = fused.all.at(prefix + parts[0] + suffix);
      for (const std::string& part : parts) {
        EXPECT_EQ(fused.all.at(prefix + part + suffix).bytes, one.bytes) << "not shared";
        fused.all.erase(prefix + part + suffix);
      }
      fused.put(prefix + name + suffix, one.spec.dtype, one.spec.shape, one.bytes);
    }
    ++joined;
  };
  for (const char* layer : {"model.layers.0.", "model.layers.1."}) {
    join(std::string(layer) + "self_attn.", {"q_proj", "k_proj", "v_proj"}, "qkv_proj");
    join(std::string(layer) + "mlp.", {"gate_proj", "up_proj"}, "gate_up_proj");
  }
  ASSERT_EQ(joined, 4);
  TempDir dir;
  copy_texts(source, dir);
  fused.save(dir.path());
  const std::vector<float> want = logits_of(source);
  ASSERT_FALSE(want.empty());
  EXPECT_EQ(logits_of(dir.path()), want);
}

// Field fault B23: a header of odd length, an odd tensor ahead of wide ones, an empty and a scalar
// tensor.
TEST(CheckpointVariants, UnalignedFilesGiveTheSameLogits) {
  for (const char* name : {"exports/base", "exports/mo-nvfp4", "exports/ct-mxfp4"}) {
    const std::filesystem::path source = fixture(name);
    const TestTensors tensors = TestTensors::load(source);
    std::string header = R"({"aa":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},)"
                         R"("ab":{"dtype":"F32","shape":[0],"data_offsets":[3,3]},)"
                         R"("ac":{"dtype":"U8","shape":[],"data_offsets":[3,4]},)"
                         R"("ad":{"dtype":"U8","shape":[1],"data_offsets":[4,5]})";
    std::string data(5, 'x');
    for (const auto& [tensor, one] : tensors.all) {
      header += ",\"" + tensor + R"(":{"dtype":")" +
                std::string(format::dtype_name(one.spec.dtype)) + R"(","shape":[)";
      for (size_t i = 0; i < one.spec.shape.size(); ++i) {
        header += (i == 0 ? "" : ",") + std::to_string(one.spec.shape[i]);
      }
      header += "],\"data_offsets\":[" + std::to_string(data.size()) + "," +
                std::to_string(data.size() + one.bytes.size()) + "]}";
      data += one.bytes;
    }
    header += "}";
    if (header.size() % 4 != 2) header.append((6 - header.size() % 4) % 4, ' ');
    ASSERT_EQ(header.size() % 4, 2U);
    TempDir dir;
    copy_texts(source, dir);
    checkpoint::write_text(dir / "model.safetensors", checkpoint::raw_safetensors(header, data));
    const std::vector<float> want = logits_of(source);
    ASSERT_FALSE(want.empty());
    EXPECT_EQ(logits_of(dir.path()), want) << name;
  }
}

// A source whose matrices are those of another one, decoded to dense f32.
class Decoded final : public checkpoint::WeightSource {
 public:
  explicit Decoded(const checkpoint::WeightSource& source) : source_(source) {
    for (checkpoint::WeightInfo info : source.weights()) {
      info.format = format::dense_format(format::DType::kF32);
      add_weight(info);
    }
  }
  const checkpoint::ModelConfig& config() const override { return source_.config(); }
  bool tied_head() const override { return source_.tied_head(); }
  Result<StoredMatrix> matrix(std::string_view module, format::DType) const override {
    const checkpoint::WeightInfo* info = find(module);
    StoredMatrix out;
    out.format = info->format;
    out.rows = info->rows;
    out.cols = info->cols;
    auto values = std::make_shared<std::vector<float>>(static_cast<size_t>(out.rows * out.cols));
    SUB8_RETURN_IF_ERROR(source_.decode_rows(module, 0, out.rows, *values));
    out.codes = {reinterpret_cast<const uint8_t*>(values->data()), values->size() * 4};
    out.owner = values;
    return out;
  }
  Status decode_rows(std::string_view module, int64_t row, int64_t count,
                     std::span<float> out) const override {
    return source_.decode_rows(module, row, count, out);
  }
  Result<std::vector<float>> vector(std::string_view name) const override {
    return source_.vector(name);
  }
  void release(std::string_view) const override {}

 private:
  const checkpoint::WeightSource& source_;
};

// Field fault B25, last part: q, k and v (gate and up) in different formats, one of them plain.
TEST(CheckpointVariants, MixedPartsOfFusedLayersEqualTheirDecodedWeights) {
  auto original = checkpoint::open_checkpoint(fixture("models/llama"));
  ASSERT_TRUE(original.ok());
  quantize::Recipe recipe;
  recipe.weights = format::parse_weight_format("e3m2").value();
  recipe.skip.push_back(quantize::NamePattern::parse("self_attn.k_proj").value());
  recipe.overrides.push_back(quantize::parse_override("self_attn.v_proj=nvfp4").value());
  recipe.overrides.push_back(quantize::parse_override("mlp.up_proj=e2m1:g32").value());
  recipe.overrides.push_back(quantize::parse_override("mlp.down_proj=mxfp6_e2m3").value());
  const auto mixed = quantize::quantize_at_load(std::move(original).value(), recipe, 2);
  ASSERT_TRUE(mixed.ok()) << mixed.error().message;
  const Decoded decoded(**mixed);
  ThreadPool pool(2);
  ModelOptions options;
  options.activations = ActivationType::kF32;
  options.kv_type = kernels::KvType::kF32;
  options.max_rows = options.max_logit_rows = options.max_context = 64;
  options.kv_pages = 4;
  for (const CpuPath path : available_cpu_paths()) {
    options.path = path;
    auto coded = Model::load(**mixed, options, pool);
    auto dense = Model::load(decoded, options, pool);
    ASSERT_TRUE(coded.ok()) << coded.error().message;
    ASSERT_TRUE(dense.ok()) << dense.error().message;
    const std::vector<float> got = logits(**coded);
    const std::vector<float> want = logits(**dense);
    double largest = 0;
    double difference = 0;
    for (size_t i = 0; i < want.size(); ++i) {
      largest = std::max(largest, std::abs(static_cast<double>(want[i])));
      difference = std::max(difference, std::abs(static_cast<double>(got[i]) - want[i]));
    }
    ASSERT_GT(largest, 0);
    // The same f32 weights in another order of FP32 sums.
    EXPECT_LT(difference / largest, 2e-5) << cpu_path_name(path);
  }
}

}  // namespace
}  // namespace sub8::model
