// Any bytes as tokenizer.json: an error or a tokenizer that works and survives being written.
#include <cstdint>
#include <cstdlib>

#include "text/detokenizer.h"
#include "text/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view json(reinterpret_cast<const char*>(data), size);
  const auto loaded = sub8::Tokenizer::from_json(json, "fuzz");
  if (!loaded.ok()) return 0;
  const sub8::Tokenizer& tokenizer = **loaded;
  const std::string_view text = " ab\xc3\xa9 a<s>\n\n12 \xe2\x96\x81<0x41>";
  const auto ids = tokenizer.encode(text, {});
  if (!ids.ok()) return 0;  // a pattern may run into its limit
  (void)tokenizer.decode(*ids, true);
  const auto again = sub8::Tokenizer::from_json(tokenizer.to_json(), "written");
  if (!again.ok() || (*again)->encode(text, {}).value() != *ids) std::abort();
  return 0;
}
