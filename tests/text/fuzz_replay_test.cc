// Runs a fuzz target over its committed seeds, and over every truncation of the small ones.
#include <filesystem>

#include <gtest/gtest.h>

#include "base/file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace sub8 {
namespace {

TEST(FuzzReplay, Seeds) {
  int seeds = 0;
  for (const auto& entry : std::filesystem::directory_iterator(SUB8_FUZZ_CORPUS)) {
    const std::string bytes = read_file(entry.path()).value();
    ++seeds;
    LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
    for (size_t size = 0; size < bytes.size() && bytes.size() < 4096; ++size) {
      LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(bytes.data()), size);
    }
  }
  EXPECT_GT(seeds, 0);
}

}  // namespace
}  // namespace sub8
