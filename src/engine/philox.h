// Philox4x32-10: a counter-based random generator. The same (key, counter) gives the same words
// everywhere, so a request's draws depend on its seed and token index only, never on its neighbours
// in a batch. Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).
#pragma once

#include <array>
#include <cstdint>

namespace sub8::engine {

constexpr std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter,
                                             std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53} * counter[0];
    const uint64_t b = uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(b),
               static_cast<uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(a)};
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  return counter;
}

// Uniform in [0, 1): key = seed, counter = (choice, token, draw, 0), 24 bits.
constexpr double philox_uniform(uint64_t seed, uint32_t choice, uint32_t token, uint32_t draw) {
  const auto words = philox4x32({choice, token, draw, 0},
                                {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  return static_cast<double>(words[0] >> 8) * 0x1p-24;
}

}  // namespace sub8::engine
