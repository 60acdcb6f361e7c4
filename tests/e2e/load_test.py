"""Load on loopback: many streams at once, slow readers, readers that vanish, thousands of short requests, SIGTERM under load.

usage: load_test.py SUB8 MODEL [--streams 256] [--short 10000] [--options "--max-sequences 32"] [--json FILE]

Fails when a request gets an error that it did not deserve, when memory or KV pages stay taken, or when the drain is not clean.
Prints latencies between tokens; they are the machine's as much as the server's.
"""
import argparse
import asyncio
import json
import random
import re
import shlex
import signal
import sys
import time

from serving import Server

SLOW_SHARE, VANISH_SHARE = 0.1, 0.1
MAX_GROWTH = 0.01  # of resident memory, after warm-up
GROWTH_SLACK = 2e6  # bytes; the model of the test is so small that its share would be less than one arena of the allocator


class Client:
    def __init__(self, server):
        self.host, port = re.match(r"http://([^:]+):(\d+)", server.url).groups()
        self.port = int(port)
        self.faults = []
        self.gaps = []
        self.first = []
        self.tokens = 0

    async def open(self, body):
        reader, writer = await asyncio.open_connection(self.host, self.port, limit=1 << 20)
        data = json.dumps(body).encode()
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: load\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(data) + data)
        await writer.drain()
        status = int((await reader.readline()).split()[1])
        while (await reader.readline()).strip():
            pass
        return reader, writer, status

    async def stream(self, prompt, tokens, kind):
        """kind: normal, slow (reads with pauses) or vanish (closes in the middle)."""
        start = last = time.perf_counter()
        seen, done = 0, False
        try:
            reader, writer, status = await self.open(
                {"prompt": prompt, "max_tokens": tokens, "ignore_eos": True, "stream": True, "seed": 1})
            if status != 200:
                self.faults.append(f"{kind}: status {status}")
                writer.close()
                return
            stop_at = random.randint(1, tokens) if kind == "vanish" else None
            while line := await reader.readline():
                if line.startswith(b"data: [DONE]"):
                    done = True
                elif line.startswith(b'data: {"error'):
                    self.faults.append(f"{kind}: {line[:200]}")
                elif line.startswith(b"data: "):
                    now = time.perf_counter()
                    seen += 1
                    if kind == "normal":
                        (self.gaps if seen > 1 else self.first).append(now - (last if seen > 1 else start))
                    last = now
                    if seen == stop_at:
                        writer.transport.abort()
                        return
                    if kind == "slow" and seen % 8 == 0:
                        await asyncio.sleep(0.02)
            writer.close()
        except (OSError, asyncio.IncompleteReadError) as error:
            self.faults.append(f"{kind}: {error!r}")
            return
        self.tokens += seen
        if not done or seen != tokens:
            self.faults.append(f"{kind}: {seen} of {tokens} tokens, end {'seen' if done else 'missing'}")

    async def short(self, count, at_once):
        """Requests of one token, some of them streams, some abandoned at once."""
        left = iter(range(count))

        async def work():
            for i in left:
                try:
                    reader, writer, status = await self.open({"prompt": "x" * (i % 20 + 1), "max_tokens": 1, "stream": i % 3 == 0})
                    if status != 200:
                        self.faults.append(f"short: status {status}")
                    elif i % 20 == 19:
                        writer.transport.abort()
                        continue
                    else:
                        await reader.read()
                    writer.close()
                except OSError as error:
                    self.faults.append(f"short: {error!r}")

        await asyncio.gather(*(work() for _ in range(at_once)))


def resident_bytes(pid):
    with open(f"/proc/{pid}/status", encoding="ascii") as file:
        fields = dict(line.split(":", 1) for line in file)
    return sum(int(fields[name].split()[0]) for name in ("RssAnon", "VmSwap")) * 1024


def percentile(values, share):
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] if values else 0.0


