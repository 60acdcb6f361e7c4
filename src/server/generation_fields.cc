#include "server/generation_fields.h"

#include <algorithm>
#include <charconv>
#include <limits>

#include <fmt/format.h>

#include "text/utf8.h"

namespace sub8::server {
namespace {

namespace json = boost::json;

constexpr size_t kMaxBadWords = 256;
constexpr size_t kShownBytes = 80;  // of a value that a message repeats
constexpr int64_t kMaxTokens = std::numeric_limits<int32_t>::max();

// *out = the member, where there is one.
template <class Field, class Value>
Status assign(Field* out, Result<std::optional<Value>> member) {
  if (!member.ok()) return std::move(member).error();
  if (*member) *out = std::move(**member);
  return {};
}

Status read_sampling(BodyReader& body, engine::SamplingParams& p) {
  SUB8_RETURN_IF_ERROR(assign(&p.temperature, body.number("temperature", 0, 100)));
  SUB8_RETURN_IF_ERROR(assign(&p.top_k, body.integer("top_k", -1, kMaxTokens)));
  SUB8_RETURN_IF_ERROR(assign(&p.top_p, body.number("top_p", 0, 1)));
  SUB8_RETURN_IF_ERROR(assign(&p.min_p, body.number("min_p", 0, 1)));
  SUB8_RETURN_IF_ERROR(assign(&p.presence_penalty, body.number("presence_penalty", -2, 2)));
  SUB8_RETURN_IF_ERROR(assign(&p.frequency_penalty, body.number("frequency_penalty", -2, 2)));
  SUB8_RETURN_IF_ERROR(assign(&p.repetition_penalty, body.number("repetition_penalty", 0, 1e6)));
  if (p.repetition_penalty <= 0) return body.fail("repetition_penalty", "must be above 0");
  // A signed 64-bit number by the API; all its values are different seeds.
  if (const json::value* seed = body.raw("seed"); seed != nullptr && seed->is_uint64()) {
    p.seed = seed->get_uint64();
  } else {
    SUB8_ASSIGN_OR_RETURN(const auto signed_seed,
                          body.integer("seed", std::numeric_limits<int64_t>::min(),
                                       std::numeric_limits<int64_t>::max()));
    if (signed_seed) p.seed = static_cast<uint64_t>(*signed_seed);
  }
  return {};
}

Status read_stopping(BodyReader& body, const engine::EngineInfo& info, engine::Request& request) {
  engine::SamplingParams& p = request.sampling;
  SUB8_ASSIGN_OR_RETURN(p.stop, body.strings("stop", kMaxStopStrings));
  if (std::any_of(p.stop.begin(), p.stop.end(), [](const auto& s) { return s.empty(); }))
    return body.fail("stop", "a stop string must not be empty");
  SUB8_ASSIGN_OR_RETURN(p.stop_token_ids,
                        body.token_ids("stop_token_ids", kMaxIdList, info.vocab_size));
  SUB8_RETURN_IF_ERROR(assign(&p.include_stop_text, body.boolean("include_stop_str_in_output")));
  SUB8_RETURN_IF_ERROR(assign(&p.ignore_eos, body.boolean("ignore_eos")));
  SUB8_RETURN_IF_ERROR(assign(&p.min_tokens, body.integer("min_tokens", 0, kMaxTokens)));
  SUB8_RETURN_IF_ERROR(assign(&request.skip_special, body.boolean("skip_special_tokens")));
  return {};
}

// {"id": bias}, or [[id, bias], ...] where false bans the token.
Status read_logit_bias(BodyReader& body, int64_t vocab_size, engine::SamplingParams& p) {
  const json::value* member = body.raw("logit_bias");
  if (member == nullptr) return {};
  const auto add = [&](int64_t id, const json::value& bias) -> Status {
    if (id < 0 || id >= vocab_size) {
      return body.fail("logit_bias",
                       fmt::format("{} is not a token id from 0 to {}", id, vocab_size - 1));
    }
    const bool banned = bias.is_bool() && !bias.get_bool();
    if (!banned && !bias.is_number())
      return body.fail("logit_bias", fmt::format("the bias of token {} must be a number", id));
    const double value = banned ? -100.0 : bias.to_number<double>();
    if (!(value >= -100 && value <= 100)) {
      return body.fail("logit_bias",
                       fmt::format("the bias of token {} must be from -100 to 100", id));
    }
    p.logit_bias.emplace_back(static_cast<int32_t>(id), static_cast<float>(value));
    return {};
  };
  if (member->is_object()) {
    for (const auto& entry : member->get_object()) {
      int64_t id = -1;
      const std::string_view key = entry.key();
      const auto parsed = std::from_chars(key.data(), key.data() + key.size(), id);
      if (parsed.ec != std::errc() || parsed.ptr != key.data() + key.size())
        return body.fail("logit_bias", "the keys must be token ids in decimal");
      SUB8_RETURN_IF_ERROR(add(id, entry.value()));
    }
    return {};
  }
  if (!member->is_array())
    return body.fail("logit_bias", "expected an object from token ids to numbers");
  for (const json::value& pair : member->get_array()) {
    if (!pair.is_array() || pair.get_array().size() != 2 || !pair.get_array()[0].is_int64())
      return body.fail("logit_bias", "expected pairs of token id and bias");
    SUB8_RETURN_IF_ERROR(add(pair.get_array()[0].get_int64(), pair.get_array()[1]));
  }
  return {};
}

// Words become the token runs that spell them, with and without a space in front, as vLLM does it.
Status read_limits_of_tokens(BodyReader& body, const ServedModel& model, int64_t vocab_size,
                             engine::SamplingParams& p) {
  SUB8_ASSIGN_OR_RETURN(
      p.allowed_token_ids,
      body.token_ids("allowed_token_ids", static_cast<size_t>(vocab_size), vocab_size));
  const json::value* allowed = body.raw("allowed_token_ids");
  if (allowed != nullptr && p.allowed_token_ids.empty())
    return body.fail("allowed_token_ids", "must not be empty: nothing could be sampled");
  SUB8_ASSIGN_OR_RETURN(const auto words, body.strings("bad_words", kMaxBadWords));
  for (const std::string& word : words) {
    if (word.find_first_not_of(' ') == std::string::npos)
      return body.fail("bad_words", "a word must not be empty");
    const std::string bare = word.substr(word.find_first_not_of(' '));
    for (const std::string& text : {bare, " " + bare}) {
      const Result<std::vector<int32_t>> ids =
          model.tokenizer->encode(text, {.add_special_tokens = false});
      if (!ids.ok()) return body.fail("bad_words", ids.error().message);
      if (!ids->empty()) p.banned_runs.push_back(*ids);
    }
  }
  return {};
}

Status read_streaming(BodyReader& body, GenerationFields& out) {
  SUB8_RETURN_IF_ERROR(assign(&out.stream, body.boolean("stream")));
  SUB8_ASSIGN_OR_RETURN(auto options, body.object("stream_options"));
  if (!options) return {};
  SUB8_RETURN_IF_ERROR(assign(&out.include_usage, options->boolean("include_usage")));
  SUB8_RETURN_IF_ERROR(assign(&out.continuous_usage, options->boolean("continuous_usage_stats")));
  out.continuous_usage &= out.include_usage;
  return {};
}

Status read_mode(BodyReader& body, const engine::EngineInfo& info, engine::Request& request) {
  SUB8_ASSIGN_OR_RETURN(const auto name, body.string("mode"));
  if (!name) return {};
  std::vector<std::string> known{"auto"};
  for (const auto mode : info.modes) known.emplace_back(model::execution_mode_name(mode));
  const Result<model::ExecutionMode> mode = model::parse_execution_mode(*name);
  const bool usable =
      mode.ok() && (*mode == model::ExecutionMode::kAuto ||
                    std::find(info.modes.begin(), info.modes.end(), *mode) != info.modes.end());
  if (!usable) {
    std::string_view shown = std::string_view(*name).substr(0, kShownBytes);
    shown.remove_suffix(incomplete_utf8_tail(shown));  // no part of a character
    return body.fail("mode", fmt::format("this model runs in the modes {}, not '{}'",
                                         fmt::join(known, ", "), shown));
  }
  request.mode = *mode;
  return {};
}

// A schema as text: given as an object, or as a string that holds one.
Result<std::string> schema_text(BodyReader& body, std::string_view key) {
  const json::value* schema = body.raw(key);
  if (schema == nullptr) return body.fail(key, "the schema is missing");
  if (schema->is_string()) {
    std::string text(schema->get_string());
    if (!parse_json(text, key).ok()) return body.fail(key, "the string holds no JSON schema");
    return text;
  }
  if (!schema->is_object() && !schema->is_bool())
    return body.fail(key, "expected a JSON schema as an object");
  return json::serialize(*schema);
}

Status read_response_format(BodyReader& body, std::optional<GrammarSpec>& out) {
  SUB8_ASSIGN_OR_RETURN(auto format, body.object("response_format"));
  if (!format) return {};
  SUB8_ASSIGN_OR_RETURN(const auto type, format->string("type"));
  const std::string name = type.value_or("");
  if (name == "text") return {};
  if (name == "json_object") {
    out = GrammarSpec{GrammarSpec::Kind::kJson, ""};
    return {};
  }
  if (name == "json_schema") {
    SUB8_ASSIGN_OR_RETURN(auto wrapper, format->object("json_schema"));
    if (!wrapper) return format->fail("json_schema", "is missing");
    SUB8_ASSIGN_OR_RETURN(std::string text, schema_text(*wrapper, "schema"));
    out = GrammarSpec{GrammarSpec::Kind::kJsonSchema, std::move(text)};
    return {};
  }
  return format->fail("type",
                      fmt::format("expected text, json_object or json_schema, got '{}'", name));
}

Status add_grammar(BodyReader& body, std::string_view key, GrammarSpec spec,
                   std::optional<GrammarSpec>& out) {
  if (out) return body.fail(key, "only one kind of structured output can be asked for");
  out = std::move(spec);
  return {};
}

// regex, grammar, choice and json inside `body`, under names with `prefix` in front.
Status read_structured_members(BodyReader& body, std::string_view prefix,
                               std::optional<GrammarSpec>& out) {
  const std::string regex = fmt::format("{}regex", prefix);
  const std::string grammar = fmt::format("{}grammar", prefix);
  const std::string choice = fmt::format("{}choice", prefix);
  const std::string schema = fmt::format("{}json", prefix);
  using Kind = GrammarSpec::Kind;
  SUB8_ASSIGN_OR_RETURN(auto text, body.string(regex));
  if (text) SUB8_RETURN_IF_ERROR(add_grammar(body, regex, {Kind::kRegex, std::move(*text)}, out));
  SUB8_ASSIGN_OR_RETURN(text, body.string(grammar));
  if (text) SUB8_RETURN_IF_ERROR(add_grammar(body, grammar, {Kind::kEbnf, std::move(*text)}, out));
  SUB8_ASSIGN_OR_RETURN(const auto choices, body.strings(choice, kMaxIdList));
  if (!choices.empty()) {
    SUB8_RETURN_IF_ERROR(add_grammar(body, choice, {Kind::kEbnf, choice_grammar(choices)}, out));
  }
  if (body.raw(schema) != nullptr) {
    SUB8_ASSIGN_OR_RETURN(std::string json_text, schema_text(body, schema));
    SUB8_RETURN_IF_ERROR(add_grammar(body, schema, {Kind::kJsonSchema, std::move(json_text)}, out));
  }
  return {};
}

Status read_grammar(BodyReader& body, std::optional<GrammarSpec>& out) {
  SUB8_RETURN_IF_ERROR(read_response_format(body, out));
  SUB8_ASSIGN_OR_RETURN(auto structured, body.object("structured_outputs"));
  if (structured) {
    SUB8_RETURN_IF_ERROR(read_structured_members(*structured, "", out));
    SUB8_ASSIGN_OR_RETURN(const auto any, structured->boolean("json_object"));
    if (any.value_or(false)) {
      SUB8_RETURN_IF_ERROR(
          add_grammar(*structured, "json_object", {GrammarSpec::Kind::kJson, ""}, out));
    }
    SUB8_RETURN_IF_ERROR(structured->refuse("structural_tag", "is not supported"));
  }
  SUB8_RETURN_IF_ERROR(read_structured_members(body, "guided_", out));
  for (const char* key : {"regex", "grammar"}) {
    SUB8_ASSIGN_OR_RETURN(auto text, body.string(key));
    if (!text) continue;
    const auto kind =
        std::string_view(key) == "regex" ? GrammarSpec::Kind::kRegex : GrammarSpec::Kind::kEbnf;
    SUB8_RETURN_IF_ERROR(add_grammar(body, key, {kind, std::move(*text)}, out));
  }
  return {};
}

Status refuse_unsupported(BodyReader& body) {
  SUB8_RETURN_IF_ERROR(body.refuse("use_beam_search", "beam search is not supported"));
  return {};
}

}  // namespace

std::string choice_grammar(const std::vector<std::string>& choices) {
  std::string out = "root ::= ";
  for (size_t i = 0; i < choices.size(); ++i) {
    if (i > 0) out += " | ";
    // JSON's escapes are the grammar's.
    out += json::serialize(json::value(choices[i]));
  }
  return out;
}

Result<GenerationFields> read_generation_fields(BodyReader& body, const ServedModel& model,
                                                const engine::EngineInfo& info) {
  GenerationFields out;
  SUB8_ASSIGN_OR_RETURN(const auto name, body.string("model"));
  out.model = name.value_or("");
  if (out.model.empty()) out.model = model.names.front();
  if (!model.has_name(out.model)) {
    body.blame("model");
    return not_found(fmt::format("the model '{}' does not exist here; this server has {}", *name,
                                 fmt::join(model.names, ", ")));
  }
  out.request.sampling = model.defaults;
  SUB8_RETURN_IF_ERROR(read_sampling(body, out.request.sampling));
  SUB8_RETURN_IF_ERROR(read_stopping(body, info, out.request));
  SUB8_RETURN_IF_ERROR(read_logit_bias(body, info.vocab_size, out.request.sampling));
  SUB8_RETURN_IF_ERROR(read_limits_of_tokens(body, model, info.vocab_size, out.request.sampling));
  SUB8_RETURN_IF_ERROR(read_streaming(body, out));
  SUB8_RETURN_IF_ERROR(read_mode(body, info, out.request));
  SUB8_RETURN_IF_ERROR(read_grammar(body, out.grammar));
  SUB8_RETURN_IF_ERROR(refuse_unsupported(body));
  SUB8_ASSIGN_OR_RETURN(const auto n, body.integer("n", 1, engine::kMaxChoices));
  out.request.n = static_cast<int>(n.value_or(1));
  SUB8_ASSIGN_OR_RETURN(const auto best_of, body.integer("best_of", 1, engine::kMaxChoices));
  if (best_of && *best_of != out.request.n)
    return body.fail("best_of", "only the value of n is supported");
  SUB8_ASSIGN_OR_RETURN(const auto priority,
                        body.integer("priority", -engine::kMaxPriority, engine::kMaxPriority));
  out.request.priority = static_cast<int>(priority.value_or(0));
  SUB8_RETURN_IF_ERROR(assign(&out.request.cache_salt, body.string("cache_salt")));
  SUB8_RETURN_IF_ERROR(assign(&out.return_token_ids, body.boolean("return_token_ids")));
  SUB8_ASSIGN_OR_RETURN(out.truncate_prompt_tokens,
                        body.integer("truncate_prompt_tokens", 1, kMaxTokens));
  for (const char* known : {"user", "request_id", "spaces_between_special_tokens", "metadata",
                            "store", "service_tier"}) {
    body.raw(known);  // without effect here
  }
  return out;
}

}  // namespace sub8::server
