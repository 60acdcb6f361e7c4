#!/bin/sh
# compile.sh NVCC ARGS...: runs nvcc and fails on wgmma that ptxas had to serialise (C75xx): such a
# kernel is right but slow, and only the log says so.
log=$(mktemp)
"$@" -Xptxas -v >"$log" 2>&1
status=$?
if [ $status -eq 0 ] && grep -q '(C75' "$log"; then
  grep '(C75' "$log" >&2
  status=1
elif [ $status -ne 0 ] || grep -q 'warning' "$log"; then
  cat "$log" >&2
fi
rm -f "$log"
exit $status