async def keep_reading(server):
    while True:
        server.drain_output()
        await asyncio.sleep(0.05)


async def wait_idle(server, pages, seconds=20):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        used = await asyncio.to_thread(server.metric, "sub8:kv_pages_used")
        running = await asyncio.to_thread(server.metric, "vllm:num_requests_running")
        waiting = await asyncio.to_thread(server.metric, "vllm:num_requests_waiting")
        if (running, waiting, used) == (0, 0, pages):
            return True
        await asyncio.sleep(0.1)
    return False


async def run(server, args):
    log_reader = asyncio.create_task(keep_reading(server))
    context = (await asyncio.to_thread(server.json, "/v1/models"))["data"][0]["max_model_len"]
    pages = await asyncio.to_thread(server.metric, "sub8:kv_pages_used")
    faults = []
    result = {"streams": args.streams, "short": args.short}

    # Prompts from one token to most of the context, answers in what is left.
    def work():
        prompt = [random.randint(10, 200) for _ in range(random.randint(1, context * 3 // 4))]
        room = context - len(prompt)
        return prompt, random.randint(1, max(1, min(room, args.tokens)))

    def kind(i):
        share = i / max(1, args.streams)
        return "slow" if share < SLOW_SHARE else "vanish" if share < SLOW_SHARE + VANISH_SHARE else "normal"

    async def storm():
        client = Client(server)
        start = time.perf_counter()
        await asyncio.gather(*(client.stream(*work(), kind(i)) for i in range(args.streams)))
        client.seconds = time.perf_counter() - start
        return client

    warm = await storm()
    faults += warm.faults
    warm_short = Client(server)
    await warm_short.short(args.short // 2, 32)
    faults += warm_short.faults
    before = resident_bytes(server.process.pid)

    client = await storm()
    faults += client.faults
    result["stream_tokens_per_second"] = round(client.tokens / client.seconds, 1)
    result["inter_token_ms"] = {p: round(1e3 * percentile(client.gaps, p / 100), 3) for p in (50, 90, 99)}
    result["first_token_ms"] = {p: round(1e3 * percentile(client.first, p / 100), 3) for p in (50, 99)}

    client = Client(server)
    start = time.perf_counter()
    await client.short(args.short, 32)
    result["short_per_second"] = round(args.short / (time.perf_counter() - start), 1)
    faults += client.faults
    if not await wait_idle(server, pages):
        faults.append("requests or KV pages are still taken after all clients left")
    after = resident_bytes(server.process.pid)
    result["resident_mb"] = [round(before / 1e6, 1), round(after / 1e6, 1)]
    if after > before * (1 + MAX_GROWTH) + GROWTH_SLACK:
        faults.append(f"memory grew from {before} to {after} bytes")

    # SIGTERM while streams run: all of them finish.
    client = Client(server)
    tasks = [asyncio.create_task(client.stream([10, 11], min(context - 2, args.tokens), "normal")) for _ in range(32)]
    while len(client.first) < 32 and not all(t.done() for t in tasks):
        await asyncio.sleep(0.01)
    server.process.send_signal(signal.SIGTERM)
    await asyncio.gather(*tasks)
    faults += client.faults
    log_reader.cancel()
    status = await asyncio.to_thread(server.wait, 60)
    if status != 0:
        faults.append(f"the server ended with {status} after SIGTERM")
    return result, faults


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("sub8")
    parser.add_argument("model")
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--short", type=int, default=10_000)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--options", default="")
    parser.add_argument("--json")
    args = parser.parse_args()
    random.seed(7)
    with Server(args.sub8, args.model, ["--max-sequences", "32", *shlex.split(args.options)]) as server:
        result, faults = asyncio.run(run(server, args))
    print(json.dumps(result, indent=1))
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(result, file, indent=1)
    for fault in faults[:20]:
        print("FAULT", fault, file=sys.stderr)
    print(f"{len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
