#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/regex.h"

#include <array>
#include <map>

#include <pcre2.h>

#include "text/utf8.h"

namespace sub8 {
namespace {

// White_Space, and what is not, as the content of a bracketed class. PCRE2's own \s also has
// U+180E.
constexpr std::string_view kSpaceClass =
    R"(\x{9}-\x{d}\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";
constexpr std::string_view kNotSpaceClass =
    R"(\x{0}-\x{8}\x{e}-\x{1f}\x{21}-\x{84}\x{86}-\x{9f}\x{a1}-\x{167f}\x{1681}-\x{1fff})"
    R"(\x{200b}-\x{2027}\x{202a}-\x{202e}\x{2030}-\x{205e}\x{2060}-\x{2fff}\x{3001}-\x{10ffff})";
// Word characters: Alphabetic, marks, decimal digits, connector punctuation, and (a quirk of
// Oniguruma) the six Latin-1 superscripts and fractions.
constexpr std::string_view kWordClass =
    R"(\p{L}\p{M}\p{Nd}\p{Nl}\p{Pc}\x{b2}\x{b3}\x{b9}\x{bc}-\x{be}\x{24b6}-\x{24e9}\x{1f130}-\x{1f149}\x{1f150}-\x{1f169}\x{1f170}-\x{1f189})";

const std::map<std::string, std::string, std::less<>>& property_names() {
  static const std::map<std::string, std::string, std::less<>> names = {
      {"letter", "L"}, {"mark", "M"},
      {"number", "N"}, {"punctuation", "P"},
      {"symbol", "S"}, {"separator", "Z"},
      {"other", "C"},  {"lowercaseletter", "Ll"},
      {"digit", "Nd"}, {"uppercaseletter", "Lu"},
      {"punct", "P"},
  };
  return names;
}

class Translator {
 public:
  Translator(std::string_view pattern, std::string_view where) : in_(pattern), where_(where) {}

  Result<std::string> run() {
    while (pos_ < in_.size()) {
      const char c = in_[pos_];
      if (c == '\\') {
        SUB8_RETURN_IF_ERROR(escape(false));
      } else if (c == '[') {
        SUB8_RETURN_IF_ERROR(bracket());
      } else if (c == '{') {
        SUB8_RETURN_IF_ERROR(interval());
      } else if (c == '(') {
        SUB8_RETURN_IF_ERROR(group());
      } else {
        out_ += c;
        ++pos_;
      }
    }
    return std::move(out_);
  }

 private:
  Error refuse(std::string_view what) const {
    return unsupported(std::string(where_) + ": the regular expression uses " + std::string(what) +
                       " at byte " + std::to_string(pos_) + ", which sub8 does not translate");
  }

  // A backslash and what belongs to it.
  Status escape(bool in_class) {
    if (pos_ + 1 >= in_.size()) {
      return corrupt_data(std::string(where_) + ": the regular expression ends in a backslash");
    }
    const char c = in_[pos_ + 1];
    const auto put_class = [&](std::string_view positive, bool negated) {
      if (in_class) {
        out_ += positive;
      } else {
        out_ += negated ? "[^" : "[";
        out_ += positive;
        out_ += ']';
      }
      pos_ += 2;
      return Status();
    };
    switch (c) {
      case 's':
        return put_class(kSpaceClass, false);
      case 'S':
        return in_class ? put_class(kNotSpaceClass, false) : put_class(kSpaceClass, true);
      case 'w':
        return put_class(kWordClass, false);
      case 'W':
        if (in_class) return refuse("\\W inside a bracketed class");
        return put_class(kWordClass, true);
      case 'h':
        return put_class("0-9a-fA-F", false);
      case 'H':
        if (in_class) return refuse("\\H inside a bracketed class");
        return put_class("0-9a-fA-F", true);
      case 'p':
      case 'P':
        return property();
      case 'u':
        return code_point();
      case 'O':
      case 'N':
      case 'y':
      case 'Y':
      case 'C':
      case 'M':
      case 'c':
        return refuse(std::string("\\") + c);
      default:
        out_ += in_.substr(pos_, 2);
        pos_ += 2;
        return {};
    }
  }

