// Quantised directories: real exports against an independent decode, and small models written by
// hand in each layout.
#include <cmath>
#include <optional>
#include <tuple>

#include <gtest/gtest.h>

#include "base/json.h"
#include "checkpoint/test_files.h"
#include "checkpoint/weight_source.h"
#include "tensor/decode.h"

namespace sub8::checkpoint {
namespace {

namespace fs = std::filesystem;
using format::DType;

const fs::path kExports = fs::path(SUB8_TEST_DATA) / "exports";

std::string fnv1a(std::span<const float> values) {
  uint64_t hash = 0xcbf29ce484222325ULL;
  const auto* bytes = reinterpret_cast<const uint8_t*>(values.data());
  for (size_t i = 0; i < 4 * values.size(); ++i) hash = (hash ^ bytes[i]) * 0x100000001b3ULL;
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(hash));
  return text;
}

// Every matrix of every scheme that `folder`/decoded.json lists, against its hash.
int compare_decoded(const fs::path& folder) {
  const auto document = parse_json(read_text(folder / "decoded.json"), "decoded.json").value();
  int matrices = 0;
  for (const auto& scheme : document.get_object()) {
    const std::string name(scheme.key());
    const auto source = open_checkpoint(folder / name);
    EXPECT_TRUE(source.ok()) << name << ": " << (source.ok() ? "" : source.error().message);
    if (!source.ok()) continue;
    for (const auto& entry : scheme.value().get_object()) {
      const std::string module(entry.key());
      const WeightInfo* info = (*source)->find(module);
      EXPECT_NE(info, nullptr) << module;
      if (info == nullptr) continue;
      std::vector<float> values(static_cast<size_t>(info->rows * info->cols));
      const Status status = (*source)->decode_rows(module, 0, info->rows, values);
      EXPECT_TRUE(status.ok()) << name << ": " << (status.ok() ? "" : status.error().message);
      const auto& expected = entry.value().get_object();
      size_t at = 0;
      for (const auto& first : expected.at("first").as_array()) {
        EXPECT_EQ(values[at], static_cast<float>(first.to_number<double>())) << name << " " << at;
        ++at;
      }
      EXPECT_EQ(fnv1a(values), std::string(expected.at("fnv1a").get_string())) << name << module;
      ++matrices;
    }
    EXPECT_EQ((*source)->find("lm_head")->stored_type, "BF16") << name;
    EXPECT_TRUE((*source)->ignored().empty()) << name;
  }
  return matrices;
}

TEST(QuantizedSource, ExportsDecodeAsTheIndependentProgramSays) {
  EXPECT_EQ(compare_decoded(kExports), 3 * 14);
  for (const char* name : {"mo-nvfp4", "ct-nvfp4", "ct-mxfp4"}) {
    const auto source = open_checkpoint(kExports / name).value();
    const WeightInfo* info = source->find("model.layers.0.mlp.down_proj");
    const bool mxfp4 = std::string(name) == "ct-mxfp4";
    EXPECT_EQ(info->format.name(), mxfp4 ? "mxfp4" : "nvfp4");
    EXPECT_EQ(info->input_scale.has_value(), !mxfp4);
  }
}

// The schemes without a real export here (tools/fixtures/make_layouts.py).
TEST(QuantizedSource, OtherLayoutsDecodeAsTheIndependentProgramSays) {
  const fs::path layouts = fs::path(SUB8_TEST_DATA) / "layouts";
  EXPECT_EQ(compare_decoded(layouts), 6 * 7);
  const std::tuple<const char*, const char*, std::optional<float>, const char*> cases[] = {
      {"mo-fp8", "e4m3:tensor", 0.5F, "modelopt FP8"},
      {"mo-mxfp4", "mxfp4", std::nullopt, "modelopt MXFP4"},
      {"mo-w4a8-nvfp4-fp8", "e2m1:e4m3g32:tensor", 0.02F, "modelopt W4A8_NVFP4_FP8"},
      {"ct-fp8-tensor", "e4m3:tensor", std::nullopt, "compressed-tensors e4m3:tensor"},
      {"ct-fp8-channel", "e4m3", std::nullopt, "compressed-tensors e4m3"},
      {"ct-nvfp4a16", "nvfp4", std::nullopt, "compressed-tensors nvfp4"}};
  for (const auto& [name, format, input_scale, description] : cases) {
    const auto source = open_checkpoint(layouts / name).value();
    const WeightInfo* info = source->find("model.layers.0.mlp.down_proj");
    EXPECT_EQ(info->format.name(), format);
    EXPECT_EQ(info->input_scale, input_scale) << name;
    EXPECT_EQ(source->quantization(), description);
  }
}

// A one-layer llama, hidden 32, 1 head of 32, built by hand.
struct Model {
  std::string quantization;
  std::string extra;  // further members of config.json
  bool tie = false;
  TestTensors tensors;

