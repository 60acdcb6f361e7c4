// The expression half of the parser, with jinja2's grammar and precedences. Included by
// parser.cc only.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/chat_template/ast.h"
#include "text/chat_template/runtime.h"

namespace sub8::jinja {

inline constexpr int kMaxExprDepth = 120;
inline constexpr int kMaxStmtDepth = 60;

class ExpressionParser {
 protected:
  explicit ExpressionParser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  // --- tokens
  const Token& current() const { return tokens_[position_]; }
  const Token& look() const { return tokens_[std::min(position_ + 1, tokens_.size() - 1)]; }
  Token next() {
    Token token = current();
    if (position_ + 1 < tokens_.size()) ++position_;
    return token;
  }
  bool is_op(std::string_view op) const {
    return current().kind == TokenKind::kOperator && current().text == op;
  }
  bool is_name(std::string_view name) const {
    return current().kind == TokenKind::kName && current().text == name;
  }
  bool skip_op(std::string_view op) { return is_op(op) ? (next(), true) : false; }
  bool skip_name(std::string_view name) { return is_name(name) ? (next(), true) : false; }

  static std::string describe(const Token& token) {
    switch (token.kind) {
      case TokenKind::kEnd:
        return "end of template";
      case TokenKind::kBlockEnd:
        return "end of statement block";
      case TokenKind::kVariableEnd:
        return "end of print statement";
      case TokenKind::kString:
        return "a string";
      case TokenKind::kData:
        return "text";
      default:
        return "'" + token.text + "'";
    }
  }

  [[noreturn]] void error(std::string message, int line = 0) const {
    throw TemplateFailure{ErrorCode::kCorruptData, std::move(message),
                          line > 0 ? line : current().line};
  }
  void expect_op(std::string_view op) {
    if (!skip_op(op)) error("expected '" + std::string(op) + "', got " + describe(current()));
  }
  void expect_name(std::string_view name) {
    if (!skip_name(name)) error("expected '" + std::string(name) + "', got " + describe(current()));
  }
  std::string expect_identifier() {
    if (current().kind != TokenKind::kName) error("expected a name, got " + describe(current()));
    return next().text;
  }
  void expect_block_end() {
    if (current().kind != TokenKind::kBlockEnd) {
      error("expected end of statement block, got " + describe(current()));
    }
    next();
  }

  // Bounds the parser's own recursion.
  class Guard {
   public:
    Guard(ExpressionParser& parser, int& depth, int limit) : depth_(depth) {
      if (++depth_ > limit) {
        --depth_;
        throw TemplateFailure{ErrorCode::kResourceExhausted,
                              "nested deeper than " + std::to_string(limit) + " levels",
                              parser.current().line};
      }
    }
    ~Guard() { --depth_; }
    Guard(const Guard&) = delete;
    Guard& operator=(const Guard&) = delete;

   private:
    int& depth_;
  };

  // --- nodes
  ExprPtr make(Op op, int line) const {
    auto expr = std::make_unique<Expr>();
    expr->op = op;
    expr->line = line;
    return expr;
  }
  // Adds a child and keeps the depth, so that trees which grow in loops (a + b + c ...) are bounded
  // too: evaluation and destruction recurse over them.
  void adopt(Expr& parent, ExprPtr child) const {
    if (child) deepen(parent, *child);
    parent.args.push_back(std::move(child));
  }
  void deepen(Expr& parent, const Expr& child) const {
    parent.depth = std::max(parent.depth, child.depth + 1);
    if (parent.depth > kMaxExprDepth * 2) {
      throw TemplateFailure{
          ErrorCode::kResourceExhausted,
          "expression with more than " + std::to_string(kMaxExprDepth * 2) + " nested operations",
          parent.line};
    }
  }
  ExprPtr binary(Op op, int line, ExprPtr left, ExprPtr right) const {
    auto expr = make(op, line);
    adopt(*expr, std::move(left));
    adopt(*expr, std::move(right));
    return expr;
  }

