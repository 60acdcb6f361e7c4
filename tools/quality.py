"""What each weight format costs in accuracy: evaluates a model in every format against its original and writes a page.

usage: quality.py --sub8 BIN --model DEMO.gguf --work DIR [--out docs/quality.md] [--windows N] [--formats a,b,...]
                  [--plan-windows N] [--only planner|calibrated|awq] [--sections calibrated,awq,planner]

Every `sub8 eval --sweep` keeps its report in DIR, so an interrupted run goes on where it stopped. The reference is the original
with exact float32 weights and activations.
"""
import argparse
import datetime
import hashlib
import json
import os
import subprocess
import sys

FORMATS = ["original", "e4m3", "e3m3", "e3m2", "e2m3", "e2m2", "e3m1", "e2m1:g32", "nvfp4", "nvfp4+4/6", "mxfp4", "mxfp6_e3m2",
           "int4", "int4:g128"]
TEXTS = {"prose": "prose-heldout.txt", "code": "code-heldout.txt"}
# Execution modes (docs/modes.md): weights as stored, activations in 4 or 8 bits.
MODES = ["nvfp4+plain", "nvfp4+residue+ratio=1", "nvfp4+fp8", "nvfp4+fp8-residue", "mxfp4+plain", "mxfp4+residue+ratio=1",
         "mxfp4+fp8", "mxfp4+fp8-residue", "e3m2+fp8"]
# KV caches and queries of generated rows; the weights stay as they are, or are those of the residue mode.
CACHES = ["original", "original+kv=fp8", "original+kv=nvfp4", "original+kv=nvfp4+fp8-query", "original+kv=nvfp4+fp4-query",
          "original+kv=nvfp4+resattn", "nvfp4+residue", "nvfp4+residue+kv=nvfp4+fp8-query", "nvfp4+residue+kv=nvfp4+resattn"]
# With a calibration of the original: channels that the ratio selects, static alphas, scales of the KV cache.
CALIBRATED = [f"{fmt}+residue+ratio={ratio}" for fmt in ("nvfp4", "mxfp4") for ratio in (0.125, 0.25, 0.5)]
CALIBRATED += ["nvfp4+plain+alpha=static", "nvfp4+residue+ratio=1+alpha=static", "nvfp4+fp8+alpha=static"]
CALIBRATED_CACHES = ["original+kv=fp8", "original+kv=nvfp4", "original+kv=nvfp4+fp8-query", "original+kv=nvfp4+resattn"]
# AWQ: format -> modes of its result, beside the same modes without AWQ.
AWQ = {"nvfp4": ["", "+plain", "+residue+ratio=0.25", "+residue+ratio=1"],
       "mxfp4": ["", "+plain", "+residue+ratio=0.25", "+residue+ratio=1"], "e2m2": [""], "e2m1:g32": [""]}
SAMPLE = ["--samples", "32", "--length", "512"]  # of PLAN_TEXT, for calibration and AWQ
# Formats whose storage bits are the planner's three budgets.
BUDGETS = ["nvfp4", "e2m2", "e3m2"]
PLAN_TEXT = "prose-calibration.txt"
BATCH = 18  # rows that share one pass of the reference: 135M parameters take about 0.3 GB each


def run(command):
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(f"failed with status {done.returncode}: {' '.join(command)}")
    return done.stdout


def weight_rows(args):
    """(label of the sweep, format, head quantised too) of every weight-only row, in the page's order."""
    return [(fmt + ("+head" if head else ""), fmt, head)
            for fmt in args.formats.split(",") for head in ([False] if fmt == "original" else [False, True])]


def text_path(args, name):
    return os.path.join(args.work, "text", name)


def calibration(args):
    """The original's calibration, made once."""
    out = os.path.join(args.work, "calibration")
    if not os.path.exists(os.path.join(out, "sub8", "residue.json")):
        run([args.sub8, "calibrate", args.model, "--text", text_path(args, PLAN_TEXT), "--out", out, *SAMPLE])
    return out