  static std::vector<float> ramp(size_t n, float step = 0.01F) {
    std::vector<float> out(n);
    for (size_t i = 0; i < n; ++i)
      out[i] = step * static_cast<float>(static_cast<int>(i % 23) - 11);
    return out;
  }
  static const std::vector<std::string>& linears() {
    static const std::vector<std::string> kNames{
        "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
        "mlp.gate_proj",    "mlp.up_proj",      "mlp.down_proj"};
    return kNames;
  }
  static std::string layer(const std::string& name) { return "model.layers.0." + name; }

  Model() {
    tensors.put_bf16("model.embed_tokens.weight", {8, 32}, ramp(256));
    tensors.put_bf16("lm_head.weight", {8, 32}, ramp(256, 0.02F));
    tensors.put_bf16("model.norm.weight", {32}, ramp(32));
    for (const char* norm : {"input_layernorm", "post_attention_layernorm"}) {
      tensors.put_bf16(layer(norm) + ".weight", {32}, ramp(32));
    }
    for (const std::string& name : linears()) {
      tensors.put_bf16(layer(name) + ".weight", {32, 32}, ramp(1024));
    }
  }
  // Replaces a dense matrix by NVFP4 in ModelOpt's layout.
  void modelopt(const std::string& module, float scale = 0.5F, int64_t rows = 32) {
    tensors.all.erase(module + ".weight");
    tensors.put(module + ".weight", DType::kU8, {rows, 16}, codes(static_cast<size_t>(rows) * 16));
    tensors.put(module + ".weight_scale", DType::kF8E4M3, {rows, 2},
                std::string(static_cast<size_t>(rows) * 2, '\x38'));
    tensors.put_f32(module + ".weight_scale_2", {}, {scale});
  }
  void compressed(const std::string& module, float scale = 0.5F) {
    tensors.all.erase(module + ".weight");
    tensors.put(module + ".weight_packed", DType::kU8, {32, 16}, codes(512));
    tensors.put(module + ".weight_scale", DType::kF8E4M3, {32, 2}, std::string(64, '\x38'));
    tensors.put_f32(module + ".weight_global_scale", {1}, {1 / scale});
    tensors.put_f32(module + ".input_global_scale", {1}, {4.0F});
  }
  static std::string codes(size_t bytes) {
    std::string out(bytes, '\0');
    for (size_t i = 0; i < bytes; ++i) out[i] = static_cast<char>(i * 37 + i / 16);
    return out;
  }
  Result<std::unique_ptr<WeightSource>> open(const TempDir& dir) const {
    write_text(dir / "config.json",
               R"({"model_type":"llama","hidden_size":32,"intermediate_size":32,
               "num_hidden_layers":1,"num_attention_heads":1,"vocab_size":8,
               "max_position_embeddings":64,"tie_word_embeddings":)" +
                   std::string(tie ? "true" : "false") + extra +
                   (quantization.empty() ? "" : ",\"quantization_config\":" + quantization) + "}");
    tensors.save(dir.path());
    return open_checkpoint(dir.path());
  }
};

