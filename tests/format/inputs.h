// Rows that exercise block rules: ordinary numbers, outliers, ties, zero blocks, tiny and huge
// ones.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "format/dtype.h"

namespace sub8::test_inputs {

struct NamedRow {
  std::string name;
  std::vector<float> x;
};

inline std::vector<float> gaussian(size_t count, double sigma, uint32_t seed) {
  std::mt19937 engine(seed);
  std::normal_distribution<double> normal(0.0, sigma);
  std::vector<float> out(count);
  for (float& v : out) v = static_cast<float>(normal(engine));
  return out;
}

inline std::vector<NamedRow> block_rows(size_t count) {
  std::vector<NamedRow> rows;
  const auto add = [&](std::string name, std::vector<float> x) {
    rows.push_back({std::move(name), std::move(x)});
  };
  add("gaussian", gaussian(count, 0.02, 1));
  std::vector<float> row = gaussian(count, 1.0, 2);
  for (float& v : row) v = format::round_to_bf16(v);
  add("bf16", row);
  row = gaussian(count, 0.02, 3);
  row[count / 3] = 37.5f;
  row[count - 1] = -1e4f;
  add("outliers", row);
  row = gaussian(count, 1.0, 4);
  for (size_t i = 0; i < count && i < 40; ++i) row[i] = i % 2 == 0 ? 0.0f : -0.0f;
  add("zero blocks", row);
  add("zeros", std::vector<float>(count, 0.0f));
  add("negative zeros", std::vector<float>(count, -0.0f));
  row.assign(count, 0.0f);
  for (size_t i = 0; i < count; ++i) {  // ties of many element formats under power-of-two scales
    const float steps[] = {6.0f, 0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5.0f};
    row[i] = std::ldexp(steps[i % 8], static_cast<int>(i / 16 % 5)) * (i % 3 == 0 ? -1.0f : 1.0f);
  }
  add("ties", row);
  row = gaussian(count, 1.0, 5);
  for (size_t i = 0; i < count; ++i) row[i] = std::ldexp(row[i], -static_cast<int>(i % 140));
  add("wide range", row);
  // Around each threshold of the scales: 2688*2^-117, 1536*2^-117, 64*max*2^-117, max*2^-126.
  for (const int k :
       {-149, -140, -127, -126, -124, -122, -117, -113, -110, -107, -106, -105, -104}) {
    row = gaussian(count, 1.0, static_cast<uint32_t>(1000 + k));
    for (float& v : row) v = std::ldexp(v, k);
    add("times 2^" + std::to_string(k), row);
  }
  for (const float amax : {2688.0f, 1536.0f, 448.0f}) {
    row = gaussian(count, 1e-3, 6);
    for (float& v : row) v *= std::ldexp(1.0f, -117);
    row[count / 2] = amax * std::ldexp(1.0f, -117);
    add("threshold " + std::to_string(amax), row);
    row[count / 2] = std::nextafter(row[count / 2], 0.0f);
    add("below threshold " + std::to_string(amax), row);
  }
  row = gaussian(count, 1.0, 7);
  for (float& v : row) v = std::ldexp(v, 123);
  row[std::min<size_t>(1, count - 1)] = std::ldexp(1.99f, 126);
  add("huge", row);
  row = gaussian(count, 1e-6, 8);
  row[0] = std::ldexp(1.0f, 100);  // every other block lies far below the smallest block scale
  add("one giant", row);
  return rows;
}

}  // namespace sub8::test_inputs
