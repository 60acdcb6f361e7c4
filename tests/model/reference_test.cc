// Every family against transformers' float32 results: each layer's output and the logits.
#include <cmath>

#include "harness.h"

namespace sub8::model {
namespace {

using testing::all_logits;
using testing::fixture;
using testing::load;
using testing::LoadOptions;
using testing::Rows;

// What reference.safetensors of a fixture holds.
struct Reference {
  std::vector<int32_t> ids;
  std::vector<std::vector<float>> layers;
  std::vector<float> logits;
};

const checkpoint::Tensor* find(const checkpoint::SafetensorsFile& file, const std::string& name) {
  for (const checkpoint::Tensor& tensor : file.tensors()) {
    if (tensor.name == name) return &tensor;
  }
  return nullptr;
}

std::vector<float> floats(const checkpoint::SafetensorsFile& file, const std::string& name) {
  const checkpoint::Tensor* tensor = find(file, name);
  EXPECT_NE(tensor, nullptr) << name;
  if (tensor == nullptr) return {};
  std::vector<float> out(tensor->data.size() / 4);
  std::memcpy(out.data(), tensor->data.data(), tensor->data.size());
  return out;
}

Reference read_reference(const std::string& name, int64_t layers) {
  Reference out;
  auto file =
      checkpoint::SafetensorsFile::open(fixture("models/" + name + "/reference.safetensors"));
  EXPECT_TRUE(file.ok()) << name;
  if (!file.ok()) return out;
  const checkpoint::Tensor* ids = find(*file, "input_ids");
  out.ids.resize(ids->data.size() / 4);
  std::memcpy(out.ids.data(), ids->data.data(), ids->data.size());
  for (int64_t i = 0; i < layers; ++i)
    out.layers.push_back(floats(*file, "layers." + std::to_string(i)));
  out.logits = floats(*file, "logits");
  return out;
}

// Largest difference, relative to the largest value of the reference. NaN counts as infinitely
// wrong.
double distance(const float* got, const std::vector<float>& want) {
  double largest = 0;
  double difference = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    largest = std::max(largest, std::abs(static_cast<double>(want[i])));
    const double d = std::abs(static_cast<double>(got[i]) - want[i]);
    difference = std::isnan(d) ? INFINITY : std::max(difference, d);
  }
  return difference / largest;
}

TEST(Distance, SeesPlantedFaults) {
  const std::vector<float> want = {1, -2, 3, 4};
  const auto with = [&](size_t i, float value) {
    std::vector<float> got = want;
    got[i] = value;
    return distance(got.data(), want);
  };
  EXPECT_EQ(distance(want.data(), want), 0);
  EXPECT_GT(with(1, 2), 0.9);
  EXPECT_EQ(with(2, NAN), INFINITY);
  EXPECT_GT(with(0, 1.01f), 1e-3);
}

class LayerCheck : public Observer {
 public:
  LayerCheck(const Reference& reference, int64_t hidden) : reference_(reference), hidden_(hidden) {}
  void layer_output(int layer, kernels::InputRows x, int64_t rows) override {
    std::vector<float> dense;
    for (int64_t r = 0; r < rows; ++r)
      dense.insert(dense.end(), x.data + r * x.stride, x.data + r * x.stride + hidden_);
    ASSERT_EQ(dense.size(), reference_.layers[layer].size());
    worst = std::max(worst, distance(dense.data(), reference_.layers[layer]));
    ++layers;
  }
  double worst = 0;
  int layers = 0;

 private:
  const Reference& reference_;
  int64_t hidden_;
};

const char* const kModels[] = {"gemma3",
                               "gemma3-layer-types",
                               "llama",
                               "llama-bias",
                               "llama-head-dim-null",
                               "llama-rope-linear",
                               "llama-rope-llama3",
                               "llama-sharded",
                               "llama-tied",
                               "llama-tied-head-stored",
                               "llama-yarn",
                               "llama-yarn-attention-factor",
                               "llama-yarn-betas",
                               "llama-yarn-rope-parameters",
                               "llama-yarn-rope-type",
                               "mistral-head-dim",
                               "mistral-sliding",
                               "opt",
                               "opt-post-norm",
                               "qwen2",
                               "qwen3"};

struct Worst {
  double layers = 0;
  double logits = 0;
};

Worst compare(const std::filesystem::path& model_path, const std::string& reference_name,
              const LoadOptions& options) {
  auto loaded = load(model_path, options);
  if (loaded.model == nullptr) return {INFINITY, INFINITY};
  const auto& config = loaded.model->config();
  const Reference reference = read_reference(reference_name, config.layers);
  const std::vector<int32_t> pages = {3, 1, 7, 0};
  Rows rows;
  rows.add(pages, reference.ids, 0);
  LayerCheck check(reference, config.hidden_size);
  const Status status = loaded.model->forward(rows.batch(), &check);
  EXPECT_TRUE(status.ok()) << (status.ok() ? "" : status.error().message);
  EXPECT_EQ(check.layers, config.layers);
  const std::vector<float> logits =
      all_logits(*loaded.model, static_cast<int64_t>(reference.ids.size()));
  EXPECT_EQ(logits.size(), reference.logits.size());
  return {check.worst, distance(logits.data(), reference.logits)};
}

TEST(Reference, Float32OnEveryPath) {
  for (const char* name : kModels) {
    for (const CpuPath path : available_cpu_paths()) {
      LoadOptions options;
      options.path = path;
      const Worst worst = compare(fixture(std::string("models/") + name), name, options);
      // FP32 sums in another order, over sums of at most some hundred terms and three to seven
      // layers.
      EXPECT_LT(worst.layers, 2e-5) << name << " " << cpu_path_name(path);
      EXPECT_LT(worst.logits, 2e-5) << name << " " << cpu_path_name(path);
    }
  }
}

TEST(Reference, Bf16ActivationsStayClose) {
  for (const char* name : kModels) {
    for (const CpuPath path : available_cpu_paths()) {
      LoadOptions options;
      options.path = path;
      options.activations = ActivationType::kBF16;
      options.kv = kernels::KvType::kBF16;
      const Worst worst = compare(fixture(std::string("models/") + name), name, options);
      // Eight bits of significand in every activation: some units of 2^-8, but not none at all.
      EXPECT_LT(worst.logits, 0.05) << name << " " << cpu_path_name(path);
      EXPECT_GT(worst.logits, 1e-5) << name << ": rounding to bf16 should be visible";
    }
  }
}

TEST(Reference, GgufTwinsGiveTheSameResults) {
  int found = 0;
  for (const auto& entry : std::filesystem::directory_iterator(fixture("gguf"))) {
    if (entry.path().extension() != ".gguf") continue;
    const std::string name = entry.path().stem().string();
    if (!std::filesystem::exists(fixture("models/" + name))) continue;
    const Worst worst = compare(entry.path(), name, {});
    EXPECT_LT(worst.logits, 2e-5) << name;
    ++found;
  }
  EXPECT_GE(found, 4);
}

}  // namespace
}  // namespace sub8::model
