// A vocabulary of one token per byte, so that every id is text: for engines without a real model.
#pragma once

#include <cstdio>

#include "text/tokenizer.h"

namespace sub8::testing {

inline GgufVocab byte_vocab() {
  GgufVocab out;
  out.source = "a vocabulary of bytes";
  out.model = "llama";
  for (int i = 0; i < 256; ++i) {
    char name[8];
    std::snprintf(name, sizeof name, "<0x%02X>", i);
    out.tokens.emplace_back(name);
    out.scores.push_back(0);
    out.token_types.push_back(6);
  }
  return out;
}

}  // namespace sub8::testing
