#!/usr/bin/env python3
"""Test vectors of every quantiser: writes docs/vectors/*.json, or compares with what is there (--check).

Written from the specification (docs/formats), with tables of values and nearest-value searches in
float64, and float32 for every operation that the specification rounds. It shares nothing with
sub8's code. Needs NumPy.
"""

import argparse
import json
import pathlib
import sys

import numpy as np

F32 = np.float32
OUT = pathlib.Path(__file__).resolve().parents[2] / "docs" / "vectors"
# All ways to spend 3 to 8 bits with a sign and at least one exponent bit.
ELEMENTS = [(x, bits - 1 - x) for bits in range(3, 9) for x in range(1, bits)]


# ---- Elements --------------------------------------------------------------------------------------


class Element:
    """A sign, X exponent and Y mantissa bits; values by their definition."""

    def __init__(self, x, y):
        self.x, self.y, self.bits = x, y, 1 + x + y
        self.name = f"e{x}m{y}"
        bias = 2 ** (x - 1) - 1
        self.top = 2 ** (x + y) - 1  # largest finite magnitude code
        if (x, y) == (4, 3):
            self.top = 0x7E
        if (x, y) == (5, 2):
            self.top = 0x7B
        self.values = []  # of the magnitude codes, float64
        for code in range(self.top + 1):
            field, fraction = code >> y, code & (2**y - 1)
            significand = fraction / 2**y + (1 if field else 0)
            self.values.append(significand * 2.0 ** (max(field, 1) - bias))
        self.values = np.array(self.values)
        self.max = F32(self.values[-1])

    def decode(self, code):
        magnitude = code & (2 ** (self.bits - 1) - 1)
        sign = -1.0 if code >> (self.bits - 1) else 1.0
        if magnitude > self.top:
            return sign * float("inf") if self.name == "e5m2" and magnitude == 0x7C else float("nan")
        return float(sign * self.values[magnitude])

    def encode(self, value):
        """The nearest code; ties to the even one; saturating; the sign of zero stays."""
        magnitude = min(abs(float(value)), float(self.values[-1]))
        above = int(np.searchsorted(self.values, magnitude))  # first value >= magnitude
        code = above
        if self.values[above] != magnitude:
            low, high = self.values[above - 1], self.values[above]
            middle = (low + high) / 2  # exact in float64
            if magnitude < middle:
                code = above - 1
            elif magnitude == middle:
                even = above if above % 2 == 0 else above - 1
                # Without mantissa bits neighbours differ in the exponent: the larger one, zero aside.
                code = even if self.y > 0 else (above if above > 1 else 0)
        return code | (int(np.signbit(value)) << (self.bits - 1))


E2M1, E4M3 = Element(2, 1), Element(4, 3)


