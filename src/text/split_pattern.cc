#include "text/split_pattern.h"

#include "text/unicode.h"
#include "text/utf8.h"

namespace sub8 {
namespace {

constexpr std::string_view kGpt2Regex =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr std::string_view kLlama3Regex =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen2Regex =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen35Regex =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kO200kRegex =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kTekkenRegex =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// What tells the patterns apart.
struct Rules {
  bool space_prefix;        // " ?" before letters and digits (GPT-2), else any one separator
  bool contraction_first;   // alternatives 's 't ... come first
  bool any_case;            // (?i:...)
  bool cased;               // upper-case run, then lower-case run
  bool contraction_suffix;  // (?i:'s|...)? behind a cased word
  uint16_t letters;         // classes that form a word
  uint16_t not_symbol;      // classes excluded from the symbol run
  int max_digits;           // 0: no limit
  bool line_ends;           // symbols swallow line ends; \s*[\r\n]+ exists
  bool slash;               // ... and slashes
};

constexpr uint16_t kSymbolStop = kCharSpace | kCharLetter | kCharNumber;
constexpr Rules kGpt2Rules = {true,        true,        false, false, false,
                              kCharLetter, kSymbolStop, 0,     false, false};
constexpr Rules kLlama3Rules = {false,       true,        true, false, false,
                                kCharLetter, kSymbolStop, 3,    true,  false};
constexpr Rules kQwen2Rules = {false,       true,        true, false, false,
                               kCharLetter, kSymbolStop, 1,    true,  false};
constexpr Rules kQwen35Rules = {
    false, true, true, false, false, kCharLetter | kCharMark, kSymbolStop | kCharMark,
    1,     true, false};
constexpr Rules kO200kRules = {false,       false,       true, true, true,
                               kCharLetter, kSymbolStop, 3,    true, true};
constexpr Rules kTekkenRules = {false,       false,       true, true, false,
                                kCharLetter, kSymbolStop, 1,    true, true};

struct Char {
  uint16_t bits;
  uint8_t size;  // bytes; 0 at the end of the text
};

template <Rules R>
class Matcher {
 public:
  explicit Matcher(std::string_view text) : text_(text), table_(char_table()) {}

  // The end of the match that begins at `pos` < size.
  size_t match(size_t pos) const {
    if constexpr (R.contraction_first) {
      if (const size_t end = contraction(pos)) return end;
    }
    const Char first = at(pos);
    const Char second = at(pos + first.size);
    if constexpr (R.cased) {
      if (const size_t end = cased_word(pos, first)) {
        if constexpr (R.contraction_suffix) {
          if (const size_t longer = contraction(end)) return longer;
        }
        return end;
      }
    } else if constexpr (R.space_prefix) {
      const bool space = text_[pos] == ' ';
      if ((first.bits & R.letters) || (space && (second.bits & R.letters))) {
        return run_of(R.letters, pos + first.size);
      }
      if (space && (second.bits & kCharNumber)) return run_of(kCharNumber, pos + 1);
    } else {
      if (first.bits & R.letters) return run_of(R.letters, pos + first.size);
      if (!(first.bits & (kCharLineEnd | kCharLetter | kCharNumber)) && (second.bits & R.letters)) {
        return run_of(R.letters, pos + first.size);
      }
    }
    if (first.bits & kCharNumber) return digits(pos, first);
    if (const size_t end = symbols(pos, first, second)) return end;
    return spaces(pos);
  }

 private:
  Char at(size_t pos) const {
    if (pos >= text_.size()) return {0, 0};
    const auto byte = static_cast<unsigned char>(text_[pos]);
    if (byte < 0x80) return {table_[byte], 1};
    size_t end = pos;
    const char32_t c = next_scalar(text_, &end);
    return {table_[c], static_cast<uint8_t>(end - pos)};
  }

  size_t run_of(uint16_t classes, size_t pos) const {
    for (Char c = at(pos); c.bits & classes; c = at(pos)) pos += c.size;
    return pos;
  }

