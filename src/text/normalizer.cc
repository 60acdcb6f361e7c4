#include "text/normalizer.h"

#include "text/bpe.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

namespace sub8 {
namespace {

std::string strip(std::string_view text, bool left, bool right, bool* cut_front) {
  const CharTable& table = char_table();
  size_t begin = 0;
  size_t end = text.size();
  while (left && begin < end) {
    size_t next = begin;
    if (!(table[next_scalar(text, &next)] & kCharSpace)) break;
    begin = next;
  }
  while (right && end > begin) {
    const size_t last = previous_scalar(text, end);
    size_t pos = last;
    if (!(table[next_scalar(text, &pos)] & kCharSpace)) break;
    end = last;
  }
  if (begin > 0) *cut_front = true;
  return std::string(text.substr(begin, end - begin));
}

std::string strip_marks(std::string_view text, bool* cut_front) {
  const CharTable& table = char_table();
  std::string out;
  for (size_t pos = 0; pos < text.size();) {
    const size_t begin = pos;
    if (table[next_scalar(text, &pos)] & kCharMark) {
      if (begin == 0) *cut_front = true;
    } else {
      out += text.substr(begin, pos - begin);
    }
  }
  return out;
}

}  // namespace

Result<TextPattern> TextPattern::parse(const JsonRef& json) {
  TextPattern out;
  if (const auto literal = json.find("String")) {
    SUB8_ASSIGN_OR_RETURN(out.literal, literal->as_string());
    return out;
  }
  SUB8_ASSIGN_OR_RETURN(const JsonRef regex, json.at("Regex"));
  SUB8_ASSIGN_OR_RETURN(out.regex_source, regex.as_string());
  SUB8_ASSIGN_OR_RETURN(out.regex, Regex::compile(out.regex_source, regex.where()));
  return out;
}

Status TextPattern::find_all(std::string_view text, std::vector<Span>* matches) const {
  if (regex) return regex->find_all(text, matches);
  matches->clear();
  if (literal.empty()) return {};
  for (size_t pos = text.find(literal); pos != std::string_view::npos;
       pos = text.find(literal, pos + literal.size())) {
    matches->push_back({pos, pos + literal.size()});
  }
  return {};
}

Result<std::string> replace_all(const TextPattern& pattern, std::string_view content,
                                std::string_view text, size_t max_bytes) {
  std::vector<Span> matches;
  SUB8_RETURN_IF_ERROR(pattern.find_all(text, &matches));
  if (matches.empty()) return std::string(text);
  size_t size = text.size();
  for (const Span& match : matches) size -= match.end - match.begin;
  if (size > max_bytes ||
      (!content.empty() && matches.size() > (max_bytes - size) / content.size())) {
    return resource_exhausted(std::to_string(matches.size()) + " replacements by " +
                              std::to_string(content.size()) +
                              " bytes each make a text of more "
                              "than " +
                              std::to_string(max_bytes) + " bytes");
  }
  std::string out;
  out.reserve(size + matches.size() * content.size());
  size_t done = 0;
  for (const Span& match : matches) {
    out += text.substr(done, match.begin - done);
    out += content;
    done = match.end;
  }
  out += text.substr(done);
  return out;
}

Result<Normalizer> Normalizer::parse(const JsonRef& json) {
  Normalizer out;
  SUB8_RETURN_IF_ERROR(out.append(json));
  return out;
}

Status Normalizer::append(const JsonRef& json) {
  SUB8_ASSIGN_OR_RETURN(const JsonRef type_json, json.at("type"));
  SUB8_ASSIGN_OR_RETURN(const std::string type, type_json.as_string());
  if (type == "Sequence") {
    SUB8_ASSIGN_OR_RETURN(const JsonRef list, json.at("normalizers"));
    SUB8_ASSIGN_OR_RETURN(const std::vector<JsonRef> parts, list.elements());
    for (const JsonRef& part : parts) SUB8_RETURN_IF_ERROR(append(part));
    return {};
  }
  Step step;
  step.where = json.where() + ": the normalizer \"" + type + "\"";
  if (type == "NFC") {
    step.form = NormalForm::kNfc;
  } else if (type == "NFD") {
    step.form = NormalForm::kNfd;
  } else if (type == "NFKC") {
    step.form = NormalForm::kNfkc;
  } else if (type == "NFKD") {
    step.form = NormalForm::kNfkd;
  } else if (type == "Lowercase") {
    step.kind = Kind::kLowercase;
  } else if (type == "StripAccents") {
    step.kind = Kind::kStripAccents;
  } else if (type == "ByteLevel") {
    step.kind = Kind::kByteLevel;
  } else if (type == "Strip") {
    step.kind = Kind::kStrip;
    SUB8_ASSIGN_OR_RETURN(step.left, json.get_bool("strip_left", true));
    SUB8_ASSIGN_OR_RETURN(step.right, json.get_bool("strip_right", true));
  } else if (type == "Prepend") {
    step.kind = Kind::kPrepend;
    SUB8_ASSIGN_OR_RETURN(const JsonRef content, json.at("prepend"));
    SUB8_ASSIGN_OR_RETURN(step.content, content.as_string());
  } else if (type == "Replace") {
    step.kind = Kind::kReplace;
    SUB8_ASSIGN_OR_RETURN(const JsonRef pattern, json.at("pattern"));
    SUB8_ASSIGN_OR_RETURN(step.pattern, TextPattern::parse(pattern));
    SUB8_ASSIGN_OR_RETURN(const JsonRef content, json.at("content"));
    SUB8_ASSIGN_OR_RETURN(step.content, content.as_string());
  } else {
    return unsupported(json.where() + ": the normalizer \"" + type +
                       "\" is not supported (supported: Sequence, NFC, NFD, NFKC, NFKD, Lowercase, "
                       "Strip, StripAccents, Prepend, Replace, ByteLevel)");
  }
  steps_.push_back(std::move(step));
  return {};
}

Result<std::string> Normalizer::apply(std::string_view text, bool* cut_front) const {
  std::string out(text);
  for (const Step& step : steps_) {
    switch (step.kind) {
      case Kind::kForm:
        out = normalize_unicode(out, step.form);
        break;
      case Kind::kLowercase:
        out = lowercase_unicode(out);
        break;
      case Kind::kStrip:
        out = strip(out, step.left, step.right, cut_front);
        break;
      case Kind::kStripAccents:
        out = strip_marks(out, cut_front);
        break;
      case Kind::kPrepend:
        if (!out.empty()) out.insert(0, step.content);
        break;
      case Kind::kReplace: {
        auto replaced = replace_all(step.pattern, step.content, out, Tokenizer::kMaxTextBytes);
        if (!replaced.ok()) return replaced.error().within(step.where);
        out = std::move(replaced).value();
        break;
      }
      case Kind::kByteLevel: {
        std::string mapped;
        append_byte_level(out, &mapped);
        out = std::move(mapped);
        break;
      }
    }
    if (out.size() > Tokenizer::kMaxTextBytes) {
      return resource_exhausted(step.where + " makes a text of " + std::to_string(out.size()) +
                                " bytes; at most " + std::to_string(Tokenizer::kMaxTextBytes) +
                                " can be tokenized at once");
    }
  }
  return out;
}

}  // namespace sub8
