#include "checkpoint/model_config.h"

#include <cmath>

#include <gtest/gtest.h>

namespace sub8::checkpoint {
namespace {

// A llama configuration with further members, which replace equal ones before them.
Result<ModelConfig> llama(const std::string& extra) {
  return parse_model_config(R"({"model_type":"llama","hidden_size":64,"intermediate_size":96,
    "num_hidden_layers":4,"num_attention_heads":4,"vocab_size":100,"max_position_embeddings":4096)" +
                                (extra.empty() ? "" : "," + extra) + "}",
                            "config.json");
}

void expect_refused(const std::string& extra, const std::string& part, ErrorCode code) {
  const auto config = llama(extra);
  ASSERT_FALSE(config.ok()) << extra;
  EXPECT_EQ(config.error().code, code) << config.error().message;
  EXPECT_NE(config.error().message.find(part), std::string::npos) << config.error().message;
  EXPECT_NE(config.error().message.find("config.json"), std::string::npos);
}

TEST(ModelConfig, HeadDimIsTakenAsWritten) {
  EXPECT_EQ(llama("").value().head_dim, 16);
  EXPECT_EQ(llama("\"head_dim\":null").value().head_dim, 16);
  const auto wide = llama(R"("hidden_size":640,"head_dim":256)").value();
  EXPECT_EQ(wide.head_dim, 256);
  EXPECT_EQ(wide.hidden_size, 640);
  EXPECT_EQ(wide.attention_scale, 1.0 / 16);
  const auto odd = llama(R"("hidden_size":1792,"num_attention_heads":24,"head_dim":128)");
  ASSERT_TRUE(odd.ok()) << odd.error().message;
  EXPECT_EQ(odd->head_dim, 128);
  expect_refused(R"("hidden_size":1792,"num_attention_heads":24)", "head_dim",
                 ErrorCode::kCorruptData);
}

TEST(ModelConfig, YarnInItsThreeSpellings) {
  const std::string fields = R"("factor":4.0,"original_max_position_embeddings":1024)";
  const auto a = llama(R"("rope_scaling":{"type":"yarn",)" + fields + "}").value();
  const auto b = llama(R"("rope_scaling":{"rope_type":"yarn",)" + fields + "}").value();
  const auto c =
      llama(R"("rope_parameters":{"rope_theta":10000.0,"rope_type":"yarn",)" + fields + "}")
          .value();
  EXPECT_EQ(a.rope, b.rope);
  EXPECT_EQ(a.rope, c.rope);
  EXPECT_EQ(a.rope.type, RopeType::kYarn);
  EXPECT_NEAR(a.rope.attention_factor, 1.13863, 1e-5);
  const auto fixed =
      llama(R"("rope_scaling":{"type":"yarn","attention_factor":1.0,)" + fields + "}").value();
  EXPECT_EQ(fixed.rope.attention_factor, 1.0);
  const auto unknown =
      llama(R"("rope_scaling":{"type":"yarn","attn_factor":2.0,)" + fields + "}").value();
  ASSERT_EQ(unknown.warnings.size(), 1U);
  EXPECT_NE(unknown.warnings[0].find("$.rope_scaling.attn_factor"), std::string::npos);
}

TEST(ModelConfig, RopeTypes) {
  const auto linear =
      llama(R"("rope_theta":5e5,"rope_scaling":{"type":"linear","factor":2})").value();
  EXPECT_EQ(linear.rope.type, RopeType::kLinear);
  EXPECT_EQ(linear.rope.theta, 5e5);
  const auto llama3 = llama(R"("rope_parameters":{"rope_type":"llama3","rope_theta":5e5,"factor":8,
    "low_freq_factor":1,"high_freq_factor":4,"original_max_position_embeddings":8192})")
                          .value();
  EXPECT_EQ(llama3.rope.type, RopeType::kLlama3);
  EXPECT_EQ(llama3.rope.theta, 5e5);
  EXPECT_EQ(llama3.rope.original_max_positions, 8192);
  for (const char* type : {"longrope", "dynamic", "su", "mrope", "banana"}) {
    expect_refused(R"("rope_scaling":{"factor":2,"type":")" + std::string(type) + "\"}", type,
                   ErrorCode::kUnsupported);
  }
  expect_refused(R"("rope_scaling":{"type":"linear"})", "factor", ErrorCode::kCorruptData);
  expect_refused(R"("rope_scaling":{"type":"linear","factor":0.5})", "$.rope_scaling.factor",
                 ErrorCode::kCorruptData);
  expect_refused(R"("rope_scaling":{"type":"linear","factor":"2"})", "$.rope_scaling.factor",
                 ErrorCode::kCorruptData);
  expect_refused(R"("rope_scaling":7)", "rope_scaling", ErrorCode::kCorruptData);
  expect_refused(R"("rope_theta":-1)", "$.rope_theta", ErrorCode::kCorruptData);
  expect_refused(R"("partial_rotary_factor":0.5)", "partial_rotary_factor",
                 ErrorCode::kUnsupported);
}

