# sub8_simd_library(NAME SOURCES op.cc ... DEPS ...): a kernel library whose simd.cc is written once over
# kernels/simd/vec.h and compiled once per instruction set, each in an object library with its own -m flags.
function(sub8_simd_library name)
  cmake_parse_arguments(A "" "" "SOURCES;DEPS" ${ARGN})
  set(portable_flags "")
  set(avx2_flags -mavx2 -mfma -mf16c -DSUB8_SIMD_AVX2)
  # g++ 12 warns inside its own AVX-512 headers (GCC bug 105593).
  set(avx512_flags -mavx2 -mfma -mf16c -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512bf16 -DSUB8_SIMD_AVX512
    -Wno-uninitialized -Wno-maybe-uninitialized)
  set(objects "")
  foreach(isa portable avx2 avx512)
    add_library(sub8_${name}_${isa} OBJECT simd.cc)
    target_link_libraries(sub8_${name}_${isa} PRIVATE sub8_options)
    target_compile_options(sub8_${name}_${isa} PRIVATE ${${isa}_flags})
    list(APPEND objects $<TARGET_OBJECTS:sub8_${name}_${isa}>)
  endforeach()
  sub8_library(${name} SOURCES ${A_SOURCES} ${objects} DEPS ${A_DEPS})
  set_property(GLOBAL APPEND PROPERTY SUB8_SIMD_OBJECTS ${objects})
endfunction()
