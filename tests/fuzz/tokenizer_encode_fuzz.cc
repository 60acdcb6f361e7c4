// Any bytes as text: an error exactly when they are no UTF-8, and byte-level text comes back whole.
#include <cstdint>
#include <cstdlib>

#include "text/bpe.h"
#include "text/detokenizer.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

namespace {

// Every byte, a few merges, an added token, and the split of `pattern`.
std::unique_ptr<sub8::Tokenizer> make(const char* pattern) {
  std::string vocab;
  for (int b = 0; b < 256; ++b) {
    const char byte = static_cast<char>(b);
    std::string token;
    sub8::append_byte_level({&byte, 1}, &token);
    if (token == "\"" || token == "\\") token = "\\" + token;
    vocab += "\"" + token + "\":" + std::to_string(b) + ",";
  }
  const std::string json =
      R"({"added_tokens":[{"id":260,"content":"<s>","special":true}],"pre_tokenizer":{"type":"Sequence","pretokenizers":[)" +
      std::string(pattern) +
      R"({"type":"ByteLevel","add_prefix_space":false,"use_regex":false}]},"decoder":{"type":"ByteLevel"},)"
      R"("model":{"type":"BPE","vocab":{)" +
      vocab + R"("ab":256,"aab":257,"aa":258,"abab":259},"merges":["a b","a ab","a a","ab ab"]}})";
  return sub8::Tokenizer::from_json(json, "fuzz").value();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::unique_ptr<sub8::Tokenizer> tokenizers[] = {
      make(""), make(R"({"type":"Digits","individual_digits":true},)"),
      make(
          R"({"type":"Split","pattern":{"Regex":"\\s+(?!\\S)|\\s+|\\w+"},"behavior":"Isolated"},)")};
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const bool valid = sub8::find_invalid_utf8(text) == std::string_view::npos;
  for (const auto& tokenizer : tokenizers) {
    const auto ids = tokenizer->encode(text, {});
    if (ids.ok() != valid) std::abort();
    if (!valid) continue;
    if (tokenizer->decode(*ids, false) != text) std::abort();
    sub8::Detokenizer stream(*tokenizer, false);
    std::string whole;
    for (const int32_t id : *ids) {
      const std::string part = stream.push(id);
      if (sub8::find_invalid_utf8(part) != std::string_view::npos) std::abort();
      whole += part;
    }
    if (whole + stream.finish() != text) std::abort();
  }
  return 0;
}
