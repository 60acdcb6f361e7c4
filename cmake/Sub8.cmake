# Build rules shared by every folder: options, dependencies, and one function per kind of target.

# Flags that hold for every translation unit. -ffp-contract=off because the numerics (docs/formats) are stated without
# fused multiply-add; a kernel that wants one writes it.
function(sub8_global_options)
  if(NOT CMAKE_BUILD_TYPE)
    set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
  endif()
  find_program(CCACHE ccache)
  if(CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
    set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE} CACHE STRING "" FORCE)
  endif()
  set(CMAKE_CXX_STANDARD 20 PARENT_SCOPE)
  set(CMAKE_CXX_STANDARD_REQUIRED ON PARENT_SCOPE)
  set(CMAKE_CXX_EXTENSIONS OFF PARENT_SCOPE)
  set(CMAKE_POSITION_INDEPENDENT_CODE ON PARENT_SCOPE)
  set(CMAKE_EXPORT_COMPILE_COMMANDS ON PARENT_SCOPE)
  add_library(sub8_options INTERFACE)
  target_include_directories(sub8_options INTERFACE ${CMAKE_SOURCE_DIR}/src ${CMAKE_SOURCE_DIR}/include)
  # Designated initialisers rely on member defaults: no -Wmissing-field-initializers.
  # -Wshadow=local, since an enumerator may bear the name of a constant outside its enum.
  # g++ 12 reports std::string concatenation as overlapping copies (GCC bug 105329): no -Wrestrict.
  target_compile_options(sub8_options INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wno-missing-field-initializers -ffp-contract=off -fno-math-errno>
    $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-restrict -Wshadow=local>)
  if(SUB8_WERROR)
    target_compile_options(sub8_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Werror>)
  endif()
  if(SUB8_SANITIZE)
    target_compile_options(sub8_options INTERFACE
      $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${SUB8_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all>)
    target_link_options(sub8_options INTERFACE -fsanitize=${SUB8_SANITIZE})
    if(SUB8_SANITIZE MATCHES "thread")
      # g++ warns at Boost.Asio's memory fences, which TSan does not see.
      target_compile_options(sub8_options INTERFACE $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-tsan>)
    endif()
  endif()
  if(SUB8_FUZZ)
    # Coverage for every library; only the targets in tests/fuzz link the fuzzer's main.
    target_compile_options(sub8_options INTERFACE -fsanitize=fuzzer-no-link,address)
    target_link_options(sub8_options INTERFACE -fsanitize=address)
  endif()
endfunction()

# A macro, so that imported targets are visible everywhere.
macro(sub8_find_dependencies)
  find_package(Threads REQUIRED)
  find_package(fmt REQUIRED)
  find_package(spdlog REQUIRED)
  find_package(Boost 1.81 REQUIRED COMPONENTS json)
  find_package(CLI11 REQUIRED)
  find_package(prometheus-cpp REQUIRED COMPONENTS core)
  find_package(PkgConfig REQUIRED)
  pkg_check_modules(PCRE2 REQUIRED IMPORTED_TARGET libpcre2-8)
  pkg_check_modules(UTF8PROC REQUIRED IMPORTED_TARGET libutf8proc)
  pkg_check_modules(LIBEDIT REQUIRED IMPORTED_TARGET libedit)
  # Without it `sub8 plan` cannot choose, and says so.
  pkg_check_modules(CBC IMPORTED_TARGET cbc)
  if(SUB8_TESTS)
    find_package(GTest REQUIRED)
  endif()
endmacro()

# sub8_library(NAME SOURCES a.cc ... DEPS base format ... LINK fmt::fmt ...)
# DEPS are the folders that this one may include (tools/check_layers.py holds the same table).
function(sub8_library name)
  cmake_parse_arguments(A "" "" "SOURCES;DEPS;LINK" ${ARGN})
  set(kind PUBLIC)
  if(A_SOURCES)
    add_library(sub8_${name} STATIC ${A_SOURCES})
    # Libraries only: tests count and index freely.
    target_compile_options(sub8_${name} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Wconversion -Wno-sign-conversion>)
  else()
    add_library(sub8_${name} INTERFACE)
    set(kind INTERFACE)
  endif()
  target_link_libraries(sub8_${name} ${kind} sub8_options ${A_LINK})
  foreach(dep IN LISTS A_DEPS)
    target_link_libraries(sub8_${name} ${kind} sub8_${dep})
  endforeach()
endfunction()

# sub8_test(NAME SOURCES ... DEPS folder ... [LABELS unit|slow|e2e] [ARGS ...]): one GoogleTest program, one ctest entry.
function(sub8_test name)
  cmake_parse_arguments(A "" "" "SOURCES;DEPS;LINK;LABELS" ${ARGN})
  add_executable(${name}_test ${A_SOURCES})
  foreach(dep IN LISTS A_DEPS)
    target_link_libraries(${name}_test PRIVATE sub8_${dep})
  endforeach()
  target_link_libraries(${name}_test PRIVATE sub8_options GTest::gtest GTest::gtest_main ${A_LINK})
  target_include_directories(${name}_test PRIVATE ${CMAKE_SOURCE_DIR}/tests)
  target_compile_definitions(${name}_test PRIVATE SUB8_TEST_DATA="${CMAKE_SOURCE_DIR}/tests/data")
  add_test(NAME ${name} COMMAND ${name}_test)
  if(NOT A_LABELS)
    set(A_LABELS unit)
  endif()
  set_tests_properties(${name} PROPERTIES LABELS "${A_LABELS}" TIMEOUT 600)
endfunction()
