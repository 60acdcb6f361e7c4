// Added tokens: strings that are found in the text before the model sees it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace sub8 {

struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool single_word = false;  // only where no word character stands beside it
  bool lstrip = false;       // takes white space before it
  bool rstrip = false;       // takes white space behind it
  bool normalized = false;   // looked for in the normalised text
  bool special = false;      // of control meaning: skipped by decode on request
};

// A part of the text: a token, or text between tokens when `token` is null.
struct TextPart {
  size_t begin = 0;
  size_t end = 0;
  const AddedToken* token = nullptr;
};

// Finds the leftmost, longest of a set of strings, in time linear in the text for a given set.
class AddedTokenMatcher {
 public:
  AddedTokenMatcher();
  // `token` must outlive the matcher. Of equal contents the first counts; an empty one is ignored.
  void add(std::string_view content, const AddedToken* token);
  bool empty() const { return nodes_.size() == 1; }

  // Cuts `text` into parts. Without `parse_special`, tokens marked special are plain text.
  void split(std::string_view text, bool parse_special, std::vector<TextPart>* parts) const;

 private:
  struct Node {
    std::vector<std::pair<unsigned char, int32_t>> children;
    const AddedToken* token = nullptr;
  };
  const AddedToken* longest_at(std::string_view text, size_t pos, size_t* end) const;
  std::vector<Node> nodes_;
  int32_t first_[256];
};

}  // namespace sub8
