// Splits a template into data and tags, with jinja2's rules for white space: trim_blocks and
// lstrip_blocks are on, '-' strips, '+' keeps, one trailing newline of the source is dropped.
#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>

#include "text/chat_template/ast.h"
#include "text/chat_template/runtime.h"

namespace sub8::jinja {
namespace {

std::string normalize_newlines(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      out += '\n';
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    } else {
      out += source[i];
    }
  }
  if (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

bool ascii_digit(char c) { return c >= '0' && c <= '9'; }

class Lexer {
 public:
  explicit Lexer(std::string source) : source_(std::move(source)) {}

  std::vector<Token> run() {
    while (position_ < source_.size()) root();
    push(TokenKind::kEnd, {});
    return std::move(tokens_);
  }

 private:
  [[noreturn]] void error(std::string message) const {
    throw TemplateFailure{ErrorCode::kCorruptData, std::move(message), line_};
  }

  Token& push(TokenKind kind, std::string text) {
    Token token;
    token.kind = kind;
    token.line = line_;
    token.text = std::move(text);
    return tokens_.emplace_back(std::move(token));
  }

  bool at(std::string_view what) const {
    return source_.compare(position_, what.size(), what) == 0;
  }

  // Moves on to `end`, counting lines.
  void advance(size_t end) {
    for (; position_ < end; ++position_) line_ += source_[position_] == '\n';
    line_starting_ = end > 0 && source_[end - 1] == '\n';
  }

  size_t skip_space(size_t from) const {
    while (from < source_.size()) {
      size_t next = from;
      if (!is_space(decode_at(source_, next))) break;
      from = next;
    }
    return from;
  }

  // Where "{%", "{{" or "{#" begins next.
  size_t find_tag(size_t from) const {
    for (size_t p = source_.find('{', from); p != std::string::npos; p = source_.find('{', p + 1)) {
      if (p + 1 < source_.size() &&
          (source_[p + 1] == '%' || source_[p + 1] == '{' || source_[p + 1] == '#')) {
        return p;
      }
    }
    return std::string::npos;
  }

  static char sign_at(std::string_view s, size_t p) {
    return p < s.size() && (s[p] == '-' || s[p] == '+') ? s[p] : '\0';
  }

  // The text before a tag after the tag's sign had its say.
  std::string_view before_tag(std::string_view text, char sign, bool variable) const {
    if (sign == '-') return strip(text, nullptr, false, true);
    if (sign == '+' || variable) return text;
    const size_t newline = text.rfind('\n');
    const size_t line_begin = newline == std::string_view::npos ? 0 : newline + 1;
    if (line_begin == 0 && !line_starting_) return text;
    return strip(text.substr(line_begin), nullptr, true, false).empty() ? text.substr(0, line_begin)
                                                                        : text;
  }

  void root() {
    const size_t tag = find_tag(position_);
    if (tag == std::string::npos) {
      push(TokenKind::kData, source_.substr(position_));
      return advance(source_.size());
    }
    const char kind = source_[tag + 1];
    const char sign = sign_at(source_, tag + 2);
    const auto text = std::string_view(source_).substr(position_, tag - position_);
    const auto data = before_tag(text, sign, kind == '{');
    if (!data.empty()) push(TokenKind::kData, std::string(data));
    const size_t inside = tag + 2 + (sign != '\0');
    if (kind == '#') return comment(inside);
    if (kind == '%') {
      if (const size_t body = raw_begin(inside); body != 0) return raw(body);
    }
    advance(inside);
    push(kind == '%' ? TokenKind::kBlockBegin : TokenKind::kVariableBegin, {});
    tag_body(kind == '%');
  }

  void comment(size_t from) {
    const size_t end = source_.find("#}", from);
    advance(from);
    if (from >= source_.size()) return;  // jinja2 lets a comment begin at the very end
    if (end == std::string::npos) error("missing end of comment tag '#}'");
    const char sign = end > from ? sign_at(source_, end - 1) : '\0';
    advance(after_end(end, sign, true));
  }

  // Behind the closing "x}" at `end` whose sign is `sign`.
  size_t after_end(size_t end, char sign, bool trim) const {
    size_t next = end + 2;
    if (sign == '-') return skip_space(next);
    if (sign == '\0' && trim && next < source_.size() && source_[next] == '\n') ++next;
    return next;
  }

  // Behind "raw %}" when that stands at `from`, else 0.
  size_t raw_begin(size_t from) const {
    size_t p = skip_space(from);
    if (source_.compare(p, 3, "raw") != 0) return 0;
    p = skip_space(p + 3);
    if (source_.compare(p, 3, "-%}") == 0) return skip_space(p + 3);
    return source_.compare(p, 2, "%}") == 0 ? p + 2 : 0;
  }

  void raw(size_t from) {
    advance(from);
    for (size_t p = source_.find("{%", from); p != std::string::npos;
         p = source_.find("{%", p + 1)) {
      const char sign = sign_at(source_, p + 2);
      size_t q = skip_space(p + 2 + (sign != '\0'));
      if (source_.compare(q, 6, "endraw") != 0) continue;
      q = skip_space(q + 6);
      const char end_sign = sign_at(source_, q);
      if (end_sign != '\0') ++q;
      if (source_.compare(q, 2, "%}") != 0) continue;
      const auto data = before_tag(std::string_view(source_).substr(from, p - from), sign, false);
      if (!data.empty()) push(TokenKind::kData, std::string(data));
      return advance(after_end(q, end_sign, true));
    }
    if (from >= source_.size()) return;  // as for comments
    error("missing end of raw block '{% endraw %}'");
  }

  // Tokens up to the end of the tag.
  void tag_body(bool block) {
    const std::string_view closing = block ? "%}" : "}}";
    std::string open;  // brackets to close, innermost last
    while (position_ < source_.size()) {
      if (open.empty()) {
        const char sign = sign_at(source_, position_);
        const size_t end = position_ + (sign != '\0');
        if (source_.compare(end, 2, closing) == 0 && (sign != '+' || block)) {
          push(block ? TokenKind::kBlockEnd : TokenKind::kVariableEnd, {});
          return advance(after_end(end, sign, block));
        }
      }
      if (const size_t next = skip_space(position_); next != position_) {
        advance(next);
        continue;
      }
      token(open);
    }
  }

  void token(std::string& open) {
    const char c = source_[position_];
    if (ascii_digit(c)) return number();
    if (c == '\'' || c == '"') return string(c);
    size_t next = position_;
    if (is_word(decode_at(source_, next))) return name();
    static constexpr std::array<std::string_view, 25> kOperators = {
        "//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[",
        "]",  "(",  ")",  "{",  "}",  ">",  "<", "=", ".", ":", "|", ","};
    for (const std::string_view op : kOperators) {
      if (!at(op)) continue;
      if (op == "(") open += ')';
      if (op == "[") open += ']';
      if (op == "{") open += '}';
      if (op == ")" || op == "]" || op == "}") {
        if (open.empty()) error("unexpected '" + std::string(op) + "'");
        if (open.back() != op[0]) {
          error("unexpected '" + std::string(op) + "', expected '" + open.back() + "'");
        }
        open.pop_back();
      }
      push(TokenKind::kOperator, std::string(op));
      return advance(position_ + op.size());
    }
    error("unexpected character '" + source_.substr(position_, next - position_) + "' in a tag");
  }

  void name() {
    size_t end = position_;
    while (end < source_.size()) {
      size_t next = end;
      if (!is_word(decode_at(source_, next))) break;
      end = next;
    }
    push(TokenKind::kName, source_.substr(position_, end - position_));
    advance(end);
  }

  // Digits with single underscores between them, from `p`.
  size_t digits(size_t p) const {
    while (p < source_.size() &&
           (ascii_digit(source_[p]) || (source_[p] == '_' && p + 1 < source_.size() &&
                                        ascii_digit(source_[p + 1]) && p > position_))) {
      ++p;
    }
    return p;
  }

  bool try_float() {
    if (position_ > 0 && source_[position_ - 1] == '.') return false;
    size_t end = digits(position_);
    bool is_float = false;
    if (end + 1 < source_.size() && source_[end] == '.' && ascii_digit(source_[end + 1])) {
      end = digits(end + 1);
      is_float = true;
    }
    if (end < source_.size() && (source_[end] == 'e' || source_[end] == 'E')) {
      size_t p = end + 1;
      if (sign_at(source_, p) != '\0') ++p;
      if (p < source_.size() && ascii_digit(source_[p])) {
        end = digits(p);
        is_float = true;
      }
    }
    if (!is_float) return false;
    std::string text;
    for (size_t i = position_; i < end; ++i) {
      if (source_[i] != '_') text += source_[i];
    }
    push(TokenKind::kFloat, text).real = std::strtod(text.c_str(), nullptr);
    advance(end);
    return true;
  }

  void number() {
    if (try_float()) return;
    int base = 10;
    size_t begin = position_;
    if (source_[begin] == '0' && begin + 1 < source_.size()) {
      const char kind = static_cast<char>(source_[begin + 1] | 0x20);
      if (kind == 'x') base = 16;
      if (kind == 'o') base = 8;
      if (kind == 'b') base = 2;
    }
    if (base != 10) begin += 2;
    std::string text;
    size_t end = begin;
    for (; end < source_.size(); ++end) {
      const char c = source_[end];
      const bool digit = base == 16 ? std::isxdigit(static_cast<unsigned char>(c)) != 0
                                    : c >= '0' && c < '0' + (base < 10 ? base : 10);
      if (digit) {
        text += c;
      } else if (c != '_' || end + 1 >= source_.size() ||
                 !std::isxdigit(static_cast<unsigned char>(source_[end + 1]))) {
        break;
      }
    }
    if (base == 10 && text.size() > 1 && text[0] == '0' &&
        text.find_first_not_of('0') != std::string::npos) {
      error("integer '" + text + "' has a leading zero");
    }
    int64_t value = 0;
    const auto parsed = std::from_chars(text.data(), text.data() + text.size(), value, base);
    if (text.empty()) error("expected digits after the base prefix");
    if (parsed.ec != std::errc()) error("integer " + text + " is beyond 64 bits");
    push(TokenKind::kInteger, text).integer = value;
    advance(end);
  }

  void string(char quote) {
    size_t p = position_ + 1;
    while (p < source_.size() && source_[p] != quote) p += source_[p] == '\\' ? 2 : 1;
    if (p >= source_.size()) error("string without an end");
    const auto body = std::string_view(source_).substr(position_ + 1, p - position_ - 1);
    push(TokenKind::kString, unescape(body));
    advance(p + 1);
  }

  // Python's unicode-escape codec, after non-ASCII characters became escapes themselves.
  std::string unescape(std::string_view body) const {
    std::string out;
    for (size_t i = 0; i < body.size();) {
      if (body[i] != '\\') {
        out += body[i++];
        continue;
      }
      ++i;  // the character behind exists: string() stepped over pairs
      const char c = body[i];
      static constexpr std::string_view kFrom = "\\'\"abfnrtv";
      static constexpr std::string_view kTo = "\\'\"\a\b\f\n\r\t\v";
      if (const size_t simple = kFrom.find(c); simple != std::string_view::npos) {
        out += kTo[simple];
        ++i;
      } else if (c == '\n') {
        ++i;
      } else if (c == 'x' || c == 'u' || c == 'U') {
        append_escape(out,
                      body.substr(i + 1, c == 'x'   ? 2
                                         : c == 'u' ? 4
                                                    : 8),
                      c == 'x'   ? 2
                      : c == 'u' ? 4
                                 : 8,
                      16);
        i += c == 'x' ? 3 : c == 'u' ? 5 : 9;
      } else if (c >= '0' && c <= '7') {
        size_t n = 1;
        while (n < 3 && i + n < body.size() && body[i + n] >= '0' && body[i + n] <= '7') ++n;
        append_escape(out, body.substr(i, n), n, 8);
        i += n;
      } else if (c == 'N') {
        throw TemplateFailure{ErrorCode::kUnsupported, "\\N{...} escapes are not supported", line_};
      } else {
        out += '\\';  // an unknown escape stays as it is
      }
    }
    return out;
  }

  void append_escape(std::string& out, std::string_view digits, size_t expected, int base) const {
    uint32_t code = 0;
    const auto parsed = std::from_chars(digits.data(), digits.data() + digits.size(), code, base);
    if (digits.size() != expected || parsed.ptr != digits.data() + digits.size() ||
        code > 0x10ffff || (code >= 0xd800 && code <= 0xdfff)) {
      error("bad escape in a string: expected " + std::to_string(expected) +
            " digits of a Unicode character");
    }
    append_code_point(out, code);
  }

  std::string source_;
  size_t position_ = 0;
  int line_ = 1;
  bool line_starting_ = true;
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokenize(std::string_view source) {
  return Lexer(normalize_newlines(source)).run();
}

}  // namespace sub8::jinja
