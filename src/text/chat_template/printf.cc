// Python's two formatting mini-languages: "%5.2f" % value and "{:>5}".format(value).
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>

#include "text/chat_template/filters.h"

namespace sub8::jinja {
namespace {

constexpr int64_t kMaxWidth = 1'000'000;

struct Spec {
  std::string fill = " ";
  char align = '\0';  // < > ^ =
  char sign = '-';    // '-': only when negative, '+', ' '
  bool alternate = false;
  bool zero = false;
  char grouping = '\0';  // ',' or '_'
  int64_t width = 0;
  int64_t precision = -1;
  char type = '\0';
};

std::string to_base(uint64_t magnitude, int base, bool upper) {
  std::array<char, 66> buffer;
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), magnitude, base);
  std::string out(buffer.data(), end.ptr);
  return upper ? to_upper(out) : out;
}

std::string double_text(double value, char type, int64_t precision, bool alternate) {
  if (precision > 300) fail("format: a precision beyond 300 is not supported");
  std::string format = alternate ? "%#.*" : "%.*";
  format += type;
  std::array<char, 800> buffer;
  const int size = std::snprintf(buffer.data(), buffer.size(), format.c_str(),
                                 static_cast<int>(precision < 0 ? 6 : precision), value);
  return std::string(buffer.data(), static_cast<size_t>(std::clamp(size, 0, 799)));
}

std::string group_digits(const std::string& text, char separator, size_t group = 3) {
  const size_t whole = std::min(text.find_first_not_of("0123456789abcdefABCDEF"), text.size());
  std::string out;
  for (size_t i = 0; i < whole; ++i) {
    if (i > 0 && (whole - i) % group == 0) out += separator;
    out += text[i];
  }
  return out + text.substr(whole);
}

// sign + prefix + digits in `width`. Numbers align right unless told otherwise.
std::string pad(Runtime& rt, const Spec& spec, const std::string& head, const std::string& body,
                char default_align) {
  const int64_t used = count_code_points(head) + count_code_points(body);
  if (used >= spec.width) return head + body;
  if (spec.width > kMaxWidth) fail("format: a width beyond a million is not supported");
  const auto missing = static_cast<size_t>(spec.width - used);
  rt.check_size(missing * spec.fill.size());
  const auto fill = [&](size_t n) {
    std::string out;
    for (size_t i = 0; i < n; ++i) out += spec.fill;
    return out;
  };
  switch (spec.align != '\0' ? spec.align : default_align) {
    case '<':
      return head + body + fill(missing);
    case '^':
      return fill(missing / 2) + head + body + fill(missing - missing / 2);
    case '=':
      return head + fill(missing) + body;
    default:
      return fill(missing) + head + body;
  }
}

std::string sign_of(bool negative, const Spec& spec) {
  return negative ? "-" : spec.sign == '-' ? "" : std::string(1, spec.sign);
}

// --- the % operator

class Printf {
 public:
  Printf(Runtime& rt, const std::string& format, const Value& arguments)
      : rt_(rt), format_(format), arguments_(arguments) {
    if (arguments.is_seq() && arguments.seq().tuple_like()) {
      list_ = arguments.seq().items;
    } else {
      list_ = {arguments};
    }
  }

  std::string run() {
    while (position_ < format_.size()) {
      const size_t percent = std::min(format_.find('%', position_), format_.size());
      out_ += format_.substr(position_, percent - position_);
      position_ = percent;
      if (position_ < format_.size()) conversion();
      rt_.check_size(out_.size());
    }
    const bool mapping = arguments_.is_undefined() || arguments_.is_dict() ||
                         (arguments_.is_seq() && !arguments_.seq().tuple_like());
    if (next_ < list_.size() && !used_mapping_ && !mapping) {
      fail("not all arguments converted during string formatting");
    }
    return std::move(out_);
  }

 private:
  char peek() const {
    if (position_ >= format_.size()) fail("incomplete format '" + format_.substr(0, 80) + "'");
    return format_[position_];
  }

