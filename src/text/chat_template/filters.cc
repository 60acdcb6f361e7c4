// Filters on single values: text, numbers, defaults, JSON. The ones on sequences are in
// sequences.cc, which also owns the table.
#include "text/chat_template/filters.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>

namespace sub8::jinja {
namespace {

// The text without the underscores that Python allows between digits, or nothing when one stands
// elsewhere.
std::optional<std::string> without_underscores(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '_') {
      out += text[i];
      continue;
    }
    const auto alnum = [&](size_t k) {
      return k < text.size() && std::isalnum(static_cast<unsigned char>(text[k])) != 0;
    };
    if (i == 0 || !alnum(i - 1) || !alnum(i + 1)) return std::nullopt;
  }
  return out;
}

}  // namespace

std::optional<int64_t> parse_int(std::string_view text, int64_t base) {
  const auto clean = without_underscores(strip(text, nullptr, true, true));
  if (!clean || (base != 0 && (base < 2 || base > 36))) return std::nullopt;
  std::string_view digits = *clean;
  const bool negative = digits.starts_with('-');
  if (negative || digits.starts_with('+')) digits.remove_prefix(1);
  if (digits.size() > 1 && digits[0] == '0') {
    const char kind = static_cast<char>(digits[1] | 0x20);
    const int64_t prefix = kind == 'x' ? 16 : kind == 'o' ? 8 : kind == 'b' ? 2 : 0;
    if (prefix != 0 && (base == 0 || base == prefix)) {
      digits.remove_prefix(2);
      base = prefix;
    } else if (base == 0 && digits.find_first_not_of('0') != std::string_view::npos) {
      return std::nullopt;
    }
  }
  if (base == 0) base = 10;
  uint64_t magnitude = 0;
  const char* end = digits.data() + digits.size();
  const auto parsed = std::from_chars(digits.data(), end, magnitude, static_cast<int>(base));
  if (parsed.ptr != end || digits.empty()) return std::nullopt;
  const uint64_t limit = static_cast<uint64_t>(INT64_MAX) + (negative ? 1 : 0);
  if (parsed.ec != std::errc() || magnitude > limit) {
    fail_as(ErrorCode::kUnsupported,
            "an integer of " + std::to_string(digits.size()) + " digits is beyond 64 bits");
  }
  return static_cast<int64_t>(negative ? 0 - magnitude : magnitude);
}

std::optional<double> parse_float(std::string_view text) {
  const auto clean = without_underscores(strip(text, nullptr, true, true));
  if (!clean || clean->empty()) return std::nullopt;
  const std::string lower = to_lower(*clean);
  const std::string_view body = std::string_view(lower).substr(lower[0] == '-' || lower[0] == '+');
  const bool named = body == "inf" || body == "infinity" || body == "nan";
  if (!named && lower.find_first_not_of("0123456789.e+-") != std::string::npos) return std::nullopt;
  char* end = nullptr;
  const double value = std::strtod(lower.c_str(), &end);
  if (end != lower.c_str() + lower.size()) return std::nullopt;
  return value;
}

namespace {

Value truncate_to_int(double d) {
  if (std::fabs(d) >= 9.2e18) fail_as(ErrorCode::kUnsupported, "int: the number is beyond 64 bits");
  return static_cast<int64_t>(d);
}

}  // namespace

Value filter_int(Runtime&, const Value& self, Args& args) {
  const Bound bound("int", args, {"default", "base"}, 0);
  Value fallback = bound.value(0, int64_t{0});
  if (self.is_undefined()) fail(self.undefined_hint());
  if (self.is_integral()) return self.as_int();
  if (self.is_float()) {
    const double d = self.as_double();
    // Python's int(inf) raises OverflowError outside the filter's except clause.
    if (std::isinf(d)) fail("cannot convert float infinity to integer");
    return std::isnan(d) ? fallback : truncate_to_int(d);
  }
  if (!self.is_string()) return fallback;
  if (const auto value = parse_int(self.str(), bound.integer(1, 10))) return *value;
  if (const auto value = parse_float(self.str()); value && std::isfinite(*value)) {
    return truncate_to_int(*value);
  }
  return fallback;
}

Value filter_float(Runtime&, const Value& self, Args& args) {
  const Bound bound("float", args, {"default"}, 0);
  if (self.is_undefined()) fail(self.undefined_hint());
  if (self.is_number()) return self.as_double();
  if (self.is_string()) {
    if (const auto value = parse_float(self.str())) return *value;
  }
  return bound.value(0, 0.0);
}

