// Unicode facts the tokenizer needs: character classes in one table, and normalisation forms.
// Categories come from utf8proc; \s is White_Space, \w is that of the `regex` crate (Alphabetic,
// marks, decimal digits, connector punctuation, joiners).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace sub8 {

enum CharClass : uint16_t {
  kCharLetter = 1,          // L
  kCharMark = 2,            // M
  kCharNumber = 4,          // N
  kCharSpace = 8,           // White_Space
  kCharLineEnd = 16,        // \r \n
  kCharUpper = 32,          // Lu, Lt
  kCharLower = 64,          // Ll
  kCharPunctuation = 128,   // P
  kCharWord = 256,          // \w
  kCharNfcUnsafe = 512,     // NFC may change a text that holds it
  kCharAsciiSymbol = 1024,  // ASCII that is neither alphanumeric, nor space, nor control
};

// Two-stage table over all code points; 16 bits of CharClass each.
class CharTable {
 public:
  uint16_t operator[](char32_t c) const {
    if (c < 0x80) return ascii_[c];
    return c < 0x110000 ? blocks_[stage1_[c >> 7] + (c & 0x7f)] : uint16_t{0};
  }

 private:
  friend const CharTable& char_table();
  CharTable();
  uint16_t ascii_[0x80];
  uint32_t stage1_[0x110000 >> 7];
  std::vector<uint16_t> blocks_;
};

// Built once per process (a few milliseconds).
const CharTable& char_table();

enum class NormalForm { kNfc, kNfd, kNfkc, kNfkd };

// Valid UTF-8 in, valid UTF-8 out. Time is O(n log n) whatever the text: runs of combining marks
// are sorted, not bubbled.
std::string normalize_unicode(std::string_view text, NormalForm form);

// Each character by its full lower-case mapping, without context.
std::string lowercase_unicode(std::string_view text);

}  // namespace sub8
