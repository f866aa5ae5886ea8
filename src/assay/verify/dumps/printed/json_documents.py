"""A JSON document printed over many lines, as one of which a line can be read: records of plain values a line each."""

from __future__ import annotations

import json
from typing import Any

_MOST = 1 << 23  # characters; more is read as it stands


def refolded(text: str) -> str:
    """The text; where all of it is one JSON document, with its records and lists of records on a line each."""
    if text[:1] not in "{[" or len(text) > _MOST or "\n" not in text.strip():
        return text
    try:
        document = json.loads(text, parse_float=_Text, parse_int=_Text, parse_constant=_Text)
    except (ValueError, RecursionError):
        return text
    return "\n".join(_lines(document, "", "")) + "\n"


class _Text(str):
    """A number as it was printed."""


def _flat(value: Any) -> bool:
    return not isinstance(value, (dict, list)) or (
        isinstance(value, list) and all(not isinstance(v, (dict, list)) or _record(v) for v in value)
    )


def _record(value: Any) -> bool:
    return isinstance(value, dict) and all(not isinstance(v, (dict, list)) for v in value.values())


def _short(value: Any) -> str:
    if isinstance(value, _Text):
        return value
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(k)}: {_short(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_short, value)) + "]"
    return json.dumps(value)


def _lines(value: Any, indent: str, key: str) -> list[str]:
    if _flat(value):
        return [f"{indent}{key}{_short(value)}"]
    items = value.items() if isinstance(value, dict) else ((None, v) for v in value)
    inner = [
        line
        for name, item in items
        for line in _lines(item, indent + "  ", "" if name is None else f"{json.dumps(name)}: ")
    ]
    opened, closed = "{}" if isinstance(value, dict) else "[]"
    return [f"{indent}{key}{opened}", *inner, f"{indent}{closed}"]