std::string modelopt_config(const std::string& ignore, const std::string& algo = "NVFP4") {
  return R"({"quant_method":"modelopt","quant_algo":")" + algo + R"(","ignore":)" + ignore + "}";
}
std::string compressed_config(const std::string& ignore) {
  return R"({"quant_method":"compressed-tensors","format":"nvfp4-pack-quantized",
    "config_groups":{"group_0":{"weights":{"num_bits":4,"type":"float","strategy":"tensor_group",
    "group_size":16,"symmetric":true},"targets":["Linear"]}},"ignore":)" +
         ignore + "}";
}

std::vector<float> decode(const WeightSource& source, const std::string& module) {
  const WeightInfo* info = source.find(module);
  EXPECT_NE(info, nullptr) << module;
  std::vector<float> out(static_cast<size_t>(info->rows * info->cols));
  const Status status = source.decode_rows(module, 0, info->rows, out);
  EXPECT_TRUE(status.ok()) << status.error().message;
  return out;
}

// Ignore lists in every spelling: exactly the named modules stay dense, the rest is NVFP4.
TEST(QuantizedSource, IgnoreLists) {
  struct Case {
    std::string ignore;
    std::vector<std::string> dense;  // of the seven linears
    bool compressed;
  };
  const std::vector<std::string> attention{"self_attn.q_proj", "self_attn.k_proj",
                                           "self_attn.v_proj", "self_attn.o_proj"};
  const std::vector<std::string> qkv(attention.begin(), attention.begin() + 3);
  const Case cases[] = {
      {R"(["lm_head"])", {}, true},
      {R"(["lm_head","re:.*self_attn.*"])", attention, true},
      {R"(["lm_head","model.layers.0.mlp.gate_proj","model.layers.0.mlp.up_proj"])",
       {"mlp.gate_proj", "mlp.up_proj"},
       true},
      {R"(["lm_head","model.layers.0.self_attn.qkv_proj"])", qkv, true},
      {R"(["lm_head","re:.*gate_up_proj$"])", {"mlp.gate_proj", "mlp.up_proj"}, true},
      {R"(["lm_head.linear","model.layers.0.mlp.down_proj.linear"])", {"mlp.down_proj"}, true},
      {R"(["lm_head","model.layers.0.self_attn.k_proj"])", {"self_attn.k_proj"}, true},
      {R"(["lm_head","self_attn"])", {}, true},  // no substrings here
      {R"(["lm_head","model.layers.0.self_attn*"])", attention, false},
      {R"(["lm_head*","*mlp.???e_proj"])", {"mlp.gate_proj"}, false},
      {R"(["lm_head","self_attn"])", attention, false},     // old exports: components
      {R"(["lm_head","self_at","layers.00"])", {}, false},  // but whole ones
      {R"(["lm_head","model.layers.0.self_attn.qkv_proj"])", qkv, false},
      {R"(["lm_head.linear","mlp.down_proj.linear"])", {"mlp.down_proj"}, false},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.ignore);
    TempDir dir;
    Model model;
    for (const std::string& name : Model::linears()) {
      if (std::find(c.dense.begin(), c.dense.end(), name) != c.dense.end()) continue;
      c.compressed ? model.compressed(Model::layer(name)) : model.modelopt(Model::layer(name));
    }
    model.quantization = c.compressed ? compressed_config(c.ignore) : modelopt_config(c.ignore);
    const auto source = model.open(dir);
    ASSERT_TRUE(source.ok()) << source.error().message;
    for (const std::string& name : Model::linears()) {
      const bool dense = std::find(c.dense.begin(), c.dense.end(), name) != c.dense.end();
      EXPECT_EQ((*source)->find(Model::layer(name))->format.dense, dense) << name;
    }
  }
}

