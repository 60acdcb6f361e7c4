// JSON text for files that people read and diff.
#pragma once

#include <string>

#include <boost/json.hpp>

namespace sub8::checkpoint {

// Two-space indentation, members in the order of the object, a final newline. Doubles with a whole
// value keep ".0", others have the shortest text that reads back equal.
std::string pretty_json(const boost::json::value& value);

}  // namespace sub8::checkpoint
