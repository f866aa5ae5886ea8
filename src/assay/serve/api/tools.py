"""Tool calls: how each family of templates writes them, found in the answer, and required of it by a grammar.

A family is one row of `FORMATS`, chosen by what the template's own source mentions.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from assay.runtime.grammar import json_rule
from assay.runtime.stops import StopStrings
from assay.serve.api.schemas import Function
from assay.text import Tokenizer

_DECODER = json.JSONDecoder()


@dataclass(frozen=True)
class Call:
    """A function and its arguments, as JSON text."""

    name: str
    arguments: str


@dataclass(frozen=True)
class Format:
    """`opening` begins the calls and `closing` ends one; `key` holds the arguments; `bare`: an answer that is JSON
    from its first character is a call as well."""

    name: str
    mentions: tuple[str, ...]  # a template that contains one of these writes calls so
    opening: str
    closing: str
    key: str
    find: Callable[[str, str], list[Call]]  # text behind the first opening, key
    listed: bool = False  # one JSON array of calls instead of one object each
    bare: bool = False


def _objects(text: str, key: str) -> list[Call]:
    """Every JSON object in a text that is a call; also inside arrays, also separated by anything."""
    calls: list[Call] = []
    at = 0
    while (found := re.compile(r"[{\[]").search(text, at)) is not None:
        try:
            value, at = _DECODER.raw_decode(text, found.start())
        except (ValueError, RecursionError):
            at = found.start() + 1
            continue
        calls += [call for item in (value if isinstance(value, list) else [value]) if (call := _call(item, key))]
    return calls


def _call(value: Any, key: str) -> Call | None:
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return None
    arguments = value.get(key, value.get("arguments", value.get("parameters", {})))
    return Call(value["name"], arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False))


def _mistral(text: str, key: str) -> list[Call]:
    """`[{"name": …, "arguments": …}]`, or the newer `name[ARGS]{…}`, repeated after each `[TOOL_CALLS]`."""
    named = re.findall(r"([\w.-]+)\[ARGS\](\{.*?)(?=\[TOOL_CALLS\]|$)", text, re.DOTALL)
    return [Call(name, arguments.strip()) for name, arguments in named] or _objects(text, key)


FORMATS: tuple[Format, ...] = (
    Format("hermes", ("<tool_call>",), "<tool_call>", "</tool_call>", "arguments", _objects),
    Format("mistral", ("[TOOL_CALLS]",), "[TOOL_CALLS]", "", "arguments", _mistral, listed=True),
    Format("llama3", ("python_tag", "tools"), "<|python_tag|>", "", "parameters", _objects, bare=True),
)


def format_of(template: str) -> Format | None:
    """How a template writes calls; None where it knows no tools."""
    if not re.search(r"\btools\b", template):
        return None
    return next(f for f in FORMATS if any(text in template for text in f.mentions))


class ToolText:
    """An answer that may contain calls: push text, get what is certainly not part of one; at the end, the calls."""

    def __init__(self, form: Format) -> None:
        self._form = form
        self._stops = StopStrings([form.opening])
        self._text = ""
        self._searched = self._shown = 0  # characters of it

    def push(self, text: str) -> str:
        self._text += text
        if self._form.bare and self._text.lstrip()[:1] in ("", "{"):
            return ""
        new, self._searched = self._text[self._searched :], len(self._text)
        visible = self._stops.push(new)
        self._shown += len(visible)
        return visible

    def finish(self) -> tuple[str, list[Call]]:
        """The text that was held back in vain, and the calls."""
        rest = self._text[self._shown :]
        begun = self._form.opening in rest or (self._form.bare and rest.lstrip()[:1] == "{")
        calls = self._form.find(rest.split(self._form.opening, 1)[-1], self._form.key) if begun else []
        return ("" if calls else rest), calls


def required_rule(form: Format, tools: Sequence[Function], tokenizer: Tokenizer) -> str:
    """A Lark grammar: exactly one call, of one of these functions, with arguments that fit its schema."""
    rules = [f"call{i}: {json_rule(_schema(form, tool))}" for i, tool in enumerate(tools)]
    one = " | ".join(f"call{i}" for i in range(len(tools)))
    opening = "" if form.bare else f"{_literal(form.opening, tokenizer)} {json.dumps(chr(10))} "
    closing = f" {json.dumps(chr(10))} {_literal(form.closing, tokenizer)}" if form.closing else ""
    if form.listed:
        opening, closing = f'{_literal(form.opening, tokenizer)} "[" ', ' "]"'
    return "\n".join([f"start: {opening}({one}){closing}", *rules])


def _schema(form: Format, tool: Function) -> dict[str, Any]:
    arguments = dict(tool.parameters or {"type": "object"})
    shared: dict[str, Any] = {key: arguments.pop(key) for key in ("$defs", "definitions") if key in arguments}
    return {
        "type": "object",
        "properties": {"name": {"const": tool.name}, form.key: arguments},
        "required": ["name", form.key],
        "additionalProperties": False,
        **shared,  # references in a schema start at its root
    }


def _literal(text: str, tokenizer: Tokenizer) -> str:
    """A text as a Lark terminal: the token itself where it is a special one."""
    token = tokenizer.vocab.ids.get(text)
    return f"<[{token}]>" if token is not None and tokenizer.is_special(token) else json.dumps(text)
