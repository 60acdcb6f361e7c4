#include "text/pre_tokenizer.h"

#include <algorithm>

#include "text/bpe.h"
#include "text/utf8.h"

namespace sub8 {
namespace {

// Puts together a new text from rewritten pieces.
class Rewriter {
 public:
  explicit Rewriter(PreTokens* tokens) : tokens_(tokens) { tokens_->work.clear(); }
  std::string* text() { return &text_; }
  void end_piece() {
    if (text_.size() > begin_) tokens_->work.push_back({begin_, text_.size()});
    begin_ = text_.size();
  }
  void commit() {
    tokens_->text.swap(text_);
    tokens_->pieces.swap(tokens_->work);
  }

 private:
  PreTokens* tokens_;
  std::string text_;
  size_t begin_ = 0;
};

}  // namespace

Result<PreTokenizer> PreTokenizer::parse(const JsonRef& json) {
  PreTokenizer out;
  SUB8_RETURN_IF_ERROR(out.append(json));
  return out;
}

Result<PreTokenizer::Behavior> PreTokenizer::parse_behavior(const JsonRef& json,
                                                            std::string_view fallback) {
  SUB8_ASSIGN_OR_RETURN(const std::string name, json.get_string("behavior", fallback));
  if (name == "Removed") return Behavior::kRemoved;
  if (name == "Isolated") return Behavior::kIsolated;
  if (name == "MergedWithPrevious") return Behavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return Behavior::kMergedWithNext;
  if (name == "Contiguous") return Behavior::kContiguous;
  return corrupt_data(json.where() +
                      ".behavior: expected Removed, Isolated, MergedWithPrevious, "
                      "MergedWithNext or Contiguous, got another name");
}

Status PreTokenizer::parse_split(const JsonRef& json, Step* step) {
  SUB8_ASSIGN_OR_RETURN(const JsonRef pattern, json.at("pattern"));
  SUB8_ASSIGN_OR_RETURN(step->pattern, TextPattern::parse(pattern));
  SUB8_ASSIGN_OR_RETURN(const JsonRef behavior, json.at("behavior"));
  SUB8_ASSIGN_OR_RETURN(step->behavior, parse_behavior(json, ""));
  SUB8_ASSIGN_OR_RETURN(step->invert, json.get_bool("invert", false));
  // The known patterns match every character, so removing what lies between the matches is the same
  // as isolating them.
  const Behavior matches_alone = step->invert ? Behavior::kRemoved : Behavior::kIsolated;
  if (step->behavior == matches_alone) {
    step->fast = find_split_pattern(step->pattern.regex_source);
  }
  return {};
}

Status PreTokenizer::parse_metaspace(const JsonRef& json, Step* step) {
  SUB8_ASSIGN_OR_RETURN(step->replacement, json.get_string("replacement", "\xe2\x96\x81"));
  if (step->replacement.empty() ||
      static_cast<size_t>(utf8_length(static_cast<unsigned char>(step->replacement[0]))) !=
          step->replacement.size()) {
    return corrupt_data(json.where() + ".replacement: expected one character");
  }
  SUB8_ASSIGN_OR_RETURN(step->split, json.get_bool("split", true));
  SUB8_ASSIGN_OR_RETURN(const bool prefix, json.get_bool("add_prefix_space", true));
  SUB8_ASSIGN_OR_RETURN(const std::string scheme,
                        json.get_string("prepend_scheme", prefix ? "always" : "never"));
  if (scheme != "always" && scheme != "first" && scheme != "never") {
    return corrupt_data(json.where() + ".prepend_scheme: expected always, first or never");
  }
  step->prepend = scheme == "always"  ? Prepend::kAlways
                  : scheme == "first" ? Prepend::kFirst
                                      : Prepend::kNever;
  return {};
}

Status PreTokenizer::append(const JsonRef& json) {
  SUB8_ASSIGN_OR_RETURN(const JsonRef type_json, json.at("type"));
  SUB8_ASSIGN_OR_RETURN(const std::string type, type_json.as_string());
  if (type == "Sequence") {
    SUB8_ASSIGN_OR_RETURN(const JsonRef list, json.at("pretokenizers"));
    SUB8_ASSIGN_OR_RETURN(const std::vector<JsonRef> parts, list.elements());
    for (const JsonRef& part : parts) SUB8_RETURN_IF_ERROR(append(part));
    return {};
  }
  Step step;
  if (type == "ByteLevel") {
    SUB8_ASSIGN_OR_RETURN(step.add_prefix_space, json.get_bool("add_prefix_space", true));
    SUB8_ASSIGN_OR_RETURN(step.use_regex, json.get_bool("use_regex", true));
  } else if (type == "Split") {
    step.kind = Kind::kSplit;
    SUB8_RETURN_IF_ERROR(parse_split(json, &step));
  } else if (type == "Digits") {
    step.kind = Kind::kDigits;
    SUB8_ASSIGN_OR_RETURN(const bool individual, json.get_bool("individual_digits", false));
    step.behavior = individual ? Behavior::kIsolated : Behavior::kContiguous;
  } else if (type == "Metaspace") {
    step.kind = Kind::kMetaspace;
    SUB8_RETURN_IF_ERROR(parse_metaspace(json, &step));
  } else if (type == "Whitespace") {
    step.kind = Kind::kWords;
    step.behavior = Behavior::kRemoved;
    step.invert = true;
  } else if (type == "WhitespaceSplit") {
    step.kind = Kind::kWhitespace;
    step.behavior = Behavior::kRemoved;
  } else if (type == "Punctuation") {
    step.kind = Kind::kPunctuation;
    SUB8_ASSIGN_OR_RETURN(step.behavior, parse_behavior(json, "Isolated"));
  } else if (type == "CharDelimiterSplit") {
    step.kind = Kind::kDelimiter;
    step.behavior = Behavior::kRemoved;
    SUB8_ASSIGN_OR_RETURN(const JsonRef delimiter, json.at("delimiter"));
    SUB8_ASSIGN_OR_RETURN(step.replacement, delimiter.as_string());
  } else if (type == "BertPreTokenizer") {
    step.kind = Kind::kWhitespace;
    step.behavior = Behavior::kRemoved;
    steps_.push_back(step);
    step.kind = Kind::kPunctuation;
    step.behavior = Behavior::kIsolated;
  } else {
    return unsupported(
        json.where() + ": the pre-tokenizer \"" + type +
        "\" is not supported (supported: Sequence, ByteLevel, Split, Digits, Metaspace, "
        "Whitespace, WhitespaceSplit, Punctuation, CharDelimiterSplit, BertPreTokenizer)");
  }
  steps_.push_back(std::move(step));
  return {};
}

Status PreTokenizer::apply(PreTokens* tokens) const {
  tokens->pieces.clear();
  if (tokens->text.empty()) return {};
  tokens->pieces.push_back({0, tokens->text.size()});
  for (size_t i = 0; i < steps_.size(); ++i) {
    SUB8_RETURN_IF_ERROR(run(steps_[i], i + 1 == steps_.size(), tokens));
  }
  return {};
}

Status PreTokenizer::run(const Step& step, bool last, PreTokens* tokens) const {
  if (step.kind == Kind::kMetaspace) {
    metaspace(step, tokens);
    return {};
  }
  if (step.kind == Kind::kByteLevel && step.add_prefix_space) prefix_spaces(tokens);
  const std::optional<SplitPattern> fast =
      step.kind == Kind::kByteLevel && step.use_regex ? SplitPattern::kGpt2 : step.fast;
  if (fast) {
    tokens->work.clear();
    for (const Span& piece : tokens->pieces) {
      append_split(*fast,
                   std::string_view(tokens->text).substr(piece.begin, piece.end - piece.begin),
                   piece.begin, &tokens->work);
    }
    tokens->pieces.swap(tokens->work);
  } else if (step.kind != Kind::kByteLevel) {
    SUB8_RETURN_IF_ERROR(split(step, tokens));
  }
  if (step.kind == Kind::kByteLevel && !last) map_bytes(tokens);
  return {};
}

Status PreTokenizer::split(const Step& step, PreTokens* tokens) {
  std::vector<Match> matches;
  tokens->work.clear();
  for (const Span& piece : tokens->pieces) {
    const std::string_view text =
        std::string_view(tokens->text).substr(piece.begin, piece.end - piece.begin);
    matches.clear();
    SUB8_RETURN_IF_ERROR(find_matches(step, text, &matches));
    join(step.behavior, piece.begin, matches, &tokens->work);
  }
  tokens->pieces.swap(tokens->work);
  return {};
}

// The matches and what lies between them, in order.
Status PreTokenizer::find_matches(const Step& step, std::string_view text,
                                  std::vector<Match>* matches) {
  size_t done = 0;
  const auto add = [&](size_t begin, size_t end) {
    if (done < begin) matches->push_back({{done, begin}, step.invert});
    matches->push_back({{begin, end}, !step.invert});
    done = end;
  };
  if (step.kind == Kind::kSplit) {
    std::vector<Span> spans;
    SUB8_RETURN_IF_ERROR(step.pattern.find_all(text, &spans));
    for (const Span& span : spans) add(span.begin, span.end);
  } else {
    const CharTable& table = char_table();
    for (size_t pos = 0; pos < text.size();) {
      const size_t begin = pos;
      const uint16_t bits = table[next_scalar(text, &pos)];
      bool matched = false;
      switch (step.kind) {
        case Kind::kDigits:
          matched = bits & kCharNumber;
          break;
        case Kind::kWhitespace:
          matched = bits & kCharSpace;
          break;
        case Kind::kPunctuation:
          matched = bits & (kCharPunctuation | kCharAsciiSymbol);
          break;
        case Kind::kDelimiter:
          matched = text.substr(begin, pos - begin) == step.replacement;
          break;
        default: {  // kWords
          const uint16_t word = bits & kCharWord;
          if (!word && (bits & kCharSpace)) break;
          for (size_t next = pos; next < text.size(); pos = next) {
            const uint16_t more = table[next_scalar(text, &next)];
            if ((more & kCharWord) != word || (!word && (more & kCharSpace))) break;
          }
          matched = true;
        }
      }
      if (matched) add(begin, pos);
    }
  }
  if (done < text.size()) matches->push_back({{done, text.size()}, step.invert});
  return {};
}

// What each behaviour keeps, as the reference folds it.
void PreTokenizer::join(Behavior behavior, size_t offset, const std::vector<Match>& matches,
                        std::vector<Span>* pieces) {
  const size_t first = pieces->size();
  bool previous = false;
  const auto fold = [&](const Match& match, bool extend, bool backwards) {
    if (extend && pieces->size() > first) {
      (backwards ? pieces->back().begin : pieces->back().end) =
          offset + (backwards ? match.span.begin : match.span.end);
    } else {
      pieces->push_back({offset + match.span.begin, offset + match.span.end});
    }
    previous = match.matched;
  };
  switch (behavior) {
    case Behavior::kRemoved:
      for (const Match& m : matches) {
        if (!m.matched) fold(m, false, false);
      }
      break;
    case Behavior::kIsolated:
      for (const Match& m : matches) fold(m, false, false);
      break;
    case Behavior::kContiguous:
      for (const Match& m : matches) fold(m, m.matched == previous, false);
      break;
    case Behavior::kMergedWithPrevious:
      for (const Match& m : matches) fold(m, m.matched && !previous, false);
      break;
    case Behavior::kMergedWithNext:
      for (auto m = matches.rbegin(); m != matches.rend(); ++m) {
        fold(*m, m->matched && !previous, true);
      }
      std::reverse(pieces->begin() + static_cast<ptrdiff_t>(first), pieces->end());
      break;
  }
  pieces->erase(std::remove_if(pieces->begin() + static_cast<ptrdiff_t>(first), pieces->end(),
                               [](const Span& s) { return s.begin == s.end; }),
                pieces->end());
}

void PreTokenizer::metaspace(const Step& step, PreTokens* tokens) {
  Rewriter rewriter(tokens);
  std::string* out = rewriter.text();
  bool first = true;
  for (const Span& piece : tokens->pieces) {
    const std::string_view text =
        std::string_view(tokens->text).substr(piece.begin, piece.end - piece.begin);
    const bool marked = text[0] == ' ' || text.starts_with(step.replacement);
    const bool wanted =
        step.prepend == Prepend::kAlways ||
        (step.prepend == Prepend::kFirst && first && tokens->at_start && piece.begin == 0);
    if (wanted && !marked) *out += step.replacement;
    bool at_begin = !(wanted && !marked);
    for (size_t pos = 0; pos < text.size();) {
      const size_t begin = pos;
      next_scalar(text, &pos);
      const std::string_view character = text.substr(begin, pos - begin);
      const bool space = character == " " || character == step.replacement;
      if (space && step.split && !at_begin) rewriter.end_piece();
      *out += space ? std::string_view(step.replacement) : character;
      at_begin = false;
    }
    rewriter.end_piece();
    first = false;
  }
  rewriter.commit();
}

void PreTokenizer::prefix_spaces(PreTokens* tokens) {
  Rewriter rewriter(tokens);
  for (const Span& piece : tokens->pieces) {
    const std::string_view text =
        std::string_view(tokens->text).substr(piece.begin, piece.end - piece.begin);
    if (text[0] != ' ') *rewriter.text() += ' ';
    *rewriter.text() += text;
    rewriter.end_piece();
  }
  rewriter.commit();
}

void PreTokenizer::map_bytes(PreTokens* tokens) {
  Rewriter rewriter(tokens);
  for (const Span& piece : tokens->pieces) {
    append_byte_level(std::string_view(tokens->text).substr(piece.begin, piece.end - piece.begin),
                      rewriter.text());
    rewriter.end_piece();
  }
  rewriter.commit();
}

}  // namespace sub8
