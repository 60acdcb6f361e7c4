#include "base/cpu.h"

#include <cstdlib>

#include <gtest/gtest.h>

namespace sub8 {
namespace {

TEST(Cpu, PathsAreOrderedAndScalarIsAlwaysThere) {
  const auto paths = available_cpu_paths();
  ASSERT_FALSE(paths.empty());
  EXPECT_EQ(paths.front(), CpuPath::kScalar);
  for (size_t i = 1; i < paths.size(); ++i) EXPECT_LT(paths[i - 1], paths[i]);
  std::string names;
  for (CpuPath path : paths) names += std::string(cpu_path_name(path)) + " ";
  RecordProperty("cpu", cpu_features().model);
  RecordProperty("paths", names);
}

TEST(Cpu, EnvironmentForcesThePath) {
  ASSERT_EQ(setenv("SUB8_CPU", "scalar", 1), 0);
  EXPECT_EQ(selected_cpu_path().value(), CpuPath::kScalar);
  setenv("SUB8_CPU", "sse9", 1);
  EXPECT_EQ(selected_cpu_path().error().code, ErrorCode::kInvalidArgument);
  for (CpuPath path : {CpuPath::kAvx2, CpuPath::kAvx512, CpuPath::kAmx}) {
    setenv("SUB8_CPU", std::string(cpu_path_name(path)).c_str(), 1);
    const auto selected = selected_cpu_path();
    if (cpu_path_available(path)) {
      EXPECT_EQ(selected.value(), path);
    } else {
      EXPECT_EQ(selected.error().code, ErrorCode::kUnsupported);
    }
  }
  unsetenv("SUB8_CPU");
  EXPECT_EQ(selected_cpu_path().value(), available_cpu_paths().back());
}

}  // namespace
}  // namespace sub8
