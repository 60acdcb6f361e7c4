// wgmma.mma_async with A in registers and B in shared memory (sm_90a), and its ordering rules.
//
// - wgmma_fence() before the first instruction after registers of A or D were written.
// - Registers of A must not be rewritten, and D not be read, until wgmma_wait has retired the
// group.
// - The compiler does not check either: pin() stops it from moving register accesses across.
#pragma once

#include <cstdint>

namespace sub8::ptx {

__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Waits until at most `Pending` of the committed groups are still running.
template <int Pending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Pending) : "memory");
}
__device__ __forceinline__ void pin(float& x) { asm volatile("" : "+f"(x)::"memory"); }
template <int Count>
__device__ __forceinline__ void pin(float (&d)[Count]) {
#pragma unroll
  for (int i = 0; i < Count; ++i) asm volatile("" : "+f"(d[i])::"memory");
}
template <int Count>
__device__ __forceinline__ void pin(uint32_t (&a)[Count]) {
#pragma unroll
  for (int i = 0; i < Count; ++i) asm volatile("" : "+r"(a[i])::"memory");
}

// B tile: N rows (tokens) of 128 bytes along k, 128-byte swizzle, base a multiple of 1024 bytes. A
// descriptor is its low word and a constant; 16 bytes further is low + 1, so the next k16 step is
// low + 2.
__device__ __forceinline__ uint32_t b_descriptor_low(uint32_t shared_address) {
  return ((shared_address & 0x3ffff) >> 4) | (1u << 16);
}
__device__ __forceinline__ uint64_t b_descriptor(uint32_t low) {
  uint64_t descriptor;
  asm("mov.b64 %0, {%1, %2};" : "=l"(descriptor) : "r"(low), "n"(0x40000040));
  return descriptor;
}

enum class MmaType { kF16, kBF16, kE4M3, kE5M2xE4M3 };  // the last: A is e5m2, B e4m3

// clang-format off
#define SUB8_F4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define SUB8_F8(i) SUB8_F4(i), SUB8_F4(i + 4)
#define SUB8_F16(i) SUB8_F8(i), SUB8_F8(i + 8)
#define SUB8_F32(i) SUB8_F16(i), SUB8_F16(i + 16)
#define SUB8_F64(i) SUB8_F32(i), SUB8_F32(i + 32)
#define SUB8_WGMMA_8(TYPES, TAIL) \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %9, 0;\n" \
    "wgmma.mma_async.sync.aligned.m64n8" TYPES " {" \
    "%0,%1,%2,%3" \
    "}, {%4,%5,%6,%7}, %8, p, 1, 1" TAIL ";\n}\n" \
    : SUB8_F4(0) \
    : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(keep))
#define SUB8_WGMMA_16(TYPES, TAIL) \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %13, 0;\n" \
    "wgmma.mma_async.sync.aligned.m64n16" TYPES " {" \
    "%0,%1,%2,%3,%4,%5,%6,%7" \
    "}, {%8,%9,%10,%11}, %12, p, 1, 1" TAIL ";\n}\n" \
    : SUB8_F8(0) \
    : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(keep))
#define SUB8_WGMMA_32(TYPES, TAIL) \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %21, 0;\n" \
    "wgmma.mma_async.sync.aligned.m64n32" TYPES " {" \
    "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15" \
    "}, {%16,%17,%18,%19}, %20, p, 1, 1" TAIL ";\n}\n" \
    : SUB8_F16(0) \
    : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(keep))
#define SUB8_WGMMA_64(TYPES, TAIL) \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n" \
    "wgmma.mma_async.sync.aligned.m64n64" TYPES " {" \
    "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15," \
    "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31" \
    "}, {%32,%33,%34,%35}, %36, p, 1, 1" TAIL ";\n}\n" \
    : SUB8_F32(0) \
    : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(keep))
#define SUB8_WGMMA_128(TYPES, TAIL) \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\n" \
    "wgmma.mma_async.sync.aligned.m64n128" TYPES " {" \
    "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15," \
    "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31," \
    "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47," \
    "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63" \
    "}, {%64,%65,%66,%67}, %68, p, 1, 1" TAIL ";\n}\n" \
    : SUB8_F64(0) \
    : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(keep))
#define SUB8_WGMMA_256(TYPES, TAIL) \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %133, 0;\n" \
    "wgmma.mma_async.sync.aligned.m64n256" TYPES " {" \
    "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15," \
    "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31," \
    "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47," \
    "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63," \
    "%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79," \
    "%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95," \
    "%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111," \
    "%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127" \
    "}, {%128,%129,%130,%131}, %132, p, 1, 1" TAIL ";\n}\n" \
    : SUB8_F64(0), SUB8_F64(64) \
    : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(keep))
#define SUB8_WGMMA_TYPES(N)                                                               \
  if constexpr (Tokens == N) {                                                            \
    if constexpr (Type == MmaType::kF16) SUB8_WGMMA_##N("k16.f32.f16.f16", ", 0");        \
    if constexpr (Type == MmaType::kBF16) SUB8_WGMMA_##N("k16.f32.bf16.bf16", ", 0");     \
    if constexpr (Type == MmaType::kE4M3) SUB8_WGMMA_##N("k32.f32.e4m3.e4m3", "");        \
    if constexpr (Type == MmaType::kE5M2xE4M3) SUB8_WGMMA_##N("k32.f32.e5m2.e4m3", "");   \
  }
// clang-format on

// D = A * B, plus D where keep != 0.
template <MmaType Type, int Tokens>
__device__ __forceinline__ void wgmma(float (&d)[Tokens / 2], const uint32_t (&a)[4], uint64_t b,
                                      int keep) {
  static_assert(Tokens == 8 || Tokens == 16 || Tokens == 32 || Tokens == 64 || Tokens == 128 ||
                Tokens == 256);
  SUB8_WGMMA_TYPES(8)
  SUB8_WGMMA_TYPES(16)
  SUB8_WGMMA_TYPES(32)
  SUB8_WGMMA_TYPES(64)
  SUB8_WGMMA_TYPES(128)
  SUB8_WGMMA_TYPES(256)
}

#undef SUB8_F4
#undef SUB8_F8
#undef SUB8_F16
#undef SUB8_F32
#undef SUB8_F64
#undef SUB8_WGMMA_8
#undef SUB8_WGMMA_16
#undef SUB8_WGMMA_32
#undef SUB8_WGMMA_64
#undef SUB8_WGMMA_128
#undef SUB8_WGMMA_256
#undef SUB8_WGMMA_TYPES

}  // namespace sub8::ptx