  Status property() {
    if (pos_ + 2 >= in_.size() || in_[pos_ + 2] != '{') return refuse("\\p without braces");
    const size_t close = in_.find('}', pos_);
    if (close == std::string_view::npos) return refuse("\\p{ without }");
    std::string name(in_.substr(pos_ + 3, close - pos_ - 3));
    bool negated = in_[pos_ + 1] == 'P';
    if (!name.empty() && name[0] == '^') {
      negated = !negated;
      name.erase(0, 1);
    }
    std::string key;
    for (const char c : name) {
      if (c == ' ' || c == '_' || c == '-') continue;
      key += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    }
    const auto known = property_names().find(key);
    out_ += negated ? "\\P{" : "\\p{";
    out_ += known == property_names().end() ? name : known->second;
    out_ += '}';
    pos_ = close + 1;
    return {};
  }

  Status code_point() {  // \uHHHH
    std::string digits(in_.substr(pos_ + 2, 4));
    if (digits.size() != 4 ||
        digits.find_first_not_of("0123456789abcdefABCDEF") != std::string::npos) {
      return refuse("\\u without four hexadecimal digits");
    }
    out_ += "\\x{" + digits + "}";
    pos_ += 6;
    return {};
  }

  Status bracket() {
    out_ += in_[pos_++];
    if (pos_ < in_.size() && in_[pos_] == '^') out_ += in_[pos_++];
    bool first = true;
    while (pos_ < in_.size()) {
      const char c = in_[pos_];
      if (c == ']' && !first) {
        out_ += c;
        ++pos_;
        return {};
      }
      if (c == ']') return refuse("a bracketed class that begins with ]");
      if (c == '[') return refuse("a class inside a class");
      if (in_.substr(pos_, 2) == "&&") return refuse("an intersection of classes (&&)");
      first = false;
      if (c == '\\') {
        SUB8_RETURN_IF_ERROR(escape(true));
      } else {
        out_ += c;
        ++pos_;
      }
    }
    return corrupt_data(std::string(where_) + ": the regular expression has a [ without a ]");
  }

  // {n,m}: {,n} means {0,n}, and a + behind it repeats instead of making it possessive.
  Status interval() {
    const size_t close = in_.find('}', pos_);
    const std::string_view body =
        close == std::string_view::npos ? "" : in_.substr(pos_ + 1, close - pos_ - 1);
    if (body.empty() || body.find_first_not_of("0123456789,") != std::string_view::npos) {
      out_ += in_[pos_++];
      return {};
    }
    if (close + 1 < in_.size() && in_[close + 1] == '+') return refuse("+ after {n,m}");
    out_ += body[0] == ',' ? "{0" : "{";
    out_ += body;
    out_ += '}';
    pos_ = close + 1;
    return {};
  }

  // (?m) lets the dot match line ends in Ruby's syntax and moves anchors in Perl's.
  Status group() {
    if (in_.substr(pos_, 2) == "(?") {
      size_t end = pos_ + 2;
      while (end < in_.size() && ((in_[end] >= 'a' && in_[end] <= 'z') || in_[end] == '-')) ++end;
      const bool flags = end > pos_ + 2 && end < in_.size() && (in_[end] == ':' || in_[end] == ')');
      const std::string_view letters = in_.substr(pos_ + 2, end - pos_ - 2);
      if (flags && letters.find_first_not_of("ix-") != std::string_view::npos) {
        return refuse("option letters other than i and x");
      }
    }
    out_ += in_[pos_++];
    return {};
  }

