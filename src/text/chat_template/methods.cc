// Methods of Python's str, list, tuple and dict that templates may call.
#include <algorithm>
#include <array>
#include <map>

#include "text/chat_template/filters.h"

namespace sub8::jinja {
namespace {

// A str argument that may be None.
std::optional<std::string> optional_string(const Bound& bound, size_t i) {
  if (!bound.has(i) || bound.at(i)->is_none()) return std::nullopt;
  return bound.string(i, "");
}

Value strip_method(Runtime& rt, const Value& self, Args& args, std::string_view name, bool left,
                   bool right) {
  const Bound bound(name, args, {"/chars"}, 0);
  const auto chars = optional_string(bound, 0);
  rt.step(self.str().size() / 64);
  return rt.string(std::string(strip(self.str(), chars ? &*chars : nullptr, left, right)),
                   self.text().markup);
}
Value str_strip(Runtime& rt, const Value& self, Args& args) {
  return strip_method(rt, self, args, "strip", true, true);
}
Value str_lstrip(Runtime& rt, const Value& self, Args& args) {
  return strip_method(rt, self, args, "lstrip", true, false);
}
Value str_rstrip(Runtime& rt, const Value& self, Args& args) {
  return strip_method(rt, self, args, "rstrip", false, true);
}

// The pieces between white space, at most `limit` cuts (-1: all).
std::vector<std::string> split_space(Runtime& rt, std::string_view text, int64_t limit,
                                     bool from_right) {
  std::vector<std::string> out;
  text = strip(text, nullptr, !from_right, from_right);
  while (!text.empty() && limit != 0) {
    size_t cut = std::string_view::npos, rest = 0;
    if (from_right) {
      for (size_t p = text.size(); p > 0;) {
        size_t previous = p - 1;
        while (previous > 0 && (static_cast<unsigned char>(text[previous]) & 0xc0) == 0x80)
          --previous;
        size_t q = previous;
        if (is_space(decode_at(text, q))) {
          cut = previous;
          rest = p;
          break;
        }
        p = previous;
      }
    } else {
      for (size_t p = 0; p < text.size();) {
        const size_t at = p;
        if (is_space(decode_at(text, p))) {
          cut = at;
          rest = p;
          break;
        }
      }
    }
    if (cut == std::string_view::npos) break;
    rt.bytes(sizeof(Value));
    out.emplace_back(from_right ? text.substr(rest) : text.substr(0, cut));
    text = from_right ? strip(text.substr(0, cut), nullptr, false, true)
                      : strip(text.substr(rest), nullptr, true, false);
    if (limit > 0) --limit;
  }
  if (!text.empty()) out.emplace_back(text);
  if (from_right) std::reverse(out.begin(), out.end());
  return out;
}

std::vector<std::string> split_on(Runtime& rt, std::string_view text, std::string_view separator,
                                  int64_t limit, bool from_right) {
  std::vector<std::string> out;
  while (limit != 0) {
    const size_t at = from_right ? text.rfind(separator) : text.find(separator);
    if (at == std::string_view::npos) break;
    rt.bytes(sizeof(Value));
    out.emplace_back(from_right ? text.substr(at + separator.size()) : text.substr(0, at));
    text = from_right ? text.substr(0, at) : text.substr(at + separator.size());
    if (limit > 0) --limit;
  }
  out.emplace_back(text);
  if (from_right) std::reverse(out.begin(), out.end());
  return out;
}

Value to_list(Runtime& rt, std::vector<std::string> parts) {
  std::vector<Value> items;
  items.reserve(parts.size());
  for (std::string& part : parts) items.push_back(rt.string(std::move(part)));
  return rt.list(std::move(items));
}

Value split_method(Runtime& rt, const Value& self, Args& args, std::string_view name, bool right) {
  const Bound bound(name, args, {"sep", "maxsplit"}, 0);
  const auto separator = optional_string(bound, 0);
  const int64_t limit = std::max<int64_t>(bound.integer(1, -1), -1);
  rt.step(self.str().size() / 16);
  if (!separator) return to_list(rt, split_space(rt, self.str(), limit, right));
  if (separator->empty()) fail(std::string(name) + "(): empty separator");
  return to_list(rt, split_on(rt, self.str(), *separator, limit, right));
}
Value str_split(Runtime& rt, const Value& self, Args& args) {
  return split_method(rt, self, args, "split", false);
}
Value str_rsplit(Runtime& rt, const Value& self, Args& args) {
  return split_method(rt, self, args, "rsplit", true);
}

Value str_splitlines(Runtime& rt, const Value& self, Args& args) {
  const Bound bound("splitlines", args, {"keepends"}, 0);
  return to_list(rt, split_lines(rt, self.str(), bound.flag(0, false)));
}

Value partition_method(Runtime& rt, const Value& self, Args& args, bool right) {
  const Bound bound("partition", args, {"/sep"}, 1);
  const std::string separator = bound.string(0, "");
  if (separator.empty()) fail("partition(): empty separator");
  const std::string& text = self.str();
  const size_t at = right ? text.rfind(separator) : text.find(separator);
  if (at == std::string::npos) {
    const Value none = rt.string("");
    return right ? rt.tuple({none, none, self}) : rt.tuple({self, none, none});
  }
  return rt.tuple({rt.string(text.substr(0, at)), rt.string(separator),
                   rt.string(text.substr(at + separator.size()))});
}
Value str_partition(Runtime& rt, const Value& self, Args& args) {
  return partition_method(rt, self, args, false);
}
Value str_rpartition(Runtime& rt, const Value& self, Args& args) {
  return partition_method(rt, self, args, true);
}

// self[start:end] as the searching methods take it; `begin` receives where it starts.
std::optional<std::string_view> window(const Value& self, const Bound& bound, int64_t& begin) {
  const int64_t length = self.text().length;
  const auto clamp = [&](size_t i, int64_t absent) {
    if (!bound.has(i) || bound.at(i)->is_none()) return absent;
    const int64_t index = bound.integer(i, absent);
    return index < 0 ? std::max<int64_t>(index + length, 0) : index;
  };
  begin = clamp(1, 0);
  const int64_t end = std::min(clamp(2, length), length);
  if (begin > end) return std::nullopt;
  const size_t from = byte_offset(self.text(), begin);
  return std::string_view(self.str()).substr(from, byte_offset(self.text(), end) - from);
}

Value affix_method(Runtime& rt, const Value& self, Args& args, std::string_view name, bool front) {
  const Bound bound(name, args, {"/prefix", "/start", "/end"}, 1);
  int64_t begin = 0;
  const auto text = window(self, bound, begin);
  const auto matches = [&](const Value& affix) {
    if (!affix.is_string()) {
      fail(std::string(name) + "() expects a string or a tuple of strings, got '" +
           type_name(affix) + "'");
    }
    rt.step(1 + affix.str().size() / 64);
    return text && (front ? text->starts_with(affix.str()) : text->ends_with(affix.str()));
  };
  const Value& affix = *bound.at(0);
  if (!affix.is_seq() || !affix.seq().tuple_like()) return matches(affix);
  const auto& all = affix.seq().items;
  return std::any_of(all.begin(), all.end(), matches);
}
Value str_startswith(Runtime& rt, const Value& self, Args& args) {
  return affix_method(rt, self, args, "startswith", true);
}
Value str_endswith(Runtime& rt, const Value& self, Args& args) {
  return affix_method(rt, self, args, "endswith", false);
}

int64_t find_text(Runtime& rt, const Value& self, Args& args, std::string_view name, bool last) {
  const Bound bound(name, args, {"/sub", "/start", "/end"}, 1);
  int64_t begin = 0;
  const auto text = window(self, bound, begin);
  const std::string sub = bound.string(0, "");
  rt.step(1 + self.str().size() / 16);
  if (!text) return -1;
  const size_t at = last ? text->rfind(sub) : text->find(sub);
  return at == std::string_view::npos ? -1 : begin + count_code_points(text->substr(0, at));
}
Value str_find(Runtime& rt, const Value& self, Args& args) {
  return find_text(rt, self, args, "find", false);
}
Value str_rfind(Runtime& rt, const Value& self, Args& args) {
  return find_text(rt, self, args, "rfind", true);
}
Value str_index(Runtime& rt, const Value& self, Args& args) {
  const int64_t at = find_text(rt, self, args, "index", false);
  if (at < 0) fail("index(): substring not found");
  return at;
}
Value str_rindex(Runtime& rt, const Value& self, Args& args) {
  const int64_t at = find_text(rt, self, args, "rindex", true);
  if (at < 0) fail("rindex(): substring not found");
  return at;
}

Value str_count(Runtime& rt, const Value& self, Args& args) {
  const Bound bound("count", args, {"/sub", "/start", "/end"}, 1);
  int64_t begin = 0;
  const auto text = window(self, bound, begin);
  const std::string sub = bound.string(0, "");
  rt.step(1 + self.str().size() / 16);
  if (!text) return int64_t{0};
  if (sub.empty()) return count_code_points(*text) + 1;
  int64_t count = 0;
  for (size_t p = text->find(sub); p != std::string_view::npos;
       p = text->find(sub, p + sub.size())) {
    ++count;
  }
  return count;
}

Value str_replace(Runtime& rt, const Value& self, Args& args) {
  const Bound bound("replace", args, {"/old", "/new", "/count"}, 2);
  return rt.string(
      replace_all(rt, self.str(), bound.string(0, ""), bound.string(1, ""), bound.integer(2, -1)),
      self.text().markup);
}

Value str_join(Runtime& rt, const Value& self, Args& args) {
  const Bound bound("join", args, {"/iterable"}, 1);
  if (bound.at(0)->is_undefined()) return rt.string("");
  std::string out;
  bool first = true;
  for (const Value& item : iterate(rt, *bound.at(0))) {
    if (!item.is_string()) fail("join(): expected strings, got '" + type_name(item) + "'");
    if (!first) out += self.str();
    first = false;
    out += item.str();
    rt.check_size(out.size());
  }
  return rt.string(std::move(out));
}

template <std::string (*convert)(std::string_view)>
Value converted(Runtime& rt, const Value& self, Args& args) {
  const Bound bound("this method", args, {}, 0);
  return rt.string(convert(self.str()), self.text().markup);
}

std::string swap_case(std::string_view text) {
  std::string out;
  for (size_t p = 0; p < text.size();) {
    const size_t begin = p;
    const bool upper = is_upper(decode_at(text, p));
    out +=
        upper ? to_lower(text.substr(begin, p - begin)) : to_upper(text.substr(begin, p - begin));
  }
  return out;
}

// The is* methods: every character passes, and there is one.
template <bool (*predicate)(char32_t)>
Value all_are(Runtime& rt, const Value& self, Args& args) {
  const Bound bound("this method", args, {}, 0);
  const std::string& text = self.str();
  rt.step(text.size() / 16);
  for (size_t p = 0; p < text.size();) {
    if (!predicate(decode_at(text, p))) return false;
  }
  return !text.empty();
}

bool is_alnum(char32_t code) { return is_word(code) && code != '_'; }

template <bool upper>
Value str_iscase(Runtime& rt, const Value& self, Args& args) {
  const Bound bound("this method", args, {}, 0);
  Args none;
  return rt.test(upper ? "upper" : "lower", self, none);
}

Value str_isascii(Runtime&, const Value& self, Args&) { return self.text().ascii(); }

Value str_istitle(Runtime&, const Value& self, Args&) {
  bool some = false, previous_cased = false;
  const std::string& text = self.str();
  for (size_t p = 0; p < text.size();) {
    const char32_t code = decode_at(text, p);
    if (is_upper(code) ? previous_cased : is_lower(code) && !previous_cased) return false;
    previous_cased = is_upper(code) || is_lower(code);
    some = some || previous_cased;
  }
  return some;
}

template <int side>  // -1 left, 0 centre, 1 right
Value justified(Runtime& rt, const Value& self, Args& args) {
  const Bound bound("justify", args, {"/width", "/fillchar"}, 1);
  const std::string fill = bound.string(1, " ");
  if (count_code_points(fill) != 1) fail("the fill character must be exactly one character long");
  if (side == 0) return rt.string(center_text(rt, self.str(), bound.integer(0, 0), fill));
  const int64_t pad = std::max<int64_t>(bound.integer(0, 0) - self.text().length, 0);
  rt.check_size(static_cast<uint64_t>(pad));
  std::string padding;
  for (int64_t i = 0; i < pad; ++i) padding += fill;
  return rt.string(side < 0 ? self.str() + padding : padding + self.str());
}

Value str_zfill(Runtime& rt, const Value& self, Args& args) {
  const Bound bound("zfill", args, {"/width"}, 1);
  const int64_t pad = std::max<int64_t>(bound.integer(0, 0) - self.text().length, 0);
  rt.check_size(static_cast<uint64_t>(pad));
  const size_t sign = !self.str().empty() && (self.str()[0] == '-' || self.str()[0] == '+') ? 1 : 0;
  return rt.string(self.str().substr(0, sign) + std::string(static_cast<size_t>(pad), '0') +
                   self.str().substr(sign));
}

Value str_removeprefix(Runtime& rt, const Value& self, Args& args) {
  const Bound bound("removeprefix", args, {"/prefix"}, 1);
  const std::string affix = bound.string(0, "");
  return self.str().starts_with(affix) ? rt.string(self.str().substr(affix.size())) : self;
}
Value str_removesuffix(Runtime& rt, const Value& self, Args& args) {
  const Bound bound("removesuffix", args, {"/suffix"}, 1);
  const std::string affix = bound.string(0, "");
  if (!self.str().ends_with(affix)) return self;
  return rt.string(self.str().substr(0, self.str().size() - affix.size()));
}

Value str_format_method(Runtime& rt, const Value& self, Args& args) {
  return rt.string(str_format(rt, self.str(), args));
}

Value unsupported_method(Runtime&, const Value& self, Args&) {
  fail_as(ErrorCode::kUnsupported, "this method of '" + type_name(self) + "' is not supported");
}

// --- list, tuple, dict

Value seq_count(Runtime& rt, const Value& self, Args& args) {
  const Bound bound("count", args, {"/value"}, 1);
  const auto& items = self.seq().items;
  return static_cast<int64_t>(std::count_if(items.begin(), items.end(), [&](const Value& item) {
    return equals(rt, item, *bound.at(0));
  }));
}

Value seq_index(Runtime& rt, const Value& self, Args& args) {
  const Bound bound("index", args, {"/value", "/start", "/stop"}, 1);
  const auto length = static_cast<int64_t>(self.seq().items.size());
  const auto clamp = [&](int64_t i) {
    return std::clamp<int64_t>(i < 0 ? i + length : i, 0, length);
  };
  const int64_t stop = clamp(bound.integer(2, length));
  for (int64_t i = clamp(bound.integer(1, 0)); i < stop; ++i) {
    if (equals(rt, self.seq().items[static_cast<size_t>(i)], *bound.at(0))) return i;
  }
  fail("index(): the value is not in the list");
}

Value seq_copy(Runtime&, const Value& self, Args&) { return self; }

Value dict_get(Runtime& rt, const Value& self, Args& args) {
  if (!args.named.empty()) fail("get() takes no named arguments");
  const Bound bound("get", args, {"/key", "/default"}, 1);
  const Value* found = self.dict().find(hash_key(rt, *bound.at(0)));
  return found != nullptr ? *found : bound.value(1, None{});
}

Value dict_view(Runtime& rt, const Value& self, Args& args, SeqKind kind) {
  const Bound bound("this method", args, {}, 0);
  std::vector<Value> items;
  for (const auto& [key, value] : self.dict().items) {
    items.push_back(kind == SeqKind::kDictKeys     ? key
                    : kind == SeqKind::kDictValues ? value
                                                   : rt.tuple({key, value}));
  }
  return rt.list(std::move(items), kind);
}
Value dict_keys(Runtime& rt, const Value& self, Args& args) {
  return dict_view(rt, self, args, SeqKind::kDictKeys);
}
Value dict_values(Runtime& rt, const Value& self, Args& args) {
  return dict_view(rt, self, args, SeqKind::kDictValues);
}
Value dict_items(Runtime& rt, const Value& self, Args& args) {
  return dict_view(rt, self, args, SeqKind::kDictItems);
}

using Table = std::map<std::string, Native, std::less<>>;

const Table& string_methods() {
  static const Table table = {
      {"strip", str_strip},
      {"lstrip", str_lstrip},
      {"rstrip", str_rstrip},
      {"split", str_split},
      {"rsplit", str_rsplit},
      {"splitlines", str_splitlines},
      {"partition", str_partition},
      {"rpartition", str_rpartition},
      {"startswith", str_startswith},
      {"endswith", str_endswith},
      {"find", str_find},
      {"rfind", str_rfind},
      {"index", str_index},
      {"rindex", str_rindex},
      {"count", str_count},
      {"replace", str_replace},
      {"join", str_join},
      {"upper", converted<to_upper>},
      {"lower", converted<to_lower>},
      {"title", converted<to_title>},
      {"capitalize", converted<capitalize>},
      {"swapcase", converted<swap_case>},
      {"isalpha", all_are<is_alpha>},
      {"isdigit", all_are<is_digit>},
      {"isdecimal", all_are<is_digit>},
      {"isalnum", all_are<is_alnum>},
      {"isspace", all_are<is_space>},
      {"isupper", str_iscase<true>},
      {"islower", str_iscase<false>},
      {"isascii", str_isascii},
      {"istitle", str_istitle},
      {"ljust", justified<-1>},
      {"center", justified<0>},
      {"rjust", justified<1>},
      {"zfill", str_zfill},
      {"removeprefix", str_removeprefix},
      {"removesuffix", str_removesuffix},
      {"format", str_format_method},
      {"casefold", unsupported_method},
      {"encode", unsupported_method},
      {"expandtabs", unsupported_method},
      {"format_map", unsupported_method},
      {"isidentifier", unsupported_method},
      {"isnumeric", unsupported_method},
      {"isprintable", unsupported_method},
      {"maketrans", unsupported_method},
      {"translate", unsupported_method},
  };
  return table;
}

const Table& list_methods() {
  static const Table table = {{"count", seq_count}, {"index", seq_index}, {"copy", seq_copy}};
  return table;
}
const Table& tuple_methods() {
  static const Table table = {{"count", seq_count}, {"index", seq_index}};
  return table;
}
const Table& dict_methods() {
  static const Table table = {{"get", dict_get},       {"keys", dict_keys},
                              {"values", dict_values}, {"items", dict_items},
                              {"copy", seq_copy},      {"fromkeys", unsupported_method}};
  return table;
}

}  // namespace

Native find_method(const Value& value, std::string_view name) {
  const Table* table = nullptr;
  if (value.is_string()) table = &string_methods();
  if (value.is_dict()) table = &dict_methods();
  if (value.is_seq()) {
    const Seq& seq = value.seq();
    if (seq.kind == SeqKind::kList) table = &list_methods();
    if (seq.tuple_like() || seq.kind == SeqKind::kRange) table = &tuple_methods();
  }
  if (table == nullptr) return nullptr;
  const auto found = table->find(name);
  return found == table->end() ? nullptr : found->second;
}

bool is_mutating_method(const Value& value, std::string_view name) {
  static constexpr std::array<std::string_view, 8> kList = {"append", "clear", "pop",    "reverse",
                                                            "insert", "sort",  "extend", "remove"};
  static constexpr std::array<std::string_view, 5> kDict = {"clear", "pop", "popitem", "setdefault",
                                                            "update"};
  if (value.is_dict()) return std::find(kDict.begin(), kDict.end(), name) != kDict.end();
  return value.is_seq() && value.seq().kind == SeqKind::kList &&
         std::find(kList.begin(), kList.end(), name) != kList.end();
}

}  // namespace sub8::jinja
