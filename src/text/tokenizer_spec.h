// What a tokenizer is made of, before it is put together. Private to src/text.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/json.h"
#include "text/bpe.h"
#include "text/tokenizer.h"

namespace sub8 {

struct TokenizerSpec {
  std::string source;
  Vocabulary vocabulary;
  BpeOptions options;  // byte_level is set from the pre-tokenizer
  std::string unk_token;
  std::vector<BpeModel::Merge> merges;
  std::vector<AddedToken> added;  // in file order
  // In tokenizer.json's form; null when absent.
  boost::json::value normalizer;
  boost::json::value pre_tokenizer;
  boost::json::value post_processor;
  boost::json::value decoder;
  SpecialIds special_ids;

  static Result<std::unique_ptr<Tokenizer>> build(TokenizerSpec spec);
};

// Adds one merge; `where` names it in errors. Left and right are tokens of the vocabulary.
Result<BpeModel::Merge> resolve_merge(const Vocabulary& vocabulary, std::string_view left,
                                      std::string_view right, const std::string& where);

}  // namespace sub8
