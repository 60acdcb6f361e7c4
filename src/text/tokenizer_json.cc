// Reads tokenizer.json into a TokenizerSpec.
#include <algorithm>
#include <filesystem>
#include <set>

#include "base/json_keys.h"
#include "text/tokenizer_spec.h"

namespace sub8 {
namespace json = boost::json;
namespace {

std::string_view view(const json::string& text) { return {text.data(), text.size()}; }

json::value member(const JsonRef& root, std::string_view key) {
  const auto found = root.find(key);
  return found ? found->value() : json::value();
}

Result<AddedToken> parse_added_token(const JsonRef& json) {
  AddedToken out;
  SUB8_ASSIGN_OR_RETURN(const JsonRef id, json.at("id"));
  SUB8_ASSIGN_OR_RETURN(const int64_t value, id.as_int(0, Tokenizer::kMaxVocabulary - 1));
  out.id = static_cast<int32_t>(value);
  SUB8_ASSIGN_OR_RETURN(const JsonRef content, json.at("content"));
  SUB8_ASSIGN_OR_RETURN(out.content, content.as_string());
  SUB8_ASSIGN_OR_RETURN(out.single_word, json.get_bool("single_word", false));
  SUB8_ASSIGN_OR_RETURN(out.lstrip, json.get_bool("lstrip", false));
  SUB8_ASSIGN_OR_RETURN(out.rstrip, json.get_bool("rstrip", false));
  SUB8_ASSIGN_OR_RETURN(out.special, json.get_bool("special", false));
  SUB8_ASSIGN_OR_RETURN(out.normalized, json.get_bool("normalized", !out.special));
  return out;
}

// Large, so read without a JsonRef (and its path) for each member.
Status parse_vocabulary(const JsonRef& json, TokenizerSpec* spec) {
  if (!json.is_object()) return corrupt_data(json.where() + ": expected an object of token ids");
  const json::object& object = json.value().get_object();
  const auto bad = [&](const json::key_value_pair& entry, const std::string& what) {
    const json::string_view key = entry.key();
    return corrupt_data(json.where() + "[\"" + std::string(key.data(), key.size()) +
                        "\"]: " + what);
  };
  int64_t highest = -1;
  for (const json::key_value_pair& entry : object) {
    const json::value& id = entry.value();
    if (!id.is_int64() || id.get_int64() < 0 || id.get_int64() >= Tokenizer::kMaxVocabulary) {
      return bad(entry,
                 "expected an id from 0 to " + std::to_string(Tokenizer::kMaxVocabulary - 1));
    }
    highest = std::max(highest, id.get_int64());
  }
  spec->vocabulary = Vocabulary(static_cast<size_t>(highest + 1));
  for (const json::key_value_pair& entry : object) {
    const json::string_view key = entry.key();
    const auto id = static_cast<int32_t>(entry.value().get_int64());
    if (!spec->vocabulary.add(id, {key.data(), key.size()})) {
      return bad(entry, "the id " + std::to_string(id) + " is taken by the token \"" +
                            std::string(spec->vocabulary.token(id)) + "\"");
    }
  }
  return {};
}

Status parse_merges(const JsonRef& json, TokenizerSpec* spec) {
  if (!json.is_array()) return corrupt_data(json.where() + ": expected an array of merges");
  const json::array& list = json.value().get_array();
  spec->merges.reserve(list.size());
  for (size_t i = 0; i < list.size(); ++i) {
    const auto where = [&] { return json.where() + "[" + std::to_string(i) + "]"; };
    std::string_view left;
    std::string_view right;
    if (list[i].is_string()) {
      const std::string_view text = view(list[i].get_string());
      if (text.starts_with("#version")) continue;
      const size_t space = text.find(' ');
      if (space == std::string_view::npos || text.find(' ', space + 1) != std::string_view::npos) {
        return corrupt_data(where() + ": expected two tokens with one space between");
      }
      left = text.substr(0, space);
      right = text.substr(space + 1);
    } else if (list[i].is_array() && list[i].get_array().size() == 2 &&
               list[i].get_array()[0].is_string() && list[i].get_array()[1].is_string()) {
      left = view(list[i].get_array()[0].get_string());
      right = view(list[i].get_array()[1].get_string());
    } else {
      return corrupt_data(where() + ": expected \"left right\" or [left, right]");
    }
    const int32_t left_id = spec->vocabulary.find(left);
    const int32_t right_id = spec->vocabulary.find(right);
    if (left_id != kNoToken && right_id != kNoToken) {
      spec->merges.push_back({left_id, right_id});
      continue;
    }
    SUB8_ASSIGN_OR_RETURN(const BpeModel::Merge merge,
                          resolve_merge(spec->vocabulary, left, right, where()));
    spec->merges.push_back(merge);
  }
  return {};
}

Status parse_model(const JsonRef& model, TokenizerSpec* spec) {
  SUB8_ASSIGN_OR_RETURN(const std::string type,
                        model.get_string("type", model.find("merges") ? "BPE" : "(none)"));
  if (type != "BPE") {
    return unsupported(model.where() + ": the tokenizer model \"" + type +
                       "\" is not supported (supported: BPE)");
  }
  if (const auto dropout = model.find("dropout")) {
    SUB8_ASSIGN_OR_RETURN(const double value, dropout->as_double());
    if (value != 0) return unsupported(dropout->where() + ": BPE dropout is not supported");
  }
  for (const char* affix : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    SUB8_ASSIGN_OR_RETURN(const std::string value, model.get_string(affix, ""));
    if (!value.empty()) return unsupported(model.where() + "." + affix + " is not supported");
  }
  BpeOptions& options = spec->options;
  SUB8_ASSIGN_OR_RETURN(options.fuse_unk, model.get_bool("fuse_unk", false));
  SUB8_ASSIGN_OR_RETURN(options.byte_fallback, model.get_bool("byte_fallback", false));
  SUB8_ASSIGN_OR_RETURN(options.ignore_merges, model.get_bool("ignore_merges", false));
  SUB8_ASSIGN_OR_RETURN(const JsonRef vocabulary, model.at("vocab"));
  SUB8_RETURN_IF_ERROR(parse_vocabulary(vocabulary, spec));
  SUB8_ASSIGN_OR_RETURN(const JsonRef merges, model.at("merges"));
  SUB8_RETURN_IF_ERROR(parse_merges(merges, spec));
  SUB8_ASSIGN_OR_RETURN(spec->unk_token, model.get_string("unk_token", ""));
  if (!spec->unk_token.empty()) {
    options.unk_id = spec->vocabulary.find(spec->unk_token);
    if (options.unk_id == kNoToken) {
      return corrupt_data(model.where() + ".unk_token: \"" + spec->unk_token +
                          "\" is not in the vocabulary");
    }
  }
  return {};
}

Status parse_added_tokens(const JsonRef& list, TokenizerSpec* spec) {
  SUB8_ASSIGN_OR_RETURN(const std::vector<JsonRef> tokens, list.elements());
  std::set<int32_t> ids;
  std::set<std::string> contents;
  for (const JsonRef& json : tokens) {
    SUB8_ASSIGN_OR_RETURN(AddedToken token, parse_added_token(json));
    if (token.content.empty()) continue;  // as the reference does
    if (!ids.insert(token.id).second || !contents.insert(token.content).second) {
      return corrupt_data(json.where() + ": the id " + std::to_string(token.id) +
                          " or the token \"" + token.content + "\" is there twice");
    }
    const int32_t known = spec->vocabulary.find(token.content);
    if (known != kNoToken && known != token.id) {
      return corrupt_data(json.where() + ": the token \"" + token.content + "\" has the id " +
                          std::to_string(token.id) + " here and " + std::to_string(known) +
                          " in the vocabulary");
    }
    if (known == kNoToken && spec->vocabulary.has(token.id)) {
      return corrupt_data(json.where() + ": the id " + std::to_string(token.id) +
                          " belongs to the token \"" +
                          std::string(spec->vocabulary.token(token.id)) + "\" of the vocabulary");
    }
    spec->added.push_back(std::move(token));
  }
  return {};
}

// The ids of tokenizer_config.json's special tokens; each is a string or an object with `content`.
Status parse_config(std::string_view text, const std::string& source, TokenizerSpec* spec) {
  SUB8_ASSIGN_OR_RETURN(const json::value document, parse_json(text, source));
  const JsonRef root(document, source);
  const auto find = [&](const char* key, std::optional<int32_t>* out) -> Status {
    const auto found = root.find(key);
    if (!found) return {};
    std::string content;
    if (found->is_object()) {
      SUB8_ASSIGN_OR_RETURN(const JsonRef inner, found->at("content"));
      SUB8_ASSIGN_OR_RETURN(content, inner.as_string());
    } else {
      SUB8_ASSIGN_OR_RETURN(content, found->as_string());
    }
    int32_t id = spec->vocabulary.find(content);
    for (const AddedToken& token : spec->added) {
      if (token.content == content) id = token.id;
    }
    // A name that the tokenizer does not have is common (an unk_token that is never used).
    if (id != kNoToken) *out = id;
    return {};
  };
  SUB8_RETURN_IF_ERROR(find("bos_token", &spec->special_ids.bos));
  SUB8_RETURN_IF_ERROR(find("eos_token", &spec->special_ids.eos));
  SUB8_RETURN_IF_ERROR(find("unk_token", &spec->special_ids.unk));
  return find("pad_token", &spec->special_ids.pad);
}

}  // namespace

Result<std::unique_ptr<Tokenizer>> Tokenizer::from_json(std::string_view tokenizer_json,
                                                        std::string_view source,
                                                        std::string_view config_json) {
  TokenizerSpec spec;
  spec.source = std::string(source);
  {
    SUB8_ASSIGN_OR_RETURN(const json::value document, parse_json(tokenizer_json, source));
    SUB8_RETURN_IF_ERROR(check_no_duplicate_keys(tokenizer_json, source));
    const JsonRef root(document, spec.source);
    SUB8_ASSIGN_OR_RETURN(const JsonRef model, root.at("model"));
    SUB8_RETURN_IF_ERROR(parse_model(model, &spec));
    if (const auto added = root.find("added_tokens")) {
      SUB8_RETURN_IF_ERROR(parse_added_tokens(*added, &spec));
    }
    spec.normalizer = member(root, "normalizer");
    spec.pre_tokenizer = member(root, "pre_tokenizer");
    spec.post_processor = member(root, "post_processor");
    spec.decoder = member(root, "decoder");
  }
  if (spec.options.unk_id != kNoToken) spec.special_ids.unk = spec.options.unk_id;
  if (!config_json.empty()) {
    const std::filesystem::path beside = spec.source;
    SUB8_RETURN_IF_ERROR(parse_config(
        config_json, (beside.parent_path() / "tokenizer_config.json").string(), &spec));
  }
  return TokenizerSpec::build(std::move(spec));
}

}  // namespace sub8
