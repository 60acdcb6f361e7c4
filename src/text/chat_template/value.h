// Values of the chat-template interpreter: what a Jinja expression can hold, with Python's rules.
// Private to this folder (the public interface is chat_template.h).
//
// Strings, sequences and dicts are immutable and shared: a template cannot change one (that is the
// rule of Jinja's immutable sandbox), so no cycles arise through them. Objects with state
// (namespaces, scopes, loops) are registered with the Runtime, which takes them apart at the end.
//
// Inside the interpreter a failure is thrown as TemplateFailure and caught in template.cc, the one
// place where it becomes an Error. Rendering is not a hot path and has no callbacks.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "base/error.h"

namespace sub8::jinja {

struct TemplateFailure {
  ErrorCode code = ErrorCode::kInvalidArgument;
  std::string message;
  int line = 0;  // 0: not yet known
};

[[noreturn]] void fail(std::string message);
[[noreturn]] void fail_as(ErrorCode code, std::string message);

class Runtime;
class Value;
class Object;

// UTF-8 text with its length in code points (Python's len). `markup` marks text that |escape or
// |safe produced: Jinja escapes what is added to it.
struct Text {
  std::string bytes;
  int64_t length = 0;
  bool markup = false;
  bool ascii() const { return length == static_cast<int64_t>(bytes.size()); }
};

enum class SeqKind { kList, kTuple, kRange, kDictKeys, kDictValues, kDictItems, kGroup };

struct Seq {
  SeqKind kind = SeqKind::kList;
  std::vector<Value> items;
  int depth = 1;                          // nesting, bounded so that recursion over values is
  int64_t start = 0, stop = 0, step = 1;  // of a range
  bool tuple_like() const { return kind == SeqKind::kTuple || kind == SeqKind::kGroup; }
  bool is_view() const {
    return kind == SeqKind::kDictKeys || kind == SeqKind::kDictValues ||
           kind == SeqKind::kDictItems;
  }
};

struct Dict;

struct Undefined {
  std::shared_ptr<const std::string> hint;  // what was looked up, for the error
};
struct None {};

enum class Type { kUndefined, kNone, kBool, kInt, kFloat, kString, kSeq, kDict, kObject };

class Value {
 public:
  using Storage = std::variant<Undefined, None, bool, int64_t, double, std::shared_ptr<const Text>,
                               std::shared_ptr<const Seq>, std::shared_ptr<const Dict>,
                               std::shared_ptr<Object>>;

  Value() = default;                                                // undefined
  Value(None) : storage_(None{}) {}                                 // NOLINT: implicit
  Value(bool b) : storage_(b) {}                                    // NOLINT: implicit
  Value(int64_t i) : storage_(i) {}                                 // NOLINT: implicit
  Value(double d) : storage_(d) {}                                  // NOLINT: implicit
  Value(std::shared_ptr<const Text> t) : storage_(std::move(t)) {}  // NOLINT: implicit
  Value(std::shared_ptr<const Seq> s) : storage_(std::move(s)) {}   // NOLINT: implicit
  Value(std::shared_ptr<const Dict> d) : storage_(std::move(d)) {}  // NOLINT: implicit
  Value(std::shared_ptr<Object> o) : storage_(std::move(o)) {}      // NOLINT: implicit
  template <class T>
  Value(T*) = delete;  // no silent conversion to bool

  static Value undefined(std::string hint);

  Type type() const { return static_cast<Type>(storage_.index()); }
  bool is_undefined() const { return type() == Type::kUndefined; }
  bool is_none() const { return type() == Type::kNone; }
  bool is_bool() const { return type() == Type::kBool; }
  bool is_int() const { return type() == Type::kInt; }
  bool is_float() const { return type() == Type::kFloat; }
  bool is_string() const { return type() == Type::kString; }
  bool is_seq() const { return type() == Type::kSeq; }
  bool is_dict() const { return type() == Type::kDict; }
  bool is_object() const { return type() == Type::kObject; }
  bool is_number() const { return is_bool() || is_int() || is_float(); }
  bool is_integral() const { return is_bool() || is_int(); }  // Python's int, which bool is one of

  bool as_bool() const { return std::get<bool>(storage_); }
  int64_t as_int() const {
    return is_bool() ? static_cast<int64_t>(as_bool()) : std::get<int64_t>(storage_);
  }
  double as_double() const {
    return is_float() ? std::get<double>(storage_) : static_cast<double>(as_int());
  }
  const Text& text() const { return *std::get<std::shared_ptr<const Text>>(storage_); }
  const std::string& str() const { return text().bytes; }
  const Seq& seq() const { return *std::get<std::shared_ptr<const Seq>>(storage_); }
  const Dict& dict() const { return *std::get<std::shared_ptr<const Dict>>(storage_); }
  const std::shared_ptr<Object>& object() const {
    return std::get<std::shared_ptr<Object>>(storage_);
  }
  template <class T>
  T* object_as() const {
    return is_object() ? dynamic_cast<T*>(object().get()) : nullptr;
  }
  const Storage& storage() const { return storage_; }
  // "'x' is undefined" for errors.
  std::string undefined_hint() const;

