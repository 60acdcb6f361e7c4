// Which file is mapped where, for the SIGBUS handler (interrupt.cc): reading a page that a mapped
// file no longer has raises that signal, and only the address tells which file it was.
#pragma once

#include <cstddef>
#include <string>

namespace sub8 {

// Thread-safe. `name` is what the handler says; control characters in it become '?'.
void add_mapped_region(const void* begin, size_t size, std::string name);
void remove_mapped_region(const void* begin);

// The name of the region that holds `address`, or null. Async-signal-safe; the name is good for as
// long as the region is not removed.
const char* find_mapped_region(const void* address);

}  // namespace sub8
