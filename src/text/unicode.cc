#include "text/unicode.h"

#include <algorithm>
#include <cstring>
#include <map>

#include <utf8proc.h>

#include "text/utf8.h"

namespace sub8 {
namespace {

constexpr char32_t kEnd = 0x110000;

bool is_white_space(char32_t c) {
  return (c >= 0x9 && c <= 0xd) || c == 0x20 || c == 0x85 || c == 0xa0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f ||
         c == 0x3000;
}

// Letters by Other_Alphabetic that are neither letters nor marks by category: circled letters.
bool is_alphabetic_symbol(char32_t c) {
  return (c >= 0x24b6 && c <= 0x24e9) || (c >= 0x1f130 && c <= 0x1f149) ||
         (c >= 0x1f150 && c <= 0x1f169) || (c >= 0x1f170 && c <= 0x1f189);
}

uint16_t category_class(char32_t c) {
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LT:
      return kCharLetter | kCharUpper | kCharWord;
    case UTF8PROC_CATEGORY_LL:
      return kCharLetter | kCharLower | kCharWord;
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
      return kCharLetter | kCharWord;
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
      return kCharMark | kCharWord;
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
      return kCharNumber | kCharWord;
    case UTF8PROC_CATEGORY_NO:
      return kCharNumber;
    case UTF8PROC_CATEGORY_PC:
      return kCharPunctuation | kCharWord;
    case UTF8PROC_CATEGORY_PD:
    case UTF8PROC_CATEGORY_PS:
    case UTF8PROC_CATEGORY_PE:
    case UTF8PROC_CATEGORY_PI:
    case UTF8PROC_CATEGORY_PF:
    case UTF8PROC_CATEGORY_PO:
      return kCharPunctuation;
    default:
      return 0;
  }
}

// Full decomposition of one character, appended to *out.
void decompose(char32_t c, bool compatibility, std::vector<utf8proc_int32_t>* out) {
  const auto options = static_cast<utf8proc_option_t>(UTF8PROC_DECOMPOSE | UTF8PROC_STABLE |
                                                      (compatibility ? UTF8PROC_COMPAT : 0));
  utf8proc_int32_t buffer[32];
  int boundary = 0;
  const utf8proc_ssize_t n =
      utf8proc_decompose_char(static_cast<utf8proc_int32_t>(c), buffer, 32, options, &boundary);
  if (n < 0 || n > 32) {
    out->push_back(static_cast<utf8proc_int32_t>(c));
  } else {
    out->insert(out->end(), buffer, buffer + n);
  }
}

int combining_class(utf8proc_int32_t c) { return utf8proc_get_property(c)->combining_class; }

size_t compose(std::vector<utf8proc_int32_t>* scalars) {
  const utf8proc_ssize_t n =
      utf8proc_normalize_utf32(scalars->data(), static_cast<utf8proc_ssize_t>(scalars->size()),
                               static_cast<utf8proc_option_t>(UTF8PROC_COMPOSE | UTF8PROC_STABLE));
  scalars->resize(n < 0 ? scalars->size() : static_cast<size_t>(n));
  return scalars->size();
}

// Marks what NFC can change: marks with a combining class, what is not its own NFC, and what may
// join with a character before it.
void mark_nfc_unsafe(std::vector<uint16_t>* classes) {
  const auto mark = [&](utf8proc_int32_t c) {
    (*classes)[static_cast<size_t>(c)] |= kCharNfcUnsafe;
  };
  std::vector<utf8proc_int32_t> parts;
  for (char32_t c = 0x80; c < kEnd; ++c) {
    if (c >= 0xac00 && c <= 0xd7a3) continue;  // Hangul syllables: Jamo are marked below
    const utf8proc_property_t* property = utf8proc_get_property(static_cast<utf8proc_int32_t>(c));
    if (property->combining_class != 0) mark(static_cast<utf8proc_int32_t>(c));
    if (property->decomp_seqindex == UINT16_MAX) continue;
    parts.clear();
    decompose(c, false, &parts);
    if (parts.size() == 1 && parts[0] == static_cast<utf8proc_int32_t>(c)) continue;
    for (size_t i = 1; i < parts.size(); ++i) mark(parts[i]);
    if (compose(&parts) != 1 || parts[0] != static_cast<utf8proc_int32_t>(c)) {
      mark(static_cast<utf8proc_int32_t>(c));
    }
  }
  for (utf8proc_int32_t c = 0x1161; c <= 0x1175; ++c) mark(c);
  for (utf8proc_int32_t c = 0x11a8; c <= 0x11c2; ++c) mark(c);
}

}  // namespace