Value filter_abs(Runtime& rt, const Value& self, Args& args) {
  const Bound bound("abs", args, {}, 0);
  if (self.is_float()) return std::fabs(self.as_double());
  if (!self.is_integral()) fail("abs: expected a number, got '" + type_name(self) + "'");
  return self.as_int() < 0 ? negate(rt, self, true) : Value(self.as_int());
}

namespace {

// Python's round(): correctly rounded, ties to even.
Value round_common(const Value& self, int64_t precision) {
  if (self.is_integral()) {
    if (precision >= 0) return self.as_int();
    if (precision < -18) return int64_t{0};
    int64_t unit = 1;
    for (int64_t i = 0; i < -precision; ++i) unit *= 10;
    const int64_t value = self.as_int();
    int64_t quotient = value / unit, rest = value % unit;
    if (rest < 0) rest += unit, --quotient;
    if (rest * 2 > unit || (rest * 2 == unit && (quotient & 1) != 0)) ++quotient;
    int64_t result = 0;
    if (__builtin_mul_overflow(quotient, unit, &result)) {
      fail_as(ErrorCode::kUnsupported, "round: the result is beyond 64 bits");
    }
    return result;
  }
  const double value = self.as_double();
  if (!std::isfinite(value) || precision > 300) return value;
  if (precision < -308) return std::copysign(0.0, value);
  if (precision < 0) {
    const double unit = std::pow(10.0, static_cast<double>(-precision));
    return std::nearbyint(value / unit) * unit;
  }
  std::array<char, 700> buffer;
  std::snprintf(buffer.data(), buffer.size(), "%.*f", static_cast<int>(precision), value);
  return std::strtod(buffer.data(), nullptr);
}

}  // namespace

Value filter_round(Runtime&, const Value& self, Args& args) {
  const Bound bound("round", args, {"precision", "method"}, 0);
  const int64_t precision = bound.integer(0, 0);
  const std::string method = bound.string(1, "common");
  if (method != "common" && method != "ceil" && method != "floor") {
    fail("round: method must be common, ceil or floor, got '" + method + "'");
  }
  if (self.is_undefined()) fail(self.undefined_hint());
  if (!self.is_number()) fail("round: expected a number, got '" + type_name(self) + "'");
  if (method == "common") return round_common(self, precision);
  if (precision > 300 || precision < -300) fail("round: precision out of range");
  const double unit = std::pow(10.0, static_cast<double>(precision));
  const double scaled = self.as_double() * unit;
  return (method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / unit;
}

Value filter_default(Runtime& rt, const Value& self, Args& args) {
  const Bound bound("default", args, {"default_value", "boolean"}, 0);
  if (self.is_undefined() || (bound.flag(1, false) && !truthy(self))) {
    return bound.has(0) ? *bound.at(0) : rt.string("");
  }
  return self;
}

Value filter_string(Runtime& rt, const Value& self, Args& args) {
  const Bound bound("string", args, {}, 0);
  return self.is_string() ? self : rt.string(to_str(rt, self));
}

Value filter_upper(Runtime& rt, const Value& self, Args& args) {
  const Bound bound("upper", args, {}, 0);
  return rt.string(to_upper(to_str(rt, self)));
}

Value filter_lower(Runtime& rt, const Value& self, Args& args) {
  const Bound bound("lower", args, {}, 0);
  return rt.string(to_lower(to_str(rt, self)));
}

Value filter_capitalize(Runtime& rt, const Value& self, Args& args) {
  const Bound bound("capitalize", args, {}, 0);
  return rt.string(capitalize(to_str(rt, self)));
}

// Jinja's own: a word begins behind white space, '-', or an opening bracket.
Value filter_title(Runtime& rt, const Value& self, Args& args) {
  const Bound bound("title", args, {}, 0);
  const std::string text = to_str(rt, self);
  std::string out;
  const auto separator = [](char32_t c) {
    return is_space(c) || c == '-' || c == '(' || c == '{' || c == '[' || c == '<';
  };
  for (size_t p = 0; p < text.size();) {
    const size_t begin = p;
    size_t end = p;
    bool first = true, is_separator = false;
    while (end < text.size()) {
      size_t next = end;
      const bool s = separator(decode_at(text, next));
      if (!first && s != is_separator) break;
      is_separator = s;
      first = false;
      end = next;
    }
    size_t second = begin;
    decode_at(text, second);
    const std::string_view view(text);
    out += to_upper(view.substr(begin, second - begin));
    out += to_lower(view.substr(second, end - second));
    p = end;
  }
  return rt.string(std::move(out));
}

Value filter_trim(Runtime& rt, const Value& self, Args& args) {
  const Bound bound("trim", args, {"chars"}, 0);
  const bool chars = bound.has(0) && !bound.at(0)->is_none();
  const std::string set = chars ? bound.string(0, "") : "";
  const std::string text = to_str(rt, self);
  return rt.string(std::string(strip(text, chars ? &set : nullptr, true, true)),
                   self.is_string() && self.text().markup);
}

Value filter_replace(Runtime& rt, const Value& self, Args& args) {
  const Bound bound("replace", args, {"old", "new", "count"}, 2);
  const int64_t count = bound.has(2) && !bound.at(2)->is_none() ? bound.integer(2, -1) : -1;
  return rt.string(
      replace_all(rt, to_str(rt, self), to_str(rt, *bound.at(0)), to_str(rt, *bound.at(1)), count));
}

Value filter_center(Runtime& rt, const Value& self, Args& args) {
  const Bound bound("center", args, {"width"}, 0);
  return rt.string(center_text(rt, to_str(rt, self), bound.integer(0, 80), " "));
}

Value filter_indent(Runtime& rt, const Value& self, Args& args) {
  const Bound bound("indent", args, {"width", "first", "blank"}, 0);
  if (self.is_undefined()) fail(self.undefined_hint());
  if (!self.is_string()) fail("indent: expected a string, got '" + type_name(self) + "'");
  std::string unit;
  if (bound.has(0) && bound.at(0)->is_string()) {
    unit = bound.at(0)->str();
  } else {
    const int64_t width = std::max<int64_t>(bound.integer(0, 4), 0);
    rt.check_size(static_cast<uint64_t>(width));
    unit.assign(static_cast<size_t>(width), ' ');
  }
  const auto lines = split_lines(rt, self.str() + "\n", false);
  const bool blank = bound.flag(2, false);
  std::string out = bound.flag(1, false) ? unit : "";
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) out += '\n';
    if (i > 0 && (blank || !lines[i].empty())) out += unit;
    out += lines[i];
    rt.check_size(out.size());
  }
  return rt.string(std::move(out), self.text().markup);
}

