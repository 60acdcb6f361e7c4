#include "strict_options.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <string>
#include <string_view>
#include <type_traits>

namespace sub8::apps {
namespace {

// Why `text` does not begin with a number of type T in plain decimal digits; empty if it does. A
// unit may follow: --kv-memory 2GB.
template <class T>
std::string integer_fault(std::string_view text) {
  T value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc::result_out_of_range) {
    return "'" + std::string(text) + "' is beyond " +
           std::to_string(std::numeric_limits<T>::min()) + " to " +
           std::to_string(std::numeric_limits<T>::max());
  }
  std::string_view digits = text.substr(0, static_cast<size_t>(end - text.data()));
  if (digits.starts_with('-')) digits.remove_prefix(1);
  const bool hexadecimal = digits == "0" && (end < text.data() + text.size()) &&
                           (*end == 'x' || *end == 'X' || *end == 'o' || *end == 'O');
  if (error == std::errc() && (digits.size() == 1 || digits[0] != '0') && !hexadecimal) return {};
  return "'" + std::string(text) + "' is no " +
         (std::is_signed_v<T> ? "integer" : "integer of 0 or more") +
         " in decimal digits without leading zeros";
}

std::string real_fault(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc() && end == text.data() + text.size() && std::isfinite(value)) return {};
  return "'" + std::string(text) + "' is no finite decimal number";
}

using Fault = std::string (*)(std::string_view);

// The check for an option's type, or null.
Fault fault_of(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  if (type.starts_with("INT")) return integer_fault<int64_t>;
  if (type.starts_with("UINT")) return integer_fault<uint64_t>;
  if (type.starts_with("FLOAT")) return real_fault;
  // Nothing is a prompt too.
  for (const char* text : {"--prompt", "--system"}) {
    if (option.check_name(text)) return nullptr;
  }
  if (!type.starts_with("TEXT")) return nullptr;
  return [](std::string_view text) -> std::string {
    return text.empty() ? "the value is empty; leave the option out to have the default" : "";
  };
}

}  // namespace

void require_strict_values(CLI::App& app) {
  for (CLI::Option* option : app.get_options()) {
    const Fault fault = fault_of(*option);
    if (fault == nullptr || option->get_items_expected_max() == 0) continue;
    // transform() puts the check in front of those that the option already has.
    option->transform(
        CLI::Validator([fault](std::string& text) { return fault(text); }, "", "strict"));
  }
  for (CLI::App* verb : app.get_subcommands([](CLI::App*) { return true; })) {
    require_strict_values(*verb);
  }
}

}  // namespace sub8::apps
