#include "base/error.h"

#include "base/check.h"

namespace sub8 {

std::string_view error_code_name(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
      return "invalid_argument";
    case ErrorCode::kCorruptData:
      return "corrupt_data";
    case ErrorCode::kUnsupported:
      return "unsupported";
    case ErrorCode::kNotFound:
      return "not_found";
    case ErrorCode::kResourceExhausted:
      return "resource_exhausted";
    case ErrorCode::kCancelled:
      return "cancelled";
    case ErrorCode::kDeviceLost:
      return "device_lost";
    case ErrorCode::kInternal:
      return "internal";
  }
  return "internal";
}

int exit_status(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInternal:
      return 1;
    case ErrorCode::kInvalidArgument:
      return 2;
    case ErrorCode::kNotFound:
      return 3;
    case ErrorCode::kCorruptData:
      return 4;
    case ErrorCode::kUnsupported:
      return 5;
    case ErrorCode::kResourceExhausted:
      return 6;
    case ErrorCode::kDeviceLost:
      return 7;
    case ErrorCode::kCancelled:
      return 130;
  }
  return 1;
}

Error Error::within(std::string_view context) const& {
  std::string text(context);
  text += ": ";
  text += message;
  return {code, std::move(text)};
}

namespace detail {

void result_without_value(const Error& error) {
  check_failed("Result::value() on an error", error.message.c_str(), "base/error.h", 0);
}

}  // namespace detail
}  // namespace sub8
