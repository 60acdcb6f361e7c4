// Makes a TokenizerSpec of the vocabulary inside a GGUF file. GGUF names a pre-tokenizer instead of
// describing it; the table below says what the names stand for in the models' own tokenizer.json.
#include <algorithm>
#include <cmath>

#include "text/split_pattern.h"
#include "text/tokenizer_spec.h"
#include "text/utf8.h"

namespace sub8 {
namespace json = boost::json;
namespace {

constexpr int32_t kTypeUnknown = 2;
constexpr int32_t kTypeControl = 3;
constexpr int32_t kTypeUserDefined = 4;
constexpr int32_t kTypeUnused = 5;
constexpr int32_t kTypeByte = 6;
constexpr std::string_view kSpaceMark = "\xe2\x96\x81";

// DeepSeek's first tokenizers list their letters, punctuation and CJK ranges one by one.
constexpr std::string_view kDeepseekWord =
    R"(\s?[A-Za-z)"
    R"(\x{b5}\x{c0}-\x{d6}\x{d8}-\x{f6}\x{f8}-\x{1ba}\x{1bc}-\x{1bf}\x{1c4}-\x{293}\x{295}-)"
    R"(\x{2af}\x{370}-\x{373}\x{376}\x{377}\x{37b}-\x{37d}\x{37f}\x{386}\x{388}-\x{38a}\x{38c})"
    R"(\x{38e}-\x{3a1}\x{3a3}-\x{3f5}\x{3f7}-\x{481}\x{48a}-\x{52f}\x{531}-\x{556}\x{10a0}-)"
    R"(\x{10c5}\x{13a0}-\x{13f5}\x{13f8}-\x{13fd}\x{1c90}-\x{1cba}\x{1cbd}-\x{1cbf}\x{1d00}-)"
    R"(\x{1d2b}\x{1d6b}-\x{1d77}\x{1d79}-\x{1d9a}\x{1e00}-\x{1f15}\x{1f18}-\x{1f1d}\x{1f20}-)"
    R"(\x{1f45}\x{1f48}-\x{1f4d}\x{1f50}-\x{1f57}\x{1f59}\x{1f5b}\x{1f5d}\x{1f5f}-\x{1f7d})"
    R"(\x{1f80}-\x{1fb4}\x{1fb6}-\x{1fbc}\x{1fbe}\x{1fc2}-\x{1fc4}\x{1fc6}-\x{1fcc}\x{1fd0}-)"
    R"(\x{1fd3}\x{1fd6}-\x{1fdb}\x{1fe0}-\x{1fec}\x{1ff2}-\x{1ff4}\x{1ff6}-\x{1ffc}\x{2102})"
    R"(\x{2107}\x{210a}-\x{2113}\x{2115}\x{2119}-\x{211d}\x{2124}\x{2126}\x{2128}\x{212a}-)"
    R"(\x{212d}\x{212f}-\x{2134}\x{2139}\x{213c}-\x{213f}\x{2145}-\x{2149}\x{214e}\x{2183})"
    R"(\x{2184}\x{2c00}-\x{2c7b}\x{2c7e}-\x{2ce4}\x{2ceb}-\x{2cee}\x{2cf2}\x{2cf3}\x{a640}-)"
    R"(\x{a66d}\x{a680}-\x{a69b}\x{a722}-\x{a76f}\x{a771}-\x{a787}\x{a78b}-\x{a78e}\x{ab70}-)"
    R"(\x{abbf}\x{fb00}-\x{fb06}\x{fb13}-\x{fb17}\x{ff21}-\x{ff3a}\x{ff41}-\x{ff5a}\x{10400}-)"
    R"(\x{1044f}\x{104b0}-\x{104d3}\x{104d8}-\x{104fb}\x{10c80}-\x{10cb2}\x{10cc0}-\x{10cf2})"
    R"(\x{118a0}-\x{118df}\x{1e900}-\x{1e943})"
    R"(]+)";
constexpr std::string_view kDeepseekPunctuation =
    R"(\s?[!-/:-~)"
    R"(\x{ff01}-\x{ff0f}\x{ff1a}-\x{ff5e}\x{2018}-\x{201f}\x{3000}-\x{3002})"
    R"(]+)";
constexpr std::string_view kDeepseekCjk = R"([)"
                                          R"(\x{4e00}-\x{9fa5}\x{800}-\x{4e00}\x{ac00}-\x{d7ff})"
                                          R"(]+)";
constexpr std::string_view kDeepseek3Cjk =
    R"([\x{4e00}-\x{9fa5}\x{3040}-\x{309f}\x{30a0}-\x{30ff}]+)";
constexpr std::string_view kDeepseek3Main =
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// How a byte-level model cuts its text: isolating splits, one after the other.
struct PreType {
  std::vector<std::string_view> names;
  std::vector<std::string_view> splits;
  bool digits = false;  // before the splits: every digit alone
  bool nfc = false;     // the model's own tokenizer normalises to NFC
  bool ignore_merges = false;
  bool add_bos = false;  // unless the file says otherwise
};

const std::vector<PreType>& pre_types() {
  const auto regex = [](SplitPattern pattern) { return split_pattern_regex(pattern); };
  static const std::vector<PreType> types = {
      {{"gpt-2", "phi-2", "mpt", "olmo", "jais", "gigachat", "mellum", "exaone4"},
       {regex(SplitPattern::kGpt2)}},
      {{"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"},
       {regex(SplitPattern::kGpt2)},
       true},
      {{"llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"},
       {regex(SplitPattern::kLlama3)},
       false,
       false,
       true,
       true},
      {{"dbrx", "smaug-bpe", "chatglm-bpe"}, {regex(SplitPattern::kLlama3)}},
      {{"glm4"}, {regex(SplitPattern::kLlama3)}, false, false, true},
      {{"qwen2", "deepseek-r1-qwen", "megrez"}, {regex(SplitPattern::kQwen2)}, false, true},
      {{"qwen35"}, {regex(SplitPattern::kQwen35)}, false, true},
      {{"gpt-4o", "llama4"}, {regex(SplitPattern::kO200k)}},
      {{"tekken"}, {regex(SplitPattern::kTekken)}, false, false, true, true},
      {{"deepseek-llm"},
       {"[\r\n]", kDeepseekWord, kDeepseekPunctuation, R"(\s+$)", kDeepseekCjk, R"(\p{N}+)"}},
      {{"deepseek-coder"}, {"[\r\n]", R"(\s?\p{L}+)", R"(\s?\p{P}+)", kDeepseekCjk, R"(\p{N})"}},
      {{"deepseek-v3"}, {R"(\p{N}{1,3})", kDeepseek3Cjk, kDeepseek3Main}},
      {{"falcon"}, {R"([\p{P}\$\+<=>\^~\|`]+)", regex(SplitPattern::kGpt2), R"([0-9][0-9][0-9])"}},
      {{"default"},
       {R"([\p{P}\$\+<=>\^~\|]+)", regex(SplitPattern::kGpt2), R"(\p{N}+)", R"([0-9][0-9][0-9])"}},
  };
  return types;
}

json::object typed(std::string_view type) {
  return json::object{{"type", json::string_view(type.data(), type.size())}};
}

json::object replace(std::string_view from, std::string_view to) {
  json::object out = typed("Replace");
  out["pattern"] = json::object{{"String", json::string_view(from.data(), from.size())}};
  out["content"] = json::string_view(to.data(), to.size());
  return out;
}

json::object byte_level(bool use_regex) {
  json::object out = typed("ByteLevel");
  out["add_prefix_space"] = false;
  out["trim_offsets"] = true;
  out["use_regex"] = use_regex;
  return out;
}

json::object isolate(std::string_view regex) {
  json::object out = typed("Split");
  out["pattern"] = json::object{{"Regex", json::string_view(regex.data(), regex.size())}};
  out["behavior"] = "Isolated";
  out["invert"] = false;
  return out;
}

json::object sequence(std::string_view key, json::array parts) {
  json::object out = typed("Sequence");
  out[json::string_view(key.data(), key.size())] = std::move(parts);
  return out;
}

class Builder {
 public:
  explicit Builder(const GgufVocab& vocab) : vocab_(vocab) { spec_.source = vocab.source; }

