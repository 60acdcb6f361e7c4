// Regular expressions as the `tokenizers` package runs them (Oniguruma, Ruby syntax, UTF-8), on
// PCRE2. Differences are translated where they are known (\s, \w, {,n}, line anchors) and refused
// by name where they are not.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace sub8 {

struct Span {
  size_t begin = 0;
  size_t end = 0;
};

class Regex {
 public:
  // `where` names the place of the pattern in errors.
  static Result<Regex> compile(std::string_view pattern, std::string_view where);

  // All matches from left to right in valid UTF-8. An empty match directly after another match is
  // skipped. A pattern that needs too many steps or too much memory on this text is an error.
  Status find_all(std::string_view text, std::vector<Span>* matches) const;

 private:
  struct Compiled;
  explicit Regex(std::shared_ptr<const Compiled> compiled) : compiled_(std::move(compiled)) {}
  std::shared_ptr<const Compiled> compiled_;  // immutable, so copies and threads share it
};

// The PCRE2 pattern that matches what `pattern` matches in Oniguruma.
Result<std::string> translate_oniguruma(std::string_view pattern, std::string_view where);

}  // namespace sub8
