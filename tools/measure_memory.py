#!/usr/bin/env python3
"""Peak memory of a command: anonymous memory (sampled), and the kernel's own VmHWM, which counts mapped file pages too.

    python3 tools/measure_memory.py build/cpu/apps/sub8 run MODEL --prompt Hello
"""
import pathlib
import subprocess
import sys
import time


def fields(pid):
    out = {}
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if value.endswith(" kB"):
            out[name] = int(value[:-3]) * 1024
    return out


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    child = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    anonymous = high = 0
    while child.poll() is None:
        try:
            now = fields(child.pid)
        except (FileNotFoundError, ProcessLookupError):
            break
        anonymous = max(anonymous, now.get("RssAnon", 0))
        high = max(high, now.get("VmHWM", 0))
        time.sleep(0.001)
    status = child.wait()
    print(f"anonymous {anonymous / 1e6:.1f} MB, VmHWM {high / 1e6:.1f} MB, exit status {status}")
    return status


if __name__ == "__main__":
    sys.exit(main())
