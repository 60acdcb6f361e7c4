#!/usr/bin/env bash
# Builds and runs everything that needs a GPU, with nothing but the CUDA toolkit and a C++20 compiler.
#
#   tools/gpu/run.sh build [codec ...]     all codecs of instances.inc and byte_instances.inc (names with bytes_ in
#                                          front), or those named
#   tools/gpu/run.sh test [format|all] [full|quick|tiny]  (all formats: in parallel processes)
#   tools/gpu/run.sh bench ARGS...         (see bench/gpu/linear_gpu.cu)
#   tools/gpu/run.sh sanitize [format]     the tiny tests under compute-sanitizer: memcheck, synccheck, racecheck
#
# Environment: BUILD (default build/gpu), JOBS (default: all cores), NVCC, NVCC_FLAGS.
set -euo pipefail
cd "$(dirname "$0")/../.."
BUILD=${BUILD:-build/gpu}
JOBS=${JOBS:-$(nproc)}
NVCC=${NVCC:-nvcc}
FLAGS="-std=c++20 -O3 -lineinfo -Isrc -Iinclude -gencode arch=compute_90a,code=sm_90a ${NVCC_FLAGS:-}"
LISTS=src/kernels/linear/cuda

build() {
  mkdir -p "$BUILD"
  local only=" $* "
  local compile="sh src/kernels/linear/cuda/compile.sh"
  local commands="$BUILD/commands"
  : >"$commands"
  # One object per codec and list. Codecs left out still need their entry list: an empty one.
  local list
  for list in instances byte_instances; do
    sed -n 's/^X(\([a-z0-9_]*\), *\([A-Za-z0-9:]*\), *\([A-Za-z0-9]*\))/\1 \2 \3/p' $LISTS/$list.inc | while read -r name element groups; do
      local skip="" full=$name
      if [ $list = byte_instances ]; then full=bytes_$name; fi
      if [ $# -gt 0 ] && [[ "$only" != *" $full "* ]]; then skip="-DSUB8_LINEAR_EMPTY"; fi
      echo "$compile $NVCC $FLAGS $skip -DSUB8_LINEAR_CODEC=$name -DSUB8_LINEAR_ELEMENT=$element -DSUB8_LINEAR_GROUPS=$groups -c $LISTS/$list.cu -o $BUILD/codec_$full.o >$BUILD/codec_$full.log 2>&1 || { cat $BUILD/codec_$full.log; exit 255; }"
    done
  done >>"$commands"
  local sources="src/kernels/linear/cuda/stage_rows.cu src/kernels/linear/cuda/linear.cc src/kernels/linear/cuda/select.cc src/pack/cuda/linear_layout.cc
    src/pack/cuda/byte_layout.cc src/pack/cuda/weight_source.cc
    src/format/placement.cc src/format/weight_format.cc src/base/error.cc src/base/check.cc src/base/thread_pool.cc
    tests/gpu/linear_gpu_test.cu tests/gpu/linear_bytes_gpu_test.cu bench/gpu/linear_gpu.cu"
  for s in $sources; do
    local o="$BUILD/$(basename "$s" | tr . _).o"
    echo "$compile $NVCC $FLAGS -c $s -o $o >$o.log 2>&1 || { cat $o.log; exit 255; }" >>"$commands"
  done
  tr '\n' '\0' <"$commands" | xargs -0 -P "$JOBS" -I{} bash -c '{}'
  local common="$BUILD/stage_rows_cu.o $BUILD/linear_cc.o $BUILD/select_cc.o $BUILD/linear_layout_cc.o $BUILD/placement_cc.o
    $BUILD/byte_layout_cc.o $BUILD/weight_source_cc.o
    $BUILD/weight_format_cc.o $BUILD/error_cc.o $BUILD/check_cc.o $BUILD/thread_pool_cc.o"
  local test
  for test in linear_gpu_test linear_bytes_gpu_test; do
    $NVCC -gencode arch=compute_90a,code=sm_90a -o "$BUILD/$test" "$BUILD/${test}_cu.o" $common "$BUILD"/codec_*.o -lpthread
  done
  $NVCC -gencode arch=compute_90a,code=sm_90a -o "$BUILD/linear_gpu" "$BUILD/linear_gpu_cu.o" $common "$BUILD"/codec_*.o -lcublasLt -lpthread
}

verb=${1:-build}
shift || true
case "$verb" in
  build) build "$@" ;;
  test)  # side by side: most of the time is the CPU's, for packing and references
    for name in linear_gpu_test linear_bytes_gpu_test; do
      if [ "${1:-all}" = all ]; then
        "$BUILD/$name" list "${2:-full}" | xargs -P "$JOBS" -L 1 "$BUILD/$name"
      elif "$BUILD/$name" list | grep -q "^$1 "; then
        "$BUILD/$name" "$@"
      fi
    done
    ;;
  bench) "$BUILD/linear_gpu" "$@" ;;
  sanitize)
    for tool in memcheck synccheck racecheck; do
      for name in linear_gpu_test linear_bytes_gpu_test; do
        compute-sanitizer --tool $tool --error-exitcode 1 "$BUILD/$name" "${1:-e3m2}" tiny
      done
    done
    ;;
  *) sed -n '2,11p' "$0"; exit 2 ;;
esac
