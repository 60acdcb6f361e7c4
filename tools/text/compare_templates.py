#!/usr/bin/env python3
"""Renders every template of a directory with jinja2 and with sub8 over a battery of conversations
and compares the outputs, and whether there was an error.

usage: compare_templates.py TEMPLATE_TOOL DIRECTORY [--show N]

TEMPLATE_TOOL is the built tests/text/template_tool; DIRECTORY holds *.jinja files. Exit status 1
when anything differs."""

import argparse
import itertools
import json
import pathlib
import subprocess
import sys

import jinja2

import reference_jinja

TOOLS = [
    {"type": "function", "function": {
        "name": "get_weather", "description": "Weather at a place — today",
        "parameters": {"type": "object", "properties": {
            "city": {"type": "string", "description": "The city, e.g. \"Zürich\""},
            "unit": {"type": "string", "enum": ["C", "F"], "default": "C"},
            "days": {"type": ["integer", "null"], "minimum": 1},
            "opts": {"type": "object", "properties": {"deep": {"type": "array", "items": {"type": "number"}}}}},
            "required": ["city"]}}},
    {"type": "function", "function": {
        "name": "noop", "description": "Nothing", "parameters": {"type": "object", "properties": {}},
        "strict": True, "return": {"type": "string"}}},
]


def call(name, arguments, id="call_1a2b3c4d5"):
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def u(content):
    return {"role": "user", "content": content}


def a(content, **extra):
    return {"role": "assistant", "content": content, **extra}


def s(content):
    return {"role": "system", "content": content}


ARGS = {"city": "Zürich <&>", "days": 3, "opts": {"deep": [1.0, 2.5, 1e30]}, "flag": True, "none": None}
CONVERSATIONS = {
    "empty": [],
    "one": [u("Hello")],
    "system": [s("Be brief."), u("Hello")],
    "two turns": [u("Hi"), a("Hello!"), u("How are you?\n\nTell me.  ")],
    "system, turns": [s(" You are X. \n"), u("Hi"), a(" Hello! "), u("And?"), a("Fine."), u("Good")],
    "ends with assistant": [u("Hi"), a("Well, ")],
    "unicode": [s("🦙 é"), u("日本語 'quotes' \"double\" \\ <tag> &amp; \u2028 é\u0301\t")],
    "thinking": [u("2+2?"), a("<think>\nsum\n</think>\n\n4"), u("3+3?"), a("<think>six</think>6"), u("?")],
    "reasoning": [u("2+2?"), a("4", reasoning_content="easy sum"), u("3+3?"), a("6", reasoning_content="also"), u("?")],
    "thinking field": [u("2+2?"), a("4", thinking="easy sum"), u("3+3?"), a("6", reasoning="r")],
    "tool call": [u("Weather?"), a("", tool_calls=[call("get_weather", ARGS)]),
                  {"role": "tool", "name": "get_weather", "tool_call_id": "call_1a2b3c4d5", "content": "{\"t\": 21}"},
                  a("21 degrees."), u("Thanks")],
    "tool call, none": [u("Weather?"), a(None, tool_calls=[call("get_weather", ARGS)]),
                        {"role": "tool", "tool_call_id": "call_1a2b3c4d5", "content": "sunny"}],
    "tool call, text": [u("W?"), a("Let me see.", tool_calls=[call("get_weather", json.dumps(ARGS))]),
                        {"role": "tool", "name": "get_weather", "tool_call_id": "call_1a2b3c4d5", "content": "sunny"}],
    "two calls": [s("Sys"), u("W?"), a("", tool_calls=[call("get_weather", {"city": "A"}, "aaaaaaaaa"), call("noop", {}, "bbbbbbbbb")]),
                  {"role": "tool", "name": "get_weather", "tool_call_id": "aaaaaaaaa", "content": "1"},
                  {"role": "tool", "name": "noop", "tool_call_id": "bbbbbbbbb", "content": "2"}, a("Done", reasoning_content="r"), u("?")],
    "bare calls": [u("W?"), {"role": "assistant", "tool_calls": [{"name": "get_weather", "arguments": {"city": "A"}}]},
                   {"role": "tool", "content": {"t": 1, "ok": True}}],
    "tool parts": [u("W?"), a("", tool_calls=[call("noop", {})]),
                   {"role": "tool", "name": "noop", "tool_call_id": "call_1a2b3c4d5", "content": [{"type": "text", "text": "x"}]}],
    "parts": [s("Sys"), {"role": "user", "content": [{"type": "text", "text": "What "}, {"type": "text", "text": "now?"}]}],
    "parts everywhere": [{"role": "system", "content": [{"type": "text", "text": "S"}]},
                         {"role": "user", "content": [{"type": "text", "text": "U"}]},
                         {"role": "assistant", "content": [{"type": "text", "text": "A"}]},
                         {"role": "user", "content": [{"type": "text", "text": "V"}]}],
    "image": [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "Describe"}]}],
    "image url": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "u"}}, {"type": "text", "text": "D"}]}],
    "none content": [u("Hi"), a(None), u("Hm")],
    "no content": [u("Hi"), {"role": "assistant"}, u("Hm")],
    "bad order": [u("Hi"), u("again"), a("x"), a("y"), s("late"), u("z")],
    "developer": [{"role": "developer", "content": "Dev"}, u("Hi")],
    "unknown role": [{"role": "narrator", "content": "Once"}, u("Hi")],
    "number": [u(5), a(1.5), u(True)],
    "long": [m for i in range(12) for m in (u(f"q{i} " + "x" * i), a(f"a{i}"))] + [u("end")],
}

