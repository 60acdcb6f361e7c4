"""Prefill and decode of the demo model on this CPU, beside llama.cpp in the same run where its tools are given.

usage: cpu_model.py --sub8 BIN --model DEMO.gguf [--llama DIR_WITH_llama-bench_AND_llama-quantize]
                    [--formats e3m2,nvfp4,...] [--peer-types Q6_K,Q8_0,Q4_0] [--rounds N] [--threads N] [--out FILE.json]

Rounds alternate between the programs, so that a busy machine is busy for both; the median of the rounds is reported. sub8
quantises the weights and the head while loading; llama.cpp quantises the same GGUF with --allow-requantize --pure.
"""
import argparse
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time


def run(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\nfailed with status {done.returncode}:\n{done.stderr[-2000:]}")
    return done.stdout


def sub8_round(args, fmt):
    report = json.loads(run([args.sub8, "bench", "model", args.model, "--weights", fmt, "--lm-head", fmt, "--threads",
                             str(args.threads), "--prompt-tokens", "512", "--answer-tokens", "64", "--repeat", "1", "--json", "-"])
                        .splitlines()[-1])
    return {"prefill": report["prefill_tokens_per_s"]["median"], "decode": report["decode_tokens_per_s"]["median"],
            "bytes": report["weight_bytes"], "bandwidth": report["read_bandwidth_bytes_per_s"]}


def llama_round(args, path):
    rows = json.loads(run([os.path.join(args.llama, "llama-bench"), "-m", path, "-p", "512", "-n", "64", "-r", "1", "-t",
                           str(args.threads), "-o", "json"]))
    out = {"bytes": os.path.getsize(path)}
    for row in rows:
        out["prefill" if row["n_prompt"] > 0 else "decode"] = row["avg_ts"]
    return out


def median(rounds, key):
    return statistics.median(r[key] for r in rounds)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--sub8", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--llama")
    parser.add_argument("--formats", default="e3m2,e2m2,nvfp4,mxfp4,e4m3,bf16")
    parser.add_argument("--peer-types", default="Q6_K,Q8_0,Q4_0")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--out")
    args = parser.parse_args()
    cpu = re.search(r"model name\s*: (.*)", open("/proc/cpuinfo").read()).group(1)
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        peers = {}
        for kind in args.peer_types.split(",") if args.llama else []:
            peers[kind] = os.path.join(folder, kind + ".gguf")
            run([os.path.join(args.llama, "llama-quantize"), "--allow-requantize", args.model, peers[kind], kind])
        jobs = [("sub8 " + f, lambda f=f: sub8_round(args, f)) for f in args.formats.split(",")]
        jobs += [("llama.cpp " + k, lambda p=p: llama_round(args, p)) for k, p in peers.items()]
        for _ in range(args.rounds):
            for name, job in jobs:
                results.setdefault(name, []).append(job())
    table = {}
    print(f"{cpu}, {args.threads} threads, median of {args.rounds} alternating rounds, tokens/s")
    print(f"{'':<18} {'weights MB':>10} {'prefill 512':>12} {'decode 64':>10} {'GB/s':>6} {'of read bw':>10}")
    for name, rounds in results.items():
        row = {k: median(rounds, k) for k in ("prefill", "decode", "bytes")}
        row["rounds"] = rounds
        table[name] = row
        rate = row["decode"] * row["bytes"]
        share = ""
        if "bandwidth" in rounds[0]:
            row["read_bandwidth"] = median(rounds, "bandwidth")
            share = f"{100 * rate / row['read_bandwidth']:.0f}%"
        print(f"{name:<18} {row['bytes'] / 1e6:>10.1f} {row['prefill']:>12.1f} {row['decode']:>10.1f} {rate / 1e9:>6.1f} {share:>10}")
    if args.out:
        with open(args.out, "w") as file:
            json.dump({"schema_version": 1, "cpu": cpu, "threads": args.threads, "date": time.strftime("%Y-%m-%d"),
                       "kernel": platform.release(), "command": " ".join(sys.argv), "results": table}, file, indent=1)


if __name__ == "__main__":
    main()
