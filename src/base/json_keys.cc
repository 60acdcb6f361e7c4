#include "base/json_keys.h"

#include <string>
#include <unordered_set>
#include <vector>

#include <boost/json/basic_parser_impl.hpp>

namespace sub8 {
namespace {

namespace json = boost::json;

// The event handler that boost::json::basic_parser calls: keeps the keys of every open object.
struct DuplicateFinder {
  // NOLINTBEGIN(readability-identifier-naming): Boost.JSON's names
  static constexpr std::size_t max_object_size = static_cast<std::size_t>(-1);
  static constexpr std::size_t max_array_size = static_cast<std::size_t>(-1);
  static constexpr std::size_t max_key_size = static_cast<std::size_t>(-1);
  static constexpr std::size_t max_string_size = static_cast<std::size_t>(-1);
  // NOLINTEND(readability-identifier-naming)

  std::vector<std::unordered_set<std::string>> open;
  std::string key;
  std::string duplicate;

  bool on_document_begin(json::error_code&) { return true; }
  bool on_document_end(json::error_code&) { return true; }
  bool on_object_begin(json::error_code&) {
    open.emplace_back();
    return true;
  }
  bool on_object_end(std::size_t, json::error_code&) {
    open.pop_back();
    return true;
  }
  bool on_array_begin(json::error_code&) { return true; }
  bool on_array_end(std::size_t, json::error_code&) { return true; }
  bool on_key_part(json::string_view text, std::size_t, json::error_code&) {
    key.append(text.data(), text.size());
    return true;
  }
  bool on_key(json::string_view text, std::size_t, json::error_code& error) {
    key.append(text.data(), text.size());
    if (!open.back().insert(key).second) {
      duplicate = key;
      error = json::error::extra_data;
      return false;
    }
    key.clear();
    return true;
  }
  bool on_string_part(json::string_view, std::size_t, json::error_code&) { return true; }
  bool on_string(json::string_view, std::size_t, json::error_code&) { return true; }
  bool on_number_part(json::string_view, json::error_code&) { return true; }
  bool on_int64(int64_t, json::string_view, json::error_code&) { return true; }
  bool on_uint64(uint64_t, json::string_view, json::error_code&) { return true; }
  bool on_double(double, json::string_view, json::error_code&) { return true; }
  bool on_bool(bool, json::error_code&) { return true; }
  bool on_null(json::error_code&) { return true; }
  bool on_comment_part(json::string_view, json::error_code&) { return true; }
  bool on_comment(json::string_view, json::error_code&) { return true; }
};

}  // namespace

Status check_no_duplicate_keys(std::string_view text, std::string_view what) {
  json::parse_options options;
  options.max_depth = 64;
  json::basic_parser<DuplicateFinder> parser(options);
  json::error_code error;
  parser.write_some(false, text.data(), text.size(), error);
  constexpr size_t kShownBytes = 200;
  std::string duplicate = parser.handler().duplicate;
  if (!duplicate.empty() || (error == json::error::extra_data)) {
    if (duplicate.size() > kShownBytes) {
      // Up to the start of a character, which no continuation byte is.
      size_t end = kShownBytes;
      while (end > 0 && (static_cast<unsigned char>(duplicate[end]) & 0xc0) == 0x80) --end;
      duplicate.resize(end);
    }
    return corrupt_data(std::string(what) + ": the key \"" + duplicate +
                        "\" occurs twice in one object");
  }
  return {};
}

}  // namespace sub8
