// What a GGUF file says about the model in it: configuration, names, tokenizer.
//
// Architectures llama (Llama, SmolLM2, Mistral), qwen2, qwen3, gemma3; others are refused by name.
// Source: the GGUF specification and the `gguf` package's constants; llama.cpp's conversion for
// what it changes (q/k rows of llama, 1 + weight in Gemma norms, rope_freqs for llama3 scaling).
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/error.h"
#include "checkpoint/gguf.h"
#include "checkpoint/gguf_tokenizer.h"
#include "checkpoint/model_config.h"

namespace sub8::checkpoint {

Result<ModelConfig> gguf_model_config(const GgufFile& file);

Result<GgufTokenizer> gguf_tokenizer(const GgufFile& file);

// eos is the list of eos, eot and eom tokens; recommended sampling values (general.sampling.*).
Result<GenerationConfig> gguf_generation_config(const GgufFile& file,
                                                const GgufTokenizer& tokenizer);

// tokenizer_config.json with the special tokens, add_bos/add_eos and the chat template. Bytes that
// are not UTF-8 become U+FFFD.
std::string tokenizer_config_json(const GgufTokenizer& tokenizer, int64_t max_positions);

// "blk.0.attn_q.weight" for ("model.layers.0.self_attn.q_proj", ".weight"); empty where the
// architecture has no such weight. `name` is a module, or a vector's tensor name without suffix.
std::string gguf_name(Architecture architecture, std::string_view module);

// Row of the file that holds row `row` of q_proj or k_proj: llama.cpp stores the rows of llama
// files interleaved (2i, 2i+1) instead of half-split (i, i + head_dim/2).
constexpr int64_t interleaved_row(int64_t row, int64_t head_dim) {
  const int64_t head = row / head_dim;
  const int64_t inside = row % head_dim;
  const int64_t half = head_dim / 2;
  return head * head_dim + 2 * (inside % half) + inside / half;
}

}  // namespace sub8::checkpoint
