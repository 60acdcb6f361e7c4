// Tokenizer and sampling metadata of a GGUF.
#include <algorithm>

#include "checkpoint/gguf_model.h"
#include "checkpoint/number_range.h"
#include "checkpoint/pretty_json.h"

namespace sub8::checkpoint {
namespace {

Status check_count(const GgufFile& file, std::string_view key, size_t count, size_t tokens) {
  if (count == 0 || count == tokens) return {};
  return corrupt_data(file.source() + ": metadata \"" + std::string(key) + "\" has " +
                      std::to_string(count) + " entries for " + std::to_string(tokens) + " tokens");
}

// Valid UTF-8 from bytes; each byte that belongs to no character becomes U+FFFD.
std::string to_utf8(std::string_view bytes) {
  std::string out;
  for (size_t i = 0; i < bytes.size();) {
    const auto lead = static_cast<unsigned char>(bytes[i]);
    const size_t length = lead < 0x80   ? 1
                          : lead < 0xc2 ? 0
                          : lead < 0xe0 ? 2
                          : lead < 0xf0 ? 3
                          : lead < 0xf5 ? 4
                                        : 0;
    bool valid = length != 0 && i + length <= bytes.size();
    for (size_t k = 1; valid && k < length; ++k) {
      const auto next = static_cast<unsigned char>(bytes[i + k]);
      unsigned char low = 0x80;
      unsigned char high = 0xbf;
      if (k == 1 && lead == 0xe0) low = 0xa0;
      if (k == 1 && lead == 0xed) high = 0x9f;
      if (k == 1 && lead == 0xf0) low = 0x90;
      if (k == 1 && lead == 0xf4) high = 0x8f;
      valid = next >= low && next <= high;
    }
    if (valid) {
      out += bytes.substr(i, length);
      i += length;
    } else {
      out += "\xef\xbf\xbd";
      ++i;
    }
  }
  return out;
}

Result<std::optional<int64_t>> special_id(const GgufFile& file, std::string_view name,
                                          size_t tokens) {
  const std::string key = "tokenizer.ggml." + std::string(name) + "_token_id";
  SUB8_ASSIGN_OR_RETURN(const auto id, file.get_int(key, 0, UINT32_MAX));
  // Converters write 2^32-1 for "none".
  if (!id || *id == UINT32_MAX) return std::optional<int64_t>();
  if (tokens != 0 && *id >= static_cast<int64_t>(tokens)) {
    return corrupt_data(file.source() + ": metadata \"" + key + "\" is " + std::to_string(*id) +
                        ", the vocabulary has " + std::to_string(tokens) + " tokens");
  }
  return id;
}

}  // namespace

Result<GgufTokenizer> gguf_tokenizer(const GgufFile& file) {
  GgufTokenizer out;
  const auto text = [&](std::string_view key, std::string& to) -> Status {
    SUB8_ASSIGN_OR_RETURN(const auto value, file.get_string(key));
    to = value.value_or("");
    return {};
  };
  SUB8_RETURN_IF_ERROR(text("tokenizer.ggml.model", out.model));
  SUB8_RETURN_IF_ERROR(text("tokenizer.ggml.pre", out.pre));
  SUB8_RETURN_IF_ERROR(text("tokenizer.chat_template", out.chat_template));
  SUB8_ASSIGN_OR_RETURN(out.tokens, file.get_strings("tokenizer.ggml.tokens"));
  SUB8_ASSIGN_OR_RETURN(out.merges, file.get_strings("tokenizer.ggml.merges"));
  SUB8_ASSIGN_OR_RETURN(const auto scores, file.get_doubles("tokenizer.ggml.scores"));
  SUB8_ASSIGN_OR_RETURN(const auto types, file.get_ints("tokenizer.ggml.token_type", 0, 255));
  SUB8_RETURN_IF_ERROR(
      check_count(file, "tokenizer.ggml.scores", scores.size(), out.tokens.size()));
  SUB8_RETURN_IF_ERROR(
      check_count(file, "tokenizer.ggml.token_type", types.size(), out.tokens.size()));
  for (const double score : scores) out.scores.push_back(static_cast<float>(score));
  for (const int64_t type : types) out.token_types.push_back(static_cast<int32_t>(type));
  const size_t n = out.tokens.size();
  SUB8_ASSIGN_OR_RETURN(out.bos_token_id, special_id(file, "bos", n));
  SUB8_ASSIGN_OR_RETURN(out.eos_token_id, special_id(file, "eos", n));
  SUB8_ASSIGN_OR_RETURN(out.eot_token_id, special_id(file, "eot", n));
  SUB8_ASSIGN_OR_RETURN(out.eom_token_id, special_id(file, "eom", n));
  SUB8_ASSIGN_OR_RETURN(out.unknown_token_id, special_id(file, "unknown", n));
  SUB8_ASSIGN_OR_RETURN(out.separator_token_id, special_id(file, "seperator", n));  // sic
  SUB8_ASSIGN_OR_RETURN(out.padding_token_id, special_id(file, "padding", n));
  SUB8_ASSIGN_OR_RETURN(out.add_bos_token, file.get_bool("tokenizer.ggml.add_bos_token"));
  SUB8_ASSIGN_OR_RETURN(out.add_eos_token, file.get_bool("tokenizer.ggml.add_eos_token"));
  SUB8_ASSIGN_OR_RETURN(out.add_space_prefix, file.get_bool("tokenizer.ggml.add_space_prefix"));
  SUB8_ASSIGN_OR_RETURN(out.remove_extra_whitespaces,
                        file.get_bool("tokenizer.ggml.remove_extra_whitespaces"));
  return out;
}

Result<GenerationConfig> gguf_generation_config(const GgufFile& file,
                                                const GgufTokenizer& tokenizer) {
  GenerationConfig out;
  out.bos_token_id = tokenizer.bos_token_id;
  out.pad_token_id = tokenizer.padding_token_id;
  for (const auto& id : {tokenizer.eos_token_id, tokenizer.eot_token_id, tokenizer.eom_token_id}) {
    auto& list = out.eos_token_ids;
    if (id && std::find(list.begin(), list.end(), *id) == list.end()) list.push_back(*id);
  }
  const auto number = [&](std::string_view name, NumberRange range,
                          std::optional<double>& to) -> Status {
    const std::string key = "general.sampling." + std::string(name);
    SUB8_ASSIGN_OR_RETURN(to, file.get_double(key));
    if (!to) return {};
    SUB8_ASSIGN_OR_RETURN(to, require_in(range, *to, file.source() + ": metadata \"" + key + "\""));
    return {};
  };
  SUB8_RETURN_IF_ERROR(number("temp", kTemperature, out.temperature));
  SUB8_RETURN_IF_ERROR(number("top_p", kProbability, out.top_p));
  SUB8_RETURN_IF_ERROR(number("min_p", kProbability, out.min_p));
  SUB8_RETURN_IF_ERROR(number("penalty_repeat", kRepetitionPenalty, out.repetition_penalty));
  SUB8_ASSIGN_OR_RETURN(out.top_k, file.get_int("general.sampling.top_k", 0, INT32_MAX));
  return out;
}

std::string tokenizer_config_json(const GgufTokenizer& tokenizer, int64_t max_positions) {
  boost::json::object out;
  const auto token = [&](const char* key, const std::optional<int64_t>& id) {
    if (id && *id < static_cast<int64_t>(tokenizer.tokens.size())) {
      out[key] = to_utf8(tokenizer.tokens[static_cast<size_t>(*id)]);
    }
  };
  if (tokenizer.add_bos_token) out["add_bos_token"] = *tokenizer.add_bos_token;
  if (tokenizer.add_eos_token) out["add_eos_token"] = *tokenizer.add_eos_token;
  token("bos_token", tokenizer.bos_token_id);
  token("eos_token", tokenizer.eos_token_id);
  token("pad_token", tokenizer.padding_token_id);
  token("unk_token", tokenizer.unknown_token_id);
  out["clean_up_tokenization_spaces"] = false;
  out["model_max_length"] = max_positions;
  out["tokenizer_class"] = "PreTrainedTokenizerFast";
  if (!tokenizer.chat_template.empty()) out["chat_template"] = to_utf8(tokenizer.chat_template);
  return pretty_json(out);
}

}  // namespace sub8::checkpoint
