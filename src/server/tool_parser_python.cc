// Tool calls written as a Python list of calls with keyword arguments. Only literals are allowed:
// strings, numbers, True, False, None, lists and dicts.
#include <cctype>
#include <charconv>
#include <cmath>

#include <boost/json.hpp>

#include "server/tool_parser.h"
#include "text/utf8.h"

namespace sub8::server {
namespace {

namespace json = boost::json;

constexpr int kMaxDepth = 32;

class PythonReader {
 public:
  explicit PythonReader(std::string_view text) : text_(text) {}

  std::optional<std::vector<ToolCall>> calls() {
    std::vector<ToolCall> out;
    if (!take('[')) return std::nullopt;
    do {
      auto one = call();
      if (!one) return std::nullopt;
      out.push_back(std::move(*one));
    } while (take(','));
    if (!take(']') || !at_end()) return std::nullopt;
    return out;
  }

 private:
  void skip_space() {
    while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_])) != 0) ++at_;
  }
  bool at_end() {
    skip_space();
    return at_ == text_.size();
  }
  bool take(char c) {
    skip_space();
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  bool peek(char c) {
    skip_space();
    return at_ < text_.size() && text_[at_] == c;
  }
  // A name, dotted for calls such as api.search().
  std::string_view name(bool dotted) {
    skip_space();
    const size_t begin = at_;
    while (at_ < text_.size()) {
      const auto c = static_cast<unsigned char>(text_[at_]);
      if (std::isalnum(c) == 0 && c != '_' && !(dotted && c == '.')) break;
      ++at_;
    }
    return text_.substr(begin, at_ - begin);
  }

  std::optional<ToolCall> call() {
    ToolCall out;
    out.name = name(true);
    if (out.name.empty() || !take('(')) return std::nullopt;
    json::object arguments;
    while (!peek(')')) {
      const std::string key(name(false));
      if (key.empty() || !take('=')) return std::nullopt;
      auto argument = value(0);
      if (!argument) return std::nullopt;
      arguments[key] = std::move(*argument);
      if (!take(',')) break;
    }
    if (!take(')')) return std::nullopt;
    out.arguments = json::serialize(arguments);
    return out;
  }

  std::optional<json::value> value(int depth) {
    if (depth > kMaxDepth) return std::nullopt;
    skip_space();
    if (at_ >= text_.size()) return std::nullopt;
    const char c = text_[at_];
    if (c == '"' || c == '\'') return string();
    if (c == '[') return list(depth);
    if (c == '{') return dict(depth);
    if (c == '-' || c == '+' || c == '.' || std::isdigit(static_cast<unsigned char>(c)) != 0)
      return number();
    const std::string_view word = name(false);
    if (word == "True" || word == "true") return json::value(true);
    if (word == "False" || word == "false") return json::value(false);
    if (word == "None" || word == "null") return json::value(nullptr);
    return std::nullopt;
  }

  std::optional<json::value> list(int depth) {
    json::array out;
    take('[');
    while (!peek(']')) {
      auto element = value(depth + 1);
      if (!element) return std::nullopt;
      out.push_back(std::move(*element));
      if (!take(',')) break;
    }
    if (!take(']')) return std::nullopt;
    return json::value(std::move(out));
  }

  std::optional<json::value> dict(int depth) {
    json::object out;
    take('{');
    while (!peek('}')) {
      auto key = value(depth + 1);
      if (!key || !key->is_string() || !take(':')) return std::nullopt;
      auto element = value(depth + 1);
      if (!element) return std::nullopt;
      out[key->get_string()] = std::move(*element);
      if (!take(',')) break;
    }
    if (!take('}')) return std::nullopt;
    return json::value(std::move(out));
  }

  std::optional<json::value> number() {
    const size_t begin = at_;
    while (at_ < text_.size() &&
           std::string_view("+-.0123456789eE_").find(text_[at_]) != std::string_view::npos) {
      ++at_;
    }
    std::string digits;
    for (const char c : text_.substr(begin, at_ - begin)) {
      if (c != '_') digits += c;
    }
    if (digits.starts_with('+')) digits.erase(0, 1);
    const char* end = digits.data() + digits.size();
    int64_t whole = 0;
    if (const auto r = std::from_chars(digits.data(), end, whole);
        r.ec == std::errc() && r.ptr == end) {
      return json::value(whole);
    }
    double real = 0;
    if (const auto r = std::from_chars(digits.data(), end, real);
        r.ec == std::errc() && r.ptr == end && std::isfinite(real)) {
      return json::value(real);
    }
    return std::nullopt;
  }

  std::optional<json::value> string() {
    const char quote = text_[at_++];
    std::string out;
    while (at_ < text_.size() && text_[at_] != quote) {
      const char c = text_[at_++];
      if (c != '\\') {
        out += c;
      } else if (!escape(out)) {
        return std::nullopt;
      }
    }
    if (at_ >= text_.size()) return std::nullopt;
    ++at_;
    return json::value(out);
  }

  bool escape(std::string& out) {
    if (at_ >= text_.size()) return false;
    const char c = text_[at_++];
    constexpr std::string_view kFrom = "nrtbfav0\\'\"\n";
    constexpr std::string_view kTo("\n\r\t\b\f\a\v\0\\'\"", 11);
    if (c == 'x' || c == 'u' || c == 'U') return escape_code(c == 'x' ? 2 : c == 'u' ? 4 : 8, out);
    const size_t found = kFrom.find(c);
    if (found == std::string_view::npos) {
      out += '\\';  // Python keeps escapes that it does not know
      out += c;
    } else if (found < kTo.size()) {
      out += kTo[found];
    }
    return true;
  }

  bool escape_code(size_t digits, std::string& out) {
    if (at_ + digits > text_.size()) return false;
    uint32_t code = 0;
    const char* begin = text_.data() + at_;
    const auto r = std::from_chars(begin, begin + digits, code, 16);
    if (r.ec != std::errc() || r.ptr != begin + digits) return false;
    if (code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) return false;
    at_ += digits;
    append_utf8(code, &out);
    return true;
  }

  std::string_view text_;
  size_t at_ = 0;
};

}  // namespace

std::optional<std::vector<ToolCall>> tool_calls_from_python(std::string_view text) {
  return PythonReader(text).calls();
}

}  // namespace sub8::server