  Value take() {
    if (next_ >= list_.size()) fail("not enough arguments for format string");
    return list_[next_++];
  }

  int64_t number() {
    if (peek() == '*') {
      ++position_;
      const Value value = take();
      if (!value.is_integral()) fail("* wants int");
      return value.as_int();
    }
    int64_t value = 0;
    while (peek() >= '0' && peek() <= '9') {
      value = std::min<int64_t>(value * 10 + (format_[position_++] - '0'), kMaxWidth + 1);
    }
    return value;
  }

  void conversion() {
    ++position_;
    Spec spec;
    std::optional<Value> subject;
    if (peek() == '(') subject = mapped();
    for (bool flags = true; flags;) {
      switch (peek()) {
        case '-':
          spec.align = '<';
          break;
        case '+':
          spec.sign = '+';
          break;
        case ' ':
          spec.sign = spec.sign == '+' ? '+' : ' ';
          break;
        case '#':
          spec.alternate = true;
          break;
        case '0':
          spec.zero = true;
          break;
        default:
          flags = false;
      }
      if (flags) ++position_;
    }
    spec.width = number();
    if (spec.width < 0) {
      spec.align = '<';
      spec.width = -spec.width;
    }
    if (peek() == '.') {
      ++position_;
      spec.precision = std::max<int64_t>(number(), 0);
    }
    while (peek() == 'h' || peek() == 'l' || peek() == 'L') ++position_;
    spec.type = peek();
    ++position_;
    if (spec.type == '%') {
      out_ += '%';
      return;
    }
    out_ += convert(spec, subject ? *subject : take());
  }

  Value mapped() {
    size_t depth = 1, end = position_ + 1;
    for (; end < format_.size() && depth > 0; ++end) {
      depth += format_[end] == '(';
      depth -= format_[end] == ')';
    }
    if (depth > 0) fail("incomplete format key");
    if (!arguments_.is_dict()) fail("format requires a mapping");
    const std::string key = format_.substr(position_ + 1, end - position_ - 2);
    position_ = end;
    used_mapping_ = true;
    const Value* found = arguments_.dict().find(hash_key(key));
    if (found == nullptr) fail("format: the mapping has no key '" + key + "'");
    return *found;
  }

  std::string convert(const Spec& spec, const Value& value) {
    switch (spec.type) {
      case 's':
        return text(spec, to_str(rt_, value));
      case 'r':
        return text(spec, to_repr(rt_, value));
      case 'c':
        return character(spec, value);
      case 'd':
      case 'i':
      case 'u':
      case 'x':
      case 'X':
      case 'o':
        return integer(spec, value);
      case 'e':
      case 'E':
      case 'f':
      case 'F':
      case 'g':
      case 'G':
        return real(spec, value);
      default:
        fail(std::string("unsupported format character '") + spec.type + "'");
    }
  }

  std::string text(const Spec& spec, std::string value) {
    if (spec.precision >= 0) {
      size_t end = 0;
      for (int64_t i = 0; i < spec.precision && end < value.size(); ++i) decode_at(value, end);
      value.resize(end);
    }
    return pad(rt_, spec, "", value, '>');
  }

  std::string character(const Spec& spec, const Value& value) {
    if (value.is_string() && value.text().length == 1) return pad(rt_, spec, "", value.str(), '>');
    if (!value.is_integral()) fail("%c requires an int or one character");
    const int64_t code = value.as_int();
    if (code < 0 || code > 0x10ffff || (code >= 0xd800 && code <= 0xdfff)) {
      fail("%c: not a Unicode character");
    }
    std::string out;
    append_code_point(out, static_cast<char32_t>(code));
    return pad(rt_, spec, "", out, '>');
  }

