// Whole models: every fixture opens, and a GGUF twin hands over the same weights and configuration.
#include "checkpoint/weight_source.h"

#include <cmath>

#include <gtest/gtest.h>

#include "checkpoint/test_files.h"
#include "tensor/decode.h"

namespace sub8::checkpoint {
namespace {

namespace fs = std::filesystem;

const fs::path kData = SUB8_TEST_DATA;

std::unique_ptr<WeightSource> open(const fs::path& path) {
  auto out = open_checkpoint(path);
  EXPECT_TRUE(out.ok()) << path << ": " << (out.ok() ? "" : out.error().message);
  return out.ok() ? std::move(out).value() : nullptr;
}

std::vector<float> all_rows(const WeightSource& source, const WeightInfo& info) {
  if (info.kind == WeightKind::kVector) return source.vector(info.name).value();
  std::vector<float> out(static_cast<size_t>(info.rows * info.cols));
  const Status status = source.decode_rows(info.name, 0, info.rows, out);
  EXPECT_TRUE(status.ok()) << info.name;
  return out;
}

TEST(WeightSource, EveryFixtureOpensAndDecodes) {
  int models = 0;
  for (const auto& entry : fs::directory_iterator(kData / "models")) {
    if (!entry.is_directory()) continue;
    ++models;
    const auto source = open(entry.path());
    ASSERT_NE(source, nullptr);
    for (const WeightInfo& info : source->weights()) {
      const std::vector<float> values = all_rows(*source, info);
      double sum = 0;
      for (const float v : values) sum += std::abs(v);
      EXPECT_TRUE(std::isfinite(sum) && sum > 0) << entry.path() << " " << info.name;
      if (info.kind == WeightKind::kVector) continue;
      const auto matrix = source->matrix(info.name, format::DType::kBF16);
      ASSERT_TRUE(matrix.ok()) << matrix.error().message;
      EXPECT_EQ(matrix->format, info.format);
      std::vector<float> decoded(values.size());
      decode_rows(*matrix, 0, info.rows, decoded);
      EXPECT_EQ(decoded, values) << info.name;
    }
  }
  EXPECT_GE(models, 20);
}

// Compares what a forward pass uses; ids and spellings may differ between the containers.
void expect_same_config(const ModelConfig& a, const ModelConfig& b) {
  EXPECT_EQ(a.architecture, b.architecture);
  EXPECT_EQ(a.hidden_size, b.hidden_size);
  EXPECT_EQ(a.intermediate_size, b.intermediate_size);
  EXPECT_EQ(a.layers, b.layers);
  EXPECT_EQ(a.heads, b.heads);
  EXPECT_EQ(a.kv_heads, b.kv_heads);
  EXPECT_EQ(a.head_dim, b.head_dim);
  EXPECT_EQ(a.vocab_size, b.vocab_size);
  EXPECT_EQ(a.max_positions, b.max_positions);
  EXPECT_EQ(static_cast<float>(a.norm_eps), static_cast<float>(b.norm_eps));
  EXPECT_EQ(a.activation, b.activation);
  EXPECT_EQ(a.tie_word_embeddings, b.tie_word_embeddings);
  EXPECT_EQ(a.qkv_bias, b.qkv_bias);
  EXPECT_EQ(a.attention_out_bias, b.attention_out_bias);
  EXPECT_EQ(a.mlp_bias, b.mlp_bias);
  EXPECT_EQ(a.qk_norm, b.qk_norm);
  EXPECT_EQ(a.norm_weight_plus_one, b.norm_weight_plus_one);
  EXPECT_EQ(a.embedding_scale, b.embedding_scale);
  EXPECT_NEAR(a.attention_scale, b.attention_scale, 1e-12);
  EXPECT_EQ(a.sliding_window, b.sliding_window);
  EXPECT_EQ(a.layer_slides, b.layer_slides);
  EXPECT_EQ(a.rope.type, b.rope.type);
  EXPECT_EQ(a.rope.theta, b.rope.theta);
  EXPECT_EQ(a.rope.factor, b.rope.factor);
  EXPECT_EQ(a.rope.original_max_positions, b.rope.original_max_positions);
  EXPECT_NEAR(a.rope.attention_factor, b.rope.attention_factor, 1e-12);
  EXPECT_EQ(a.rope_local.theta, b.rope_local.theta);
  EXPECT_EQ(a.rope_local.type, b.rope_local.type);
}

TEST(WeightSource, GgufTwinsAreEqualToTheBit) {
  int twins = 0;
  for (const auto& entry : fs::directory_iterator(kData / "gguf")) {
    if (entry.path().extension() != ".gguf") continue;
    ++twins;
    const std::string name = entry.path().stem().string();
    SCOPED_TRACE(name);
    const auto gguf = open(entry.path());
    const auto directory = open(kData / "models" / name);
    ASSERT_NE(gguf, nullptr);
    ASSERT_NE(directory, nullptr);
    expect_same_config(gguf->config(), directory->config());
    ASSERT_EQ(gguf->weights().size(), directory->weights().size());
    for (const WeightInfo& info : directory->weights()) {
      ASSERT_TRUE(gguf->has(info.name)) << info.name;
      EXPECT_EQ(all_rows(*gguf, *gguf->find(info.name)), all_rows(*directory, info)) << info.name;
    }
    // The configuration that is written for a GGUF reads back as the same one.
    const auto again = parse_model_config(gguf->texts().config, "config.json");
    ASSERT_TRUE(again.ok()) << again.error().message;
    expect_same_config(*again, directory->config());
  }
  EXPECT_GE(twins, 9);
}

TEST(WeightSource, TiedHeadIsTheEmbedding) {
  for (const char* name : {"llama-tied", "llama-tied-head-stored"}) {
    const auto source = open(kData / "models" / name);
    ASSERT_NE(source, nullptr);
    EXPECT_TRUE(source->tied_head());
    ASSERT_TRUE(source->has("lm_head"));
    EXPECT_EQ(source->find("lm_head"), source->find("model.embed_tokens"));
    const auto head = source->matrix("lm_head", format::DType::kBF16).value();
    const auto table = source->matrix("model.embed_tokens", format::DType::kBF16).value();
    EXPECT_EQ(head.codes.data(), table.codes.data());
    const bool stored = std::string(name) == "llama-tied-head-stored";
    ASSERT_EQ(source->ignored().size(), stored ? 1U : 0U);
    if (stored) {
      EXPECT_EQ(source->ignored()[0].find("lm_head.weight"), 0U) << source->ignored()[0];
    }
  }
  EXPECT_FALSE(open(kData / "models/llama")->tied_head());
}

// Texts beside the weights that contradict the model or themselves, by file name.
TEST(WeightSource, TextsThatDoNotFitAreRefused) {
  const auto refused = [](const char* file, const std::string& text, const char* part) {
    TempDir dir;
    fs::copy(kData / "models/llama-chat", dir.path(), fs::copy_options::recursive);
    write_text(dir / file, text);
    const auto source = open_checkpoint(dir.path());
    ASSERT_FALSE(source.ok()) << file << ": " << text;
    EXPECT_EQ(source.error().code, ErrorCode::kCorruptData);
    EXPECT_NE(source.error().message.find(file), std::string::npos) << source.error().message;
    EXPECT_NE(source.error().message.find(part), std::string::npos) << source.error().message;
  };
  const char* generation = "generation_config.json";
  refused(generation, R"({"eos_token_id":100000})", "eos_token_id 100000 is outside");
  refused(generation, R"({"eos_token_id":[1,100000]})", "eos_token_id 100000 is outside");
  refused(generation, R"({"bos_token_id":100000})", "bos_token_id 100000 is outside");
  refused(generation, R"({"temperature":1e5})", "from 0 to 100");
  refused(generation, R"({"top_k":1,"top_k":2})", "top_k");
  refused("tokenizer_config.json", R"({"bos_token":"a","bos_token":"b"})", "bos_token");
  std::string config = read_text(kData / "models/llama-chat/config.json");
  config.insert(config.find('{') + 1, "\"hidden_size\": 64, ");
  refused("config.json", config, "hidden_size");
}

TEST(WeightSource, WhatDoesNotExistIsExplained) {
  const auto hub = open_checkpoint("some-org/some-model");
  ASSERT_FALSE(hub.ok());
  EXPECT_EQ(hub.error().code, ErrorCode::kNotFound);
  EXPECT_NE(hub.error().message.find("hf download some-org/some-model"), std::string::npos);
  EXPECT_EQ(open_checkpoint("/nowhere/at/all").error().code, ErrorCode::kNotFound);
  const auto single = open_checkpoint(kData / "models/llama/model.safetensors");
  ASSERT_FALSE(single.ok());
  EXPECT_EQ(single.error().code, ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace sub8::checkpoint
