"""Parsers of tool calls: one function per notation, from text to calls.

A parser gets the text between a family's marks and the offered tools. It returns the calls, or an empty result if the
text is anything else. It never guesses and never raises, because a model may write any text.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_DECODER = json.JSONDecoder()
_BETWEEN = re.compile(r"[\s,;]*")
_NAME = r"[\w.-]+"
_MAX_PYTHON = 1 << 16  # characters
_CODE_TOOLS = ("python", "ipython", "code_interpreter")


@dataclass(frozen=True)
class Call:
    """A function and its arguments, as JSON text."""

    name: str
    arguments: str


@dataclass(frozen=True)
class Tools:
    """The offered functions: by name, the JSON schema of each argument."""

    arguments: Mapping[str, Mapping[str, Any]]

    @classmethod
    def offered(cls, tools: Sequence[Mapping[str, Any]]) -> Tools:
        """From OpenAI's list of tools."""
        found: dict[str, Mapping[str, Any]] = {}
        for tool in tools:
            function = tool.get("function") or tool
            schema = function.get("parameters")
            properties = schema.get("properties") if isinstance(schema, Mapping) else None
            found[str(function.get("name"))] = properties if isinstance(properties, Mapping) else {}
        return cls(found)

    def value(self, name: str, key: str, text: str) -> Any:
        """The value of an argument written as bare text: JSON, unless its schema says string."""
        schema = self.arguments.get(name, {}).get(key)
        if isinstance(schema, Mapping) and schema.get("type") == "string":
            return text
        value = _json(text)
        return text if value is None and text.strip() != "null" else value


Reader = Callable[[str, Tools], list[Call]]


