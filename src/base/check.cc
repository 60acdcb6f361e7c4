#include "base/check.h"

#include <cstdio>
#include <cstdlib>

namespace sub8::detail {

void check_failed(const char* expression, const char* values, const char* file, int line) {
  std::fprintf(stderr, "sub8: internal check failed at %s:%d: %s%s%s%s\nThis is a bug in sub8.\n",
               file, line, expression, *values ? " (" : "", values, *values ? ")" : "");
  std::abort();
}

}  // namespace sub8::detail
