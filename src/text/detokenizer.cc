#include "text/detokenizer.h"

namespace sub8 {

std::string Detokenizer::push(int32_t id) {
  std::string out;
  if (skip_special_ && tokenizer_->is_special(id)) return out;
  if (const std::optional<std::string_view> token = tokenizer_->decoder_input(id)) {
    tokenizer_->decoder().push(*token, &state_, &out);
  }
  return out;
}

std::string Detokenizer::finish() {
  std::string out;
  tokenizer_->decoder().finish(&state_, &out);
  state_ = {};
  return out;
}

}  // namespace sub8
