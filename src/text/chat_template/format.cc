// How values print: Python's str() and repr(), and json.dumps as transformers' tojson calls it.
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <ctime>

#include "text/chat_template/runtime.h"

namespace sub8::jinja {
namespace {

void append_hex(std::string& out, std::string_view prefix, uint32_t code, int digits) {
  static constexpr std::string_view kHex = "0123456789abcdef";
  out += prefix;
  for (int shift = 4 * (digits - 1); shift >= 0; shift -= 4) out += kHex[code >> shift & 15];
}

// `{` items `}` with every element through `append`.
template <class Items, class Append>
void append_list(std::string& out, std::string_view open, std::string_view close,
                 const Items& items, Append append) {
  out += open;
  bool first = true;
  for (const auto& item : items) {
    if (!first) out += ", ";
    first = false;
    append(item);
  }
  out += close;
}

void append_seq(Runtime& rt, const Seq& seq, std::string& out) {
  const auto item = [&](const Value& value) { append_repr(rt, value, out); };
  switch (seq.kind) {
    case SeqKind::kList:
      return append_list(out, "[", "]", seq.items, item);
    case SeqKind::kTuple:
    case SeqKind::kGroup:
      return append_list(out, "(", seq.items.size() == 1 ? ",)" : ")", seq.items, item);
    case SeqKind::kDictKeys:
      return append_list(out, "dict_keys([", "])", seq.items, item);
    case SeqKind::kDictValues:
      return append_list(out, "dict_values([", "])", seq.items, item);
    case SeqKind::kDictItems:
      return append_list(out, "dict_items([", "])", seq.items, item);
    case SeqKind::kRange:
      out += "range(" + std::to_string(seq.start) + ", " + std::to_string(seq.stop) +
             (seq.step == 1 ? "" : ", " + std::to_string(seq.step)) + ")";
  }
}

}  // namespace

std::string float_repr(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  std::array<char, 40> buffer;
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value,
                                 std::chars_format::scientific);
  std::string text(buffer.data(), end.ptr);  // d.ddde+XX, shortest that reads back
  const size_t e = text.find('e');
  int exponent = 0;
  std::from_chars(text.data() + e + (text[e + 1] == '+' ? 2 : 1), text.data() + text.size(),
                  exponent);
  std::string sign = text[0] == '-' ? "-" : "";
  std::string digits = text.substr(sign.size(), e - sign.size());
  if (const size_t dot = digits.find('.'); dot != std::string::npos) digits.erase(dot, 1);
  if (exponent < -4 || exponent >= 16) {
    std::string out = sign + digits.substr(0, 1);
    if (digits.size() > 1) out += "." + digits.substr(1);
    const int magnitude = std::abs(exponent);
    return out + (exponent < 0 ? "e-" : "e+") + (magnitude < 10 ? "0" : "") +
           std::to_string(magnitude);
  }
  if (exponent < 0)
    return sign + "0." + std::string(static_cast<size_t>(-exponent - 1), '0') + digits;
  const auto whole = static_cast<size_t>(exponent) + 1;
  if (digits.size() <= whole) return sign + digits + std::string(whole - digits.size(), '0') + ".0";
  return sign + digits.substr(0, whole) + "." + digits.substr(whole);
}

std::string string_repr(std::string_view text) {
  const bool single = text.find('\'') != std::string_view::npos;
  const char quote = single && text.find('"') == std::string_view::npos ? '"' : '\'';
  std::string out(1, quote);
  for (size_t p = 0; p < text.size();) {
    const char32_t code = decode_at(text, p);
    if (code == static_cast<char32_t>(quote) || code == '\\') {
      out += '\\';
      out += static_cast<char>(code);
    } else if (code == '\n') {
      out += "\\n";
    } else if (code == '\r') {
      out += "\\r";
    } else if (code == '\t') {
      out += "\\t";
    } else if (is_printable(code)) {
      append_code_point(out, code);
    } else if (code < 0x100) {
      append_hex(out, "\\x", code, 2);
    } else if (code < 0x10000) {
      append_hex(out, "\\u", code, 4);
    } else {
      append_hex(out, "\\U", code, 8);
    }
  }
  return out + quote;
}

void append_repr(Runtime& rt, const Value& value, std::string& out) {
  rt.step();
  switch (value.type()) {
    case Type::kUndefined:
      out += "Undefined";
      break;
    case Type::kNone:
      out += "None";
      break;
    case Type::kBool:
      out += value.as_bool() ? "True" : "False";
      break;
    case Type::kInt:
      out += std::to_string(value.as_int());
      break;
    case Type::kFloat:
      out += float_repr(value.as_double());
      break;
    case Type::kString:
      rt.step(value.str().size() / 64);
      out += value.text().markup ? "Markup(" + string_repr(value.str()) + ")"
                                 : string_repr(value.str());
      break;
    case Type::kSeq:
      append_seq(rt, value.seq(), out);
      break;
    case Type::kDict:
      append_list(out, "{", "}", value.dict().items, [&](const auto& item) {
        append_repr(rt, item.first, out);
        out += ": ";
        append_repr(rt, item.second, out);
      });
      break;
    case Type::kObject:
      out += value.object()->repr(rt);
      break;
  }
  rt.check_size(out.size());
}

std::string to_repr(Runtime& rt, const Value& value) {
  std::string out;
  append_repr(rt, value, out);
  return out;
}

std::string to_str(Runtime& rt, const Value& value) {
  if (value.is_string()) {
    rt.step(value.str().size() / 64);
    return value.str();
  }
  if (value.is_undefined()) return {};
  return to_repr(rt, value);
}