  std::string integer(const Spec& spec, const Value& value) {
    const bool decimal = spec.type == 'd' || spec.type == 'i' || spec.type == 'u';
    if (value.is_undefined()) fail(value.undefined_hint());
    if (!value.is_integral() && !(decimal && value.is_float())) {
      fail(std::string("%") + spec.type + " format: a number is required, not '" +
           type_name(value) + "'");
    }
    if (value.is_float() && !(std::fabs(value.as_double()) < 9.2e18)) {
      fail("%d format: the number is not a 64-bit integer");
    }
    const int64_t number =
        value.is_float() ? static_cast<int64_t>(value.as_double()) : value.as_int();
    const auto magnitude =
        number < 0 ? 0 - static_cast<uint64_t>(number) : static_cast<uint64_t>(number);
    std::string digits = to_base(magnitude,
                                 decimal            ? 10
                                 : spec.type == 'o' ? 8
                                                    : 16,
                                 spec.type == 'X');
    if (spec.precision > static_cast<int64_t>(digits.size())) {
      if (spec.precision > kMaxWidth) fail("format: precision too large");
      digits.insert(0, static_cast<size_t>(spec.precision) - digits.size(), '0');
    }
    std::string head = sign_of(number < 0, spec);
    if (spec.alternate && !decimal) head += std::string("0") + spec.type;
    return padded_number(spec, head, digits);
  }

  std::string real(const Spec& spec, const Value& value) {
    if (value.is_undefined()) fail(value.undefined_hint());
    if (!value.is_number()) fail("must be real number, not '" + type_name(value) + "'");
    const double number = value.as_double();
    std::string digits = double_text(std::fabs(number), spec.type, spec.precision, spec.alternate);
    return padded_number(spec, sign_of(std::signbit(number) && !std::isnan(number), spec), digits);
  }

  std::string padded_number(const Spec& spec, const std::string& head, const std::string& digits) {
    Spec padded = spec;
    if (spec.zero && spec.align != '<') {
      padded.fill = "0";
      padded.align = '=';
    }
    return pad(rt_, padded, head, digits, '>');
  }

  Runtime& rt_;
  const std::string& format_;
  const Value& arguments_;
  std::vector<Value> list_;
  size_t position_ = 0;
  size_t next_ = 0;
  bool used_mapping_ = false;
  std::string out_;
};

// --- str.format

Spec parse_spec(const std::string& text) {
  Spec spec;
  size_t p = 0;
  const auto at = [&](size_t i) { return i < text.size() ? text[i] : '\0'; };
  const auto is_align = [](char c) { return c == '<' || c == '>' || c == '^' || c == '='; };
  if (!text.empty()) {
    size_t next = 0;
    decode_at(text, next);
    if (is_align(at(next))) {
      spec.fill = text.substr(0, next);
      spec.align = text[next];
      p = next + 1;
    } else if (is_align(text[0])) {
      spec.align = text[p++];
    }
  }
  if (at(p) == '+' || at(p) == '-' || at(p) == ' ') spec.sign = text[p++];
  if (at(p) == '#') spec.alternate = true, ++p;
  if (at(p) == '0') {
    ++p;
    spec.zero = true;
    if (spec.align == '\0') {
      spec.fill = "0";
      spec.align = '=';
    }
  }
  const auto number = [&] {
    int64_t value = 0;
    while (at(p) >= '0' && at(p) <= '9')
      value = std::min(value * 10 + (text[p++] - '0'), kMaxWidth + 1);
    return value;
  };
  spec.width = number();
  if (at(p) == ',' || at(p) == '_') spec.grouping = text[p++];
  if (at(p) == '.') {
    ++p;
    if (at(p) < '0' || at(p) > '9') fail("format: missing precision");
    spec.precision = number();
  }
  if (p < text.size()) spec.type = text[p++];
  if (p != text.size()) fail("format: invalid format specifier '" + text + "'");
  return spec;
}

