// SUB8_CHECK: preconditions of our own making, always on. Never for outside bytes: those get an
// Error (error.h).
#pragma once

#include <sstream>
#include <string>

namespace sub8::detail {

// Writes the failure to stderr and aborts: the one place in the library that does either.
[[noreturn]] void check_failed(const char* expression, const char* values, const char* file,
                               int line);

template <class A, class B>
[[noreturn]] void check_op_failed(const char* expression, const A& a, const B& b, const char* file,
                                  int line) {
  std::ostringstream out;
  out << a << " vs " << b;
  check_failed(expression, out.str().c_str(), file, line);
}

}  // namespace sub8::detail

#define SUB8_CHECK(condition)                                                           \
  do {                                                                                  \
    if (!(condition)) ::sub8::detail::check_failed(#condition, "", __FILE__, __LINE__); \
  } while (false)

#define SUB8_CHECK_OP(a, op, b)                                                                 \
  do {                                                                                          \
    const auto& sub8_a_ = (a);                                                                  \
    const auto& sub8_b_ = (b);                                                                  \
    if (!(sub8_a_ op sub8_b_))                                                                  \
      ::sub8::detail::check_op_failed(#a " " #op " " #b, sub8_a_, sub8_b_, __FILE__, __LINE__); \
  } while (false)

#define SUB8_CHECK_EQ(a, b) SUB8_CHECK_OP(a, ==, b)
#define SUB8_CHECK_LE(a, b) SUB8_CHECK_OP(a, <=, b)
#define SUB8_CHECK_LT(a, b) SUB8_CHECK_OP(a, <, b)
#define SUB8_CHECK_GE(a, b) SUB8_CHECK_OP(a, >=, b)
#define SUB8_CHECK_GT(a, b) SUB8_CHECK_OP(a, >, b)

#ifdef NDEBUG
#define SUB8_DCHECK(condition) \
  do {                         \
  } while (false)
#else
#define SUB8_DCHECK(condition) SUB8_CHECK(condition)
#endif
