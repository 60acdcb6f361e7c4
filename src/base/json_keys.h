// Checks on JSON text that a parsed document can no longer show.
#pragma once

#include <string_view>

#include "base/error.h"

namespace sub8 {

// An error naming the key if any object of the (valid) document has the same key twice. A hostile
// header could otherwise show one tensor to a checker and another to the reader.
Status check_no_duplicate_keys(std::string_view text, std::string_view what);

}  // namespace sub8
