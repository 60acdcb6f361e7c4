#!/usr/bin/env python3
"""Writes tests/text/template_golden.json: templates, inputs and what jinja2 makes of them.

usage: make_template_golden.py OUT.json   (needs the package jinja2)"""

import json
import platform
import sys

import jinja2

import reference_jinja

MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hi <é>"},
    {"role": "assistant", "content": None, "tool_calls": [
        {"type": "function", "function": {"name": "f", "arguments": {"b": 1, "a": "<é>", "l": [1.0, 2, None, True]}}}]},
    {"role": "tool", "content": [{"type": "text", "text": "part"}]},
]
INPUT = {"messages": MESSAGES, "bos_token": "<s>", "eos_token": "</s>", "x": 5, "f": 2.5, "s": "Hello World",
         "l": [3, 1, 2], "d": {"b": 1, "a": [1, "x"], "items": "I"}, "none": None, "html": "<a href=\"x\">'&'</a>",
         "people": [{"name": "bob", "age": 5}, {"name": "Al", "age": 7}, {"name": "cy", "age": 5}],
         "u": "straße ΑΣ日本 \u00a0x", "big": 9007199254740993}

# One template each; all render over INPUT.
EXPRESSIONS = r"""
1 + 2 * 3 ** 2 // 4 - -5 % 3 | 7 / 2 | 7 // -2 | -7 % 3 | 7.5 % -2 | 2 ** -1 | 2 ** 3 ** 2 | -2 ** 2 | 10 / 5 | 1e16 | 1e15 | 1.5e-5 | 0.0001 | 123456789.123 | 1e300 * 1e10
1 < 2 < 3 | 1 < 3 < 2 | 1 == 1.0 | true == 1 | "a" < "b" | [1, 2] < [1, 3] | (1, 2) == [1, 2] | 1 in l | "ell" in s | "b" in d | 4 not in l | not 1 in l
none | true | false | [none, true, 1.0, "it's", 'q"q', 'both\'"'] | {"a": 1, 2: (1,), none: ()} | () | [] | {} | "\x00\x7f\n\t\\\u00a0é\U0001f999" | ["\x00\x7f\n\t\\\u00a0é\U0001f999"]
undefined_thing | undefined_thing.x | undefined_thing["x"] | d.missing | d.missing.x | d["missing"] is defined | undefined_thing is defined | undefined_thing + 1 | undefined_thing ~ "x" | undefined_thing == other_undefined | undefined_thing | length | undefined_thing | list | not undefined_thing | undefined_thing in l | undefined_thing() | undefined_thing | int | undefined_thing | upper
s[0] | s[-1] | s[1:4] | s[::-1] | s[:-3:2] | s[100] | s[5:2] | l[::-1] | l[-2:] | l[1:] | (1, 2, 3)[1:] | range(10)[2:8:3] | u[3:8] | u[-1] | u[::-2] | s["x"] | l["x"] | l[1.0] | l[true] | none[0] | d[["x"]] | s[::0]
d.a | d["a"] | d.items() | d["items"] | d.items | d.keys() | d.values() | d.get("b") | d.get("z") | d.get("z", 3) | d.keys()[0] | d.a[0] | d.a.1 | d.update({}) | d.pop("a") | l.append(1) | l.sort() | l.count(1) | l.index(2) | l.index(9) | d.append is defined | d | d.copy() | l.items is defined | s.__class__ | s.__class__.x | none.x is defined | (1).real
s.upper() | s.lower() | s.title() | s.swapcase() | s.split() | s.split("o") | s.split("o", 1) | s.rsplit("o", 1) | s.split(none, 1) | " a  b ".split() | " a  b ".split(" ") | " a b  c ".rsplit(none, 1) | "a\nb\r\nc".splitlines() | "a\nb\n".splitlines(true) | "".splitlines() | s.split("") | "".split() | "".split(",") | "x".join([]) | "-".join(["a", "b"]) | "-".join([1])
s.startswith("Hell") | s.startswith(("x", "H")) | s.endswith("d") | s.find("o") | s.find("o", 5) | s.rfind("o") | s.find("zz") | s.index("zz") | u.find("日") | s.count("l") | s.count("") | s.replace("o", "0") | s.replace("o", "0", 1) | s.replace("", "-") | s.strip("Hd") | "xxaxx".strip("x") | "xxa".lstrip("x") | "axx".rstrip("x") | "\u00a0 a\t\n".strip() | s.startswith(1) | s.replace(old="a", new="b") | s.partition("o") | s.rpartition("o") | s.partition("z") | s.removeprefix("He") | s.removesuffix("ld")
u.upper() | u.title() | u.capitalize() | "ÀÉ".lower() | "ΑΣ ΑΣΑ".lower() | "ǆ".title() | "ﬁ".upper() | "İ".lower() | "1a".isdigit() | "12".isdigit() | "ab".isalpha() | "a1".isalnum() | "".isalpha() | " \t".isspace() | "A1".isupper() | "a1".islower() | "1".islower() | "Ab Cd".istitle() | "a".isascii() | "é".isascii() | "5".zfill(3) | "-5".zfill(4) | "a".ljust(3) ~ "|" | "a".rjust(3, ".") | "a".center(4, "*") | "ab".center(5, "*")
"%s and %r" % ("a", "b") | "%d" % 5 | "%5.2f|" % 3.14159 | "%-5s|" % "a" | "%05d" % -42 | "%x %X %o" % (255, 255, 8) | "%#x" % 255 | "%+d" % 5 | "%e" % 12345.678 | "%g" % 0.00001 | "%%" % () | "%(a)s %(b)d" % {"a": 1, "b": 2} | "%s" % none | "%d" % "x" | "%s %s" % "a" | "%s" % ("a", "b") | "%c%c" % (65, "B") | "%.2s" % "日本語" | "%*d" % (5, 3) | "%s" % [1, 2] | "%i" % 3.9 | "%z" % 1 | "%" % 1
"{} {}".format(1, "a") | "{1} {0}".format(1, 2) | "{a} {b!r}".format(a=1, b="x") | "{:>5}|{:<5}|{:^5}".format("a", "b", "c") | "{:05d}".format(42) | "{:.2f}".format(3.14159) | "{:,}".format(1234567) | "{:x}".format(255) | "{:#b}".format(5) | "{0[a]} {0.b}".format({"a": 1, "b": 2}) | "{{}}".format() | "{".format() | "{}".format() | "{:%}".format(0.5) | "{:+}".format(3) | "{:*^7}".format("é") | "{:d}".format("x") | "{:{}}".format("a", 4) | "{} {0}".format(1) | "{:e}".format(12.5) | "{:s}".format(1) | "{}".format(1.0) | "{:.3}".format("abcdef") | "{:5}".format(true)
html | e | html | escape | length | (html | e) ~ "<" | ("<" | e) + "<" | "<" + ("<" | safe) | html | safe | html | e | e | html | forceescape | ["<" | e] | s | e | length | ("<" | e) is escaped | "a" is escaped | ("<" | e).upper() | ("<" | e) * 2
l | sort | l | sort(reverse=true) | ["b", "A", "c"] | sort | ["b", "A", "c"] | sort(case_sensitive=true) | people | sort(attribute="age,name") | map(attribute="name") | join(",") | people | map(attribute="name") | list | people | groupby("age") | people | sum(attribute="age") | people | map(attribute="nope", default="-") | list | people | selectattr("age", "gt", 5) | list | people | rejectattr("age", "==", 5) | map(attribute="name") | list | l | select("odd") | list | l | reject("odd") | list | [0, 1, "", "a", none] | select | list | [1, "a"] | sort | l | map("string") | join("-") | ["a ", " b"] | map("trim") | list | l | map("nofilter") | list | l | select("notest") | list | people | selectattr("x") | list | people | selectattr("name", "defined") | list | length
l | first | l | last | [] | first | [] | last | s | first | l | join(", ") | l | join | l | length | l | count | d | length | d | list | s | list | l | reverse | list | s | reverse | l | max | l | min | [] | max | ["b", "A"] | min | l | sum | [] | sum | [1.5, 2] | sum | [[1], [2]] | sum(start=[]) | ["a"] | sum | l | unique | list | ["a", "A", "b"] | unique | list | [1, 1.0, true] | unique | list | range(7) | batch(3) | list | range(7) | batch(3, "x") | list | range(7) | slice(3) | list | range(7) | slice(3, "x") | list | d | dictsort | {"b": 1, "A": 2} | dictsort | {"b": 1, "A": 2} | dictsort(true) | {"b": 1, "A": 2} | dictsort(by="value", reverse=true) | {1: 2} | items | list | none | list | 5 | list
(l | map("string")) | length | (l | map("string"))[0] | (l | select) is iterable | (l | select) is sequence | none | length | 5 | length | (l | reverse) | first | (l | map("string")) | first | l | map(attribute="x") | list | [1, 2] | map("default", 3) | list
"3" | int | "3.7" | int | " 12 " | int | "x" | int | "x" | int(7) | "ff" | int(0, 16) | "0x1f" | int(base=16) | "1_000" | int | none | int | 3.99 | int | -3.99 | int | true | int | "1e3" | int | "3.5" | float | "x" | float | "inf" | float | "1e3" | float | none | float(1.5) | 5 | float | 3.7 | round | 2.5 | round | 3.14159 | round(2) | 2.675 | round(2) | 5 | round | 1234 | round(-2) | 3.1 | round(0, "ceil") | 3.19 | round(1, "floor") | 5 | round(method="ceil") | "x" | round | -5 | abs | -2.5 | abs | "x" | abs | [] | string | 1.0 | string
s | upper | s | lower | s | title | "foo-bar (baz) [qux] x's" | title | s | capitalize | "  a " | trim | "xax" | trim("x") | s | replace("o", "0") | s | replace("o", "0", 1) | 55 | replace(5, 6) | none | upper | s | center(20) ~ "|" | "a\nb\n\nc" | indent | "a\nb\n\nc" | indent(2, true) | "a\nb\n\nc" | indent("> ", blank=true) | "a\n" | indent(2) ~ "|" | "" | indent | 5 | indent | "a b c d e f" | truncate(5) | "a b c d e f g h i j k" | truncate(10) | "abcdefghijklmnop" | truncate(8, true) | "abcdefghijklmnop" | truncate(8, leeway=0) | "one two, three's" | wordcount | "%s-%s" | format(1, 2) | "%(a)s" | format(a=1) | s | wordcount | "a b/c?é" | urlencode | {"a": 1, "b c": "é&"} | urlencode
none | default("x") | undefined_thing | default("x") | undefined_thing | d | "" | default("x") | "" | default("x", true) | 0 | d(1, boolean=true) | undefined_thing | default | s | attr("upper") is defined | d | attr("b") | none | default(1, 2, 3) | s | default(default_value="q")
{"b": 1, "a": "<é>"} | tojson | {"b": 1, "a": "<é>\u2028\x7f\x01\"\\/"} | tojson(ensure_ascii=true) | {"b": 1, "a": "<é>"} | tojson(ensure_ascii=False) | messages | tojson(indent=2) | [1.0, 1e30, 1e-7, 100000.0, -0.0, 123456789012345680.0] | tojson | [] | tojson(indent=2) | {} | tojson(indent=2) | {"b": [], "a": {"x": [1, {"y": 2}]}} | tojson(indent=4, sort_keys=true) | l | tojson(separators=(",", ":")) | d | tojson(separators=[" , ", " : "], indent="\t") | (1, 2) | tojson | {1: 2, none: 3, true: 4, 1.5: 6} | tojson | {(1, 2): 3} | tojson | undefined_thing | tojson | d.items() | tojson | d.items() | list | tojson | s | tojson | none | tojson | true | tojson | "🦙" | tojson(true) | l | tojson(0) | l | tojson(indent=0) | l | tojson(False, 1) | l | tojson(bad=1) | {"b": 1, 2: 1} | tojson(sort_keys=true) | range(3) | tojson | (html | e) | tojson
x is odd | x is even | x is divisibleby 5 | x is divisibleby(2) | x is number | x is integer | f is float | f is integer | true is integer | true is number | true is boolean | x is boolean | none is none | s is string | l is sequence | d is mapping | d is sequence | l is iterable | 5 is iterable | s is iterable | d.items() is sequence | range(2) is sequence | range is callable | d.get is callable | x is callable | s is lower | s is upper | "a" is lower | x is eq 5 | x is equalto(5) | x is ne 5 | x is lt 6 | x is ge 5 | x is in [5] | x is in(l) | x is sameas 5 | none is sameas none | true is true | 1 is true | false is false | x is not none | x is not odd | x is nosuch | "upper" is filter | "zzz" is filter | "odd" is test | s is odd | x is greaterthan 4 | undefined_thing is iterable | undefined_thing is sequence | undefined_thing is string | undefined_thing is none
"a" if x else "b" | "a" if not x else "b" | "a" if not x | ("a" if not x) is defined | x and l | 0 or s | none and x.y | not x | not not x | x if x > 3 else 0 if x > 1 else -1 | "a" ~ 1 ~ none ~ 2.0 ~ true ~ [1] | "a" "b" 'c' | "a" + 1 | 1 + "a" | "ab" * 3 | 2 * [1] | [1] + [2] | (1,) + (2,) | [1] + (2,) | "a" - "b" | s - 1 | 5 // 0 | 5 % 0 | 5 / 0 | 0 ** -1 | -none | +x | - x
range(5) | list | range(2, 5) | list | range(5, 0, -2) | list | range(3) | range(1, 3) | range(0, 6, 2) | range(0) | list | range("a") | range(0, 5, 0) | dict(a=1, b=2) | dict([("a", 1)]) | dict({"a": 1}, b=2) | dict(1) | namespace(a=1).a | namespace(a=1).b is defined | namespace(a=1) | cycler("a", "b").next() | joiner("x")() | lipsum is defined | raise_exception("no") | strftime_now("%Y-%m-%d %H:%M:%S %j %A %B %b %d %%") | strftime_now("%f|%z|%Z") | x.y | x.y.z | messages[0].role | messages[0]["content"] | messages[-1].content[0].text | messages[2].tool_calls[0].function.arguments.l | messages | map(attribute="role") | list | messages | selectattr("role", "equalto", "user") | list | big | big + 1 | 0x1F | 0b11 | 0o17 | 1_000 | 1.5e3 | 1e2 | nosuch_function() | x() | s.upper | attr("x")
loop | caller is defined | varargs is defined | true.x is defined | 1.0 | 1.50 | [1.0, -0.0] | 1 if | (1 | [1 | {1} | x y | x | "abc | 'a\'b' | "\q" | "\101" | "\x4" | x..y | x.5 | l.0 | l.9 | l[0, 1] | d[1:2] | {"a": 1}["a"] | {"a": 1}.a | [1, 2,] | {"a": 1,} | (1,) | f(1,) | s.upper( | x | upper | lower | trim | s|upper()|lower | -1 | abs | (-1) | abs | -x|abs | 2|string * 3
"""

