#!/usr/bin/env python3
"""Runs clang-tidy over the compiled units of src/ and apps/, each only once for the same bytes.

A unit is clean for good until its command, its source, a header of this project that it includes, or .clang-tidy changes: a
stamp in BUILD_DIR/lint says so. The build must be up to date, since its dependency records name the headers.

usage: lint.py BUILD_DIR [PATH...]     PATH: only units under these paths (default: src apps)
"""
import concurrent.futures
import hashlib
import json
import os
import pathlib
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent


def headers_of_objects(build: pathlib.Path) -> dict[str, list[str]]:
    """Object -> the files of this project that it was compiled from, from ninja's records."""
    out = subprocess.run(["ninja", "-C", str(build), "-t", "deps"], capture_output=True, text=True, check=True).stdout
    found: dict[str, list[str]] = {}
    current: list[str] = []
    for line in out.splitlines():
        if line.startswith("    "):
            path = os.path.normpath(build / line.strip())
            if path.startswith(f"{ROOT}/"):
                current.append(path)
        elif ": #deps" in line:
            current = found.setdefault(line.split(": #deps")[0], [])
    return found


def digest(entry: dict, files: list[str], version: bytes) -> str:
    state = hashlib.sha256(version)
    state.update(entry["command"].encode())
    for path in [str(ROOT / ".clang-tidy"), entry["file"], *sorted(files)]:
        state.update(b"\0" + path.encode() + b"\0")
        state.update(pathlib.Path(path).read_bytes())
    return state.hexdigest()


def main() -> int:
    if len(sys.argv) < 2:
        print(__doc__, file=sys.stderr)
        return 2
    build = pathlib.Path(sys.argv[1]).resolve()
    wanted = [str(ROOT / path) for path in sys.argv[2:] or ["src", "apps"]]
    stamps = build / "lint"
    stamps.mkdir(exist_ok=True)
    version = subprocess.run(["clang-tidy", "--version"], capture_output=True, check=True).stdout
    dependencies = headers_of_objects(build)
    units = {}
    for entry in json.loads((build / "compile_commands.json").read_text()):
        if any(entry["file"] == path or entry["file"].startswith(path + "/") for path in wanted):
            output = entry["command"].split(" -o ")[1].split()[0]
            key = digest(entry, dependencies.get(output, []), version)
            if not (stamps / key).exists():
                units[key] = entry["file"]

    def check(item: tuple[str, str]) -> bool:
        key, path = item
        command = ["clang-tidy", "-p", str(build), "--quiet", "--extra-arg=-Wno-unknown-warning-option", path]
        result = subprocess.run(command, capture_output=True, text=True)
        if result.returncode == 0:
            (stamps / key).touch()
            return True
        print(result.stdout or result.stderr, end="", flush=True)
        return False

    start = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(int(os.environ.get("SUB8_JOBS", os.cpu_count() or 1))) as pool:
        clean = list(pool.map(check, units.items()))
    print(f"lint: {len(units)} units checked in {time.monotonic() - start:.0f} s, {clean.count(False)} with findings")
    return 1 if False in clean else 0


if __name__ == "__main__":
    sys.exit(main())