def awq_model(args, fmt):
    """The model after AWQ, calibrated on the same text."""
    out = os.path.join(args.work, "awq-" + fmt.replace(":", "-"))
    if not os.path.exists(os.path.join(out, "config.json")):
        print(f"AWQ, {fmt} ...", file=sys.stderr)
        run([args.sub8, "quantize", args.model, out, "--weights", fmt, "--awq", "--text", text_path(args, PLAN_TEXT), *SAMPLE])
    return out


def evaluate(args, labels, text, rows="prompt", calibrated=False):
    """Reports of some rows: one pass of the reference over the text."""
    key = ",".join(labels) + ("" if rows == "prompt" else " " + rows) + (" calibrated" if calibrated else "")
    # Models in DIR by their names there: DIR may be spelled in several ways.
    digest = hashlib.sha256(key.replace("@" + args.work.rstrip("/") + "/", "@").encode()).hexdigest()[:12]
    path = os.path.join(args.work, f"{text}-{args.windows}-{digest}.json")
    if not os.path.exists(path):
        print(f"{text}: {', '.join(labels)} ...", file=sys.stderr)
        run([args.sub8, "eval", args.model, "--text", text_path(args, TEXTS[text]), "--window", "512",
             "--max-windows", str(args.windows), "--reference-activations", "f32", "--sweep", ",".join(labels), "--rows", rows,
             "--json", path] + (["--calibration", calibration(args)] if calibrated else []))
    with open(path) as file:
        report = json.load(file)["rows"]
    if "kl_interval" in report[0] and "storage_bits" in report[0]:
        return report
    os.remove(path)  # of a program before these keys
    return evaluate(args, labels, text, rows, calibrated)


def make_plan(args, budget):
    """The model planned for the storage bits of a uniform format; sensitivities are kept and serve all budgets."""
    plan, out = (os.path.join(args.work, f"planned-{budget}-{args.plan_windows}{end}") for end in (".json", ""))
    if not os.path.exists(plan):
        run([args.sub8, "plan", args.model, "--text", text_path(args, PLAN_TEXT), "--windows", str(args.plan_windows),
             "--window", "128", "--budget", f"storage-bits={budget}", "--out", plan,
             "--cache", os.path.join(args.work, f"planner-{args.plan_windows}.cache"), "--json", plan + ".report"])
    if not os.path.exists(os.path.join(out, "config.json")):
        run([args.sub8, "quantize", args.model, out, "--plan", plan])
    with open(plan) as file:
        plan_file = json.load(file)
    with open(plan + ".report") as file:
        uniform = next(row for row in json.load(file)["uniform"] if row["option"] == budget)
    if plan_file["kl_divergence"] > uniform["kl_divergence"]:
        sys.exit(f"the plan for the bits of {budget} predicts {plan_file['kl_divergence']}, uniform {uniform['kl_divergence']}")
    return out, plan_file, uniform


def planner_section(args):
    """Three budgets: a plan against the uniform format with the same bits, on held-out text."""
    rows = []
    for budget in BUDGETS:
        out, plan, uniform = make_plan(args, budget)
        cells = [budget, f"{uniform['storage_bits']:.3f}", f"{plan['cost']['storage_bits']:.3f}", f"{uniform['kl_divergence']:.4f}",
                 f"{plan['kl_divergence']:.4f}"]
        for text in TEXTS:
            base, planned = evaluate(args, [budget, "@" + out], text)
            gap = planned["kl_difference"]
            cells += [f"{base['kl_divergence']:.4f}", f"{planned['kl_divergence']:.4f}",
                      f"{gap['estimate']:+.4f} ({gap['low']:+.4f} .. {gap['high']:+.4f})"]
        rows.append(cells)
    head = ["uniform", "bits", "plan's bits", "predicted, uniform", "predicted, plan"]
    head += [f"{text} {what}" for text in TEXTS for what in ("KLD, uniform", "KLD, plan", "difference")]
    return ["## Planner", "",
            f"`sub8 plan` for the storage bits of three uniform formats ([planner.md](planner.md)): weight-only, candidates nvfp4, mxfp4, "
            f"e2m2, e3m2, e4m3 and bf16, sensitivities on {args.plan_windows} windows of 128 tokens of other prose. Predicted: the sum of the "
            f"layers' own divergences. KLD on {args.windows} held-out windows of 512 tokens; differences are plan minus uniform with 95% "
            "intervals of the paired bootstrap over windows.", "", *table(head, rows), ""]


