// Structured output: what a request may ask for, and what makes token constraints of it.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

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

  bool operator==(const GrammarSpec&) const = default;
};

using ConstraintFactory =
    std::function<Result<std::unique_ptr<engine::TokenConstraint>>(uint32_t choice)>;

class GrammarCompiler {
 public:
  virtual ~GrammarCompiler() = default;
  // Any thread; may take long. An invalid_argument error says what is wrong with the grammar. What
  // it returns may outlive the compiler.
  virtual Result<ConstraintFactory> compile(const GrammarSpec& spec) = 0;
  // The same, if it needs no waiting.
  virtual std::optional<ConstraintFactory> find(const GrammarSpec& spec) {
    (void)spec;
    return std::nullopt;
  }
  // Ends compilations under way with an error, soon. Nothing is compiled any more.
  virtual void stop() {}
};

// A GBNF grammar whose only sentences are `choices`.
std::string choice_grammar(const std::vector<std::string>& choices);

}  // namespace sub8::server
