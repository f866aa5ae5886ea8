"""The arguments of a tool call as they are written: its name first, then pieces of a JSON object.

`calls.py` parses a call that is whole. Here a call is passed on while the model writes it, so what was passed on cannot
be taken back. Therefore a call is streamed only from the point where its opening names an offered function, in a
notation whose arguments follow the name: JSON, or tags around each argument. All other calls are parsed at their end.
The pieces joined are the text that `calls.py` gives for the whole call.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from assay.text.calls import Tools

_NAME = r"[\w.-]+"
_TAG = r"[^\s<>/\"=]*"  # before the names of some families' tags
_MAX_OPENING = 1024  # characters before the arguments of a call


@dataclass(frozen=True)
class CallPart:
    """The beginning of a call, which has its name, or more of the arguments of the last one."""

    name: str = ""
    arguments: str = ""


@dataclass(frozen=True)
class _Tags:
    """Tags around one argument: the pattern of the opening one, the closing one, and the end of the call."""

    opening: str
    closing: str
    end: str
    trims: bool  # whether the line breaks around a value are no part of it


# How a call begins, how its arguments are written, and which families write it; none: all. `name` is the function,
# OBJECT is where its arguments begin, `tag` is put before the names of tags. JSON arguments are passed on as they are,
# or as json.dumps writes them, like the reader of the notation does.
_JSON, _DUMPED = "json", "dumped"
_OPENINGS: tuple[tuple[str, str | _Tags, tuple[str, ...]], ...] = (
    (
        r'[\s,;\[\]}]*\{\s*(?:"(?:id|type|tool_call_id)"\s*:\s*"[^"\\]*"\s*,\s*)*"(?:name|tool_name)"\s*:\s*'
        rf'"(?P<name>{_NAME})"\s*,\s*"(?:arguments|parameters)"\s*:\s*OBJECT', _DUMPED, (),
    ),
    (rf'[\s,\[\]}}]*\{{\s*"(?P<name>{_NAME})"\s*:\s*OBJECT', _DUMPED, ("apertus",)),
    (rf"(?:\s|\[TOOL_CALLS\])*(?P<name>{_NAME})(?:\[CALL_ID\]{_NAME})?\[ARGS\]\s*OBJECT", _JSON, ("mistral",)),
    (
        rf"[\s`]*(?:<｜tool▁call▁end｜>\s*)?<｜tool▁call▁begin｜>function<｜tool▁sep｜>\s*(?P<name>{_NAME})[^\S\n]*\n"
        r"\s*(?:```\w*\s*)?OBJECT", _JSON, ("deepseek",),
    ),
    (
        rf"\s*(?:<｜tool▁call▁end｜>\s*)?<｜tool▁call▁begin｜>\s*(?P<name>{_NAME})\s*<｜tool▁sep｜>\s*OBJECT",
        _JSON, ("deepseek",),
    ),
    (
        rf"\s*(?:<\|tool_call_end\|>\s*)?<\|tool_call_begin\|>\s*(?:functions\.)?(?P<name>{_NAME}?)(?::\d+)?\s*"
        r"<\|tool_call_argument_begin\|>\s*OBJECT", _JSON, ("kimi",),
    ),
    (rf"\s*(?:</function>\s*)?<function=(?P<name>{_NAME})>\s*OBJECT", _JSON, ()),
    (
        rf"\s*<function=(?P<name>{_NAME})>\s*(?=<)",
        _Tags(rf"\s*<parameter=(?P<key>{_NAME})>", "</parameter>", "</function>", trims=True), (),
    ),
    (
        rf'\s*<(?P<tag>{_TAG})invoke name="(?P<name>[^"]+)">\s*(?=<)',
        _Tags(
            r'\s*<TAGparameter name="(?P<key>[^"]+)"(?: string="(?P<string>true|false)")?>',
            "</TAGparameter>", "</TAGinvoke>", trims=True,
        ), (),
    ),
    (
        rf"\s*(?P<name>{_NAME})\s*(?=<arg_key>)",
        _Tags(
            r"\s*<arg_key>\s*(?P<key>[^<]*?)\s*</arg_key>\s*<arg_value>", "</arg_value>", "", trims=False,
        ), ("hermes",),
    ),
)  # fmt: skip
_OBJECT = r'(?=\{\s*["}])'  # what is no object of JSON is seen before its call is begun
_COMPILED = tuple((re.compile(pattern.replace("OBJECT", _OBJECT)), kind, who) for pattern, kind, who in _OPENINGS)
_ARGUMENTS = re.compile(r"\s*" + _OBJECT)
_STRING = re.compile(r'[^"\\\x00-\x1f]+')
_ESCAPE = re.compile(r'\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\u[0-9a-fA-F]{4}|\\["\\/bfnrt]')
_LITERAL = re.compile(r"[-+.\w]+")


class _NotJson(Exception):
    """The text is no JSON; the reader of the whole call decides what it is."""


class CallStream:
    """Reads the text between the marks of a call, or of several, as it grows."""

    def __init__(self, family: str, tools: Tools, name: str = "") -> None:
        """With `name` the text is the arguments of that function alone."""
        self.begun = 0  # calls whose name was passed on
        self._tools = tools
        self._text = ""  # that was not read yet
        self._parts: list[CallPart] = []
        self._ended = False
        patterns = [(pattern, kind) for pattern, kind, families in _COMPILED if not families or family in families]
        self._reading: Iterator[None] = self._named(name) if name else self._calls(patterns)

    def feed(self, text: str, *, end: bool = False) -> list[CallPart]:
        """More of the text; `end` if it is the last of it. Gives what can be passed on now."""
        self._text += text
        self._ended = end
        try:
            next(self._reading, None)
        except _NotJson:
            self._reading = iter(())
        named: list[CallPart] = []
        for part in self._parts:  # pieces of the same arguments are joined
            if named and not part.name:
                named[-1] = CallPart(named[-1].name, named[-1].arguments + part.arguments)
            else:
                named.append(part)
        self._parts = []
        return named

    def _calls(self, patterns: list[tuple[re.Pattern[str], str | _Tags]]) -> Iterator[None]:
        while True:
            found = next(((m, kind) for p, kind in patterns if (m := p.match(self._text))), None)
            if found is None:
                if len(self._text) > _MAX_OPENING:
                    return
                yield
                continue
            match, kind = found
            if match["name"] not in self._tools.arguments:
                return  # its reader decides
            self._begin(match["name"])
            self._text = self._text[match.end() :]
            if isinstance(kind, _Tags):
                yield from self._tagged(kind, match["name"], match.groupdict().get("tag") or "")
            else:
                yield from self._object(dumped=kind == _DUMPED)

    def _named(self, name: str) -> Iterator[None]:
        while not (found := _ARGUMENTS.match(self._text)):
            if len(self._text) > _MAX_OPENING:
                return
            yield
        self._text = self._text[found.end() :]
        self._begin(name)
        yield from self._object(dumped=False)

    def _begin(self, name: str) -> None:
        self.begun += 1
        self._parts.append(CallPart(name))

    def _pass(self, n: int, text: str) -> None:
        """Pass on a piece of arguments, for the next n characters."""
        self._parts.append(CallPart("", text))
        self._text = self._text[n:]

    # --- JSON

    def _object(self, *, dumped: bool) -> Iterator[None]:
        """An object up to its closing brace."""
        depth = 0
        while True:
            if not self._text:
                yield
                continue
            c = self._text[0]
            if c in " \t\r\n":
                self._pass(1, "" if dumped else c)
            elif c in ",:":
                self._pass(1, f"{c} " if dumped else c)
            elif c == '"':
                yield from self._string(dumped=dumped)
            elif c in "{[":
                depth += 1
                self._pass(1, c)
            elif c in "}]":
                depth -= 1
                self._pass(1, c)
                if not depth:
                    return
            else:
                found = _LITERAL.match(self._text)
                if found is None:
                    raise _NotJson
                if found.end() == len(self._text):  # it may go on
                    yield
                    continue
                self._pass(found.end(), _dumped(found[0]) if dumped else found[0])

    def _string(self, *, dumped: bool) -> Iterator[None]:
        self._pass(1, '"')
        while True:
            if found := _STRING.match(self._text):
                self._pass(found.end(), found[0])
            if not self._text:
                yield
                continue
            if self._text[0] == '"':
                self._pass(1, '"')
                return
            found = _ESCAPE.match(self._text)
            halves = self._text[:2] == "\\u" and len(self._text) < 12  # the other half of a pair may follow
            if found is None or (halves and re.match(r"\\u[dD][89abAB]", self._text)):
                if self._text[0] != "\\" or len(self._text) >= 12:
                    raise _NotJson
                if self._ended:
                    return
                yield
                continue
            alone = len(found[0]) == 6 and re.match(r"\\u[dD][89a-fA-F]", found[0])  # half a pair stays an escape
            self._pass(found.end(), found[0] if alone or not dumped else _dumped(f'"{found[0]}"')[1:-1])

    # --- tags

    def _tagged(self, tags: _Tags, name: str, prefix: str) -> Iterator[None]:
        """Arguments between tags, up to the end of the call."""
        opening = re.compile(tags.opening.replace("TAG", re.escape(prefix)))
        closing, end = (text.replace("TAG", prefix) for text in (tags.closing, tags.end))
        first = True
        while True:
            if found := opening.match(self._text):
                key, string = found["key"], found.groupdict().get("string") == "true"
                self._pass(found.end(), ("{" if first else ", ") + json.dumps(key, ensure_ascii=False) + ": ")
                yield from self._value(name, key, closing, string=string, trims=tags.trims and not string)
                first = False
                continue
            rest = self._text.lstrip()
            if (rest.startswith(end) and end) or (self._ended and not end and not rest):
                self._pass(len(self._text) - len(rest) + len(end), "{}" if first else "}")
                return
            yield

    def _value(self, name: str, key: str, closing: str, *, string: bool, trims: bool) -> Iterator[None]:
        """One argument up to its closing tag. A string is passed on as it grows, another value as a whole."""
        schema: Any = self._tools.arguments.get(name, {}).get(key)
        grows = string or (isinstance(schema, dict) and schema.get("type") == "string")
        head, lead = ('"' if grows else ""), trims
        if grows:
            self._pass(0, head)
        while True:
            if lead and self._text:
                self._text, lead = self._text.removeprefix("\n"), False
            at = self._text.find(closing)
            if at >= 0:
                text = self._text[:at].removesuffix("\n") if trims else self._text[:at]
                whole = _escaped(text) + '"' if grows else _dump(self._tools.value(name, key, text))
                self._pass(at + len(closing), whole)
                return
            if grows:  # what may belong to the end stays
                n = len(self._text) - _begun(self._text, closing)
                n -= trims and self._text[:n].endswith("\n")
                self._pass(n, _escaped(self._text[:n]))
            yield


def _begun(text: str, mark: str) -> int:
    """The length of the longest end of a text that is a beginning of a mark."""
    return next((n for n in range(min(len(mark) - 1, len(text)), 0, -1) if mark.startswith(text[-n:])), 0)


def _dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _escaped(text: str) -> str:
    return _dump(text)[1:-1]


def _dumped(text: str) -> str:
    """A value of JSON as json.dumps writes it."""
    try:
        return _dump(json.loads(text))
    except (ValueError, RecursionError):
        raise _NotJson from None
