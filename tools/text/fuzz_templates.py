#!/usr/bin/env python3
"""Differential fuzzing: random templates from a grammar, rendered by jinja2 and by sub8.

usage: fuzz_templates.py TEMPLATE_TOOL [--count N] [--seed S] [--show N]

Not compared: integers beyond 64 bits; printed objects that have an address in Python (what counts
their characters may still show up as a difference); slices of values that have none, which jinja2
makes undefined when it folds constants and an error otherwise.
Exit status 1 when anything differs."""

import argparse
import json
import random
import subprocess
import sys
import warnings

import jinja2

import reference_jinja
from make_template_golden import INPUT

ATOMS = ["x", "f", "s", "l", "d", "none", "true", "false", "html", "people", "u", "messages", "nothing", "0", "1", "2", "-1", "3.5", "1e16", "''", "'a'", "'b c'",
         "'é日'", "' pad '", "'12'", "'<&>'", "[]", "{}", "()", "[1, 2]", "(1,)", "{'k': 'v', 'a': 1}", "range(4)", "['b', 'A', 'c']", "[1, 'a', none]", "bos_token"]
BINARY = ["+", "-", "*", "/", "//", "%", "~", "==", "!=", "<", "<=", ">", ">=", "in", "not in", "and", "or"]
FILTERS = ["length", "upper", "lower", "trim", "first", "last", "list", "join", "join(',')", "join('é')", "sort", "sort(reverse=true)", "unique", "reverse", "string",
           "int", "int(5)", "float", "abs", "round", "round(1)", "tojson", "tojson(indent=2)", "tojson(ensure_ascii=true)", "e", "safe", "title", "capitalize", "default('D')",
           "default('D', true)", "d", "replace('a', 'X')", "replace('', '-')", "items", "dictsort", "dictsort(by='value')", "map('upper')", "map('string')", "map('length')",
           "map(attribute='name')", "map(attribute=0)", "select", "reject", "select('string')", "select('odd')", "reject('none')", "selectattr('age')",
           "selectattr('age', 'gt', 5)", "rejectattr('name', 'in', ['Al'])", "batch(2)", "batch(2, 'z')", "slice(2)", "slice(3, 0)", "sum", "min", "max", "groupby('age')", "indent", "indent(2, true)",
           "wordcount", "truncate(5)", "truncate(8, true, '.')", "center(9)", "attr('upper')", "urlencode", "count", "list | length", "map('first') | list", "format(1)", "sum(start=1)"]
TESTS = ["defined", "undefined", "none", "string", "number", "integer", "float", "boolean", "mapping", "sequence", "iterable", "callable", "odd", "even", "lower", "upper",
         "true", "false", "divisibleby 2", "eq 1", "in [1, 'a']", "sameas none", "escaped", "lt 3", "ge 'b'"]
METHODS = ["upper()", "lower()", "strip()", "lstrip()", "rstrip('d')", "split()", "split('b')", "split(' ', 1)", "rsplit(none, 1)", "splitlines()", "startswith('a')",
           "endswith(('d', ' '))", "find('b')", "rfind(' ')", "count('a')", "replace('a', 'bb')", "replace('a', '', 1)", "title()", "capitalize()", "isdigit()", "isalpha()", "islower()",
           "format(1, 2)", "join(['p', 'q'])", "items()", "keys()", "values()", "get('a')", "get('zz', 1)", "index('a')", "index(1)", "zfill(5)", "center(7, '*')", "partition('b')",
           "removeprefix('a')", "isspace()", "swapcase()", "ljust(6)", "append(1)", "update({})", "pop()", "copy()", "nosuch()"]
ATTRIBUTES = [".a", ".name", "[0]", "[-1]", "['a']", "['items']", "[1:]", "[::-1]", "[:-1]", "[::2]", "[9]", ".0", "[1:3:-1]", "[none:2]", ".b", "[x]"]
FORMATS = ["'%s'", "'%d'", "'%5.1f'", "'%-4s|'", "'%r'", "'%x'", "'%05d'", "'%s-%s'", "'%%'", "'%+.2e'", "'%g'", "'%c'", "'%(a)s'"]