  Result<TokenizerSpec> run() {
    SUB8_RETURN_IF_ERROR(check());
    SUB8_RETURN_IF_ERROR(fill_vocabulary());
    if (vocab_.model == "gpt2") {
      SUB8_RETURN_IF_ERROR(byte_level_model());
    } else if (vocab_.model == "llama") {
      SUB8_RETURN_IF_ERROR(sentencepiece_model());
    } else if (vocab_.model == "gemma4") {
      SUB8_RETURN_IF_ERROR(gemma4_model());
    } else {
      return unsupported(at("model") + ": the tokenizer \"" + printable(vocab_.model) +
                         "\" is not supported (supported: gpt2, llama, gemma4)");
    }
    add_post_processor();
    return std::move(spec_);
  }

 private:
  std::string at(std::string_view key) const {
    return vocab_.source + ": tokenizer.ggml." + std::string(key);
  }
  static std::string printable(std::string_view bytes) {
    std::string out;
    append_lossy_utf8(bytes.substr(0, 80), &out);
    return out;
  }

  Status check() {
    const size_t count = vocab_.tokens.size();
    if (count == 0 || count > static_cast<size_t>(Tokenizer::kMaxVocabulary)) {
      return corrupt_data(at("tokens") + ": expected 1 to " +
                          std::to_string(Tokenizer::kMaxVocabulary) + " tokens, got " +
                          std::to_string(count));
    }
    if (!vocab_.scores.empty() && vocab_.scores.size() != count) {
      return corrupt_data(at("scores") + ": expected " + std::to_string(count) + ", got " +
                          std::to_string(vocab_.scores.size()));
    }
    if (!vocab_.token_types.empty() && vocab_.token_types.size() != count) {
      return corrupt_data(at("token_type") + ": expected " + std::to_string(count) + ", got " +
                          std::to_string(vocab_.token_types.size()));
    }
    const auto special = [&](const std::optional<int32_t>& id, const char* key,
                             std::optional<int32_t>* out) -> Status {
      if (!id) return {};
      if (*id < 0 || static_cast<size_t>(*id) >= count) {
        return corrupt_data(at(key) + ": expected an id below " + std::to_string(count) + ", got " +
                            std::to_string(*id));
      }
      *out = id;
      return {};
    };
    SpecialIds& ids = spec_.special_ids;
    SUB8_RETURN_IF_ERROR(special(vocab_.bos_token_id, "bos_token_id", &ids.bos));
    SUB8_RETURN_IF_ERROR(special(vocab_.eos_token_id, "eos_token_id", &ids.eos));
    SUB8_RETURN_IF_ERROR(special(vocab_.unknown_token_id, "unknown_token_id", &ids.unk));
    return special(vocab_.padding_token_id, "padding_token_id", &ids.pad);
  }

