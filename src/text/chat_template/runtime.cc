// Budget, value factories, attribute lookup and calls.
#include "text/chat_template/runtime.h"

#include <algorithm>

namespace sub8::jinja {

const Value* Scope::find(Runtime& rt, std::string_view name) const {
  for (const Scope* scope = this; scope != nullptr; scope = scope->parent.get()) {
    rt.step(scope->names.size() / 16);
    for (const auto& [key, value] : scope->names) {
      if (key == name) return &value;
    }
  }
  return nullptr;
}

void Scope::set(std::string_view name, Value value) {
  for (auto& [key, old] : names) {
    if (key == name) {
      old = std::move(value);
      return;
    }
  }
  names.emplace_back(std::string(name), std::move(value));
}

Runtime::~Runtime() {
  // Closures and namespaces can refer to each other in cycles and in long chains. All are still
  // held here while each lets go of its values, so nothing is freed recursively.
  for (const auto& space : namespaces_) space->clear();
  for (const auto& scope : scopes_) {
    scope->names.clear();
    scope->parent.reset();
  }
}

void Runtime::step(uint64_t count) {
  steps_ += count;
  if (steps_ > limits_.max_steps) {
    fail_as(ErrorCode::kResourceExhausted,
            "the template needs more than " + std::to_string(limits_.max_steps) +
                " evaluation steps; shorten the conversation or raise max_steps");
  }
}

void Runtime::bytes(uint64_t count) {
  bytes_ += count;
  if (bytes_ > limits_.max_created_bytes) {
    fail_as(ErrorCode::kResourceExhausted,
            "the template creates more than " + std::to_string(limits_.max_created_bytes) +
                " bytes of intermediate values; raise max_created_bytes if that is intended");
  }
}

void Runtime::check_size(uint64_t bytes) const {
  if (bytes > limits_.max_bytes) {
    fail_as(ErrorCode::kResourceExhausted, "a string, list or the output grows beyond " +
                                               std::to_string(limits_.max_bytes) +
                                               " bytes; raise max_bytes if that is intended");
  }
}

Value Runtime::string(std::string text, bool markup) {
  check_size(text.size());
  bytes(text.size() + sizeof(Text));
  auto rep = std::make_shared<Text>();
  rep->length = count_code_points(text);
  rep->bytes = std::move(text);
  rep->markup = markup;
  return Value(std::shared_ptr<const Text>(std::move(rep)));
}

namespace {

void check_depth(int depth, int limit) {
  if (depth > limit) {
    fail_as(ErrorCode::kResourceExhausted,
            "a value is nested deeper than " + std::to_string(limit) + " levels");
  }
}

}  // namespace

Value Runtime::list(std::vector<Value> items, SeqKind kind) {
  check_size(items.size() * sizeof(Value));
  bytes(items.size() * sizeof(Value) + sizeof(Seq));
  auto rep = std::make_shared<Seq>();
  rep->kind = kind;
  for (const Value& item : items) rep->depth = std::max(rep->depth, value_depth(item) + 1);
  check_depth(rep->depth, limits_.max_value_depth);
  rep->items = std::move(items);
  return Value(std::shared_ptr<const Seq>(std::move(rep)));
}

Value Runtime::range(int64_t start, int64_t stop, int64_t step) {
  if (step == 0) fail("range() step must not be zero");
  const auto span =
      step > 0 ? static_cast<__int128>(stop) - start : static_cast<__int128>(start) - stop;
  const __int128 stride = step > 0 ? step : -static_cast<__int128>(step);
  const __int128 count = span <= 0 ? 0 : (span + stride - 1) / stride;
  if (count > limits_.max_range) {
    fail_as(ErrorCode::kResourceExhausted,
            "range() with more than " + std::to_string(limits_.max_range) + " elements");
  }
  auto rep = std::make_shared<Seq>();
  rep->kind = SeqKind::kRange;
  rep->start = start;
  rep->stop = stop;
  rep->step = step;
  bytes(static_cast<uint64_t>(count) * sizeof(Value) + sizeof(Seq));
  for (int64_t i = 0; i < static_cast<int64_t>(count); ++i)
    rep->items.emplace_back(start + i * step);
  return Value(std::shared_ptr<const Seq>(std::move(rep)));
}

Value Runtime::dict(std::vector<std::pair<Value, Value>> items) {
  constexpr uint64_t kItemBytes = 200;  // both values, the canonical key, its index entry
  bytes(items.size() * kItemBytes + sizeof(Dict));
  auto rep = std::make_shared<Dict>();
  for (std::pair<Value, Value>& item : items) {
    std::string canonical = hash_key(*this, item.first);
    rep->set(std::move(canonical), std::move(item.first), std::move(item.second));
  }
  check_depth(rep->depth, limits_.max_value_depth);
  return Value(std::shared_ptr<const Dict>(std::move(rep)));
}

Value Runtime::iterator(std::vector<Value> items) {
  bytes(items.size() * sizeof(Value) + sizeof(Iterator));
  int depth = 1;
  for (const Value& item : items) depth = std::max(depth, value_depth(item) + 1);
  check_depth(depth, limits_.max_value_depth);
  return Value(std::shared_ptr<Object>(std::make_shared<Iterator>(std::move(items), depth)));
}

Value Runtime::method(std::string_view name, Native native, const Value& self) {
  const int depth = value_depth(self) + 1;
  check_depth(depth, limits_.max_value_depth);
  return Value(std::shared_ptr<Object>(
      std::make_shared<NativeFunction>(std::string(name), native, self, depth)));
}

std::shared_ptr<Namespace> Runtime::make_namespace() {
  bytes(sizeof(Namespace));
  return namespaces_.emplace_back(std::make_shared<Namespace>());
}

std::shared_ptr<Scope> Runtime::make_scope(std::shared_ptr<Scope> parent) {
  auto scope = std::make_shared<Scope>();
  scope->level = parent ? parent->level + 1 : 0;
  check_depth(scope->level, limits_.max_depth);
  scope->parent = std::move(parent);
  return scope;
}

void Runtime::keep(std::shared_ptr<Scope> scope) {
  for (; scope && !scope->kept; scope = scope->parent) {
    bytes(sizeof(Scope));
    scope->kept = true;
    scopes_.push_back(scope);
  }
}

Runtime::Nest::Nest(Runtime& rt) : rt_(rt) {
  if (rt_.depth_ >= rt_.limits_.max_depth) {
    fail_as(ErrorCode::kResourceExhausted,
            "evaluation is nested deeper than " + std::to_string(rt_.limits_.max_depth) +
                " levels (a macro or loop that calls itself without end?)");
  }
  ++rt_.depth_;
}

Value Runtime::plain_attribute(const Value& value, std::string_view name) {
  const auto absent = [&] {
    return Value::undefined("'" + type_name(value) + "' object has no attribute '" +
                            std::string(name) + "'");
  };
  if (value.is_object()) {
    if (auto found = value.object()->attribute(*this, name)) return *std::move(found);
    return absent();
  }
  if (is_mutating_method(value, name)) {
    return Value::undefined("access to attribute '" + std::string(name) + "' of '" +
                            type_name(value) +
                            "' object is unsafe: templates cannot change values");
  }
  if (value.is_seq() && value.seq().kind == SeqKind::kGroup) {
    if (name == "grouper") return value.seq().items[0];
    if (name == "list") return value.seq().items[1];
  }
  if (value.is_number() && name == "real") return negate(*this, value, false);
  if (value.is_number() && name == "imag") {
    return value.is_float() ? Value(0.0) : Value(int64_t{0});
  }
  if (const Native native = find_method(value, name)) return method(name, native, value);
  return absent();
}

namespace {

// The element under `key`, or nothing (Python's LookupError or TypeError).
std::optional<Value> lookup(Runtime& rt, const Value& value, const Value& key) {
  if (value.is_dict()) {
    if (key.is_dict() || (key.is_seq() && key.seq().kind == SeqKind::kList)) return std::nullopt;
    if (const Value* found = value.dict().find(hash_key(rt, key))) return *found;
    return std::nullopt;
  }
  if (!key.is_integral()) return std::nullopt;
  return element(rt, value, key.as_int());
}

}  // namespace

Value Runtime::get_attribute(const Value& value, std::string_view name) {
  step();
  if (value.is_undefined())
    fail(value.undefined_hint() + ", so it has no attribute '" + std::string(name) + "'");
  Value found = plain_attribute(value, name);
  if (!found.is_undefined() || value.is_object() || is_mutating_method(value, name)) return found;
  if (value.is_dict()) {
    if (const Value* item = value.dict().find(hash_key(name))) return *item;
  }
  return found;
}

Value Runtime::get_item(const Value& value, const Value& key) {
  step();
  if (value.is_undefined()) fail(value.undefined_hint() + ", so it has no elements");
  if (auto found = lookup(*this, value, key)) return *std::move(found);
  if (key.is_string()) return plain_attribute(value, key.str());
  const std::string shown = key.is_number() ? to_repr(*this, key) : "'" + type_name(key) + "'";
  return Value::undefined("'" + type_name(value) + "' object has no element " + shown);
}

Value Runtime::call(const Value& callee, Args& args) {
  step();
  if (callee.is_undefined()) fail(callee.undefined_hint() + ", so it cannot be called");
  if (!callee.is_object() || !callee.object()->callable()) {
    fail("a '" + type_name(callee) + "' cannot be called");
  }
  const Nest nest(*this);
  // NOLINTNEXTLINE(performance-unnecessary-copy-initialization): keeps it alive while it runs
  const std::shared_ptr<Object> hold = callee.object();
  return hold->call(*this, args);
}

Value Runtime::filter(std::string_view name, const Value& value, Args& args) {
  step();
  const Native native = find_filter(name);
  if (native == nullptr) {
    fail_as(ErrorCode::kUnsupported, "no filter named '" + std::string(name) + "'");
  }
  const Nest nest(*this);
  return native(*this, value, args);
}

bool Runtime::test(std::string_view name, const Value& value, Args& args) {
  step();
  const TestFunction function = find_test(name);
  if (function == nullptr) {
    fail_as(ErrorCode::kUnsupported, "no test named '" + std::string(name) + "'");
  }
  return function(*this, value, args);
}

Bound::Bound(std::string_view function, Args& args, std::initializer_list<const char*> names,
             size_t required)
    : function_(function), values_(names.size()) {
  if (args.positional.size() > names.size()) {
    fail(function_ + "() takes at most " + std::to_string(names.size()) + " arguments, got " +
         std::to_string(args.positional.size()));
  }
  for (size_t i = 0; i < args.positional.size(); ++i) values_[i] = &args.positional[i];
  for (const auto& argument : args.named) {
    const std::string& key = argument.first;
    const auto* found =
        std::find_if(names.begin(), names.end(), [&](const char* name) { return key == name; });
    if (found == names.end()) fail(function_ + "() has no argument '" + key + "'");
    const auto i = static_cast<size_t>(found - names.begin());
    if (values_[i] != nullptr) fail(function_ + "() got argument '" + key + "' twice");
    values_[i] = &argument.second;
  }
  for (size_t i = 0; i < required; ++i) {
    if (values_[i] == nullptr) {
      const std::string_view name = names.begin()[i];
      fail(function_ + "() needs argument '" + std::string(name.substr(name[0] == '/')) + "'");
    }
  }
}

bool Bound::flag(size_t i, bool fallback) const { return has(i) ? truthy(*values_[i]) : fallback; }

int64_t Bound::integer(size_t i, int64_t fallback) const {
  if (!has(i)) return fallback;
  if (!values_[i]->is_integral()) {
    fail(function_ + "() argument " + std::to_string(i + 1) + " must be an integer, got '" +
         type_name(*values_[i]) + "'");
  }
  return values_[i]->as_int();
}

std::string Bound::string(size_t i, std::string_view fallback) const {
  if (!has(i)) return std::string(fallback);
  if (!values_[i]->is_string()) {
    fail(function_ + "() argument " + std::to_string(i + 1) + " must be a string, got '" +
         type_name(*values_[i]) + "'");
  }
  return values_[i]->str();
}

}  // namespace sub8::jinja
