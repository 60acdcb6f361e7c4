// Token ids to text as they arrive: what comes out is always whole characters.
#pragma once

#include <cstdint>
#include <string>

#include "text/tokenizer.h"

namespace sub8 {

// One per stream. The concatenation of all push() results and finish() is Tokenizer::decode() of
// all ids. A byte that cannot belong to a character becomes U+FFFD at once; a character that may
// still be completed is held back.
class Detokenizer {
 public:
  // `tokenizer` must outlive this.
  explicit Detokenizer(const Tokenizer& tokenizer, bool skip_special = true)
      : tokenizer_(&tokenizer), skip_special_(skip_special) {}

  std::string push(int32_t id);
  // The rest; afterwards a new stream may begin.
  std::string finish();

 private:
  const Tokenizer* tokenizer_;
  bool skip_special_;
  Decoder::State state_;
};

}  // namespace sub8
