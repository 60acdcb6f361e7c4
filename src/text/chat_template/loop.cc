#include "text/chat_template/loop.h"

#include <algorithm>

namespace sub8::jinja {

LoopObject::LoopObject(Evaluator& evaluator, const Stmt& stmt, const Value& items,
                       std::shared_ptr<Scope> scope, int nesting)
    : evaluator_(evaluator),
      stmt_(stmt),
      source_(iterate(evaluator.runtime(), items)),
      scope_(std::move(scope)),
      nesting_(nesting),
      depth_(value_depth(items) + 2) {}

std::optional<Value> LoopObject::pull() {
  Runtime& rt = evaluator_.runtime();
  while (position_ < source_.size()) {
    rt.step();
    Value item = source_[position_++];
    if (!stmt_.test) return item;
    auto inner = rt.make_scope(scope_);
    evaluator_.assign(*stmt_.target, item, inner);
    if (truthy(evaluator_.eval(*stmt_.test, inner))) return item;
  }
  return std::nullopt;
}

const std::optional<Value>& LoopObject::peek() {
  if (ready_.empty()) {
    if (auto item = pull()) ready_.push_back(*std::move(item));
  }
  peeked_ = ready_.empty() ? std::optional<Value>() : ready_.front();
  return peeked_;
}

std::optional<Value> LoopObject::advance() {
  if (ready_.empty()) {
    auto item = pull();
    if (!item) return std::nullopt;
    ready_.push_back(*std::move(item));
  }
  previous_ = std::move(current_);
  current_ = std::move(ready_.front());
  ready_.pop_front();
  ++index0_;
  return current_;
}

int64_t LoopObject::length() {
  if (!length_) {
    while (auto item = pull()) ready_.push_back(*std::move(item));
    length_ = index0_ + 1 + static_cast<int64_t>(ready_.size());
  }
  return *length_;
}

std::optional<Value> LoopObject::attribute(Runtime& rt, std::string_view name) {
  if (name == "index") return Value(index0_ + 1);
  if (name == "index0") return Value(index0_);
  if (name == "first") return Value(index0_ == 0);
  if (name == "last") return Value(!peek().has_value());
  if (name == "length") return Value(length());
  if (name == "revindex") return Value(length() - index0_);
  if (name == "revindex0") return Value(length() - index0_ - 1);
  if (name == "depth") return Value(static_cast<int64_t>(nesting_ + 1));
  if (name == "depth0") return Value(static_cast<int64_t>(nesting_));
  if (name == "previtem") {
    return previous_ ? *previous_ : Value::undefined("there is no previous item");
  }
  if (name == "nextitem") return peek() ? *peek() : Value::undefined("there is no next item");
  if (name == "cycle") return rt.method("cycle", cycle, Value(shared.lock()));
  if (name == "changed") return rt.method("changed", changed, Value(shared.lock()));
  return std::nullopt;
}

Value LoopObject::cycle(Runtime&, const Value& self, Args& args) {
  const auto& choices = args.positional;
  if (choices.empty()) fail("loop.cycle() needs arguments");
  const auto index = static_cast<size_t>(self.object_as<LoopObject>()->index0_);
  return choices[index % choices.size()];
}

Value LoopObject::changed(Runtime& rt, const Value& self, Args& args) {
  auto* loop = self.object_as<LoopObject>();
  Value now = rt.tuple(args.positional);
  if (loop->last_changed_ && equals(rt, *loop->last_changed_, now)) return false;
  loop->depth_ = std::max(loop->depth_, value_depth(now) + 1);
  loop->last_changed_ = std::move(now);
  return true;
}

Value LoopObject::call(Runtime& rt, Args& args) {
  if (!stmt_.recursive) {
    fail("loop() needs a recursive loop: {% for ... recursive %}");
  }
  const Bound bound("loop", args, {"iterable"}, 1);
  return rt.string(evaluator_.recurse(stmt_, *bound.at(0), scope_, nesting_ + 1));
}

std::string Macro::repr(Runtime&) const {
  return "<Macro " + (name_.empty() ? "anonymous" : string_repr(name_)) + ">";
}

std::optional<Value> Macro::attribute(Runtime& rt, std::string_view name) {
  if (name == "name") return name_.empty() ? Value(None{}) : rt.string(name_);
  if (name == "catch_kwargs") return Value(stmt_.uses_kwargs);
  if (name == "catch_varargs") return Value(stmt_.uses_varargs);
  if (name == "caller") return Value(stmt_.uses_caller);
  if (name != "arguments") return std::nullopt;
  std::vector<Value> names;
  for (const std::string& param : stmt_.params) names.push_back(rt.string(param));
  return rt.tuple(std::move(names));
}

// jinja2's Macro.__call__: positional arguments, then named ones, then defaults.
Value Macro::call(Runtime& rt, Args& args) {
  const std::string shown = name_.empty() ? "caller" : name_;
  const auto& params = stmt_.params;
  rt.step(1 + params.size() * (1 + args.named.size()) / 8);
  std::vector<std::pair<std::string, Value>> named = args.named;
  const auto take = [&](std::string_view name) -> std::optional<Value> {
    const auto found = std::find_if(named.begin(), named.end(),
                                    [&](const auto& argument) { return argument.first == name; });
    if (found == named.end()) return std::nullopt;
    std::optional<Value> value = found->second;
    named.erase(found);
    return value;
  };

  auto scope = rt.make_scope(scope_);
  const size_t given = std::min(args.positional.size(), params.size());
  for (size_t i = 0; i < given; ++i) scope->set(params[i], args.positional[i]);
  std::vector<size_t> missing;
  for (size_t i = given; i < params.size(); ++i) {
    if (auto value = take(params[i])) {
      scope->set(params[i], *std::move(value));
    } else {
      missing.push_back(i);
      scope->set(params[i], Value::undefined("parameter '" + params[i] + "' was not provided"));
    }
  }
  const bool explicit_caller = std::find(params.begin(), params.end(), "caller") != params.end();
  if (stmt_.uses_caller && !explicit_caller) {
    auto caller = take("caller");
    const bool absent = !caller || caller->is_none();
    scope->set("caller", absent ? Value::undefined("no caller defined") : *std::move(caller));
  }
  if (stmt_.uses_kwargs) {
    std::vector<std::pair<Value, Value>> items;
    items.reserve(named.size());
    for (auto& [key, value] : named) items.emplace_back(rt.string(key), std::move(value));
    scope->set("kwargs", rt.dict(std::move(items)));
  } else if (!named.empty()) {
    fail("macro '" + shown + "' takes no keyword argument '" + named[0].first + "'");
  }
  if (stmt_.uses_varargs) {
    scope->set("varargs", rt.tuple({args.positional.begin() + static_cast<std::ptrdiff_t>(given),
                                    args.positional.end()}));
  } else if (args.positional.size() > params.size()) {
    fail("macro '" + shown + "' takes not more than " + std::to_string(params.size()) +
         " argument(s)");
  }
  const size_t first_default = params.size() - stmt_.defaults.size();
  for (const size_t i : missing) {
    if (i >= first_default) {
      scope->set(params[i], evaluator_.eval(*stmt_.defaults[i - first_default], scope));
    }
  }
  return rt.string(evaluator_.call_body(stmt_.body, scope));
}

}  // namespace sub8::jinja