std::string format_integer(Runtime& rt, const Spec& spec, int64_t number) {
  if (spec.precision >= 0) fail("format: precision not allowed for an integer");
  if (spec.type == 'n' || spec.type == 'c') {
    fail_as(ErrorCode::kUnsupported, "format types 'n' and 'c' are not supported");
  }
  const int base = spec.type == 'x' || spec.type == 'X' ? 16
                   : spec.type == 'o'                   ? 8
                   : spec.type == 'b'                   ? 2
                                                        : 10;
  const auto magnitude =
      number < 0 ? 0 - static_cast<uint64_t>(number) : static_cast<uint64_t>(number);
  std::string digits = to_base(magnitude, base, spec.type == 'X');
  if (spec.grouping == ',' && base != 10) fail("format: cannot specify ',' with this type");
  if (spec.grouping != '\0') digits = group_digits(digits, spec.grouping, base == 10 ? 3 : 4);
  std::string head = sign_of(number < 0, spec);
  if (spec.alternate && base != 10) head += std::string("0") + spec.type;
  if (spec.grouping != '\0' && spec.align == '=' && spec.fill == "0" && spec.width > 0) {
    fail_as(ErrorCode::kUnsupported, "format: zero padding with grouping is not supported");
  }
  return pad(rt, spec, head, digits, '>');
}

std::string format_real(Runtime& rt, const Spec& spec, double number) {
  const double magnitude = std::fabs(number);
  std::string digits;
  if (spec.type == '\0' && spec.precision < 0) {
    digits = float_repr(magnitude);
  } else if (spec.type == '%') {
    digits = double_text(magnitude * 100, 'f', spec.precision, spec.alternate) + "%";
  } else if (spec.type == '\0' || spec.type == 'n') {
    fail_as(ErrorCode::kUnsupported, "this float format is not supported");
  } else {
    digits = double_text(magnitude, spec.type, spec.precision, spec.alternate);
  }
  if (spec.grouping != '\0') digits = group_digits(digits, spec.grouping);
  if (spec.grouping != '\0' && spec.align == '=' && spec.fill == "0" && spec.width > 0) {
    fail_as(ErrorCode::kUnsupported, "format: zero padding with grouping is not supported");
  }
  return pad(rt, spec, sign_of(std::signbit(number) && !std::isnan(number), spec), digits, '>');
}

std::string format_value(Runtime& rt, const Value& value, const std::string& text) {
  if (text.empty()) return to_str(rt, value);
  if (!value.is_number() && !value.is_string()) {
    fail("format: a '" + type_name(value) + "' takes no format specification");
  }
  Spec spec = parse_spec(text);
  const std::string_view real_types = "eEfFgG%";
  const std::string_view integer_types = "bcdoxXn";
  const auto in = [&](std::string_view types) {
    return spec.type != '\0' && types.find(spec.type) != std::string_view::npos;
  };
  if (value.is_string()) {
    if (spec.type != '\0' && spec.type != 's')
      fail(std::string("format: unknown format code '") + spec.type + "' for a string");
    if (spec.sign != '-' || text.find('#') != std::string::npos || spec.grouping != '\0' ||
        (spec.align == '=' && !spec.zero)) {
      fail("format: this specification is not allowed for a string");
    }
    if (spec.align == '=') spec.align = '<';  // "{:05}" pads a string on its right
    std::string body = value.str();
    if (spec.precision >= 0)
      body.resize(byte_offset(value.text(), std::min(spec.precision, value.text().length)));
    return pad(rt, spec, "", body, '<');
  }
  if (value.is_bool() && spec.type == '\0') spec.type = 'd';
  if (value.is_float() || in(real_types)) {
    if (spec.type != '\0' && !in(real_types) && spec.type != 'n') {
      fail(std::string("format: unknown format code '") + spec.type + "' for a float");
    }
    return format_real(rt, spec, value.as_double());
  }
  if (spec.type != '\0' && !in(integer_types)) {
    fail(std::string("format: unknown format code '") + spec.type + "' for an integer");
  }
  return format_integer(rt, spec, value.as_int());
}

class Formatter {
 public:
  Formatter(Runtime& rt, Args& args) : rt_(rt), args_(args) {}

