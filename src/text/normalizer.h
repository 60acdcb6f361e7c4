// The normaliser of a tokenizer.json: a chain of text rewrites.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "text/regex.h"
#include "text/unicode.h"

namespace sub8 {

// {"String": ...} or {"Regex": ...}: what Replace and Split look for.
struct TextPattern {
  std::string literal;  // when there is no regex
  std::optional<Regex> regex;
  std::string regex_source;

  static Result<TextPattern> parse(const JsonRef& json);
  // Matches from left to right. An empty literal matches nothing.
  Status find_all(std::string_view text, std::vector<Span>* matches) const;
};

// `text` with every match of `pattern` replaced; kResourceExhausted, before anything is allocated,
// where that would have more than `max_bytes` bytes.
Result<std::string> replace_all(const TextPattern& pattern, std::string_view content,
                                std::string_view text, size_t max_bytes);

class Normalizer {
 public:
  Normalizer() = default;  // changes nothing
  // Normalisers that sub8 lacks are refused by name.
  static Result<Normalizer> parse(const JsonRef& json);

  bool empty() const { return steps_.empty(); }
  // Valid UTF-8 in and out. Sets *cut_front when characters were removed from the front. An error
  // naming the normaliser after which the text has more than Tokenizer::kMaxTextBytes.
  Result<std::string> apply(std::string_view text, bool* cut_front) const;

 private:
  enum class Kind { kForm, kLowercase, kStrip, kStripAccents, kPrepend, kReplace, kByteLevel };
  struct Step {
    Kind kind = Kind::kForm;
    std::string where;  // its place in the file, for errors
    NormalForm form = NormalForm::kNfc;
    bool left = false;
    bool right = false;
    std::string content;
    TextPattern pattern;
  };
  Status append(const JsonRef& json);
  std::vector<Step> steps_;
};

}  // namespace sub8
