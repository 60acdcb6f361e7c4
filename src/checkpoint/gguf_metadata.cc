// Typed access to GGUF metadata.
#include <cmath>

#include "checkpoint/gguf.h"

namespace sub8::checkpoint {
namespace {

Error wrong_type(const std::string& source, std::string_view key, std::string_view expected) {
  return corrupt_data(source + ": metadata \"" + std::string(key) + "\": expected " +
                      std::string(expected));
}

std::optional<int64_t> as_int(const GgufValue& value) {
  if (const auto* u = std::get_if<uint64_t>(&value.value)) {
    if (*u > static_cast<uint64_t>(INT64_MAX)) return std::nullopt;
    return static_cast<int64_t>(*u);
  }
  if (const auto* i = std::get_if<int64_t>(&value.value)) return *i;
  return std::nullopt;
}

std::optional<double> as_double(const GgufValue& value) {
  if (const auto* d = std::get_if<double>(&value.value)) {
    if (!std::isfinite(*d)) return std::nullopt;
    return *d;
  }
  if (const std::optional<int64_t> i = as_int(value)) return static_cast<double>(*i);
  return std::nullopt;
}

std::string range_text(int64_t low, int64_t high) {
  return "an integer from " + std::to_string(low) + " to " + std::to_string(high);
}

}  // namespace

Result<std::optional<int64_t>> GgufFile::get_int(std::string_view key, int64_t low,
                                                 int64_t high) const {
  const auto at = metadata_.find(key);
  if (at == metadata_.end()) return std::optional<int64_t>();
  const std::optional<int64_t> out = as_int(at->second);
  if (!out || *out < low || *out > high) return wrong_type(source_, key, range_text(low, high));
  return out;
}

Result<std::optional<double>> GgufFile::get_double(std::string_view key) const {
  const auto at = metadata_.find(key);
  if (at == metadata_.end()) return std::optional<double>();
  const std::optional<double> out = as_double(at->second);
  if (!out) return wrong_type(source_, key, "a finite number");
  return out;
}

Result<std::optional<bool>> GgufFile::get_bool(std::string_view key) const {
  const auto at = metadata_.find(key);
  if (at == metadata_.end()) return std::optional<bool>();
  const auto* out = std::get_if<bool>(&at->second.value);
  if (out == nullptr) return wrong_type(source_, key, "a boolean");
  return std::optional<bool>(*out);
}

Result<std::optional<std::string>> GgufFile::get_string(std::string_view key) const {
  const auto at = metadata_.find(key);
  if (at == metadata_.end()) return std::optional<std::string>();
  const auto* out = std::get_if<std::string_view>(&at->second.value);
  if (out == nullptr) return wrong_type(source_, key, "a string");
  return std::optional<std::string>(*out);
}

Result<std::vector<std::string>> GgufFile::get_strings(std::string_view key) const {
  std::vector<std::string> out;
  const auto at = metadata_.find(key);
  if (at == metadata_.end()) return out;
  const auto* array = std::get_if<GgufArray>(&at->second.value);
  if (array == nullptr || array->size != array->values.size()) {
    return wrong_type(source_, key, "an array of strings");
  }
  out.reserve(array->values.size());
  for (const GgufValue& value : array->values) {
    const auto* text = std::get_if<std::string_view>(&value.value);
    if (text == nullptr) return wrong_type(source_, key, "an array of strings");
    out.emplace_back(*text);
  }
  return out;
}

Result<std::vector<int64_t>> GgufFile::get_ints(std::string_view key, int64_t low,
                                                int64_t high) const {
  std::vector<int64_t> out;
  const auto at = metadata_.find(key);
  if (at == metadata_.end()) return out;
  const auto* array = std::get_if<GgufArray>(&at->second.value);
  const std::string expected = "an array, each value " + range_text(low, high);
  if (array == nullptr) return wrong_type(source_, key, expected);
  for (size_t i = 0; i < array->size; ++i) {
    const std::optional<int64_t> number = as_int(array->at(i));
    if (!number || *number < low || *number > high) return wrong_type(source_, key, expected);
    out.push_back(*number);
  }
  return out;
}

Result<std::vector<double>> GgufFile::get_doubles(std::string_view key) const {
  std::vector<double> out;
  const auto at = metadata_.find(key);
  if (at == metadata_.end()) return out;
  const auto* array = std::get_if<GgufArray>(&at->second.value);
  if (array == nullptr) return wrong_type(source_, key, "an array of finite numbers");
  for (size_t i = 0; i < array->size; ++i) {
    const std::optional<double> number = as_double(array->at(i));
    if (!number) return wrong_type(source_, key, "an array of finite numbers");
    out.push_back(*number);
  }
  return out;
}

}  // namespace sub8::checkpoint
