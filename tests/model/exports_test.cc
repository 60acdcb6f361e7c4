// Real exports of other programs, from their files to logits.
//
// tests/data/exports/<scheme>/reference.safetensors holds input_ids and logits_weight_only_f32: the
// weights decoded by the published formulas in an independent program, then transformers in
// float32.
#include <cmath>
#include <cstring>

#include "harness.h"

namespace sub8::model {
namespace {

using testing::all_logits;
using testing::fixture;
using testing::load;
using testing::LoadOptions;
using testing::Rows;

struct Reference {
  std::vector<int32_t> ids;
  std::vector<float> logits;
};

template <class T>
std::vector<T> values_of(const checkpoint::SafetensorsFile& file, const std::string& name) {
  for (const checkpoint::Tensor& tensor : file.tensors()) {
    if (tensor.name != name) continue;
    std::vector<T> out(tensor.data.size() / sizeof(T));
    std::memcpy(out.data(), tensor.data.data(), out.size() * sizeof(T));
    return out;
  }
  ADD_FAILURE() << "no tensor " << name;
  return {};
}

Reference read_reference(const std::string& scheme) {
  const auto file =
      checkpoint::SafetensorsFile::open(fixture("exports/" + scheme + "/reference.safetensors"));
  EXPECT_TRUE(file.ok()) << scheme;
  Reference out;
  out.ids = values_of<int32_t>(*file, "input_ids");
  const std::string logits = scheme == "base" ? "logits_f32" : "logits_weight_only_f32";
  out.logits = values_of<float>(*file, logits);
  return out;
}

std::vector<float> logits_of(const std::string& scheme, const std::vector<int32_t>& ids,
                             const LoadOptions& options) {
  auto loaded = load(fixture("exports/" + scheme), options);
  if (loaded.model == nullptr) return {};
  const std::vector<int32_t> pages = {2, 5, 1, 0};
  Rows rows;
  rows.add(pages, ids, 0);
  const Status status = loaded.model->forward(rows.batch());
  EXPECT_TRUE(status.ok()) << (status.ok() ? "" : status.error().message);
  return all_logits(*loaded.model, static_cast<int64_t>(ids.size()));
}

// Largest difference of a row, relative to the row's largest logit: a wrong row shows whatever the
// others are.
double worst_row(const std::vector<float>& got, const std::vector<float>& want, size_t rows) {
  if (got.size() != want.size() || want.empty()) return INFINITY;
  const size_t width = want.size() / rows;
  double worst = 0;
  for (size_t r = 0; r < rows; ++r) {
    double largest = 0;
    double difference = 0;
    for (size_t i = r * width; i < (r + 1) * width; ++i) {
      largest = std::max(largest, std::abs(static_cast<double>(want[i])));
      const double d = std::abs(static_cast<double>(got[i]) - want[i]);
      difference = std::isnan(d) ? INFINITY : std::max(difference, d);
    }
    worst = std::max(worst, difference / largest);
  }
  return worst;
}

const char* const kSchemes[] = {"base", "mo-nvfp4", "ct-nvfp4", "ct-mxfp4"};

// Both sides decode to the same f32 weights bit for bit (tests/checkpoint), so what differs is the
// order of FP32 sums: two layers of sums of 64 to 512 terms. The exports' README asks for 1e-4.
TEST(Exports, LogitsEqualTheIndependentProgram) {
  for (const std::string scheme : kSchemes) {
    const Reference reference = read_reference(scheme);
    ASSERT_EQ(reference.ids.size(), 64U);
    for (const CpuPath path : available_cpu_paths()) {
      LoadOptions options;
      options.path = path;
      const double worst =
          worst_row(logits_of(scheme, reference.ids, options), reference.logits, 64);
      EXPECT_LT(worst, 1e-4) << scheme << " " << cpu_path_name(path);
    }
  }
}

// The comparison tells the schemes apart: the same weights quantised otherwise are far away.
TEST(Exports, AnotherSchemesLogitsAreFar) {
  const Reference nvfp4 = read_reference("mo-nvfp4");
  const Reference mxfp4 = read_reference("ct-mxfp4");
  ASSERT_EQ(nvfp4.ids, mxfp4.ids);
  EXPECT_GT(worst_row(nvfp4.logits, mxfp4.logits, 64), 1e-2);
}

// What `sub8 run` does by default: activations and KV cache in bf16.
TEST(Exports, Bf16ActivationsStayClose) {
  for (const std::string scheme : kSchemes) {
    const Reference reference = read_reference(scheme);
    for (const CpuPath path : available_cpu_paths()) {
      LoadOptions options;
      options.path = path;
      options.activations = ActivationType::kBF16;
      options.kv = kernels::KvType::kBF16;
      const double worst =
          worst_row(logits_of(scheme, reference.ids, options), reference.logits, 64);
      EXPECT_LT(worst, 0.05) << scheme << " " << cpu_path_name(path);
      EXPECT_GT(worst, 1e-5) << scheme << ": rounding to bf16 should be visible";
    }
  }
}

}  // namespace
}  // namespace sub8::model
