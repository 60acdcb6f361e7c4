// Patterns over module names, as recipes and command lines write them.
//
//   mlp.down_proj            a name without wildcard: that module, or every module that ends in
//                            ".mlp.down_proj"
//   model.layers.0.*         `*` any run of characters (dots too), `?` one; the whole name matches
//   re:.*self_attn\.(q|k)_proj   a PCRE2 expression that matches from the start of the name to its
//                            end
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "base/error.h"

namespace sub8::quantize {

class NamePattern {
 public:
  // A regular expression that does not compile, or an empty pattern, is an error.
  static Result<NamePattern> parse(std::string_view text);

  // Fails where a regular expression exceeds its matching limits.
  Result<bool> matches(std::string_view name) const;
  const std::string& text() const { return text_; }

 private:
  struct Regex;
  std::string text_;
  std::shared_ptr<const Regex> regex_;  // "re:" patterns
};

}  // namespace sub8::quantize
