// Tests (`x is odd`) and the global functions.
#include <algorithm>
#include <cmath>
#include <map>

#include "text/chat_template/runtime.h"

namespace sub8::jinja {
namespace {

// The single argument of a test.
const Value& argument(Args& args, std::string_view name) {
  if (args.positional.size() != 1 || !args.named.empty()) {
    fail("test '" + std::string(name) + "' takes one argument");
  }
  return args.positional[0];
}

// A test without arguments from a predicate on the value.
template <class Predicate>
TestFunction simple(Predicate) {
  return [](Runtime&, const Value& self, Args& args) {
    if (!args.positional.empty() || !args.named.empty()) fail("this test takes no argument");
    return Predicate{}(self);
  };
}

bool remainder_is(Runtime& rt, const Value& self, const Value& by, int64_t expected) {
  return equals(rt, modulo(rt, self, by), expected);
}

bool is_odd(Runtime& rt, const Value& self, Args&) { return remainder_is(rt, self, int64_t{2}, 1); }
bool is_even(Runtime& rt, const Value& self, Args&) {
  return remainder_is(rt, self, int64_t{2}, 0);
}
bool divisible_by(Runtime& rt, const Value& self, Args& args) {
  const Bound bound("divisibleby", args, {"num"}, 1);
  return remainder_is(rt, self, *bound.at(0), 0);
}

bool is_in(Runtime& rt, const Value& self, Args& args) {
  const Bound bound("in", args, {"seq"}, 1);
  return contains(rt, self, *bound.at(0));
}

bool same_as(Runtime& rt, const Value& self, Args& args) {
  const Bound bound("sameas", args, {"other"}, 1);
  const Value& other = *bound.at(0);
  if (self.type() != other.type()) return false;
  if (self.is_seq()) return &self.seq() == &other.seq();
  if (self.is_dict()) return &self.dict() == &other.dict();
  return equals(rt, self, other);
}

bool is_eq(Runtime& rt, const Value& a, Args& args) { return equals(rt, a, argument(args, "eq")); }
bool is_ne(Runtime& rt, const Value& a, Args& args) { return !equals(rt, a, argument(args, "ne")); }
bool is_lt(Runtime& rt, const Value& a, Args& args) { return less(rt, a, argument(args, "lt")); }
bool is_gt(Runtime& rt, const Value& a, Args& args) { return less(rt, argument(args, "gt"), a); }
bool is_le(Runtime& rt, const Value& a, Args& args) {
  return less_or_equal(rt, a, argument(args, "le"));
}
bool is_ge(Runtime& rt, const Value& a, Args& args) {
  return less_or_equal(rt, argument(args, "ge"), a);
}

bool filter_exists(Runtime&, const Value& self, Args&) {
  return self.is_string() && find_filter(self.str()) != nullptr;
}
bool test_exists(Runtime&, const Value& self, Args&) {
  return self.is_string() && find_test(self.str()) != nullptr;
}

// Some cased character, and none of the other case.
bool all_case(const std::string& text, bool upper) {
  bool some = false;
  for (size_t p = 0; p < text.size();) {
    const char32_t code = decode_at(text, p);
    if (upper ? is_lower(code) : is_upper(code)) return false;
    some = some || (upper ? is_upper(code) : is_lower(code));
  }
  return some;
}
bool lower_case(Runtime& rt, const Value& self, Args&) { return all_case(to_str(rt, self), false); }
bool upper_case(Runtime& rt, const Value& self, Args&) { return all_case(to_str(rt, self), true); }

bool is_sequence(const Value& v) {
  return v.is_undefined() || v.is_string() || v.is_dict() || (v.is_seq() && !v.seq().is_view());
}

const std::map<std::string, TestFunction, std::less<>>& tests() {
  static const std::map<std::string, TestFunction, std::less<>> table = {
      {"odd", is_odd},
      {"even", is_even},
      {"divisibleby", divisible_by},
      {"defined", simple([](const Value& v) { return !v.is_undefined(); })},
      {"undefined", simple([](const Value& v) { return v.is_undefined(); })},
      {"none", simple([](const Value& v) { return v.is_none(); })},
      {"boolean", simple([](const Value& v) { return v.is_bool(); })},
      {"true", simple([](const Value& v) { return v.is_bool() && v.as_bool(); })},
      {"false", simple([](const Value& v) { return v.is_bool() && !v.as_bool(); })},
      {"integer", simple([](const Value& v) { return v.is_int(); })},
      {"float", simple([](const Value& v) { return v.is_float(); })},
      {"number", simple([](const Value& v) { return v.is_number(); })},
      {"string", simple([](const Value& v) { return v.is_string(); })},
      {"mapping", simple([](const Value& v) { return v.is_dict(); })},
      {"sequence", simple([](const Value& v) { return is_sequence(v); })},
      {"iterable", simple([](const Value& v) { return is_iterable(v); })},
      // Python's Undefined has a __call__, which raises.
      {"callable", simple([](const Value& v) {
         return v.is_undefined() || (v.is_object() && v.object()->callable());
       })},
      {"escaped", simple([](const Value& v) { return v.is_string() && v.text().markup; })},
      {"filter", filter_exists},
      {"test", test_exists},
      {"lower", lower_case},
      {"upper", upper_case},
      {"sameas", same_as},
      {"in", is_in},
      {"eq", is_eq},
      {"equalto", is_eq},
      {"==", is_eq},
      {"ne", is_ne},
      {"!=", is_ne},
      {"lt", is_lt},
      {"lessthan", is_lt},
      {"<", is_lt},
      {"gt", is_gt},
      {"greaterthan", is_gt},
      {">", is_gt},
      {"le", is_le},
      {"<=", is_le},
      {"ge", is_ge},
      {">=", is_ge},
  };
  return table;
}

// --- globals

Value global_range(Runtime& rt, const Value&, Args& args) {
  if (!args.named.empty()) fail("range() takes no named arguments");
  const auto& a = args.positional;
  if (a.empty() || a.size() > 3) fail("range() takes 1 to 3 arguments");
  for (const Value& v : a) {
    if (!v.is_integral()) fail("range() takes integers, got '" + type_name(v) + "'");
  }
  return rt.range(a.size() > 1 ? a[0].as_int() : 0, a.size() > 1 ? a[1].as_int() : a[0].as_int(),
                  a.size() > 2 ? a[2].as_int() : 1);
}

// The items of dict(...) and namespace(...): a mapping or pairs, then named arguments.
std::vector<std::pair<Value, Value>> dict_items(Runtime& rt, Args& args, std::string_view name) {
  std::vector<std::pair<Value, Value>> items;
  if (args.positional.size() > 1)
    fail(std::string(name) + "() takes at most one positional argument");
  if (!args.positional.empty()) {
    const Value& source = args.positional[0];
    if (source.is_dict()) {
      items = source.dict().items;
    } else {
      for (const Value& item : iterate(rt, source)) {
        auto pair = iterate(rt, item);
        if (pair.size() != 2) fail(std::string(name) + "() needs pairs of a key and a value");
        items.emplace_back(std::move(pair[0]), std::move(pair[1]));
      }
    }
  }
  for (auto& [key, value] : args.named) items.emplace_back(rt.string(key), value);
  return items;
}

Value global_dict(Runtime& rt, const Value&, Args& args) {
  return rt.dict(dict_items(rt, args, "dict"));
}

Value global_namespace(Runtime& rt, const Value&, Args& args) {
  auto space = rt.make_namespace();
  for (auto& [key, value] : dict_items(rt, args, "namespace")) {
    if (!key.is_string()) fail_as(ErrorCode::kUnsupported, "namespace() keys must be strings");
    space->set(key.str(), std::move(value));
  }
  return Value(std::shared_ptr<Object>(std::move(space)));
}

Value global_raise(Runtime& rt, const Value&, Args& args) {
  const Bound bound("raise_exception", args, {"message"}, 1);
  fail("the template raised: " + to_str(rt, *bound.at(0)));
}

Value global_strftime(Runtime& rt, const Value&, Args& args) {
  const Bound bound("strftime_now", args, {"format"}, 1);
  return rt.string(format_time(rt.now, bound.string(0, "")));
}

Value global_lipsum(Runtime&, const Value&, Args&) {
  fail_as(ErrorCode::kUnsupported, "lipsum() is not supported (its text is random)");
}

class Joiner : public Object {
 public:
  explicit Joiner(Value separator) : separator_(std::move(separator)) {}
  std::string repr(Runtime&) const override { return "<Joiner>"; }
  std::string type_name() const override { return "Joiner"; }
  bool callable() const override { return true; }
  int depth() const override { return value_depth(separator_) + 1; }
  Value call(Runtime& rt, Args&) override {
    return std::exchange(used_, true) ? separator_ : rt.string("");
  }

