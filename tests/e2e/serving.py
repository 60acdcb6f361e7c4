"""Starts and stops `sub8 serve` for the end-to-end tests."""
import json
import os
import re
import select
import signal
import subprocess
import time
import urllib.request


def children(parent):
    """Processes that `parent` started and that have not ended."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/stat") as file:
                state, ppid = file.read().rsplit(")", 1)[1].split()[:2]
        except OSError:
            continue  # it ended meanwhile
        if int(ppid) == parent and state != "Z":
            found.append(int(pid))
    return found


def running(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


class Server:
    """`with Server(binary, model, [options]) as server:`; server.url, server.process."""

    def __init__(self, binary, model, options=(), env=None):
        self.command = [binary, "serve", model, "--port", "0", *options]
        self.env = {**os.environ, **(env or {})}
        self.process = None
        self.url = None
        self.output = ""

    def __enter__(self):
        self.process = subprocess.Popen(self.command, stderr=subprocess.PIPE, env=self.env)
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            if select.select([self.process.stderr], [], [], 0.2)[0]:
                piece = os.read(self.process.stderr.fileno(), 65536).decode(errors="replace")
                self.output += piece
                found = re.search(r"Listening on (http://\S+)", self.output)
                if found:
                    self.url = found.group(1)
                    return self
            if self.process.poll() is not None:
                break
        self.stop()
        raise RuntimeError(f"the server did not start: {' '.join(self.command)}\n{self.output}")

    def __exit__(self, *_):
        self.stop()

    def drain_output(self):
        """What the server has logged so far; also keeps its pipe from filling up."""
        while not self.process.stderr.closed and select.select([self.process.stderr], [], [], 0)[0]:
            piece = os.read(self.process.stderr.fileno(), 65536)
            if not piece:
                break
            self.output += piece.decode(errors="replace")
        return self.output

    def stop(self, timeout=30):
        """SIGTERM; the exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.wait(timeout)

    def wait(self, timeout=30):
        """The exit status, once the server has ended."""
        deadline = time.monotonic() + timeout
        while self.process.poll() is None and time.monotonic() < deadline:
            self.drain_output()
            time.sleep(0.02)
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        if not self.process.stderr.closed:
            self.drain_output()
            self.process.stderr.close()
        return self.process.returncode

    def request(self, path, body=None, headers=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json", **(headers or {})})
        with urllib.request.urlopen(request, timeout=120) as reply:
            return reply.read()

    def json(self, path, body=None, headers=None):
        return json.loads(self.request(path, body, headers))

    def metric(self, name):
        total = 0.0
        for line in self.request("/metrics").decode().splitlines():
            if line.startswith(name + "{") or line.startswith(name + " "):
                total += float(line.rsplit(" ", 1)[1])
        return total
