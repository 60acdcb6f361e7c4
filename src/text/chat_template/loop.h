// `loop` and macros as values. Private to this folder.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "text/chat_template/eval.h"

namespace sub8::jinja {

// The variable `loop`, and the iteration behind it. As in jinja2 the filter of `for x in y if z`
// runs element by element while the loop goes on, unless someone asks for the length first.
class LoopObject : public Object {
 public:
  LoopObject(Evaluator& evaluator, const Stmt& stmt, const Value& items,
             std::shared_ptr<Scope> scope, int nesting);

  std::optional<Value> advance();  // the next element, which becomes the current one

  std::string repr(Runtime&) const override { return "<LoopContext>"; }
  std::string type_name() const override { return "LoopContext"; }
  bool callable() const override { return true; }
  Value call(Runtime& rt, Args& args) override;
  std::optional<Value> attribute(Runtime& rt, std::string_view name) override;
  int depth() const override { return depth_; }

 private:
  std::optional<Value> pull();  // the next element that passes the filter
  const std::optional<Value>& peek();
  int64_t length();
  static Value cycle(Runtime& rt, const Value& self, Args& args);
  static Value changed(Runtime& rt, const Value& self, Args& args);

  Evaluator& evaluator_;
  const Stmt& stmt_;
  std::vector<Value> source_;
  size_t position_ = 0;
  std::shared_ptr<Scope> scope_;
  int nesting_;
  int depth_ = 2;
  std::deque<Value> ready_;  // pulled, not yet current
  std::optional<Value> peeked_;
  std::optional<Value> previous_, current_;
  std::optional<Value> last_changed_;
  int64_t index0_ = -1;
  std::optional<int64_t> length_;

 public:
  std::weak_ptr<Object> shared;  // itself, for bound methods
};

class Macro : public Object {
 public:
  Macro(Evaluator& evaluator, const Stmt& stmt, std::string name, std::shared_ptr<Scope> scope)
      : evaluator_(evaluator), stmt_(stmt), name_(std::move(name)), scope_(std::move(scope)) {}

  std::string repr(Runtime&) const override;
  std::string type_name() const override { return "Macro"; }
  bool callable() const override { return true; }
  Value call(Runtime& rt, Args& args) override;
  std::optional<Value> attribute(Runtime& rt, std::string_view name) override;

 private:
  Evaluator& evaluator_;
  const Stmt& stmt_;
  std::string name_;  // empty: a call block
  std::shared_ptr<Scope> scope_;
};

}  // namespace sub8::jinja