  std::string_view in_;
  std::string_view where_;
  size_t pos_ = 0;
  std::string out_;
};

struct MatchDataDeleter {
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};
struct MatchContextDeleter {
  void operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }
};
struct JitStackDeleter {
  void operator()(pcre2_jit_stack* stack) const { pcre2_jit_stack_free(stack); }
};

}  // namespace

struct Regex::Compiled {
  pcre2_code* code = nullptr;
  std::string where;
  ~Compiled() { pcre2_code_free(code); }
};

Result<std::string> translate_oniguruma(std::string_view pattern, std::string_view where) {
  return Translator(pattern, where).run();
}

Result<Regex> Regex::compile(std::string_view pattern, std::string_view where) {
  SUB8_ASSIGN_OR_RETURN(const std::string translated, translate_oniguruma(pattern, where));
  auto compiled = std::make_shared<Compiled>();
  compiled->where = std::string(where);
  int code = 0;
  PCRE2_SIZE offset = 0;
  compiled->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                                 PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C,
                                 &code, &offset, nullptr);
  if (compiled->code == nullptr) {
    std::array<PCRE2_UCHAR, 256> message{};
    pcre2_get_error_message(code, message.data(), message.size());
    return unsupported(std::string(where) + ": the regular expression does not compile: " +
                       reinterpret_cast<const char*>(message.data()));
  }
  // Without JIT support the interpreter runs: the same matches, slower.
  (void)pcre2_jit_compile(compiled->code, PCRE2_JIT_COMPLETE);
  return Regex(std::move(compiled));
}

Status Regex::find_all(std::string_view text, std::vector<Span>* matches) const {
  matches->clear();
  const std::unique_ptr<pcre2_match_data, MatchDataDeleter> data(
      pcre2_match_data_create(1, nullptr));
  const std::unique_ptr<pcre2_match_context, MatchContextDeleter> context(
      pcre2_match_context_create(nullptr));
  std::unique_ptr<pcre2_jit_stack, JitStackDeleter> stack;
  if (!data || !context) return resource_exhausted(compiled_->where + ": out of memory");
  // Enough for one run over the whole text, far from enough for exponential backtracking.
  pcre2_set_match_limit(
      context.get(), static_cast<uint32_t>(1000000 + std::min<size_t>(text.size(), 100000000) * 8));
  pcre2_set_heap_limit(context.get(), 256 * 1024);

  size_t start = 0;
  size_t last_end = std::string_view::npos;
  while (start <= text.size()) {
    const int rc = pcre2_match(compiled_->code, reinterpret_cast<PCRE2_SPTR>(text.data()),
                               text.size(), start, PCRE2_NO_UTF_CHECK, data.get(), context.get());
    if (rc == PCRE2_ERROR_NOMATCH) return {};
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT && !stack) {
      stack.reset(pcre2_jit_stack_create(64 * 1024, 64 * 1024 * 1024, nullptr));
      if (!stack) return resource_exhausted(compiled_->where + ": out of memory");
      pcre2_jit_stack_assign(context.get(), nullptr, stack.get());
      continue;
    }
    if (rc < 0) {
      std::array<PCRE2_UCHAR, 256> message{};
      pcre2_get_error_message(rc, message.data(), message.size());
      return resource_exhausted(compiled_->where + ": the regular expression fails at byte " +
                                std::to_string(start) +
                                " of the text: " + reinterpret_cast<const char*>(message.data()));
    }
    const PCRE2_SIZE* found = pcre2_get_ovector_pointer(data.get());
    if (found[0] > found[1]) {  // \K inside a look-ahead can do so
      return unsupported(compiled_->where +
                         ": a match of the regular expression ends before it begins");
    }
    if (found[0] == found[1] && found[1] == last_end) {
      if (start >= text.size()) return {};
      next_scalar(text, &start);
      continue;
    }
    matches->push_back({found[0], found[1]});
    start = last_end = found[1];
  }
  return {};
}

}  // namespace sub8
