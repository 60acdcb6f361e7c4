// Typed access to the members of a JSON request body. A null member counts as absent; a wrong type
// or a value out of range is an error with the JSON path. Members that nobody asked for are
// collected, to be logged.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <boost/json.hpp>

#include "base/error.h"
#include "base/json.h"

namespace sub8::server {

// Parses a body. Errors are invalid_argument and hold no raw bytes of it.
Result<boost::json::value> parse_body(std::string_view body);

class BodyReader {
 public:
  // An error unless `value` is an object. `value` must outlive this.
  static Result<BodyReader> open(const boost::json::value& value, std::string path = "$");

  Result<std::optional<bool>> boolean(std::string_view key);
  Result<std::optional<int64_t>> integer(std::string_view key, int64_t low, int64_t high);
  Result<std::optional<double>> number(std::string_view key, double low, double high);
  Result<std::optional<std::string>> string(std::string_view key);
  // A string or an array of strings, at most `max_count` of them.
  Result<std::vector<std::string>> strings(std::string_view key, size_t max_count);
  Result<std::vector<int32_t>> token_ids(std::string_view key, size_t max_count,
                                         int64_t vocab_size);
  // An object member as a reader of its own.
  Result<std::optional<BodyReader>> object(std::string_view key);
  // The member as it is; null when absent. The caller checks it.
  const boost::json::value* raw(std::string_view key);

  // Fails when the member is there and not null, false, 0, "" or an empty array or object.
  Status refuse(std::string_view key, std::string_view why);

  // "$.messages[0].content" for a member.
  std::string path(std::string_view key) const;
  // An invalid_argument "PATH: message"; remembers PATH for param().
  Error fail(std::string_view key, std::string_view message);

  // Only remembers PATH, for an error that says more than fail() would.
  void blame(std::string_view key);

  // The member that the last error was about, without "$."; for the error body's "param".
  const std::string& param() const { return *param_; }
  std::vector<std::string> unknown() const;

 private:
  BodyReader(const boost::json::object& object, std::string path)
      : object_(&object), path_(std::move(path)), param_(std::make_shared<std::string>()) {}
  Error wrong_type(std::string_view key, std::string_view expected);

  const boost::json::object* object_;
  std::string path_;
  std::shared_ptr<std::string> param_;  // shared with the readers of members
  std::set<std::string, std::less<>> asked_;
};

// "a string", "an array", ... for messages.
std::string_view json_type_name(const boost::json::value& value);

}  // namespace sub8::server
