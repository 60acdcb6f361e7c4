// JSON from outside: parsing with limits, and typed access whose errors name the file and the path
// inside it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <boost/json.hpp>

#include "base/error.h"

namespace sub8 {

// Parses one JSON document (RFC 8259, UTF-8 checked, at most `max_depth` levels). `what` names the
// source in errors. NaN and Infinity literals, trailing commas and comments are errors. Of
// duplicate keys the last one counts.
Result<boost::json::value> parse_json(std::string_view text, std::string_view what,
                                      int max_depth = 64);

// A value inside a document together with where it is. Cheap to copy; the document must outlive it.
class JsonRef {
 public:
  JsonRef(const boost::json::value& value, std::string source, std::string path = "$")
      : value_(&value), source_(std::move(source)), path_(std::move(path)) {}

  const boost::json::value& value() const { return *value_; }
  const std::string& source() const { return source_; }
  // "config.json: $.rope_scaling.factor"
  std::string where() const { return source_ + ": " + path_; }

  bool is_null() const { return value_->is_null(); }
  bool is_object() const { return value_->is_object(); }
  bool is_array() const { return value_->is_array(); }
  bool is_string() const { return value_->is_string(); }
  bool is_number() const { return value_->is_number(); }
  bool is_bool() const { return value_->is_bool(); }

  // The member, or nothing when it is absent or null, or when this is no object.
  std::optional<JsonRef> find(std::string_view key) const;
  // The member; an error when absent.
  Result<JsonRef> at(std::string_view key) const;
  // The elements; an error when this is no array.
  Result<std::vector<JsonRef>> elements() const;
  // The members in file order; an error when this is no object.
  Result<std::vector<std::pair<std::string, JsonRef>>> members() const;

  Result<std::string> as_string() const;
  Result<bool> as_bool() const;
  // An integer in [low, high]. A number with a fraction is an error; 2.0 is accepted as 2.
  Result<int64_t> as_int(int64_t low, int64_t high) const;
  // A finite number.
  Result<double> as_double() const;

  // Members with a default for absent or null.
  Result<std::string> get_string(std::string_view key, std::string_view fallback) const;
  Result<bool> get_bool(std::string_view key, bool fallback) const;
  Result<int64_t> get_int(std::string_view key, int64_t fallback, int64_t low, int64_t high) const;
  Result<double> get_double(std::string_view key, double fallback) const;

 private:
  Error wrong_type(std::string_view expected) const;
  const boost::json::value* value_;
  std::string source_;
  std::string path_;
};

}  // namespace sub8