  int32_t type(size_t id) const { return vocab_.token_types.empty() ? 1 : vocab_.token_types[id]; }

  Status fill_vocabulary() {
    spec_.vocabulary = Vocabulary(vocab_.tokens.size());
    for (size_t i = 0; i < vocab_.tokens.size(); ++i) {
      const auto id = static_cast<int32_t>(i);
      const std::string& token = vocab_.tokens[i];
      const auto where = [&] { return at("tokens") + "[" + std::to_string(i) + "]"; };
      if (const size_t bad = find_invalid_utf8(token); bad != std::string_view::npos) {
        return corrupt_data(where() + ": not valid UTF-8 at byte " + std::to_string(bad));
      }
      if (token.empty()) continue;  // an id without token
      if (!spec_.vocabulary.add(id, token)) {
        return corrupt_data(where() + ": \"" + printable(token) + "\" is also the token " +
                            std::to_string(spec_.vocabulary.find(token)));
      }
      const int32_t kind = type(i);
      if (kind != kTypeControl && kind != kTypeUserDefined && kind != kTypeUnknown) continue;
      AddedToken added;
      added.id = id;
      added.content = token;
      added.special = kind != kTypeUserDefined;
      spec_.added.push_back(std::move(added));
    }
    return {};
  }

  Status fill_merges() {
    if (vocab_.merges.empty()) return corrupt_data(at("merges") + ": is missing or empty");
    spec_.merges.reserve(vocab_.merges.size());
    for (size_t i = 0; i < vocab_.merges.size(); ++i) {
      const std::string& text = vocab_.merges[i];
      const std::string where = at("merges") + "[" + std::to_string(i) + "]";
      const size_t space = text.find(' ', 1);
      if (space == std::string::npos || find_invalid_utf8(text) != std::string_view::npos) {
        return corrupt_data(where + ": expected two tokens with a space between");
      }
      SUB8_ASSIGN_OR_RETURN(const BpeModel::Merge merge,
                            resolve_merge(spec_.vocabulary, std::string_view(text).substr(0, space),
                                          std::string_view(text).substr(space + 1), where));
      spec_.merges.push_back(merge);
    }
    return {};
  }

