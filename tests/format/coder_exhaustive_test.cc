// ElementCoder equals encode_element for every float, in every element format.
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "format/coder.h"

namespace sub8::format {
namespace {

// Differences over the magnitudes [begin, end), both signs.
//
// The definition is monotone, so where it gives one code at both ends of a run it gives that code
// everywhere between: only the coder has to be evaluated there. Runs that contain a step are
// compared one by one.
constexpr uint64_t kRun = 1024;

int64_t differences_one_by_one(ElementFormat f, const ElementCoder& coder, uint64_t begin,
                               uint64_t end) {
  int64_t count = 0;
  for (uint64_t bits = begin; bits < end; ++bits) {
    const float x = bits_float(static_cast<uint32_t>(bits));
    const float minus_x = bits_float(static_cast<uint32_t>(bits) | 0x80000000u);
    const uint32_t want = encode_element(f, x);
    count += coder.encode(x) != want;
    count += coder.encode(minus_x) != encode_element(f, minus_x);
    if (bits > 0x7f800000u) continue;
    count += float_bits(coder.round(x)) != float_bits(decode_element(f, want));
  }
  return count;
}

int64_t differences(ElementFormat f, uint64_t begin, uint64_t end) {
  const ElementCoder coder(f);
  int64_t count = 0;
  for (uint64_t run = begin; run < end; run += kRun) {
    const uint32_t want = encode_element(f, bits_float(static_cast<uint32_t>(run)));
    const bool step = encode_element(f, bits_float(static_cast<uint32_t>(run + kRun - 1))) != want;
    if (step || run == 0x7f800000u) {  // infinity, then NaNs
      count += differences_one_by_one(f, coder, run, run + kRun);
      continue;
    }
    const uint32_t minus_want =
        encode_element(f, bits_float(static_cast<uint32_t>(run) | 0x80000000u));
    const uint32_t value = float_bits(decode_element(f, want));
    const bool nan = run + kRun > 0x7f800000u;
    uint32_t wrong = 0;
    for (uint32_t i = 0; i < kRun; ++i) {
      const uint32_t bits = static_cast<uint32_t>(run) + i;
      wrong |= coder.encode(bits_float(bits)) ^ want;
      wrong |= coder.encode(bits_float(bits | 0x80000000u)) ^ minus_want;
      wrong |= nan ? 0u : float_bits(coder.round(bits_float(bits))) ^ value;
    }
    count += wrong != 0;
  }
  return count;
}

class EveryFloat : public ::testing::TestWithParam<int> {};

TEST_P(EveryFloat, CoderEqualsDefinition) {
  const int bits = GetParam();
  for (int e = 1; e < bits; ++e) {
    const ElementFormat f{static_cast<uint8_t>(e), static_cast<uint8_t>(bits - 1 - e)};
    const unsigned threads = std::max(1u, std::thread::hardware_concurrency());
    std::vector<int64_t> found(threads);
    std::vector<std::thread> pool;
    for (unsigned t = 0; t < threads; ++t) {
      pool.emplace_back([&, t] {
        found[t] = differences(f, 0x80000000ull * t / threads, 0x80000000ull * (t + 1) / threads);
      });
    }
    for (std::thread& thread : pool) thread.join();
    for (const int64_t count : found) EXPECT_EQ(count, 0) << "e" << e << "m" << bits - 1 - e;
  }
}

INSTANTIATE_TEST_SUITE_P(Widths, EveryFloat, ::testing::Values(3, 4, 5, 6, 7, 8));

}  // namespace
}  // namespace sub8::format
