// The pre-tokenizer of a tokenizer.json: cuts normalised text into the pieces that the model
// encodes one by one.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "text/normalizer.h"
#include "text/split_pattern.h"

namespace sub8 {

// A text and the pieces of it, in order; none is empty. Reused between calls.
struct PreTokens {
  std::string text;
  std::vector<Span> pieces;
  std::vector<Span> work;
  bool at_start = false;  // the text begins where the whole input begins
};

class PreTokenizer {
 public:
  PreTokenizer() = default;  // one piece
  // Pre-tokenizers that sub8 lacks are refused by name.
  static Result<PreTokenizer> parse(const JsonRef& json);

  // The pieces are plain bytes of the text, and the model's tokens are in the byte-level alphabet.
  bool byte_level() const { return !steps_.empty() && steps_.back().kind == Kind::kByteLevel; }

  // Cuts tokens->text (valid UTF-8, may be rewritten) into tokens->pieces.
  Status apply(PreTokens* tokens) const;

 private:
  enum class Kind {
    kByteLevel,
    kSplit,
    kDigits,
    kMetaspace,
    kWords,       // \w+|[^\w\s]+
    kWhitespace,  // cut at white space and drop it
    kPunctuation,
    kDelimiter,
  };
  enum class Behavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };
  enum class Prepend { kAlways, kFirst, kNever };
  struct Match {
    Span span;
    bool matched;
  };
  struct Step {
    Kind kind = Kind::kByteLevel;
    Behavior behavior = Behavior::kIsolated;
    bool invert = false;
    std::optional<SplitPattern> fast;
    TextPattern pattern;
    bool add_prefix_space = false;  // ByteLevel
    bool use_regex = true;          // ByteLevel
    std::string replacement;        // Metaspace, or the delimiter
    Prepend prepend = Prepend::kAlways;
    bool split = true;  // Metaspace
  };

  Status append(const JsonRef& json);
  static Status parse_split(const JsonRef& json, Step* step);
  static Status parse_metaspace(const JsonRef& json, Step* step);
  static Result<Behavior> parse_behavior(const JsonRef& json, std::string_view fallback);
  Status run(const Step& step, bool last, PreTokens* tokens) const;
  static Status find_matches(const Step& step, std::string_view text, std::vector<Match>* matches);
  static Status split(const Step& step, PreTokens* tokens);
  static void join(Behavior behavior, size_t offset, const std::vector<Match>& matches,
                   std::vector<Span>* pieces);
  static void metaspace(const Step& step, PreTokens* tokens);
  static void prefix_spaces(PreTokens* tokens);
  static void map_bytes(PreTokens* tokens);
  std::vector<Step> steps_;
};

}  // namespace sub8