  // 's 't 're 've 'm 'll 'd. Folding case, U+017F is an s.
  size_t contraction(size_t pos) const {
    if (pos + 1 >= text_.size() || text_[pos] != '\'') return 0;
    const auto letter = [&](size_t i) {
      if (i >= text_.size()) return '\0';
      const char c = text_[i];
      return R.any_case && c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
    };
    const char a = letter(pos + 1);
    if (a == 's' || a == 't' || a == 'm' || a == 'd') return pos + 2;
    const char b = letter(pos + 2);
    if ((a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l')) return pos + 3;
    return R.any_case && text_.substr(pos + 1, 2) == "\xc5\xbf" ? pos + 3 : 0;
  }

  static bool is_upper_part(Char c) {  // Lu Lt Lm Lo M
    return (c.bits & kCharMark) || ((c.bits & kCharLetter) && !(c.bits & kCharLower));
  }
  static bool is_lower_part(Char c) {  // Ll Lm Lo M
    return (c.bits & kCharMark) || ((c.bits & kCharLetter) && !(c.bits & kCharUpper));
  }

  size_t lower_run(size_t pos) const {
    for (Char c = at(pos); is_lower_part(c); c = at(pos)) pos += c.size;
    return pos;
  }

  // UPPER* LOWER+ from `pos`, with the backtracking of the expression; 0 when it does not match.
  size_t upper_then_lower(size_t pos) const {
    size_t last_lower_end = 0;  // behind the last character of the upper run that may be a lower
    Char c = at(pos);
    while (is_upper_part(c)) {
      pos += c.size;
      if (is_lower_part(c)) last_lower_end = pos;
      c = at(pos);
    }
    return is_lower_part(c) ? lower_run(pos + c.size) : last_lower_end;
  }

  // UPPER+ LOWER*.
  size_t upper_run_then_lower(size_t pos) const {
    const size_t start = pos;
    for (Char c = at(pos); is_upper_part(c); c = at(pos)) pos += c.size;
    return pos == start ? 0 : lower_run(pos);
  }

  size_t cased_word(size_t pos, Char first) const {
    const bool prefix = !(first.bits & (kCharLineEnd | kCharLetter | kCharNumber));
    const bool word = first.bits & (kCharLetter | kCharMark);
    size_t end = prefix ? upper_then_lower(pos + first.size) : 0;
    if (end == 0 && word) end = upper_then_lower(pos);
    if (end == 0 && prefix) end = upper_run_then_lower(pos + first.size);
    if (end == 0 && word) end = upper_run_then_lower(pos);
    return end;
  }

  size_t digits(size_t pos, Char first) const {
    if constexpr (R.max_digits == 0) return run_of(kCharNumber, pos + first.size);
    pos += first.size;
    for (int n = 1; n < R.max_digits; ++n) {
      const Char c = at(pos);
      if (!(c.bits & kCharNumber)) break;
      pos += c.size;
    }
    return pos;
  }

  size_t symbols(size_t pos, Char first, Char second) const {
    if (text_[pos] == ' ') {
      if (second.size == 0 || (second.bits & R.not_symbol)) return 0;
      first = second;
      ++pos;
    } else if (first.bits & R.not_symbol) {
      return 0;
    }
    pos += first.size;
    for (Char c = at(pos); c.size != 0 && !(c.bits & R.not_symbol); c = at(pos)) pos += c.size;
    if constexpr (R.line_ends) {
      while (pos < text_.size() &&
             (text_[pos] == '\r' || text_[pos] == '\n' || (R.slash && text_[pos] == '/'))) {
        ++pos;
      }
    }
    return pos;
  }

  // \s*[\r\n]+ | \s+(?!\S) | \s+
  size_t spaces(size_t pos) const {
    size_t end = pos;
    size_t last = pos;           // the start of the last character of the run
    size_t behind_line_end = 0;  // the end of the last \r or \n
    for (Char c = at(pos); c.bits & kCharSpace; c = at(end)) {
      last = end;
      end += c.size;
      if (c.bits & kCharLineEnd) behind_line_end = end;
    }
    if (R.line_ends && behind_line_end != 0) return behind_line_end;
    if (end == text_.size() || last == pos) return end;
    return last;
  }

  std::string_view text_;
  const CharTable& table_;
};

template <Rules R>
void append_matches(std::string_view text, size_t offset, std::vector<Span>* spans) {
  const Matcher<R> matcher(text);
  for (size_t pos = 0; pos < text.size();) {
    const size_t end = matcher.match(pos);
    spans->push_back({offset + pos, offset + end});
    pos = end;
  }
}

}  // namespace

std::string_view split_pattern_regex(SplitPattern pattern) {
  switch (pattern) {
    case SplitPattern::kGpt2:
      return kGpt2Regex;
    case SplitPattern::kLlama3:
      return kLlama3Regex;
    case SplitPattern::kQwen2:
      return kQwen2Regex;
    case SplitPattern::kQwen35:
      return kQwen35Regex;
    case SplitPattern::kO200k:
      return kO200kRegex;
    case SplitPattern::kTekken:
      return kTekkenRegex;
  }
  return {};
}

std::optional<SplitPattern> find_split_pattern(std::string_view regex) {
  for (const SplitPattern pattern :
       {SplitPattern::kGpt2, SplitPattern::kLlama3, SplitPattern::kQwen2, SplitPattern::kQwen35,
        SplitPattern::kO200k, SplitPattern::kTekken}) {
    if (regex == split_pattern_regex(pattern)) return pattern;
  }
  return std::nullopt;
}

void append_split(SplitPattern pattern, std::string_view text, size_t offset,
                  std::vector<Span>* spans) {
  switch (pattern) {
    case SplitPattern::kGpt2:
      return append_matches<kGpt2Rules>(text, offset, spans);
    case SplitPattern::kLlama3:
      return append_matches<kLlama3Rules>(text, offset, spans);
    case SplitPattern::kQwen2:
      return append_matches<kQwen2Rules>(text, offset, spans);
    case SplitPattern::kQwen35:
      return append_matches<kQwen35Rules>(text, offset, spans);
    case SplitPattern::kO200k:
      return append_matches<kO200kRules>(text, offset, spans);
    case SplitPattern::kTekken:
      return append_matches<kTekkenRules>(text, offset, spans);
  }
}

}  // namespace sub8
