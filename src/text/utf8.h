// UTF-8 as sub8 treats it: strict (no surrogates, no overlong forms, nothing above U+10FFFF), with
// U+FFFD for bytes that are not text.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/error.h"

namespace sub8 {

// The offset of the first byte that does not begin or continue a character, or npos when all of
// `text` is valid UTF-8.
size_t find_invalid_utf8(std::string_view text);

// An invalid_argument error that names `what` and the offset of the first bad byte. The message
// holds no raw bytes of `text`.
Status check_utf8(std::string_view text, std::string_view what);

// Bytes of the character that starts with `lead` (1 to 4), or 0 when no character starts so.
constexpr int utf8_length(unsigned char lead) {
  if (lead < 0x80) return 1;
  if (lead < 0xc2) return 0;
  if (lead < 0xe0) return 2;
  if (lead < 0xf0) return 3;
  return lead < 0xf5 ? 4 : 0;
}

// The scalar value at text[pos]. `text` must be valid UTF-8 and pos at the start of a character;
// *pos moves behind it.
inline char32_t next_scalar(std::string_view text, size_t* pos) {
  const auto* p = reinterpret_cast<const unsigned char*>(text.data()) + *pos;
  if (p[0] < 0x80) return *pos += 1, p[0];
  if (p[0] < 0xe0) return *pos += 2, char32_t((p[0] & 0x1fu) << 6 | (p[1] & 0x3fu));
  if (p[0] < 0xf0) {
    return *pos += 3, char32_t((p[0] & 0x0fu) << 12 | (p[1] & 0x3fu) << 6 | (p[2] & 0x3fu));
  }
  *pos += 4;
  return char32_t((p[0] & 0x07u) << 18 | (p[1] & 0x3fu) << 12 | (p[2] & 0x3fu) << 6 |
                  (p[3] & 0x3fu));
}

// The start of the character that ends before `end` (end > 0) in valid UTF-8.
inline size_t previous_scalar(std::string_view text, size_t end) {
  do --end;
  while ((static_cast<unsigned char>(text[end]) & 0xc0) == 0x80);
  return end;
}

void append_utf8(char32_t scalar, std::string* out);

// Appends `bytes` to *out, with one U+FFFD for each maximal part that is no character (Unicode
// 3.9, "substitution of maximal subparts").
void append_lossy_utf8(std::string_view bytes, std::string* out);

// Length of the tail of `bytes` that is a proper beginning of a character which more bytes could
// complete: 0 to 3.
size_t incomplete_utf8_tail(std::string_view bytes);

}  // namespace sub8
