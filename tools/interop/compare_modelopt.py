#!/usr/bin/env python3
"""Compares what `sub8 quantize --weights nvfp4` writes with NVIDIA Model Optimizer's export, name by name.

    python3 tools/interop/compare_modelopt.py build/cpu/apps/sub8 [tests/data/exports]

Both are made from the bf16 model in `base`. Every tensor of the export must be in sub8's output with its dtype and shape, and
the other way round, except the activation scales (sub8 writes weights only; they need calibration data). Bytes are compared
too: weight_scale_2 may be one unit in the last place away (sub8 divides amax by 2688, Model Optimizer by 6 and by 448), and
then some codes of that module flip; tests/quantize/export_parity_test.cc has the equality with the export's own scales.
hf_quant_config.json and config.json are compared key by key. Exit status 1 where something differs that should not.
"""
import json
import pathlib
import struct
import subprocess
import sys
import tempfile

from safetensors_header import read


def compare_tensors(ours, theirs):
    faults, scales, same, notes = [], 0, 0, []
    stepped = set()  # modules whose tensor scale is one unit in the last place away
    for name in sorted(ours.keys() | theirs.keys()):
        if name.endswith(".weight_scale_2") and name in ours and name in theirs:
            step = struct.unpack("<i", ours[name][2])[0] - struct.unpack("<i", theirs[name][2])[0]
            if abs(step) == 1:
                stepped.add(name.rsplit(".", 1)[0])
                notes.append(f"{name}: {step:+d} unit in the last place")
    for name in sorted(ours.keys() | theirs.keys()):
        if name not in ours:
            scales += name.endswith(".input_scale")
            if not name.endswith(".input_scale"):
                faults.append(f"only in the export: {name}")
        elif name not in theirs:
            faults.append(f"only in sub8's output: {name}")
        elif ours[name][:2] != theirs[name][:2]:
            faults.append(f"{name}: {ours[name][:2]}, the export has {theirs[name][:2]}")
        elif ours[name][2] == theirs[name][2]:
            same += 1
        elif not name.endswith(".weight_scale_2"):
            count = sum(a != b for a, b in zip(ours[name][2], theirs[name][2]))
            text = f"{name}: {count} of {len(ours[name][2])} bytes differ"
            (notes if name.rsplit(".", 1)[0] in stepped else faults).append(text)
        elif name.rsplit(".", 1)[0] not in stepped:
            faults.append(f"{name}: another tensor scale")
    return faults, scales, same, notes


def compare_keys(ours, theirs, where, differs):
    faults = []
    for key in sorted(ours.keys() | theirs.keys()):
        here, there = ours.get(key, "absent"), theirs.get(key, "absent")
        if key in ("ignore", "exclude_modules"):  # sets of patterns
            here, there = sorted(here), sorted(there)
        if isinstance(here, dict) and isinstance(there, dict):
            faults += compare_keys(here, there, f"{where}.{key}", differs)
        elif here != there:
            note = differs.get(key)
            print(f"  {where}.{key}: {json.dumps(here)}, the export: {json.dumps(there)}" + (f" ({note})" if note else ""))
            if note is None:
                faults.append(f"{where}.{key}")
    return faults


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    exports = pathlib.Path(sys.argv[2] if len(sys.argv) > 2 else "tests/data/exports")
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "out"
        subprocess.run([sys.argv[1], "quantize", exports / "base", out, "--weights", "nvfp4"], check=True,
                       stdout=subprocess.DEVNULL)
        theirs = exports / "mo-nvfp4"
        faults, scales, same, notes = compare_tensors(read(out / "model.safetensors"), read(theirs / "model.safetensors"))
        print(f"{same} tensors with equal name, dtype, shape and bytes; {scales} activation scales only in the export")
        for note in notes:
            print("  " + note)
        differs = {"version": "the program's", "name": "the program's", "quant_algo": "weights only",
                   "input_activations": "weights only", "config_groups": "weights only"}
        load = lambda path: json.loads(path.read_text())  # noqa: E731
        faults += compare_keys(load(out / "hf_quant_config.json"), load(theirs / "hf_quant_config.json"), "hf_quant_config",
                               differs)
        faults += compare_keys(load(out / "config.json")["quantization_config"],
                               load(theirs / "config.json")["quantization_config"], "quantization_config", differs)
    for fault in faults:
        print("FAULT", fault)
    print("name by name: " + ("different" if faults else "equal"))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
