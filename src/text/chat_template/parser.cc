// Statements of the template language; expressions are in template_expression_parser.h.
#include "text/chat_template/expression_parser.h"

namespace sub8::jinja {
namespace {

class Parser : private ExpressionParser {
 public:
  explicit Parser(std::vector<Token> tokens) : ExpressionParser(std::move(tokens)) {}

  Body run() {
    Body body = statements({});
    if (current().kind != TokenKind::kEnd) error("unexpected " + describe(current()));
    return body;
  }

 private:
  // --- statements
  Body statements(std::initializer_list<std::string_view> ends) {
    const Guard guard(*this, stmt_depth_, kMaxStmtDepth);
    Body body;
    while (current().kind != TokenKind::kEnd) {
      if (current().kind == TokenKind::kData) {
        auto stmt = new_stmt(StmtKind::kText);
        stmt->text = next().text;
        body.push_back(std::move(stmt));
      } else if (current().kind == TokenKind::kVariableBegin) {
        next();
        auto stmt = new_stmt(StmtKind::kOutput);
        stmt->exprs.push_back(tuple(true));
        if (current().kind != TokenKind::kVariableEnd) {
          error("expected end of print statement, got " + describe(current()));
        }
        next();
        body.push_back(std::move(stmt));
      } else {
        next();  // block begin
        for (const std::string_view end : ends) {
          if (is_name(end)) return body;
        }
        body.push_back(statement());
        expect_block_end();
      }
    }
    if (ends.size() != 0) {
      std::string expected;
      for (const std::string_view end : ends) {
        expected += (expected.empty() ? "'" : " or '") + std::string(end) + "'";
      }
      error("unexpected end of template, expected " + expected);
    }
    return body;
  }

  // The block that follows a tag's head, up to one of `ends`, which becomes the current token.
  Body block(std::initializer_list<std::string_view> ends) {
    skip_op(":");
    expect_block_end();
    return statements(ends);
  }

  std::unique_ptr<Stmt> new_stmt(StmtKind kind) const {
    auto stmt = std::make_unique<Stmt>();
    stmt->kind = kind;
    stmt->line = current().line;
    return stmt;
  }

  std::unique_ptr<Stmt> statement() {
    if (current().kind != TokenKind::kName)
      error("expected a tag name, got " + describe(current()));
    const std::string tag = current().text;
    if (tag == "if") return if_statement();
    if (tag == "for") return for_statement();
    if (tag == "set") return set_statement();
    if (tag == "macro") return macro_statement();
    if (tag == "call") return call_statement();
    if (tag == "filter") return filter_statement();
    if (tag == "with") return with_statement();
    if (tag == "generation") {
      auto stmt = new_stmt(StmtKind::kGeneration);
      next();
      function_body(*stmt, {"endgeneration"});
      next();
      return stmt;
    }
    if (tag == "print") {
      auto stmt = new_stmt(StmtKind::kOutput);
      next();
      while (current().kind != TokenKind::kBlockEnd) {
        if (!stmt->exprs.empty()) expect_op(",");
        stmt->exprs.push_back(expression());
      }
      return stmt;
    }
    if (tag == "break" || tag == "continue") {
      if (loop_depth_ == 0) error("'" + tag + "' outside a loop");
      auto stmt = new_stmt(tag == "break" ? StmtKind::kBreak : StmtKind::kContinue);
      next();
      return stmt;
    }
    for (const std::string_view refused :
         {"include", "import", "from", "extends", "block", "autoescape"}) {
      if (tag == refused) {
        throw TemplateFailure{ErrorCode::kUnsupported,
                              "the '" + tag + "' statement is not supported in chat templates",
                              current().line};
      }
    }
    error("unknown tag '" + tag + "'");
  }

  std::unique_ptr<Stmt> if_statement() {
    auto stmt = new_stmt(StmtKind::kIf);
    next();
    while (true) {
      auto condition = tuple(false);
      auto body = block({"elif", "else", "endif"});
      stmt->branches.emplace_back(std::move(condition), std::move(body));
      const std::string end = next().text;
      if (end == "elif") continue;
      if (end == "else") {
        stmt->otherwise = block({"endif"});
        next();
      }
      return stmt;
    }
  }

  std::unique_ptr<Stmt> for_statement() {
    auto stmt = new_stmt(StmtKind::kFor);
    next();
    stmt->target = assign_target(false);
    expect_name("in");
    stmt->expr = tuple(false, "recursive");
    if (skip_name("if")) stmt->test = expression();
    stmt->recursive = skip_name("recursive");
    ++loop_depth_;
    stmt->body = block({"endfor", "else"});
    --loop_depth_;
    if (next().text == "else") {
      stmt->otherwise = block({"endfor"});
      next();
    }
    return stmt;
  }

