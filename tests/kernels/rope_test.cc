#include "kernels/rope/rope.h"

#include <cstdlib>
#include <fstream>
#include <sstream>

#include <gtest/gtest.h>

#include "kernels/kernel_testing.h"

namespace sub8::kernels {
namespace {

int64_t ordered(float x) {
  const auto bits = static_cast<int32_t>(format::float_bits(x));
  return bits < 0 ? int64_t{INT32_MIN} - bits : bits;
}
int64_t units_apart(float a, float b) { return std::abs(ordered(a) - ordered(b)); }

struct Golden {
  RopeParameters parameters;
  std::string line;
  std::vector<float> inverse;
  struct Row {
    int32_t position;
    std::vector<float> values;  // cos, then sin
  };
  std::vector<Row> rows;
};

std::vector<float> read_bits(std::istringstream& in) {
  std::vector<float> out;
  for (std::string word; in >> word;)
    out.push_back(format::bits_float(static_cast<uint32_t>(std::stoul(word, nullptr, 16))));
  return out;
}

std::vector<Golden> read_goldens() {
  std::ifstream file(std::string(SUB8_TEST_DATA) + "/rope/transformers.txt");
  std::vector<Golden> out;
  for (std::string line; std::getline(file, line);) {
    std::istringstream in(line);
    std::string word;
    in >> word;
    if (word == "case") {
      Golden golden;
      golden.line = line;
      RopeParameters& p = golden.parameters;
      std::string type;
      in >> type >> p.theta >> p.dims >> p.factor >> p.original_max_position_embeddings >>
          p.low_freq_factor >> p.high_freq_factor >> p.beta_fast >> p.beta_slow >> p.truncate >>
          p.attention_factor;
      EXPECT_FALSE(in.fail()) << line;
      p.type = type == "linear"   ? RopeType::kLinear
               : type == "llama3" ? RopeType::kLlama3
               : type == "yarn"   ? RopeType::kYarn
                                  : RopeType::kDefault;
      out.push_back(golden);
    } else if (word == "inverse") {
      out.back().inverse = read_bits(in);
    } else {
      Golden::Row row;
      in >> row.position;
      row.values = read_bits(in);
      out.back().rows.push_back(row);
    }
  }
  return out;
}

TEST(Rope, FrequenciesAndTablesAreThoseOfTransformers) {
  const auto goldens = read_goldens();
  ASSERT_EQ(goldens.size(), 10u);
  ThreadPool pool(2);
  int64_t exact = 0;
  int64_t total = 0;
  for (const Golden& golden : goldens) {
    const auto frequencies = rope_frequencies(golden.parameters);
    ASSERT_TRUE(frequencies.ok());
    ASSERT_EQ(frequencies->inverse.size(), golden.inverse.size()) << golden.line;
    for (size_t i = 0; i < golden.inverse.size(); ++i) {
      const int64_t apart = units_apart(frequencies->inverse[i], golden.inverse[i]);
      EXPECT_LE(apart, 2) << golden.line << " pair " << i;
      exact += apart == 0 ? 1 : 0;
      ++total;
    }
    // The tables, from the same frequencies: one rounding of cos and sin apart.
    const RopeFrequencies same{golden.inverse, frequencies->attention_factor};
    std::vector<int32_t> positions;
    for (const auto& row : golden.rows) positions.push_back(row.position);
    const size_t dims = static_cast<size_t>(golden.parameters.dims);
    std::vector<float> table(positions.size() * dims);
    fill_rope_table(same, pool, positions, table.data());
    for (size_t r = 0; r < positions.size(); ++r) {
      ASSERT_EQ(golden.rows[r].values.size(), dims);
      for (size_t i = 0; i < dims; ++i) {
        EXPECT_NEAR(table[r * dims + i], golden.rows[r].values[i], 2.5e-7)
            << golden.line << " position " << positions[r] << " entry " << i;
      }
    }
  }
  std::printf("[  ROPE    ] %ld of %ld inverse frequencies equal to the bit\n",
              static_cast<long>(exact), static_cast<long>(total));
  EXPECT_GE(exact * 10, total * 9);
}

TEST(Rope, RotatesHalvesOfTheFirstDims) {
  ThreadPool pool(2);
  uint32_t seed = 3;
  for (CpuPath path : paths_to_test()) {
    for (int head_dim : {16, 24, 64, 80, 128, 256}) {
      for (int dims : {head_dim, head_dim / 4 * 2}) {
        const int heads = 3;
        const std::vector<int32_t> positions = {0, 5, 1000, 77};
        const int64_t stride = heads * head_dim + 4;
        const auto before = random_values(seed++, positions.size() * stride, 2.0f);
        auto x = before;
        const auto frequencies = rope_frequencies({.theta = 10000.0, .dims = dims}).value();
        std::vector<float> table(positions.size() * static_cast<size_t>(dims));
        fill_rope_table(frequencies, pool, positions, table.data());
        apply_rope(path, pool, x.data(), 4, stride, heads, head_dim, dims, table.data());
        for (int64_t r = 0; r < 4; ++r) {
          for (int64_t c = 0; c < stride; ++c) {
            const int64_t at = r * stride + c;
            const int i = static_cast<int>(c % head_dim);
            if (c >= heads * head_dim || i >= dims) {
              ASSERT_EQ(x[at], before[at]);
              continue;
            }
            const int pair = i % (dims / 2);
            const double angle =
                static_cast<double>(positions[r]) * std::pow(10000.0, -2.0 * pair / dims);
            const double a = before[at - i + pair];
            const double b = before[at - i + pair + dims / 2];
            const double want = i < dims / 2 ? a * std::cos(angle) - b * std::sin(angle)
                                             : b * std::cos(angle) + a * std::sin(angle);
            // The angle is a product of two rounded FP32 numbers.
            const double bound = (std::abs(a) + std::abs(b)) * (4 * angle + 4) * 0x1p-24;
            ASSERT_NEAR(x[at], want, bound) << "dims " << dims << " row " << r << " col " << c;
          }
        }
      }
    }
  }
}

TEST(Rope, RefusesWhatMakesNoSense) {
  const auto message = [](RopeParameters p) {
    const auto out = rope_frequencies(p);
    return out.ok() ? std::string() : out.error().message;
  };
  EXPECT_EQ(message({.dims = 64}), "");
  EXPECT_NE(message({.dims = 63}).find("dimensions"), std::string::npos);
  EXPECT_NE(message({.dims = 0}).find("dimensions"), std::string::npos);
  EXPECT_NE(message({.theta = NAN, .dims = 64}).find("rope_theta"), std::string::npos);
  EXPECT_NE(message({.type = RopeType::kLinear, .dims = 64, .factor = 0.5}).find("factor"),
            std::string::npos);
  EXPECT_NE(message({.type = RopeType::kYarn, .dims = 64, .factor = 4})
                .find("original_max_position_embeddings"),
            std::string::npos);
  EXPECT_NE(message({.type = RopeType::kLlama3,
                     .dims = 64,
                     .factor = 8,
                     .original_max_position_embeddings = 8192,
                     .low_freq_factor = 4,
                     .high_freq_factor = 4})
                .find("high_freq_factor"),
            std::string::npos);
}

TEST(Rope, NoRowsTouchNothing) {
  ThreadPool pool(2);
  for (CpuPath path : paths_to_test()) apply_rope(path, pool, nullptr, 0, 0, 3, 64, 64, nullptr);
  fill_rope_table(rope_frequencies({.dims = 64}).value(), pool, {}, nullptr);
}

}  // namespace
}  // namespace sub8::kernels
