"""The served program as real clients see it: the official `openai` package, plain HTTP, signals.

usage: serve_test.py SUB8 MODEL_DIR
"""
import http.client
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import urllib.error

import openai
from serving import Server, children, running

BINARY, MODEL = sys.argv[1], sys.argv[2]
SITE_PACKAGES = next((p for p in sys.path if os.path.exists(os.path.join(p, "xgrammar"))), None)
HELLO = [{"role": "user", "content": "Hello there"}]


class OpenAiClient(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        options = ["--served-model-name", "tiny", "--api-key", "secret", "--max-sequences", "8"]
        if SITE_PACKAGES:
            options += ["--xgrammar", SITE_PACKAGES]
        cls.server = Server(BINARY, MODEL, options)
        cls.server.__enter__()
        cls.client = openai.OpenAI(base_url=cls.server.url + "/v1", api_key="secret", max_retries=0)

    @classmethod
    def tearDownClass(cls):
        status = cls.server.stop()
        assert status == 0, f"the server ended with {status}:\n{cls.server.output}"

    def tearDown(self):
        self.server.drain_output()

    def test_models(self):
        models = self.client.models.list().data
        self.assertEqual([m.id for m in models], ["tiny"])
        self.assertEqual(models[0].max_model_len, 128)

    def test_chat(self):
        reply = self.client.chat.completions.create(model="tiny", messages=HELLO, max_tokens=12, temperature=0)
        self.assertIsInstance(reply.choices[0].message.content, str)
        self.assertIn(reply.choices[0].finish_reason, ("stop", "length"))
        self.assertGreater(reply.usage.prompt_tokens, 2)
        self.assertLessEqual(reply.usage.completion_tokens, 12)

    def test_stream_equals_whole(self):
        arguments = {"model": "tiny", "messages": HELLO, "max_tokens": 24, "seed": 5}
        whole = self.client.chat.completions.create(**arguments)
        stream = self.client.chat.completions.create(**arguments, stream=True, stream_options={"include_usage": True})
        text, usage, roles = "", None, []
        for chunk in stream:
            if chunk.usage:
                usage = chunk.usage
            for choice in chunk.choices:
                text += choice.delta.content or ""
                roles.append(choice.delta.role)
        self.assertEqual(text, whole.choices[0].message.content)
        self.assertEqual(usage.completion_tokens, whole.usage.completion_tokens)
        self.assertEqual(roles[0], "assistant")

    def test_several_choices_differ_and_repeat(self):
        arguments = {"model": "tiny", "prompt": "Once", "n": 4, "max_tokens": 16, "seed": 3, "temperature": 1.5}
        first = [c.text for c in self.client.completions.create(**arguments).choices]
        second = [c.text for c in self.client.completions.create(**arguments).choices]
        self.assertEqual(first, second)
        self.assertGreater(len(set(first)), 1)

    def test_logprobs(self):
        chat = self.client.chat.completions.create(model="tiny", messages=HELLO, max_tokens=5, logprobs=True, top_logprobs=3)
        for entry in chat.choices[0].logprobs.content:
            self.assertEqual(len(entry.top_logprobs), 3)
            self.assertLessEqual(entry.logprob, 0)
        echo = self.client.completions.create(model="tiny", prompt="Hello there", max_tokens=0, echo=True, logprobs=1)
        lists = echo.choices[0].logprobs
        self.assertEqual(echo.choices[0].text, "Hello there")
        self.assertEqual(len(lists.tokens), echo.usage.prompt_tokens)
        self.assertIsNone(lists.token_logprobs[0])
        self.assertTrue(all(v <= 0 for v in lists.token_logprobs[1:]))

    def test_token_prompts_and_tokenize(self):
        tokens = self.server.json("/tokenize", {"prompt": "Hello"}, {"Authorization": "Bearer secret"})["tokens"]
        by_ids = self.client.completions.create(model="tiny", prompt=tokens, max_tokens=8, temperature=0)
        by_text = self.client.completions.create(model="tiny", prompt="Hello", max_tokens=8, temperature=0)
        self.assertEqual(by_ids.choices[0].text, by_text.choices[0].text)
        both = self.client.completions.create(model="tiny", prompt=["Hello", "Hello"], max_tokens=8, temperature=0)
        self.assertEqual([c.text for c in both.choices], [by_text.choices[0].text] * 2)

    def test_stop_and_limits(self):
        free = self.client.completions.create(model="tiny", prompt="Hello", max_tokens=24, temperature=0).choices[0].text
        middle = free[len(free) // 2]
        cut = self.client.completions.create(model="tiny", prompt="Hello", max_tokens=24, temperature=0, stop=[middle])
        self.assertEqual(cut.choices[0].text, free[: free.index(middle)])
        self.assertEqual(cut.choices[0].finish_reason, "stop")
        long = self.client.completions.create(
            model="tiny", prompt="Hello", max_tokens=40, extra_body={"ignore_eos": True, "min_tokens": 40})
        self.assertEqual(long.usage.completion_tokens, 40)

    def test_errors(self):
        with self.assertRaises(openai.NotFoundError):
            self.client.chat.completions.create(model="other", messages=HELLO)
        with self.assertRaises(openai.BadRequestError) as raised:
            self.client.chat.completions.create(model="tiny", messages=HELLO, temperature=-1)
        self.assertIn("$.temperature", str(raised.exception))
        self.assertEqual(raised.exception.param, "temperature")
        with self.assertRaises(openai.BadRequestError):
            self.client.completions.create(model="tiny", prompt="x " * 500)
        wrong = openai.OpenAI(base_url=self.server.url + "/v1", api_key="wrong", max_retries=0)
        with self.assertRaises(openai.AuthenticationError):
            wrong.models.list()

    @unittest.skipUnless(SITE_PACKAGES, "xgrammar is not installed")
    def test_structured_output(self):
        schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"], "additionalProperties": False}
        for n in range(5):
            reply = self.client.chat.completions.create(
                model="tiny", messages=HELLO, max_tokens=60, seed=n, temperature=1.0,
                response_format={"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}})
            if reply.choices[0].finish_reason == "stop":
                self.assertIsInstance(json.loads(reply.choices[0].message.content)["ok"], bool)
            choice = self.client.completions.create(
                model="tiny", prompt="x", max_tokens=20, seed=n, temperature=1.5, extra_body={"structured_outputs": {"choice": ["red", "green"]}})
            self.assertIn(choice.choices[0].text, ("red", "green"))
        named = self.client.chat.completions.create(
            model="tiny", messages=HELLO, max_tokens=60, seed=1,
            tools=[{"type": "function", "function": {"name": "set", "parameters": schema}}],
            tool_choice={"type": "function", "function": {"name": "set"}})
        call = named.choices[0].message.tool_calls[0]
        self.assertEqual(call.function.name, "set")

    def test_answers_do_not_depend_on_company(self):
        arguments = {"model": "tiny", "prompt": "Tell me", "max_tokens": 32, "seed": 11, "temperature": 0.8}
        alone = self.client.completions.create(**arguments).choices[0].text
        results = []

        def ask(seed):
            reply = self.client.completions.create(**{**arguments, "seed": seed})
            if seed == 11:
                results.append(reply.choices[0].text)

        threads = [threading.Thread(target=ask, args=(seed,)) for seed in (11, 1, 2, 3, 11, 4, 5, 11)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(results, [alone] * 3)

    def test_abandoned_streams_free_their_pages(self):
        before = self.server.metric("sub8:kv_pages_used")
        stream = self.client.completions.create(
            model="tiny", prompt="x", max_tokens=100, stream=True, extra_body={"ignore_eos": True})
        next(iter(stream))
        stream.close()
        deadline = time.monotonic() + 2
        while self.server.metric("vllm:num_requests_running") > 0 and time.monotonic() < deadline:
            time.sleep(0.02)
        self.assertEqual(self.server.metric("vllm:num_requests_running"), 0)
        self.assertEqual(self.server.metric("sub8:kv_pages_used"), before)


class Modes(unittest.TestCase):
    """One server runs requests in several execution modes at once, each as if it were alone and the server's only mode."""

    def answer(self, server, mode, number):
        body = {"prompt": f"Story {number}: once upon a time", "max_tokens": 12, "temperature": 0, "logprobs": 3, "ignore_eos": True}
        if mode:
            body["mode"] = mode
        reply = server.json("/v1/completions", body)
        self.assertEqual(reply["timings"]["mode"], mode or "weight-only")
        return reply["choices"][0]

    def test_requests_choose(self):
        with tempfile.TemporaryDirectory() as folder:
            model = folder + "/nvfp4"
            subprocess.run([BINARY, "quantize", MODEL, model, "--weights", "nvfp4"], check=True, capture_output=True)
            with Server(BINARY, model, ["--max-sequences", "8", "--max-batch-tokens", "20"]) as server:
                own = server.json("/v1/models")["data"][0]["sub8"]
                self.assertEqual(own["mode"], "weight-only")
                self.assertEqual(own["modes"], ["weight-only", "plain", "residue", "fp8", "fp8-residue"])
                alone = {m: self.answer(server, m, 0) for m in own["modes"]}
                self.assertEqual(len({json.dumps(a["logprobs"]) for a in alone.values()}), 5)
                self.assertEqual(self.answer(server, None, 0), alone["weight-only"])
                together = {}

                def ask(mode, number):
                    together[mode, number] = self.answer(server, mode, number)

                threads = [threading.Thread(target=ask, args=(m, n)) for n in range(3) for m in own["modes"]]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
                for mode, want in alone.items():
                    self.assertEqual(together[mode, 0], want, mode)
                with self.assertRaises(urllib.error.HTTPError) as raised:
                    self.answer(server, "paper", 0)
                self.assertEqual(raised.exception.code, 400)
            for mode in ("plain", "fp8-residue"):
                with Server(BINARY, model, ["--mode", mode]) as server:
                    self.assertEqual(server.json("/v1/models")["data"][0]["sub8"]["mode"], mode)
                    self.assertEqual(self.answer(server, mode, 0), alone[mode], mode)


class HostileInput(unittest.TestCase):
    def test_a_long_run_does_not_hold_up_others(self):
        """Eight megabytes without a space are tokenised, or refused, while others are served."""
        with Server(BINARY, MODEL) as server:
            replies = []

            def ask():
                try:
                    replies.append(len(server.json("/tokenize", {"prompt": "a" * 8_000_000})["tokens"]))
                except urllib.error.HTTPError as error:
                    replies.append(error.code)

            thread = threading.Thread(target=ask)
            thread.start()
            served = 0
            while not replies:
                self.assertEqual(server.json("/v1/completions", {"prompt": "x", "max_tokens": 2, "ignore_eos": True})["usage"]["completion_tokens"], 2)
                served += not replies
            thread.join()
            self.assertGreater(served, 2)


class Log(unittest.TestCase):
    def test_a_full_pipe_stalls_nobody(self):
        """Whoever reads the log has stopped: requests are still answered, what is lost is counted, SIGTERM still works."""
        with Server(BINARY, MODEL, ["--max-model-len", "64"]) as server:
            identifier = {"X-Request-Id": "x" * 64}
            for _ in range(400):
                server.request("/health", headers=identifier)  # about 70 kB of log: more than a pipe holds
            self.assertEqual(server.metric("sub8:log_lines_dropped_total"), 0)
            self.assertEqual(server.json("/v1/completions", {"prompt": "x", "max_tokens": 2, "ignore_eos": True})["usage"]["completion_tokens"], 2)
            server.process.send_signal(signal.SIGTERM)
            self.assertEqual(server.process.wait(timeout=20), 0)


class Signals(unittest.TestCase):
    def test_sigterm_drains(self):
        with Server(BINARY, MODEL, ["--threads", "1"]) as server:
            client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)
            stream = client.completions.create(
                model=server.json("/v1/models")["data"][0]["id"], prompt="x", max_tokens=100, stream=True, extra_body={"ignore_eos": True})
            pieces = iter(stream)
            next(pieces)
            server.process.send_signal(signal.SIGTERM)
            finish = [chunk.choices[0].finish_reason for chunk in pieces][-1]
            self.assertEqual(finish, "length")
            self.assertEqual(server.wait(), 0)
            self.assertIn("event=stopped", server.output)

    def test_kill_and_restart(self):
        with Server(BINARY, MODEL) as server:
            port = server.url.rsplit(":", 1)[1]
            server.process.kill()
            server.process.wait()
        again = Server(BINARY, MODEL, ["--port", port])
        again.command.remove("0")
        again.command.remove("--port")
        with again as server:
            self.assertEqual(server.request("/health"), b"")

    @unittest.skipUnless(SITE_PACKAGES, "xgrammar is not installed")
    def test_hostile_grammars_cost_nobody_else(self):
        """Expressions that take for ever to compile, or to find the next token of, beside an answer without a grammar."""
        with Server(BINARY, MODEL, ["--xgrammar", SITE_PACKAGES, "--grammar-timeout", "5"]) as server:
            replies = []

            def ask(expression, stream):
                client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=60)
                try:
                    reply = client.completions.create(
                        model=MODEL.rsplit("/", 1)[1], prompt="a", max_tokens=4, stream=stream,
                        extra_body={"regex": expression, "min_tokens": 4})
                    replies.append(list(reply) if stream else reply)
                except openai.APIError as error:
                    replies.append(error)
            constrained = {"prompt": "Tell me", "max_tokens": 30, "seed": 3, "temperature": 1.0, "regex": "[a-z ]{20,40}"}
            alone = server.json("/v1/completions", constrained)["choices"][0]["text"]
            hostile = ["a?" * 4000, "b?" * 4000, "(a?){1,40}" * 400, "(b?){1,40}" * 400]
            clients = [threading.Thread(target=ask, args=(hostile[i % 4], i % 8 > 3)) for i in range(16)]
            # Large, but honest: seconds or an error, as the machine can.
            schema = {"type": "object", "properties": {f"member{i}": {"type": "string"} for i in range(1500)}}

            def ask_schema():
                try:
                    server.json("/v1/completions", {"prompt": "a", "max_tokens": 4, "response_format": {
                        "type": "json_schema", "json_schema": {"name": "large", "schema": schema}}})
                except urllib.error.HTTPError as error:
                    self.assertEqual(error.code, 400)
            clients.append(threading.Thread(target=ask_schema))
            for client in clients:
                client.start()
            longest, answers = 0, 0
            while any(client.is_alive() for client in clients):
                start = time.monotonic()
                server.json("/v1/completions", {"prompt": "a", "max_tokens": 20, "ignore_eos": True})
                longest, answers = max(longest, time.monotonic() - start), answers + 1
                self.assertEqual(server.json("/v1/completions", constrained)["choices"][0]["text"], alone)
            # Far below the limit for grammars, also on a machine that is slow.
            self.assertLess(longest, 3)
            self.assertGreater(answers, 5)
            self.assertEqual(len(replies), 16)
            errors = [str(reply) for reply in replies if isinstance(reply, openai.APIError)]
            self.assertGreaterEqual(len(errors), 8)  # a machine that is fast enough finds some tokens
            for error in errors:
                self.assertRegex(error, "the grammar (is not usable|takes too much)")
            # And it still works.
            reply = server.json("/v1/completions", {"prompt": "a", "max_tokens": 9, "regex": "abc"})
            self.assertEqual(reply["choices"][0]["text"], "abc")

    @unittest.skipUnless(SITE_PACKAGES, "xgrammar is not installed")
    def test_sigterm_during_a_compilation(self):
        with Server(BINARY, MODEL, ["--xgrammar", SITE_PACKAGES, "--drain-timeout", "1", "--grammar-timeout", "100"]) as server:
            def ask():
                try:
                    server.json("/v1/completions", {"prompt": "a", "max_tokens": 1, "regex": "a?" * 4000})
                except (OSError, http.client.HTTPException):
                    pass  # the server ends first
            clients = [threading.Thread(target=ask) for _ in range(3)]
            for client in clients:
                client.start()
            time.sleep(0.5)
            host, = children(server.process.pid)
            grammars = children(host)
            self.assertEqual(len(grammars), 1)  # they share it
            server.process.send_signal(signal.SIGTERM)
            self.assertEqual(server.wait(20), 0)
            for client in clients:
                client.join()
            self.assertFalse(any(running(pid) for pid in [host, *grammars]))

    @unittest.skipUnless(SITE_PACKAGES, "xgrammar is not installed")
    def test_a_killed_server_leaves_no_processes(self):
        with Server(BINARY, MODEL, ["--xgrammar", SITE_PACKAGES]) as server:
            server.json("/v1/completions", {"prompt": "a", "max_tokens": 4, "regex": "abc"})
            host, = children(server.process.pid)
            left = {host, *children(host)}
            self.assertEqual(len(left), 2)
            server.process.kill()
            server.process.wait()
            deadline = time.monotonic() + 10
            while any(map(running, left)) and time.monotonic() < deadline:
                time.sleep(0.05)
            self.assertFalse(any(map(running, left)))

    def test_refusals_at_start(self):
        with Server(BINARY, MODEL) as server:
            port = server.url.rsplit(":", 1)[1]
            for options, text in ((["--port", port], port), (["--host", "no.such.host.invalid"], "no.such.host"),
                                  (["--xgrammar", "/nowhere"], "/nowhere"), (["--tool-call-parser", "x"], "hermes"),
                                  (["--kv-memory", "10"], "--kv-memory"), (["--mode", "warp"], "warp")):
                second = Server(BINARY, MODEL, options)
                if "--port" in options:
                    second.command.remove("0")
                    second.command.remove("--port")
                with self.assertRaises(RuntimeError) as raised:
                    second.__enter__()
                self.assertIn(text, str(raised.exception))
                self.assertNotEqual(second.process.returncode, 0)

    def test_options_that_would_not_protect_are_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            blank, spaced = os.path.join(folder, "blank"), os.path.join(folder, "spaced")
            for path, text in ((blank, " \n"), (spaced, "good\ntwo words\n")):
                with open(path, "w", encoding="utf-8") as file:
                    file.write(text)
            for options, env, text in (
                    ([], {"SUB8_API_KEY": ""}, "SUB8_API_KEY"), (["--api-key", ""], {}, "--api-key"),
                    (["--api-key", "a b"], {}, "space"), ([], {"SUB8_API_KEY": "a\tb"}, "control"),
                    (["--api-key-file", spaced], {}, "space"), (["--chat-template", blank], {}, blank),
                    (["--cors-origin", "example.org"], {}, "example.org"), (["--cors-origin", "https://a/b"], {}, "https://a/b"),
                    (["--cors-origin", ""], {}, "--cors-origin"), (["--cors-origin", "https://A.org"], {}, "lower case")):
                server = Server(BINARY, MODEL, options, env)
                with self.assertRaises(RuntimeError, msg=(options, env)) as raised:
                    server.__enter__()
                self.assertIn(text, str(raised.exception))
                self.assertEqual(server.process.returncode, 2, (options, env))
        origins = ["https://example.org", "http://localhost:3000", "http://[::1]:80", "*"]
        with Server(BINARY, MODEL, [word for origin in origins for word in ("--cors-origin", origin)]) as server:
            self.assertEqual(server.request("/health"), b"")

    def test_health_without_key(self):
        with Server(BINARY, MODEL, env={"SUB8_API_KEY": "k"}) as server:
            self.assertEqual(server.request("/health"), b"")
            with self.assertRaises(urllib.error.HTTPError) as raised:
                server.request("/v1/models")
            self.assertEqual(raised.exception.code, 401)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=1)
