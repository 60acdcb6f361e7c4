#include "checkpoint/gguf.h"

#include <cmath>
#include <functional>
#include <tuple>

#include <gtest/gtest.h>

#include "checkpoint/gguf_model.h"
#include "checkpoint/test_files.h"
#include "checkpoint/weight_source.h"
#include "tensor/decode.h"

namespace sub8::checkpoint {
namespace {

Result<GgufFile> parse(const std::string& bytes) {
  return GgufFile::parse(as_bytes(bytes), "t.gguf", nullptr);
}

void expect_refused(const std::string& bytes, const char* part,
                    ErrorCode code = ErrorCode::kCorruptData) {
  const auto file = parse(bytes);
  ASSERT_FALSE(file.ok()) << part;
  EXPECT_EQ(file.error().code, code);
  EXPECT_NE(file.error().message.find(part), std::string::npos) << file.error().message;
}

// Every type against what the `gguf` package makes of the same blocks.
TEST(Gguf, BlockTypesEqualTheReference) {
  const auto golden = SafetensorsFile::open(std::filesystem::path(SUB8_TEST_DATA) /
                                            "checkpoint/ggml_blocks.safetensors");
  ASSERT_TRUE(golden.ok()) << golden.error().message;
  std::map<std::string, const Tensor*> by_name;
  for (const Tensor& t : golden->tensors()) by_name[t.name] = &t;
  int types = 0;
  for (uint32_t id = 0; id < 64; ++id) {
    const auto type = static_cast<GgmlType>(id);
    const GgmlBlock block = ggml_block(type);
    if (block.name == "?") continue;
    ++types;
    const std::string name(block.name);
    const Tensor* blocks = by_name.at(name + ".blocks");
    const Tensor* values = by_name.at(name + ".values");
    ASSERT_EQ(blocks->shape[1], block.bytes) << name;
    std::vector<float> expected(values->data.size() / 4);
    std::memcpy(expected.data(), values->data.data(), values->data.size());
    ASSERT_EQ(static_cast<int64_t>(expected.size()), blocks->shape[0] * block.elements) << name;
    std::vector<float> got(expected.size(), NAN);
    decode_ggml(type, blocks->data.data(), static_cast<int64_t>(got.size()), got.data());
    for (size_t i = 0; i < got.size(); ++i) ASSERT_EQ(got[i], expected[i]) << name << " " << i;
  }
  EXPECT_EQ(types, 15);
}

TEST(Gguf, ReadsEveryValueType) {
  const std::string bytes =
      GgufBuilder()
          .raw("u8", 0, "\xff")
          .raw("i8", 1, "\xff")
          .raw("u16", 2, "\xff\xff")
          .raw("i16", 3, "\xff\xff")
          .u32("u32", 7)
          .raw("i32", 5, little_endian(int32_t{-7}))
          .f32("f32", 0.5F)
          .boolean("yes", true)
          .string("s", "text")
          .strings("list", {"a", "", "ccc"})
          .raw("u64", 10, little_endian(uint64_t{1} << 40))
          .raw("i64", 11, little_endian(int64_t{-1}))
          .raw("f64", 12, little_endian(0.25))
          .raw("nested", 9,
               little_endian(uint32_t{9}) + little_endian(uint64_t{1}) +
                   little_endian(uint32_t{0}) + little_endian(uint64_t{2}) + "ab")
          .build();
  const auto file = parse(bytes);
  ASSERT_TRUE(file.ok()) << file.error().message;
  EXPECT_EQ(file->get_int("u8", 0, 255).value(), 255);
  EXPECT_EQ(file->get_int("i8", -9, 9).value(), -1);
  EXPECT_EQ(file->get_int("u16", 0, 65535).value(), 65535);
  EXPECT_EQ(file->get_int("i16", -9, 9).value(), -1);
  EXPECT_EQ(file->get_int("i32", -9, 9).value(), -7);
  EXPECT_EQ(file->get_int("u64", 0, INT64_MAX).value(), int64_t{1} << 40);
  EXPECT_EQ(file->get_int("i64", -9, 9).value(), -1);
  EXPECT_EQ(file->get_double("f32").value(), 0.5);
  EXPECT_EQ(file->get_double("f64").value(), 0.25);
  EXPECT_EQ(file->get_double("u32").value(), 7.0);
  EXPECT_EQ(file->get_bool("yes").value(), true);
  EXPECT_EQ(file->get_string("s").value(), "text");
  EXPECT_EQ(file->get_strings("list").value(), (std::vector<std::string>{"a", "", "ccc"}));
  EXPECT_TRUE(file->has("nested"));
  EXPECT_FALSE(file->get_int("absent", 0, 1).value().has_value());
  for (const auto& wrong : {file->get_int("u32", 0, 6), file->get_int("s", 0, 9)}) {
    ASSERT_FALSE(wrong.ok());
    EXPECT_NE(wrong.error().message.find("t.gguf: metadata"), std::string::npos);
  }
  EXPECT_FALSE(file->get_bool("u32").ok());
  EXPECT_FALSE(file->get_string("u32").ok());
  EXPECT_FALSE(file->get_strings("s").ok());
}

std::string array(uint32_t type, uint64_t count, std::string_view values) {
  return little_endian(type) + little_endian(count) + std::string(values);
}

// Arrays of numbers stay in the file: only a reader that asks for one decodes it.
TEST(Gguf, ArraysOfScalarsAreViews) {
  const std::string bytes =
      GgufBuilder()
          .raw("u8", 9, array(0, 1 << 20, std::string(1 << 20, '\x07')))
          .raw("i16", 9, array(3, 2, little_endian(int16_t{-3}) + little_endian(int16_t{4})))
          .raw("f32", 9, array(6, 2, little_endian(0.5F) + little_endian(-2.0F)))
          .raw("bool", 9, array(7, 2, std::string_view("\1\0", 2)))
          .strings("text", {"a"})
          .build();
  const auto file = parse(bytes);
  ASSERT_TRUE(file.ok()) << file.error().message;
  const auto& u8 = std::get<GgufArray>(file->metadata().at("u8").value);
  EXPECT_EQ(u8.size, size_t{1} << 20);
  EXPECT_TRUE(u8.values.empty());
  EXPECT_GE(u8.scalars.data(), as_bytes(bytes).data());
  EXPECT_LE(u8.scalars.data() + u8.scalars.size(), as_bytes(bytes).data() + bytes.size());
  EXPECT_EQ(file->get_ints("u8", 0, 255)->back(), 7);
  EXPECT_EQ(file->get_ints("i16", -9, 9).value(), (std::vector<int64_t>{-3, 4}));
  EXPECT_EQ(file->get_doubles("f32").value(), (std::vector<double>{0.5, -2}));
  const auto& flags = std::get<GgufArray>(file->metadata().at("bool").value);
  EXPECT_TRUE(std::get<bool>(flags.at(0).value));
  EXPECT_FALSE(std::get<bool>(flags.at(1).value));
  EXPECT_FALSE(file->get_strings("u8").ok());
  EXPECT_FALSE(file->get_ints("text", 0, 9).ok());
  expect_refused(GgufBuilder().raw("k", 9, array(7, 2, "\1\2")).build(), "boolean");
  expect_refused(GgufBuilder().raw("k", 9, array(10, 1 << 20, "x")).build(), "claims");
}

TEST(Gguf, RefusesHostileHeaders) {
  expect_refused("GGUX" + std::string(60, '\0'), "not a GGUF");
  expect_refused(GgufBuilder(1).build(), "version 1", ErrorCode::kUnsupported);
  expect_refused(GgufBuilder(0x03000000).build(), "big-endian", ErrorCode::kUnsupported);
  const std::string head = "GGUF" + little_endian(uint32_t{3});
  expect_refused(head + little_endian(UINT64_MAX) + little_endian(uint64_t{0}), "claims");
  expect_refused(head + little_endian(uint64_t{0}) + little_endian(UINT64_MAX), "claims");
  expect_refused(GgufBuilder().raw("k", 8, little_endian(UINT64_MAX)).build(), "needs");
  expect_refused(GgufBuilder().raw("k", 13, "").build(), "type 13");
  expect_refused(GgufBuilder().raw("k", 7, "\2").build(), "boolean");
  for (const uint64_t count : {UINT64_MAX, uint64_t{1} << 40, uint64_t{1} << 20}) {
    expect_refused(
        GgufBuilder().raw("k", 9, little_endian(uint32_t{8}) + little_endian(count)).build(),
        "claims");
  }
  expect_refused(
      GgufBuilder().raw("k", 9, little_endian(uint32_t{77}) + little_endian(uint64_t{0})).build(),
      "type 77");
  std::string deep;
  for (int i = 0; i < 1000; ++i) deep += little_endian(uint32_t{9}) + little_endian(uint64_t{1});
  expect_refused(GgufBuilder().raw("k", 9, deep).build(), "nested");
  expect_refused(GgufBuilder().u32("k", 1).u32("k", 2).build(), "twice");
  for (const uint32_t alignment : {0U, 4U, 12U, 48U, 0x80000000U}) {
    expect_refused(GgufBuilder().u32("general.alignment", alignment).build(), "general.alignment");
  }
}

TEST(Gguf, RefusesHostileTensors) {
  const std::string data(64, 'x');
  expect_refused(GgufBuilder().tensor("t", {16, 1000}, 0, data).build(), "truncated");
  expect_refused(GgufBuilder().tensor("t", {1ULL << 33, 1ULL << 33}, 0, data).build(), "overflow");
  expect_refused(GgufBuilder().tensor("t", {1ULL << 62}, 0, data).build(), "overflow");
  expect_refused(GgufBuilder().tensor("t", {1ULL << 63}, 0, data).build(), "2^63");
  expect_refused(GgufBuilder().tensor("t", {0, 1ULL << 62, 4}, 0, data).build(), "overflow");
  expect_refused(GgufBuilder().tensor("t", {1, 1, 1, 1, 1}, 0, data).build(), "dimensions");
  expect_refused(GgufBuilder().tensor("t", {33}, 2, data).build(), "whole Q4_0 blocks");
  expect_refused(GgufBuilder().tensor("t", {256}, 23, data).build(), "IQ4_XS",
                 ErrorCode::kUnsupported);
  expect_refused(GgufBuilder().tensor("t", {256}, 777, data).build(), "777",
                 ErrorCode::kUnsupported);
  expect_refused(GgufBuilder().entry("t", {8}, 0, 5, data).build(), "alignment");
  expect_refused(GgufBuilder().entry("t", {8}, 0, UINT64_MAX - 31, data).build(), "overflow");
  expect_refused(GgufBuilder().entry("a", {16}, 0, 0, data).entry("b", {16}, 0, 32, data).build(),
                 "overlap");
  expect_refused(GgufBuilder().tensor("a", {16}, 0, data).tensor("a", {16}, 0, data).build(),
                 "twice");
}

TEST(Gguf, EveryTruncationIsRefused) {
  const std::string whole = GgufBuilder()
                                .string("general.architecture", "llama")
                                .strings("list", {"a", "b"})
                                .tensor("t", {4}, 0, std::string(16, 'x'))
                                .build();
  ASSERT_TRUE(parse(whole).ok());
  for (size_t keep = 0; keep + 16 < whole.size(); ++keep) {
    EXPECT_FALSE(parse(whole.substr(0, keep)).ok()) << keep;
  }
}

// A llama of one layer, hidden 64, 2 heads of 32, all ones, for what the metadata may say.
struct TinyGguf {
  GgufBuilder builder;
  explicit TinyGguf(const char* arch = "llama") {
    const std::string a = std::string(arch) + ".";
    builder.string("general.architecture", arch)
        .u32(a + "embedding_length", 64)
        .u32(a + "block_count", 1)
        .u32(a + "feed_forward_length", 64)
        .u32(a + "attention.head_count", 2)
        .u32(a + "context_length", 128);
  }
  static std::string ones(size_t count) {
    std::string out;
    for (size_t i = 0; i < count; ++i) out += little_endian(1.0F);
    return out;
  }
  // All tensors; `q`, its type and its dimensions replace attn_q.
  std::string build(uint32_t q_type = 0, std::string q = ones(64 * 64),
                    const std::vector<uint64_t>& q_dims = {64, 64}) {
    builder.tensor("token_embd.weight", {64, 8}, 0, ones(512));
    for (const char* norm : {"output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"}) {
      builder.tensor(std::string(norm) + ".weight", {64}, 0, ones(64));
    }
    builder.tensor("blk.0.attn_q.weight", q_dims, q_type, std::move(q));
    for (const char* name : {"attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"}) {
      builder.tensor("blk.0." + std::string(name) + ".weight", {64, 64}, 0, ones(4096));
    }
    return builder.build();
  }
};

Result<std::unique_ptr<WeightSource>> open_bytes(const TempDir& dir, const std::string& bytes) {
  write_text(dir / "m.gguf", bytes);
  return open_checkpoint(dir / "m.gguf");
}

TEST(GgufModel, RefusesByName) {
  const auto refused = [](auto change, const char* part, const char* arch = "llama") {
    TempDir dir;
    TinyGguf tiny(arch);
    change(tiny.builder);
    const auto source = open_bytes(dir, tiny.build());
    ASSERT_FALSE(source.ok()) << part;
    EXPECT_NE(source.error().message.find(part), std::string::npos) << source.error().message;
    EXPECT_NE(source.error().message.find("m.gguf"), std::string::npos);
  };
  refused([](GgufBuilder&) {}, "qwen2moe", "qwen2moe");
  refused([](GgufBuilder& b) { b.u32("llama.expert_count", 8); }, "experts");
  refused(
      [](GgufBuilder& b) {
        b.string("llama.rope.scaling.type", "longrope").f32("llama.rope.scaling.factor", 4);
      },
      "longrope");
  refused([](GgufBuilder& b) { b.u32("split.count", 3); }, "split");
  refused(
      [](GgufBuilder& b) {
        b.u32("llama.rope.dimension_count", 16).u32("llama.attention.key_length", 32);
      },
      "whole heads");
  refused([](GgufBuilder& b) { b.u32("llama.attention.head_count_kv", 3); }, "multiple");
  refused([](GgufBuilder& b) { b.u32("llama.vocab_size", 9); }, "vocab_size");
  refused([](GgufBuilder& b) { b.f32("llama.attention.layer_norm_rms_epsilon", NAN); }, "epsilon");
  refused(
      [](GgufBuilder& b) {
        b.strings("tokenizer.ggml.tokens", {"a"}).u32("tokenizer.ggml.eos_token_id", 4);
      },
      "eos_token_id");
  refused(
      [](GgufBuilder& b) {
        b.strings("tokenizer.ggml.tokens", {"a", "b"})
            .raw("tokenizer.ggml.scores", 9,
                 little_endian(uint32_t{6}) + little_endian(uint64_t{1}) + little_endian(1.0F));
      },
      "scores");
  refused([](GgufBuilder& b) { b.tensor("blk.0.attn_q.lora", {1}, 0, TinyGguf::ones(1)); },
          "attn_q.lora");
  refused(
      [](GgufBuilder& b) {
        b.tensor("rope_freqs.weight", {16}, 0, TinyGguf::ones(15) + little_endian(3.0F));
      },
      "llama3");
}

// What an opened llama of TinyGguf says once `change` has been at its metadata.
Status open_changed(const std::function<void(GgufBuilder&)>& change, const char* arch = "llama") {
  TempDir dir;
  TinyGguf tiny(arch);
  change(tiny.builder);
  const auto source = open_bytes(dir, tiny.build());
  return source.ok() ? Status() : Status(source.error());
}

TEST(GgufModel, NumbersHaveTheLimitsOfConfigJson) {
  const auto refused = [](const char* key, double value) {
    const Status status = open_changed(
        [&](GgufBuilder& b) { b.raw("llama." + std::string(key), 12, little_endian(value)); });
    ASSERT_FALSE(status.ok()) << key << " " << value;
    EXPECT_EQ(status.error().code, ErrorCode::kCorruptData);
    EXPECT_NE(status.error().message.find(key), std::string::npos) << status.error().message;
    EXPECT_NE(status.error().message.find("expected a number"), std::string::npos);
  };
  for (const double theta : {1e300, 1.0, 0.5, -1.0}) refused("rope.freq_base", theta);
  for (const double eps : {1e300, 0.0, 1.5}) refused("attention.layer_norm_rms_epsilon", eps);
  for (const double factor : {1e300, 0.5, -1.0}) refused("rope.scaling.factor", factor);
  refused("rope.scale_linear", 1e300);
  EXPECT_TRUE(open_changed([](GgufBuilder& b) {
                b.f32("llama.rope.freq_base", 5e5F)
                    .f32("llama.attention.layer_norm_rms_epsilon", 1e-5F)
                    .f32("llama.rope.scaling.factor", 4);
              }).ok());
  const Status sampling =
      open_changed([](GgufBuilder& b) { b.f32("general.sampling.temp", 1e5F); });
  ASSERT_FALSE(sampling.ok());
  EXPECT_NE(sampling.error().message.find("general.sampling.temp"), std::string::npos);
}

TEST(GgufModel, ScalesThatChangeTheModelAreRefusedByName) {
  const auto with = [](const char* key, float value) {
    return open_changed([&](GgufBuilder& b) { b.f32("llama." + std::string(key), value); });
  };
  const float own = 1 / std::sqrt(32.0F);
  for (const auto& [key, neutral, other] : {std::tuple{"attention.scale", own, 0.5F},
                                            {"logit_scale", 1.0F, 0.0625F},
                                            {"residual_scale", 1.0F, 0.22F},
                                            {"embedding_scale", 1.0F, 12.0F},
                                            {"attn_logit_softcapping", 0.0F, 50.0F},
                                            {"final_logit_softcapping", 0.0F, 30.0F},
                                            {"attention.clamp_kqv", 0.0F, 8.0F},
                                            {"rope.scaling.attn_factor", 1.0F, 1.2F}}) {
    EXPECT_TRUE(with(key, neutral).ok()) << key;
    const Status status = with(key, other);
    ASSERT_FALSE(status.ok()) << key;
    EXPECT_EQ(status.error().code, ErrorCode::kUnsupported);
    EXPECT_NE(status.error().message.find(key), std::string::npos) << status.error().message;
  }
}

TEST(GgufModel, TensorsHaveTheDimensionsOfAMatrix) {
  for (const auto& [dims, ok] : {std::pair{std::vector<uint64_t>{64, 64}, true},
                                 {{64, 64, 1}, true},
                                 {{64, 32, 2}, false},
                                 {{64, 1, 64}, false}}) {
    TempDir dir;
    TinyGguf tiny;
    const auto source = open_bytes(dir, tiny.build(0, TinyGguf::ones(64 * 64), dims));
    ASSERT_EQ(source.ok(), ok) << dims.size();
    if (ok) continue;
    EXPECT_EQ(source.error().code, ErrorCode::kCorruptData);
    EXPECT_NE(source.error().message.find("blk.0.attn_q.weight"), std::string::npos);
    EXPECT_NE(source.error().message.find("3 dimensions, expected 2"), std::string::npos);
  }
}

TEST(GgufModel, TokenizerAndDefaultsAreHandedOver) {
  TempDir dir;
  TinyGguf tiny;
  tiny.builder
      .strings("tokenizer.ggml.tokens", {"<s>", "</s>", "a", "b", "c", "d", "<|im_end|>", "\xff"})
      .strings("tokenizer.ggml.merges", {"a b"})
      .string("tokenizer.ggml.model", "gpt2")
      .string("tokenizer.ggml.pre", "smollm")
      .u32("tokenizer.ggml.bos_token_id", 0)
      .u32("tokenizer.ggml.eos_token_id", 1)
      .u32("tokenizer.ggml.eot_token_id", 6)
      .u32("tokenizer.ggml.unknown_token_id", UINT32_MAX)
      .boolean("tokenizer.ggml.add_bos_token", false)
      .string("tokenizer.chat_template", "{{ messages }}")
      .f32("general.sampling.temp", 0.5F)
      .tensor("v.patch_embd.weight", {1}, 0, TinyGguf::ones(1));
  const auto source = open_bytes(dir, tiny.build());
  ASSERT_TRUE(source.ok()) << source.error().message;
  const WeightSource& s = **source;
  ASSERT_NE(s.gguf_tokenizer(), nullptr);
  EXPECT_EQ(s.gguf_tokenizer()->tokens.size(), 8U);
  EXPECT_EQ(s.gguf_tokenizer()->pre, "smollm");
  EXPECT_FALSE(s.gguf_tokenizer()->unknown_token_id.has_value());
  EXPECT_EQ(s.generation_config().eos_token_ids, (std::vector<int64_t>{1, 6}));
  EXPECT_EQ(s.generation_config().temperature, 0.5);
  EXPECT_EQ(s.texts().chat_template, "{{ messages }}");
  EXPECT_TRUE(parse_generation_config(s.texts().generation_config, "g").ok());
  const auto config = parse_json(s.texts().tokenizer_config, "tokenizer_config.json");
  ASSERT_TRUE(config.ok());
  EXPECT_EQ(config->at("bos_token"), "<s>");
  EXPECT_EQ(config->at("add_bos_token"), false);
  ASSERT_EQ(s.ignored().size(), 1U);
  EXPECT_EQ(s.ignored()[0].find("v.patch_embd.weight"), 0U);
  EXPECT_TRUE(s.tied_head());
}

// The same 64 codes in a GGUF block and in the storage form give the same element order.
TEST(GgufModel, Fp4BlocksAreRepackedInElementOrder) {
  for (const bool nvfp4 : {false, true}) {
    TempDir dir;
    TinyGguf tiny("qwen2");  // rows are not interleaved
    std::string q;
    std::vector<float> expected;
    for (int row = 0; row < 64; ++row) {
      std::vector<uint8_t> codes(64);
      for (size_t k = 0; k < 64; ++k)
        codes[k] = static_cast<uint8_t>((k * 7 + k / 16 + static_cast<size_t>(row)) % 16);
      const size_t group = nvfp4 ? 16 : 32;
      std::vector<uint8_t> scales;
      for (size_t g = 0; g < 64 / group; ++g)
        scales.push_back(static_cast<uint8_t>((nvfp4 ? 0x30 : 120) + g * 3));
      if (nvfp4) q.append(scales.begin(), scales.end());
      for (size_t g = 0; g < 64 / group; ++g) {
        if (!nvfp4) q += static_cast<char>(scales[g]);
        for (size_t j = 0; j < group / 2; ++j) {
          q += static_cast<char>(codes[g * group + j] | codes[g * group + j + group / 2] << 4);
        }
      }
      for (size_t k = 0; k < 64; ++k) {
        const float block = nvfp4 ? 0.75F * format::decode_element(format::kE4M3, scales[k / group])
                                  : format::decode_e8m0(scales[k / group]);
        expected.push_back(format::decode_element(format::kE2M1, codes[k]) * block);
      }
    }
    if (nvfp4) tiny.builder.tensor("blk.0.attn_q.scale", {1}, 0, little_endian(0.75F));
    const auto source = open_bytes(dir, tiny.build(nvfp4 ? 40 : 39, q));
    ASSERT_TRUE(source.ok()) << source.error().message;
    const auto matrix = (*source)->matrix("model.layers.0.self_attn.q_proj", format::DType::kBF16);
    ASSERT_TRUE(matrix.ok()) << matrix.error().message;
    EXPECT_EQ(matrix->format.name(), nvfp4 ? "nvfp4" : "mxfp4");
    std::vector<float> got(expected.size());
    decode_rows(*matrix, 0, 64, got);
    EXPECT_EQ(got, expected);
    std::vector<float> rows(64 * 3);
    ASSERT_TRUE((*source)->decode_rows("model.layers.0.self_attn.q_proj", 5, 3, rows).ok());
    EXPECT_TRUE(std::equal(rows.begin(), rows.end(), expected.begin() + 5 * 64));
  }
}

TEST(GgufModel, NonFiniteWeightsAreRefusedByTensorAndIndex) {
  TempDir dir;
  TinyGguf tiny;
  std::string q = TinyGguf::ones(4096);
  const float nan = NAN;
  std::memcpy(q.data() + 4 * (3 * 64 + 5), &nan, 4);
  const auto source = open_bytes(dir, tiny.build(0, q));
  ASSERT_TRUE(source.ok()) << source.error().message;
  const auto matrix = (*source)->matrix("model.layers.0.self_attn.q_proj", format::DType::kBF16);
  ASSERT_FALSE(matrix.ok());
  EXPECT_NE(matrix.error().message.find("blk.0.attn_q.weight"), std::string::npos);
  EXPECT_NE(matrix.error().message.find("row 3, column 5"), std::string::npos)
      << matrix.error().message;
}

}  // namespace
}  // namespace sub8::checkpoint
