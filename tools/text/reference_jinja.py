"""The reference for chat templates: jinja2 set up as transformers' apply_chat_template sets it up
(transformers 5.18, utils/chat_template_utils.py: environment options, tojson, raise_exception,
strftime_now, generation blocks). Needs only the package jinja2."""

import datetime
import functools
import json

import jinja2
import jinja2.ext
import jinja2.sandbox

DEFAULT_NOW = [2026, 7, 4, 9, 5, 3]


class Generation(jinja2.ext.Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        call = self.call_method("_body")
        return jinja2.nodes.CallBlock(call, [], [], body).set_lineno(line)

    def _body(self, caller):
        return caller()


def _raise(message):
    raise jinja2.exceptions.TemplateError(message)


def _tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


@functools.lru_cache(maxsize=4)
def compiled(template, now):
    return environment(now).from_string(template)


def environment(now):
    env = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = _tojson
    env.globals["raise_exception"] = _raise
    env.globals["strftime_now"] = lambda format: datetime.datetime(*now).strftime(format)
    return env


def render(template, fields):
    """(text, None) or (None, error)."""
    fields = dict(fields)
    now = fields.pop("now", DEFAULT_NOW)
    fields = {"messages": [], "tools": None, "documents": None, "add_generation_prompt": False, **fields}
    try:
        return compiled(template, tuple(now)).render(**fields), None
    except RecursionError as e:
        return None, f"{type(e).__name__}: {e}"
    except Exception as e:  # whatever Python raises is an error of the template
        return None, f"{type(e).__name__}: {e}"
