#include "base/cpu.h"

#include <cstdint>
#include <cstdlib>
#include <cstring>

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace sub8 {
namespace {

uint64_t xgetbv0() {
  uint32_t low = 0;
  uint32_t high = 0;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (uint64_t{high} << 32) | low;
}

// Linux gives the large AMX tile state only to processes that ask for it.
bool request_amx_permission() {
  constexpr long kArchReqXcompPerm = 0x1023;
  constexpr long kXfeatureTileData = 18;
  return syscall(SYS_arch_prctl, kArchReqXcompPerm, kXfeatureTileData) == 0;
}

CpuFeatures detect() {
  CpuFeatures out;
  uint32_t a = 0;
  uint32_t b = 0;
  uint32_t c = 0;
  uint32_t d = 0;
  char brand[49] = {};
  for (uint32_t i = 0; i < 3; ++i) {
    if (!__get_cpuid(0x80000002 + i, &a, &b, &c, &d)) break;
    const uint32_t words[4] = {a, b, c, d};
    std::memcpy(brand + 16 * i, words, 16);
  }
  out.model = brand;
  while (!out.model.empty() && out.model.back() == ' ') out.model.pop_back();

  if (!__get_cpuid(1, &a, &b, &c, &d)) return out;
  const bool osxsave = (c >> 27) & 1;
  const bool fma = (c >> 12) & 1;
  const bool f16c = (c >> 29) & 1;
  if (!osxsave) return out;
  const uint64_t state = xgetbv0();
  const bool ymm = (state & 0x6) == 0x6;
  const bool zmm = (state & 0xe6) == 0xe6;
  const bool tiles = (state & 0x60000) == 0x60000;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return out;
  out.avx2 = ymm && fma && f16c && ((b >> 5) & 1);
  const bool f = (b >> 16) & 1;
  const bool dq = (b >> 17) & 1;
  const bool bw = (b >> 30) & 1;
  const bool vl = (b >> 31) & 1;
  const bool vbmi = (c >> 1) & 1;
  out.avx512 = out.avx2 && zmm && f && dq && bw && vl && vbmi;
  out.avx512_vnni = out.avx512 && ((c >> 11) & 1);
  out.avx512_fp16 = out.avx512 && ((d >> 23) & 1);
  const bool amx = tiles && ((d >> 24) & 1) && request_amx_permission();
  out.amx_bf16 = amx && ((d >> 22) & 1);
  out.amx_int8 = amx && ((d >> 25) & 1);
  if (__get_cpuid_count(7, 1, &a, &b, &c, &d)) out.avx512_bf16 = out.avx512 && ((a >> 5) & 1);
  return out;
}

}  // namespace

const CpuFeatures& cpu_features() {
  static const CpuFeatures features = detect();
  return features;
}

std::string_view cpu_path_name(CpuPath path) {
  switch (path) {
    case CpuPath::kScalar:
      return "scalar";
    case CpuPath::kAvx2:
      return "avx2";
    case CpuPath::kAvx512:
      return "avx512";
    case CpuPath::kAmx:
      return "amx";
  }
  return "scalar";
}

Result<CpuPath> parse_cpu_path(std::string_view name) {
  for (CpuPath path : {CpuPath::kScalar, CpuPath::kAvx2, CpuPath::kAvx512, CpuPath::kAmx}) {
    if (name == cpu_path_name(path)) return path;
  }
  return invalid_argument("'" + std::string(name) +
                          "' is not a CPU path; use scalar, avx2, avx512 or amx");
}

bool cpu_path_available(CpuPath path) {
  const CpuFeatures& cpu = cpu_features();
  switch (path) {
    case CpuPath::kScalar:
      return true;
    case CpuPath::kAvx2:
      return cpu.avx2;
    case CpuPath::kAvx512:
      return cpu.avx512 && cpu.avx512_vnni && cpu.avx512_bf16;
    case CpuPath::kAmx:
      return cpu_path_available(CpuPath::kAvx512) && cpu.amx_bf16 && cpu.amx_int8;
  }
  return false;
}

std::vector<CpuPath> available_cpu_paths() {
  std::vector<CpuPath> out;
  for (CpuPath path : {CpuPath::kScalar, CpuPath::kAvx2, CpuPath::kAvx512, CpuPath::kAmx}) {
    if (cpu_path_available(path)) out.push_back(path);
  }
  return out;
}

Result<CpuPath> selected_cpu_path() {
  const char* forced = std::getenv("SUB8_CPU");
  if (forced == nullptr) return available_cpu_paths().back();
  Result<CpuPath> path = parse_cpu_path(forced);
  if (!path.ok()) return path.error().within("environment variable SUB8_CPU");
  if (!cpu_path_available(*path)) {
    std::string have;
    for (CpuPath p : available_cpu_paths())
      have += (have.empty() ? "" : ", ") + std::string(cpu_path_name(p));
    return unsupported("environment variable SUB8_CPU: this machine (" + cpu_features().model +
                       ") lacks '" + forced + "'; it has " + have +
                       ". Unset SUB8_CPU to take the best");
  }
  return path;
}

}  // namespace sub8