  Status byte_level_model() {
    const PreType* pre = nullptr;
    std::string known;
    for (const PreType& candidate : pre_types()) {
      for (const std::string_view name : candidate.names) {
        if (name == vocab_.pre) pre = &candidate;
        known += (known.empty() ? "" : ", ") + std::string(name);
      }
    }
    if (vocab_.pre.empty()) {
      return unsupported(at("pre") +
                         " is missing, so how the text is cut is not known; convert the "
                         "model again with a current converter, or set it to one of: " +
                         known);
    }
    if (pre == nullptr) {
      return unsupported(at("pre") + ": the pre-tokenizer \"" + printable(vocab_.pre) +
                         "\" is not supported (supported: " + known + ")");
    }
    SUB8_RETURN_IF_ERROR(fill_merges());
    spec_.options.ignore_merges = pre->ignore_merges;
    if (pre->nfc) spec_.normalizer = typed("NFC");
    json::array steps;
    if (pre->digits) {
      json::object digits = typed("Digits");
      digits["individual_digits"] = true;
      steps.push_back(std::move(digits));
    }
    for (const std::string_view split : pre->splits) steps.push_back(isolate(split));
    steps.push_back(byte_level(false));
    spec_.pre_tokenizer = sequence("pretokenizers", std::move(steps));
    spec_.decoder = byte_level(true);
    add_bos_ = pre->add_bos;
    return {};
  }

  // The decoder of vocabularies that mark spaces and spell bytes as <0xXX>.
  void add_marked_decoder(bool strip) {
    json::array steps = {replace(kSpaceMark, " "), typed("ByteFallback"), typed("Fuse")};
    if (strip) {
      json::object part = typed("Strip");
      part["content"] = " ";
      part["start"] = 1;
      part["stop"] = 0;
      steps.push_back(std::move(part));
    }
    spec_.decoder = sequence("decoders", std::move(steps));
  }

  void use_fallback_and_unknown() {
    spec_.options.byte_fallback = true;
    spec_.options.fuse_unk = true;
    const std::optional<int32_t> unk = spec_.special_ids.unk;
    if (!unk || !spec_.vocabulary.has(*unk)) return;
    spec_.options.unk_id = *unk;
    spec_.unk_token = std::string(spec_.vocabulary.token(*unk));
  }

  Status sentencepiece_model() {
    if (vocab_.scores.empty()) return corrupt_data(at("scores") + ": is missing");
    SUB8_RETURN_IF_ERROR(merges_from_scores());
    use_fallback_and_unknown();
    const bool prefix = vocab_.add_space_prefix.value_or(true);
    json::array steps;
    if (prefix) {
      json::object prepend = typed("Prepend");
      prepend["prepend"] = json::string_view(kSpaceMark.data(), kSpaceMark.size());
      steps.push_back(std::move(prepend));
    }
    steps.push_back(replace(" ", kSpaceMark));
    spec_.normalizer = sequence("normalizers", std::move(steps));
    add_marked_decoder(prefix);
    add_bos_ = true;
    return {};
  }

