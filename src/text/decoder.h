// The decoder of a tokenizer.json: turns token strings back into text, token by token. Decoding a
// whole sequence is the same thing run to its end, so a stream and a whole never differ.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "text/normalizer.h"

namespace sub8 {

class Decoder {
 public:
  // Without a decoder, token strings are joined with spaces.
  Decoder() = default;
  // Decoders that sub8 lacks are refused by name.
  static Result<Decoder> parse(const JsonRef& json);

  // What one decoding holds back.
  class State {
   private:
    friend class Decoder;
    struct Held {
      std::string text;  // bytes that are no whole character yet, or an unfinished match
      size_t count = 0;  // tokens seen, or leading characters dropped
      bool open = true;  // Strip: still at the front
    };
    std::vector<Held> held_;
    bool any_ = false;
  };
  // Appends to *out all text that is certain after this token.
  void push(std::string_view token, State* state, std::string* out) const;
  // Appends what push still held back; an unfinished character is one U+FFFD.
  void finish(State* state, std::string* out) const;

  // The bytes a token stands for inside a text (no stripping at its ends).
  std::string token_bytes(std::string_view token) const;

 private:
  enum class Kind { kByteLevel, kByteFallback, kReplace, kStrip, kMetaspace };
  struct Step {
    Kind kind = Kind::kByteLevel;
    bool fused = false;  // sees the text as a whole, not token by token
    TextPattern pattern;
    std::string content;
    size_t start = 0;  // Strip
    size_t stop = 0;
    bool prepended = true;  // Metaspace
  };
  Status append(const JsonRef& json, bool* fused);
  Status parse_strip(const JsonRef& json, Step* step);
  void emit(size_t index, std::string_view text, State* state, std::string* out) const;
  void byte_level(size_t index, std::string_view token, State* state, std::string* out) const;
  void byte_fallback(size_t index, std::string_view token, State* state, std::string* out) const;
  void flush_bytes(size_t index, bool all, State* state, std::string* out) const;
  void replace_fused(size_t index, std::string_view text, State* state, std::string* out) const;
  void strip_fused(size_t index, std::string_view text, State* state, std::string* out) const;
  std::vector<Step> steps_;
  bool join_with_spaces_ = true;
};

}  // namespace sub8
