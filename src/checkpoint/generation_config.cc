#include <algorithm>

#include "checkpoint/model_config.h"
#include "checkpoint/number_range.h"
#include "checkpoint/pretty_json.h"
#include "checkpoint/token_ids.h"

namespace sub8::checkpoint {
namespace {

constexpr int64_t kMaxId = int64_t{1} << 26;

Result<std::optional<double>> number_in(const JsonRef& root, std::string_view key,
                                        NumberRange range) {
  const auto member = root.find(key);
  if (!member) return std::optional<double>();
  SUB8_ASSIGN_OR_RETURN(const double out, member->as_double());
  SUB8_ASSIGN_OR_RETURN(const double inside, require_in(range, out, member->where()));
  return std::optional<double>(inside);
}

Result<std::optional<int64_t>> int_in(const JsonRef& root, std::string_view key, int64_t low,
                                      int64_t high) {
  const auto member = root.find(key);
  if (!member) return std::optional<int64_t>();
  SUB8_ASSIGN_OR_RETURN(const int64_t out, member->as_int(low, high));
  return std::optional<int64_t>(out);
}

Result<std::optional<int64_t>> token_id(const JsonRef& root, std::string_view key) {
  SUB8_ASSIGN_OR_RETURN(const auto out, int_in(root, key, -1, kMaxId));
  return out && *out < 0 ? std::optional<int64_t>() : out;
}

}  // namespace

Result<GenerationConfig> parse_generation_config(std::string_view text, std::string_view source) {
  SUB8_ASSIGN_OR_RETURN(const auto document, parse_json(text, source));
  const JsonRef root(document, std::string(source));
  if (!root.is_object()) return corrupt_data(root.where() + ": expected an object");
  GenerationConfig out;
  SUB8_ASSIGN_OR_RETURN(out.bos_token_id, token_id(root, "bos_token_id"));
  SUB8_ASSIGN_OR_RETURN(out.pad_token_id, token_id(root, "pad_token_id"));
  if (const auto eos = root.find("eos_token_id")) {
    if (eos->is_array()) {
      SUB8_ASSIGN_OR_RETURN(const auto elements, eos->elements());
      for (const JsonRef& element : elements) {
        SUB8_ASSIGN_OR_RETURN(const int64_t id, element.as_int(0, kMaxId));
        out.eos_token_ids.push_back(id);
      }
    } else {
      SUB8_ASSIGN_OR_RETURN(const auto id, token_id(root, "eos_token_id"));
      if (id) out.eos_token_ids.push_back(*id);
    }
  }
  if (const auto sample = root.find("do_sample")) {
    SUB8_ASSIGN_OR_RETURN(out.do_sample, sample->as_bool());
  }
  SUB8_ASSIGN_OR_RETURN(out.temperature, number_in(root, "temperature", kTemperature));
  SUB8_ASSIGN_OR_RETURN(out.top_k, int_in(root, "top_k", -1, INT32_MAX));
  if (out.top_k) out.top_k = std::max<int64_t>(*out.top_k, 0);
  SUB8_ASSIGN_OR_RETURN(out.top_p, number_in(root, "top_p", kProbability));
  SUB8_ASSIGN_OR_RETURN(out.min_p, number_in(root, "min_p", kProbability));
  SUB8_ASSIGN_OR_RETURN(out.repetition_penalty,
                        number_in(root, "repetition_penalty", kRepetitionPenalty));
  SUB8_ASSIGN_OR_RETURN(out.presence_penalty, number_in(root, "presence_penalty", kPenalty));
  SUB8_ASSIGN_OR_RETURN(out.frequency_penalty, number_in(root, "frequency_penalty", kPenalty));
  SUB8_ASSIGN_OR_RETURN(out.max_new_tokens, int_in(root, "max_new_tokens", 1, INT32_MAX));
  return out;
}

Status check_token_id(const std::string& source, const char* key, int64_t id, int64_t vocab_size) {
  if (id < vocab_size) return {};
  return corrupt_data(source + ": " + key + " " + std::to_string(id) +
                      " is outside the vocabulary of " + std::to_string(vocab_size));
}

Status check_token_ids(const std::string& source, const GenerationConfig& config,
                       int64_t vocab_size) {
  if (config.bos_token_id) {
    SUB8_RETURN_IF_ERROR(check_token_id(source, "bos_token_id", *config.bos_token_id, vocab_size));
  }
  for (const int64_t id : config.eos_token_ids) {
    SUB8_RETURN_IF_ERROR(check_token_id(source, "eos_token_id", id, vocab_size));
  }
  return {};
}

std::string generation_config_json(const GenerationConfig& config) {
  boost::json::object out;
  const auto put = [&](const char* key, const auto& value) {
    if (value) out[key] = *value;
  };
  put("bos_token_id", config.bos_token_id);
  put("do_sample", config.do_sample);
  if (config.eos_token_ids.size() == 1) out["eos_token_id"] = config.eos_token_ids[0];
  if (config.eos_token_ids.size() > 1) {
    out["eos_token_id"] =
        boost::json::array(config.eos_token_ids.begin(), config.eos_token_ids.end());
  }
  put("pad_token_id", config.pad_token_id);
  put("temperature", config.temperature);
  put("top_k", config.top_k);
  put("top_p", config.top_p);
  put("min_p", config.min_p);
  put("repetition_penalty", config.repetition_penalty);
  put("presence_penalty", config.presence_penalty);
  put("frequency_penalty", config.frequency_penalty);
  put("max_new_tokens", config.max_new_tokens);
  return pretty_json(out);
}

}  // namespace sub8::checkpoint