namespace {

class JsonWriter {
 public:
  JsonWriter(Runtime& rt, const JsonStyle& style) : rt_(rt), style_(style) {}

  void write(const Value& value, int level) {
    rt_.step();
    switch (value.type()) {
      case Type::kNone:
        out += "null";
        break;
      case Type::kBool:
        out += value.as_bool() ? "true" : "false";
        break;
      case Type::kInt:
        out += std::to_string(value.as_int());
        break;
      case Type::kFloat:
        out += number(value.as_double());
        break;
      case Type::kString:
        rt_.step(value.str().size() / 64);
        string(value.str());
        break;
      case Type::kDict:
        object(value.dict(), level);
        break;
      case Type::kSeq:
        if (value.seq().kind == SeqKind::kList || value.seq().tuple_like()) {
          array(value.seq(), level);
          break;
        }
        [[fallthrough]];
      default:
        fail("tojson: a '" + type_name(value) + "' is not JSON serializable");
    }
    rt_.check_size(out.size());
  }

  std::string out;

 private:
  static std::string number(double value) {
    if (std::isnan(value)) return "NaN";
    if (std::isinf(value)) return value < 0 ? "-Infinity" : "Infinity";
    return float_repr(value);
  }

  void string(std::string_view text) {
    out += '"';
    for (size_t p = 0; p < text.size();) {
      const char32_t code = decode_at(text, p);
      static constexpr std::string_view kFrom = "\"\\\n\r\t\b\f";
      static constexpr std::string_view kTo = "\"\\nrtbf";
      const size_t simple =
          code < 0x80 ? kFrom.find(static_cast<char>(code)) : std::string_view::npos;
      if (simple != std::string_view::npos) {
        out += '\\';
        out += kTo[simple];
      } else if (code >= 0x20 && (code < 0x7f || !style_.ensure_ascii)) {
        append_code_point(out, code);
      } else if (code < 0x10000) {
        append_hex(out, "\\u", code, 4);
      } else {
        append_hex(out, "\\u", 0xd800 + ((code - 0x10000) >> 10), 4);
        append_hex(out, "\\u", 0xdc00 + ((code - 0x10000) & 0x3ff), 4);
      }
    }
    out += '"';
  }

  void newline(int level) {
    if (!style_.indent) return;
    out += '\n';
    for (int i = 0; i < level; ++i) out += *style_.indent;
  }

  void array(const Seq& seq, int level) {
    if (seq.items.empty()) {
      out += "[]";
      return;
    }
    out += '[';
    for (size_t i = 0; i < seq.items.size(); ++i) {
      if (i > 0) out += style_.item_separator;
      newline(level + 1);
      write(seq.items[i], level + 1);
    }
    newline(level);
    out += ']';
  }

  void key(const Value& key) {
    switch (key.type()) {
      case Type::kString:
        return string(key.str());
      case Type::kBool:
        return string(key.as_bool() ? "true" : "false");
      case Type::kNone:
        return string("null");
      case Type::kInt:
        return string(std::to_string(key.as_int()));
      case Type::kFloat:
        return string(number(key.as_double()));
      default:
        fail("tojson: a '" + type_name(key) + "' cannot be an object key");
    }
  }

  void object(const Dict& dict, int level) {
    if (dict.items.empty()) {
      out += "{}";
      return;
    }
    std::vector<const std::pair<Value, Value>*> items;
    for (const auto& item : dict.items) items.push_back(&item);
    if (style_.sort_keys) {
      std::stable_sort(items.begin(), items.end(),
                       [&](const auto* a, const auto* b) { return less(rt_, a->first, b->first); });
    }
    out += '{';
    for (size_t i = 0; i < items.size(); ++i) {
      if (i > 0) out += style_.item_separator;
      newline(level + 1);
      key(items[i]->first);
      out += style_.key_separator;
      write(items[i]->second, level + 1);
    }
    newline(level);
    out += '}';
  }

  Runtime& rt_;
  const JsonStyle& style_;
};

}  // namespace

std::string to_json(Runtime& rt, const Value& value, const JsonStyle& style) {
  JsonWriter writer(rt, style);
  writer.write(value, 0);
  return std::move(writer.out);
}

std::string escape_html(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '\'':
        out += "&#39;";
        break;
      case '"':
        out += "&#34;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

std::string format_time(const std::tm& time, const std::string& format) {
  // What Python's datetime does before it calls strftime: a naive time without microseconds.
  std::string expanded;
  for (size_t i = 0; i < format.size(); ++i) {
    if (format[i] != '%' || i + 1 >= format.size()) {
      expanded += format[i];
      continue;
    }
    const char c = format[++i];
    if (c == 'f') {
      expanded += "000000";
    } else if (c != 'z' && c != 'Z') {
      expanded += '%';
      expanded += c;
    }
  }
  if (expanded.empty()) return {};
  if (expanded.find('\0') != std::string::npos) fail("strftime_now(): embedded null character");
  if (expanded.size() > 4096) fail("strftime_now(): the format is longer than 4096 bytes");
  // A marker tells an empty result from a full buffer.
  expanded += '.';
  std::string out(expanded.size() * 32 + 256, '\0');
  const size_t size = std::strftime(out.data(), out.size(), expanded.c_str(), &time);
  if (size == 0) fail("strftime_now(): the format '" + format + "' gives too long a text");
  out.resize(size - 1);
  return out;
}

}  // namespace sub8::jinja