Value filter_truncate(Runtime& rt, const Value& self, Args& args) {
  const Bound bound("truncate", args, {"length", "killwords", "end", "leeway"}, 0);
  const int64_t length = bound.integer(0, 255);
  const std::string end = bound.string(2, "...");
  const int64_t leeway = bound.has(3) && !bound.at(3)->is_none() ? bound.integer(3, 5) : 5;
  const int64_t kept = length - count_code_points(end);
  if (kept < 0) fail("truncate: the length is smaller than the end text");
  if (leeway < 0) fail("truncate: the leeway is negative");
  const auto size = length_of(self);
  if (!size) fail("truncate: expected a string, got '" + type_name(self) + "'");
  if (*size <= length + leeway) return self;
  if (!self.is_string()) fail("truncate: expected a string, got '" + type_name(self) + "'");
  std::string cut = self.str().substr(0, byte_offset(self.text(), kept));
  if (!bound.flag(1, false)) {
    if (const size_t space = cut.rfind(' '); space != std::string::npos) cut.resize(space);
  }
  return rt.string(cut + end);
}

Value filter_wordcount(Runtime& rt, const Value& self, Args& args) {
  const Bound bound("wordcount", args, {}, 0);
  const std::string text = to_str(rt, self);
  int64_t words = 0;
  bool inside = false;
  for (size_t p = 0; p < text.size();) {
    const bool word = is_word(decode_at(text, p));
    words += word && !inside;
    inside = word;
  }
  return words;
}

Value filter_format(Runtime& rt, const Value& self, Args& args) {
  if (!args.positional.empty() && !args.named.empty()) {
    fail("format: positional and named arguments cannot be mixed");
  }
  if (args.named.empty()) {
    return rt.string(printf_format(rt, to_str(rt, self), rt.tuple(args.positional)));
  }
  std::vector<std::pair<Value, Value>> items;
  for (auto& [key, value] : args.named) items.emplace_back(rt.string(key), value);
  return rt.string(printf_format(rt, to_str(rt, self), rt.dict(std::move(items))));
}

Value filter_safe(Runtime& rt, const Value& self, Args& args) {
  const Bound bound("safe", args, {}, 0);
  return rt.string(to_str(rt, self), true);
}

