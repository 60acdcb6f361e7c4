#include "text/added_tokens.h"

#include <algorithm>

#include "text/unicode.h"
#include "text/utf8.h"

namespace sub8 {
namespace {

uint16_t class_before(std::string_view text, size_t pos) {
  if (pos == 0) return 0;
  size_t start = previous_scalar(text, pos);
  return char_table()[next_scalar(text, &start)];
}

uint16_t class_at(std::string_view text, size_t pos) {
  return pos == text.size() ? uint16_t{0} : char_table()[next_scalar(text, &pos)];
}

}  // namespace

AddedTokenMatcher::AddedTokenMatcher() : nodes_(1) { std::fill(first_, first_ + 256, 0); }

void AddedTokenMatcher::add(std::string_view content, const AddedToken* token) {
  if (content.empty()) return;
  int32_t node = 0;
  for (const char c : content) {
    const auto byte = static_cast<unsigned char>(c);
    auto& children = nodes_[node].children;
    const auto found = std::find_if(children.begin(), children.end(),
                                    [&](const auto& child) { return child.first == byte; });
    if (found != children.end()) {
      node = found->second;
      continue;
    }
    const auto next = static_cast<int32_t>(nodes_.size());
    children.emplace_back(byte, next);
    if (node == 0) first_[byte] = next;
    nodes_.emplace_back();
    node = next;
  }
  if (nodes_[node].token == nullptr) nodes_[node].token = token;
}

const AddedToken* AddedTokenMatcher::longest_at(std::string_view text, size_t pos,
                                                size_t* end) const {
  const AddedToken* best = nullptr;
  int32_t node = first_[static_cast<unsigned char>(text[pos])];
  while (node != 0) {
    ++pos;
    if (nodes_[node].token != nullptr) {
      best = nodes_[node].token;
      *end = pos;
    }
    if (pos == text.size()) break;
    const auto byte = static_cast<unsigned char>(text[pos]);
    int32_t next = 0;
    for (const auto& [key, child] : nodes_[node].children) {
      if (key == byte) next = child;
    }
    node = next;
  }
  return best;
}

void AddedTokenMatcher::split(std::string_view text, bool parse_special,
                              std::vector<TextPart>* parts) const {
  parts->clear();
  size_t done = 0;
  for (size_t pos = 0; !empty() && pos < text.size();) {
    size_t end = 0;
    const AddedToken* token = longest_at(text, pos, &end);
    if (token == nullptr) {
      ++pos;
      continue;
    }
    size_t begin = pos;
    pos = end;  // also after a match that is turned down below
    if (token->special && !parse_special) continue;
    if (token->single_word && ((class_before(text, begin) | class_at(text, end)) & kCharWord)) {
      continue;
    }
    if (token->lstrip) {
      while (begin > done && (class_before(text, begin) & kCharSpace)) {
        begin = previous_scalar(text, begin);
      }
      begin = std::max(begin, done);
    }
    if (token->rstrip) {
      while (class_at(text, end) & kCharSpace) next_scalar(text, &end);
    }
    if (done < begin) parts->push_back({done, begin, nullptr});
    parts->push_back({begin, end, token});
    done = end;
  }
  if (done < text.size()) parts->push_back({done, text.size(), nullptr});
}

}  // namespace sub8