  std::string run(const std::string& format, int depth) {
    if (depth > 2) fail("format: max string recursion exceeded");
    std::string out;
    for (size_t p = 0; p < format.size(); ++p) {
      const char c = format[p];
      if (c != '{' && c != '}') {
        out += c;
      } else if (p + 1 < format.size() && format[p + 1] == c) {
        out += c;
        ++p;
      } else if (c == '}') {
        fail("format: single '}' in the format string");
      } else {
        size_t end = p + 1, open = 1;
        for (; end < format.size() && open > 0; ++end) {
          open += format[end] == '{';
          open -= format[end] == '}';
        }
        if (open > 0) fail("format: expected '}' before the end of the string");
        out += field(format.substr(p + 1, end - p - 2), depth);
        p = end - 1;
      }
      rt_.check_size(out.size());
    }
    return out;
  }

 private:
  std::string field(const std::string& text, int depth) {
    size_t name_end = 0;
    for (int brackets = 0; name_end < text.size(); ++name_end) {
      brackets += text[name_end] == '[';
      brackets -= text[name_end] == ']';
      if (brackets == 0 && (text[name_end] == ':' || text[name_end] == '!')) break;
    }
    Value value = resolve(text.substr(0, name_end));
    size_t p = name_end;
    if (p < text.size() && text[p] == '!') {
      if (p + 1 >= text.size()) fail("format: missing conversion character");
      const char conversion = text[p + 1];
      if (conversion != 'r' && conversion != 's') {
        fail(std::string("format: unknown or unsupported conversion '") + conversion + "'");
      }
      value = rt_.string(conversion == 'r' ? to_repr(rt_, value) : to_str(rt_, value));
      p += 2;
      if (p < text.size() && text[p] != ':') fail("format: expected ':' after the conversion");
    }
    const std::string spec = p < text.size() ? run(text.substr(p + 1), depth + 1) : "";
    return format_value(rt_, value, spec);
  }

  Value resolve(const std::string& name) {
    const size_t first = std::min(name.find_first_of(".["), name.size());
    Value value = argument(name.substr(0, first));
    for (size_t p = first; p < name.size();) {
      if (name[p] == '.') {
        const size_t end = std::min(name.find_first_of(".[", p + 1), name.size());
        value = rt_.get_attribute(value, name.substr(p + 1, end - p - 1));
        p = end;
      } else if (name[p] == '[') {
        const size_t end = name.find(']', p);
        if (end == std::string::npos) fail("format: missing ']'");
        const std::string key = name.substr(p + 1, end - p - 1);
        const bool numeric =
            !key.empty() && key.find_first_not_of("0123456789") == std::string::npos;
        value =
            rt_.get_item(value, numeric ? Value(parse_int(key, 10).value_or(0)) : rt_.string(key));
        p = end + 1;
      } else {
        fail("format: only '.' or '[' may follow ']'");
      }
    }
    return value;
  }

  Value argument(const std::string& name) {
    const bool numeric = name.find_first_not_of("0123456789") == std::string::npos;
    if (!numeric) {
      for (const auto& [key, value] : args_.named) {
        if (key == name) return value;
      }
      fail("format: no argument '" + name + "'");
    }
    if ((name.empty() ? 1 : 2) == 3 - numbering_) {
      fail("format: automatic and manual field numbers cannot be mixed");
    }
    numbering_ = name.empty() ? 1 : 2;
    const int64_t index = name.empty() ? next_++ : parse_int(name, 10).value_or(0);
    if (index >= static_cast<int64_t>(args_.positional.size())) {
      fail("format: no argument " + std::to_string(index));
    }
    return args_.positional[static_cast<size_t>(index)];
  }

  Runtime& rt_;
  Args& args_;
  int numbering_ = 0;  // 1: automatic, 2: manual
  int64_t next_ = 0;
};

}  // namespace

std::string printf_format(Runtime& rt, const std::string& format, const Value& arguments) {
  return Printf(rt, format, arguments).run();
}

std::string str_format(Runtime& rt, const std::string& format, Args& args) {
  return Formatter(rt, args).run(format, 0);
}

}  // namespace sub8::jinja
