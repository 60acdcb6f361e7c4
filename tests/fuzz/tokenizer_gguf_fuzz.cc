// The vocabulary of a GGUF, spelt as lines: an error, or a tokenizer that works and survives being
// written as tokenizer.json.
//
//   model
//   pre
//   bos eos unknown padding, each a character counted from '0' (absent where it is below), then
//   three characters for the flags (t, f, or absent) <type digit><score character><token>   per
//   token; "m<left> <right>" per merge
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace {

std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> out;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    out.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return out;
}

std::optional<int32_t> id_at(std::string_view line, size_t at) {
  if (at >= line.size() || line[at] < '0') return std::nullopt;
  return line[at] - '0';
}

std::optional<bool> flag_at(std::string_view line, size_t at) {
  if (at >= line.size() || (line[at] != 't' && line[at] != 'f')) return std::nullopt;
  return line[at] == 't';
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto lines = lines_of({reinterpret_cast<const char*>(data), size});
  if (lines.size() < 3) return 0;
  sub8::GgufVocab vocab;
  vocab.source = "fuzz";
  vocab.model = lines[0];
  vocab.pre = lines[1];
  vocab.bos_token_id = id_at(lines[2], 0);
  vocab.eos_token_id = id_at(lines[2], 1);
  vocab.unknown_token_id = id_at(lines[2], 2);
  vocab.padding_token_id = id_at(lines[2], 3);
  vocab.add_bos_token = flag_at(lines[2], 4);
  vocab.add_eos_token = flag_at(lines[2], 5);
  vocab.add_space_prefix = flag_at(lines[2], 6);
  for (size_t i = 3; i < lines.size(); ++i) {
    const std::string_view line = lines[i];
    if (line.starts_with('m')) {
      vocab.merges.emplace_back(line.substr(1));
    } else if (line.size() >= 2) {
      vocab.token_types.push_back(line[0] - '0');
      vocab.scores.push_back(static_cast<float>(line[1]));
      vocab.tokens.emplace_back(line.substr(2));
    }
  }
  const auto loaded = sub8::Tokenizer::from_gguf(vocab);
  if (!loaded.ok()) return 0;
  const std::string_view text = " ab\xc3\xa9 a<s>\n\n12 \xe2\x96\x81<0x41>";
  const auto ids = (*loaded)->encode(text, {});
  if (!ids.ok()) return 0;  // a character without a token
  (void)(*loaded)->decode(*ids, false);
  const auto again = sub8::Tokenizer::from_json((*loaded)->to_json(), "written");
  if (!again.ok() || (*again)->encode(text, {}).value() != *ids) std::abort();
  return 0;
}
