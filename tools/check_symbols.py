"""Checks the object files of the libraries:

- library code never prints, aborts or exits (base/check.cc, which ends the process on our own faults, excepted);
- translation units that are compiled for one instruction set hold no weak symbols from outside their namespace: the linker
  would be free to take such a copy for the whole program, and it would not run on an older CPU.

usage: check_symbols.py BUILD_DIR
"""
import pathlib
import re
import subprocess
import sys

BANNED = re.compile(r"^(printf|puts|putchar|abort|exit|_exit|quick_exit|std::cout|std::cerr|_ZSt4cout|_ZSt4cerr)$")
# A signal handler ends the process on a second Ctrl-C; a failed check prints and aborts; what follows a grammar is a
# process of its own.
EXEMPT = {"check.cc.o", "interrupt.cc.o", "grammar_worker.cc.o"}
ISA_FILE = re.compile(r"(avx2|avx512|amx)")


def symbols(path: pathlib.Path) -> list[tuple[str, str]]:
    out = subprocess.run(["nm", "--format=posix", str(path)], capture_output=True, text=True, check=True).stdout
    return [tuple(line.split()[:2]) for line in out.splitlines() if len(line.split()) >= 2]


def main() -> int:
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    objects = sorted((pathlib.Path(sys.argv[1]) / "src").rglob("*.o"))
    faults = []
    for path in objects:
        isa = bool(ISA_FILE.search(str(path.relative_to(sys.argv[1]))))
        for name, kind in symbols(path):
            if kind == "U" and BANNED.match(name) and path.name not in EXEMPT:
                faults.append(f"{path.name}: library code uses {name}")
            if isa and kind in "WV" and not ISA_FILE.search(name):
                faults.append(f"{path.name}: weak symbol {name} outside its instruction set's namespace")
    for fault in faults:
        print(fault, file=sys.stderr)
    print(f"symbols: {len(objects)} objects checked, {len(faults)} faults")
    return 1 if faults or not objects else 0


if __name__ == "__main__":
    sys.exit(main())
