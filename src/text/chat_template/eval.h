// The evaluator of chat templates. Private to this folder.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "text/chat_template/ast.h"
#include "text/chat_template/runtime.h"

namespace sub8::jinja {

class LoopObject;

class Evaluator {
 public:
  explicit Evaluator(Runtime& rt) : rt_(rt) {}

  // Renders a whole template over the variables in `scope`.
  std::string render(const Body& body, const std::shared_ptr<Scope>& scope);

  Value eval(const Expr& expr, const std::shared_ptr<Scope>& scope);
  void assign(const Expr& target, Value value, const std::shared_ptr<Scope>& scope);
  // Runs the body of a macro or call block in `scope`, which has the parameters.
  std::string call_body(const Body& body, const std::shared_ptr<Scope>& scope);
  // The loop over `items`, as `loop(items)` in a recursive one starts it.
  std::string recurse(const Stmt& stmt, const Value& items, const std::shared_ptr<Scope>& scope,
                      int depth);
  Runtime& runtime() { return rt_; }

 private:
  enum class Signal { kNone, kBreak, kContinue };

  Signal exec(const Body& body, const std::shared_ptr<Scope>& scope);
  Signal exec_one(const Stmt& stmt, const std::shared_ptr<Scope>& scope);
  Signal exec_if(const Stmt& stmt, const std::shared_ptr<Scope>& scope);
  Signal exec_for(const Stmt& stmt, const Value& items, const std::shared_ptr<Scope>& scope,
                  int depth);
  Signal exec_set_block(const Stmt& stmt, const std::shared_ptr<Scope>& scope);
  Signal exec_with(const Stmt& stmt, const std::shared_ptr<Scope>& scope);
  void exec_call_block(const Stmt& stmt, const std::shared_ptr<Scope>& scope);
  Value make_macro(const Stmt& stmt, std::string name, const std::shared_ptr<Scope>& scope);
  void output(std::string_view text);
  std::string block_text(const Value& value) const;

  Value eval_node(const Expr& expr, const std::shared_ptr<Scope>& scope);
  Value eval_name(const Expr& expr, const std::shared_ptr<Scope>& scope);
  Value eval_compare(const Expr& expr, const std::shared_ptr<Scope>& scope);
  Value eval_item(const Expr& expr, const std::shared_ptr<Scope>& scope);
  Value eval_call(const Expr& expr, const std::shared_ptr<Scope>& scope);
  Value eval_concat(const Expr& expr, const std::shared_ptr<Scope>& scope);
  Value eval_binary(const Expr& expr, const std::shared_ptr<Scope>& scope);
  Value apply_filters(const Expr* filters, Value value, const std::shared_ptr<Scope>& scope);
  std::vector<Value> eval_list(const Expr& expr, const std::shared_ptr<Scope>& scope);
  // The arguments behind the first `skip` children.
  Args eval_args(const Expr& expr, size_t skip, const std::shared_ptr<Scope>& scope);

  Runtime& rt_;
  std::string* out_ = nullptr;
};

}  // namespace sub8::jinja
