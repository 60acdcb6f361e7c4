// Loads a fixture and runs it, for the model tests.
#pragma once

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/cpu.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/weight_source.h"
#include "model/model.h"

namespace sub8::model::testing {

inline std::filesystem::path fixture(const std::string& name) {
  return std::filesystem::path(SUB8_TEST_DATA) / name;
}

struct Loaded {
  std::unique_ptr<ThreadPool> pool;
  std::unique_ptr<checkpoint::WeightSource> source;
  std::unique_ptr<Model> model;
};

struct LoadOptions {
  ActivationType activations = ActivationType::kF32;
  kernels::KvType kv = kernels::KvType::kF32;
  CpuPath path = CpuPath::kScalar;
  int threads = 2;
  int64_t context = 128;
  int32_t pages = 16;
  ModeOptions mode;
  bool mixed_modes = false;
};

inline Loaded load(const std::filesystem::path& path, const LoadOptions& o) {
  Loaded out;
  out.pool = std::make_unique<ThreadPool>(o.threads);
  auto source = checkpoint::open_checkpoint(path);
  EXPECT_TRUE(source.ok()) << path << ": " << (source.ok() ? "" : source.error().message);
  if (!source.ok()) return out;
  out.source = std::move(source).value();
  ModelOptions options;
  options.path = o.path;
  options.activations = o.activations;
  options.kv_type = o.kv;
  options.max_rows = o.context;
  options.max_logit_rows = o.context;
  options.max_context = o.context;
  options.kv_pages = o.pages;
  options.mode = o.mode;
  options.mixed_modes = o.mixed_modes;
  auto model = Model::load(*out.source, options, *out.pool);
  EXPECT_TRUE(model.ok()) << path << ": " << (model.ok() ? "" : model.error().message);
  if (model.ok()) out.model = std::move(model).value();
  return out;
}

// Rows of sequences in a batch; the page tables must outlive it.
struct Rows {
  std::vector<int32_t> tokens, positions;
  std::vector<int64_t> slots;
  std::vector<kernels::AttentionRow> attention;

  void add(const std::vector<int32_t>& pages, const std::vector<int32_t>& ids, int32_t first) {
    for (size_t i = 0; i < ids.size(); ++i) {
      const int32_t position = first + static_cast<int32_t>(i);
      tokens.push_back(ids[i]);
      positions.push_back(position);
      slots.push_back(int64_t{pages[static_cast<size_t>(position / 32)]} * 32 + position % 32);
      attention.push_back({pages.data(), position});
    }
  }
  Batch batch(int64_t prompt_rows = -1) const {
    return {tokens, positions, slots, attention,
            prompt_rows < 0 ? static_cast<int64_t>(tokens.size()) : prompt_rows};
  }
};

inline std::vector<float> all_logits(Model& model, int64_t rows) {
  std::vector<int32_t> wanted(static_cast<size_t>(rows));
  std::iota(wanted.begin(), wanted.end(), 0);
  auto logits = model.logits(wanted);
  EXPECT_TRUE(logits.ok());
  return {logits->begin(), logits->end()};
}

// Token ids that every fixture has, and pages for 128 of them.
inline std::vector<int32_t> ids_of(int count) {
  std::vector<int32_t> out;
  for (int i = 0; i < count; ++i) out.push_back(3 + i * 17 % 90);
  return out;
}
inline const std::vector<int32_t> kPages = {0, 1, 2, 3};

// |a - b|^2 / |b|^2
inline double distance(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0, energy = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double d = static_cast<double>(a[i]) - static_cast<double>(b[i]);
    sum += d * d;
    energy += static_cast<double>(b[i]) * static_cast<double>(b[i]);
  }
  return sum / energy;
}

// Every row's logits are the same to the bit in one step and in steps of `chunk` rows; the first
// `prompt` rows are prompt rows.
inline void expect_rows_alone(Model& model, const std::vector<int32_t>& ids, int prompt,
                              int chunk) {
  const auto count = static_cast<int>(ids.size());
  Rows all;
  all.add(kPages, ids, 0);
  ASSERT_TRUE(model.forward(all.batch(prompt)).ok());
  const auto want = all_logits(model, count);
  const int64_t vocab = model.config().vocab_size;
  for (int first = 0; first < count; first += chunk) {
    const int end = std::min(first + chunk, count);
    Rows rows;
    rows.add(kPages, {ids.begin() + first, ids.begin() + end}, first);
    ASSERT_TRUE(model.forward(rows.batch(std::clamp(prompt - first, 0, end - first))).ok());
    const auto got = all_logits(model, end - first);
    ASSERT_TRUE(std::equal(got.begin(), got.end(), want.begin() + first * vocab))
        << "steps of " << chunk << ", row " << first;
  }
}

}  // namespace sub8::model::testing