  // --- expressions
  ExprPtr tuple(bool conditional, std::string_view end_name = {}, bool parentheses = false) {
    const int line = current().line;
    std::vector<ExprPtr> items;
    bool is_tuple = false;
    while (true) {
      if (!items.empty()) expect_op(",");
      if (tuple_end(end_name)) break;
      items.push_back(conditional ? expression() : or_expression());
      if (!is_op(",")) break;
      is_tuple = true;
    }
    if (!is_tuple && !items.empty()) return std::move(items[0]);
    if (!is_tuple && !parentheses) error("expected an expression, got " + describe(current()));
    auto expr = make(Op::kTuple, line);
    for (auto& item : items) adopt(*expr, std::move(item));
    return expr;
  }

  bool tuple_end(std::string_view end_name) const {
    return current().kind == TokenKind::kVariableEnd || current().kind == TokenKind::kBlockEnd ||
           is_op(")") || (!end_name.empty() && is_name(end_name));
  }

  ExprPtr expression() {
    const Guard guard(*this, expr_depth_, kMaxExprDepth);
    int line = current().line;
    auto then = or_expression();
    while (skip_name("if")) {
      auto conditional = make(Op::kConditional, line);
      adopt(*conditional, or_expression());
      adopt(*conditional, std::move(then));
      adopt(*conditional, skip_name("else") ? expression() : nullptr);
      then = std::move(conditional);
      line = current().line;
    }
    return then;
  }

  ExprPtr or_expression() {
    auto left = and_expression();
    while (is_name("or")) {
      const int line = next().line;
      left = binary(Op::kOr, line, std::move(left), and_expression());
    }
    return left;
  }

  ExprPtr and_expression() {
    auto left = not_expression();
    while (is_name("and")) {
      const int line = next().line;
      left = binary(Op::kAnd, line, std::move(left), not_expression());
    }
    return left;
  }

  ExprPtr not_expression() {
    if (!is_name("not")) return comparison();
    const Guard guard(*this, expr_depth_, kMaxExprDepth);
    auto expr = make(Op::kNot, next().line);
    adopt(*expr, not_expression());
    return expr;
  }

  bool comparison_operator(Comparison& op) {
    if (skip_name("in")) return op = Comparison::kIn, true;
    if (is_name("not") && look().kind == TokenKind::kName && look().text == "in") {
      next();
      next();
      return op = Comparison::kNotIn, true;
    }
    static constexpr std::pair<std::string_view, Comparison> kOperators[] = {
        {"==", Comparison::kEq}, {"!=", Comparison::kNe}, {"<", Comparison::kLt},
        {"<=", Comparison::kLe}, {">", Comparison::kGt},  {">=", Comparison::kGe}};
    for (const auto& [text, comparison] : kOperators) {
      if (skip_op(text)) return op = comparison, true;
    }
    return false;
  }

  ExprPtr comparison() {
    const int line = current().line;
    auto first = sum();
    Comparison op{};
    if (!comparison_operator(op)) return first;
    auto expr = make(Op::kCompare, line);
    adopt(*expr, std::move(first));
    do {
      expr->comparisons.push_back(op);
      adopt(*expr, sum());
    } while (comparison_operator(op));
    return expr;
  }

  ExprPtr sum() {
    auto left = concatenation();
    while (is_op("+") || is_op("-")) {
      const Token op = next();
      left = binary(op.text == "+" ? Op::kAdd : Op::kSubtract, op.line, std::move(left),
                    concatenation());
    }
    return left;
  }

  ExprPtr concatenation() {
    auto first = product();
    if (!is_op("~")) return first;
    auto expr = make(Op::kConcat, current().line);
    adopt(*expr, std::move(first));
    while (skip_op("~")) adopt(*expr, product());
    return expr;
  }

  ExprPtr product() {
    auto left = power();
    while (is_op("*") || is_op("/") || is_op("//") || is_op("%")) {
      const Token op = next();
      const Op kind = op.text == "*"    ? Op::kMultiply
                      : op.text == "/"  ? Op::kDivide
                      : op.text == "//" ? Op::kFloorDivide
                                        : Op::kModulo;
      left = binary(kind, op.line, std::move(left), power());
    }
    return left;
  }

  ExprPtr power() {
    auto left = unary(true);
    while (is_op("**")) {
      const int line = next().line;
      left = binary(Op::kPower, line, std::move(left), unary(true));
    }
    return left;
  }