def _json(text: str) -> Any:
    """The JSON value of a text, or None."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _dump(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def _matches(pattern: str, text: str) -> list[re.Match[str]]:
    """All matches, if they cover the text apart from white space. Each starts at the end of the last: linear time."""
    form, at, found = re.compile(pattern + r"\s*", re.DOTALL), len(text) - len(text.lstrip()), []
    while at < len(text):
        match = form.match(text, at)
        if match is None:
            return []
        found.append(match)
        at = match.end()
    return found


def _unfenced(text: str) -> str:
    """The text inside a Markdown code fence, or the text itself."""
    text = text.strip()
    fenced = text.startswith("```") and text.endswith("```") and "\n" in text
    return text[text.index("\n") : -3].strip() if fenced else text


def read_json(text: str, tools: Tools) -> list[Call]:
    """`{"name": …, "arguments": …}`, one or several, also in a list; `parameters` and `tool_name` are taken too."""
    text = _unfenced(text)
    calls: list[Call] = []
    at = _BETWEEN.match(text).end()  # type: ignore[union-attr]  # matches anything
    while at < len(text):
        try:
            value, at = _DECODER.raw_decode(text, at)
        except (ValueError, RecursionError):
            return []
        for item in value if isinstance(value, list) else [value]:
            call = _call(item)
            if call is None:
                return []
            calls.append(call)
        at = _BETWEEN.match(text, at).end()  # type: ignore[union-attr]
    return calls


def _call(value: Any) -> Call | None:
    if not isinstance(value, dict):
        return None
    name = value.get("name", value.get("tool_name"))
    if not isinstance(name, str) or not name:
        return None
    arguments = value.get("arguments", value.get("parameters"))
    return Call(name, _dump({} if arguments is None else arguments))


def read_keyed(text: str, tools: Tools) -> list[Call]:
    """`[{"name": {arguments}}]` (Apertus)."""
    value = _json(text)
    items = value if isinstance(value, list) else [value]
    if not all(isinstance(item, dict) and len(item) == 1 for item in items):
        return []
    return [Call(name, _dump(arguments)) for item in items for name, arguments in item.items()]


def read_function_tags(text: str, tools: Tools) -> list[Call]:
    """`<function=name><parameter=key>value</parameter></function>` (Qwen3-Coder, Nemotron 3, Seed), or JSON inside."""
    calls = []
    for found in _matches(rf"<function=({_NAME})>(.*?)</function>", text):
        name, body = found.groups()
        if body.strip().startswith("{"):
            if not isinstance(_json(body), dict):
                return []
            calls.append(Call(name, body.strip()))
            continue
        pairs = _matches(rf"<parameter=({_NAME})>(.*?)</parameter>", body)
        if body.strip() and not pairs:
            return []
        values = {key: tools.value(name, key, _inner(value)) for key, value in (pair.groups() for pair in pairs)}
        calls.append(Call(name, _dump(values)))
    return calls


def _inner(text: str) -> str:
    """A value without the line breaks around it."""
    return text.removeprefix("\n").removesuffix("\n")


def read_argument_tags(text: str, tools: Tools) -> list[Call]:
    """`name<arg_key>key</arg_key><arg_value>value</arg_value>` (GLM)."""
    found = re.fullmatch(rf"\s*({_NAME})\s*((?:<arg_key>.*)?)", text, re.DOTALL)
    if found is None:
        return []
    name, body = found.groups()
    pairs = _matches(r"<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>", body)
    if body.strip() and not pairs:
        return []
    values = {key.strip(): tools.value(name, key.strip(), value) for key, value in (pair.groups() for pair in pairs)}
    return [Call(name, _dump(values))]


def read_tagged(text: str, tools: Tools) -> list[Call]:
    """Any of the notations that families use between `<tool_call>` and `</tool_call>`."""
    return read_json(text, tools) or read_function_tags(text, tools) or read_argument_tags(text, tools)


def read_invocations(text: str, tools: Tools) -> list[Call]:
    """`<invoke name="f"><parameter name="k">v</parameter></invoke>` (MiniMax), with a prefix in each tag (DeepSeek)."""
    calls = []
    prefix = r"[^\s<>/\"=]*"
    for found in _matches(rf'<({prefix})invoke name="([^"]+)">(.*?)</\1invoke>', text):
        mark, name, body = found.groups()
        mark = re.escape(mark)
        form = rf'<{mark}parameter name="([^"]+)"(?: string="(true|false)")?>(.*?)</{mark}parameter>'
        pairs = _matches(form, body)
        if body.strip() and not pairs:
            return []
        values = {}
        for key, string, value in (pair.groups() for pair in pairs):
            values[key] = value if string == "true" else tools.value(name, key, _inner(value))
        calls.append(Call(name, _dump(values)))
    return calls


def read_mistral(text: str, tools: Tools) -> list[Call]:
    """`[{"name": …, "arguments": …}]`, or `name[ARGS]{…}` and the next `[TOOL_CALLS]`; an id may come between."""
    calls = []
    for part in text.split("[TOOL_CALLS]"):
        found = re.fullmatch(rf"\s*({_NAME})(?:\[CALL_ID\]{_NAME})?\[ARGS\](.*)", part, re.DOTALL)
        if found is None:
            new = read_json(part, tools)
        else:
            new = [Call(found[1], found[2].strip())] if isinstance(_json(found[2]), dict) else []
        if not new:
            return []
        calls += new
    return calls


def read_deepseek(text: str, tools: Tools) -> list[Call]:
    """Between begin and end: `function`, a separator, the name and fenced JSON (V3, R1), or name, separator, JSON."""
    calls = []
    form = r"<｜tool▁call▁begin｜>(.*?)<｜tool▁sep｜>(.*?)<｜tool▁call▁end｜>"
    for found in _matches(form, text):
        name, body = (part.strip() for part in found.groups())
        if name == "function":
            name, _, body = (part.strip() for part in body.partition("\n"))
            body = _unfenced(body)
        if not isinstance(_json(body), dict) or not re.fullmatch(_NAME, name):
            return []
        calls.append(Call(name, body))
    return calls


def read_kimi(text: str, tools: Tools) -> list[Call]:
    """`functions.name:0`, a separator, JSON."""
    calls = []
    form = r"<\|tool_call_begin\|>(.*?)<\|tool_call_argument_begin\|>(.*?)<\|tool_call_end\|>"
    for found in _matches(form, text):
        name = re.fullmatch(rf"\s*(?:functions\.)?({_NAME})(?::\d+)?\s*", found[1])
        if name is None or not isinstance(_json(found[2]), dict):
            return []
        calls.append(Call(name[1], found[2].strip()))
    return calls


def read_gemma4(text: str, tools: Tools) -> list[Call]:
    """`call:name{key:<|"|>text<|"|>,other:1}`."""
    found = re.fullmatch(rf"\s*call:({_NAME})(\{{.*\}})\s*", text, re.DOTALL)
    if found is None:
        return []

    def as_json(part: re.Match[str]) -> str:
        return json.dumps(part[1]) if part[1] is not None else json.dumps(part[2])

    body = re.sub(r'<\|"\|>(.*?)<\|"\|>|([A-Za-z_][\w-]*)(?=:)', as_json, found[2], flags=re.DOTALL)
    value = _json(found[2]) or _json(body)
    return [Call(found[1], _dump(value))] if isinstance(value, dict) else []


def read_pythonic(text: str, tools: Tools) -> list[Call]:
    """`[f(a=1), g(b="x")]`, literals only."""
    if len(text) > _MAX_PYTHON:
        return []
    try:
        tree = ast.parse(text.strip(), mode="eval").body
        items = tree.elts if isinstance(tree, ast.List | ast.Tuple) else [tree]
        calls = []
        for item in items:
            if not isinstance(item, ast.Call) or item.args:
                return []
            name = ast.unparse(item.func).removesuffix(".call")
            values = {key.arg: ast.literal_eval(key.value) for key in item.keywords}
            if None in values or not re.fullmatch(_NAME, name):
                return []
            calls.append(Call(name, _dump(values)))
        return calls
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return []


def read_llama(text: str, tools: Tools) -> list[Call]:
    """JSON; or Python: calls of literals, or code for a tool that runs code."""
    calls = read_json(text, tools) or read_pythonic(text, tools)
    runs = next((name for name in _CODE_TOOLS if name in tools.arguments), None)
    return calls or ([Call(runs, _dump({"code": text}))] if runs and text.strip() else [])


def begins_bare(text: str, tools: Tools) -> bool:
    """Whether a text without its end begins like a call of an offered function, without marks."""
    named = re.match(rf'\s*[\[{{\s]*(?:"type"\s*:\s*"function"\s*,\s*)?"name"\s*:\s*"({_NAME})"', text)
    python = re.match(rf"\s*\[\s*({_NAME})\(", text)
    found = named or python
    return found is not None and found[1] in tools.arguments


def read_bare(text: str, tools: Tools) -> list[Call]:
    """An answer that consists only of calls of offered functions, without marks."""
    calls = read_json(text, tools) or read_pythonic(text, tools)
    return calls if all(call.name in tools.arguments for call in calls) else []
