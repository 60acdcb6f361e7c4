// Hand-written matchers for the split patterns that models really use. Each gives exactly the
// matches of its regular expression (tests/text/split_pattern_test.cc compares them), many times
// faster; any other pattern goes through Regex.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "text/regex.h"

namespace sub8 {

enum class SplitPattern {
  kGpt2,    // GPT-2, OPT, SmolLM2 (behind its digit split)
  kLlama3,  // Llama 3: contractions in any case, up to three digits
  kQwen2,   // Qwen2, Qwen3: single digits
  kQwen35,  // Qwen3.5: marks count as letters
  kO200k,   // gpt-oss: upper case, then lower case; contractions as suffixes
  kTekken,  // Mistral Nemo: as o200k without contractions, single digits
};

// The regular expression as tokenizer.json has it.
std::string_view split_pattern_regex(SplitPattern pattern);
std::optional<SplitPattern> find_split_pattern(std::string_view regex);

// Appends the matches of `pattern` in valid UTF-8 `text`, each shifted by `offset`. They cover the
// whole text.
void append_split(SplitPattern pattern, std::string_view text, size_t offset,
                  std::vector<Span>* spans);

}  // namespace sub8
