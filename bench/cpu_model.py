"""Prefill and decode of the demo model on this CPU, beside llama.cpp in the same run where its tools are given.

usage: cpu_model.py --sub8 BIN --model DEMO.gguf [--llama DIR_WITH_llama-bench_AND_llama-quantize]
                    [--formats e3m2,nvfp4,...] [--peer-types Q6_K,Q8_0,...] [--rounds N] [--threads N] [--cpu-time]
                    [--out STEM]

Rounds alternate between the programs, so that a busy machine is busy for both; medians of the rounds are compared. Both
quantise the same GGUF first, head included: `sub8 quantize --lm-head`, `llama-quantize --allow-requantize --pure`. --out
writes STEM.json and STEM.md. --cpu-time is for machines that others use too: it measures seconds of CPU time instead of the
clock's, on one thread; differences of runs that differ in length alone, so that loading drops out.
"""
import argparse
import json
import os
import platform
import re
import resource
import shlex
import statistics
import subprocess
import sys
import tempfile
import time

PROMPT = 512  # tokens of the prefill figure, and before the second decode figure
ANSWER = 64  # tokens of the decode figures
FIGURES = ("prefill", "decode", "decode_after")


def run(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{shlex.join(command)}\nfailed with status {done.returncode}:\n{done.stderr[-2000:]}")
    return done.stdout


def cpu_seconds(command):
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    run(command)
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before


def cpu_time_figures(seconds):
    """seconds(prompt, answer, repeat) of CPU time -> the figures. A run prefills `prompt` and decodes `answer`, `repeat` times."""
    decode = {prompt: (seconds(prompt, 3 * ANSWER, 1) - seconds(prompt, ANSWER, 1)) / (2 * ANSWER) for prompt in (0, PROMPT)}
    prefill = (seconds(PROMPT, 0, 3) - seconds(PROMPT, 0, 1)) / 2
    return {"prefill": PROMPT / prefill, "decode": 1 / decode[0], "decode_after": 1 / decode[PROMPT]}


class Sub8:
    def __init__(self, args, fmt, folder):
        self.name, self.args, self.model = "sub8 " + fmt, args, args.model
        if fmt != "bf16":  # what a GGUF decodes to
            self.model = os.path.join(folder, fmt.replace(":", "-"))
            run([args.sub8, "quantize", args.model, self.model, "--weights", fmt, "--lm-head", fmt])

    def command(self, prompt, answer, repeat):
        return [self.args.sub8, "bench", "model", self.model, "--threads", str(self.args.threads), "--prompt-tokens", str(prompt),
                "--answer-tokens", str(answer), "--repeat", str(repeat), "--json", "-"]

    def bench(self, prompt, repeat):
        report = json.loads(run(self.command(prompt, ANSWER, repeat)).splitlines()[-1])
        self.machine = report["machine"]
        return report

    def cpu_seconds(self, prompt, answer, repeat):
        # A round of warming up comes before `repeat` ones, and the shortest run is of 1 + 2 tokens: half of an even number of rounds.
        return cpu_seconds(self.command(max(prompt, 1), max(answer, 2), 2 * repeat - 1)) / 2

    def round(self):
        empty = self.bench(1, 3)
        what = {"bytes": empty["weight_bytes"], "bandwidth": empty["read_bandwidth_bytes_per_s"]}
        if self.args.cpu_time:
            return {**what, **cpu_time_figures(self.cpu_seconds)}
        after = self.bench(PROMPT, 2)
        return {**what, "prefill": after["prefill_tokens_per_s"]["median"], "decode": empty["decode_tokens_per_s"]["median"],
                "decode_after": after["decode_tokens_per_s"]["median"]}


class LlamaCpp:
    def __init__(self, args, kind, folder):
        self.name, self.args, self.model = "llama.cpp " + kind, args, os.path.join(folder, kind + ".gguf")
        run([os.path.join(args.llama, "llama-quantize"), "--allow-requantize", "--pure", args.model, self.model, kind])

    def command(self, prompt, answer, repeat, depth=0):
        return [os.path.join(self.args.llama, "llama-bench"), "-m", self.model, "-t", str(self.args.threads), "-o", "json", "-p", str(prompt),
                "-n", str(answer), "-d", str(depth), "-r", str(repeat)]

    def bench(self, *what):
        (report,) = json.loads(run(self.command(*what)))
        self.build = self.args.llama_version or f"{report['build_number']} ({report['build_commit']})"
        return report["avg_ts"]

    def cpu_seconds(self, prompt, answer, repeat):
        return cpu_seconds(self.command(0, answer, repeat, prompt) if answer else self.command(prompt, 0, repeat))

    def round(self):
        what = {"bytes": os.path.getsize(self.model)}
        if self.args.cpu_time:
            self.bench(0, 1, 1)
            return {**what, **cpu_time_figures(self.cpu_seconds)}
        return {**what, "prefill": self.bench(PROMPT, 0, 2), "decode": self.bench(0, ANSWER, 2), "decode_after": self.bench(0, ANSWER, 2, PROMPT)}


def measure(args):
    with tempfile.TemporaryDirectory() as folder:
        programs = [Sub8(args, fmt, folder) for fmt in args.formats.split(",")]
        programs += [LlamaCpp(args, kind, folder) for kind in (args.peer_types.split(",") if args.llama else [])]
        rounds = {program.name: [] for program in programs}
        for number in range(args.rounds):
            for program in programs:
                print(f"round {number + 1} of {args.rounds}: {program.name}", file=sys.stderr, flush=True)
                rounds[program.name].append(program.round())
    peers = [program.build for program in programs if isinstance(program, LlamaCpp)]
    return rounds, programs[0].machine, peers[0] if peers else None


def summarise(rounds):
    bandwidth = max(r["bandwidth"] for each in rounds.values() for r in each if "bandwidth" in r)
    table = {}
    for name, each in rounds.items():
        row = {figure: statistics.median(r[figure] for r in each) for figure in FIGURES}
        row["best"] = {figure: max(r[figure] for r in each) for figure in FIGURES}
        row["bytes"] = each[0]["bytes"]
        row["bytes_per_s"] = row["decode"] * row["bytes"]
        row["read_share"] = row["bytes_per_s"] / bandwidth
        row["rounds"] = each
        table[name] = row
    return bandwidth, table


def markdown(report):
    machine = report["machine"]
    peer = f" llama.cpp build {report['llama_cpp']}." if report["llama_cpp"] else ""
    lines = [
        f"# The demo model on {machine['cpu']}, {machine['threads']} thread{'s' if machine['threads'] > 1 else ''}",
        "",
        f"{report['date']}, path {machine['path']}, sub8 {report['sub8']}.{peer} Command: `{report['command']}`. Load average when it began: "
        f"{report['load_average']:.1f}. Best read bandwidth measured in the run: {report['read_bandwidth_bytes_per_s'] / 1e9:.1f} GB/s.",
        "",
        f"Tokens {'per second of CPU time' if report['cpu_time'] else 'per second'}, median of {report['rounds']} alternating rounds (best round in brackets): prefill of {PROMPT} tokens, decode of {ANSWER} "
        f"from an empty context and after {PROMPT} tokens. GB/s = weights read by the first decode, and their share of the bandwidth.",
        "",
        f"| program | weights MB | prefill {PROMPT} | decode {ANSWER} | decode {ANSWER} after {PROMPT} | GB/s | of bandwidth |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, row in report["results"].items():
        cells = " | ".join(f"{row[f]:.0f} ({row['best'][f]:.0f})" for f in FIGURES)
        lines.append(f"| {name} | {row['bytes'] / 1e6:.1f} | {cells} | {row['bytes_per_s'] / 1e9:.1f} | {100 * row['read_share']:.0f}% |")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--sub8", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--llama")
    parser.add_argument("--llama-version", help="where llama-bench was built without knowing it")
    parser.add_argument("--formats", default="e3m2,e2m1,nvfp4,e4m3,bf16")
    parser.add_argument("--peer-types", default="Q6_K,Q4_0,Q8_0,BF16")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--cpu-time", action="store_true")
    parser.add_argument("--out")
    args = parser.parse_args()
    if args.cpu_time:
        args.threads = 1
    load = os.getloadavg()[0]
    rounds, machine, llama_cpp = measure(args)
    bandwidth, table = summarise(rounds)
    version = run([args.sub8, "--version"]).strip().removeprefix("sub8 ")
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True).stdout.strip()
    # The command as a reader would type it, without this machine's paths.
    command = "LLAMA_CPP=DIR " * bool(args.llama) + "bench/run.sh"
    command += " --cpu-time" * args.cpu_time
    for option in ("formats", "peer_types", "rounds", *(() if args.cpu_time else ("threads",))):
        if getattr(args, option) != parser.get_default(option):
            command += f" --{option.replace('_', '-')} {getattr(args, option)}"
    report = {"schema_version": 2, "date": time.strftime("%Y-%m-%d"), "command": command, "machine": machine, "kernel": platform.release(),
              "load_average": load, "sub8": f"{version} ({commit})" if commit else version, "llama_cpp": llama_cpp, "rounds": args.rounds, "cpu_time": args.cpu_time,
              "prompt_tokens": PROMPT, "answer_tokens": ANSWER, "read_bandwidth_bytes_per_s": bandwidth, "results": table}
    text = markdown(report)
    print(re.sub(r"^.*\n\n", "", text, count=1), end="")
    if args.out:
        with open(args.out + ".json", "w") as file:
            json.dump(report, file, indent=1)
            file.write("\n")
        with open(args.out + ".md", "w") as file:
            file.write(text)


if __name__ == "__main__":
    main()
