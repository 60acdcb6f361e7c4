// Text by code points with Python's rules for case, white space and words.
#include <algorithm>
#include <array>

#include <utf8proc.h>

#include "text/chat_template/runtime.h"
#include "text/utf8.h"

namespace sub8::jinja {
namespace {

utf8proc_category_t category(char32_t code) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(code));
}

struct SpecialCase {
  char32_t code;
  std::string_view upper, title;
};

// Unicode SpecialCasing.txt, unconditional entries with an expanding upper case (those in use).
constexpr std::array kSpecial = {
    SpecialCase{0xdf, "SS", "Ss"},     SpecialCase{0x149, "ʼN", "ʼN"},
    SpecialCase{0x1f0, "J̌", "J̌"},      SpecialCase{0x390, "Ϊ́", "Ϊ́"},
    SpecialCase{0x3b0, "Ϋ́", "Ϋ́"},      SpecialCase{0x587, "ԵՒ", "Եւ"},
    SpecialCase{0x1e96, "H̱", "H̱"},     SpecialCase{0x1e97, "T̈", "T̈"},
    SpecialCase{0x1e98, "W̊", "W̊"},     SpecialCase{0x1e99, "Y̊", "Y̊"},
    SpecialCase{0x1e9a, "Aʾ", "Aʾ"},   SpecialCase{0xfb00, "FF", "Ff"},
    SpecialCase{0xfb01, "FI", "Fi"},   SpecialCase{0xfb02, "FL", "Fl"},
    SpecialCase{0xfb03, "FFI", "Ffi"}, SpecialCase{0xfb04, "FFL", "Ffl"},
    SpecialCase{0xfb05, "ST", "St"},   SpecialCase{0xfb06, "ST", "St"},
};

const SpecialCase* special_case(char32_t code) {
  if (code < 0xdf) return nullptr;
  const auto* found = std::find_if(kSpecial.begin(), kSpecial.end(),
                                   [code](const SpecialCase& s) { return s.code == code; });
  return found == kSpecial.end() ? nullptr : found;
}

void append_upper(std::string& out, char32_t code) {
  if (const SpecialCase* special = special_case(code)) {
    out += special->upper;
  } else {
    append_code_point(out,
                      static_cast<char32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(code))));
  }
}

void append_title(std::string& out, char32_t code) {
  if (const SpecialCase* special = special_case(code)) {
    out += special->title;
  } else {
    append_code_point(out,
                      static_cast<char32_t>(utf8proc_totitle(static_cast<utf8proc_int32_t>(code))));
  }
}

bool is_cased(char32_t code) {
  return is_upper(code) || is_lower(code) || category(code) == UTF8PROC_CATEGORY_LT;
}

bool case_ignorable(char32_t code) {
  const auto c = category(code);
  return c == UTF8PROC_CATEGORY_MN || c == UTF8PROC_CATEGORY_ME || c == UTF8PROC_CATEGORY_CF ||
         c == UTF8PROC_CATEGORY_LM || c == UTF8PROC_CATEGORY_SK || code == '\'' || code == '.' ||
         code == ':' || code == 0xb7 || code == 0x2019;
}

// Greek sigma at the end of a word has its own lower case.
bool final_sigma(std::string_view text, size_t begin, size_t end) {
  bool before = false;
  for (size_t p = 0; p < begin;) {
    const char32_t code = decode_at(text, p);
    if (!case_ignorable(code)) before = is_cased(code);
  }
  if (!before) return false;
  while (end < text.size()) {
    const char32_t code = decode_at(text, end);
    if (!case_ignorable(code)) return !is_cased(code);
  }
  return true;
}

// `begin`..`end`: where `code` stands in `text`.
void append_lower(std::string& out, char32_t code, std::string_view text, size_t begin,
                  size_t end) {
  if (code == 0x130) {
    out += "i\u0307";
  } else if (code == 0x3a3) {
    append_code_point(out, final_sigma(text, begin, end) ? 0x3c2 : 0x3c3);
  } else {
    append_code_point(out,
                      static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(code))));
  }
}

}  // namespace

int64_t count_code_points(std::string_view text) {
  return std::count_if(text.begin(), text.end(),
                       [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; });
}

// The bytes are valid UTF-8: template.cc checks all that comes in.
char32_t decode_at(std::string_view text, size_t& position) { return next_scalar(text, &position); }
void append_code_point(std::string& out, char32_t code) { append_utf8(code, &out); }

