#include "server/body_reader.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "base/json_keys.h"
#include "text/utf8.h"

namespace sub8::server {
namespace json = boost::json;

namespace {

// An integer, also when written 2.0.
std::optional<int64_t> as_integer(const json::value& value) {
  if (value.is_int64()) return value.get_int64();
  if (value.is_double() && std::trunc(value.get_double()) == value.get_double() &&
      std::abs(value.get_double()) < 9e15) {
    return static_cast<int64_t>(value.get_double());
  }
  return std::nullopt;
}

}  // namespace

Result<json::value> parse_body(std::string_view body) {
  SUB8_RETURN_IF_ERROR(check_utf8(body, "the request body"));
  if (body.find_first_not_of(" \t\r\n") == std::string_view::npos)
    return invalid_argument("the request body is empty; expected a JSON object");
  Result<json::value> parsed = parse_json(body, "the request body");
  if (!parsed.ok()) return invalid_argument(parsed.error().message);
  if (Status keys = check_no_duplicate_keys(body, "the request body"); !keys.ok())
    return invalid_argument(keys.error().message);
  return parsed;
}

std::string_view json_type_name(const json::value& value) {
  switch (value.kind()) {
    case json::kind::null:
      return "null";
    case json::kind::bool_:
      return "a boolean";
    case json::kind::int64:
    case json::kind::uint64:
    case json::kind::double_:
      return "a number";
    case json::kind::string:
      return "a string";
    case json::kind::array:
      return "an array";
    case json::kind::object:
      return "an object";
  }
  return "nothing";
}

Result<BodyReader> BodyReader::open(const json::value& value, std::string path) {
  if (!value.is_object()) {
    return invalid_argument(
        fmt::format("{}: expected an object, got {}", path, json_type_name(value)));
  }
  return BodyReader(value.get_object(), std::move(path));
}

std::string BodyReader::path(std::string_view key) const {
  return fmt::format("{}.{}", path_, key);
}

void BodyReader::blame(std::string_view key) {
  const std::string where = key.empty() ? path_ : path(key);
  *param_ = where.starts_with("$.") ? where.substr(2) : where;
}

Error BodyReader::fail(std::string_view key, std::string_view message) {
  blame(key);
  return invalid_argument(fmt::format("{}: {}", key.empty() ? path_ : path(key), message));
}

Error BodyReader::wrong_type(std::string_view key, std::string_view expected) {
  const json::value& value = object_->at(key);
  std::string got(json_type_name(value));
  constexpr size_t kMaxShown = 60;
  if (value.is_bool() || value.is_number() || value.is_string()) {
    const std::string text = json::serialize(value);
    if (text.size() <= kMaxShown) got = text;
  }
  return fail(key, fmt::format("expected {}, got {}", expected, got));
}

const json::value* BodyReader::raw(std::string_view key) {
  asked_.emplace(key);
  const json::value* value = object_->if_contains(key);
  return value == nullptr || value->is_null() ? nullptr : value;
}

Result<std::optional<bool>> BodyReader::boolean(std::string_view key) {
  const json::value* value = raw(key);
  if (value == nullptr) return std::optional<bool>();
  if (!value->is_bool()) return wrong_type(key, "true or false");
  return std::optional<bool>(value->get_bool());
}

Result<std::optional<int64_t>> BodyReader::integer(std::string_view key, int64_t low,
                                                   int64_t high) {
  const json::value* value = raw(key);
  if (value == nullptr) return std::optional<int64_t>();
  const std::optional<int64_t> out = as_integer(*value);
  if (!out || *out < low || *out > high)
    return wrong_type(key, fmt::format("an integer from {} to {}", low, high));
  return out;
}

Result<std::optional<double>> BodyReader::number(std::string_view key, double low, double high) {
  const json::value* value = raw(key);
  if (value == nullptr) return std::optional<double>();
  if (!value->is_number()) return wrong_type(key, "a number");
  const double out = value->to_number<double>();
  if (!std::isfinite(out) || out < low || out > high)
    return wrong_type(key, fmt::format("a number from {} to {}", low, high));
  return std::optional<double>(out);
}

Result<std::optional<std::string>> BodyReader::string(std::string_view key) {
  const json::value* value = raw(key);
  if (value == nullptr) return std::optional<std::string>();
  if (!value->is_string()) return wrong_type(key, "a string");
  return std::optional<std::string>(std::string(value->get_string()));
}

Result<std::vector<std::string>> BodyReader::strings(std::string_view key, size_t max_count) {
  std::vector<std::string> out;
  const json::value* value = raw(key);
  if (value == nullptr) return out;
  if (value->is_string()) {
    out.emplace_back(value->get_string());
    return out;
  }
  if (!value->is_array()) return wrong_type(key, "a string or an array of strings");
  if (value->get_array().size() > max_count)
    return fail(key, fmt::format("at most {} strings are allowed, got {}", max_count,
                                 value->get_array().size()));
  for (const json::value& element : value->get_array()) {
    if (!element.is_string()) {
      return fail(key, fmt::format("element {} must be a string, got {}", out.size(),
                                   json_type_name(element)));
    }
    out.emplace_back(element.get_string());
  }
  return out;
}

Result<std::vector<int32_t>> BodyReader::token_ids(std::string_view key, size_t max_count,
                                                   int64_t vocab_size) {
  std::vector<int32_t> out;
  const json::value* value = raw(key);
  if (value == nullptr) return out;
  if (!value->is_array()) return wrong_type(key, "an array of token ids");
  if (value->get_array().size() > max_count)
    return fail(key, fmt::format("at most {} token ids are allowed, got {}", max_count,
                                 value->get_array().size()));
  for (const json::value& element : value->get_array()) {
    const std::optional<int64_t> id = as_integer(element);
    if (!id || *id < 0 || *id >= vocab_size) {
      return fail(key, fmt::format("element {} must be a token id from 0 to {}", out.size(),
                                   vocab_size - 1));
    }
    out.push_back(static_cast<int32_t>(*id));
  }
  return out;
}

Result<std::optional<BodyReader>> BodyReader::object(std::string_view key) {
  const json::value* value = raw(key);
  if (value == nullptr) return std::optional<BodyReader>();
  if (!value->is_object()) return wrong_type(key, "an object");
  BodyReader out(value->get_object(), path(key));
  out.param_ = param_;
  return std::optional<BodyReader>(std::move(out));
}

Status BodyReader::refuse(std::string_view key, std::string_view why) {
  const json::value* value = raw(key);
  if (value == nullptr) return {};
  const bool empty = (value->is_bool() && !value->get_bool()) ||
                     (value->is_int64() && value->get_int64() == 0) ||
                     (value->is_string() && value->get_string().empty()) ||
                     (value->is_array() && value->get_array().empty()) ||
                     (value->is_object() && value->get_object().empty());
  if (empty) return {};
  return fail(key, why);
}

std::vector<std::string> BodyReader::unknown() const {
  std::vector<std::string> out;
  for (const auto& member : *object_) {
    if (asked_.find(std::string_view(member.key())) == asked_.end()) out.emplace_back(member.key());
  }
  return out;
}

}  // namespace sub8::server
