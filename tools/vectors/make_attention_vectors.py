#!/usr/bin/env python3
"""Test vectors of KV pages and of attention over them: writes docs/vectors/kv_pages.json and attention.json, or compares (--check).

Written from docs/formats/kv_pages.md and docs/modes.md, on the quantisers of make_vectors.py; it shares nothing with sub8's code.
Attention is in float64 but for the roundings that the specification names. Needs NumPy.
"""

import argparse
import json
import pathlib
import sys

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from make_vectors import E2M1, E4M3, F32, OUT, activation_alpha, activation_row, bf16, kv_row, numbers, text_of  # noqa: E402

PAGE = 32
SPLIT = 512


class Pages:
    """[K data | K scales | V data | V scales] per page, heads outermost; what was never written holds 0xee."""

    def __init__(self, kind, count, heads, head_dim, alphas):
        self.kind, self.heads, self.head_dim, self.alphas = kind, heads, head_dim, alphas
        self.token = head_dim if kind == "fp8" else head_dim // 2
        self.blocks = 0 if kind == "fp8" else -(-head_dim // 16)
        self.part = heads * PAGE * (self.token + self.blocks)
        self.memory = bytearray(b"\xee" * (count * 2 * self.part))

    def places(self, slot, side, head):
        """Slices of one token's codes and scales."""
        base = slot // PAGE * 2 * self.part + side * self.part
        index = head * PAGE + slot % PAGE
        codes, scales = base + index * self.token, base + self.heads * PAGE * self.token + index * self.blocks
        return slice(codes, codes + self.token), slice(scales, scales + self.blocks)

    def append(self, slot, k, v):
        """k, v: [heads][head_dim], rounded to bf16 first."""
        for side, rows in enumerate((k, v)):
            alpha = self.alphas[side]
            for head, row in enumerate(rows):
                x = bf16(row)
                codes, scales = self.places(slot, side, head)
                if self.kind == "fp8":
                    self.memory[codes] = bytes(E4M3.encode(value * (F32(1) / alpha)) for value in x)
                    continue
                made = kv_row(x, alpha, 72 if side else 448)
                self.memory[codes] = bytes.fromhex(made["codes"])
                self.memory[scales] = bytes.fromhex(made["scales"])

    def elements(self, slot, side, head):
        """[head_dim] of code * scale, without alpha."""
        codes, scales = self.places(slot, side, head)
        data = self.memory[codes]
        s = [E4M3.decode(byte) for byte in self.memory[scales]]
        return np.array([E2M1.decode(data[i // 2] >> i % 2 * 4 & 15) * s[i // 16] for i in range(self.head_dim)])


def to_e4m3(x):
    return np.array([E4M3.decode(E4M3.encode(v)) for v in x])


def query(kind, x):
    """A query's values without alpha, its residue included where the kind has one, and alpha."""
    fmt = "fp8" if kind == "fp8-query" else "nvfp4"
    x = bf16(x)
    alpha = activation_alpha(fmt, x)

    def stored(row):
        scales, codes, values = activation_row(fmt, "even", row, alpha)
        element = E4M3 if fmt == "fp8" else E2M1
        return np.array([element.decode(c) * (E4M3.decode(scales[i // 16]) if scales else 1) for i, c in enumerate(codes)]), values

    out, values = stored(x)
    if kind.startswith("resattn"):
        out = out + stored((x - values).astype(F32))[0]
    return out, alpha


def attend(kind, pages, table, position, q, scale):
    """One row, all heads."""
    out = []
    group = len(q) // pages.heads
    slots = [table[key // PAGE] * PAGE + key % PAGE for key in range(position + 1)]
    for head, row in enumerate(q):
        k = [pages.elements(slot, 0, head // group) for slot in slots]
        v = [pages.elements(slot, 1, head // group) for slot in slots]
        values, alpha = query(kind, row)
        if kind == "fp8-query":
            k = [to_e4m3(x) for x in k]
        if kind != "resattn-pv16":
            v = [to_e4m3(x) for x in v]
        factor = float(alpha) * float(pages.alphas[0]) * float(scale)
        scores = np.array([float(values @ key) * factor for key in k])
        total, denominator, top = np.zeros(pages.head_dim), 0.0, scores.max()
        for begin in range(0, position + 1, SPLIT):
            s = scores[begin : begin + SPLIT]
            p = np.exp(s - s.max())
            share = np.exp(s.max() - top)
            denominator += share * p.sum()
            in_bf16 = kind in ("resattn-v8", "resattn-pv16")
            rounded = bf16(p).astype(np.float64) if in_bf16 else to_e4m3(p * 256) / 256
            total += share * (rounded @ np.array(v[begin : begin + SPLIT]))
        out.append(total / denominator * float(pages.alphas[1]))
    return out


def kv_pages_file():
    random = np.random.Generator(np.random.PCG64(8))
    cases = []
    for kind, heads, head_dim, alphas in (
        ("fp8", 2, 16, (1.0, 1.0)),
        ("fp8", 1, 24, (0.01, 0.003)),
        ("nvfp4", 2, 32, (1.0, 1.0)),
        ("nvfp4", 1, 24, (0.01, 0.003)),
        ("nvfp4", 1, 64, (0.0078125, 0.02)),
    ):
        alphas = tuple(F32(a) for a in alphas)
        pages = Pages(kind, 2, heads, head_dim, alphas)
        slots = [33, 0, 31]
        k = (random.standard_normal((3, heads, head_dim)) * 2).astype(F32)
        v = (random.standard_normal((3, heads, head_dim)) * 2).astype(F32)
        k[0, 0, :16] = F32(0)
        k[1, 0, 0] = v[1, 0, 0] = F32(3000)  # beyond V's largest scale where alpha is 1
        v[2, 0, :8] = F32(-0.0)
        for slot, k_row, v_row in zip(slots, k, v):
            pages.append(slot, k_row, v_row)
        cases.append({
            "type": kind, "kv_heads": heads, "head_dim": head_dim, "k_alpha": float(alphas[0]), "v_alpha": float(alphas[1]),
            "slots": slots, "k": [numbers(r) for r in k.reshape(3, -1)], "v": [numbers(r) for r in v.reshape(3, -1)],
            "memory": bytes(pages.memory).hex(),
        })  # fmt: skip
    return {"cases": cases}


def attention_file():
    random = np.random.Generator(np.random.PCG64(9))
    cases = []
    for kind, heads, kv_heads, head_dim, keys, alphas in (
        ("resattn", 3, 1, 64, 70, (1.0, 1.0)),
        ("resattn", 2, 2, 24, 33, (0.01, 0.008)),
        ("resattn", 4, 2, 16, 530, (0.01, 0.008)),
        ("fp4-query", 2, 1, 32, 40, (0.01, 0.008)),
        ("fp8-query", 2, 1, 32, 40, (0.01, 0.008)),
        ("resattn-v8", 2, 1, 32, 40, (0.01, 0.008)),
        ("resattn-pv16", 2, 1, 32, 40, (0.01, 0.008)),
    ):
        alphas = tuple(F32(a) for a in alphas)
        count = -(-keys // PAGE)
        pages = Pages("nvfp4", count, kv_heads, head_dim, alphas)
        table = [int(p) for p in random.permutation(count)]
        for key in range(keys):
            k, v = random.standard_normal((2, kv_heads, head_dim)).astype(F32)
            pages.append(table[key // PAGE] * PAGE + key % PAGE, k, v)
        q = (random.standard_normal((heads, head_dim)) * 2).astype(F32)
        scale = F32(1 / np.sqrt(head_dim))
        out = attend(kind, pages, table, keys - 1, q, scale)
        cases.append({
            "kind": kind, "heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "position": keys - 1,
            "k_alpha": float(alphas[0]), "v_alpha": float(alphas[1]), "scale": float(scale), "page_table": table,
            "memory": bytes(pages.memory).hex(), "q": numbers(q.ravel()), "out": [float(x) for x in np.concatenate(out)],
        })  # fmt: skip
    return {"cases": cases}


def same(a, b, key=""):
    """Exact, but for what attention gives: NumPy's sums and exponentials differ in their last bits from machine to machine."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k], k) for k in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(same(x, y, key) for x, y in zip(a, b))
    return bool(np.isclose(a, b, rtol=1e-9, atol=1e-12)) if key == "out" else a == b


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true", help="compare with the committed files instead of writing")
    check = parser.parse_args().check
    wrong = 0
    for name, make in (("kv_pages", kv_pages_file), ("attention", attention_file)):
        content = {"schema_version": 1, **make()}
        path = OUT / f"{name}.json"
        if not check:
            path.write_text(text_of(content) + "\n")
            print(f"{path.name}: {path.stat().st_size} bytes")
        elif not path.exists() or not same(content, json.loads(path.read_text())):
            wrong += 1
            print(f"{path}: not what tools/vectors/make_attention_vectors.py makes", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
