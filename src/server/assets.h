// The files of src/server/assets, as CMake put them into the program.
#pragma once

#include <span>
#include <string_view>

namespace sub8::server {

struct Asset {
  std::string_view path;  // where it is served
  std::string_view content;
};

std::span<const Asset> assets();

}  // namespace sub8::server
