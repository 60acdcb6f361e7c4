"""A stream without a grammar, alone and beside clients whose expressions take for ever: what these cost it.

usage: hostile_grammars.py SUB8 MODEL XGRAMMAR_DIR [--rounds N] [--seconds S]

In each round the stream runs S seconds alone, then S seconds beside each kind of hostile client (8 of them), in one server.
Prints tokens/s as medians over rounds, the ratio to alone of the same round, and the longest gap between two tokens.
"""
import argparse
import http.client
import json
import pathlib
import statistics
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests/e2e"))
from serving import Server

CLIENTS = 8
HOSTILE = {
    "compiles for ever": lambda i: "a?" * (3000 + i),
    "next token takes for ever": lambda i: "(a?){1,40}" * (400 + i),
}


def stream(address, seconds):
    """Tokens per second of one endless answer, and the longest gap."""
    connection = http.client.HTTPConnection(*address, timeout=60)
    body = {"prompt": "Once upon a time", "max_tokens": 4000, "ignore_eos": True, "stream": True, "seed": 1}
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    reply = connection.getresponse()
    times = []
    while not times or times[-1] - times[0] < seconds:
        line = reply.readline()
        if line.startswith(b"data: {"):
            times.append(time.monotonic())
    connection.close()
    gaps = [b - a for a, b in zip(times, times[1:])]
    return len(gaps) / (times[-1] - times[0]), max(gaps)


def attack(address, make, index, stop):
    while not stop.is_set():
        try:
            connection = http.client.HTTPConnection(*address, timeout=60)
            body = {"prompt": "a", "max_tokens": 8, "min_tokens": 8, "regex": make(index)}
            connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
            connection.getresponse().read()
            connection.close()
        except OSError:
            pass


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sub8")
    parser.add_argument("model")
    parser.add_argument("xgrammar")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=8)
    args = parser.parse_args()
    rates = {name: [] for name in ["alone", *HOSTILE]}
    longest = dict.fromkeys(rates, 0.0)
    with Server(args.sub8, args.model, ["--xgrammar", args.xgrammar, "--log-level", "off"]) as server:
        host, port = server.url.removeprefix("http://").split(":")
        address = (host, int(port))
        stream(address, 2)
        for _ in range(args.rounds):
            for name in rates:
                stop, attackers = threading.Event(), []
                if name in HOSTILE:
                    attackers = [threading.Thread(target=attack, args=(address, HOSTILE[name], i, stop)) for i in range(CLIENTS)]
                for attacker in attackers:
                    attacker.start()
                if attackers:
                    time.sleep(1)
                rate, gap = stream(address, args.seconds)
                rates[name].append(rate)
                longest[name] = max(longest[name], gap)
                stop.set()
                for attacker in attackers:
                    attacker.join()
    for name, values in rates.items():
        ratios = [a / b for a, b in zip(values, rates["alone"])]
        print(f"{name}: {statistics.median(values):.1f} tokens/s, {statistics.median(ratios):.2f} of alone, "
              f"longest gap {longest[name] * 1000:.0f} ms")


if __name__ == "__main__":
    main()