  ExprPtr unary(bool with_filter) {
    const Guard guard(*this, expr_depth_, kMaxExprDepth);
    ExprPtr expr;
    if (is_op("-") || is_op("+")) {
      const Token op = next();
      expr = make(op.text == "-" ? Op::kNegative : Op::kPositive, op.line);
      adopt(*expr, unary(false));
    } else {
      expr = primary();
    }
    expr = postfix(std::move(expr));
    return with_filter ? filters_and_tests(std::move(expr)) : std::move(expr);
  }

  ExprPtr primary() {
    const int line = current().line;
    switch (current().kind) {
      case TokenKind::kName:
        return name();
      case TokenKind::kString: {
        std::string text;
        while (current().kind == TokenKind::kString) text += next().text;
        auto expr = make(Op::kConst, line);
        auto rep = std::make_shared<Text>();
        rep->length = count_code_points(text);
        rep->bytes = std::move(text);
        expr->value = Value(std::shared_ptr<const Text>(std::move(rep)));
        return expr;
      }
      case TokenKind::kInteger:
        return constant(next().integer, line);
      case TokenKind::kFloat:
        return constant(next().real, line);
      default:
        break;
    }
    if (skip_op("(")) {
      auto expr = tuple(true, {}, true);
      expect_op(")");
      return expr;
    }
    if (is_op("[")) return list();
    if (is_op("{")) return dict();
    error("unexpected " + describe(current()));
  }

  ExprPtr constant(Value value, int line) const {
    auto expr = make(Op::kConst, line);
    expr->value = std::move(value);
    return expr;
  }

  ExprPtr name() {
    const Token token = next();
    if (token.text == "true" || token.text == "True") return constant(true, token.line);
    if (token.text == "false" || token.text == "False") return constant(false, token.line);
    if (token.text == "none" || token.text == "None") return constant(None{}, token.line);
    if (token.text == "caller") specials_.caller = true;
    if (token.text == "kwargs") specials_.kwargs = true;
    if (token.text == "varargs") specials_.varargs = true;
    auto expr = make(Op::kName, token.line);
    expr->name = token.text;
    return expr;
  }

  ExprPtr list() {
    auto expr = make(Op::kList, next().line);
    while (!is_op("]")) {
      if (!expr->args.empty()) expect_op(",");
      if (is_op("]")) break;
      adopt(*expr, expression());
    }
    expect_op("]");
    return expr;
  }

  ExprPtr dict() {
    auto expr = make(Op::kDict, next().line);
    while (!is_op("}")) {
      if (!expr->args.empty()) expect_op(",");
      if (is_op("}")) break;
      adopt(*expr, expression());
      expect_op(":");
      adopt(*expr, expression());
    }
    expect_op("}");
    return expr;
  }

  ExprPtr postfix(ExprPtr expr) {
    while (true) {
      if (is_op(".")) {
        expr = attribute(std::move(expr));
      } else if (is_op("[")) {
        expr = subscript(std::move(expr));
      } else if (is_op("(")) {
        expr = call(std::move(expr));
      } else {
        return expr;
      }
    }
  }

  ExprPtr attribute(ExprPtr object) {
    const int line = next().line;
    if (current().kind == TokenKind::kInteger) {
      return binary(Op::kItem, line, std::move(object), constant(next().integer, line));
    }
    if (current().kind != TokenKind::kName) {
      error("expected a name or number behind '.', got " + describe(current()));
    }
    auto expr = make(Op::kAttribute, line);
    expr->name = next().text;
    adopt(*expr, std::move(object));
    return expr;
  }

  ExprPtr subscript(ExprPtr object) {
    const int line = next().line;
    std::vector<ExprPtr> keys;
    while (!is_op("]")) {
      if (!keys.empty()) expect_op(",");
      keys.push_back(subscript_key());
    }
    expect_op("]");
    if (keys.size() == 1) return binary(Op::kItem, line, std::move(object), std::move(keys[0]));
    auto key = make(Op::kTuple, line);
    for (auto& part : keys) adopt(*key, std::move(part));
    return binary(Op::kItem, line, std::move(object), std::move(key));
  }

