"""Checks that the paths, ./dev commands and tests named in the documentation exist.

usage: check_docs.py [ROOT]
"""
import pathlib
import re
import subprocess
import sys

# `path/with.ext` or `folder/` in backquotes, and Markdown links to files.
QUOTED = re.compile(r"`((?:src|apps|docs|tests|tools|bench|cmake|include|python)/[A-Za-z0-9_./*-]*)`")
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")
TEST = re.compile(r"`([A-Z][A-Za-z0-9]*)\.([A-Z][A-Za-z0-9]*)`")  # Suite.Name
DEFINED = re.compile(r"^TEST(?:_F|_P)?\((\w+), (\w+)\)", re.MULTILINE)
COMMAND = re.compile(r"\./dev ([a-z0-9]+)")


def main() -> int:
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()
    files = subprocess.run(["git", "-C", str(root), "ls-files", "--cached", "--others", "--exclude-standard", "*.md"],
                           capture_output=True, text=True, check=True).stdout.split()
    commands = set(re.findall(r"^  ([a-z0-9]+)\)", (root / "dev").read_text(), re.MULTILINE))
    tests = {test for path in (root / "tests").rglob("*.cc") for test in DEFINED.findall(path.read_text(encoding="utf-8"))}
    suites = {suite for suite, _ in tests}
    faults = []
    checked = 0
    for name in files:
        path = root / name
        text = path.read_text(encoding="utf-8")
        for target in QUOTED.findall(text):
            checked += 1
            if not any(root.glob(target.rstrip("/"))):
                faults.append(f"{name}: no such path: {target}")
        for suite, test in TEST.findall(text):
            checked += 1
            if (suite, test) not in tests and (suite in suites or name == "docs/field-faults.md"):
                faults.append(f"{name}: no such test: {suite}.{test}")
        for target in LINK.findall(text):
            checked += 1
            if not (path.parent / target).exists():
                faults.append(f"{name}: dead link: {target}")
        for command in COMMAND.findall(text):
            checked += 1
            if command not in commands:
                faults.append(f"{name}: no such command: ./dev {command}")
    for fault in faults:
        print(fault, file=sys.stderr)
    print(f"docs: {checked} references in {len(files)} files checked, {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
