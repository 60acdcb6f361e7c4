// The vocabulary that a GGUF file carries, as plain data. src/text turns it into a tokenizer.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace sub8::checkpoint {

// Members are empty where the file does not have them. All arrays are checked to have as many
// entries as `tokens` (merges aside).
struct GgufTokenizer {
  std::string model;                // tokenizer.ggml.model: "gpt2", "llama", "gemma4", ...
  std::string pre;                  // tokenizer.ggml.pre: "smollm", "llama-bpe", "qwen2", ...
  std::vector<std::string> tokens;  // raw bytes; not promised to be valid UTF-8
  std::vector<float> scores;
  // 1 normal, 2 unknown, 3 control, 4 user defined, 5 unused, 6 byte
  std::vector<int32_t> token_types;
  std::vector<std::string> merges;  // "left right"
  std::optional<int64_t> bos_token_id, eos_token_id, eot_token_id, eom_token_id, unknown_token_id,
      separator_token_id, padding_token_id;
  std::optional<bool> add_bos_token, add_eos_token, add_space_prefix, remove_extra_whitespaces;
  std::string chat_template;
};

}  // namespace sub8::checkpoint
