// Comparison, arithmetic and iteration with Python's rules.
#include "text/chat_template/value.h"

#include <algorithm>
#include <cmath>

#include "text/chat_template/runtime.h"

namespace sub8::jinja {

void fail(std::string message) { fail_as(ErrorCode::kInvalidArgument, std::move(message)); }
void fail_as(ErrorCode code, std::string message) {
  throw TemplateFailure{code, std::move(message), 0};
}

Value Value::undefined(std::string hint) {
  Value value;
  std::get<Undefined>(value.storage_).hint = std::make_shared<const std::string>(std::move(hint));
  return value;
}

std::string Value::undefined_hint() const {
  const auto& hint = std::get<Undefined>(storage_).hint;
  return hint ? *hint : "the value is undefined";
}

Value Object::call(Runtime&, Args&) { fail("a " + type_name() + " cannot be called"); }
std::optional<Value> Object::attribute(Runtime&, std::string_view) { return std::nullopt; }

std::string NativeFunction::repr(Runtime&) const { return "<built-in function " + name_ + ">"; }

std::string Namespace::repr(Runtime& rt) const {
  std::string out = "<Namespace {";
  for (size_t i = 0; i < values_.size(); ++i) {
    out += (i == 0 ? "" : ", ") + string_repr(values_[i].first) + ": ";
    // A namespace can hold itself.
    const Runtime::Nest nest(rt);
    append_repr(rt, values_[i].second, out);
  }
  return out + "}>";
}

std::optional<Value> Namespace::attribute(Runtime& rt, std::string_view name) {
  rt.step(values_.size() / 16);
  for (const auto& [key, value] : values_) {
    if (key == name) return value;
  }
  return std::nullopt;
}

void Namespace::set(std::string_view name, Value value) {
  for (auto& [key, old] : values_) {
    if (key == name) {
      old = std::move(value);
      return;
    }
  }
  values_.emplace_back(std::string(name), std::move(value));
}

std::optional<Value> Iterator::next() {
  if (position_ < items_.size()) return items_[position_++];
  if (failure_) throw *failure_;
  return std::nullopt;
}

std::vector<Value> Iterator::take_all() {
  std::vector<Value> rest(items_.begin() + static_cast<std::ptrdiff_t>(position_), items_.end());
  position_ = items_.size();
  if (failure_) throw *failure_;
  return rest;
}

const Value* Dict::find(std::string_view key) const {
  if (index.empty()) {
    for (size_t i = 0; i < keys.size(); ++i) {
      if (keys[i] == key) return &items[i].second;
    }
    return nullptr;
  }
  const auto found = index.find(std::string(key));
  return found == index.end() ? nullptr : &items[found->second].second;
}

void Dict::set(std::string canonical, Value key, Value value) {
  depth = std::max({depth, value_depth(key) + 1, value_depth(value) + 1});
  if (const Value* old = find(canonical)) {
    *const_cast<Value*>(old) = std::move(value);
    return;
  }
  constexpr size_t kLinear = 8;
  items.emplace_back(std::move(key), std::move(value));
  keys.push_back(std::move(canonical));
  if (keys.size() == kLinear + 1) {
    for (size_t i = 0; i < keys.size(); ++i) index.emplace(keys[i], i);
  } else if (keys.size() > kLinear) {
    index.emplace(keys.back(), keys.size() - 1);
  }
}

int value_depth(const Value& value) {
  switch (value.type()) {
    case Type::kSeq:
      return value.seq().depth;
    case Type::kDict:
      return value.dict().depth;
    case Type::kObject:
      return value.object()->depth();
    default:
      return 0;
  }
}

std::string type_name(const Value& value) {
  switch (value.type()) {
    case Type::kUndefined:
      return "Undefined";
    case Type::kNone:
      return "NoneType";
    case Type::kBool:
      return "bool";
    case Type::kInt:
      return "int";
    case Type::kFloat:
      return "float";
    case Type::kString:
      return "str";
    case Type::kDict:
      return "dict";
    case Type::kObject:
      return value.object()->type_name();
    case Type::kSeq:
      break;
  }
  switch (value.seq().kind) {
    case SeqKind::kList:
      return "list";
    case SeqKind::kTuple:
      return "tuple";
    case SeqKind::kRange:
      return "range";
    case SeqKind::kDictKeys:
      return "dict_keys";
    case SeqKind::kDictValues:
      return "dict_values";
    case SeqKind::kDictItems:
      return "dict_items";
    case SeqKind::kGroup:
      return "group";
  }
  return "?";
}

bool truthy(const Value& value) {
  switch (value.type()) {
    case Type::kUndefined:
    case Type::kNone:
      return false;
    case Type::kBool:
      return value.as_bool();
    case Type::kInt:
      return value.as_int() != 0;
    case Type::kFloat:
      return value.as_double() != 0;
    case Type::kString:
      return !value.str().empty();
    case Type::kSeq:
      return !value.seq().items.empty();
    case Type::kDict:
      return !value.dict().items.empty();
    case Type::kObject:
      return true;
  }
  return false;
}

namespace {

// -1, 0, 1; 2 when one is not a number (NaN).
int compare_numbers(const Value& a, const Value& b) {
  if (a.is_integral() && b.is_integral()) {
    return a.as_int() < b.as_int() ? -1 : a.as_int() > b.as_int();
  }
  // 64 bits of mantissa: exact for every int64 and double on x86-64.
  const auto wide = [](const Value& v) -> long double {
    return v.is_float() ? v.as_double() : static_cast<long double>(v.as_int());
  };
  const long double x = wide(a), y = wide(b);
  if (std::isnan(x) || std::isnan(y)) return 2;
  return x < y ? -1 : x > y;
}

bool same_family(const Seq& a, const Seq& b) {
  if (a.tuple_like() && b.tuple_like()) return true;
  if (a.is_view() || b.is_view()) {
    return a.is_view() && b.is_view() && a.kind != SeqKind::kDictValues &&
           b.kind != SeqKind::kDictValues;
  }
  return a.kind == b.kind;
}

bool equal_items(Runtime& rt, const Seq& a, const Seq& b) {
  if (a.items.size() != b.items.size()) return false;
  if (a.is_view()) {  // like sets
    return std::all_of(a.items.begin(), a.items.end(), [&](const Value& x) {
      return std::any_of(b.items.begin(), b.items.end(),
                         [&](const Value& y) { return equals(rt, x, y); });
    });
  }
  for (size_t i = 0; i < a.items.size(); ++i) {
    if (!equals(rt, a.items[i], b.items[i])) return false;
  }
  return true;
}

bool equal_dicts(Runtime& rt, const Dict& a, const Dict& b) {
  if (a.items.size() != b.items.size()) return false;
  for (size_t i = 0; i < a.items.size(); ++i) {
    const Value* other = b.find(a.keys[i]);
    if (other == nullptr || !equals(rt, a.items[i].second, *other)) return false;
  }
  return true;
}

[[noreturn]] void unsupported_operands(std::string_view op, const Value& a, const Value& b) {
  if (a.is_undefined()) fail(a.undefined_hint());
  if (b.is_undefined()) fail(b.undefined_hint());
  fail("unsupported operand types for " + std::string(op) + ": '" + type_name(a) + "' and '" +
       type_name(b) + "'");
}

[[noreturn]] void overflow(std::string_view op) {
  fail_as(ErrorCode::kUnsupported, "integer result of " + std::string(op) + " is beyond 64 bits");
}

}  // namespace

bool equals(Runtime& rt, const Value& a, const Value& b) {
  rt.step();
  if (a.is_number() && b.is_number()) return compare_numbers(a, b) == 0;
  if (a.type() != b.type()) return false;
  switch (a.type()) {
    case Type::kUndefined:
    case Type::kNone:
      return true;
    case Type::kString:
      if (a.str().size() != b.str().size()) return false;
      rt.step(a.str().size() / 64);
      return a.str() == b.str();
    case Type::kSeq:
      return &a.seq() == &b.seq() ||
             (same_family(a.seq(), b.seq()) && equal_items(rt, a.seq(), b.seq()));
    case Type::kDict:
      return &a.dict() == &b.dict() || equal_dicts(rt, a.dict(), b.dict());
    case Type::kObject:
      return a.object() == b.object();
    default:
      return false;
  }
}

bool less(Runtime& rt, const Value& a, const Value& b) {
  rt.step();
  if (a.is_number() && b.is_number()) return compare_numbers(a, b) == -1;
  if (a.is_string() && b.is_string()) {
    rt.step(std::min(a.str().size(), b.str().size()) / 64);
    return a.str() < b.str();  // the order of UTF-8 bytes is that of code points
  }
  if (a.is_seq() && b.is_seq() &&
      ((a.seq().kind == SeqKind::kList && b.seq().kind == SeqKind::kList) ||
       (a.seq().tuple_like() && b.seq().tuple_like()))) {
    const auto& x = a.seq().items;
    const auto& y = b.seq().items;
    for (size_t i = 0; i < std::min(x.size(), y.size()); ++i) {
      if (!equals(rt, x[i], y[i])) return less(rt, x[i], y[i]);
    }
    return x.size() < y.size();
  }
  unsupported_operands("<", a, b);
}

bool less_or_equal(Runtime& rt, const Value& a, const Value& b) {
  if (!a.is_number() || !b.is_number()) return !less(rt, b, a);
  rt.step();
  const int order = compare_numbers(a, b);
  return order == -1 || order == 0;
}

bool contains(Runtime& rt, const Value& needle, const Value& haystack) {
  if (haystack.is_string()) {
    if (!needle.is_string()) {
      fail("'in <string>' requires a string on the left, got '" + type_name(needle) + "'");
    }
    rt.step(1 + haystack.str().size() / 64);
    return haystack.str().find(needle.str()) != std::string::npos;
  }
  if (haystack.is_dict()) return haystack.dict().find(hash_key(rt, needle)) != nullptr;
  if (haystack.is_undefined()) return false;
  if (auto* iterator = haystack.object_as<Iterator>()) {
    while (auto item = iterator->next()) {
      if (equals(rt, needle, *item)) return true;
    }
    return false;
  }
  if (!haystack.is_seq()) fail("'in' needs a container, got '" + type_name(haystack) + "'");
  const auto& items = haystack.seq().items;
  return std::any_of(items.begin(), items.end(),
                     [&](const Value& item) { return equals(rt, needle, item); });
}

bool is_iterable(const Value& value) {
  return value.is_undefined() || value.is_string() || value.is_seq() || value.is_dict() ||
         value.object_as<Iterator>() != nullptr;
}

std::vector<Value> iterate(Runtime& rt, const Value& value) {
  std::vector<Value> out;
  if (value.is_undefined()) return out;
  if (value.is_seq()) {
    rt.bytes(value.seq().items.size() * sizeof(Value));
    return value.seq().items;
  }
  if (value.is_dict()) {
    rt.bytes(value.dict().items.size() * sizeof(Value));
    for (const auto& [key, item] : value.dict().items) out.push_back(key);
    return out;
  }
  if (value.is_string()) {
    const std::string& text = value.str();
    rt.bytes(static_cast<uint64_t>(value.text().length) * (sizeof(Value) + sizeof(Text)));
    for (size_t p = 0; p < text.size();) {
      const size_t begin = p;
      decode_at(text, p);
      out.push_back(rt.string(text.substr(begin, p - begin)));
    }
    return out;
  }
  if (auto* iterator = value.object_as<Iterator>()) return iterator->take_all();
  fail("'" + type_name(value) + "' is not iterable");
}

std::optional<int64_t> length_of(const Value& value) {
  switch (value.type()) {
    case Type::kUndefined:
      return 0;
    case Type::kString:
      return value.text().length;
    case Type::kSeq:
      return static_cast<int64_t>(value.seq().items.size());
    case Type::kDict:
      return static_cast<int64_t>(value.dict().items.size());
    default:
      return std::nullopt;
  }
}

std::string hash_key(std::string_view string_key) { return "s" + std::string(string_key); }

std::string hash_key(Runtime& rt, const Value& key) {
  switch (key.type()) {
    case Type::kUndefined:
      return "u";
    case Type::kNone:
      return "0";
    case Type::kBool:
    case Type::kInt:
      return "i" + std::to_string(key.as_int());
    case Type::kFloat: {
      const double d = key.as_double();
      if (d == std::floor(d) && std::fabs(d) < 9e18) {
        return "i" + std::to_string(static_cast<int64_t>(d));
      }
      return "f" + float_repr(d);
    }
    case Type::kString:
      rt.step(key.str().size() / 64);
      return hash_key(key.str());
    case Type::kObject:
      return "o" + std::to_string(reinterpret_cast<uintptr_t>(key.object().get()));
    case Type::kSeq: {
      if (!key.seq().tuple_like() && key.seq().kind != SeqKind::kRange) break;
      std::string out = "t(";
      for (const Value& item : key.seq().items) {
        const std::string part = hash_key(rt, item);
        out += std::to_string(part.size()) + ":" + part;
        rt.check_size(out.size());
        rt.bytes(part.size());
      }
      return out;
    }
    case Type::kDict:
      break;
  }
  fail("a '" + type_name(key) + "' cannot be a dict key");
}

Value add(Runtime& rt, const Value& a, const Value& b) {
  if (a.is_integral() && b.is_integral()) {
    int64_t result = 0;
    if (__builtin_add_overflow(a.as_int(), b.as_int(), &result)) overflow("+");
    return result;
  }
  if (a.is_number() && b.is_number()) return a.as_double() + b.as_double();
  if (a.is_string() && b.is_string()) {
    const bool markup = a.text().markup || b.text().markup;
    rt.check_size(a.str().size() + b.str().size());
    if (!markup) return rt.string(a.str() + b.str());
    const auto safe = [](const Value& v) {
      return v.text().markup ? v.str() : escape_html(v.str());
    };
    return rt.string(safe(a) + safe(b), true);
  }
  if (a.is_seq() && b.is_seq() && a.seq().kind != SeqKind::kRange && !a.seq().is_view() &&
      (a.seq().kind == b.seq().kind || (a.seq().tuple_like() && b.seq().tuple_like()))) {
    std::vector<Value> items = a.seq().items;
    items.insert(items.end(), b.seq().items.begin(), b.seq().items.end());
    return rt.list(std::move(items), a.seq().tuple_like() ? SeqKind::kTuple : SeqKind::kList);
  }
  unsupported_operands("+", a, b);
}

Value subtract(Runtime&, const Value& a, const Value& b) {
  if (a.is_integral() && b.is_integral()) {
    int64_t result = 0;
    if (__builtin_sub_overflow(a.as_int(), b.as_int(), &result)) overflow("-");
    return result;
  }
  if (a.is_number() && b.is_number()) return a.as_double() - b.as_double();
  unsupported_operands("-", a, b);
}

Value multiply(Runtime& rt, const Value& a, const Value& b) {
  if (a.is_integral() && b.is_integral()) {
    int64_t result = 0;
    if (__builtin_mul_overflow(a.as_int(), b.as_int(), &result)) overflow("*");
    return result;
  }
  if (a.is_number() && b.is_number()) return a.as_double() * b.as_double();
  if (a.is_integral() && (b.is_string() || b.is_seq())) return multiply(rt, b, a);
  if (b.is_integral() && a.is_string()) {
    const auto count = static_cast<uint64_t>(std::max<int64_t>(b.as_int(), 0));
    const std::string& unit = a.str();
    if (unit.empty() || count == 0) return rt.string("", a.text().markup);
    if (count > rt.limits().max_bytes) rt.check_size(count);
    rt.check_size(count * unit.size());
    std::string out;
    out.reserve(count * unit.size());
    for (uint64_t i = 0; i < count; ++i) out += unit;
    return rt.string(std::move(out), a.text().markup);
  }
  if (b.is_integral() && a.is_seq() && (a.seq().kind == SeqKind::kList || a.seq().tuple_like())) {
    const auto count = static_cast<uint64_t>(std::max<int64_t>(b.as_int(), 0));
    const auto& unit = a.seq().items;
    if (!unit.empty() && count > rt.limits().max_bytes) rt.check_size(count);
    rt.check_size(count * unit.size() * sizeof(Value));
    std::vector<Value> items;
    for (uint64_t i = 0; i < count && !unit.empty(); ++i) {
      items.insert(items.end(), unit.begin(), unit.end());
    }
    return rt.list(std::move(items), a.seq().tuple_like() ? SeqKind::kTuple : SeqKind::kList);
  }
  unsupported_operands("*", a, b);
}

Value divide(Runtime&, const Value& a, const Value& b) {
  if (!a.is_number() || !b.is_number()) unsupported_operands("/", a, b);
  if (b.as_double() == 0) fail("division by zero");
  return a.as_double() / b.as_double();
}

Value floor_divide(Runtime&, const Value& a, const Value& b) {
  if (!a.is_number() || !b.is_number()) unsupported_operands("//", a, b);
  if (b.as_double() == 0) fail("division by zero");
  if (a.is_integral() && b.is_integral()) {
    const int64_t x = a.as_int(), y = b.as_int();
    if (y == -1) {
      if (x == INT64_MIN) overflow("//");
      return -x;
    }
    return x / y - (x % y != 0 && (x < 0) != (y < 0));
  }
  // As CPython does: from the remainder, so that both agree.
  const double x = a.as_double(), y = b.as_double();
  double mod = std::fmod(x, y);
  double quotient = (x - mod) / y;
  if (mod != 0 && (y < 0) != (mod < 0)) quotient -= 1;
  if (quotient == 0) return std::copysign(0.0, x / y);
  const double floor = std::floor(quotient);
  return quotient - floor > 0.5 ? floor + 1 : floor;
}

Value modulo(Runtime& rt, const Value& a, const Value& b) {
  if (a.is_string()) return rt.string(printf_format(rt, a.str(), b));
  if (!a.is_number() || !b.is_number()) unsupported_operands("%", a, b);
  if (b.as_double() == 0) fail("modulo by zero");
  if (a.is_integral() && b.is_integral()) {
    const int64_t x = a.as_int(), y = b.as_int();
    if (y == -1) return int64_t{0};
    const int64_t mod = x % y;
    return mod != 0 && (mod < 0) != (y < 0) ? mod + y : mod;
  }
  const double y = b.as_double();
  const double mod = std::fmod(a.as_double(), y);
  if (mod == 0) return std::copysign(0.0, y);
  return (mod < 0) != (y < 0) ? mod + y : mod;
}

Value power(Runtime&, const Value& a, const Value& b) {
  if (!a.is_number() || !b.is_number()) unsupported_operands("**", a, b);
  if (a.is_integral() && b.is_integral() && b.as_int() >= 0) {
    int64_t base = a.as_int(), result = 1;
    for (int64_t n = b.as_int(); n > 0;) {
      if ((n & 1) != 0 && __builtin_mul_overflow(result, base, &result)) overflow("**");
      n >>= 1;
      if (n > 0 && (base == 0 || base == 1)) {
        base = (n & 1) == 0 && base == 0 ? 0 : base;
        if (base == 1) break;
        return int64_t{0};
      }
      if (n > 0 && __builtin_mul_overflow(base, base, &base)) overflow("**");
    }
    return result;
  }
  const double x = a.as_double(), y = b.as_double();
  if (x == 0 && y < 0) fail("0.0 cannot be raised to a negative power");
  if (x < 0 && y != std::floor(y) && std::isfinite(x) && std::isfinite(y)) {
    fail_as(ErrorCode::kUnsupported, "complex numbers are not supported ('**')");
  }
  const double result = std::pow(x, y);
  if (std::isinf(result) && std::isfinite(x) && std::isfinite(y)) fail("result of '**' too large");
  return result;
}

Value negate(Runtime&, const Value& a, bool minus) {
  if (a.is_integral()) {
    if (minus && a.as_int() == INT64_MIN) overflow("-");
    return minus ? -a.as_int() : a.as_int();
  }
  if (a.is_float()) return minus ? -a.as_double() : a.as_double();
  if (a.is_undefined()) fail(a.undefined_hint());
  fail("bad operand type for unary " + std::string(minus ? "-" : "+") + ": '" + type_name(a) + "'");
}

namespace {

std::optional<int64_t> slice_index(const Value& value) {
  if (value.is_undefined() || value.is_none()) return std::nullopt;
  if (!value.is_integral()) fail("slice indices must be integers, got '" + type_name(value) + "'");
  return value.as_int();
}

}  // namespace

Value slice(Runtime& rt, const Value& a, const Value& start, const Value& stop, const Value& step) {
  const int64_t stride = slice_index(step).value_or(1);
  const bool sliceable = a.is_string() || (a.is_seq() && !a.seq().is_view());
  if (!sliceable || stride == 0) {
    if (a.is_undefined()) fail(a.undefined_hint());
    if (!sliceable) fail("a '" + type_name(a) + "' cannot be sliced");
    fail("slice step cannot be zero");
  }
  const int64_t length = *length_of(a);
  const auto clamp = [&](std::optional<int64_t> index, int64_t absent) {
    if (!index) return absent;
    int64_t i = *index < 0 ? *index + length : *index;
    if (i < 0) i = stride < 0 ? -1 : 0;
    return std::min(i, stride < 0 ? length - 1 : length);
  };
  const int64_t from = clamp(slice_index(start), stride < 0 ? length - 1 : 0);
  const int64_t to = clamp(slice_index(stop), stride < 0 ? -1 : length);
  std::vector<int64_t> picks;
  if (a.is_string() && stride == 1) {
    if (from >= to) return rt.string("", a.text().markup);
    rt.step(1 + a.str().size() / 64);
    const size_t begin = byte_offset(a.text(), from);
    return rt.string(a.str().substr(begin, byte_offset(a.text(), to) - begin), a.text().markup);
  }
  const std::vector<Value> items = iterate(rt, a);
  std::vector<Value> out;
  for (int64_t i = from; stride > 0 ? i < to : i > to;) {
    out.push_back(items[static_cast<size_t>(i)]);
    if (__builtin_add_overflow(i, stride, &i)) break;
  }
  if (!a.is_string()) {
    if (a.seq().kind == SeqKind::kRange) {
      int64_t scaled = 0, first = a.seq().start, last = a.seq().start;
      if (__builtin_mul_overflow(stride, a.seq().step, &scaled)) overflow("slice");
      first += from * a.seq().step;
      last += to * a.seq().step;
      Seq range{SeqKind::kRange, std::move(out), 1, first, last, scaled};
      return Value(std::make_shared<const Seq>(std::move(range)));
    }
    return rt.list(std::move(out), a.seq().tuple_like() ? SeqKind::kTuple : SeqKind::kList);
  }
  std::string text;
  for (const Value& c : out) text += c.str();
  return rt.string(std::move(text), a.text().markup);
}

std::optional<Value> element(Runtime& rt, const Value& a, int64_t index) {
  if (!a.is_string() && (!a.is_seq() || a.seq().is_view())) return std::nullopt;
  const int64_t length = *length_of(a);
  if (index < 0) index += length;
  if (index < 0 || index >= length) return std::nullopt;
  if (a.is_seq()) return a.seq().items[static_cast<size_t>(index)];
  if (!a.text().ascii()) rt.step(a.str().size() / 64);
  const size_t begin = byte_offset(a.text(), index);
  size_t end = begin;
  decode_at(a.str(), end);
  return rt.string(a.str().substr(begin, end - begin), a.text().markup);
}

}  // namespace sub8::jinja