def megabytes(args, fmt, head):
    """Size of all weights: of the original in bf16, of the others from a dry run. The baselines are never written."""
    if fmt.startswith("int"):
        return "-"
    if fmt == "original":
        return f"{2e-6 * json.loads(run([args.sub8, 'inspect', args.model, '--json']))['weights']:.1f}"
    weights = fmt.split("+")[0]
    report = json.loads(run([args.sub8, "quantize", args.model, os.path.join(args.work, "none"), "--weights", weights, "--dry-run",
                             "--json", "-"] + (["--lm-head", weights] if head else [])))
    return f"{report['bytes'] / 1e6:.1f}"


def reports(args, labels, rows="prompt", calibrated=False):
    """label -> (report on prose, report on code)."""
    out = {}
    for first in range(0, len(labels), BATCH):
        batch = labels[first:first + BATCH]
        prose, code = (evaluate(args, batch, text, rows, calibrated) for text in TEXTS)
        out |= {label: pair for label, *pair in zip(batch, prose, code)}
    return out


def scores(pair):
    cells = []
    for report in pair:
        low, high = (report["kl_interval"][bound] for bound in ("low", "high"))
        cells += [f"{report['perplexity']:.3f}", f"{report['kl_divergence']:.5f}", f"{low:.5f} .. {high:.5f}",
                  f"{100 * report['top1_agreement']:.2f}%"]
    return cells


def table(head, rows):
    return ["| " + " | ".join(cells) + " |" for cells in [head, ["---"] * len(head), *rows]]


def cpu_name():
    with open("/proc/cpuinfo") as file:
        names = [line.split(":", 1)[1].strip() for line in file if line.startswith("model name")]
    return names[0] if names else "an unnamed CPU"


def cache_rows(found):
    """weights, KV cache, queries, scores."""
    for label in CACHES:
        weights, *flags = label.split("+")
        report = found[label][0]
        yield [("bf16" if weights == "original" else weights) + (" residue" if "residue" in flags else ""), report["kv_cache_dtype"],
               report["attention"], *scores(found[label])]


def score_head():
    return [f"{text} {figure}" for text in TEXTS for figure in ("PPL", "KLD", "interval", "top-1")]


def calibrated_section(args):
    """What calibration buys without AWQ."""
    found = reports(args, CALIBRATED, calibrated=True)
    caches = reports(args, CALIBRATED_CACHES, "generated", True)
    rows = []
    for label in CALIBRATED:
        weights, *flags = label.split("+")
        report = found[label][0]
        rows.append([weights, report["mode"], "-" if report["prefill_ratio"] is None else f"{report['prefill_ratio']:g}",
                     report["alpha"] or "-", *scores(found[label])])
    cache_cells = [["bf16", caches[label][0]["kv_cache_dtype"], caches[label][0]["attention"], *scores(caches[label])]
                   for label in CALIBRATED_CACHES]
    return ["## With calibration", "",
            f"Masks, alphas and scales from 32 samples of 512 tokens of other prose ({PLAN_TEXT}), weights quantised at load. Without masks, with "
            "alphas of rows and scales of 1: the tables above.", "",
            *table(["weights", "mode", "ratio", "alpha", *score_head()], rows), "",
            "KV scales calibrated, rows count as generated:", "",
            *table(["weights", "KV cache", "queries", *score_head()], cache_cells), ""]


def awq_section(args):
    """Scales searched on activations, with and without residue."""
    rows = []
    for fmt, modes in AWQ.items():
        labels = ["@" + awq_model(args, fmt) + mode for mode in modes]
        with_awq = reports(args, labels)
        # Ratios between 0 and 1 need masks in both.
        without = reports(args, [fmt + mode for mode in modes], calibrated=True)
        for mode, label in zip(modes, labels):
            name = mode.lstrip("+").replace("residue+ratio=1", "residue, all rows").replace("residue+ratio=", "residue, ratio ") or "weight-only"
            rows.append([fmt, "no", name, *scores(without[fmt + mode])])
            rows.append([fmt, "yes", name, *scores(with_awq[label])])
    return ["## AWQ", "",
            f"`sub8 quantize --awq` ([awq.md](awq.md)) on 32 samples of 512 tokens of other prose ({PLAN_TEXT}); masks are those of the scaled "
            "model.", "", *table(["format", "AWQ", "mode", *score_head()], rows), ""]


