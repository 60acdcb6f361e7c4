// What this CPU can do, and which kernel path is in force.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace sub8 {

struct CpuFeatures {
  bool avx2 = false;    // with FMA and F16C
  bool avx512 = false;  // F, BW, DQ, VL, VBMI
  bool avx512_vnni = false;
  bool avx512_bf16 = false;
  bool avx512_fp16 = false;
  bool amx_bf16 = false;  // tile state permitted by the operating system
  bool amx_int8 = false;
  std::string model;  // as the processor names itself
};

// Detected once per process.
const CpuFeatures& cpu_features();

// Kernel paths, weakest first. A path may use everything that the weaker ones use.
enum class CpuPath { kScalar, kAvx2, kAvx512, kAmx };

std::string_view cpu_path_name(CpuPath path);  // "scalar", "avx2", "avx512", "amx"
Result<CpuPath> parse_cpu_path(std::string_view name);
bool cpu_path_available(CpuPath path);       // on this machine: kAvx512 needs VNNI and BF16 too
std::vector<CpuPath> available_cpu_paths();  // weakest first

// The path in force: the environment variable SUB8_CPU=scalar|avx2|avx512|amx if set (an unknown
// name or one that this machine lacks is an error), else the strongest available.
Result<CpuPath> selected_cpu_path();

}  // namespace sub8
