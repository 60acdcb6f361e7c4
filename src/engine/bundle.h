// Everything around a model's weights that a request needs: tokenizer, chat template, end tokens,
// sampling defaults.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <boost/json.hpp>

#include "base/error.h"
#include "base/thread_pool.h"
#include "checkpoint/weight_source.h"
#include "engine/engine.h"
#include "engine/sampling_params.h"
#include "text/chat_template/chat_template.h"
#include "text/tokenizer.h"

namespace sub8::engine {

struct Bundle {
  std::unique_ptr<checkpoint::WeightSource> source;
  std::unique_ptr<Tokenizer> tokenizer;
  std::optional<ChatTemplate> chat_template;
  std::vector<int32_t>
      end_ids;  // generation_config.json's, else config.json's, and the tokenizer's own
  std::vector<std::string> warnings;

  // What the model's files suggest; greedy where they say do_sample = false.
  SamplingParams sampling_defaults() const;

  // Renders messages ({"role", "content"} objects) and tokenises the result: exactly what
  // transformers' apply_chat_template(tokenize=True, add_generation_prompt=True) gives. Without a
  // template: an error that names --raw.
  Result<std::vector<int32_t>> chat_prompt(const boost::json::array& messages) const;

  // Tokenises plain text, with the begin token where the model wants one; never two of them.
  Result<std::vector<int32_t>> raw_prompt(std::string_view text) const;
};

// The tokenizer of a source: tokenizer.json, or the vocabulary inside a GGUF.
Result<std::unique_ptr<Tokenizer>> load_tokenizer(const checkpoint::WeightSource& source);

// Opens tokenizer and template of a source and checks that they fit the model.
Result<Bundle> make_bundle(std::unique_ptr<checkpoint::WeightSource> source);

struct RunOptions {
  ActivationType activations = ActivationType::kBF16;
  kernels::KvType kv_type = kernels::KvType::kBF16;
  model::ModeOptions mode;
  bool mixed_modes = false;                            // see ModelOptions
  std::shared_ptr<const checkpoint::Residue> residue;  // see ModelOptions
  model::ExtendFn extend;                              // see ModelOptions
  int64_t max_model_len = 0;  // 0: the model's limit, at most kDefaultModelLen
  int64_t max_batch_tokens = 512;
  int max_sequences = 1;
  int64_t kv_memory_bytes = 0;  // 0: full contexts for all sequences
  bool prefix_cache = true;
  bool reuse_generated = false;  // see EngineOptions
  model::LoadProgressFn progress;
};
inline constexpr int64_t kDefaultModelLen = 8192;
// Rows per step that suit many streams on a CPU: more make nothing faster, and every stream waits
// for the whole step (bench/results/server_cpu.md).
inline constexpr int64_t kCpuBatchTokens = 128;

// Bytes of KV memory that one context of the length in force takes.
Result<int64_t> context_kv_bytes(const Bundle& bundle, const RunOptions& options);

// Loads the weights and makes an engine. The bundle and the pool must outlive it.
Result<std::unique_ptr<Engine>> make_engine(const Bundle& bundle, const RunOptions& options,
                                            ThreadPool& pool);

}  // namespace sub8::engine
