// The filters of filters.cc and helpers they share with the methods. Private to this folder.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/chat_template/runtime.h"

namespace sub8::jinja {

// clang-format 14 finds no fixed point here.
// clang-format off
#define SUB8_JINJA_FILTERS(X) \
  X(int) X(float) X(abs) X(round) X(default) X(string) X(upper) X(lower) \
  X(capitalize) X(title) X(trim) X(replace) X(center) X(indent) X(truncate) X(wordcount) \
  X(format) X(safe) X(escape) X(forceescape) X(urlencode) X(tojson)
// clang-format on
#define SUB8_JINJA_DECLARE(name) Value filter_##name(Runtime& rt, const Value& self, Args& args);
SUB8_JINJA_FILTERS(SUB8_JINJA_DECLARE)
#undef SUB8_JINJA_DECLARE

// Python's int(text, base) and float(text); nothing where those raise ValueError.
std::optional<int64_t> parse_int(std::string_view text, int64_t base);
std::optional<double> parse_float(std::string_view text);
std::string center_text(Runtime& rt, const std::string& text, int64_t width, std::string_view fill);
std::vector<std::string> split_lines(Runtime& rt, std::string_view text, bool keep_ends);

}  // namespace sub8::jinja