CharTable::CharTable() {
  std::vector<uint16_t> classes(kEnd);
  for (char32_t c = 0; c < kEnd; ++c) {
    uint16_t bits = category_class(c);
    if (is_white_space(c)) bits |= kCharSpace;
    if (c == '\r' || c == '\n') bits |= kCharLineEnd;
    if (is_alphabetic_symbol(c) || c == 0x200c || c == 0x200d) bits |= kCharWord;
    if (c > 0x20 && c < 0x7f && (bits & (kCharLetter | kCharNumber)) == 0) bits |= kCharAsciiSymbol;
    classes[c] = bits;
  }
  mark_nfc_unsafe(&classes);
  std::memcpy(ascii_, classes.data(), sizeof ascii_);
  std::map<std::vector<uint16_t>, uint32_t> known;
  for (size_t block = 0; block < std::size(stage1_); ++block) {
    std::vector<uint16_t> content(classes.begin() + static_cast<ptrdiff_t>(block * 128),
                                  classes.begin() + static_cast<ptrdiff_t>(block * 128 + 128));
    const auto [it, added] = known.emplace(content, static_cast<uint32_t>(blocks_.size()));
    if (added) blocks_.insert(blocks_.end(), content.begin(), content.end());
    stage1_[block] = it->second;
  }
}

const CharTable& char_table() {
  static const CharTable table;
  return table;
}

std::string normalize_unicode(std::string_view text, NormalForm form) {
  const bool composed = form == NormalForm::kNfc || form == NormalForm::kNfkc;
  const bool compatibility = form == NormalForm::kNfkc || form == NormalForm::kNfkd;
  size_t pos = 0;
  bool changes = false;
  const CharTable& table = char_table();
  while (pos < text.size() && !changes) {
    const char32_t c = next_scalar(text, &pos);
    changes = form == NormalForm::kNfc ? (table[c] & kCharNfcUnsafe) != 0 : c >= 0x80;
  }
  if (!changes) return std::string(text);

  std::vector<utf8proc_int32_t> scalars;
  scalars.reserve(text.size());
  for (pos = 0; pos < text.size();) {
    const char32_t c = next_scalar(text, &pos);
    if (c < 0x80) {
      scalars.push_back(static_cast<utf8proc_int32_t>(c));
    } else {
      decompose(c, compatibility, &scalars);
    }
  }
  // Canonical ordering: every run of marks sorted by combining class, equal classes in order.
  for (size_t i = 0; i < scalars.size();) {
    if (scalars[i] < 0x80 || combining_class(scalars[i]) == 0) {
      ++i;
      continue;
    }
    size_t end = i;
    while (end < scalars.size() && combining_class(scalars[end]) != 0) ++end;
    std::stable_sort(scalars.begin() + static_cast<ptrdiff_t>(i),
                     scalars.begin() + static_cast<ptrdiff_t>(end),
                     [](utf8proc_int32_t a, utf8proc_int32_t b) {
                       return combining_class(a) < combining_class(b);
                     });
    i = end;
  }
  if (composed) compose(&scalars);
  std::string out;
  out.reserve(text.size());
  for (const utf8proc_int32_t c : scalars) append_utf8(static_cast<char32_t>(c), &out);
  return out;
}

std::string lowercase_unicode(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t pos = 0; pos < text.size();) {
    const char32_t c = next_scalar(text, &pos);
    if (c == 0x130) {  // the one character whose lower case is two
      out += "i\xcc\x87";
    } else {
      append_utf8(static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))), &out);
    }
  }
  return out;
}

}  // namespace sub8
