#include "text/utf8.h"

#include <cstring>

namespace sub8 {
namespace {

bool is_continuation(unsigned char byte) { return (byte & 0xc0) == 0x80; }

// Whether `second` may follow `lead`: this is where overlong forms, surrogates and values above
// U+10FFFF are told apart (Unicode table 3-7).
bool second_byte_fits(unsigned char lead, unsigned char second) {
  switch (lead) {
    case 0xe0:
      return second >= 0xa0 && second <= 0xbf;
    case 0xed:
      return second >= 0x80 && second <= 0x9f;
    case 0xf0:
      return second >= 0x90 && second <= 0xbf;
    case 0xf4:
      return second >= 0x80 && second <= 0x8f;
    default:
      return is_continuation(second);
  }
}

// How many bytes at `pos` agree with the beginning of a character; *complete tells whether they
// are a whole one. 0 for a byte that begins nothing.
size_t well_formed_prefix(std::string_view bytes, size_t pos, bool* complete) {
  const auto at = [&](size_t i) { return static_cast<unsigned char>(bytes[i]); };
  const auto length = static_cast<size_t>(utf8_length(at(pos)));
  *complete = false;
  if (length == 0) return 0;
  size_t have = 1;
  while (have < length && pos + have < bytes.size() &&
         (have == 1 ? second_byte_fits(at(pos), at(pos + 1)) : is_continuation(at(pos + have)))) {
    ++have;
  }
  *complete = have == length;
  return have;
}

}  // namespace

size_t find_invalid_utf8(std::string_view text) {
  size_t pos = 0;
  while (pos < text.size()) {
    // Eight ASCII bytes at a time.
    while (pos + 8 <= text.size()) {
      uint64_t word = 0;
      std::memcpy(&word, text.data() + pos, 8);
      if ((word & 0x8080808080808080u) != 0) break;
      pos += 8;
    }
    if (pos == text.size()) break;
    bool complete = false;
    const size_t length = well_formed_prefix(text, pos, &complete);
    if (!complete) return pos;
    pos += length;
  }
  return std::string_view::npos;
}

Status check_utf8(std::string_view text, std::string_view what) {
  const size_t bad = find_invalid_utf8(text);
  if (bad == std::string_view::npos) return {};
  constexpr char kHex[] = "0123456789ABCDEF";
  const auto byte = static_cast<unsigned char>(text[bad]);
  return invalid_argument(std::string(what) + ": not valid UTF-8: byte 0x" + kHex[byte >> 4] +
                          kHex[byte & 15] + " at offset " + std::to_string(bad) + " of " +
                          std::to_string(text.size()) +
                          " does not begin a complete character; convert the text to UTF-8");
}

void append_utf8(char32_t scalar, std::string* out) {
  const auto put = [&](uint32_t byte) { out->push_back(static_cast<char>(byte)); };
  if (scalar < 0x80) {
    put(scalar);
  } else if (scalar < 0x800) {
    put(0xc0 | scalar >> 6);
    put(0x80 | (scalar & 0x3f));
  } else if (scalar < 0x10000) {
    put(0xe0 | scalar >> 12);
    put(0x80 | (scalar >> 6 & 0x3f));
    put(0x80 | (scalar & 0x3f));
  } else {
    put(0xf0 | scalar >> 18);
    put(0x80 | (scalar >> 12 & 0x3f));
    put(0x80 | (scalar >> 6 & 0x3f));
    put(0x80 | (scalar & 0x3f));
  }
}

void append_lossy_utf8(std::string_view bytes, std::string* out) {
  size_t pos = 0;
  while (pos < bytes.size()) {
    const size_t bad = find_invalid_utf8(bytes.substr(pos));
    if (bad == std::string_view::npos) {
      out->append(bytes.substr(pos));
      return;
    }
    out->append(bytes.substr(pos, bad));
    pos += bad;
    bool complete = false;
    const size_t skip = well_formed_prefix(bytes, pos, &complete);
    out->append("\xef\xbf\xbd");
    pos += skip == 0 ? 1 : skip;
  }
}

size_t incomplete_utf8_tail(std::string_view bytes) {
  for (size_t back = 1; back <= 3 && back <= bytes.size(); ++back) {
    const size_t pos = bytes.size() - back;
    if (is_continuation(static_cast<unsigned char>(bytes[pos]))) continue;
    bool complete = false;
    const size_t have = well_formed_prefix(bytes, pos, &complete);
    return !complete && have == back ? back : 0;
  }
  return 0;
}

}  // namespace sub8
