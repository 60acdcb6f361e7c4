// Structured output: what a request may ask for, and what makes token constraints of it.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/error.h"
#include "engine/request.h"

namespace sub8::server {

struct GrammarSpec {
  enum class Kind {
    kJson,        // any JSON object
    kJsonSchema,  // `text` is a JSON schema
    kRegex,       // `text` is a regular expression that the whole answer matches
    kEbnf,        // `text` is a grammar in GBNF, rule "root"
  };
  Kind kind = Kind::kJson;
  std::string text;
};

using ConstraintFactory =
    std::function<Result<std::unique_ptr<engine::TokenConstraint>>(uint32_t choice)>;

class GrammarCompiler {
 public:
  virtual ~GrammarCompiler() = default;
  // Any thread; may take long for a large schema. An invalid_argument error says what is wrong with
  // the grammar. What it returns may outlive the compiler.
  virtual Result<ConstraintFactory> compile(const GrammarSpec& spec) = 0;
};

// A GBNF grammar whose only sentences are `choices`.
std::string choice_grammar(const std::vector<std::string>& choices);

}  // namespace sub8::server