TEMPLATES = [
    "{% filter length %}abc{% endfilter %}", "{% call dict() %}{% endcall %}", "{{ l | map('string') | reverse }}", "{{ nothing | last }}", "{{ 'x' % nothing }}",
    # White space
    "a\n{% if true %}\nb\n{% endif %}\nc\n", "a  {%- if true -%}  b  {%- endif %}  c", "  {% if true %}x{% endif %}\n  y\n",
    "  {%+ if true %}x{% endif +%}\n  y\n", "x {# c #} y\n{# c #}\nz", "x {#- c -#} y", "  {# c #}\nz", "{{- ' a ' -}}  b", "  {{ 1 }}\n\n",
    "a\r\nb\rc\n\n", "{% raw %}{{ x }} {% if %}{% endraw %}", "{% raw -%}  {{ x }}  {%- endraw %} z", "  {% raw %}\n a{% endraw %}\n b",
    "{% if true -%}\n\n  a\n{%- endif -%}\n b", "\n\n{% set y = 1 %}\n\n{{ y }}", "a {%- set y = 1 +%}\n b", "\t {%- if 1 %} q\n\t{% endif %}\t\n", "{{ '{{' }} {{ '%}' }} }} %}", "{", "{{ {'a': {'b': 1}}['a']['b'] }}", "{#", "{{", "{%", "{{ 1", "{% if %}", "{% raw %}", "{#}", "{#-#}x", "a{% if 1 %}\n\n  \n  {% endif %}b",
    "x\u00a0{%- if 1 %}y{% endif -%}\u2003z",
    # Statements
    "{% if x > 5 %}a{% elif x == 5 %}b{% else %}c{% endif %}", "{% if none %}a{% endif %}", "{% if x %}a{% elif y.z.q %}b{% endif %}",
    "{% for i in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.previtem }}-{{ loop.nextitem }};{% endfor %}",
    "{% for i in [] %}a{% else %}empty{% endfor %}", "{% for i in l if i > 1 %}{{ i }}{{ loop.length }}{{ loop.last }}{% else %}none{% endfor %}",
    "{% for i in l if i > 9 %}{{ i }}{% else %}none{% endfor %}", "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}", "{% for k in d %}{{ k }}{% endfor %}",
    "{% for a, (b, c) in [(1, (2, 3))] %}{{ a }}{{ b }}{{ c }}{% endfor %}", "{% for a, b in [1] %}{% endfor %}", "{% for a, b in [(1, 2, 3)] %}{% endfor %}", "{% for c in 'aé日' %}{{ c }}.{% endfor %}",
    "{% for i in 5 %}{% endfor %}", "{% for i in none %}{% endfor %}", "{% for i in nothing %}{% else %}e{% endfor %}", "{% for i in range(10) %}{% if i == 2 %}{% continue %}{% endif %}{% if i == 5 %}{% break %}{% endif %}{{ i }}{% endfor %}",
    "{% set y = 0 %}{% for i in l %}{% set y = y + i %}{{ y }}{% endfor %}{{ y }}", "{% set ns = namespace(y=0) %}{% for i in l %}{% set ns.y = ns.y + i %}{% endfor %}{{ ns.y }}",
    "{% for i in l %}{% set q = i %}{% endfor %}{{ q is defined }}{{ i is defined }}{{ loop is defined }}", "{% for i in l %}{% for j in l %}{{ loop.index }}{{ i }}{% endfor %}{{ loop.index }};{% endfor %}",
    "{% for i in l %}{{ loop.cycle('a', 'b') }}{{ loop.changed(i > 1) }}{% endfor %}", "{% for i in [1, [2, [3]]] recursive %}{% if i is iterable %}({{ loop(i) }}){% else %}{{ i }}{{ loop.depth }}{{ loop.depth0 }}{% endif %}{% endfor %}",
    "{% for i in l %}{{ loop(l) }}{% endfor %}", "{% for i in 1, 2 %}{{ i }}{% endfor %}", "{% for i in l if loop.index > 1 %}{{ i }}{% endfor %}", "{% break %}", "{% for i in l %}{% macro m() %}{% break %}{% endmacro %}{% endfor %}",
    "{% set ns = namespace(stop=false) %}{% for i in l if not ns.stop %}{{ i }}{% if i == 1 %}{% set ns.stop = true %}{% endif %}{% endfor %}",
    "{% set ns = namespace(stop=false) %}{% for i in l if not ns.stop %}{{ i }}{{ loop.last }}{% if i == 1 %}{% set ns.stop = true %}{% endif %}{% endfor %}",
    "{% set a, b = 1, 2 %}{{ a }}{{ b }}", "{% set a = 1, 2 %}{{ a }}", "{% set a %}x{{ x }}{% endset %}{{ a }}|{{ a is string }}", "{% set a | upper | trim %} x{{ s }} {% endset %}{{ a }}", "{% set d.x = 1 %}", "{% set q.x = 1 %}", "{% set s[0] = 1 %}", "{% set true = 1 %}", "{% set messages = [1] %}{{ messages }}", "{% set a %}{% set inner = 1 %}{% endset %}{{ inner is defined }}",
    "{% set ns = namespace() %}{% set ns.a, b = 1, 2 %}{{ ns.a }}{{ b }}", "{% set ns = namespace(a=1) %}{% set ns.b %}t{% endset %}{{ ns.b }}{{ ns['a'] }}{{ ns }}",
    "{% macro m(a, b=2, c='x') %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ m(1) }}|{{ m(1, c=3) }}|{{ m(1, 2, 3) }}|{{ m() }}", "{% macro m(a) %}{% endmacro %}{{ m(1, 2) }}", "{% macro m(a) %}{% endmacro %}{{ m(b=2) }}", "{% macro m(a) %}{% endmacro %}{{ m(1, a=2) }}",
    "{% macro m(a) %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, z=3) }}", "{% macro m(a, b=a) %}{{ a }}{{ b }}{% endmacro %}{{ m(1) }}", "{% macro m() %}{{ caller(1) }}{% endmacro %}{% call(i) m() %}[{{ i }}{{ x }}]{% endcall %}", "{% macro m() %}a{% endmacro %}{% call m() %}b{% endcall %}", "{% macro m() %}{{ caller is defined }}{% endmacro %}{{ m() }}{% call m() %}{% endcall %}",
    "{% macro m(n) %}{% if n > 0 %}{{ n }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(4) }}", "{% macro m() %}{{ y }}{% endmacro %}{% set y = 3 %}{{ m() }}", "{% macro m() %}{{ x }}{% set x = 9 %}{% endmacro %}{{ m() }}{{ x }}", "{% for i in l %}{% macro m() %}{{ i }}{% endmacro %}{{ m() }}{% endfor %}", "{{ m }}{% macro m() %}{% endmacro %}", "{% macro m(a, a) %}{% endmacro %}", "{% macro m(a=1, b) %}{% endmacro %}", "{% macro m(a, b) %}{% endmacro %}{{ m.name }}{{ m.arguments }}{{ m }}",
    "{% macro m(x) %}{{ x is defined }}{{ x }}{% endmacro %}{{ m() }}", "{% macro m() %}<{{ caller() }}>{% endmacro %}{% macro o() %}{% call m() %}{{ caller() }}{% endcall %}{% endmacro %}{% call o() %}in{% endcall %}",
    "{% filter upper %}a{{ s }}{% endfilter %}", "{% filter upper | replace('A', 'b') %}a{% endfilter %}", "{% filter indent(2) %}a\nb{% endfilter %}", "{% with a = 1, b = x %}{{ a }}{{ b }}{% endwith %}{{ a is defined }}", "{% with a = 1, b = a %}{{ b }}{% endwith %}", "{% with %}{% set q = 1 %}{% endwith %}{{ q is defined }}",
    "{% generation %}a{{ x }}{% set z = 1 %}{% endgeneration %}{{ z is defined }}", "{% for i in l %}{% generation %}{{ i }}{{ loop.index }}{% endgeneration %}{% endfor %}", "{% print x, s %}", "{% do x %}", "{% unknown %}", "{% if x %}", "{% endif %}", "{% for %}", "{% for i l %}{% endfor %}", "{% if x %}{% endfor %}", "{% set %}", "{% set y = %}", "{% else %}", "{% if x: %}a{% endif %}",
    "{% set it = l | map('string') %}{{ it | join }}|{{ it | join }}", "{% set it = l | select %}{% for i in it %}{{ i }}{% endfor %}{% for i in it %}{{ i }}{% endfor %}", "{% set it = l | map('nofilter') %}unused", "{% if false %}{{ x | nofilter }}{% endif %}ok", "{% for g, items in people | groupby('age') %}{{ g }}:{{ items | map(attribute='name') | join(',') }};{% endfor %}", "{% for g in people | groupby('age') %}{{ g.grouper }}:{{ g.list | length }};{% endfor %}",
    "{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.current }}{{ c.next() }}{{ c.reset() }}{{ c.current }}", "{% set j = joiner() %}{% for i in l %}{{ j() }}{{ i }}{% endfor %}",
    "{% for m in messages %}{{ '<|' + m['role'] + '|>' }}{% if m.content is string %}{{ m.content | trim }}{% elif m.content %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endif %}{% if m.tool_calls is defined and m.tool_calls %}{% for t in m.tool_calls %}{{ t.function.name }}({{ t.function.arguments | tojson }}){% endfor %}{% endif %}\n{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}{{ bos_token }}{{ eos_token }}{{ unk_token }}",
    "{{ tools is none }}{{ documents is none }}{{ add_generation_prompt }}", "{% set x = 1 %}{% if true %}{% set x = 2 %}{% endif %}{{ x }}", "{{ messages[0]['role'] == 'system' and messages | length > 1 }}", "{% if messages[0]['role'] == 'user' %}{% else %}{{ raise_exception('Roles must alternate') }}{% endif %}",
]


