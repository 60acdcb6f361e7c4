#include "text/tokenizer.h"

#include <algorithm>
#include <map>
#include <mutex>

#include "text/normalizer.h"
#include "text/pre_tokenizer.h"
#include "text/tokenizer_spec.h"
#include "text/utf8.h"

namespace sub8 {
namespace json = boost::json;
namespace {

// The single-sequence template of one TemplateProcessing: kNoToken stands for the text.
using Template = std::vector<int32_t>;

Result<Template> parse_template(const JsonRef& json, int32_t id_limit) {
  SUB8_ASSIGN_OR_RETURN(const JsonRef single, json.at("single"));
  SUB8_ASSIGN_OR_RETURN(const std::vector<JsonRef> parts, single.elements());
  Template out;
  for (const JsonRef& part : parts) {
    if (const auto sequence = part.find("Sequence")) {
      SUB8_ASSIGN_OR_RETURN(const std::string id, sequence->get_string("id", ""));
      if (id != "A") return unsupported(part.where() + ": only the sequence A can be in `single`");
      out.push_back(kNoToken);
      continue;
    }
    SUB8_ASSIGN_OR_RETURN(const JsonRef special, part.at("SpecialToken"));
    SUB8_ASSIGN_OR_RETURN(const JsonRef id, special.at("id"));
    SUB8_ASSIGN_OR_RETURN(const std::string name, id.as_string());
    SUB8_ASSIGN_OR_RETURN(const JsonRef table, json.at("special_tokens"));
    SUB8_ASSIGN_OR_RETURN(const JsonRef entry, table.at(name));
    SUB8_ASSIGN_OR_RETURN(const JsonRef ids, entry.at("ids"));
    SUB8_ASSIGN_OR_RETURN(const std::vector<JsonRef> list, ids.elements());
    for (const JsonRef& element : list) {
      SUB8_ASSIGN_OR_RETURN(const int64_t value, element.as_int(0, id_limit - 1));
      out.push_back(static_cast<int32_t>(value));
    }
  }
  if (std::count(out.begin(), out.end(), kNoToken) != 1) {
    return corrupt_data(single.where() + ": expected the sequence A exactly once");
  }
  return out;
}

Status parse_post_processor(const JsonRef& json, int32_t id_limit, std::vector<Template>* out) {
  SUB8_ASSIGN_OR_RETURN(const JsonRef type_json, json.at("type"));
  SUB8_ASSIGN_OR_RETURN(const std::string type, type_json.as_string());
  if (type == "ByteLevel") return {};  // changes offsets only
  if (type == "TemplateProcessing") {
    SUB8_ASSIGN_OR_RETURN(Template parsed, parse_template(json, id_limit));
    out->push_back(std::move(parsed));
    return {};
  }
  if (type == "Sequence") {
    SUB8_ASSIGN_OR_RETURN(const JsonRef list, json.at("processors"));
    SUB8_ASSIGN_OR_RETURN(const std::vector<JsonRef> parts, list.elements());
    for (const JsonRef& part : parts) {
      SUB8_RETURN_IF_ERROR(parse_post_processor(part, id_limit, out));
    }
    return {};
  }
  return unsupported(json.where() + ": the post-processor \"" + type +
                     "\" is not supported (supported: TemplateProcessing, ByteLevel, Sequence)");
}

}  // namespace

struct Tokenizer::Impl {
  // Working memory of one encode call; kept for the next one.
  struct Scratch {
    BpeScratch bpe;
    PreTokens tokens;
    std::vector<TextPart> raw_parts;
    std::vector<TextPart> parts;
  };

  explicit Impl(TokenizerSpec given) : spec(std::move(given)), model(Vocabulary(), {}) {}

  std::unique_ptr<Scratch> take_scratch() {
    const std::lock_guard<std::mutex> lock(mutex);
    if (idle.empty()) return std::make_unique<Scratch>();
    std::unique_ptr<Scratch> out = std::move(idle.back());
    idle.pop_back();
    return out;
  }
  void give_scratch(std::unique_ptr<Scratch> scratch) {
    // One huge text must not hold its buffers for ever.
    if (scratch->bpe.ids.capacity() > (size_t{1} << 20) ||
        scratch->bpe.symbols.capacity() > (size_t{1} << 20)) {
      return;
    }
    const std::lock_guard<std::mutex> lock(mutex);
    if (idle.size() < 16) idle.push_back(std::move(scratch));
  }