TEST(ModelConfig, RopeNamedTwiceMustAgree) {
  const auto same = llama(R"("rope_scaling":{"type":"linear","rope_type":"linear","factor":2})");
  ASSERT_TRUE(same.ok()) << same.error().message;
  expect_refused(R"("rope_scaling":{"type":"linear","rope_type":"yarn","factor":2})", "linear",
                 ErrorCode::kCorruptData);
  const auto both = llama(R"("rope_theta":5e5,
      "rope_scaling":{"type":"linear","factor":2},
      "rope_parameters":{"rope_type":"linear","rope_theta":5e5,"factor":2.0})");
  ASSERT_TRUE(both.ok()) << both.error().message;
  EXPECT_EQ(both->rope.factor, 2.0);
  expect_refused(R"("rope_scaling":{"type":"linear","factor":2},
                    "rope_parameters":{"rope_type":"linear","rope_theta":5e5,"factor":4})",
                 "rope_parameters", ErrorCode::kCorruptData);
}

TEST(ModelConfig, RopeThetaNamedTwiceMustAgree) {
  expect_refused(R"("rope_theta":1e4,"rope_parameters":{"rope_type":"default","rope_theta":5e5})",
                 "rope_theta", ErrorCode::kCorruptData);
  EXPECT_EQ(llama(R"("rope_theta":5e5,"rope_parameters":{"rope_type":"default","rope_theta":5e5})")
                .value()
                .rope.theta,
            5e5);
}

TEST(ModelConfig, ClassAndModelTypeMustAgree) {
  const auto fits = llama(R"("architectures":["LlamaForCausalLM"])");
  ASSERT_TRUE(fits.ok()) << fits.error().message;
  EXPECT_TRUE(fits->warnings.empty());
  const auto unknown = llama(R"("architectures":["MyLlama"])");
  ASSERT_TRUE(unknown.ok()) << unknown.error().message;
  ASSERT_EQ(unknown->warnings.size(), 1U);
  EXPECT_NE(unknown->warnings[0].find("$.architectures[0]"), std::string::npos);
  expect_refused(R"("architectures":["OPTForCausalLM"])", "OPTForCausalLM",
                 ErrorCode::kCorruptData);
  expect_refused(R"("architectures":[7])", "$.architectures[0]", ErrorCode::kCorruptData);
}

TEST(ModelConfig, WrongValuesNameTheirPath) {
  const std::pair<const char*, const char*> cases[] = {
      {R"("hidden_size":-1)", "$.hidden_size"},
      {R"("hidden_size":"64")", "$.hidden_size"},
      {R"("hidden_size":64.5)", "$.hidden_size"},
      {R"("hidden_size":1e300)", "$.hidden_size"},
      {R"("num_hidden_layers":0)", "$.num_hidden_layers"},
      {R"("num_hidden_layers":1000000000)", "$.num_hidden_layers"},
      {R"("num_key_value_heads":3)", "multiple"},
      {R"("rms_norm_eps":0)", "$.rms_norm_eps"},
      {R"("tie_word_embeddings":"yes")", "$.tie_word_embeddings"},
      {R"("bos_token_id":100)", "bos_token_id"},
      {R"("eos_token_id":[1,"x"])", "$.eos_token_id[1]"},
      {R"("head_dim":15)", "odd"}};
  for (const auto& [extra, part] : cases) expect_refused(extra, part, ErrorCode::kCorruptData);
  for (const char* text : {"", "[]", "7", "{}", R"({"model_type":7})"}) {
    EXPECT_FALSE(parse_model_config(text, "config.json").ok()) << text;
  }
}