void expect_refused(const Model& model, const std::string& part) {
  TempDir dir;
  const auto source = model.open(dir);
  ASSERT_FALSE(source.ok()) << part;
  EXPECT_NE(source.error().message.find(part), std::string::npos) << source.error().message;
}

TEST(QuantizedSource, WhatIsListedAndWhatIsStoredMustAgree) {
  Model model;
  model.quantization = modelopt_config(R"(["lm_head"])");
  expect_refused(model, "weight_scale");  // nothing is quantised in the file
  Model other;
  for (const std::string& name : Model::linears()) other.modelopt(Model::layer(name));
  other.quantization = modelopt_config(R"(["lm_head","*"])");
  expect_refused(other, "does not list it as quantised");
  Model bad_regex;
  bad_regex.quantization = compressed_config(R"(["re:("])");
  expect_refused(bad_regex, "not a valid regular expression");
  Model slow_regex;
  slow_regex.quantization = compressed_config(R"(["re:(.*.*)*(.*.*)*(.*.*)*z"])");
  TempDir dir;
  EXPECT_FALSE(slow_regex.open(dir).ok());  // limited, or simply no match: never endless
}

TEST(QuantizedSource, UnsupportedSchemesAreRefusedByName) {
  const auto refused = [](const std::string& config, const std::string& part) {
    Model model;
    model.quantization = config;
    TempDir dir;
    const auto source = model.open(dir);
    ASSERT_FALSE(source.ok()) << config;
    EXPECT_EQ(source.error().code, ErrorCode::kUnsupported) << source.error().message;
    EXPECT_NE(source.error().message.find(part), std::string::npos) << source.error().message;
  };
  for (const char* method : {"gptq", "awq", "bitsandbytes", "fp8", "mxfp4", "torchao"}) {
    refused(R"({"quant_method":")" + std::string(method) + "\"}", method);
  }
  for (const char* algo : {"NVFP4_AWQ", "NVFP4_SVD", "MIXED_PRECISION", "MXFP8", "INT4_AWQ",
                           "W4A8_AWQ", "FP8_PB_WO", "FP8_PER_CHANNEL_PER_TOKEN"}) {
    refused(modelopt_config("[]", algo), algo);
  }
  for (const char* name :
       {"pack-quantized", "int-quantized", "marlin-24", "sparse-24-bitmask", "mxfp8-quantized"}) {
    refused(R"({"quant_method":"compressed-tensors","config_groups":{},"format":")" +
                std::string(name) + "\"}",
            name);
  }
  for (const char* scheme : {"INT8", "NVFP4_AFFINE"}) {
    refused(R"({"quant_method":"modelopt","quant_algo":"NVFP4","kv_cache_quant_algo":")" +
                std::string(scheme) + "\"}",
            scheme);
  }
  refused(R"({"quant_method":"modelopt","quant_algo":"NVFP4","group_size":32})", "group_size");
  for (const char* weights : {R"("num_bits":8,"type":"int")", R"("num_bits":4,"type":"int")",
                              R"("num_bits":8,"type":"float")", R"("num_bits":8)"}) {
    refused(R"({"quant_method":"modelopt","quant_algo":"NVFP4","config_groups":{"group_0":
        {"weights":{)" +
                std::string(weights) + "}}}}",
            "contradict quant_algo");
  }
  const auto group = [](const std::string& weights) {
    return R"({"quant_method":"compressed-tensors","config_groups":{"g":{"weights":)" + weights +
           R"(,"targets":["Linear"]}}})";
  };
  refused(group(R"({"num_bits":4,"type":"int","strategy":"group","group_size":128})"), "int");
  refused(group(R"({"num_bits":8,"type":"float","strategy":"block"})"), "block");
  refused(group(R"({"num_bits":4,"type":"float","strategy":"tensor_group","group_size":32})"),
          "32");
  refused(
      group(
          R"({"num_bits":4,"type":"float","strategy":"group","group_size":32,"symmetric":false})"),
      "asymmetric");
  refused(R"({"quant_method":"sub8","format_version":2,"modules":{}})", "format version 2");
}

