// Kernel tables: one set of function pointers per operation and instruction set, picked by CpuPath.
#pragma once

// Declares `extern const Type name` in the namespace of every instruction set. A table is defined
// in the operation's simd.cc, which CMake compiles once for each.
#define SUB8_KERNEL_TABLE(Type, name) \
  namespace portable {                \
  extern const Type name;             \
  }                                   \
  namespace avx2 {                    \
  extern const Type name;             \
  }                                   \
  namespace avx512 {                  \
  extern const Type name;             \
  }

// The table for a path; AMX machines use the AVX-512 kernels here.
#define SUB8_PICK_KERNELS(path, name)                                   \
  ((path) == ::sub8::CpuPath::kScalar ? ::sub8::kernels::portable::name \
   : (path) == ::sub8::CpuPath::kAvx2 ? ::sub8::kernels::avx2::name     \
                                      : ::sub8::kernels::avx512::name)