class Grammar:
    def __init__(self, rng):
        self.rng = rng

    def expr(self, depth):
        r = self.rng
        if depth <= 0 or r.random() < 0.12:
            return r.choice(ATOMS)
        kind = r.random()
        e = lambda: self.expr(depth - 1 - (r.random() < 0.5))
        if kind < 0.30:
            return f"{self.primary(depth)} | {r.choice(FILTERS)}"
        if kind < 0.44:
            return f"({e()}) {r.choice(BINARY)} ({e()})" if r.random() < 0.6 else f"{e()} {r.choice(BINARY)} {e()}"
        if kind < 0.54:
            return f"{self.primary(depth)}.{r.choice(METHODS)}"
        if kind < 0.66:
            return self.primary(depth) + r.choice(ATTRIBUTES)
        if kind < 0.73:
            return f"{self.primary(depth)} is {r.choice(['', 'not '])}{r.choice(TESTS)}"
        if kind < 0.78:
            return f"{e()} if {e()} else {e()}" if r.random() < 0.7 else f"({e()} if {e()})"
        if kind < 0.82:
            return f"{r.choice(['not ', '-', '+'])}{self.primary(depth)}"
        if kind < 0.87:
            return f"[{e()}, {e()}]" if r.random() < 0.6 else f"({e()}, {e()})"
        if kind < 0.91:
            return f"{{{r.choice(['1', repr('k'), 'x', 'none'])}: {e()}, 'z': {e()}}}"
        if kind < 0.95:
            return f"{r.choice(FORMATS)} % {self.primary(depth)}"
        return f"{e()} {r.choice(['<', '==', '!=', '>='])} {e()} {r.choice(['<', '==', 'in'])} {e()}"

    def primary(self, depth):
        if self.rng.random() < 0.5:
            return self.rng.choice(ATOMS)
        return f"({self.expr(depth - 1)})"

    def tag(self, inner):
        r = self.rng
        return "{%" + r.choice(["", "", "", "-", "+"]) + f" {inner} " + r.choice(["", "", "", "-", "+"]) + "%}"

    def text(self):
        return self.rng.choice(["", " ", "\n", "  \n", "t", " t\n", "\n\n  ", "é", "{# c #}", "{#- c -#}\n", "\t"])

    def body(self, depth):
        return "".join(self.statement(depth - 1) for _ in range(self.rng.randint(1, 3)))

    def statement(self, depth):
        r = self.rng
        lead = self.text()
        if depth <= 0 or r.random() < 0.35:
            return lead + "{{" + r.choice(["", "", "-"]) + f" {self.expr(3)} " + r.choice(["", "", "-"]) + "}}" + self.text()
        kind = r.random()
        if kind < 0.25:
            out = self.tag(f"if {self.expr(2)}") + self.body(depth)
            if r.random() < 0.3:
                out += self.tag(f"elif {self.expr(2)}") + self.body(depth)
            if r.random() < 0.4:
                out += self.tag("else") + self.body(depth)
            return lead + out + self.tag("endif")
        if kind < 0.55:
            target = r.choice(["i", "i", "i", "k, v", "x"])
            source = r.choice(["l", "s", "d", "d.items()", "people", "range(3)", "[]", "nothing", self.expr(2), "[[1, 2], [3]]"])
            extra = f" if {self.expr(1)}" if r.random() < 0.2 else ""
            inner = r.choice(["{{ i }}", "{{ loop.index }}{{ loop.last }}", "{{ loop.length }}", "{{ loop.previtem }}{{ loop.nextitem }}", "{{ loop.changed(i) }}", "{{ k }}{{ v }}", "",
                              self.tag("if loop.index > 1") + self.tag("break") + self.tag("endif"), self.tag("set ns.n = (ns.n ~ loop.index)"), self.tag("set y = loop.index0")])
            out = self.tag(f"for {target} in {source}{extra}") + inner + self.body(depth)
            if r.random() < 0.3:
                out += self.tag("else") + self.body(depth)
            return lead + out + self.tag("endfor")
        if kind < 0.72:
            return lead + self.tag(f"set {r.choice(['y', 'x', 'ns.n', 'ns.m', 'y, z', 's'])} = {self.expr(2)}") + self.text()
        if kind < 0.80:
            return lead + self.tag(f"set y{r.choice(['', ' | upper', ' | trim | length'])}") + self.body(depth) + self.tag("endset") + "{{ y }}"
        if kind < 0.92:
            call = r.choice(["{{ mac(1) }}", "{{ mac() }}", "{{ mac(1, 2, 3) }}", "{{ mac(b=x) }}", self.tag("call mac(1)") + "c{{ x }}" + self.tag("endcall")])
            return lead + self.tag("macro mac(a, b=2)") + r.choice(["{{ a }}{{ b }}", "{{ varargs }}", "{{ caller() }}", "{{ caller is defined }}", "{{ kwargs }}"]) + self.body(depth) + self.tag("endmacro") + call
        if kind < 0.96:
            return lead + self.tag(f"filter {r.choice(['upper', 'trim', 'indent(3)', 'length'])}") + self.body(depth) + self.tag("endfilter")
        return lead + self.tag(f"with q = {self.expr(2)}") + "{{ q }}" + self.body(depth) + self.tag("endwith")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tool")
    parser.add_argument("--count", type=int, default=10000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--show", type=int, default=10)
    args = parser.parse_args()
    warnings.simplefilter("ignore", SyntaxWarning)  # Python's opinion on constants in templates
    grammar = Grammar(random.Random(args.seed))
    tool = subprocess.Popen([args.tool], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8")
    compared = texts = different = 0
    for number in range(args.count):
        if number % 2 == 0:
            source = "{{ " + grammar.expr(4) + " }}"
        else:
            source = "{% set ns = namespace(n=0) %}" + grammar.body(3)
        expected, reason = reference_jinja.render(source, json.loads(json.dumps(INPUT)))
        tool.stdin.write(json.dumps({"template": source, "input": INPUT}) + "\n")
        tool.stdin.flush()
        line = tool.stdout.readline()
        if not line:
            print(f"sub8 died on {source!r}")
            return 1
        answer = json.loads(line)
        failure = answer.get("error", "")
        skip = "beyond 64 bits" in failure or "cannot be sliced" in failure or (
            expected is not None and (" at 0x" in expected.lower() or "loopcontext" in expected.lower()))
        if skip:
            continue
        compared += 1
        texts += expected is not None
        if answer.get("text") != expected:
            different += 1
            if different <= args.show:
                print(f"--- {source!r}\n  jinja2: {reason or expected!r}\n  sub8:   {answer.get('error') or answer.get('text')!r}")
    print(f"jinja2 {jinja2.__version__}, seed {args.seed}: {compared} templates compared ({texts} render), {different} differ")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
