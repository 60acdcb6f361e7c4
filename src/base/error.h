// Error and Result<T>: how every expected failure travels in sub8.
//
// An Error has a code from one closed list and a message that says what failed, where, what was
// expected, what was found, and what to do. The codes map to process exit status here and to HTTP
// status in the server; nothing else interprets them. Exceptions are not used for control flow;
// SUB8_CHECK (check.h) states our own preconditions.
//
// Example:
//   Result<int> parse(std::string_view s);
//   Result<int> twice(std::string_view s) {
//     SUB8_ASSIGN_OR_RETURN(int value, parse(s));
//     return 2 * value;
//   }
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

namespace sub8 {

enum class ErrorCode {
  kInvalidArgument,    // the caller asked for something that makes no sense
  kCorruptData,        // outside bytes contradict themselves or their format
  kUnsupported,        // valid, but sub8 does not do it; the message names it
  kNotFound,           // a file, tensor or name that does not exist
  kResourceExhausted,  // memory, disk, pages or context used up
  kCancelled,          // interrupted on request
  kDeviceLost,         // an accelerator failed and its context is gone
  kInternal,           // our own fault
};

// "invalid_argument", "corrupt_data", ...
std::string_view error_code_name(ErrorCode code);

// 1 internal, 2 invalid argument, 3 not found, 4 corrupt data, 5 unsupported, 6 resource exhausted,
// 7 device lost, 130 cancelled. 0 is success.
int exit_status(ErrorCode code);

struct [[nodiscard]] Error {
  ErrorCode code = ErrorCode::kInternal;
  std::string message;

  // The same error with "context: " in front of the message.
  Error within(std::string_view context) const&;
};

inline Error invalid_argument(std::string message) {
  return {ErrorCode::kInvalidArgument, std::move(message)};
}
inline Error corrupt_data(std::string message) {
  return {ErrorCode::kCorruptData, std::move(message)};
}
inline Error unsupported(std::string message) {
  return {ErrorCode::kUnsupported, std::move(message)};
}
inline Error not_found(std::string message) { return {ErrorCode::kNotFound, std::move(message)}; }
inline Error resource_exhausted(std::string message) {
  return {ErrorCode::kResourceExhausted, std::move(message)};
}
inline Error cancelled(std::string message) { return {ErrorCode::kCancelled, std::move(message)}; }
inline Error internal_error(std::string message) {
  return {ErrorCode::kInternal, std::move(message)};
}

// A value or an Error. value() on an error is a programming mistake and ends the process with the
// message.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}      // NOLINT: implicit
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}  // NOLINT: implicit

  bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }

  T& value() & { return require(), std::get<0>(state_); }
  const T& value() const& { return require(), std::get<0>(state_); }
  T&& value() && { return require(), std::get<0>(std::move(state_)); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

  const Error& error() const& { return std::get<1>(state_); }
  Error&& error() && { return std::get<1>(std::move(state_)); }

 private:
  void require() const;
  std::variant<T, Error> state_;
};

// Success or an Error.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Error error) : error_(std::move(error)) {}  // NOLINT: implicit

  bool ok() const { return !error_.has_value(); }
  explicit operator bool() const { return ok(); }
  const Error& error() const& { return *error_; }
  Error&& error() && { return *std::move(error_); }

 private:
  std::optional<Error> error_;
};

namespace detail {
[[noreturn]] void result_without_value(const Error& error);
}

template <class T>
void Result<T>::require() const {
  if (!ok()) detail::result_without_value(std::get<1>(state_));
}

}  // namespace sub8

#define SUB8_CONCAT_INNER(a, b) a##b
#define SUB8_CONCAT(a, b) SUB8_CONCAT_INNER(a, b)

// Returns the error of a Status or Result expression from the enclosing function, if it has one.
#define SUB8_RETURN_IF_ERROR(expr)                                  \
  do {                                                              \
    auto sub8_status_ = (expr);                                     \
    if (!sub8_status_.ok()) return std::move(sub8_status_).error(); \
  } while (false)

// Declares or assigns `lhs` from a Result expression, or returns its error.
#define SUB8_ASSIGN_OR_RETURN(lhs, expr) \
  SUB8_ASSIGN_OR_RETURN_INNER(SUB8_CONCAT(sub8_result_, __LINE__), lhs, expr)
#define SUB8_ASSIGN_OR_RETURN_INNER(tmp, lhs, expr) \
  auto tmp = (expr);                                \
  if (!tmp.ok()) return std::move(tmp).error();     \
  lhs = std::move(tmp).value()