  Status prepare();
  Status encode_raw(std::string_view text, bool at_start, bool parse_special, Scratch* scratch,
                    std::vector<int32_t>* ids) const;
  Status encode_plain(std::string text, bool at_start, Scratch* scratch,
                      std::vector<int32_t>* ids) const;

  TokenizerSpec spec;  // vocabulary and merges are moved into the model
  BpeModel model;
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  Decoder decoder;
  std::vector<Template> templates;
  std::map<int32_t, const AddedToken*> added_by_id;
  std::map<int32_t, std::string> decoder_inputs;  // of added tokens
  std::map<std::string, int32_t, std::less<>> added_by_content;
  AddedTokenMatcher raw_matcher;
  AddedTokenMatcher normalized_matcher;
  int32_t vocab_size = 0;
  std::mutex mutex;
  std::vector<std::unique_ptr<Scratch>> idle;
};

Tokenizer::Tokenizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::~Tokenizer() = default;

Status Tokenizer::Impl::prepare() {
  const auto ref = [&](const json::value& value, const char* path) {
    return JsonRef(value, spec.source, path);
  };
  if (!spec.normalizer.is_null()) {
    SUB8_ASSIGN_OR_RETURN(normalizer, Normalizer::parse(ref(spec.normalizer, "$.normalizer")));
  }
  if (!spec.pre_tokenizer.is_null()) {
    SUB8_ASSIGN_OR_RETURN(pre_tokenizer,
                          PreTokenizer::parse(ref(spec.pre_tokenizer, "$.pre_tokenizer")));
  }
  if (!spec.decoder.is_null()) {
    SUB8_ASSIGN_OR_RETURN(decoder, Decoder::parse(ref(spec.decoder, "$.decoder")));
  }
  spec.options.byte_level = pre_tokenizer.byte_level();
  model = BpeModel(std::move(spec.vocabulary), spec.options);
  for (size_t i = 0; i < spec.merges.size(); ++i) {
    if (Status status = model.add_merge(spec.merges[i].left, spec.merges[i].right); !status.ok()) {
      return status.error().within(spec.source + ": $.model.merges[" + std::to_string(i) + "]");
    }
  }
  model.finish();
  spec.merges = {};

  vocab_size = static_cast<int32_t>(model.vocabulary().size());
  // The reference looks for special tokens first when two normalise to the same string.
  std::vector<const AddedToken*> order;
  for (const bool special : {true, false}) {
    for (const AddedToken& token : spec.added) {
      if (token.special == special) order.push_back(&token);
    }
  }
  for (const AddedToken* token : order) {
    vocab_size = std::max(vocab_size, token->id + 1);
    added_by_id[token->id] = token;
    added_by_content[token->content] = token->id;
    if (!token->normalized) {
      decoder_inputs[token->id] = token->content;
      raw_matcher.add(token->content, token);
      continue;
    }
    bool cut = false;
    SUB8_ASSIGN_OR_RETURN(std::string content, normalizer.apply(token->content, &cut));
    normalized_matcher.add(content, token);
    decoder_inputs[token->id] = std::move(content);
  }
  if (!spec.post_processor.is_null()) {
    SUB8_RETURN_IF_ERROR(
        parse_post_processor(ref(spec.post_processor, "$.post_processor"), vocab_size, &templates));
  }
  return {};
}

Result<std::unique_ptr<Tokenizer>> TokenizerSpec::build(TokenizerSpec spec) {
  auto impl = std::make_unique<Tokenizer::Impl>(std::move(spec));
  SUB8_RETURN_IF_ERROR(impl->prepare());
  return std::unique_ptr<Tokenizer>(new Tokenizer(std::move(impl)));
}

Result<BpeModel::Merge> resolve_merge(const Vocabulary& vocabulary, std::string_view left,
                                      std::string_view right, const std::string& where) {
  const BpeModel::Merge merge = {vocabulary.find(left), vocabulary.find(right)};
  if (merge.left != kNoToken && merge.right != kNoToken) return merge;
  return corrupt_data(where + ": the merge names \"" +
                      std::string(merge.left == kNoToken ? left : right) +
                      "\", which is not in the vocabulary");
}

Result<std::vector<int32_t>> Tokenizer::encode(std::string_view text,
                                               const EncodeOptions& options) const {
  if (text.size() > kMaxTextBytes) {
    return resource_exhausted("the text has " + std::to_string(text.size()) + " bytes; at most " +
                              std::to_string(kMaxTextBytes) + " can be tokenized at once");
  }
  SUB8_RETURN_IF_ERROR(check_utf8(text, "text"));
  std::unique_ptr<Impl::Scratch> scratch = impl_->take_scratch();
  std::vector<int32_t> ids;
  ids.reserve(text.size() / 3 + 8);
  impl_->raw_matcher.split(text, options.parse_special, &scratch->raw_parts);
  for (const TextPart& part : scratch->raw_parts) {
    if (part.token != nullptr) {
      ids.push_back(part.token->id);
      continue;
    }
    SUB8_RETURN_IF_ERROR(impl_->encode_raw(text.substr(part.begin, part.end - part.begin),
                                           part.begin == 0, options.parse_special, scratch.get(),
                                           &ids));
  }
  impl_->give_scratch(std::move(scratch));
  if (!options.add_special_tokens) return ids;
  for (const Template& pieces : impl_->templates) {
    const auto place = std::find(pieces.begin(), pieces.end(), kNoToken);
    ids.insert(ids.begin(), pieces.begin(), place);
    ids.insert(ids.end(), place + 1, pieces.end());
  }
  return ids;
}

// Text between the tokens that are looked for in the raw text.
Status Tokenizer::Impl::encode_raw(std::string_view text, bool at_start, bool parse_special,
                                   Scratch* scratch, std::vector<int32_t>* ids) const {
  bool cut_front = false;
  std::string normalized;
  if (normalizer.empty()) {
    normalized = text;
  } else {
    SUB8_ASSIGN_OR_RETURN(normalized, normalizer.apply(text, &cut_front));
  }
  at_start = at_start && !cut_front;
  if (normalized_matcher.empty()) {
    return encode_plain(std::move(normalized), at_start, scratch, ids);
  }
  normalized_matcher.split(normalized, parse_special, &scratch->parts);
  for (const TextPart& part : scratch->parts) {
    if (part.token != nullptr) {
      ids->push_back(part.token->id);
    } else {
      SUB8_RETURN_IF_ERROR(encode_plain(normalized.substr(part.begin, part.end - part.begin),
                                        at_start && part.begin == 0, scratch, ids));
    }
  }
  return {};
}

// Normalised text without added tokens.
Status Tokenizer::Impl::encode_plain(std::string text, bool at_start, Scratch* scratch,
                                     std::vector<int32_t>* ids) const {
  PreTokens& tokens = scratch->tokens;
  tokens.text = std::move(text);
  tokens.at_start = at_start;
  SUB8_RETURN_IF_ERROR(pre_tokenizer.apply(&tokens));
  const std::string_view whole(tokens.text);
  for (const Span& piece : tokens.pieces) {
    model.encode(whole.substr(piece.begin, piece.end - piece.begin), &scratch->bpe, ids);
  }
  return {};
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special) const {
  std::string out;
  Decoder::State state;
  for (const int32_t id : ids) {
    if (skip_special && is_special(id)) continue;
    if (const std::optional<std::string_view> text = decoder_input(id)) {
      impl_->decoder.push(*text, &state, &out);
    }
  }
  impl_->decoder.finish(&state, &out);
  return out;
}

int32_t Tokenizer::vocab_size() const { return impl_->vocab_size; }

std::optional<std::string> Tokenizer::token(int32_t id) const {
  if (const auto added = impl_->added_by_id.find(id); added != impl_->added_by_id.end()) {
    return added->second->content;
  }
  if (!impl_->model.vocabulary().has(id)) return std::nullopt;
  return std::string(impl_->model.vocabulary().token(id));
}

std::optional<std::string_view> Tokenizer::decoder_input(int32_t id) const {
  const auto added = impl_->decoder_inputs.find(id);
  if (added != impl_->decoder_inputs.end()) return added->second;
  if (!impl_->model.vocabulary().has(id)) return std::nullopt;
  return impl_->model.vocabulary().token(id);
}

std::optional<int32_t> Tokenizer::token_id(std::string_view token) const {
  if (const auto added = impl_->added_by_content.find(token);
      added != impl_->added_by_content.end()) {
    return added->second;
  }
  const int32_t id = impl_->model.vocabulary().find(token);
  return id == kNoToken ? std::nullopt : std::optional<int32_t>(id);
}

std::string Tokenizer::token_bytes(int32_t id) const {
  const std::optional<std::string_view> text = decoder_input(id);
  return text ? impl_->decoder.token_bytes(*text) : std::string();
}

bool Tokenizer::is_special(int32_t id) const {
  const auto added = impl_->added_by_id.find(id);
  return added != impl_->added_by_id.end() && added->second->special;
}

bool Tokenizer::is_added(int32_t id) const { return impl_->added_by_id.contains(id); }
const std::vector<AddedToken>& Tokenizer::added_tokens() const { return impl_->spec.added; }
const SpecialIds& Tokenizer::special_ids() const { return impl_->spec.special_ids; }
const Decoder& Tokenizer::decoder() const { return impl_->decoder; }

std::vector<int32_t> Tokenizer::prefix_ids() const {
  std::vector<int32_t> out;
  for (const Template& pieces : impl_->templates) {
    out.insert(out.begin(), pieces.begin(), std::find(pieces.begin(), pieces.end(), kNoToken));
  }
  return out;
}

std::string Tokenizer::to_json() const {
  const auto quote = [](std::string_view text) {
    return json::serialize(json::value(json::string_view(text.data(), text.size())));
  };
  const auto flag = [](bool value) { return value ? "true" : "false"; };
  const TokenizerSpec& spec = impl_->spec;
  std::string out = "{\n \"version\": \"1.0\",\n \"truncation\": null,\n \"padding\": null,\n";
  out += " \"added_tokens\": [";
  std::vector<const AddedToken*> added;
  for (const AddedToken& token : spec.added) added.push_back(&token);
  std::sort(added.begin(), added.end(),
            [](const AddedToken* a, const AddedToken* b) { return a->id < b->id; });
  const char* separator = "\n  ";
  for (const AddedToken* token : added) {
    out += separator;
    out += "{\"id\": " + std::to_string(token->id) + ", \"content\": " + quote(token->content) +
           ", \"single_word\": " + flag(token->single_word) +
           ", \"lstrip\": " + flag(token->lstrip) + ", \"rstrip\": " + flag(token->rstrip) +
           ", \"normalized\": " + flag(token->normalized) +
           ", \"special\": " + flag(token->special) + "}";
    separator = ",\n  ";
  }
  out += "\n ],\n \"normalizer\": " + json::serialize(spec.normalizer);
  out += ",\n \"pre_tokenizer\": " + json::serialize(spec.pre_tokenizer);
  out += ",\n \"post_processor\": " + json::serialize(spec.post_processor);
  out += ",\n \"decoder\": " + json::serialize(spec.decoder);
  out += ",\n \"model\": {\n  \"type\": \"BPE\",\n  \"dropout\": null,\n  \"unk_token\": ";
  out += spec.unk_token.empty() ? "null" : quote(spec.unk_token);
  out += ",\n  \"continuing_subword_prefix\": null,\n  \"end_of_word_suffix\": null,\n";
  out += std::string("  \"fuse_unk\": ") + flag(spec.options.fuse_unk) +
         ",\n  \"byte_fallback\": " + flag(spec.options.byte_fallback) +
         ",\n  \"ignore_merges\": " + flag(spec.options.ignore_merges) + ",\n  \"vocab\": {";
  const Vocabulary& vocabulary = impl_->model.vocabulary();
  separator = "\n   ";
  for (int32_t id = 0; id < static_cast<int32_t>(vocabulary.size()); ++id) {
    if (!vocabulary.has(id)) continue;
    out += separator + quote(vocabulary.token(id)) + ": " + std::to_string(id);
    separator = ",\n   ";
  }
  out += "\n  },\n  \"merges\": [";
  separator = "\n   ";
  for (const BpeModel::Merge& merge : impl_->model.merges()) {
    out += separator;
    out += "[" + quote(vocabulary.token(merge.left)) + ", " + quote(vocabulary.token(merge.right)) +
           "]";
    separator = ",\n   ";
  }
  out += "\n  ]\n }\n}\n";
  return out;
}

}  // namespace sub8
