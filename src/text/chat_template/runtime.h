// The state of one rendering: budget against hostile templates, factories for values, and the
// environment's filters, tests, methods and globals. Private to this folder.
#pragma once

#include <ctime>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/chat_template/chat_template.h"
#include "text/chat_template/value.h"

namespace sub8::jinja {

struct Scope {
  std::shared_ptr<Scope> parent;
  std::vector<std::pair<std::string, Value>> names;
  int level = 0;
  bool kept = false;

  const Value* find(Runtime& rt, std::string_view name) const;  // here and in the parents
  void set(std::string_view name, Value value);                 // here
};

class Runtime {
 public:
  explicit Runtime(const TemplateLimits& limits) : limits_(limits) {}
  ~Runtime();
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  const TemplateLimits& limits() const { return limits_; }
  // Counts work; an error when the budget is used up.
  void step(uint64_t count = 1);
  // Counts bytes created (and the work of writing them).
  void bytes(uint64_t count);
  // An error when a string or output of this size would be beyond the limit.
  void check_size(uint64_t bytes) const;

  Value string(std::string bytes, bool markup = false);
  Value list(std::vector<Value> items, SeqKind kind = SeqKind::kList);
  Value tuple(std::vector<Value> items) { return list(std::move(items), SeqKind::kTuple); }
  Value range(int64_t start, int64_t stop, int64_t step);
  Value dict(std::vector<std::pair<Value, Value>> items);
  Value iterator(std::vector<Value> items);
  Value method(std::string_view name, Native native, const Value& self);
  std::shared_ptr<Namespace> make_namespace();
  std::shared_ptr<Scope> make_scope(std::shared_ptr<Scope> parent);
  // Keeps a scope and its parents until the end, where they are taken apart (closures can form
  // cycles).
  void keep(std::shared_ptr<Scope> scope);

  Value get_attribute(const Value& value, std::string_view name);    // value.name
  Value get_item(const Value& value, const Value& key);              // value[key]
  Value plain_attribute(const Value& value, std::string_view name);  // getattr only
  Value call(const Value& callee, Args& args);
  Value filter(std::string_view name, const Value& value, Args& args);
  bool test(std::string_view name, const Value& value, Args& args);

  std::tm now{};
  int line = 0;  // where evaluation is, for errors

  // Depth of evaluation: nested expressions, statements and macro calls.
  class Nest {
   public:
    explicit Nest(Runtime& rt);
    ~Nest() { --rt_.depth_; }
    Nest(const Nest&) = delete;
    Nest& operator=(const Nest&) = delete;

   private:
    Runtime& rt_;
  };

 private:
  TemplateLimits limits_;
  uint64_t steps_ = 0;
  uint64_t bytes_ = 0;
  int depth_ = 0;
  std::vector<std::shared_ptr<Namespace>> namespaces_;
  std::vector<std::shared_ptr<Scope>> scopes_;
};

// Reads a call's arguments by Python's rules: names in order, required ones first. What is not
// given is absent (nullptr); unknown or doubled names and too many arguments are errors. A name
// that begins with '/' is positional only.
class Bound {
 public:
  Bound(std::string_view function, Args& args, std::initializer_list<const char*> names,
        size_t required);
  const Value* at(size_t i) const { return values_[i]; }
  bool has(size_t i) const { return values_[i] != nullptr; }
  const Value& value(size_t i, const Value& fallback) const {
    return has(i) ? *values_[i] : fallback;
  }
  bool flag(size_t i, bool fallback) const;
  int64_t integer(size_t i, int64_t fallback) const;
  // A str argument; `fallback` when absent. Another type is an error.
  std::string string(size_t i, std::string_view fallback) const;

 private:
  std::string function_;
  std::vector<const Value*> values_;
};

// Tables (nullptr: no such name). A method is looked up by the type of the value.
Native find_filter(std::string_view name);
using TestFunction = bool (*)(Runtime& rt, const Value& self, Args& args);
TestFunction find_test(std::string_view name);
Native find_method(const Value& value, std::string_view name);
// A method of a list or dict that would change it: refused like Jinja's sandbox does.
bool is_mutating_method(const Value& value, std::string_view name);
void define_globals(Runtime& rt, Scope& scope);

// Formatting (format.cc, printf.cc): Python's str(), repr(), json.dumps, the
// % operator and str.format.
std::string to_str(Runtime& rt, const Value& value);
std::string to_repr(Runtime& rt, const Value& value);
void append_repr(Runtime& rt, const Value& value, std::string& out);
std::string float_repr(double value);
std::string string_repr(std::string_view text);
struct JsonStyle {
  bool ensure_ascii = false;
  std::optional<std::string> indent;  // the text of one level; absent: one line
  std::string item_separator = ", ";
  std::string key_separator = ": ";
  bool sort_keys = false;
};
std::string to_json(Runtime& rt, const Value& value, const JsonStyle& style);
std::string printf_format(Runtime& rt, const std::string& format, const Value& arguments);
std::string str_format(Runtime& rt, const std::string& format, Args& args);
std::string format_time(const std::tm& time, const std::string& format);
std::string escape_html(std::string_view text);

// Text helpers (text.cc), all on UTF-8 by code points.
int64_t count_code_points(std::string_view text);
char32_t decode_at(std::string_view text, size_t& position);  // advances
void append_code_point(std::string& out, char32_t code);
bool is_space(char32_t code);  // Python's str.isspace
bool is_printable(char32_t code);
bool is_alpha(char32_t code);
bool is_digit(char32_t code);
bool is_word(char32_t code);  // \w
bool is_upper(char32_t code);
bool is_lower(char32_t code);
std::string to_upper(std::string_view text);
std::string to_lower(std::string_view text);
std::string to_title(std::string_view text);
std::string capitalize(std::string_view text);
// Strips white space, or the code points in `chars`.
std::string_view strip(std::string_view text, const std::string* chars, bool left, bool right);
std::string replace_all(Runtime& rt, std::string_view text, std::string_view from,
                        std::string_view to, int64_t count);
size_t byte_offset(const Text& text, int64_t code_point);

}  // namespace sub8::jinja
