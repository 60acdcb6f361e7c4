"""`sub8 serve` on this CPU: beside the same work in process, and beside llama.cpp's server where it is given, in one run.

usage: server_cpu.py --sub8 BIN --model DEMO.gguf [--llama DIR_WITH_llama-server_AND_llama-quantize] [--weights e3m2]
                     [--peer-type Q8_0] [--streams 1,8,32] [--rounds N] [--repeat N] [--threads N] [--out STEM] [--serve-options "..."]

All start their streams at once with prompts and answers of fixed lengths and stop when the last answer is complete, after one such
round that is not counted. Both servers
run all the time and idle when it is not their turn; rounds alternate between the programs, and medians of the rounds' ratios are
reported beside medians of the rates. Both quantise the same GGUF first, head included. The load is `sub8 bench serve` for both.
--out writes STEM.json and STEM.md.
"""
import argparse
import json
import os
import platform
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

PROMPT, ANSWER = 128, 64
PREFIX = 1000


def run(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{shlex.join(command)}\nfailed with status {done.returncode}:\n{done.stderr[-2000:]}")
    return done.stdout


class Process:
    """A server; `url` once it answers."""

    def __init__(self, command, port, log):
        self.url = f"http://127.0.0.1:{port}"
        self.process = subprocess.Popen(command, stdout=log, stderr=log)
        deadline = time.monotonic() + 120
        while True:
            try:
                urllib.request.urlopen(self.url + "/health", timeout=1).read()
                return
            except OSError:
                if self.process.poll() is not None or time.monotonic() > deadline:
                    log.flush()
                    sys.exit(f"{shlex.join(command)} did not start; see {log.name}")
                time.sleep(0.1)

    def cpu_seconds(self):
        with open(f"/proc/{self.process.pid}/stat", encoding="ascii") as file:
            fields = file.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def stop(self):
        self.process.terminate()
        self.process.wait()


def load(args, url, streams, prompt=PROMPT, answer=ANSWER, requests=None, extra=()):
    command = [args.sub8, "bench", "serve", "--url", url, "--requests", str(requests or streams), "--concurrency", str(streams), "--warmup", str(streams),
               "--input-tokens", str(prompt), "--output-tokens", str(answer), "--seed", str(args.next_seed), "--json", "-", *extra]
    args.next_seed += 1
    report = json.loads(run(command))
    if report["failed"] or report["wrong_length"]:
        sys.exit(f"{shlex.join(command)}\nhad faults: {json.dumps(report)}")
    return report


def in_process(args, model, streams):
    command = [args.sub8, "bench", "engine", model, "--threads", str(args.threads), "--streams", str(streams), "--prompt-tokens", str(PROMPT),
               "--answer-tokens", str(ANSWER), "--prefix-tokens", "32", "--repeat", str(args.repeat), "--json", "-", *args.engine_options]
    return json.loads(run(command))["results"][0]["tokens_per_s"]["median"]


def first_token(args, url, prefix):
    """Seconds to the first token of prompts that share `prefix` tokens, which the cache holds by then."""
    extra = ["--prefix-tokens", str(prefix)]
    return load(args, url, 1, PREFIX + 16, 1, 5, extra)["ttft_s"]["p50"]


def measure(args, model, ours, peer):
    rounds = []
    for number in range(args.rounds):
        for streams in args.streams:
            row = {"streams": streams}
            turns = ["engine", "server"] + (["peer"] if peer else [])
            for turn in turns if number % 2 == 0 else reversed(turns):
                if turn == "engine":
                    row["engine"] = in_process(args, model, streams)
                    continue
                server = ours if turn == "server" else peer
                before = server.cpu_seconds()
                report = load(args, server.url, streams, requests=streams * args.repeat)
                row[turn] = report["output_tokens_per_s"]
                tokens = report["output_tokens"] + streams * ANSWER  # with the warm-up
                row[turn + "_cpu_ms_per_token"] = 1e3 * (server.cpu_seconds() - before) / tokens
                for name in ("ttft_s", "itl_s"):
                    row[f"{turn}_{name}"] = {k: report[name][k] for k in ("p50", "p99")}
            rounds.append(row)
            print({k: round(v, 2) if isinstance(v, float) else v for k, v in row.items() if not isinstance(v, dict)}, file=sys.stderr)
    return rounds


def summarize(rounds, streams):
    rows = [r for r in rounds if r["streams"] == streams]

    def median(f):
        return statistics.median(f(r) for r in rows)

    out = {"streams": streams, "engine": median(lambda r: r["engine"]), "server": median(lambda r: r["server"]),
           "of_engine": median(lambda r: r["server"] / r["engine"]),
           "overhead_us_per_token": median(lambda r: 1e6 / r["server"] - 1e6 / r["engine"]),
           "itl_p50_ms": 1e3 * median(lambda r: r["server_itl_s"]["p50"]), "itl_p99_ms": 1e3 * median(lambda r: r["server_itl_s"]["p99"])}
    if "peer" in rows[0]:
        out |= {"peer": median(lambda r: r["peer"]), "of_peer": median(lambda r: r["server"] / r["peer"]),
                "cpu_of_peer": median(lambda r: r["peer_cpu_ms_per_token"] / r["server_cpu_ms_per_token"]),
                "peer_itl_p50_ms": 1e3 * median(lambda r: r["peer_itl_s"]["p50"]),
                "peer_itl_p99_ms": 1e3 * median(lambda r: r["peer_itl_s"]["p99"])}
    return out


def as_markdown(report):
    peer = report["peer"]
    lines = [f"{report['cpu']}, {report['threads']} threads, {report['date']}. Prompts of {PROMPT} tokens, answers of {ANSWER}, all streams at "
             f"once; output tokens/s over the whole time, medians of {report['rounds']} alternating rounds.", "",
             f"`{report['command']}`", "",
             "| streams | in process | server | of in process | overhead us/token | ITL p50 / p99 ms |" +
             (f" {peer} | sub8 of it | by CPU time | its ITL p50 / p99 ms |" if peer else ""),
             "| --- | --- | --- | --- | --- | --- |" + (" --- | --- | --- | --- |" if peer else "")]
    for r in report["summary"]:
        line = (f"| {r['streams']} | {r['engine']:.1f} | {r['server']:.1f} | {100 * r['of_engine']:.1f}% | {r['overhead_us_per_token']:.0f} | "
                f"{r['itl_p50_ms']:.1f} / {r['itl_p99_ms']:.1f} |")
        if peer:
            line += f" {r['peer']:.1f} | {r['of_peer']:.2f}x | {r['cpu_of_peer']:.2f}x | {r['peer_itl_p50_ms']:.1f} / {r['peer_itl_p99_ms']:.1f} |"
        lines.append(line)
    cold, cached = report["first_token_s"], report["first_token_cached_s"]
    lines += ["", f"First token of a prompt of {PREFIX + 16} tokens: {1e3 * cold:.1f} ms, with the first {PREFIX} in the prefix cache "
              f"{1e3 * cached:.1f} ms ({100 * cached / cold:.1f}%)."]
    return "\n".join(lines) + "\n"


def cpu_name():
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        found = re.search(r"model name\s*:\s*(.*)", file.read())
    return found.group(1) if found else platform.processor()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sub8", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--llama")
    parser.add_argument("--weights", default="e3m2")
    parser.add_argument("--peer-type", default="Q8_0")
    parser.add_argument("--streams", default="1,8,32")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repeat", type=int, default=1, help="times that each stream is run in a round")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--port", type=int, default=18500)
    parser.add_argument("--serve-options", default="", help="further options of sub8 serve")
    parser.add_argument("--engine-options", default="", help="further options of sub8 bench engine")
    parser.add_argument("--work", help="keep the quantised models here and reuse them")
    parser.add_argument("--out")
    args = parser.parse_args()
    args.streams = [int(s) for s in args.streams.split(",")]
    args.engine_options = shlex.split(args.engine_options)
    args.next_seed = 1
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.work or temporary
        os.makedirs(folder, exist_ok=True)
        model, peer_model = os.path.join(folder, args.weights), os.path.join(folder, args.peer_type + ".gguf")
        if not os.path.exists(model):
            run([args.sub8, "quantize", args.model, model, "--weights", args.weights, "--lm-head", args.weights])
        with open(os.path.join(temporary, "log"), "w", encoding="utf-8") as log:
            most = max(args.streams)
            ours = Process([args.sub8, "serve", model, "--port", str(args.port), "--threads", str(args.threads), "--max-sequences", str(most),
                            "--max-model-len", "2048", "--log-level", "error", *shlex.split(args.serve_options)], args.port, log)
            peer = None
            if args.llama:
                if not os.path.exists(peer_model):
                    run([os.path.join(args.llama, "llama-quantize"), "--allow-requantize", "--pure", args.model, peer_model, args.peer_type,
                         str(args.threads)])
                peer = Process([os.path.join(args.llama, "llama-server"), "-m", peer_model, "--port", str(args.port + 1), "-t", str(args.threads),
                                "-tb", str(args.threads), "-np", str(most), "-c", str(256 * most), "--log-disable"], args.port + 1, log)
            servers = [s for s in (ours, peer) if s]
            try:
                for server in servers:
                    load(args, server.url, most if most < 8 else 8)  # warms caches and page tables
                rounds = measure(args, model, ours, peer)
                cold, cached = first_token(args, ours.url, 0), first_token(args, ours.url, PREFIX)
            finally:
                for server in servers:
                    server.stop()
    report = {"schema_version": 1, "cpu": cpu_name(), "threads": args.threads, "date": time.strftime("%Y-%m-%d"),
              "command": "bench/server_cpu.py " + shlex.join(a for a in sys.argv[1:]), "peer": f"llama.cpp {args.peer_type}" if peer else None,
              "rounds": args.rounds, "weights": args.weights, "summary": [summarize(rounds, s) for s in args.streams], "all": rounds,
              "first_token_s": cold, "first_token_cached_s": cached}
    text = as_markdown(report)
    print(text, end="")
    if args.out:
        with open(args.out + ".json", "w", encoding="utf-8") as file:
            json.dump(report, file, indent=1)
            file.write("\n")
        with open(args.out + ".md", "w", encoding="utf-8") as file:
            file.write(text)


if __name__ == "__main__":
    main()
