#include "checkpoint/pretty_json.h"

#include <charconv>
#include <cmath>

namespace sub8::checkpoint {
namespace {

namespace json = boost::json;

void append_double(double value, std::string& out) {
  char text[40];
  const auto [end, error] = std::to_chars(text, text + sizeof text, value);
  const std::string_view digits(text, static_cast<size_t>(end - text));
  out += digits;
  if (digits.find_first_of(".en") == std::string_view::npos) out += ".0";
}

void append(const json::value& value, int depth, std::string& out) {
  const auto newline = [&](int levels) {
    out += '\n';
    out.append(2 * static_cast<size_t>(levels), ' ');
  };
  if (const json::object* object = value.if_object()) {
    if (object->empty()) {
      out += "{}";
      return;
    }
    out += '{';
    bool first = true;
    for (const auto& member : *object) {
      if (!first) out += ',';
      first = false;
      newline(depth + 1);
      out += json::serialize(member.key());
      out += ": ";
      append(member.value(), depth + 1, out);
    }
    newline(depth);
    out += '}';
  } else if (const json::array* array = value.if_array()) {
    if (array->empty()) {
      out += "[]";
      return;
    }
    out += '[';
    for (size_t i = 0; i < array->size(); ++i) {
      if (i != 0) out += ',';
      newline(depth + 1);
      append((*array)[i], depth + 1, out);
    }
    newline(depth);
    out += ']';
  } else if (const double* number = value.if_double();
             number != nullptr && std::isfinite(*number)) {
    append_double(*number, out);
  } else {
    out += json::serialize(value);
  }
}

}  // namespace

std::string pretty_json(const json::value& value) {
  std::string out;
  append(value, 0, out);
  out += '\n';
  return out;
}

}  // namespace sub8::checkpoint
