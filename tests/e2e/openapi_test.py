"""The server against its own description: schemathesis makes requests from /openapi.json, valid and not, and judges the replies.

usage: openapi_test.py SUB8 MODEL_DIR [MAX_EXAMPLES]

Bounded and with a fixed seed, so that it is the same everywhere. Nobody reads the server's log meanwhile. Not judged: that a request
which fits the description is accepted. The description cannot know the model's context, vocabulary, template and modes.
"""
import os
import subprocess
import sys
import tempfile
import unittest

from serving import Server

BINARY, MODEL = sys.argv[1], sys.argv[2]
EXAMPLES = sys.argv[3] if len(sys.argv) > 3 else "10"
PROGRAM = os.path.join(os.path.dirname(sys.executable), "schemathesis")


@unittest.skipUnless(os.path.exists(PROGRAM), "schemathesis is not installed")
class OpenApi(unittest.TestCase):
    def test_replies_are_those_of_the_description(self):
        with Server(BINARY, MODEL, ["--max-sequences", "4"]) as server, tempfile.TemporaryDirectory() as folder:
            command = [PROGRAM, "run", server.url + "/openapi.json", "--seed", "1", "--max-examples", EXAMPLES, "--workers", "1",
                       "--phases", "examples,coverage,fuzzing", "--exclude-checks", "positive_data_acceptance", "--suppress-health-check",
                       "all", "--generation-database", "none", "--no-color"]
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=500)
            self.assertEqual(done.returncode, 0, done.stdout[-6000:] + done.stderr[-2000:])
            self.assertIn("Tested: 8", done.stdout)  # operations
            self.assertEqual(server.request("/health"), b"")
            self.assertEqual(server.metric("vllm:num_requests_running"), 0)
            self.assertEqual(server.metric("sub8:kv_pages_used"), 0)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=1)