// The tensor scale in every dtype and shape that exports use; other dtypes are refused.
TEST(QuantizedSource, ScaleDtypes) {
  const std::string q = Model::layer("self_attn.q_proj");
  std::vector<float> expected;
  const auto value = [](DType type) {
    return type == DType::kF32    ? little_endian(0.5F)
           : type == DType::kBF16 ? little_endian(format::float_to_bf16(0.5F))
                                  : little_endian(format::float_to_f16(0.5F));
  };
  const std::pair<DType, std::vector<int64_t>> cases[] = {
      {DType::kF32, {}}, {DType::kF32, {1}}, {DType::kBF16, {1}}, {DType::kF16, {}}};
  for (const auto& [type, shape] : cases) {
    Model model;
    for (const std::string& name : Model::linears()) model.modelopt(Model::layer(name));
    model.tensors.put(q + ".weight_scale_2", type, shape, value(type));
    model.tensors.put(q + ".input_scale", type, shape, value(type));
    model.quantization = modelopt_config(R"(["lm_head"])");
    TempDir dir;
    const auto source = model.open(dir);
    ASSERT_TRUE(source.ok()) << source.error().message;
    EXPECT_EQ((*source)->find(q)->input_scale, 0.5F);
    if (expected.empty()) expected = decode(**source, q);
    EXPECT_EQ(decode(**source, q), expected);
  }
  Model model;
  for (const std::string& name : Model::linears()) model.modelopt(Model::layer(name));
  model.quantization = modelopt_config(R"(["lm_head"])");
  model.tensors.put(q + ".weight_scale_2", DType::kI32, {}, std::string(4, '\1'));
  expect_refused(model, "I32");
  model.tensors.put_f32(q + ".weight_scale_2", {2}, {1, 1});
  expect_refused(model, "[2]");
  model.tensors.put_f32(q + ".weight_scale_2", {}, {NAN});
  expect_refused(model, "NaN");
  model.tensors.put_f32(q + ".weight_scale_2", {}, {-1});
  expect_refused(model, "-1");
}

// ModelOpt multiplies, compressed-tensors divides by its global scale.
TEST(QuantizedSource, BothScaleConventionsGiveTheSameValues) {
  Model a;
  Model b;
  for (const std::string& name : Model::linears()) {
    a.modelopt(Model::layer(name), 0.25F);
    b.compressed(Model::layer(name), 0.25F);
  }
  a.quantization = modelopt_config(R"(["lm_head"])");
  b.quantization = compressed_config(R"(["lm_head"])");
  TempDir da;
  TempDir db;
  const auto sa = a.open(da);
  const auto sb = b.open(db);
  ASSERT_TRUE(sa.ok()) << sa.error().message;
  ASSERT_TRUE(sb.ok()) << sb.error().message;
  const std::string q = Model::layer("self_attn.q_proj");
  EXPECT_EQ(decode(**sa, q), decode(**sb, q));
  EXPECT_EQ((*sb)->find(q)->input_scale, 0.25F);
  b.tensors.put_f32(q + ".weight_global_scale", {1}, {0});
  expect_refused(b, "weight_global_scale");
}