TEST(ModelConfig, OutOfScopeIsRefusedByName) {
  expect_refused(R"("model_type":"qwen3_moe")", "mixture-of-experts", ErrorCode::kUnsupported);
  expect_refused(R"("model_type":"qwen3_next")", "hybrid", ErrorCode::kUnsupported);
  expect_refused(R"("model_type":"phi3")", "phi3", ErrorCode::kUnsupported);
  expect_refused(R"("num_local_experts":8)", "mixture-of-experts", ErrorCode::kUnsupported);
  expect_refused(R"("pretraining_tp":2)", "pretraining_tp", ErrorCode::kUnsupported);
  expect_refused(R"("hidden_act":"mish")", "mish", ErrorCode::kUnsupported);
  expect_refused(R"("model_type":"qwen3","use_sliding_window":true,"sliding_window":8,
    "layer_types":["full_attention","linear_attention","full_attention","full_attention"])",
                 "linear_attention", ErrorCode::kUnsupported);
}

TEST(ModelConfig, NumbersThatRopeAndNormsCannotBearAreRefusedWithTheirLimits) {
  for (const char* theta : {"0.5", "1", "1e-300", "1e13", "1e300"}) {
    expect_refused(R"("rope_theta":)" + std::string(theta),
                   "$.rope_theta: expected a number above 1 to 1e+12", ErrorCode::kCorruptData);
    expect_refused(R"("rope_parameters":{"rope_theta":)" + std::string(theta) + "}", "above 1 to",
                   ErrorCode::kCorruptData);
  }
  const char* const yarn[] = {R"("mscale":-1)",
                              R"("mscale":1e300,"mscale_all_dim":1)",
                              R"("mscale":1,"mscale_all_dim":-1e9)",
                              R"("attention_factor":0)",
                              R"("attention_factor":1e300)",
                              R"("beta_slow":1e-300)",
                              R"("beta_fast":1e300)"};
  for (const char* member : yarn) {
    expect_refused(R"("rope_scaling":{"type":"yarn","factor":4,)" + std::string(member) + "}",
                   "expected a number from", ErrorCode::kCorruptData);
  }
  expect_refused(R"("rope_scaling":{"type":"linear","factor":1e300})",
                 "expected a number from 1 to 1000000, got 1e+300", ErrorCode::kCorruptData);
  expect_refused(R"("rms_norm_eps":1e300)", "above 0 to 1", ErrorCode::kCorruptData);
  for (const char* member : {R"("final_logit_softcapping":1e300)", R"("query_pre_attn_scalar":0)",
                             R"("attn_logit_softcapping":-1)", R"("rope_local_base_freq":0.1)"}) {
    expect_refused(R"("model_type":"gemma3_text",)" + std::string(member), "expected a number",
                   ErrorCode::kCorruptData);
  }
}

TEST(ModelConfig, MembersOfOtherFamiliesThatChangeTheModelAreRefusedByName) {
  const std::pair<const char*, const char*> members[] = {{"residual_multiplier", "0.22"},
                                                         {"embedding_multiplier", "12"},
                                                         {"attention_multiplier", "0.0078125"},
                                                         {"logits_scaling", "8"},
                                                         {"logit_scale", "0.0625"},
                                                         {"attn_logit_softcapping", "50.0"},
                                                         {"final_logit_softcapping", "30.0"},
                                                         {"no_rope_layers", "[1,1,1,0]"},
                                                         {"clip_qkv", "8"},
                                                         {"qk_layernorm", "true"},
                                                         {"use_qk_norm", "true"}};
  for (const auto& [key, value] : members) {
    const std::string start = "\"" + std::string(key) + "\":";
    expect_refused(start + value, std::string("$.") + key, ErrorCode::kUnsupported);
    EXPECT_TRUE(llama(start + "null").ok()) << key;
  }
  for (const char* neutral :
       {R"("residual_multiplier":1.0)", R"("logit_scale":1)", R"("use_qk_norm":false)",
        R"("no_rope_layers":[])", R"("no_rope_layers":[1,1,1,1])",
        R"("model_type":"qwen3","use_qk_norm":true)",
        R"("model_type":"gemma3_text","final_logit_softcapping":30.0)"}) {
    EXPECT_TRUE(llama(neutral).ok()) << neutral;
  }
}

