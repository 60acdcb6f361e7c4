#include "text/decoder.h"

#include <algorithm>

#include "text/bpe.h"
#include "text/utf8.h"

namespace sub8 {
namespace {

constexpr std::string_view kReplacement = "\xef\xbf\xbd";

// The byte of "<0x..>", or -1.
int fallback_byte(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return -1;
  int value = 0;
  for (const char c : token.substr(3, 2)) {
    const int digit = c >= '0' && c <= '9'   ? c - '0'
                      : c >= 'A' && c <= 'F' ? c - 'A' + 10
                      : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                             : -1;
    if (digit < 0) return -1;
    value = value * 16 + digit;
  }
  return value;
}

std::string replace_literal(std::string_view text, std::string_view from, std::string_view to) {
  std::string out;
  size_t done = 0;
  for (size_t pos = from.empty() ? std::string_view::npos : text.find(from);
       pos != std::string_view::npos; pos = text.find(from, done)) {
    out += text.substr(done, pos - done);
    out += to;
    done = pos + from.size();
  }
  out += text.substr(done);
  return out;
}

std::string_view strip_token(std::string_view text, std::string_view content, size_t start,
                             size_t stop) {
  for (size_t i = 0; i < start && text.starts_with(content); ++i)
    text.remove_prefix(content.size());
  for (size_t i = 0; i < stop && text.ends_with(content); ++i) text.remove_suffix(content.size());
  return text;
}

}  // namespace

Result<Decoder> Decoder::parse(const JsonRef& json) {
  Decoder out;
  out.join_with_spaces_ = false;
  bool fused = false;
  SUB8_RETURN_IF_ERROR(out.append(json, &fused));
  return out;
}

Status Decoder::parse_strip(const JsonRef& json, Step* step) {
  step->kind = Kind::kStrip;
  SUB8_ASSIGN_OR_RETURN(step->content, json.get_string("content", " "));
  if (step->content.empty()) return corrupt_data(json.where() + ".content: expected a character");
  SUB8_ASSIGN_OR_RETURN(const int64_t start, json.get_int("start", 0, 0, 1 << 20));
  SUB8_ASSIGN_OR_RETURN(const int64_t stop, json.get_int("stop", 0, 0, 1 << 20));
  step->start = static_cast<size_t>(start);
  step->stop = static_cast<size_t>(stop);
  return {};
}

Status Decoder::append(const JsonRef& json, bool* fused) {
  SUB8_ASSIGN_OR_RETURN(const JsonRef type_json, json.at("type"));
  SUB8_ASSIGN_OR_RETURN(const std::string type, type_json.as_string());
  if (type == "Sequence") {
    SUB8_ASSIGN_OR_RETURN(const JsonRef list, json.at("decoders"));
    SUB8_ASSIGN_OR_RETURN(const std::vector<JsonRef> parts, list.elements());
    for (const JsonRef& part : parts) SUB8_RETURN_IF_ERROR(append(part, fused));
    return {};
  }
  if (type == "Fuse") {
    *fused = true;
    return {};
  }
  Step step;
  step.fused = *fused;
  if (type == "ByteLevel" && !*fused) {
    step.kind = Kind::kByteLevel;
    *fused = true;
  } else if (type == "ByteFallback" && !*fused) {
    step.kind = Kind::kByteFallback;
  } else if (type == "Replace") {
    step.kind = Kind::kReplace;
    SUB8_ASSIGN_OR_RETURN(const JsonRef pattern, json.at("pattern"));
    SUB8_ASSIGN_OR_RETURN(step.pattern, TextPattern::parse(pattern));
    if (step.pattern.regex) {
      return unsupported(pattern.where() + ": a regular expression in a decoder is not supported");
    }
    SUB8_ASSIGN_OR_RETURN(const JsonRef content, json.at("content"));
    SUB8_ASSIGN_OR_RETURN(step.content, content.as_string());
  } else if (type == "Strip") {
    SUB8_RETURN_IF_ERROR(parse_strip(json, &step));
  } else if (type == "Metaspace" && !*fused) {
    step.kind = Kind::kMetaspace;
    SUB8_ASSIGN_OR_RETURN(step.content, json.get_string("replacement", "\xe2\x96\x81"));
    if (step.content.empty()) return corrupt_data(json.where() + ".replacement: is empty");
    SUB8_ASSIGN_OR_RETURN(const bool prefix, json.get_bool("add_prefix_space", true));
    SUB8_ASSIGN_OR_RETURN(const std::string scheme,
                          json.get_string("prepend_scheme", prefix ? "always" : "never"));
    step.prepended = scheme != "never";
  } else {
    return unsupported(json.where() + ": the decoder \"" + type + "\" is not supported" +
                       (*fused ? " behind one that joins tokens" : "") +
                       " (supported: Sequence, ByteLevel, ByteFallback, Fuse, Replace, Strip, "
                       "Metaspace)");
  }
  steps_.push_back(std::move(step));
  return {};
}

void Decoder::push(std::string_view token, State* state, std::string* out) const {
  if (state->held_.size() != steps_.size()) state->held_.resize(steps_.size());
  if (join_with_spaces_ && state->any_) *out += ' ';
  state->any_ = true;
  emit(0, token, state, out);
}

void Decoder::finish(State* state, std::string* out) const {
  if (state->held_.size() != steps_.size()) state->held_.resize(steps_.size());
  for (size_t i = 0; i < steps_.size(); ++i) {
    State::Held& held = state->held_[i];
    const Step& step = steps_[i];
    if (held.text.empty()) continue;
    if (step.kind == Kind::kByteFallback) {
      flush_bytes(i, true, state, out);
    } else if (step.kind == Kind::kByteLevel) {
      emit(i + 1, kReplacement, state, out);
    } else if (step.kind == Kind::kReplace) {
      emit(i + 1, std::string(held.text), state, out);
    }
    held.text.clear();  // what Strip holds is stripped
  }
}

void Decoder::emit(size_t index, std::string_view text, State* state, std::string* out) const {
  if (index == steps_.size()) {
    *out += text;
    return;
  }
  const Step& step = steps_[index];
  switch (step.kind) {
    case Kind::kByteLevel:
      return byte_level(index, text, state, out);
    case Kind::kByteFallback:
      return byte_fallback(index, text, state, out);
    case Kind::kReplace:
      if (step.fused) return replace_fused(index, text, state, out);
      return emit(index + 1, replace_literal(text, step.pattern.literal, step.content), state, out);
    case Kind::kStrip:
      if (step.fused) return strip_fused(index, text, state, out);
      return emit(index + 1, strip_token(text, step.content, step.start, step.stop), state, out);
    case Kind::kMetaspace: {
      const bool first = state->held_[index].count++ == 0;
      return emit(index + 1,
                  replace_literal(text, step.content, first && step.prepended ? "" : " "), state,
                  out);
    }
  }
}

void Decoder::byte_level(size_t index, std::string_view token, State* state,
                         std::string* out) const {
  std::string& held = state->held_[index].text;
  std::string bytes;
  held += decode_byte_level(token, &bytes) ? std::string_view(bytes) : token;
  const size_t tail = incomplete_utf8_tail(held);
  std::string text;
  append_lossy_utf8(std::string_view(held).substr(0, held.size() - tail), &text);
  held.erase(0, held.size() - tail);
  if (!text.empty()) emit(index + 1, text, state, out);
}

void Decoder::byte_fallback(size_t index, std::string_view token, State* state,
                            std::string* out) const {
  const int byte = fallback_byte(token);
  if (byte >= 0) {
    state->held_[index].text.push_back(static_cast<char>(byte));
    flush_bytes(index, false, state, out);
    return;
  }
  flush_bytes(index, true, state, out);
  emit(index + 1, token, state, out);
}

// Hands on what is decided of a run of fallback bytes: whole characters, and one U+FFFD for each
// byte that belongs to none.
void Decoder::flush_bytes(size_t index, bool all, State* state, std::string* out) const {
  std::string& held = state->held_[index].text;
  const size_t tail = all ? 0 : incomplete_utf8_tail(held);
  std::string_view bytes = std::string_view(held).substr(0, held.size() - tail);
  std::string text;
  while (!bytes.empty()) {
    const size_t bad = find_invalid_utf8(bytes);
    text += bytes.substr(0, bad);
    if (bad == std::string_view::npos) break;
    text += kReplacement;
    bytes.remove_prefix(bad + 1);
  }
  held.erase(0, held.size() - tail);
  if (!text.empty()) emit(index + 1, text, state, out);
}

void Decoder::replace_fused(size_t index, std::string_view text, State* state,
                            std::string* out) const {
  const Step& step = steps_[index];
  const std::string& from = step.pattern.literal;
  std::string& held = state->held_[index].text;
  held += text;
  std::string ready;
  size_t done = 0;
  for (size_t pos = from.empty() ? std::string::npos : held.find(from); pos != std::string::npos;
       pos = held.find(from, done)) {
    ready.append(held, done, pos - done);
    ready += step.content;
    done = pos + from.size();
  }
  // The longest end that may be the beginning of a match stays.
  size_t keep = from.empty() ? 0 : std::min(from.size() - 1, held.size() - done);
  while (keep > 0 && std::string_view(held).substr(held.size() - keep) !=
                         std::string_view(from).substr(0, keep)) {
    --keep;
  }
  ready.append(held, done, held.size() - keep - done);
  held.erase(0, held.size() - keep);
  if (!ready.empty()) emit(index + 1, ready, state, out);
}

void Decoder::strip_fused(size_t index, std::string_view text, State* state,
                          std::string* out) const {
  const Step& step = steps_[index];
  State::Held& held = state->held_[index];
  while (held.open && !text.empty()) {
    if (held.count < step.start && text.starts_with(step.content)) {
      text.remove_prefix(step.content.size());
      ++held.count;
    } else {
      held.open = false;
    }
  }
  std::string ready = held.text + std::string(text);
  size_t keep = 0;
  for (size_t i = 0; i < step.stop; ++i) {
    if (!std::string_view(ready).substr(0, ready.size() - keep).ends_with(step.content)) break;
    keep += step.content.size();
  }
  held.text = ready.substr(ready.size() - keep);
  ready.resize(ready.size() - keep);
  if (!ready.empty()) emit(index + 1, ready, state, out);
}

std::string Decoder::token_bytes(std::string_view token) const {
  std::string text(token);
  for (const Step& step : steps_) {
    std::string bytes;
    if (step.kind == Kind::kByteLevel) {
      if (decode_byte_level(text, &bytes)) text = bytes;
    } else if (step.kind == Kind::kByteFallback) {
      if (const int byte = fallback_byte(text); byte >= 0) {
        text.assign(1, static_cast<char>(byte));
      }
    } else if (step.kind == Kind::kReplace) {
      text = replace_literal(text, step.pattern.literal, step.content);
    } else if (step.kind == Kind::kMetaspace) {
      text = replace_literal(text, step.content, " ");
    }
  }
  return text;
}

}  // namespace sub8
