"""Writes ml_dtypes.txt: how the ml_dtypes package encodes and decodes the OCP element formats.

    python3 -m venv /tmp/venv && /tmp/venv/bin/pip install numpy==2.4.6 ml_dtypes==0.6.0
    /tmp/venv/bin/python tests/format/make_ml_dtypes_golden.py tests/data/format/ml_dtypes.txt

Lines:
    value  FORMAT CODE BITS   the value of a code, as float32 bits (all finite codes, sign included)
    first  FORMAT CODE BITS   the smallest non-negative float32, as bits, that is encoded as CODE
Since encoding is monotone (checked here on every bfloat16 and a sample of float32), the `first` lines fix the code of every
non-negative float32 up to the largest value. What lies beyond, and NaN, is policy: ml_dtypes makes NaN of an overflow in e4m3 and
infinity in e5m2, sub8 saturates; docs/formats/elements.md has the table.
e3m4 is an IEEE-like type in ml_dtypes: its top exponent field is infinity and NaN, so only codes below 0x70 are listed.
"""

import sys

import ml_dtypes
import numpy as np

FORMATS = [  # name, dtype, largest code without sign, sign bit
    ("e2m1", ml_dtypes.float4_e2m1fn, 0x07, 0x08),
    ("e2m3", ml_dtypes.float6_e2m3fn, 0x1F, 0x20),
    ("e3m2", ml_dtypes.float6_e3m2fn, 0x1F, 0x20),
    ("e3m4", ml_dtypes.float8_e3m4, 0x6F, 0x80),
    ("e4m3", ml_dtypes.float8_e4m3fn, 0x7E, 0x80),
    ("e5m2", ml_dtypes.float8_e5m2, 0x7B, 0x80),
]


def encode(bits, dtype):
    return np.asarray(bits, np.uint32).view(np.float32).astype(dtype).view(np.uint8)


def main(path):
    lines = [f"# ml_dtypes {ml_dtypes.__version__}, numpy {np.__version__}, make_ml_dtypes_golden.py"]
    for name, dtype, top, sign in FORMATS:
        codes = np.concatenate([np.arange(top + 1), np.arange(top + 1) + sign]).astype(np.uint8)
        values = codes.view(dtype).astype(np.float32).view(np.uint32)
        lines += [f"value {name} {c} {v:08x}" for c, v in zip(codes.tolist(), values.tolist())]

        limit = int(np.asarray([top], np.uint8).view(dtype).astype(np.float32).view(np.uint32)[0])
        sample = np.unique(np.concatenate([np.arange(0, limit, 65536), np.arange(0, limit, 99991), [limit]]))
        assert (np.diff(encode(sample, dtype).astype(int)) >= 0).all(), name
        for code in range(1, top + 1):
            low, high = 0, limit  # encode(low) < code <= encode(high)
            while high - low > 1:
                middle = (low + high) // 2
                if encode([middle], dtype)[0] >= code:
                    high = middle
                else:
                    low = middle
            assert encode([high], dtype)[0] == code, (name, code)
            lines.append(f"first {name} {code} {high:08x}")
    e8m0 = np.arange(255, dtype=np.uint8).view(ml_dtypes.float8_e8m0fnu).astype(np.float32).view(np.uint32)
    lines += [f"value e8m0 {c} {v:08x}" for c, v in enumerate(e8m0.tolist())]
    with open(path, "w") as out:
        out.write("\n".join(lines) + "\n")


main(sys.argv[1])
