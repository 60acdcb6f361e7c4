#include "quantize/name_pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

namespace sub8::quantize {
namespace {

// Iterative: on a mismatch the last `*` takes one more character.
bool matches_wildcard(std::string_view pattern, std::string_view name) {
  size_t p = 0;
  size_t n = 0;
  size_t star = std::string_view::npos;
  size_t retry = 0;
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      retry = n;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == name[n])) {
      ++p;
      ++n;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      n = ++retry;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

}  // namespace

struct NamePattern::Regex {
  explicit Regex(pcre2_code* compiled) : code(compiled) {}
  ~Regex() { pcre2_code_free(code); }
  Regex(const Regex&) = delete;
  Regex& operator=(const Regex&) = delete;
  pcre2_code* code;
};

Result<NamePattern> NamePattern::parse(std::string_view text) {
  NamePattern out;
  out.text_ = std::string(text);
  if (text.empty()) return invalid_argument("a name pattern is empty");
  if (!text.starts_with("re:")) return out;
  const std::string_view expression = text.substr(3);
  int error = 0;
  PCRE2_SIZE offset = 0;
  pcre2_code* code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(expression.data()), expression.size(),
                    PCRE2_ANCHORED | PCRE2_ENDANCHORED, &error, &offset, nullptr);
  if (code == nullptr) {
    PCRE2_UCHAR message[256];
    pcre2_get_error_message(error, message, sizeof(message));
    return invalid_argument("pattern '" + out.text_ + "': at character " +
                            std::to_string(offset + 3) + ": " +
                            reinterpret_cast<const char*>(message));
  }
  out.regex_ = std::make_shared<const Regex>(code);
  return out;
}

Result<bool> NamePattern::matches(std::string_view name) const {
  if (regex_ != nullptr) {
    pcre2_match_data* data = pcre2_match_data_create(1, nullptr);
    const int found = pcre2_match(regex_->code, reinterpret_cast<PCRE2_SPTR>(name.data()),
                                  name.size(), 0, 0, data, nullptr);
    pcre2_match_data_free(data);
    if (found >= 0) return true;
    if (found == PCRE2_ERROR_NOMATCH) return false;
    PCRE2_UCHAR message[256];
    pcre2_get_error_message(found, message, sizeof(message));
    return invalid_argument("pattern '" + text_ + "' on '" + std::string(name) +
                            "': " + reinterpret_cast<const char*>(message));
  }
  if (text_.find_first_of("*?") != std::string::npos) return matches_wildcard(text_, name);
  return name == text_ || (name.size() > text_.size() && name.ends_with(text_) &&
                           name[name.size() - text_.size() - 1] == '.');
}

}  // namespace sub8::quantize
