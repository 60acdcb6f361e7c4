// FNV-1a, 64 bits: tells things apart that nobody forges. Not for security.
//
// Source: Fowler, Noll, Vo; RFC 9923.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace sub8 {

class Fnv1a {
 public:
  void add(std::span<const uint8_t> bytes) {
    for (const uint8_t byte : bytes) hash_ = (hash_ ^ byte) * 0x100000001b3u;
  }
  // With its length, so that two texts in a row are not one.
  void add_text(std::string_view text) {
    add_number(text.size());
    add({reinterpret_cast<const uint8_t*>(text.data()), text.size()});
  }
  void add_number(uint64_t value) {
    for (int i = 0; i < 8; ++i) {
      const auto byte = static_cast<uint8_t>(value >> (8 * i));
      add({&byte, 1});
    }
  }
  // 16 hexadecimal digits.
  std::string text() const {
    constexpr char kDigits[] = "0123456789abcdef";
    std::string out;
    for (int shift = 60; shift >= 0; shift -= 4) out += kDigits[hash_ >> shift & 15u];
    return out;
  }

 private:
  uint64_t hash_ = 0xcbf29ce484222325u;
};

}  // namespace sub8
