#!/usr/bin/env python3
"""Loads what `sub8 quantize` wrote in compressed-tensors' layout with transformers, and compares the logits with sub8's.

    python3 -m venv /tmp/interop && . /tmp/interop/bin/activate
    pip install torch transformers==5.18.* compressed-tensors==0.20.1 accelerate safetensors numpy
    python tools/interop/compare_transformers.py build/cpu/apps/sub8 build/cpu/tests/model/logits_tool [MODEL]

MODEL (default tests/data/exports/base) is quantised to nvfp4 and mxfp4 with `--layout compressed-tensors`; transformers loads
the result through compressed-tensors' own reader, in float32 and in bfloat16, with the model's weights and activations in
that one type. sub8 computes the same in `--activations f32` and in bf16. Differences are relative to the largest logit of the
row. bfloat16 is what compressed-tensors does on its own: it rounds the decoded weights, and transformers every intermediate
result, to bf16; sub8 does neither, so the limit is that of such rounding (0.05). For float32 its decoder, which has bf16 as
a default argument, is asked for f32; then both have equal weights and only the order of FP32 sums differs (limit 1e-4).
"""
import functools
import pathlib
import subprocess
import sys
import tempfile

import compressed_tensors
import compressed_tensors.compressors.nvfp4.base as packed_fp4  # NVFP4 and MXFP4
import numpy as np
import torch
import transformers

transformers.utils.logging.disable_progress_bar()
LIMITS = {"f32": 1e-4, "bf16": 0.05}


def sub8_logits(tool, folder, ids, activations):
    done = subprocess.run([tool, folder, activations], input=ids.astype("<i4").tobytes(), check=True, stdout=subprocess.PIPE)
    return np.frombuffer(done.stdout, "<f4").reshape(ids.size, -1)


def transformers_logits(folder, ids, dtype):
    original = packed_fp4.unpack_fp4_from_uint8
    packed_fp4.unpack_fp4_from_uint8 = functools.partial(original, dtype=dtype)
    try:
        model = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, attn_implementation="eager",
            quantization_config=transformers.CompressedTensorsConfig(dequantize=True)).eval()
    finally:
        packed_fp4.unpack_fp4_from_uint8 = original
    types = {parameter.dtype for name, parameter in model.named_parameters() if name.endswith("weight")}
    if types != {dtype}:
        sys.exit(f"the model was to be in {dtype}, but has weights in {types}")
    with torch.no_grad():
        return model(torch.from_numpy(ids.astype(np.int64))[None]).logits[0].float().numpy()


def worst_row(got, want):
    return float((np.abs(got - want).max(axis=1) / np.abs(want).max(axis=1)).max())


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    sub8, tool = sys.argv[1:3]
    model = pathlib.Path(sys.argv[3] if len(sys.argv) > 3 else "tests/data/exports/base")
    print(f"torch {torch.__version__}, transformers {transformers.__version__}, "
          f"compressed-tensors {compressed_tensors.__version__}, model {model.name}")
    failed = 0
    with tempfile.TemporaryDirectory() as scratch:
        for weights in ("nvfp4", "mxfp4"):
            folder = pathlib.Path(scratch) / weights
            subprocess.run([sub8, "quantize", model, folder, "--weights", weights, "--layout", "compressed-tensors"],
                           check=True, stdout=subprocess.DEVNULL)
            config = transformers.AutoConfig.from_pretrained(folder)
            ids = np.random.default_rng(8).integers(0, config.vocab_size, 64)
            for name, dtype in (("f32", torch.float32), ("bf16", torch.bfloat16)):
                want = transformers_logits(folder, ids, dtype)
                worst = worst_row(sub8_logits(tool, folder, ids, name), want)
                good = np.isfinite(want).all() and worst < LIMITS[name]
                failed += not good
                print(f"{weights} {name}: largest difference {worst:.2e} of the row's largest logit, limit {LIMITS[name]:g}: "
                      + ("ok" if good else "DIFFERENT"))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
