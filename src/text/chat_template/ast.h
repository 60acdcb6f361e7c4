// Tokens and syntax tree of chat templates. Private to this folder.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/chat_template/value.h"

namespace sub8::jinja {

enum class TokenKind {
  kData,
  kBlockBegin,
  kBlockEnd,
  kVariableBegin,
  kVariableEnd,
  kName,
  kString,
  kInteger,
  kFloat,
  kOperator,
  kEnd,
};

struct Token {
  TokenKind kind = TokenKind::kEnd;
  int line = 1;
  std::string text;  // data, name, operator; a string's value
  int64_t integer = 0;
  double real = 0;
};

// White-space control, raw blocks and comments are settled here. Throws TemplateFailure.
std::vector<Token> tokenize(std::string_view source);

enum class Op {
  kConst,
  kName,
  kTuple,
  kList,
  kDict,
  kAttribute,
  kItem,
  kSlice,
  kCall,
  kFilter,
  kTest,
  kNot,
  kNegative,
  kPositive,
  kAdd,
  kSubtract,
  kMultiply,
  kDivide,
  kFloorDivide,
  kModulo,
  kPower,
  kConcat,
  kAnd,
  kOr,
  kCompare,
  kConditional,
  kNamespaceRef,
};

enum class Comparison { kEq, kNe, kLt, kLe, kGt, kGe, kIn, kNotIn };

struct Expr;
using ExprPtr = std::unique_ptr<Expr>;

// One node for all expressions. Children in `args`: operands in order; kItem object, key; kSlice
// start, stop, step (null when absent); kCall callee, arguments; kFilter and kTest subject (null in
// a filter block), arguments; kConditional condition, then, else (null when absent); kDict key,
// value, key, value, ...
struct Expr {
  Op op = Op::kConst;
  int line = 0;
  int depth = 1;
  std::string name;  // variable, attribute, filter, test; kNamespaceRef: the namespace
  std::string attribute;
  Value value;
  std::vector<ExprPtr> args;
  std::vector<std::pair<std::string, ExprPtr>> named;
  ExprPtr star_args;
  ExprPtr star_named;
  std::vector<Comparison> comparisons;
};

enum class StmtKind {
  kText,
  kOutput,
  kIf,
  kFor,
  kSet,
  kSetBlock,
  kMacro,
  kCallBlock,
  kFilterBlock,
  kGeneration,
  kWith,
  kBreak,
  kContinue,
};

struct Stmt;
using Body = std::vector<std::unique_ptr<Stmt>>;

struct Stmt {
  StmtKind kind = StmtKind::kText;
  int line = 0;
  std::string text;              // kText: data; kMacro: name
  ExprPtr target;                // kFor, kSet, kSetBlock
  ExprPtr expr;                  // kFor: iterable; kSet: value; kSetBlock, kFilterBlock: filters
                                 // (innermost subject null); kCallBlock: the call
  ExprPtr test;                  // kFor: filter
  std::vector<ExprPtr> exprs;    // kOutput; kWith: values
  std::vector<ExprPtr> targets;  // kWith
  std::vector<std::pair<ExprPtr, Body>> branches;  // kIf
  Body body;
  Body otherwise;  // kIf, kFor
  bool recursive = false;
  // kMacro and kCallBlock
  std::vector<std::string> params;
  std::vector<ExprPtr> defaults;  // of the last parameters
  bool uses_caller = false, uses_kwargs = false, uses_varargs = false;
};

Body parse_template(std::vector<Token> tokens);

}  // namespace sub8::jinja