bool is_space(char32_t code) {
  return (code >= 9 && code <= 13) || (code >= 0x1c && code <= 0x20) || code == 0x85 ||
         code == 0xa0 || code == 0x1680 || (code >= 0x2000 && code <= 0x200a) || code == 0x2028 ||
         code == 0x2029 || code == 0x202f || code == 0x205f || code == 0x3000;
}

bool is_printable(char32_t code) {
  if (code < 0x80) return code >= 0x20 && code < 0x7f;
  switch (category(code)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS:
      return false;
    default:
      return true;
  }
}

bool is_alpha(char32_t code) {
  const auto c = category(code);
  return c >= UTF8PROC_CATEGORY_LU && c <= UTF8PROC_CATEGORY_LO;
}

bool is_digit(char32_t code) { return category(code) == UTF8PROC_CATEGORY_ND; }

bool is_word(char32_t code) {
  if (code < 0x80) {
    return code == '_' || (code >= '0' && code <= '9') || (code >= 'a' && code <= 'z') ||
           (code >= 'A' && code <= 'Z');
  }
  const auto c = category(code);
  return is_alpha(code) || (c >= UTF8PROC_CATEGORY_ND && c <= UTF8PROC_CATEGORY_NO);
}

bool is_upper(char32_t code) { return category(code) == UTF8PROC_CATEGORY_LU; }
bool is_lower(char32_t code) { return category(code) == UTF8PROC_CATEGORY_LL; }

std::string to_upper(std::string_view text) {
  std::string out;
  for (size_t p = 0; p < text.size();) append_upper(out, decode_at(text, p));
  return out;
}

std::string to_lower(std::string_view text) {
  std::string out;
  for (size_t p = 0; p < text.size();) {
    const size_t begin = p;
    const char32_t code = decode_at(text, p);
    append_lower(out, code, text, begin, p);
  }
  return out;
}

std::string to_title(std::string_view text) {
  std::string out;
  bool previous_cased = false;
  for (size_t p = 0; p < text.size();) {
    const size_t begin = p;
    const char32_t code = decode_at(text, p);
    if (previous_cased) {
      append_lower(out, code, text, begin, p);
    } else {
      append_title(out, code);
    }
    previous_cased = is_cased(code);
  }
  return out;
}

std::string capitalize(std::string_view text) {
  std::string out;
  for (size_t p = 0; p < text.size();) {
    const size_t begin = p;
    const char32_t code = decode_at(text, p);
    if (begin == 0) {
      append_title(out, code);
    } else {
      append_lower(out, code, text, begin, p);
    }
  }
  return out;
}

std::string_view strip(std::string_view text, const std::string* chars, bool left, bool right) {
  std::u32string set;
  if (chars != nullptr) {
    for (size_t p = 0; p < chars->size();) set += decode_at(*chars, p);
    std::sort(set.begin(), set.end());
  }
  const auto drop = [&](char32_t code) {
    return chars == nullptr ? is_space(code) : std::binary_search(set.begin(), set.end(), code);
  };
  size_t begin = 0;
  while (left && begin < text.size()) {
    size_t next = begin;
    if (!drop(decode_at(text, next))) break;
    begin = next;
  }
  size_t end = text.size();
  while (right && end > begin) {
    const size_t previous = previous_scalar(text, end);
    size_t p = previous;
    if (!drop(decode_at(text, p))) break;
    end = previous;
  }
  return text.substr(begin, end - begin);
}

std::string replace_all(Runtime& rt, std::string_view text, std::string_view from,
                        std::string_view to, int64_t count) {
  rt.step(1 + text.size() / 64);
  std::string out;
  size_t position = 0;
  const auto grow = [&](std::string_view more) {
    out += more;
    rt.check_size(out.size());
  };
  while (count != 0) {
    size_t found = position;
    if (from.empty()) {
      // Between all characters, and at both ends.
      if (position >= text.size()) break;
      grow(to);
      size_t next = position;
      decode_at(text, next);
      grow(text.substr(position, next - position));
      position = next;
    } else {
      found = text.find(from, position);
      if (found == std::string_view::npos) break;
      grow(text.substr(position, found - position));
      grow(to);
      position = found + from.size();
    }
    if (count > 0) --count;
  }
  if (from.empty() && count != 0) grow(to);
  grow(text.substr(position));
  return out;
}

size_t byte_offset(const Text& text, int64_t code_point) {
  if (text.ascii()) return static_cast<size_t>(code_point);
  size_t p = 0;
  for (int64_t i = 0; i < code_point && p < text.bytes.size(); ++i) decode_at(text.bytes, p);
  return p;
}

}  // namespace sub8::jinja