Value filter_escape(Runtime& rt, const Value& self, Args& args) {
  const Bound bound("escape", args, {}, 0);
  if (self.is_string() && self.text().markup) return self;
  return rt.string(escape_html(to_str(rt, self)), true);
}

Value filter_forceescape(Runtime& rt, const Value& self, Args& args) {
  const Bound bound("forceescape", args, {}, 0);
  return rt.string(escape_html(to_str(rt, self)), true);
}

Value filter_urlencode(Runtime& rt, const Value& self, Args& args) {
  const Bound bound("urlencode", args, {}, 0);
  const auto quote = [&](const Value& value, bool query) {
    std::string out;
    for (const char c : to_str(rt, value)) {
      const auto byte = static_cast<unsigned char>(c);
      if (std::isalnum(byte) != 0 || c == '_' || c == '.' || c == '-' || c == '~' ||
          (c == '/' && !query)) {
        out += c;
      } else if (c == ' ' && query) {
        out += '+';
      } else {
        static constexpr std::string_view kHex = "0123456789ABCDEF";
        out += {'%', kHex[byte >> 4], kHex[byte & 15]};
      }
    }
    return out;
  };
  if (self.is_string() || !is_iterable(self)) return rt.string(quote(self, false));
  std::string out;
  const auto pair = [&](const Value& key, const Value& value) {
    out += (out.empty() ? "" : "&") + quote(key, true) + "=" + quote(value, true);
    rt.check_size(out.size());
  };
  if (self.is_dict()) {
    for (const auto& [key, value] : self.dict().items) pair(key, value);
  } else {
    for (const Value& item : iterate(rt, self)) {
      const auto parts = iterate(rt, item);
      if (parts.size() != 2) fail("urlencode: expected pairs");
      pair(parts[0], parts[1]);
    }
  }
  return rt.string(std::move(out));
}

Value filter_tojson(Runtime& rt, const Value& self, Args& args) {
  const Bound bound("tojson", args, {"ensure_ascii", "indent", "separators", "sort_keys"}, 0);
  JsonStyle style;
  style.ensure_ascii = bound.flag(0, false);
  style.sort_keys = bound.flag(3, false);
  if (bound.has(1) && !bound.at(1)->is_none()) {
    if (bound.at(1)->is_string()) {
      style.indent = bound.at(1)->str();
    } else {
      const int64_t width = std::max<int64_t>(bound.integer(1, 0), 0);
      rt.check_size(static_cast<uint64_t>(width));
      style.indent = std::string(static_cast<size_t>(width), ' ');
    }
    style.item_separator = ",";
  }
  if (bound.has(2) && !bound.at(2)->is_none()) {
    const auto separators = iterate(rt, *bound.at(2));
    if (separators.size() != 2 || !separators[0].is_string() || !separators[1].is_string()) {
      fail("tojson: separators must be two strings");
    }
    style.item_separator = separators[0].str();
    style.key_separator = separators[1].str();
  }
  return rt.string(to_json(rt, self, style));
}

std::string center_text(Runtime& rt, const std::string& text, int64_t width,
                        std::string_view fill) {
  const int64_t pad = width - count_code_points(text);
  if (pad <= 0) return text;
  rt.check_size(static_cast<uint64_t>(pad) * fill.size() + text.size());
  const int64_t left = pad / 2 + (pad & width & 1);
  std::string out;
  for (int64_t i = 0; i < left; ++i) out += fill;
  out += text;
  for (int64_t i = left; i < pad; ++i) out += fill;
  return out;
}

std::vector<std::string> split_lines(Runtime& rt, std::string_view text, bool keep_ends) {
  std::vector<std::string> lines;
  size_t begin = 0;
  for (size_t p = 0; p < text.size();) {
    const size_t at = p;
    const char32_t code = decode_at(text, p);
    const bool ends = (code >= 10 && code <= 13) || (code >= 0x1c && code <= 0x1e) ||
                      code == 0x85 || code == 0x2028 || code == 0x2029;
    if (!ends) continue;
    rt.bytes(sizeof(Value));
    if (code == '\r' && p < text.size() && text[p] == '\n') ++p;
    lines.emplace_back(text.substr(begin, (keep_ends ? p : at) - begin));
    begin = p;
  }
  if (begin < text.size()) lines.emplace_back(text.substr(begin));
  return lines;
}

}  // namespace sub8::jinja
