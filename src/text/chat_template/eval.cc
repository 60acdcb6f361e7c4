// Walks the syntax tree: statements write to an output, expressions give values.
#include "text/chat_template/eval.h"

#include <algorithm>

#include "text/chat_template/loop.h"

namespace sub8::jinja {

void Evaluator::output(std::string_view text) {
  rt_.check_size(out_->size() + text.size());
  rt_.bytes(text.size());
  *out_ += text;
}

// What a filter or call block gives: jinja2 joins it to the output as it is.
std::string Evaluator::block_text(const Value& value) const {
  if (!value.is_string()) fail("the block gives a '" + type_name(value) + "', expected a string");
  return value.str();
}

std::string Evaluator::render(const Body& body, const std::shared_ptr<Scope>& scope) {
  return call_body(body, scope);
}

std::string Evaluator::call_body(const Body& body, const std::shared_ptr<Scope>& scope) {
  std::string text;
  std::string* outer = std::exchange(out_, &text);
  try {
    exec(body, scope);
  } catch (...) {
    out_ = outer;  // a generator may keep the failure for later
    throw;
  }
  out_ = outer;
  return text;
}

std::string Evaluator::recurse(const Stmt& stmt, const Value& items,
                               const std::shared_ptr<Scope>& scope, int depth) {
  std::string text;
  std::string* outer = std::exchange(out_, &text);
  try {
    exec_for(stmt, items, scope, depth);
  } catch (...) {
    out_ = outer;
    throw;
  }
  out_ = outer;
  return text;
}

Evaluator::Signal Evaluator::exec(const Body& body, const std::shared_ptr<Scope>& scope) {
  for (const auto& stmt : body) {
    const Signal signal = exec_one(*stmt, scope);
    if (signal != Signal::kNone) return signal;
  }
  return Signal::kNone;
}

Evaluator::Signal Evaluator::exec_one(const Stmt& stmt, const std::shared_ptr<Scope>& scope) {
  const Runtime::Nest nest(rt_);
  rt_.line = stmt.line;
  rt_.step();
  switch (stmt.kind) {
    case StmtKind::kText:
      output(stmt.text);
      break;
    case StmtKind::kOutput:
      for (const auto& expr : stmt.exprs) {
        const Value value = eval(*expr, scope);
        output(value.is_string() ? value.str() : to_str(rt_, value));
      }
      break;
    case StmtKind::kIf:
      return exec_if(stmt, scope);
    case StmtKind::kFor:
      return exec_for(stmt, eval(*stmt.expr, scope), scope, 0);
    case StmtKind::kSet:
      assign(*stmt.target, eval(*stmt.expr, scope), scope);
      break;
    case StmtKind::kSetBlock:
      return exec_set_block(stmt, scope);
    case StmtKind::kMacro:
      scope->set(stmt.text, make_macro(stmt, stmt.text, scope));
      break;
    case StmtKind::kCallBlock:
      exec_call_block(stmt, scope);
      break;
    case StmtKind::kFilterBlock: {
      std::string text = call_body(stmt.body, rt_.make_scope(scope));
      output(block_text(apply_filters(stmt.expr.get(), rt_.string(std::move(text)), scope)));
      break;
    }
    case StmtKind::kGeneration: {
      Args none;
      output(to_str(rt_, rt_.call(make_macro(stmt, "", scope), none)));
      break;
    }
    case StmtKind::kWith:
      return exec_with(stmt, scope);
    case StmtKind::kBreak:
      return Signal::kBreak;
    case StmtKind::kContinue:
      return Signal::kContinue;
  }
  return Signal::kNone;
}

Evaluator::Signal Evaluator::exec_if(const Stmt& stmt, const std::shared_ptr<Scope>& scope) {
  for (const auto& [condition, body] : stmt.branches) {
    if (truthy(eval(*condition, scope))) return exec(body, scope);
  }
  return exec(stmt.otherwise, scope);
}

Evaluator::Signal Evaluator::exec_for(const Stmt& stmt, const Value& items,
                                      const std::shared_ptr<Scope>& scope, int depth) {
  auto loop = std::make_shared<LoopObject>(*this, stmt, items, scope, depth);
  loop->shared = loop;
  // The loop object can outlive the loop in a namespace and refers to the scope.
  rt_.keep(scope);
  bool any = false;
  while (auto item = loop->advance()) {
    any = true;
    constexpr uint64_t kIterationSteps = 4;  // about what a scope costs beside a node
    rt_.step(kIterationSteps);
    auto inner = rt_.make_scope(scope);
    inner->set("loop", Value(std::shared_ptr<Object>(loop)));
    assign(*stmt.target, *std::move(item), inner);
    if (exec(stmt.body, inner) == Signal::kBreak) break;
  }
  // A break in the else branch belongs to the loop outside.
  return any ? Signal::kNone : exec(stmt.otherwise, rt_.make_scope(scope));
}

Evaluator::Signal Evaluator::exec_set_block(const Stmt& stmt, const std::shared_ptr<Scope>& scope) {
  std::string text;
  std::string* outer = std::exchange(out_, &text);
  Signal signal = Signal::kNone;
  try {
    signal = exec(stmt.body, rt_.make_scope(scope));
  } catch (...) {
    out_ = outer;
    throw;
  }
  out_ = outer;
  if (signal != Signal::kNone) return signal;
  assign(*stmt.target, apply_filters(stmt.expr.get(), rt_.string(std::move(text)), scope), scope);
  return Signal::kNone;
}

Evaluator::Signal Evaluator::exec_with(const Stmt& stmt, const std::shared_ptr<Scope>& scope) {
  auto inner = rt_.make_scope(scope);
  // All values see the scope outside.
  std::vector<Value> values;
  for (const auto& expr : stmt.exprs) values.push_back(eval(*expr, scope));
  for (size_t i = 0; i < values.size(); ++i) assign(*stmt.targets[i], std::move(values[i]), inner);
  return exec(stmt.body, inner);
}

Value Evaluator::make_macro(const Stmt& stmt, std::string name,
                            const std::shared_ptr<Scope>& scope) {
  rt_.keep(scope);
  rt_.bytes(sizeof(Macro));
  return Value(
      std::shared_ptr<Object>(std::make_shared<Macro>(*this, stmt, std::move(name), scope)));
}

void Evaluator::exec_call_block(const Stmt& stmt, const std::shared_ptr<Scope>& scope) {
  const Value callee = eval(*stmt.expr->args[0], scope);
  Args args = eval_args(*stmt.expr, 1, scope);
  args.named.emplace_back("caller", make_macro(stmt, "", scope));
  output(block_text(rt_.call(callee, args)));
}

void Evaluator::assign(const Expr& target, Value value, const std::shared_ptr<Scope>& scope) {
  switch (target.op) {
    case Op::kName:
      scope->set(target.name, std::move(value));
      return;
    case Op::kNamespaceRef: {
      const Value* found = scope->find(rt_, target.name);
      auto* space = found != nullptr ? found->object_as<Namespace>() : nullptr;
      if (space == nullptr) {
        fail("cannot assign attribute '" + target.attribute + "': '" + target.name +
             "' is not a namespace");
      }
      rt_.bytes(sizeof(Value));
      space->set(target.attribute, std::move(value));
      return;
    }
    default:
      break;
  }
  auto items = iterate(rt_, value);
  if (items.size() != target.args.size()) {
    fail("cannot unpack " + std::to_string(items.size()) + " values into " +
         std::to_string(target.args.size()) + " names");
  }
  for (size_t i = 0; i < items.size(); ++i) assign(*target.args[i], std::move(items[i]), scope);
}

// --- expressions

Value Evaluator::eval(const Expr& expr, const std::shared_ptr<Scope>& scope) {
  const Runtime::Nest nest(rt_);
  rt_.step();
  if (expr.line > 0) rt_.line = expr.line;
  return eval_node(expr, scope);
}

Value Evaluator::eval_node(const Expr& expr, const std::shared_ptr<Scope>& scope) {
  switch (expr.op) {
    case Op::kConst:
      return expr.value;
    case Op::kName:
      return eval_name(expr, scope);
    case Op::kTuple:
      return rt_.tuple(eval_list(expr, scope));
    case Op::kList:
      return rt_.list(eval_list(expr, scope));
    case Op::kDict: {
      std::vector<std::pair<Value, Value>> items;
      for (size_t i = 0; i + 1 < expr.args.size(); i += 2) {
        Value key = eval(*expr.args[i], scope);
        items.emplace_back(std::move(key), eval(*expr.args[i + 1], scope));
      }
      return rt_.dict(std::move(items));
    }
    case Op::kAttribute:
      return rt_.get_attribute(eval(*expr.args[0], scope), expr.name);
    case Op::kItem:
      return eval_item(expr, scope);
    case Op::kCall:
      return eval_call(expr, scope);
    case Op::kFilter: {
      Value subject = eval(*expr.args[0], scope);
      Args args = eval_args(expr, 1, scope);
      rt_.line = expr.line;
      return rt_.filter(expr.name, subject, args);
    }
    case Op::kTest: {
      const Value subject = eval(*expr.args[0], scope);
      Args args = eval_args(expr, 1, scope);
      rt_.line = expr.line;
      return rt_.test(expr.name, subject, args);
    }
    case Op::kNot:
      return !truthy(eval(*expr.args[0], scope));
    case Op::kNegative:
    case Op::kPositive:
      return negate(rt_, eval(*expr.args[0], scope), expr.op == Op::kNegative);
    case Op::kConcat:
      return eval_concat(expr, scope);
    case Op::kAnd: {
      Value left = eval(*expr.args[0], scope);
      return truthy(left) ? eval(*expr.args[1], scope) : left;
    }
    case Op::kOr: {
      Value left = eval(*expr.args[0], scope);
      return truthy(left) ? left : eval(*expr.args[1], scope);
    }
    case Op::kCompare:
      return eval_compare(expr, scope);
    case Op::kConditional:
      if (truthy(eval(*expr.args[0], scope))) return eval(*expr.args[1], scope);
      if (expr.args[2]) return eval(*expr.args[2], scope);
      return Value::undefined("the inline if-expression was false and has no else");
    case Op::kSlice:
    case Op::kNamespaceRef:
      fail("a slice is only allowed inside [...]");
    default:
      return eval_binary(expr, scope);
  }
}

Value Evaluator::eval_name(const Expr& expr, const std::shared_ptr<Scope>& scope) {
  if (const Value* found = scope->find(rt_, expr.name)) return *found;
  return Value::undefined("'" + expr.name + "' is undefined");
}

std::vector<Value> Evaluator::eval_list(const Expr& expr, const std::shared_ptr<Scope>& scope) {
  std::vector<Value> items;
  for (const auto& arg : expr.args) items.push_back(eval(*arg, scope));
  return items;
}

Value Evaluator::eval_binary(const Expr& expr, const std::shared_ptr<Scope>& scope) {
  const Value left = eval(*expr.args[0], scope);
  const Value right = eval(*expr.args[1], scope);
  rt_.line = expr.line;
  switch (expr.op) {
    case Op::kAdd:
      return add(rt_, left, right);
    case Op::kSubtract:
      return subtract(rt_, left, right);
    case Op::kMultiply:
      return multiply(rt_, left, right);
    case Op::kDivide:
      return divide(rt_, left, right);
    case Op::kFloorDivide:
      return floor_divide(rt_, left, right);
    case Op::kModulo:
      return modulo(rt_, left, right);
    default:
      return power(rt_, left, right);
  }
}

Value Evaluator::eval_concat(const Expr& expr, const std::shared_ptr<Scope>& scope) {
  std::string text;
  for (const auto& arg : expr.args) {
    const Value value = eval(*arg, scope);
    text += value.is_string() ? value.str() : to_str(rt_, value);
    rt_.check_size(text.size());
  }
  return rt_.string(std::move(text));
}

Value Evaluator::eval_compare(const Expr& expr, const std::shared_ptr<Scope>& scope) {
  Value left = eval(*expr.args[0], scope);
  for (size_t i = 0; i < expr.comparisons.size(); ++i) {
    Value right = eval(*expr.args[i + 1], scope);
    rt_.line = expr.line;
    bool good = false;
    switch (expr.comparisons[i]) {
      case Comparison::kEq:
        good = equals(rt_, left, right);
        break;
      case Comparison::kNe:
        good = !equals(rt_, left, right);
        break;
      case Comparison::kLt:
        good = less(rt_, left, right);
        break;
      case Comparison::kGt:
        good = less(rt_, right, left);
        break;
      case Comparison::kLe:
        good = less_or_equal(rt_, left, right);
        break;
      case Comparison::kGe:
        good = less_or_equal(rt_, right, left);
        break;
      case Comparison::kIn:
        good = contains(rt_, left, right);
        break;
      case Comparison::kNotIn:
        good = !contains(rt_, left, right);
        break;
    }
    if (!good) return false;
    left = std::move(right);
  }
  return true;
}

Value Evaluator::eval_item(const Expr& expr, const std::shared_ptr<Scope>& scope) {
  const Value object = eval(*expr.args[0], scope);
  const Expr& key = *expr.args[1];
  if (key.op != Op::kSlice) {
    const Value index = eval(key, scope);
    rt_.line = expr.line;
    return rt_.get_item(object, index);
  }
  Value parts[3];
  for (size_t i = 0; i < 3; ++i) {
    if (key.args[i])
      parts[i] = eval(*key.args[i], scope);
    else
      parts[i] = None{};
  }
  rt_.line = expr.line;
  return slice(rt_, object, parts[0], parts[1], parts[2]);
}

Args Evaluator::eval_args(const Expr& expr, size_t skip, const std::shared_ptr<Scope>& scope) {
  Args args;
  for (size_t i = skip; i < expr.args.size(); ++i) {
    args.positional.push_back(eval(*expr.args[i], scope));
  }
  for (const auto& [name, value] : expr.named) args.named.emplace_back(name, eval(*value, scope));
  if (expr.star_args) {
    for (Value& item : iterate(rt_, eval(*expr.star_args, scope))) {
      args.positional.push_back(std::move(item));
    }
  }
  if (expr.star_named) {
    const Value more = eval(*expr.star_named, scope);
    if (!more.is_dict()) fail("'**' needs a dict, got '" + type_name(more) + "'");
    for (const auto& [key, value] : more.dict().items) {
      if (!key.is_string()) fail("keywords must be strings");
      for (const auto& [name, other] : expr.named) {
        if (name == key.str()) fail("argument '" + name + "' given twice");
      }
      rt_.step();
      args.named.emplace_back(key.str(), value);
    }
  }
  return args;
}

Value Evaluator::eval_call(const Expr& expr, const std::shared_ptr<Scope>& scope) {
  const Value callee = eval(*expr.args[0], scope);
  Args args = eval_args(expr, 1, scope);
  rt_.line = expr.line;
  Value result = rt_.call(callee, args);
  rt_.line = expr.line;
  return result;
}

Value Evaluator::apply_filters(const Expr* filters, Value value,
                               const std::shared_ptr<Scope>& scope) {
  if (filters == nullptr) return value;
  if (filters->args[0]) value = apply_filters(filters->args[0].get(), std::move(value), scope);
  Args args = eval_args(*filters, 1, scope);
  return rt_.filter(filters->name, value, args);
}

}  // namespace sub8::jinja