  // SentencePiece joins the pair whose result has the highest score. As ranked merges: every way to
  // cut a token into two tokens, best result first; cuts of one result by the ids of their parts.
  Status merges_from_scores() {
    struct Candidate {
      float score;
      BpeModel::Merge merge;
    };
    std::vector<Candidate> candidates;
    const Vocabulary& vocabulary = spec_.vocabulary;
    const auto ordinary = [&](int32_t id) {
      if (id == kNoToken) return false;
      const int32_t kind = type(static_cast<size_t>(id));
      return kind != kTypeControl && kind != kTypeUnknown && kind != kTypeByte &&
             kind != kTypeUnused;
    };
    for (size_t i = 0; i < vocab_.tokens.size(); ++i) {
      const auto id = static_cast<int32_t>(i);
      if (!std::isfinite(vocab_.scores[i])) {
        return corrupt_data(at("scores") + "[" + std::to_string(i) + "]: not a finite number");
      }
      if (!vocabulary.has(id) || !ordinary(id)) continue;
      const std::string_view token = vocabulary.token(id);
      // Tokens are short; a hostile one must not cost quadratic time.
      if (token.size() > 4096) continue;
      for (size_t cut = 0; cut < token.size();) {
        next_scalar(token, &cut);
        if (cut == token.size()) break;
        const int32_t left = vocabulary.find(token.substr(0, cut));
        if (!ordinary(left)) continue;
        const int32_t right = vocabulary.find(token.substr(cut));
        if (ordinary(right)) candidates.push_back({vocab_.scores[i], {left, right}});
      }
    }
    std::stable_sort(candidates.begin(), candidates.end(),
                     [](const Candidate& a, const Candidate& b) {
                       if (a.score != b.score) return a.score > b.score;
                       if (a.merge.left != b.merge.left) return a.merge.left < b.merge.left;
                       return a.merge.right < b.merge.right;
                     });
    for (const Candidate& candidate : candidates) spec_.merges.push_back(candidate.merge);
    return {};
  }

  Status gemma4_model() {
    SUB8_RETURN_IF_ERROR(fill_merges());
    use_fallback_and_unknown();
    spec_.normalizer = replace(" ", kSpaceMark);
    // Line ends merge with nothing else; cutting there keeps the pieces short.
    spec_.pre_tokenizer = isolate("\n+");
    add_marked_decoder(vocab_.add_space_prefix.value_or(false));
    return {};
  }

  void add_post_processor() {
    const bool bos = vocab_.add_bos_token.value_or(add_bos_) && spec_.special_ids.bos.has_value();
    const bool eos = vocab_.add_eos_token.value_or(false) && spec_.special_ids.eos.has_value();
    if (!bos && !eos) return;
    json::object tokens;
    const auto part = [&](std::string_view kind, const std::string& id) {
      json::object inner{{"id", id}, {"type_id", 0}};
      return json::object{{json::string_view(kind.data(), kind.size()), std::move(inner)}};
    };
    const auto special = [&](int32_t id) {
      const std::string name = vocab_.tokens[static_cast<size_t>(id)];
      tokens[name] = json::object{
          {"id", name}, {"ids", json::array{id}}, {"tokens", json::array{json::string(name)}}};
      return part("SpecialToken", name);
    };
    json::array single;
    json::array pair;
    if (bos) single.push_back(special(*spec_.special_ids.bos));
    single.push_back(part("Sequence", "A"));
    if (eos) single.push_back(special(*spec_.special_ids.eos));
    pair = single;
    for (json::value& value : json::array(single)) {
      json::object copy = value.get_object();
      json::object& inner = copy.begin()->value().get_object();
      if (copy.begin()->key() == "Sequence") inner["id"] = "B";
      inner["type_id"] = 1;
      pair.push_back(std::move(copy));
    }
    json::object out = typed("TemplateProcessing");
    out["single"] = std::move(single);
    out["pair"] = std::move(pair);
    out["special_tokens"] = std::move(tokens);
    spec_.post_processor = std::move(out);
  }

  const GgufVocab& vocab_;
  TokenizerSpec spec_;
  bool add_bos_ = false;
};

}  // namespace

Result<std::unique_ptr<Tokenizer>> Tokenizer::from_gguf(const GgufVocab& vocab) {
  SUB8_ASSIGN_OR_RETURN(TokenizerSpec spec, Builder(vocab).run());
  return TokenizerSpec::build(std::move(spec));
}

}  // namespace sub8
