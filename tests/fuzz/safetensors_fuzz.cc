#include <cstdint>
#include <vector>

#include "base/check.h"
#include "checkpoint/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  // A copy of exactly this size, so that a read past the end is seen.
  const std::vector<uint8_t> bytes(data, data + size);
  const auto file = sub8::checkpoint::SafetensorsFile::parse(bytes, "fuzz", nullptr);
  if (!file.ok()) return 0;
  uint64_t sum = 0;
  for (const auto& tensor : file->tensors()) {
    SUB8_CHECK_EQ(static_cast<int64_t>(tensor.data.size()), tensor.byte_size());
    for (const uint8_t byte : tensor.data) sum += byte;
  }
  return sum == UINT64_MAX ? 1 : 0;
}
