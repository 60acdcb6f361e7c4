"""Writes transformers.txt: inverse frequencies, cosines and sines as the transformers package computes them.

    python3 -m venv /tmp/venv && /tmp/venv/bin/pip install torch==2.13.0 transformers==5.18.0
    /tmp/venv/bin/python tests/kernels/make_rope_golden.py tests/data/rope/transformers.txt

Lines (f32 values as hexadecimal bits, everything else decimal):
    case TYPE THETA DIMS FACTOR ORIGINAL LOW HIGH BETA_FAST BETA_SLOW TRUNCATE ATTENTION_FACTOR
    inverse BITS...
    row POSITION COS_BITS... SIN_BITS...
ATTENTION_FACTOR is the one that transformers derives.
"""

import struct
import sys

import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

CASES = [  # dims, rope_parameters
    (64, {"rope_type": "default", "rope_theta": 10000.0}),
    (128, {"rope_type": "default", "rope_theta": 1000000.0}),
    (80, {"rope_type": "default", "rope_theta": 100000.0}),
    (256, {"rope_type": "linear", "rope_theta": 1000000.0, "factor": 8.0}),
    (128, {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
           "original_max_position_embeddings": 8192}),
    (64, {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 8192}),
    (128, {"rope_type": "yarn", "rope_theta": 1000000.0, "factor": 4.0, "original_max_position_embeddings": 32768}),
    (64, {"rope_type": "yarn", "rope_theta": 150000.0, "factor": 32.0, "original_max_position_embeddings": 4096,
          "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False}),
    (128, {"rope_type": "yarn", "rope_theta": 1000000.0, "factor": 4.0, "original_max_position_embeddings": 32768,
           "attention_factor": 1.0}),
    (64, {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 40.0, "original_max_position_embeddings": 4096,
          "mscale": 1.0, "mscale_all_dim": 0.707}),
]
POSITIONS = [0, 1, 2, 511, 8191, 131071]


def bits(tensor):
    return " ".join(f"{struct.unpack('<I', struct.pack('<f', v))[0]:08x}" for v in tensor.flatten().tolist())


def main():
    lines = []
    for dims, parameters in CASES:
        config = LlamaConfig(hidden_size=dims * 2, num_attention_heads=2, head_dim=dims, max_position_embeddings=131072,
                             rope_parameters=dict(parameters))
        rope = LlamaRotaryEmbedding(config)
        p = parameters
        fields = [p["rope_type"], p["rope_theta"], dims, p.get("factor", 1.0), p.get("original_max_position_embeddings", 0),
                  p.get("low_freq_factor", 1.0), p.get("high_freq_factor", 4.0), p.get("beta_fast", 32.0),
                  p.get("beta_slow", 1.0), int(p.get("truncate", True)), repr(float(rope.attention_scaling))]
        lines.append("case " + " ".join(str(f) for f in fields))
        lines.append("inverse " + bits(rope.inv_freq))
        cos, sin = rope(torch.zeros(1, dtype=torch.float32), torch.tensor([POSITIONS]))
        half = dims // 2
        for i, position in enumerate(POSITIONS):
            lines.append(f"row {position} {bits(cos[0, i, :half])} {bits(sin[0, i, :half])}")
    with open(sys.argv[1], "w") as out:
        out.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