def main():
    cases = []
    for line in EXPRESSIONS.strip().splitlines():
        # Alternatives are separated by " | ", which is also how filters are written: take every
        # prefix boundary apart, so that filters are covered in all their truncations.
        parts = line.split(" | ")
        for begin in range(len(parts)):
            for end in range(begin + 1, min(begin + 3, len(parts)) + 1):
                cases.append("{{ " + " | ".join(parts[begin:end]) + " }}")
    cases = list(dict.fromkeys(cases + TEMPLATES))
    rows = []
    for case in cases:
        text, error = reference_jinja.render(case, json.loads(json.dumps(INPUT)))
        if text is not None and (" at 0x" in text or "LoopContext" in text):
            continue  # an address
        # Errors only of templates with one part: pairs of nonsense add nothing.
        if text is None and case.count(" | ") > 2:
            continue
        rows.append([case] if text is None else [case, text])
    golden = {"program": f"jinja2 {jinja2.__version__}, Python {platform.python_version()}",
              "script": "tools/text/make_template_golden.py", "now": reference_jinja.DEFAULT_NOW,
              "input": INPUT, "cases": rows}
    with open(sys.argv[1], "w", encoding="utf-8") as out:
        out.write("{\n" + ",\n".join(f"{json.dumps(k)}: {json.dumps(v, ensure_ascii=False)}" for k, v in golden.items() if k != "cases"))
        out.write(',\n"cases": [\n' + ",\n".join(json.dumps(r, ensure_ascii=False) for r in rows) + "\n]}\n")
    print(f"{len(rows)} cases, {sum(len(r) == 1 for r in rows)} errors")


if __name__ == "__main__":
    main()
