#include "base/json.h"

#include <cmath>

namespace sub8 {
namespace json = boost::json;

Result<json::value> parse_json(std::string_view text, std::string_view what, int max_depth) {
  json::parse_options options;
  options.max_depth = static_cast<size_t>(max_depth);
  json::stream_parser parser(json::storage_ptr(), options);
  json::error_code error;
  const size_t used = parser.write_some(text.data(), text.size(), error);
  if (!error && used < text.size()) {
    // Only white space may follow the document.
    const size_t extra = text.find_first_not_of(" \t\r\n", used);
    if (extra != std::string_view::npos) {
      return corrupt_data(std::string(what) + ": extra bytes after the JSON document at byte " +
                          std::to_string(extra));
    }
  }
  if (!error) parser.finish(error);
  if (error) {
    return corrupt_data(std::string(what) + ": not valid JSON near byte " + std::to_string(used) +
                        ": " + error.message());
  }
  return parser.release();
}

std::optional<JsonRef> JsonRef::find(std::string_view key) const {
  if (!value_->is_object()) return std::nullopt;
  const json::value* member = value_->get_object().if_contains(key);
  if (member == nullptr || member->is_null()) return std::nullopt;
  return JsonRef(*member, source_, path_ + "." + std::string(key));
}

Result<JsonRef> JsonRef::at(std::string_view key) const {
  if (!value_->is_object()) return wrong_type("an object");
  if (std::optional<JsonRef> member = find(key)) return *member;
  return corrupt_data(where() + ": the member \"" + std::string(key) + "\" is missing");
}

Result<std::vector<JsonRef>> JsonRef::elements() const {
  if (!value_->is_array()) return wrong_type("an array");
  std::vector<JsonRef> out;
  const json::array& array = value_->get_array();
  out.reserve(array.size());
  for (size_t i = 0; i < array.size(); ++i) {
    out.emplace_back(array[i], source_, path_ + "[" + std::to_string(i) + "]");
  }
  return out;
}

Result<std::vector<std::pair<std::string, JsonRef>>> JsonRef::members() const {
  if (!value_->is_object()) return wrong_type("an object");
  std::vector<std::pair<std::string, JsonRef>> out;
  for (const auto& member : value_->get_object()) {
    const std::string key(member.key());
    out.emplace_back(key, JsonRef(member.value(), source_, path_ + "." + key));
  }
  return out;
}

Result<std::string> JsonRef::as_string() const {
  if (!value_->is_string()) return wrong_type("a string");
  return std::string(value_->get_string());
}

Result<bool> JsonRef::as_bool() const {
  if (!value_->is_bool()) return wrong_type("true or false");
  return value_->get_bool();
}

Result<int64_t> JsonRef::as_int(int64_t low, int64_t high) const {
  int64_t out = 0;
  if (value_->is_int64()) {
    out = value_->get_int64();
  } else if (value_->is_double() && std::trunc(value_->get_double()) == value_->get_double() &&
             std::abs(value_->get_double()) < 9e15) {
    out = static_cast<int64_t>(value_->get_double());
  } else if (value_->is_uint64()) {
    out = high;
    if (value_->get_uint64() <= static_cast<uint64_t>(INT64_MAX)) {
      out = static_cast<int64_t>(value_->get_uint64());
    } else {
      return wrong_type("an integer from " + std::to_string(low) + " to " + std::to_string(high));
    }
  } else {
    return wrong_type("an integer");
  }
  if (out < low || out > high) {
    return corrupt_data(where() + ": expected an integer from " + std::to_string(low) + " to " +
                        std::to_string(high) + ", got " + std::to_string(out));
  }
  return out;
}

Result<double> JsonRef::as_double() const {
  if (!value_->is_number()) return wrong_type("a number");
  const double out = value_->to_number<double>();
  if (!std::isfinite(out)) return wrong_type("a finite number");
  return out;
}

Result<std::string> JsonRef::get_string(std::string_view key, std::string_view fallback) const {
  if (std::optional<JsonRef> member = find(key)) return member->as_string();
  return std::string(fallback);
}

Result<bool> JsonRef::get_bool(std::string_view key, bool fallback) const {
  if (std::optional<JsonRef> member = find(key)) return member->as_bool();
  return fallback;
}

Result<int64_t> JsonRef::get_int(std::string_view key, int64_t fallback, int64_t low,
                                 int64_t high) const {
  if (std::optional<JsonRef> member = find(key)) return member->as_int(low, high);
  return fallback;
}

Result<double> JsonRef::get_double(std::string_view key, double fallback) const {
  if (std::optional<JsonRef> member = find(key)) return member->as_double();
  return fallback;
}

Error JsonRef::wrong_type(std::string_view expected) const {
  std::string got = json::serialize(*value_);
  if (got.size() > 60) got = got.substr(0, 57) + "...";
  return corrupt_data(where() + ": expected " + std::string(expected) + ", got " + got);
}

}  // namespace sub8