// Parts stored as one tensor with one scale, or one scale per part, equal the parts stored apart.
TEST(QuantizedSource, FusedTensorsAreSplitExactly) {
  Model apart;
  for (const std::string& name : Model::linears()) apart.modelopt(Model::layer(name), 0.5F);
  apart.quantization = modelopt_config(R"(["lm_head"])");
  Model fused = apart;
  const auto join = [&](const std::vector<std::string>& parts, const std::string& name, bool one) {
    const auto n = static_cast<int64_t>(parts.size());
    std::string codes, scales;
    std::vector<float> outer;
    for (const std::string& part : parts) {
      const std::string p = Model::layer(part);
      codes += fused.tensors.all[p + ".weight"].bytes;
      scales += fused.tensors.all[p + ".weight_scale"].bytes;
      outer.push_back(0.5F);
      for (const char* t : {".weight", ".weight_scale", ".weight_scale_2"})
        fused.tensors.all.erase(p + t);
    }
    const std::string f = Model::layer(name);
    fused.tensors.put(f + ".weight", DType::kU8, {32 * n, 16}, codes);
    fused.tensors.put(f + ".weight_scale", DType::kF8E4M3, {32 * n, 2}, scales);
    if (one)
      fused.tensors.put_f32(f + ".weight_scale_2", {}, {0.5F});
    else
      fused.tensors.put_f32(f + ".weight_scale_2", {n}, outer);
  };
  join({"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"}, "self_attn.qkv_proj", true);
  join({"mlp.gate_proj", "mlp.up_proj"}, "mlp.gate_up_proj", false);
  TempDir da;
  TempDir df;
  const auto sa = apart.open(da);
  const auto sf = fused.open(df);
  ASSERT_TRUE(sa.ok()) << sa.error().message;
  ASSERT_TRUE(sf.ok()) << sf.error().message;
  for (const std::string& name : Model::linears()) {
    EXPECT_EQ(decode(**sa, Model::layer(name)), decode(**sf, Model::layer(name))) << name;
  }
}

TEST(QuantizedSource, NanScalesAreRefusedByTensorAndIndex) {
  Model model;
  for (const std::string& name : Model::linears()) model.modelopt(Model::layer(name));
  model.quantization = modelopt_config(R"(["lm_head"])");
  const std::string q = Model::layer("self_attn.q_proj");
  model.tensors.all[q + ".weight_scale"].bytes[2 * 3 + 1] = '\x7f';
  TempDir dir;
  const auto source = model.open(dir);
  ASSERT_TRUE(source.ok()) << source.error().message;
  const auto matrix = (*source)->matrix(q, DType::kBF16);
  ASSERT_FALSE(matrix.ok());
  EXPECT_EQ(matrix.error().code, ErrorCode::kCorruptData);
  EXPECT_NE(matrix.error().message.find(q), std::string::npos);
  EXPECT_NE(matrix.error().message.find("block scale [3, 1] is NaN"), std::string::npos)
      << matrix.error().message;
  std::vector<float> row(32);
  EXPECT_TRUE((*source)->decode_rows(q, 2, 1, row).ok());
  EXPECT_FALSE((*source)->decode_rows(q, 3, 1, row).ok());
}

// Tied, untied, quantised heads and tables.
TEST(QuantizedSource, HeadsAndTiedTables) {
  Model quantised_head;
  quantised_head.modelopt("lm_head", 0.5F, 8);
  quantised_head.tensors.put_f32("lm_head.input_scale", {}, {0.5F});
  for (const std::string& name : Model::linears()) quantised_head.modelopt(Model::layer(name));
  quantised_head.quantization = modelopt_config("[]");
  TempDir d1;
  auto source = quantised_head.open(d1);
  ASSERT_TRUE(source.ok()) << source.error().message;
  EXPECT_EQ((*source)->find("lm_head")->format.name(), "nvfp4");
  EXPECT_EQ((*source)->find("lm_head")->input_scale, 0.5F);

  quantised_head.tie = true;  // the copy is not used, and said so
  TempDir d2;
  source = quantised_head.open(d2);
  ASSERT_TRUE(source.ok()) << source.error().message;
  EXPECT_EQ((*source)->find("lm_head")->name, "model.embed_tokens");
  EXPECT_EQ((*source)->ignored().size(), 4U);

  Model missing;
  missing.tensors.all.erase("lm_head.weight");
  expect_refused(missing, "lm_head.weight");

  // sub8's form: e3m2 head, or a tied table in e2m3 that serves both.
  Model table;
  table.tie = true;
  table.tensors.all.erase("lm_head.weight");
  table.tensors.all.erase("model.embed_tokens.weight");
  table.tensors.put("model.embed_tokens.weight", DType::kU8, {8, 24}, Model::codes(192));
  table.tensors.put_f32("model.embed_tokens.weight_scale", {8}, {1, 2, 3, 4, 5, 6, 7, 8});
  table.quantization =
      R"({"quant_method":"sub8","format_version":1,"modules":{"model.embed_tokens":"e2m3"}})";
  TempDir d3;
  source = table.open(d3);
  ASSERT_TRUE(source.ok()) << source.error().message;
  const StoredMatrix head = (*source)->matrix("lm_head", DType::kBF16).value();
  EXPECT_EQ(head.format, format::channel_format(format::kE2M3));
  std::vector<float> values(256);
  decode_rows(head, 0, 8, values);
  const uint32_t code = static_cast<uint8_t>(Model::codes(192)[24 * 3]) & 63U;
  EXPECT_EQ(values[3 * 32], format::decode_element(format::kE2M3, code) * 4.0F);
  table.quantization = R"({"quant_method":"sub8","format_version":1,"modules":{"nobody":"e2m3"}})";
  expect_refused(table, "model.embed_tokens");
}