def page(args):
    rows = weight_rows(args)
    found = reports(args, [label for label, _, _ in rows] + MODES)
    weights = []
    for label, fmt, head in rows:
        name = "bf16" if fmt == "original" else fmt
        bits = 16 if fmt == "original" else found[label][0]["storage_bits"]
        weights.append([name, "yes" if head else "no", megabytes(args, fmt, head), f"{bits:.3f}", *scores(found[label])])
    modes = [[*label.split("+", 1), *scores(found[label])] for label in MODES]
    modes = [[cells[0], cells[1].replace("residue+ratio=1", "residue, all rows"), *cells[2:]] for cells in modes]
    return "\n".join([
        "# What each format costs", "",
        f"`{os.path.basename(args.model)}`, {args.windows} windows of 512 tokens of held-out prose (Debian handbook) and code (Python's "
        "standard library), weights quantised by round to nearest with amax scales. KLD (nats per token) and top-1 agreement are "
        "against the original in float32; intervals are 95% bounds of the bootstrap over windows. MB is the size of all weights as written, storage bits "
        "are codes and scales per quantised weight; `int4` (FP32 scale per channel) and `int4:g128` (FP16 scale per group) are "
        "baselines, quantised and dequantised in memory, never written. Definitions: [evaluation.md](evaluation.md). "
        f"Regenerate: `./dev quality`. This page: {datetime.date.today()}, {cpu_name()}.", "",
        "## Weight-only, bf16 activations", "", *table(["format", "head", "MB", "storage bits", *score_head()], weights), "",
        "## Activations in 4 and 8 bits", "",
        "Weights as above without the head; what the modes do: [modes.md](modes.md).", "",
        *table(["weights", "mode", *score_head()], modes), "",
        "## KV caches", "",
        "Rows count as generated (`--rows generated`): queries as [modes.md](modes.md) says, KV scales 1.", "",
        *table(["weights", "KV cache", "queries", *score_head()], list(cache_rows(reports(args, CACHES, "generated")))), "",
        *(line for name in args.sections.split(",") if name for line in SECTIONS[name](args)),
        "## Reading", "",
        "A model of 135M parameters loses more to quantisation than the papers' 7B to 70B, and its output head most of all, since it "
        "is the embedding table as well: one scale per channel is coarse for it. Finer group scales help (`e2m1:g32` against `e3m1`), "
        "three mantissa bits more than three exponent bits (`e2m3` against `e3m2`), four-over-six a little. Coarse integers are worst "
        "at equal bits. Four-bit activations cost about as much again as four-bit weights; their residue takes nearly all of that "
        "back.", ""])


# Behind the tables of formats, modes and caches, in the page's order.
SECTIONS = {"calibrated": calibrated_section, "awq": awq_section, "planner": planner_section}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--sub8", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--work", required=True)
    parser.add_argument("--out")
    parser.add_argument("--windows", type=int, default=20)
    parser.add_argument("--plan-windows", type=int, default=2)
    parser.add_argument("--only", choices=list(SECTIONS), help="print this section alone")
    parser.add_argument("--sections", default=",".join(SECTIONS), help="what the page has behind formats, modes and caches")
    parser.add_argument("--formats", default=",".join(FORMATS))
    args = parser.parse_args()
    for name in filter(None, args.sections.split(",")):
        if name not in SECTIONS:
            parser.error(f"--sections: unknown '{name}'; known are {', '.join(SECTIONS)}")
    os.makedirs(args.work, exist_ok=True)
    here = os.path.dirname(os.path.abspath(__file__))
    if not all(os.path.exists(os.path.join(args.work, "text", name)) for name in TEXTS.values()):
        run([sys.executable, os.path.join(here, "eval_text.py"), "--out", os.path.join(args.work, "text")])
    text = "\n".join(SECTIONS[args.only](args)) if args.only else page(args)
    if args.out:
        with open(args.out, "w") as file:
            file.write(text)
    print(text)


if __name__ == "__main__":
    main()
