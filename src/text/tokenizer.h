// Text to token ids and back, as the Hugging Face `tokenizers` package does it for BPE models.
//
// A Tokenizer is immutable and may be used by many threads at once. Sources: tokenizer.json
// (byte-level BPE and BPE with byte fallback) and the vocabulary inside a GGUF file. Everything in
// them is untrusted: damage is corrupt_data with the JSON path, what sub8 lacks is unsupported by
// name.
//
// Example:
//   SUB8_ASSIGN_OR_RETURN(auto tokenizer, Tokenizer::from_json(text, "model/tokenizer.json"));
//   SUB8_ASSIGN_OR_RETURN(std::vector<int32_t> ids, tokenizer->encode("Hello", {}));
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "text/added_tokens.h"
#include "text/decoder.h"

namespace sub8 {

struct EncodeOptions {
  // Adds what the post-processor adds (usually BOS).
  bool add_special_tokens = true;
  // Special tokens written in the text become their ids. Off for text of strangers: then "<|eot|>"
  // is seven characters. Added tokens that are not special are recognised either way.
  bool parse_special = true;
};

// The members of a GGUF file's metadata that describe its tokenizer; names as in the file, after
// "tokenizer.ggml.".
struct GgufVocab {
  std::string source;                // file name, for errors
  std::string model;                 // "gpt2", "llama", "gemma4"
  std::string pre;                   // "llama-bpe", "qwen2", ...; empty when absent
  std::vector<std::string> tokens;   // by id
  std::vector<float> scores;         // as many, or empty
  std::vector<int32_t> token_types;  // as many, or empty: 1 normal, 2 unknown, 3 control, 4 user
                                     // defined, 5 unused, 6 byte
  std::vector<std::string> merges;   // "left right", in order of rank
  std::optional<int32_t> bos_token_id;
  std::optional<int32_t> eos_token_id;
  std::optional<int32_t> unknown_token_id;
  std::optional<int32_t> padding_token_id;
  std::optional<bool> add_bos_token;
  std::optional<bool> add_eos_token;
  std::optional<bool> add_space_prefix;
};

struct SpecialIds {
  std::optional<int32_t> bos;
  std::optional<int32_t> eos;
  std::optional<int32_t> unk;
  std::optional<int32_t> pad;
};

class Tokenizer {
 public:
  // A text longer than this is refused: ids would not fit any context.
  static constexpr size_t kMaxTextBytes = size_t{256} << 20;
  static constexpr int32_t kMaxVocabulary = 1 << 24;

  // `source` names the file in errors. `config_json`, when not empty, is the text of the
  // tokenizer_config.json beside it: the special ids come from there. `truncation` and `padding`
  // members are ignored, as transformers does.
  static Result<std::unique_ptr<Tokenizer>> from_json(std::string_view tokenizer_json,
                                                      std::string_view source,
                                                      std::string_view config_json = {});
  static Result<std::unique_ptr<Tokenizer>> from_gguf(const GgufVocab& vocab);
  ~Tokenizer();
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  // `text` that is not valid UTF-8 is an invalid_argument error that names the byte offset.
  Result<std::vector<int32_t>> encode(std::string_view text, const EncodeOptions& options) const;
  // Valid UTF-8: bytes that are no character become U+FFFD. An id without token gives nothing.
  std::string decode(std::span<const int32_t> ids, bool skip_special) const;

  // Highest id + 1, added tokens included. Not every id below it need have a token.
  int32_t vocab_size() const;
  // The token as the vocabulary spells it ("Ġthe"), or nothing for an id without token.
  std::optional<std::string> token(int32_t id) const;
  std::optional<int32_t> token_id(std::string_view token) const;
  // What the token contributes inside a text, as bytes (" the"); may be a part of a character.
  std::string token_bytes(int32_t id) const;
  bool is_special(int32_t id) const;  // an added token marked special
  bool is_added(int32_t id) const;
  const std::vector<AddedToken>& added_tokens() const;
  const SpecialIds& special_ids() const;
  // Ids that encode() puts in front of a text on add_special_tokens.
  std::vector<int32_t> prefix_ids() const;

  // A complete tokenizer.json: loading it gives the same ids for every text.
  std::string to_json() const;

  // For Detokenizer: the decoder, and what it is given for a token. Of an added token that is
  // looked for in normalised text this is the normalised content, as in the reference.
  const Decoder& decoder() const;
  std::optional<std::string_view> decoder_input(int32_t id) const;

 private:
  struct Impl;
  friend struct TokenizerSpec;
  explicit Tokenizer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace sub8
