"""`sub8 bench serve` against `sub8 serve`: figures that agree with the server's own, presets, options, interrupts.

usage: bench_serve_test.py SUB8 MODEL_DIR
"""
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import xml.etree.ElementTree

from serving import Server

BINARY, MODEL = sys.argv[1], sys.argv[2]
IDS = ["--first-id", "20", "--last-id", "200"]  # the model of the test has 288 tokens


class BenchServe(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server(BINARY, MODEL, ["--api-key", "k", "--max-sequences", "4"])
        cls.server.__enter__()

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()

    def run_bench(self, *options, key="k"):
        env = {**os.environ, "SUB8_API_KEY": key}
        url = [] if "--url" in options else ["--url", self.server.url]
        command = [BINARY, "bench", "serve", *url, *options]
        out = subprocess.run(command, capture_output=True, text=True, env=env, timeout=120)
        self.server.drain_output()
        return out

    def report(self, *options):
        out = self.run_bench(*options, "--json", "-")
        self.assertEqual(out.returncode, 0, out.stderr)
        return json.loads(out.stdout)

    def test_counts_are_those_of_the_server(self):
        before = [self.server.metric(n) for n in ("vllm:prompt_tokens_total", "vllm:generation_tokens_total")]
        r = self.report("--requests", "20", "--warmup", "5", "--concurrency", "4", "--input-tokens", "30", "--output-tokens", "10", *IDS)
        after = [self.server.metric(n) for n in ("vllm:prompt_tokens_total", "vllm:generation_tokens_total")]
        self.assertEqual(after[0] - before[0], 25 * 30)
        self.assertEqual(after[1] - before[1], 25 * 10)
        self.assertEqual((r["completed"], r["failed"], r["wrong_length"], r["uncounted"]), (20, 0, 0, 0))
        self.assertEqual((r["prompt_tokens"], r["output_tokens"]), (600, 200))
        self.assertEqual(r["itl_s"]["count"], 20 * 9)
        self.assertEqual(r["schema_version"], 1)
        for name in ("ttft_s", "tpot_s", "itl_s", "e2e_s"):
            d = r[name]
            self.assertTrue(0 <= d["min"] <= d["p50"] <= d["p90"] <= d["p95"] <= d["p99"] <= d["max"], name)
        self.assertAlmostEqual(r["output_tokens_per_s"], 200 / r["seconds"], delta=1e-6 * r["output_tokens_per_s"])

    def test_chat_and_text(self):
        r = self.report("--endpoint", "chat", "--requests", "4", "--input-tokens", "60", "--output-tokens", "5")
        self.assertEqual((r["completed"], r["output_tokens"]), (4, 20))
        self.assertTrue(4 * 40 < r["prompt_tokens"] < 4 * 80, r["prompt_tokens"])

    def test_shared_prefixes_are_found_in_the_cache(self):
        before = self.server.metric("vllm:prefix_cache_hits_total")
        self.report("--requests", "4", "--input-tokens", "90", "--prefix-tokens", "70", "--output-tokens", "2", "--seed", "99", *IDS)
        self.assertGreaterEqual(self.server.metric("vllm:prefix_cache_hits_total") - before, 3 * 64)

    def test_errors_are_counted_and_shown(self):
        out = self.run_bench("--requests", "3", *IDS, "--input-tokens", "100000")
        self.assertEqual(out.returncode, 1)
        self.assertIn("3 failed (status)", out.stdout)
        self.assertIn("context", out.stdout)
        out = self.run_bench("--requests", "3", *IDS, "--model", "m", key="wrong")
        self.assertIn("401", out.stdout)
        out = self.run_bench("--url", "http://127.0.0.1:1", "--requests", "2", "--model", "m", *IDS)
        self.assertEqual(out.returncode, 3)
        self.assertIn("2 failed (connect)", out.stderr)

    def test_preset_and_files(self):
        with tempfile.TemporaryDirectory() as folder:
            path, plot = folder + "/o.json", folder + "/o.svg"
            out = self.run_bench("--preset", "long-prompts", "--requests", "3", "--warmup", "0", "--rate", "1000", "--input-tokens", "20",
                                 "--output-tokens", "4", *IDS, "--json", path, "--plot", plot)
            self.assertEqual(out.returncode, 0, out.stderr)
            with open(path, encoding="utf-8") as file:
                workload = json.load(file)["workload"]
            self.assertEqual((workload["concurrency"], workload["rate_per_s"], workload["seed"]), (32, 1000, 17))
            xml.etree.ElementTree.parse(plot)
        out = self.run_bench("--preset", "long-answers", "--requests", "1", "--warmup", "0", *IDS, "--json", "-")
        workload = json.loads(out.stdout)["workload"]
        self.assertEqual((workload["input_tokens"], workload["output_tokens"], workload["rate_per_s"]), (512, 1536, 0))

    def test_options_are_strict(self):
        for options, text in ((["--rate", "-1"], "--rate"), (["--requests", "0"], "--requests"), (["--preset", "x"], "--preset"),
                              (["--endpoint", "chat", "--prompts", "ids"], "--prompts text"), (["--url", "localhost:1"], "http://"),
                              (["--json", "/no/such/folder/x"], "/no/such/folder"), (["--prefix-tokens", "600"], "--prefix-tokens"),
                              (["--first-id", "9", "--last-id", "8"], "--first-id"), (["--url", ""], "--url")):
            out = self.run_bench(*options)
            self.assertIn(out.returncode, (2, 3), options)
            self.assertIn(text, out.stderr, options)

    def test_interrupt_ends_the_run(self):
        command = [BINARY, "bench", "serve", "--url", self.server.url, "--api-key", "k", "--rate", "0.01", "--requests", "5", *IDS,
                   "--input-tokens", "20", "--output-tokens", "2"]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE)
        time.sleep(0.5)
        start = time.monotonic()
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=10)
        self.assertEqual(process.returncode, 130)
        self.assertLess(time.monotonic() - start, 5)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=1)
