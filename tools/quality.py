"""What each weight format costs in accuracy: evaluates a model in every format against its original and writes a page.

usage: quality.py --sub8 BIN --model DEMO.gguf --work DIR [--out docs/quality.md] [--windows N] [--formats a,b,...]

Every `sub8 eval --sweep` keeps its report in DIR, so an interrupted run goes on where it stopped. The reference is the original
with exact float32 weights and activations; the rows run weight-only with bf16 activations.
"""
import argparse
import hashlib
import json
import os
import subprocess
import sys

FORMATS = ["original", "e4m3", "e3m3", "e3m2", "e2m3", "e2m2", "e3m1", "e2m1:g32", "nvfp4", "nvfp4+4/6", "mxfp4", "mxfp6_e3m2",
           "int4", "int4:g128"]
TEXTS = {"prose": "prose-heldout.txt", "code": "code-heldout.txt"}
BATCH = 9  # rows that share one pass of the reference: 135M parameters take about 0.3 GB each


def run(command):
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(f"failed with status {done.returncode}: {' '.join(command)}")
    return done.stdout


def variants(args):
    """(format, head quantised too) of every row, in the page's order."""
    return [(fmt, head) for fmt in args.formats.split(",") for head in ([False] if fmt == "original" else [False, True])]


def evaluate(args, batch, text):
    """Reports of the batch's rows: one pass of the reference over the text."""
    labels = [fmt + ("+head" if head else "") for fmt, head in batch]
    digest = hashlib.sha256(",".join(labels).encode()).hexdigest()[:12]
    path = os.path.join(args.work, f"{text}-{args.windows}-{digest}.json")
    if not os.path.exists(path):
        print(f"{text}: {', '.join(labels)} ...", file=sys.stderr)
        run([args.sub8, "eval", args.model, "--text", os.path.join(args.work, "text", TEXTS[text]), "--window", "512",
             "--max-windows", str(args.windows), "--reference-activations", "f32", "--sweep", ",".join(labels), "--json", path])
    with open(path) as file:
        return json.load(file)["rows"]


def sizes(args, fmt, head):
    """Bytes of all weights and storage bits of the quantised ones, from a dry run."""
    if fmt == "original" or fmt.startswith("int"):
        return None
    weights = fmt.split("+")[0]
    report = json.loads(run([args.sub8, "quantize", args.model, os.path.join(args.work, "none"), "--weights", weights, "--dry-run",
                             "--json", "-"] + (["--lm-head", weights] if head else [])))
    return report["bytes"] / 1e6, report["storage_bits"]


def row(args, fmt, head, prose, code):
    size = sizes(args, fmt, head)
    cells = ["bf16" if fmt == "original" else fmt, "yes" if head else "no", f"{size[0]:.1f}" if size else "-", f"{size[1]:.3f}" if size else "-"]
    for report in (prose, code):
        cells += [f"{report['perplexity']:.3f}", f"{report['kl_divergence']:.5f} ± {report['kl_standard_error']:.5f}",
                  f"{100 * report['top1_agreement']:.2f}%"]
    return "| " + " | ".join(cells) + " |"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--sub8", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--work", required=True)
    parser.add_argument("--out")
    parser.add_argument("--windows", type=int, default=20)
    parser.add_argument("--formats", default=",".join(FORMATS))
    args = parser.parse_args()
    os.makedirs(args.work, exist_ok=True)
    here = os.path.dirname(os.path.abspath(__file__))
    run([sys.executable, os.path.join(here, "eval_text.py"), "--out", os.path.join(args.work, "text")])
    lines = ["# What each format costs", "",
             f"`{os.path.basename(args.model)}`, {args.windows} windows of 512 tokens of held-out prose and code, weights quantised "
             "(round to nearest, amax scales), bf16 activations. KLD and top-1 agreement are against the original in float32. "
             "Regenerate: `./dev quality`.", "",
             "| format | head | MB | storage bits | prose PPL | prose KLD | prose top-1 | code PPL | code KLD | code top-1 |",
             "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"]
    rows = variants(args)
    for first in range(0, len(rows), BATCH):
        batch = rows[first:first + BATCH]
        reports = [evaluate(args, batch, text) for text in TEXTS]
        lines += [row(args, fmt, head, prose, code) for (fmt, head), prose, code in zip(batch, *reports)]
    text = "\n".join(lines) + "\n"
    if args.out:
        with open(args.out, "w") as file:
            file.write(text)
    print(text)


if __name__ == "__main__":
    main()