  ExprPtr subscript_key() {
    const int line = current().line;
    ExprPtr start;
    if (!is_op(":")) {
      start = expression();
      if (!is_op(":")) return start;
    }
    next();
    const auto absent = [this] { return is_op(":") || is_op("]") || is_op(","); };
    ExprPtr stop = absent() ? nullptr : expression();
    ExprPtr step;
    if (skip_op(":") && !absent()) step = expression();
    auto expr = make(Op::kSlice, line);
    adopt(*expr, std::move(start));
    adopt(*expr, std::move(stop));
    adopt(*expr, std::move(step));
    return expr;
  }

  ExprPtr call(ExprPtr callee) {
    auto expr = make(Op::kCall, current().line);
    adopt(*expr, std::move(callee));
    arguments(*expr);
    return expr;
  }

  void arguments(Expr& expr) {
    const int line = current().line;
    expect_op("(");
    const auto ensure = [&](bool good) {
      if (!good) error("bad order of arguments in a call", line);
    };
    bool comma = false;
    while (!is_op(")")) {
      if (comma) {
        expect_op(",");
        if (is_op(")")) break;
      }
      comma = true;
      if (skip_op("*")) {
        ensure(!expr.star_args && !expr.star_named);
        expr.star_args = expression();
        deepen(expr, *expr.star_args);
      } else if (skip_op("**")) {
        ensure(!expr.star_named);
        expr.star_named = expression();
        deepen(expr, *expr.star_named);
      } else if (current().kind == TokenKind::kName && look().kind == TokenKind::kOperator &&
                 look().text == "=") {
        ensure(!expr.star_named);
        std::string key = next().text;
        next();
        for (const auto& [other, value] : expr.named) {
          if (other == key) error("argument '" + key + "' given twice", line);
        }
        auto value = expression();
        deepen(expr, *value);
        expr.named.emplace_back(std::move(key), std::move(value));
      } else {
        ensure(!expr.star_args && !expr.star_named && expr.named.empty());
        adopt(expr, expression());
      }
    }
    expect_op(")");
  }

  ExprPtr filters_and_tests(ExprPtr expr) {
    while (true) {
      if (is_op("|")) {
        next();
        expr = one_filter(std::move(expr));
      } else if (is_name("is")) {
        expr = test(std::move(expr));
      } else if (is_op("(")) {
        expr = call(std::move(expr));
      } else {
        return expr;
      }
    }
  }

  ExprPtr filters(ExprPtr expr) {
    while (skip_op("|")) expr = one_filter(std::move(expr));
    return expr;
  }

  std::string dotted_name() {
    std::string name = expect_identifier();
    while (skip_op(".")) name += "." + expect_identifier();
    return name;
  }

  ExprPtr one_filter(ExprPtr subject) {
    auto expr = make(Op::kFilter, current().line);
    expr->name = dotted_name();
    adopt(*expr, std::move(subject));
    if (is_op("(")) arguments(*expr);
    return expr;
  }

  ExprPtr test(ExprPtr subject) {
    const int line = next().line;
    const bool negated = skip_name("not");
    auto expr = make(Op::kTest, line);
    expr->name = dotted_name();
    adopt(*expr, std::move(subject));
    if (is_op("(")) {
      arguments(*expr);
    } else if (starts_test_argument()) {
      if (is_name("is")) error("tests cannot be chained with 'is'");
      adopt(*expr, postfix(primary()));
    }
    if (!negated) return expr;
    auto inverse = make(Op::kNot, line);
    adopt(*inverse, std::move(expr));
    return inverse;
  }

  bool starts_test_argument() const {
    switch (current().kind) {
      case TokenKind::kString:
      case TokenKind::kInteger:
      case TokenKind::kFloat:
        return true;
      case TokenKind::kName:
        return !is_name("else") && !is_name("or") && !is_name("and");
      default:
        return is_op("[") || is_op("{");
    }
  }

  struct Specials {
    bool caller = false, kwargs = false, varargs = false;
  };

  std::vector<Token> tokens_;
  size_t position_ = 0;
  int expr_depth_ = 0;
  Specials specials_;
};

}  // namespace sub8::jinja
