"""The script that renders chat templates in a sandboxed process (`assay.system.box`); never imported.

A template is an untrusted program. Jinja's sandbox keeps it from Python objects, and the process from everything else.
A request is `{"template": str, "variables": object}`. An answer is `{"text": str}` or
`{"fault": kind, "message": str}`. The script depends only on Jinja.
"""

from __future__ import annotations

import json
from datetime import datetime
from functools import lru_cache
from importlib import import_module
from types import GeneratorType
from typing import Any

from jinja2 import Template, TemplateError, TemplateSyntaxError, nodes
from jinja2.exceptions import SecurityError, UndefinedError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment

MAX_OUTPUT = 1 << 25  # characters
_LATE_IMPORTS = ("textwrap", "html", "html.entities", "jinja2.constants", "pprint", "random", "urllib.parse")


class Refused(Exception):
    """The template called `raise_exception`: it rejects these messages."""


class TooLong(Exception):
    """The output is longer than any prompt can be."""


class GenerationTag(Extension):
    """`{% generation %}` marks the assistant's text for training. It renders its contents in a new scope, as in
    transformers."""

    tags = {"generation"}  # noqa: RUF012  # Jinja's interface

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("contents"), [], [], body).set_lineno(line)

    def contents(self, caller: Macro) -> str:
        return str(caller())


def _raise_exception(message: object) -> None:
    raise Refused(str(message))


def _tojson(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
    """Plain JSON, which templates expect. Jinja's own filter escapes HTML."""
    allowed = {k: v for k, v in options.items() if k in ("indent", "separators", "sort_keys")}
    return json.dumps(value, ensure_ascii=ensure_ascii, default=_listed, **allowed)


def _listed(value: Any) -> list[Any]:
    """Iterators of `map` and `select` as lists, for templates that omit `|list`."""
    if isinstance(value, GeneratorType):
        return list(value)
    raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


class _Environment(ImmutableSandboxedEnvironment):
    """A sandbox that allows changing lists: some templates use a queue, and lists do not outlive a request."""

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        return (isinstance(obj, list) and attr in ("append", "pop")) or super().is_safe_attribute(obj, attr, value)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = _Environment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, GenerationTag])
    environment.filters["tojson"] = _tojson
    environment.globals.update(raise_exception=_raise_exception, strftime_now=_strftime_now)
    return environment


ENVIRONMENT = _environment()


@lru_cache(maxsize=8)
def _compile(source: str) -> Template:
    return ENVIRONMENT.from_string(source)


def render(source: str, variables: dict[str, Any]) -> str:
    """Render a template; stops if the output grows too long."""
    parts, length = [], 0
    for part in _compile(source).generate(variables):
        parts.append(part)
        length += len(part)
        if length > MAX_OUTPUT:
            raise TooLong
    return "".join(parts)


def answer(request: dict[str, Any]) -> dict[str, str]:
    """The answer to one request. Any failure of the template is an answer, too."""
    try:
        return {"text": render(request["template"], request["variables"])}
    except Refused as error:
        return {"fault": "refused", "message": str(error)}
    except TooLong:
        return {"fault": "long", "message": f"more than {MAX_OUTPUT} characters"}
    except TemplateSyntaxError as error:
        return {"fault": "syntax", "message": f"line {error.lineno}: {error.message}"}
    except SecurityError as error:
        return {"fault": "security", "message": str(error)}
    except UndefinedError as error:
        return {"fault": "undefined", "message": str(error)}
    except MemoryError:
        raise
    except RecursionError:
        return {"fault": "recursion", "message": "nested too deeply"}
    except TemplateError as error:
        return {"fault": "template", "message": str(error)}
    except Exception as error:
        return {"fault": "template", "message": f"{type(error).__name__}: {error}"}


def warm() -> None:
    """Render a template, and a failing one, once, and import what Jinja imports when a filter is first used.

    No file can be opened afterwards, so an import would fail then.
    """
    for name in _LATE_IMPORTS:
        import_module(name)
    source = "{% for m in x %}{{ m|tojson }}{{ m.a|trim }}{% endfor %}{{ strftime_now('%d %b %Y') }}{{ x|length }}"
    render(source, {"x": [{"a": " b "}]})
    answer({"template": "{{ raise_exception(1) }}", "variables": {}})
