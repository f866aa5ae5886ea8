"""Rewrites a document so that it can be read by lines: JSON with each record on one line, YAML's lists indented.

A record is an object of plain values and lists. Behind it stand the keys that lead to it: `layers.0.attn.q: [...]`. An
object in a list is named by its own number or name (`"idx": 0`), or by its place.

In JSON lines such as `{"ev": "attn", "v": [0.5]}` the letter is no node: the records name their nodes beside it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from assay.verify.dumps.naming.phrases import split_words

_MOST = 1 << 25  # characters; a longer text stays as it is
_DEEPEST = 12
_NUMBER_KEYS = ("layer", "layer_idx", "layer_id", "idx", "index", "il", "block", "id", "i", "n")
_NAME_KEYS = ("name", "node", "tensor", "op", "label", "stage")
_ITEMS = re.compile(
    r"^( {0,40}[A-Za-z_][\w.-]{0,60}):[ ]{0,8}\n((?: {0,40}- +[-+.0-9eE]{1,30}[ ]{0,8}\n){2,4000}+)", re.MULTILINE
)
_KEY_ALONE = re.compile(r"[A-Za-z_][\w .-]{0,60}:\s*")
_OF_VALUES = {
    "last", "first", "token", "tok", "row", "head", "tail", "values", "vals", "sample", "stats", "statistics",
    *map(str, range(33)),
}  # fmt: skip
_FED_KEYS = ("fed", "tokens", "ids", "input_ids", "token_ids", "input")
_OF_A_CALL = {*_FED_KEYS, "phase", "step", "pos", "position", "n_past", "past"}
_ROW_KEY = re.compile(r"(?:pos|position|row|tok|token|t)[ _]?(\d{1,6})", re.IGNORECASE)
# A list under one letter, in a record that names its node elsewhere
_LETTER = re.compile(r"""(?<=["'])[vxyhdqkou](?=["']\s{0,2}:\s{0,2}\[)""", re.IGNORECASE)
_NAMED = re.compile(
    r"""["'](?:ev|event|name|node|op|tensor|label|at|what|tag|stage|kind|probe|hook)["']\s{0,2}:\s{0,2}["']([^"']{1,60})["']"""
)
_FEWEST_NAMES = 3


def one_record_a_line(text: str) -> str:
    """The text; if all of it is one document, with each record and list of records on one line."""
    if len(text) > _MOST:
        return text
    return _as_lines(_lists_are_values(text))


def _lists_are_values(text: str) -> str:
    """JSON lines whose lists stand under one and the same letter, whatever node the record names: `values`."""
    lines = text.split("\n")
    found = {i: letters for i, line in enumerate(lines) if line[:1] == "{" and (letters := _LETTER.findall(line))}
    names = {m[1] for i in found if (m := _NAMED.search(lines[i]))}
    if len(names) < _FEWEST_NAMES or len({tuple(letters) for letters in found.values()}) > 1:
        return text
    for i, letters in found.items():
        if len(letters) == 1:
            lines[i] = _LETTER.sub("values", lines[i])
    return "\n".join(lines)


def _as_lines(text: str) -> str:
    if "\n" not in text.strip():
        document = _json(text) if text[:1] in "{[" else None
        return "\n".join(_paths(document, "", 0)) + "\n" if _nested(document) else text
    document = _json(text) if text[:1] in ("{", "[") else None
    if document is None:
        text = _ITEMS.sub(_joined_items, text) if "- " in text else text
        return _indented(text) if "\n- " in text else text
    if _nested(document):
        return "\n".join(_paths(document, "", 0)) + "\n"
    return "\n".join(_lines(document, "", "")) + "\n"


class _Text(str):
    """A number as it was printed."""


def _json(text: str) -> Any:
    try:
        return json.loads(text, parse_float=_Text, parse_int=_Text, parse_constant=_Text)
    except (ValueError, RecursionError):
        return None


def _nested(document: Any, depth: int = 0) -> bool:
    """Whether objects in lists hold objects or arrays of their own, so that keys alone do not tell whose they are."""
    if depth > _DEEPEST:
        return False
    if isinstance(document, dict):
        return any(_nested(v, depth + 1) for v in document.values())
    if isinstance(document, list) and document and all(isinstance(v, dict) for v in document):
        inner = [w for v in document[:4] for w in v.values()]
        return any(isinstance(w, dict) or (isinstance(w, list) and w and isinstance(w[0], list)) for w in inner)
    return False


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


def _fed(calls: Any) -> list[tuple[str, dict[str, Any]]]:
    """Objects in a list that each have the ids of one call: a heading that says what it feeds, and the rest."""
    if not isinstance(calls, list) or len(calls) < 2 or not all(isinstance(c, dict) for c in calls):
        return []
    key = next((k for k in _FED_KEYS if all(_ids(c.get(k)) for c in calls)), "")
    past, found = 0, []
    for call in calls if key else ():
        rest = {k: v for k, v in call.items() if k not in _OF_A_CALL}
        found.append((f"forward([{', '.join(call[key])}]) nPast={past}", rest))
        past += len(call[key])
    return found


def _lines(value: Any, indent: str, key: str) -> list[str]:
    if fed := _fed(value):
        return [line for heading, rest in fed for line in (heading, *_lines(rest, "", ""))]
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


def _paths(value: Any, path: str, depth: int) -> Iterator[str]:
    """A line for each record or array, behind the keys that lead to it."""
    if depth > _DEEPEST:
        return
    if fed := _fed(value):
        for heading, rest in fed:
            yield heading
            yield from _paths(rest, "", depth + 1)
    elif isinstance(value, list) and value and all(isinstance(v, dict) for v in value):
        for i, item in enumerate(value):
            yield from _paths(item, f"{path}.{_own_name(item, i)}" if path else _own_name(item, i), depth + 1)
    elif isinstance(value, dict) and not _statistics(value):
        for key, item in value.items():
            row = _ROW_KEY.fullmatch(str(key))
            about = path and set(split_words([str(key)])) <= _OF_VALUES  # lastToken, first4: no part of the name
            joined = f"{path} {key}" if about else f"{path}.{key}" if path else str(key)
            inner = f"{path} pos {row[1]}" if row else joined
            yield from _paths(item, inner, depth + 1)
    elif isinstance(value, dict):
        yield f"{path} " + ", ".join(f"{key}: {_short(item)}" for key, item in value.items())
    elif isinstance(value, str) and not isinstance(value, _Text) and any(p.isdecimal() for p in path.split(".")):
        return  # a remark inside a layer: "operator": "shortconv"
    elif path.rpartition(".")[2] not in _NUMBER_KEYS or isinstance(value, list):
        yield f"{path.rpartition('.')[2] if _ids(value) else path}: {_short(value)}"


def _ids(value: Any) -> bool:
    """Whether it is a list of whole numbers; its last key names it: `prompt.ids`."""
    return isinstance(value, list) and bool(value) and all(isinstance(v, _Text) and v.isdecimal() for v in value)


def _statistics(value: dict[str, Any]) -> bool:
    """Whether all of an object's values are numbers or lists of numbers, one of them a number: a record of one node."""
    numbers = [isinstance(v, _Text) for v in value.values()]
    lists = [isinstance(v, list) and all(isinstance(x, _Text) for x in v) for v in value.values()]
    return bool(value) and all(a or b for a, b in zip(numbers, lists, strict=True)) and any(numbers)


def _own_name(item: dict[str, Any], place: int) -> str:
    number = next((str(item[k]) for k in _NUMBER_KEYS if str(item.get(k, "")).isdecimal()), "")
    name = next((item[k] for k in _NAME_KEYS if isinstance(item.get(k), str)), "")
    return ".".join(filter(None, (number, name))) or str(place)


def _joined_items(m: re.Match[str]) -> str:
    """Numbers below each other, each behind a dash, as one list."""
    return f"{m[1]}: [{', '.join(re.findall(r'[-+.0-9eE]+', m[2].replace('- ', ' ')))}]\n"


def _indented(text: str) -> str:
    """A YAML list whose dashes stand below their key, moved to the right of it, as its lines belong to the key."""
    found, below = list[str](), False
    for line in text.splitlines():
        if below and line[:1] not in ("-", " ", ""):
            below = False
        below = below or (line.startswith("- ") and bool(found) and _KEY_ALONE.fullmatch(found[-1]) is not None)
        found.append("  " + line if below and line.strip() else line)
    return "\n".join(found) + "\n"
