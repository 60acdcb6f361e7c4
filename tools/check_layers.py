"""Checks that every source folder includes only the folders below it (the table of docs/ARCHITECTURE.md).

usage: check_layers.py [ROOT]
"""
import pathlib
import re
import sys

# Folder -> folders it may include besides itself.
LAYERS = {
    "base": [],
    "format": ["base"],
    "tensor": ["base", "format"],
    "checkpoint": ["base", "format", "tensor"],
    "quantize": ["base", "format", "tensor", "checkpoint"],
    "arch": ["base", "format"],
    "pack": ["base", "format", "tensor", "arch"],
    "kvcache": ["base"],
    "kernels": ["base", "format", "tensor", "arch", "pack", "kvcache"],
    "model": ["base", "format", "tensor", "checkpoint", "pack", "kernels"],
    "text": ["base"],
    "engine": ["base", "tensor", "checkpoint", "kernels", "model", "kvcache", "text"],
    "study": ["base", "format", "tensor", "checkpoint", "quantize", "kernels", "model", "kvcache", "engine", "text"],
    "server": ["base", "engine", "text"],
    "load": ["base"],
    "api": ["base", "format", "tensor", "checkpoint", "quantize", "arch", "pack", "kernels", "model", "kvcache", "text",
            "engine", "study"],
}
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)


def main() -> int:
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()
    faults = []
    checked = 0
    for folder in sorted(p for p in (root / "src").iterdir() if p.is_dir()):
        if folder.name not in LAYERS:
            faults.append(f"src/{folder.name}: not in the table of tools/check_layers.py")
            continue
        allowed = {folder.name, "sub8", *LAYERS[folder.name]}
        for path in sorted(folder.rglob("*")):
            if path.suffix not in {".h", ".cc", ".cu", ".cuh", ".inc"}:
                continue
            checked += 1
            for target in INCLUDE.findall(path.read_text(encoding="utf-8")):
                top = target.split("/")[0]
                if "/" in target and top not in allowed:
                    faults.append(f"{path.relative_to(root)}: may not include {target}")
    for fault in faults:
        print(fault, file=sys.stderr)
    print(f"layers: {checked} files checked, {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