SETTINGS = [
    {},
    {"add_generation_prompt": True},
    {"add_generation_prompt": True, "enable_thinking": True},
    {"add_generation_prompt": True, "enable_thinking": False},
    {"tools": TOOLS, "add_generation_prompt": True},
    {"tools": TOOLS, "enable_thinking": False, "thinking": True, "reasoning_effort": "low"},
    {"tools": [t["function"] for t in TOOLS], "add_generation_prompt": True, "thinking": False},
    {"tools": [], "documents": [{"title": "T", "text": "Body", "doc_id": 1}], "add_generation_prompt": True},
    {"add_generation_prompt": True, "date_string": "04 Jul 2026", "reasoning_effort": "high", "clear_thinking": False,
     "preserve_thinking": True, "tools_in_user_message": False, "custom_tools": TOOLS, "builtin_tools": ["python"],
     "model_identity": "I am X", "tool_choice": "required", "keep_past_thinking": True, "add_vision_id": True},
]
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tool")
    parser.add_argument("directory", type=pathlib.Path)
    parser.add_argument("--show", type=int, default=5, help="differences to print")
    args = parser.parse_args()
    paths = sorted(args.directory.glob("*.jinja"))
    if not paths:
        sys.exit(f"no *.jinja files in {args.directory}")
    tool = subprocess.Popen([args.tool], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8")
    total = errors = different = 0
    for path in paths:
        source = path.read_text(encoding="utf-8")
        bad = 0
        for (name, messages), settings in itertools.product(CONVERSATIONS.items(), SETTINGS):
            # One setting goes without special tokens: they are undefined then.
            tokens = {} if "date_string" in settings else TOKENS
            fields = {"messages": messages, **tokens, **settings}
            expected, reason = reference_jinja.render(source, json.loads(json.dumps(fields)))
            tool.stdin.write(json.dumps({"template": source, "input": fields}) + "\n")
            tool.stdin.flush()
            answer = json.loads(tool.stdout.readline())
            total += 1
            errors += expected is None
            if answer.get("text") == expected:
                continue
            bad += 1
            different += 1
            if different <= args.show:
                print(f"--- {path.name}: {name}, {settings}\n  jinja2: {reason or expected!r}\n  sub8:   {answer.get('error') or answer.get('text')!r}")
        print(f"{path.name}: {'equal' if bad == 0 else f'{bad} differ'}")
    print(f"jinja2 {jinja2.__version__}: {len(paths)} templates, {total} renderings "
          f"({errors} of them errors in both or either), {different} differ")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