 private:
  Storage storage_;
};

// Keeps insertion order. Small ones are searched linearly, larger ones have an index.
struct Dict {
  std::vector<std::pair<Value, Value>> items;
  std::vector<std::string> keys;  // canonical form of each key (hash_key)
  std::unordered_map<std::string, size_t> index;
  int depth = 1;

  const Value* find(std::string_view key) const;
  // Sets or replaces (the position of the first stays, as in Python).
  void set(std::string canonical, Value key, Value value);
};

// Arguments of a call.
struct Args {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};

// Anything with identity: functions, methods, macros, namespaces, loops, iterators.
class Object {
 public:
  virtual ~Object() = default;
  virtual std::string repr(Runtime& rt) const = 0;
  virtual std::string type_name() const = 0;
  virtual bool callable() const { return false; }
  virtual Value call(Runtime& rt, Args& args);
  // The attribute, or nothing.
  virtual std::optional<Value> attribute(Runtime& rt, std::string_view name);
  virtual int depth() const { return 1; }
};

using Native = Value (*)(Runtime& rt, const Value& self, Args& args);

class NativeFunction : public Object {
 public:
  NativeFunction(std::string name, Native native, Value self, int depth)
      : name_(std::move(name)), native_(native), self_(std::move(self)), depth_(depth) {}
  std::string repr(Runtime& rt) const override;
  std::string type_name() const override { return "function"; }
  bool callable() const override { return true; }
  Value call(Runtime& rt, Args& args) override { return native_(rt, self_, args); }
  int depth() const override { return depth_; }

 private:
  std::string name_;
  Native native_;
  Value self_;
  int depth_;
};

class Namespace : public Object {
 public:
  std::string repr(Runtime& rt) const override;
  std::string type_name() const override { return "Namespace"; }
  std::optional<Value> attribute(Runtime& rt, std::string_view name) override;
  void set(std::string_view name, Value value);
  void clear() { values_.clear(); }

 private:
  std::vector<std::pair<std::string, Value>> values_;
};

// A Python generator or iterator: it can be walked once. A failure inside it shows when that
// element is reached.
class Iterator : public Object {
 public:
  Iterator(std::vector<Value> items, int depth) : items_(std::move(items)), depth_(depth) {}
  std::string repr(Runtime&) const override { return "<generator object>"; }
  std::string type_name() const override { return "generator"; }
  int depth() const override { return depth_; }
  std::optional<Value> next();
  std::vector<Value> take_all();
  void fail_at_end(TemplateFailure failure) { failure_ = std::move(failure); }

 private:
  std::vector<Value> items_;
  size_t position_ = 0;
  std::optional<TemplateFailure> failure_;
  int depth_;
};

int value_depth(const Value& value);
std::string type_name(const Value& value);  // Python's name, for errors
bool truthy(const Value& value);
bool equals(Runtime& rt, const Value& a, const Value& b);
// Python's a < b; an error for types without an order.
bool less(Runtime& rt, const Value& a, const Value& b);
bool less_or_equal(Runtime& rt, const Value& a, const Value& b);
// `needle in haystack`.
bool contains(Runtime& rt, const Value& needle, const Value& haystack);
// Python's iter(): the elements; an error when not iterable. An Iterator is consumed.
std::vector<Value> iterate(Runtime& rt, const Value& value);
bool is_iterable(const Value& value);
// Python's len(), or nothing when the type has none.
std::optional<int64_t> length_of(const Value& value);
// Canonical text of a dict key: equal keys (1, 1.0, True) have equal texts.
std::string hash_key(Runtime& rt, const Value& key);
std::string hash_key(std::string_view string_key);

Value add(Runtime& rt, const Value& a, const Value& b);
Value subtract(Runtime& rt, const Value& a, const Value& b);
Value multiply(Runtime& rt, const Value& a, const Value& b);
Value divide(Runtime& rt, const Value& a, const Value& b);
Value floor_divide(Runtime& rt, const Value& a, const Value& b);
Value modulo(Runtime& rt, const Value& a, const Value& b);
Value power(Runtime& rt, const Value& a, const Value& b);
Value negate(Runtime& rt, const Value& a, bool minus);
// a[start:stop:step]; absent parts are undefined values or None.
Value slice(Runtime& rt, const Value& a, const Value& start, const Value& stop, const Value& step);
// Element `index` of a sequence or string with Python's negative indices, or nothing.
std::optional<Value> element(Runtime& rt, const Value& a, int64_t index);

}  // namespace sub8::jinja