// A published Gemma 3 wrapper states few fields and leaves the rest to the class's defaults.
TEST(ModelConfig, SparseMultimodalWrapper) {
  const auto config = parse_model_config(R"({"model_type":"gemma3","eos_token_id":[1,106],
    "text_config":{"hidden_size":2560,"intermediate_size":10240,"model_type":"gemma3_text",
    "num_hidden_layers":34,"rope_scaling":{"factor":8.0,"rope_type":"linear"},
    "sliding_window":1024},"vision_config":{"hidden_size":1152}})",
                                         "config.json");
  ASSERT_TRUE(config.ok()) << config.error().message;
  EXPECT_EQ(config->heads, 8);
  EXPECT_EQ(config->kv_heads, 4);
  EXPECT_EQ(config->head_dim, 256);
  EXPECT_EQ(config->vocab_size, 262208);
  EXPECT_TRUE(config->tie_word_embeddings);
  EXPECT_TRUE(config->norm_weight_plus_one);
  EXPECT_EQ(config->rope.theta, 1e6);
  EXPECT_EQ(config->rope.factor, 8.0);
  EXPECT_EQ(config->rope_local.theta, 1e4);
  EXPECT_EQ(config->rope_local.type, RopeType::kDefault);
  EXPECT_TRUE(config->layer_slides[4]);
  EXPECT_FALSE(config->layer_slides[5]);
  EXPECT_EQ(config->attention_scale, 1.0 / 16);
  EXPECT_EQ(config->warnings.size(), 1U);
}

TEST(ModelConfig, WindowsAndBiases) {
  const auto qwen2 =
      llama(R"("model_type":"qwen2","sliding_window":64,"use_sliding_window":false)").value();
  EXPECT_EQ(qwen2.sliding_window, 0);
  EXPECT_TRUE(qwen2.qkv_bias);
  EXPECT_FALSE(qwen2.attention_out_bias);
  const auto partly =
      llama(
          R"("model_type":"qwen2","sliding_window":64,"use_sliding_window":true,"max_window_layers":3)")
          .value();
  EXPECT_EQ(partly.layer_slides, (std::vector<bool>{false, false, false, true}));
  const auto mistral = llama(R"("model_type":"mistral","sliding_window":null)").value();
  EXPECT_EQ(mistral.sliding_window, 0);
  EXPECT_EQ(llama(R"("model_type":"mistral","sliding_window":32)").value().layer_slides,
            (std::vector<bool>{true, true, true, true}));
  EXPECT_TRUE(llama(R"("attention_bias":true)").value().attention_out_bias);
  const auto qwen3 = llama(R"("model_type":"qwen3")").value();
  EXPECT_TRUE(qwen3.qk_norm);
  EXPECT_EQ(qwen3.head_dim, 128);
}

TEST(GenerationConfig, ReadsAndChecks) {
  const auto config = parse_generation_config(
      R"({"eos_token_id":[1,106],"top_k":-1,"top_p":0.95,"temperature":0.6,"do_sample":true,
          "bos_token_id":2,"min_p":null,"other":[1]})",
      "generation_config.json");
  ASSERT_TRUE(config.ok()) << config.error().message;
  EXPECT_EQ(config->eos_token_ids, (std::vector<int64_t>{1, 106}));
  EXPECT_EQ(config->top_k, 0);
  EXPECT_FALSE(config->min_p.has_value());
  const auto again = parse_generation_config(generation_config_json(*config), "again");
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again->temperature, 0.6);
  EXPECT_EQ(again->eos_token_ids, config->eos_token_ids);
  for (const char* bad :
       {R"({"temperature":-1})", R"({"temperature":1e5})", R"({"repetition_penalty":1e300})",
        R"({"temperature":"0.7"})", R"({"top_p":1.5})", R"({"top_k":-2})", R"({"min_p":1.1})",
        R"({"repetition_penalty":0})", R"({"eos_token_id":[-1]})", "[]"}) {
    const auto refused = parse_generation_config(bad, "g.json");
    ASSERT_FALSE(refused.ok()) << bad;
    EXPECT_NE(refused.error().message.find("g.json"), std::string::npos);
  }
}

}  // namespace
}  // namespace sub8::checkpoint
