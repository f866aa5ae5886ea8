"""Rewrites a Jupyter notebook as the text that a reader of it sees: what a cell asks for, and below it what it shows.

np.array(m.get('mid', 0))        layer 0 mid:
                                 array([[0.5, 1.5], …
m.get('emb')                     emb:
y = m.feed([44], 6)              forward([44]) nPast=6
prompt = [9, 250, 133]           prompt = [9, 250, 133]

A cell that shows columns from the middle of a row is left out, because nothing in its output tells which they are.

Touch this module for another way in which a cell names what it shows.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

_MOST = 1 << 25  # characters; a longer text stays as it is
_IDS = re.compile(r"^\s*\w{1,40}\s*=\s*\[\s*\d{1,7}(?:\s*,\s*\d{1,7}){1,4000}\s*\]\s*$")
_CALL = re.compile(
    r"\b(?:feed|forward|eval|decode|step|call|run|predict)\w{0,12}\(\s*(\[\s*\d{1,7}(?:\s*,\s*\d{1,7}){0,4000}\s*\])"
    r"(?:\s*,\s*(?:\w{1,20}\s*=\s*)?(\d{1,6}))?"
)
_ASKED = re.compile(r"[(\[]\s*['\"]([\w./-]{1,80})['\"]\s*(?:[,\]]\s*\[?\s*(\d{1,3}))?")
_MIDDLE = re.compile(r"\[[^\[\]]{0,20}[,:]\s*[1-9]\d{0,5}\s*:[^\[\]]{0,12}\]")
_COMMENT = re.compile(r"(?<!['\"])\s*#.*$")
_TUPLE = re.compile(r"^\(((?:np\.)?(?:array|tensor)\(.{1,100000}?\))\s*,\n", re.DOTALL)


def notebook_as_text(text: str) -> str:
    """The text; if it is a notebook, its cells."""
    if len(text) > _MOST or text[:200].lstrip()[:1] != "{" or '"cells"' not in text or '"cell_type"' not in text:
        return text
    try:
        cells = json.loads(text)["cells"]
        return "\n".join(line for cell in cells for line in _lines(cell)) + "\n"
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return text


def _lines(cell: dict[str, Any]) -> Iterator[str]:
    source = [_COMMENT.sub("", line) for line in _joined(cell.get("source")).splitlines() if line.strip()]
    if cell.get("cell_type") != "code":
        return
    yield from (line for line in source if _IDS.match(line))
    for line in source:
        if m := _CALL.search(line):
            yield f"forward({m[1]})" + (f" nPast={m[2]}" if m[2] else "")
    shown = source[-1] if source else ""
    if _MIDDLE.search(shown):
        return
    asked = _ASKED.search(shown)
    outputs = [_shown(output) for output in cell.get("outputs", [])]
    if not any(outputs):
        return
    if asked is not None:
        yield f"{f'layer {asked[2]} ' if asked[2] else ''}{asked[1]}:"
    else:
        yield "In [1]: "
    for output in outputs:
        m = _TUPLE.match(output)
        yield m[1] if m else output


def _shown(output: dict[str, Any]) -> str:
    return _joined(output.get("text") or (output.get("data") or {}).get("text/plain"))


def _joined(text: Any) -> str:
    return "".join(text) if isinstance(text, list) else str(text or "")