TEST(QuantizedSource, TensorsThatWouldChangeTheResultAreNotIgnored) {
  Model awq;
  for (const std::string& name : Model::linears()) awq.modelopt(Model::layer(name));
  awq.quantization = modelopt_config(R"(["lm_head"])");
  awq.tensors.put_f32(Model::layer("self_attn.q_proj") + ".pre_quant_scale", {32}, Model::ramp(32));
  expect_refused(awq, "pre_quant_scale");
  Model bias;
  bias.tensors.put_f32(Model::layer("self_attn.o_proj") + ".bias", {32}, Model::ramp(32));
  expect_refused(bias, "o_proj.bias");
  Model layers;  // one more than config.json says
  layers.tensors.put_f32("model.layers.7.input_layernorm.weight", {32}, Model::ramp(32));
  expect_refused(layers, "layer 7");
  Model foreign;  // Qwen3's norm in a Llama
  foreign.tensors.put_f32(Model::layer("self_attn.q_norm.weight"), {16}, Model::ramp(16));
  expect_refused(foreign, "q_norm");
  Model table;  // older exports store the angles, which are computed
  table.tensors.put_f32(Model::layer("self_attn.rotary_emb.inv_freq"), {8}, Model::ramp(8));
  TempDir tables;
  EXPECT_TRUE(table.open(tables).ok());
  Model vision;
  vision.tensors.put_f32("vision_tower.x.weight", {1}, {1});
  TempDir dir;
  const auto source = vision.open(dir);
  ASSERT_TRUE(source.ok()) << source.error().message;
  ASSERT_EQ((*source)->ignored().size(), 1U);
  EXPECT_EQ((*source)->ignored()[0].find("vision_tower.x.weight"), 0U);
}

TEST(QuantizedSource, KvScalesAreRemembered) {
  Model model;
  for (const std::string& name : Model::linears()) model.modelopt(Model::layer(name));
  model.quantization =
      R"({"quant_method":"modelopt","quant_algo":"NVFP4","ignore":["lm_head"],
          "kv_cache_scheme":{"num_bits":8,"type":"float"}})";
  model.tensors.put_f32(Model::layer("self_attn.k_proj.k_scale"), {}, {0.25F});
  TempDir dir;
  const auto source = model.open(dir);
  ASSERT_TRUE(source.ok()) << source.error().message;
  EXPECT_EQ((*source)->kv_cache_scheme(), "fp8");
  EXPECT_EQ((*source)->kv_scale(0, false).value(), 0.25F);
  EXPECT_FALSE((*source)->kv_scale(0, true).value().has_value());
}

}  // namespace
}  // namespace sub8::checkpoint