  std::unique_ptr<Stmt> set_statement() {
    auto stmt = new_stmt(StmtKind::kSet);
    next();
    stmt->target = assign_target(true);
    if (skip_op("=")) {
      stmt->expr = tuple(true);
      return stmt;
    }
    stmt->kind = StmtKind::kSetBlock;
    stmt->expr = filters(nullptr);
    stmt->body = block({"endset"});
    next();
    return stmt;
  }

  std::unique_ptr<Stmt> filter_statement() {
    auto stmt = new_stmt(StmtKind::kFilterBlock);
    next();
    stmt->expr = filters(one_filter(nullptr));
    stmt->body = block({"endfilter"});
    next();
    return stmt;
  }

  std::unique_ptr<Stmt> with_statement() {
    auto stmt = new_stmt(StmtKind::kWith);
    next();
    while (current().kind != TokenKind::kBlockEnd) {
      if (!stmt->targets.empty()) expect_op(",");
      stmt->targets.push_back(assign_target(false));
      expect_op("=");
      stmt->exprs.push_back(expression());
    }
    stmt->body = block({"endwith"});
    next();
    return stmt;
  }

  // A body that is a function of its own: break does not reach out of it, and which of the special
  // names it mentions decides what it accepts.
  void function_body(Stmt& stmt, std::initializer_list<std::string_view> ends) {
    const int loops = std::exchange(loop_depth_, 0);
    const Specials outer = std::exchange(specials_, {});
    stmt.body = block(ends);
    stmt.uses_caller = specials_.caller;
    stmt.uses_kwargs = specials_.kwargs;
    stmt.uses_varargs = specials_.varargs;
    loop_depth_ = loops;
    // jinja2 counts what a nested macro mentions for the outer one too.
    specials_.caller |= outer.caller;
    specials_.kwargs |= outer.kwargs;
    specials_.varargs |= outer.varargs;
  }

  std::unique_ptr<Stmt> macro_statement() {
    auto stmt = new_stmt(StmtKind::kMacro);
    next();
    stmt->text = expect_identifier();
    signature(*stmt);
    function_body(*stmt, {"endmacro"});
    next();
    return stmt;
  }

  std::unique_ptr<Stmt> call_statement() {
    auto stmt = new_stmt(StmtKind::kCallBlock);
    next();
    if (is_op("(")) signature(*stmt);
    stmt->expr = expression();
    if (stmt->expr->op != Op::kCall) error("expected a call behind 'call'");
    function_body(*stmt, {"endcall"});
    next();
    return stmt;
  }

  void signature(Stmt& stmt) {
    expect_op("(");
    while (!is_op(")")) {
      if (!stmt.params.empty()) expect_op(",");
      std::string name = expect_identifier();
      if (is_constant(name)) error("can't assign to '" + name + "'");
      if (std::find(stmt.params.begin(), stmt.params.end(), name) != stmt.params.end()) {
        error("duplicate parameter '" + name + "'");
      }
      stmt.params.push_back(std::move(name));
      if (skip_op("=")) {
        stmt.defaults.push_back(expression());
      } else if (!stmt.defaults.empty()) {
        error("parameter without a default behind one with a default");
      }
    }
    expect_op(")");
  }

  static bool is_constant(std::string_view name) {
    return name == "true" || name == "false" || name == "none" || name == "True" ||
           name == "False" || name == "None";
  }

  ExprPtr assign_target(bool with_namespace) {
    const int line = current().line;
    std::vector<ExprPtr> items;
    bool is_tuple = false;
    while (true) {
      if (!items.empty()) expect_op(",");
      if (is_op(")") || is_name("in") || is_op("=") || current().kind == TokenKind::kBlockEnd)
        break;
      items.push_back(single_target(with_namespace));
      if (!is_op(",")) break;
      is_tuple = true;
    }
    if (items.empty()) error("expected a name to assign to, got " + describe(current()));
    if (!is_tuple) return std::move(items[0]);
    auto expr = make(Op::kTuple, line);
    for (auto& item : items) adopt(*expr, std::move(item));
    return expr;
  }

  ExprPtr single_target(bool with_namespace) {
    const Guard guard(*this, expr_depth_, kMaxExprDepth);
    if (skip_op("(")) {
      auto inner = assign_target(false);
      expect_op(")");
      return inner;
    }
    const int line = current().line;
    auto expr = make(Op::kName, line);
    expr->name = expect_identifier();
    if (is_constant(expr->name)) error("can't assign to '" + expr->name + "'", line);
    if (with_namespace && skip_op(".")) {
      expr->op = Op::kNamespaceRef;
      expr->attribute = expect_identifier();
    }
    return expr;
  }

  int stmt_depth_ = 0;
  int loop_depth_ = 0;
};

}  // namespace

Body parse_template(std::vector<Token> tokens) { return Parser(std::move(tokens)).run(); }

}  // namespace sub8::jinja
