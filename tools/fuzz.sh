#!/usr/bin/env bash
# Runs every fuzz target for a while from its corpus. usage: fuzz.sh SECONDS
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:?usage: fuzz.sh SECONDS}
found=0
for target in build/fuzz/tests/fuzz/*_fuzz; do
  [ -x "$target" ] || continue
  name=$(basename "$target")
  work=build/fuzz/corpus/$name
  mkdir -p "$work"
  echo "== $name for $seconds s"
  "$target" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=4096 -print_final_stats=1 \
    -artifact_prefix="build/fuzz/$name-" "$work" "tests/fuzz/corpus/${name%_fuzz}" 2>&1 | tail -n 8
  found=$((found + 1))
done
[ "$found" -gt 0 ] || { echo "no fuzz targets were built" >&2; exit 1; }