 private:
  Value separator_;
  bool used_ = false;
};

class Cycler : public Object {
 public:
  explicit Cycler(Value items) : items_(std::move(items)) {}
  std::string repr(Runtime&) const override { return "<Cycler>"; }
  std::string type_name() const override { return "Cycler"; }
  int depth() const override { return value_depth(items_) + 1; }
  std::optional<Value> attribute(Runtime& rt, std::string_view name) override {
    if (name == "current") return items_.seq().items[position_];
    if (name == "next") return rt.method("next", next, Value(shared_.lock()));
    if (name == "reset") return rt.method("reset", reset, Value(shared_.lock()));
    return std::nullopt;
  }
  static Value make(Runtime& rt, const Value&, Args& args) {
    if (args.positional.empty() || !args.named.empty()) fail("cycler() needs items");
    auto cycler = std::make_shared<Cycler>(rt.tuple(args.positional));
    cycler->shared_ = cycler;
    return Value(std::shared_ptr<Object>(std::move(cycler)));
  }

 private:
  static Value next(Runtime&, const Value& self, Args&) {
    auto* cycler = self.object_as<Cycler>();
    const auto& items = cycler->items_.seq().items;
    const size_t now = std::exchange(cycler->position_, (cycler->position_ + 1) % items.size());
    return items[now];
  }
  static Value reset(Runtime&, const Value& self, Args&) {
    self.object_as<Cycler>()->position_ = 0;
    return None{};
  }

  Value items_;
  size_t position_ = 0;
  std::weak_ptr<Object> shared_;
};

Value global_joiner(Runtime& rt, const Value&, Args& args) {
  const Bound bound("joiner", args, {"sep"}, 0);
  return Value(std::shared_ptr<Object>(
      std::make_shared<Joiner>(bound.has(0) ? *bound.at(0) : rt.string(", "))));
}

}  // namespace

TestFunction find_test(std::string_view name) {
  const auto found = tests().find(name);
  return found == tests().end() ? nullptr : found->second;
}

void define_globals(Runtime& rt, Scope& scope) {
  const auto define = [&](std::string_view name, Native native) {
    scope.set(name, rt.method(name, native, Value()));
  };
  define("range", global_range);
  define("dict", global_dict);
  define("namespace", global_namespace);
  define("raise_exception", global_raise);
  define("strftime_now", global_strftime);
  define("lipsum", global_lipsum);
  define("joiner", global_joiner);
  define("cycler", Cycler::make);
}

}  // namespace sub8::jinja