def pack(codes, bits):
    """Codes along the row, least significant bit first, to whole bytes."""
    stream = 0
    for i, code in enumerate(codes):
        stream |= int(code) << (i * bits)
    return stream.to_bytes((len(codes) * bits + 7) // 8, "little").hex()


def blocks_of(count, size):
    return [(b, min(b + size, count)) for b in range(0, count, size)]


# ---- Scales ----------------------------------------------------------------------------------------


def amax(x):
    return F32(np.max(np.abs(x))) if len(x) else F32(0)


def positive_e4m3(ratio):
    """A block scale: nearest, saturating, at least 2^-9."""
    return max(E4M3.encode(ratio), 1)


def e4m3_value(code):
    return F32(E4M3.decode(code))


def unless_tiny(scale, power):
    return F32(0) if float(scale) < 2.0**power else scale


def mx_exponent(element, largest, rule):
    """e of a block's scale 2^e, clamped to [-127, 127]."""
    fraction, exponent = np.frexp(np.float64(largest))  # largest = fraction * 2^exponent, [0.5, 1)
    exponent = int(exponent) - 1
    significand = float(fraction) * 2  # [1, 2)
    top_fraction, top_exponent = np.frexp(np.float64(element.max))
    top_exponent, top_significand = int(top_exponent) - 1, float(top_fraction) * 2
    if float(largest) < 2.0**-126:  # subnormal: at the lower limit by every rule
        return -127
    if rule == "even" and np.floor(significand * 2**element.y + 0.5) >= 2 ** (element.y + 1):
        exponent += 1
    if rule == "ceil" and significand > top_significand:
        exponent += 1
    return max(-127, min(127, exponent - top_exponent))


def power(e):
    return F32(np.ldexp(1.0, e))


# ---- Weights ---------------------------------------------------------------------------------------


def divide_and_encode(element, x, d):
    with np.errstate(over="ignore"):
        return [element.encode(F32(v) / F32(d)) for v in x]


def weight_row(scheme, x, alpha):
    """(outer as files hold it or None, scale bytes, codes, values) of one row."""
    element, kind = scheme["element"], scheme["kind"]
    if kind == "channel":
        d = unless_tiny(amax(x) / element.max, -126)
        codes = [0] * len(x) if d == 0 else divide_and_encode(element, x, d)
        outer = F32(1) if d == 0 else d
        return outer, None, codes, [F32(element.decode(c)) * outer for c in codes]
    codes, scales, values = [], [], []
    if kind == "group":
        c = unless_tiny(amax(x) / F32(F32(64) * element.max), -117)
        outer = F32(1) if c == 0 else c
        for begin, end in blocks_of(len(x), scheme["group"]):
            part = x[begin:end]
            if c == 0 or amax(part) == 0:
                scales.append(0x38)
                codes += [0] * len(part)
            else:
                scales.append(positive_e4m3(amax(part) / F32(element.max * c)))
                codes += divide_and_encode(element, part, F32(c * e4m3_value(scales[-1])))
        size = scheme["group"]
    elif kind == "nvfp4":
        outer = F32(1) if alpha == 0 else alpha
        for begin, end in blocks_of(len(x), 16):
            part = x[begin:end]
            if alpha == 0 or amax(part) == 0:
                scales.append(0x38)
                codes += [0] * len(part)
                continue
            scale = positive_e4m3(amax(part) / F32(F32(6) * alpha))
            if scheme.get("four_over_six"):
                other = positive_e4m3(amax(part) / F32(F32(4) * alpha))
                if squared_error(part, alpha, other) < squared_error(part, alpha, scale):
                    scale = other
            scales.append(scale)
            codes += divide_and_encode(E2M1, part, F32(alpha * e4m3_value(scale)))
        size = 16
    else:  # mx
        outer, size = None, 32
        for begin, end in blocks_of(len(x), 32):
            part = x[begin:end]
            if amax(part) == 0:
                scales.append(0)
                codes += [0] * len(part)
                continue
            e = mx_exponent(element, amax(part), scheme["rule"])
            scales.append(e + 127)
            codes += divide_and_encode(element, part, power(e))
    for i, code in enumerate(codes):
        scale = scales[i // size]
        d = power(scale - 127) if kind == "mx" else F32(outer * e4m3_value(scale))
        values.append(F32(element.decode(code)) * d)
    return outer, scales, codes, values


def squared_error(x, alpha, scale):
    d = F32(alpha * e4m3_value(scale))
    total = F32(0)
    with np.errstate(over="ignore"):  # two infinite errors tie
        for v in x:
            error = F32(v - F32(F32(E2M1.decode(E2M1.encode(F32(v) / d))) * d))
            total = F32(total + F32(error * error))
    return total


def weight_scheme(name, **fields):
    return {"name": name, **fields}


def weight_schemes():
    channel = [(2, 0), (1, 1), (2, 1), (2, 2), (3, 1), (2, 3), (3, 2), (3, 3), (4, 3), (5, 2)]
    out = [weight_scheme(f"e{x}m{y}", kind="channel", element=Element(x, y)) for x, y in channel]
    for x, y, group in [(2, 1, 32), (2, 1, 64), (3, 2, 32), (3, 2, 128), (2, 2, 64), (2, 0, 32), (3, 3, 128)]:
        out.append(weight_scheme(f"e{x}m{y}:g{group}", kind="group", element=Element(x, y), group=group))
    out.append(weight_scheme("nvfp4", kind="nvfp4", element=E2M1))
    out.append(weight_scheme("nvfp4", kind="nvfp4", element=E2M1, four_over_six=True))
    for name, x, y in [("mxfp4", 2, 1), ("mxfp6_e3m2", 3, 2), ("mxfp6_e2m3", 2, 3), ("mxfp8", 4, 3)]:
        for rule in ["even", "ceil", "floor"]:
            out.append(weight_scheme(name, kind="mx", element=Element(x, y), rule=rule))
    return out


# ---- Activations: quantise-and-extend ----------------------------------------------------------------


def activation_alpha(kind, x):
    if kind == "nvfp4":
        return unless_tiny(amax(x) / F32(2688), -117)
    if kind == "fp8":
        return unless_tiny(amax(x) / F32(448), -117)
    return F32(1)


def activation_row(kind, rule, x, alpha):
    """(scale bytes, codes, approximation) of one row."""
    element = E2M1 if kind in ("nvfp4", "mxfp4") else E4M3
    size = {"nvfp4": 16, "fp8": max(len(x), 1)}.get(kind, 32)
    scales, codes, values = [], [], []
    for begin, end in blocks_of(len(x), size):
        part = x[begin:end]
        d = inverse = F32(0)
        if kind == "nvfp4":
            scales.append(0)
            if alpha != 0 and amax(part) != 0:
                scales[-1] = positive_e4m3(amax(part) / F32(F32(6) * alpha))
                d = F32(alpha * e4m3_value(scales[-1]))
                inverse = F32(1) / d
        elif kind == "fp8":
            d = alpha
            inverse = F32(0) if alpha == 0 else F32(1) / alpha
        else:
            scales.append(0)
            if amax(part) != 0:
                e = mx_exponent(element, amax(part), rule)
                scales[-1] = e + 127
                d = power(e)
                inverse = None  # division by a power of two
        for v in part:
            if inverse is None:
                code = element.encode(F32(v) / d)
            else:
                code = 0 if inverse == 0 else element.encode(F32(v) * inverse)
            codes.append(code)
            values.append(F32(F32(element.decode(code)) * d))
    return scales, codes, np.array(values, F32)


def select_masks(means, ratio):
    count, masks = int(8 * ratio), []
    for begin in range(0, len(means), 8):
        group = list(means[begin : begin + 8]) + [-1.0] * (8 - len(means[begin : begin + 8]))
        order = sorted(range(8), key=lambda i: (-group[i], i))
        masks.append(sum(1 << i for i in order[:count]))
    return masks


def selected_channels(masks):
    return [8 * g + i for g, mask in enumerate(masks) for i in range(8) if mask >> i & 1]


def select(row, masks):
    return np.array([row[c] if c < len(row) else 0 for c in selected_channels(masks)], F32)


def activation_layouts(kind, rule, rows, alphas, masks):
    """Packed codes and scale bytes, one hexadecimal text per row, in the four layouts."""
    bits = 4 if kind in ("nvfp4", "mxfp4") else 8
    block = {"nvfp4": 16, "fp8": 1}.get(kind, 32)
    base, residue, extension = [], [], []
    for x, alpha in zip(rows, alphas):
        scales, codes, values = activation_row(kind, rule, x, alpha)
        r = (x - values).astype(F32)
        base.append((codes, scales))
        residue.append(activation_row(kind, rule, r, alpha)[1::-1])
        extension.append(activation_row(kind, rule, select(r, masks), alpha)[1::-1])

    def row(*parts):
        codes, scales = [], []
        for number, (part_codes, part_scales) in enumerate(parts):
            padding = -len(part_codes) % block if number + 1 < len(parts) else 0
            codes += part_codes + [0] * padding
            scales += part_scales
        return {"codes": pack(codes, bits), "scales": bytes(scales).hex()}

    zero = ([0] * len(rows[0]), [0] * len(base[0][1]))
    pairs = [row(part) for i in range(len(rows)) for part in (base[i], residue[i])]
    tiles = []
    for first in range(0, len(rows), 8):
        for part in (base, residue):
            tiles += [row(part[i] if i < len(rows) else zero) for i in range(first, first + 8)]
    return {
        "rows": [row(b) for b in base],
        "residue_rows": [row(r) for r in residue],
        "row_pair": pairs,
        "tile8": tiles,
        "k_extended": [row(b, e) for b, e in zip(base, extension)],
    }


# ---- KV pages --------------------------------------------------------------------------------------


def kv_row(x, alpha, largest_scale):
    """One head of K or V of one token: E2M1 per 16, scales at most `largest_scale`."""
    scales, codes = [], []
    for begin, end in blocks_of(len(x), 16):
        part = x[begin:end]
        if alpha == 0 or amax(part) == 0:
            scales.append(0)
            codes += [0] * len(part)
            continue
        limit = E4M3.encode(F32(largest_scale))
        scales.append(min(positive_e4m3(amax(part) / F32(F32(6) * alpha)), limit))
        inverse = F32(1) / F32(alpha * e4m3_value(scales[-1]))
        codes += [E2M1.encode(F32(v) * inverse) for v in part]
    return {"codes": pack(codes, 4), "scales": bytes(scales).hex()}


# ---- Scale layout of matrix kernels ------------------------------------------------------------------


def swizzled_offset(row, block, blocks_per_row):
    tile = row // 128 * ((blocks_per_row + 3) // 4) + block // 4
    return tile * 512 + row % 32 * 16 + row % 128 // 32 * 4 + block % 4


# ---- Inputs ----------------------------------------------------------------------------------------


def bf16(x):
    """Rounded to bfloat16, ties to even, as float32."""
    bits = np.asarray(x, F32).view(np.uint32).astype(np.uint64)
    bits = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16 << 16
    return bits.astype(np.uint32).view(F32)


def numbers(x):
    return [float(v) for v in np.asarray(x, F32)]


def row_set(random, width):
    """Rows that meet the edges: outliers, zeros, zero blocks, negative zeros, ties, tails."""
    heavy = random.standard_normal(width) * np.exp(2 * random.standard_normal(width))
    sparse = np.where(np.arange(width) % 48 < 32, 0.0, random.standard_normal(width))
    sparse[3] = -0.0
    ties = np.array([random.integers(-48, 49) / 8 for _ in range(width)])
    ties[0] = 6.0
    one = np.zeros(width)
    one[width - 1] = -3.25
    return [random.standard_normal(width), heavy, np.zeros(width), sparse, ties, one]


def weight_inputs():
    random = np.random.Generator(np.random.PCG64(1))
    return {
        "edges": np.array(row_set(random, 72), F32),
        "tail": np.array([random.standard_normal(5), random.standard_normal(5)], F32),
        "tiny": np.array([random.standard_normal(40) * 2.0**-112, random.standard_normal(40) * 2.0**-128,
                          random.standard_normal(40) * 2.0**-141], F32),
        "huge": np.clip(np.array([random.standard_normal(40) * 2.0**124], F32), -(2.0**126), 2.0**126).astype(F32),
        "zero": np.zeros((1, 20), F32),
    }


# ---- Files -----------------------------------------------------------------------------------------


def elements_file():
    out = []
    for element in map(lambda p: Element(*p), ELEMENTS):
        inputs = set()
        for low, high in zip(element.values[:-1], element.values[1:]):
            middle = F32((low + high) / 2)
            if float(middle) != (low + high) / 2:
                continue  # between neighbours that float32 cannot tell apart
            for value in [F32(low), middle, np.nextafter(middle, F32(np.inf)), np.nextafter(middle, F32(0))]:
                inputs.add(float(value))
        top = float(element.max)
        inputs |= {top, float(np.nextafter(F32(top), F32(np.inf))), float(F32(3.0e38)), 0.0}
        values = sorted(inputs)
        # Every value of small formats; of wide ones a sample that keeps the ends.
        if len(values) > 160:
            values = values[:40] + values[40:-40 : len(values) // 80] + values[-40:]
        values = [v for m in values for v in (m, -m)]
        decoded = [element.decode(c) for c in range(2**element.bits)]
        texts = [v if np.isfinite(v) else ("nan" if np.isnan(v) else ("inf" if v > 0 else "-inf")) for v in decoded]
        out.append({"element": element.name, "values": texts,
                    "encode": {"x": values, "codes": [element.encode(F32(v)) for v in values]}})
    scales = [{"byte": b, "value": float(power(b - 127))} for b in (0, 1, 126, 127, 128, 254)]
    return {"elements": out, "e8m0": scales}


def weights_file():
    inputs = weight_inputs()
    cases = []
    for scheme in weight_schemes():
        for input_name, x in inputs.items():
            alpha = None
            if scheme["kind"] == "nvfp4":
                divisor = F32(1536) if scheme.get("four_over_six") else F32(2688)
                alpha = unless_tiny(amax(x.ravel()) / divisor, -117)
            rows = []
            for values in x:
                outer, scales, codes, decoded = weight_row(scheme, values, alpha)
                row = {"codes": pack(codes, scheme["element"].bits), "values": numbers(decoded)}
                if scales is not None:
                    row["scales"] = bytes(scales).hex()
                if outer is not None:
                    row["outer_scale"] = float(outer)
                rows.append(row)
            case = {"format": scheme["name"], "input": input_name, "rows": rows}
            if "rule" in scheme:
                case["mx_rule"] = scheme["rule"]
            if scheme.get("four_over_six"):
                case["four_over_six"] = True
            cases.append(case)
    return {"inputs": {name: [numbers(r) for r in x] for name, x in inputs.items()}, "cases": cases}


def activations_file():
    random = np.random.Generator(np.random.PCG64(2))
    width = 77
    rows = row_set(random, width) + [random.standard_normal(width) for _ in range(4)]
    rows.append(random.standard_normal(width) * 2.0**-115)
    rows = [bf16(r) for r in rows]
    means = np.abs(random.standard_normal(width)).astype(F32)
    masks = select_masks(means, 0.25)
    cases = []
    for kind, rules in [("nvfp4", [None]), ("fp8", [None]), ("mxfp4", ["even", "ceil", "floor"]), ("mxfp8", ["even"])]:
        for rule in rules:
            alphas = {"row": [activation_alpha(kind, r) for r in rows]}
            if kind in ("nvfp4", "fp8"):
                # Static: one that fits, and one so small that scales and values saturate.
                fits = activation_alpha(kind, np.concatenate(rows))
                alphas["static"] = [fits] * len(rows)
                alphas["static, too small"] = [F32(fits / F32(64))] * len(rows)
            for source, values in alphas.items():
                case = {"format": kind, "alpha_source": source, "alpha": numbers(values),
                        "layouts": activation_layouts(kind, rule, rows, values, masks)}
                if rule:
                    case["mx_rule"] = rule
                cases.append(case)
    return {"x": [numbers(r) for r in rows], "masks": bytes(masks).hex(), "cases": cases}


def extension_file():
    random = np.random.Generator(np.random.PCG64(3))
    means = np.round(np.abs(random.standard_normal(45)) * 4) / 4  # with ties
    weight = np.array([random.standard_normal(45) for _ in range(3)], F32)
    selections, columns = [], []
    for ratio in (0.125, 0.25, 0.5):
        masks = select_masks(means, ratio)
        selections.append({"ratio": ratio, "masks": bytes(masks).hex(), "channels": selected_channels(masks)})
        for name, kind in (("nvfp4", "nvfp4"), ("mxfp4", "mx")):
            scheme = {"kind": kind, "element": E2M1, "rule": "even"}
            alpha = unless_tiny(amax(weight.ravel()) / F32(2688), -117) if kind == "nvfp4" else None
            case = {"format": name, "ratio": ratio, "rows": []}
            if alpha is not None:
                case["outer_scale"] = float(alpha)
            for row in weight:
                _, scales, codes, _ = weight_row(scheme, select(row, masks), alpha)
                case["rows"].append({"codes": pack(codes, 4), "scales": bytes(scales).hex()})
            columns.append(case)
    return {"mean_abs": numbers(means), "selections": selections,
            "weight": [numbers(r) for r in weight], "columns": columns}


def fold_file():
    random = np.random.Generator(np.random.PCG64(4))
    m, n = 3, 4
    raw = (random.standard_normal((2 * m, n)) * 1000).astype(F32)  # row pairs
    alpha = np.abs(random.standard_normal(m)).astype(F32)
    outer = np.abs(random.standard_normal(n)).astype(F32)
    bias = random.standard_normal(n).astype(F32)

    def folded(with_bias):
        y = np.zeros((m, n), F32)
        for i in range(m):
            for j in range(n):
                total = F32(raw[2 * i, j] + raw[2 * i + 1, j])
                y[i, j] = F32(total * F32(alpha[i] * outer[j]))
                if with_bias:
                    y[i, j] = F32(y[i, j] + bias[j])
        return [numbers(r) for r in y]

    return {"raw_row_pair": [numbers(r) for r in raw], "alpha": numbers(alpha), "outer_scale": numbers(outer),
            "bias": numbers(bias), "y": folded(False), "y_bias": folded(True)}


def common_unit(products):
    """The largest power of two that divides all of them. Sums below 2^24 units are exact in float32."""
    ratios = [float(abs(p)).as_integer_ratio() for p in products if p]
    return min(((n & -n) / d for n, d in ratios), default=1.0)


def product_file():
    """Whole products on inputs whose partial sums are exact, so that no order of summation matters."""
    random = np.random.Generator(np.random.PCG64(5))
    m, n, k = 3, 4, 64
    x = np.array([[random.integers(-96, 97) / 16 for _ in range(k)] for _ in range(m)], F32)
    x[:, 0] = 10.5  # alpha = 2^-8
    weight = np.array([[random.integers(-96, 97) / 16 for _ in range(k)] for _ in range(n)], F32)
    weight[:, 0] = 10.5
    means = np.abs(x).mean(axis=0)
    out = {"x": [numbers(r) for r in x], "weight": [numbers(r) for r in weight], "cases": []}
    for kind in ("nvfp4", "mxfp4"):
        alpha_w = unless_tiny(amax(weight.ravel()) / F32(2688), -117) if kind == "nvfp4" else F32(1)
        scheme = {"kind": "nvfp4" if kind == "nvfp4" else "mx", "element": E2M1, "rule": "even"}

        def without_alpha(scales, codes):
            size = 16 if kind == "nvfp4" else 32
            value = e4m3_value if kind == "nvfp4" else (lambda byte: power(byte - 127))
            return np.array([E2M1.decode(c) * float(value(scales[i // size])) for i, c in enumerate(codes)])

        def weight_values(rows):
            parts = [weight_row(scheme, r, alpha_w) for r in rows]
            return np.array([without_alpha(scales, codes) for _, scales, codes, _ in parts])

        base_weight = weight_values(weight)
        for ratio in (0, 0.125, 0.25, 0.5, 1):
            y = np.zeros((m, n), F32)
            for i in range(m):
                alpha = activation_alpha(kind, x[i])
                scales, codes, approximation = activation_row(kind, "even", x[i], alpha)
                left, right = without_alpha(scales, codes), base_weight
                if ratio > 0:
                    residue = (x[i] - approximation).astype(F32)
                    columns = weight
                    if ratio < 1:
                        masks = select_masks(means, ratio)
                        residue = select(residue, masks)
                        columns = np.array([select(r, masks) for r in weight])
                    scales, codes, _ = activation_row(kind, "even", residue, alpha)
                    left = np.concatenate([left, without_alpha(scales, codes)])
                    right = np.concatenate([base_weight, weight_values(columns)], axis=1)
                for j in range(n):
                    products = left * right[j]
                    assert np.sum(np.abs(products)) < 2**24 * common_unit(products)
                    raw = F32(np.sum(products))
                    y[i, j] = F32(raw * F32(alpha * alpha_w))
            out["cases"].append({"format": kind, "ratio": ratio, "y": [numbers(r) for r in y]})
    return out


def kv_file():
    random = np.random.Generator(np.random.PCG64(6))
    rows = [bf16(r) for r in row_set(random, 64)]
    cases = []
    for what, limit in (("k", 448), ("v", 72)):
        for alpha in (F32(1), F32(amax(np.concatenate(rows)) / F32(448)), F32(2.0**-6)):
            cases.append({"what": what, "alpha": float(alpha), "rows": [kv_row(r, alpha, limit) for r in rows]})
    return {"x": [numbers(r) for r in rows], "cases": cases}


def swizzle_file():
    cases = []
    for rows, blocks in ((1, 1), (128, 4), (130, 6), (300, 9)):
        offsets = [[r, b, swizzled_offset(r, b, blocks)] for r in sorted({0, 1, 31, 32, 33, 100, 127, 128, 129, 299})
                   for b in sorted({0, 1, 3, 4, 5, 8}) if r < rows and b < blocks]
        size = (rows + 127) // 128 * 128 * ((blocks + 3) // 4 * 4)
        cases.append({"rows": rows, "blocks": blocks, "bytes": size, "offsets": offsets})
    return {"cases": cases}


FILES = {
    "elements": elements_file,
    "weights": weights_file,
    "activations": activations_file,
    "extension": extension_file,
    "fold": fold_file,
    "product": product_file,
    "kv": kv_file,
    "scale_swizzle": swizzle_file,
}


def text_of(value, depth=0):
    """JSON with one line per leaf list: small, and readable in a diff."""
    pad = " " * (depth + 1)
    if isinstance(value, dict):
        body = ",\n".join(f"{pad}{json.dumps(k)}: {text_of(v, depth + 1)}" for k, v in value.items())
        return "{\n" + body + "\n" + " " * depth + "}"
    if isinstance(value, list) and any(isinstance(v, (dict, list)) for v in value):
        return "[\n" + ",\n".join(pad + text_of(v, depth + 1) for v in value) + "\n" + " " * depth + "]"
    return json.dumps(value, allow_nan=False)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true", help="compare with the committed files instead of writing")
    check = parser.parse_args().check
    wrong = 0
    for name, make in FILES.items():
        text = text_of({"schema_version": 1, **make()}) + "\n"
        path = OUT / f"{name}.json"
        if not check:
            path.write_text(text)
            print(f"{path.name}: {len(text)} bytes")
        elif not path.exists() or path.read_text() != text:
            wrong += 1
            print(f"{path}: not what tools/vectors/make_vectors.py makes", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
